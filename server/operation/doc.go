// Package operation holds the $operations, one file each, and the one place where
// they are registered.
//
//	request --> Set.find (an atomic snapshot) --> inputs --> Operation.Run --> Response
//
// It stands on server/interaction, which knows the operations only as the interface
// Operations, and knows no HTTP.
package operation
