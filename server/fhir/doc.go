// Package fhir holds the vocabulary that every other package speaks: primitive
// types, the description of the generated models, the JSON codec that works on
// those descriptions, and the index entries that a resource leaves behind.
//
// The models in gen/r4 are plain structs. Beside each stands a Type: the facts
// of its StructureDefinition (element names, cardinality, where in the struct a
// value lies). Decoding, encoding, walking for FHIRPath and checking structure
// are written once, here, over that table:
//
//	bytes --Decode--> *r4.Patient --index.Extract--> Index (terms, dates, …)
//	                      |
//	                      +--Node (Type, pointer)--> FHIRPath, validation
//
// What is stored is never re-encoded: Splice copies the client's bytes, without
// white space, around the id and meta that the server decides.
//
// The package knows no HTTP, no SQL and no resource type by name.
package fhir
