// Package simulator is the page /launch of a server for trying things out: it plays
// the EHR, which launches a registered app with a patient and an encounter, and at
// /launch/app it is an app itself, which shows what it was given. It has no state:
// what the app must remember between two requests is in a cookie of its own.
//
// It is mounted by kiln serve --demo alone: who opens it launches without a sign-in.
package simulator
