// Package validate judges resources: cardinality, bindings, references,
// extensions, narrative and every invariant of R4, and the profiles that a
// resource or a request names. That a resource is well-formed (known elements,
// JSON types, formats of primitives) is checked by fhir.Decode before.
//
//	*r4.Observation --walk--> plan of each type --> issues
//	                             |
//	        gen/r4 (structure), gen/invariant (constraints)
//
// A plan is what is asked of one type beyond its structure. It is made of generated
// tables when the first value of the type is seen and kept: start-up prepares
// nothing, and no StructureDefinition is read for a base type. Invariants are Go
// functions but for a dozen that codegen cannot compile, which are FHIRPath
// programs; those whose question the walk can answer by itself (ele-1, ext-1, ref-1,
// txt-1) are neither.
//
// Measured: 1.4 us for a Synthea Observation, 200 MB/s over the Synthea corpus on one
// core, decoding included.
//
// A profile is interpreted from its snapshot; one that has only a differential
// gets a snapshot made from its base.
//
// Whether a code is in a value set is asked of server/terminology (Codes), which has
// the one answer to that. What cannot be decided locally (a code system that is not
// here) is not an error.
//
// Spec: https://hl7.org/fhir/R4/validation.html.
package validate
