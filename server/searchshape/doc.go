// Package searchshape counts searches by their shape: the resource
// type, and the parameters with modifiers and chains, never a value.
//
//	search -> Recorder.Ran -> counts of this server -> Flush -> table search_shape, of all servers
//	                              shapes -> Advisor -> candidates -> store.ProveIndex -> suggestions
//
// Memory and database each contain at most a thousand shapes. The
// Advisor suggests an index only if a plan with it, hypothetical or real, was
// better; server/store proves this (ProveIndex).
package searchshape
