// Package settings is the configuration in force. A server starts with what the
// file, the environment and the flags say; what administrators put into the
// database at run time lies above the file and below environment and flags:
//
//	flag > environment > database > file > default
//
// Refresh brings a server up to date with the database; it is called a few times a
// second, so that every server of a database soon agrees.
//
// A part follows the configuration in one of three ways:
//
//   - It asks Current each time that it needs a value, and never keeps it. That is an
//     atomic load: it may stand on the path of a request.
//   - It asks Enabled, with the id of the client, whether a feature flag is on. A flag
//     is a boolean key under another name (Flag.Key), which may be on for some clients
//     only; Current has the key alone, so a part that serves clients asks Enabled.
//   - It registers a function with OnChange, where a value has to be put to use: a
//     worker to start or end, a client to build anew. What is needed at the start it
//     does for itself, from Current.
//
// A key whose field is tagged file says where the database is, or seals what is in it:
// it is refused. A key
// whose field is tagged restart is read at start only: it can be put into the
// database, its entry says restart_required, and it takes effect when the server
// starts again.
package settings
