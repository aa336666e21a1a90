// Package settings owns the configuration in force. A server starts with the
// file, the environment and the flags. Values that administrators store in the
// database at run time override the file, but neither environment nor flags:
//
//	flag > environment > database > file > default
//
// Refresh applies changes in the database to a server. It runs a few times a
// second, so that every server of a database soon agrees.
//
// A part follows the configuration in one of three ways:
//
//   - It calls Current each time that it needs a value, and never keeps the result. Current is
//     an atomic load, fast enough for every request.
//   - It calls Enabled, with the id of the client, for a feature flag. A flag
//     is a boolean key under another name (Flag.Key) that can be on for some clients
//     only. Current returns the key alone, so a part that serves clients calls Enabled.
//   - It registers a function with OnChange if it must act on a change, for example start a
//     worker or build a client. At the start it acts by itself, on Current.
//
// A key whose field has the tag file locates the database or encrypts its contents: the
// database cannot contain it. A key
// whose field has the tag restart is read at start only: the database can contain it,
// its entry says restart_required, and it takes effect when the server starts again.
package settings
