// Package settings is the configuration in force. A server starts with what the
// file, the environment and the flags say; what administrators put into the
// database at run time lies above the file and below environment and flags:
//
//	flag > environment > database > file > default
//
// Refresh brings a server up to date with the database; it is called a few times a
// second, so that every server of a database soon agrees. Whoever needs a value at
// run time asks Current each time, and never keeps it.
package settings
