// Package conformance tests the running service from outside, over HTTP only, against the specification. Each
// interaction has one file, and each case cites its section. The package knows no internals.
//
// Sections are those of https://hl7.org/fhir/R4/; "contract" is the service's own specification where it extends R4
// or chooses.
package conformance
