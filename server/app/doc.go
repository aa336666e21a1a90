// Package app is the application platform: Apps, which add operations to the server.
//
//	a write of an App    --> Hook: its checks, inside the transaction that stores it
//	a call of $name      --> Run: the App that has it --> package sandbox, or an HTTP service
//
// Platform comes before the server's own operations, which it never replaces. The fhir.* functions
// of a script call server/interaction with the caller's principal: a
// script can do nothing that its caller could not do over REST.
//
// The Apps in force are a snapshot of the active ones. Each call compares its version
// with the version in the database, one row, so a change is effective at once on every server.
package app
