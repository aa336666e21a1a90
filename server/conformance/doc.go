// Package conformance tests the running service from outside: over HTTP only,
// against what the specification says, with one file for each interaction and
// each case citing its section. It knows nothing of how an answer comes about.
//
// Sections are those of https://hl7.org/fhir/R4/; "contract" is the service's own
// specification where it goes beyond R4 or chooses.
package conformance
