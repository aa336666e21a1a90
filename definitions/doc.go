// Package definitions holds the FHIR packages that the server is compiled from,
// condensed: StructureDefinitions, SearchParameters, ValueSets, CodeSystems and
// the like, without narrative, mappings, examples and prose.
//
//	packages.json                 manifest: name, version, source, digest
//	NAME-VERSION.ndjson.gz        one package, one resource a line
//	local/*.json                  our own types (App, SubscriptionStatus)
//	examples/                     HL7's example resources, for tests
//
// codegen reads the folder when the server is generated; the running server
// reads the same content, embedded, for validation, terminology and the
// conformance resources it serves. Source.Add, List and Remove keep the folder.
package definitions
