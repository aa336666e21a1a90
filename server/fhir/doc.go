// Package fhir owns the vocabulary of all other packages: primitive
// types, the description of the generated models, the JSON codec that works on
// those descriptions, and the index entries of a resource.
//
// The models in gen/r4 are plain structs. Beside each is a Type: the facts
// of its StructureDefinition (element names, cardinality, the offset of a value
// in the struct). Decoding, encoding, walking for FHIRPath and checking structure
// are written once, here, over that table:
//
//	bytes --Decode--> *r4.Patient --index.Extract--> Index (terms, dates, …)
//	                      |
//	                      +--Node (Type, pointer)--> FHIRPath, validation
//
// Stored bodies are never encoded again: Splice copies the client's bytes, without
// white space, around the id and meta that the server decides.
//
// The package knows no HTTP, no SQL and no resource type by name.
package fhir
