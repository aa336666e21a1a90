// Package searchshape counts the searches that are run, by their shape: the resource
// type, and the parameters with modifiers and chains, never a value.
//
//	search -> Recorder.Ran -> counts of this server -> Flush -> table search_shape, of all servers
//	                              shapes -> Advisor -> candidates -> store.ProveIndex -> suggestions
//
// What is kept is bounded: in memory and in the database a thousand shapes. The
// Advisor suggests an index only where a plan with it, hypothetical or real, was
// better; how that is proved is in server/store (ProveIndex).
package searchshape
