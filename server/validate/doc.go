// Package validate judges resources: cardinality, bindings, references, extensions,
// narrative and every invariant of R4, the profiles that a resource or a request names,
// and a QuestionnaireResponse by its Questionnaire. That a resource is well-formed (known
// elements, JSON types, formats of primitives) fhir.Decode has checked before.
//
//	*r4.Observation --walk--> plan of each type --> issues
//	                             |
//	        gen/r4 (structure), gen/invariant (constraints)
//
// A plan holds the rules of one type beyond its structure. It is made of generated
// tables when the first value of the type is met, and kept: start-up prepares nothing,
// and no StructureDefinition is read for a base type. Invariants are Go functions but for
// a dozen that codegen cannot compile, which are FHIRPath programs. The walk itself
// checks ele-1, ext-1, ref-1, dom-3, txt-1 and txt-2.
//
// A profile is interpreted from its snapshot; one that has only a differential gets a
// snapshot made from its base.
//
//	validator.go     Validate: options, the walk over elements
//	plan.go          rules of a type, from generated tables
//	profile.go       a StructureDefinition's snapshot made ready, and applied
//	snapshot.go      snapshot of a differential
//	slicing.go       items of a list put into slices, and counted
//	discriminator.go the slice of an item
//	value.go         fixed values and patterns
//	binding.go       value sets; coding.go: code systems and units
//	reference.go     form and target of references; bundle.go: fullUrl, and references inside of a Bundle
//	contained.go     ids of contained resources, dom-3
//	extension.go     ext-1, context, modifiers
//	narrative.go     txt-1 and txt-2
//	questionnaire.go a response and its questionnaire
//	report.go        issues; place.go: their line and column
//	operation.go     $validate
//
// server/terminology (Codes) decides whether a code is in a value set. Where local
// definitions cannot tell, a required binding asks the terminology server; where
// that cannot tell either, $validate says so in a warning.
//
// A write is refused for errors. Some rules that HL7's validator calls errors do not keep
// a resource from being stored: Options.Strict names them.
//
// Measured: 1.4 us for a Synthea Observation, 200 MB/s over the Synthea corpus on one
// core, decoding included.
//
// Spec: https://hl7.org/fhir/R4/validation.html.
package validate
