// Package definitions holds the FHIR packages that the server is compiled from,
// condensed: StructureDefinitions, SearchParameters, ValueSets, CodeSystems and
// the like, without narrative, mappings, examples and prose.
//
//	packages.json                 manifest: name, version, source, digest
//	NAME-VERSION.ndjson.gz        one package, one resource a line
//	local/*.json                  our own types (App, SubscriptionStatus), and wider extensions of HL7
//	examples/                     HL7's example resources, for tests
//
// A type of our own is written as a StructureDefinition that has only a differential: the
// elements that it adds to DomainResource, all of them. Its snapshot is made when the
// folder is opened. FHIR has no datatype for a map with any names (the headers of an App's
// handler). Such an element has the type http://kiln/fhir/StructureDefinition/json: it
// keeps the client's JSON object, where an array of name and value would change it.
//
// codegen reads the folder when the server is generated; the running server
// reads the same content, embedded, for validation, terminology and the
// conformance resources it serves. Source.Add, List and Remove keep the folder.
package definitions
