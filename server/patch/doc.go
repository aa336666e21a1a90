// Package patch changes resources by patches: FHIRPath Patch (fhirpath.go) and JSON
// Patch (json.go).
//
// A patch is applied to the JSON of a resource and returns JSON: what no operation
// touches keeps its text, decimals to the digit, properties in their order. FHIRPath
// operations find their element in the decoded resource and change it in a tree of the
// same JSON (tree.go).
//
// The package does not read or store a resource and does not validate the result;
// server/interaction does.
//
// Spec: https://hl7.org/fhir/R4/fhirpatch.html, https://hl7.org/fhir/R4/http.html#patch,
// RFC 6902.
package patch
