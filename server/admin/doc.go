// Package admin holds what operators ask of a server: is it alive, is it ready,
// what has it done. Nothing here is FHIR, save the form of an error.
package admin
