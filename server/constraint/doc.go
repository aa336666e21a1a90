// Package constraint supports R4's invariants after codegen has compiled them to Go
// (gen/invariant): the types of their table, and the few functions that the compiled
// expressions call.
//
//	StructureDefinition --codegen/ir--> condition --codegen/emit--> gen/invariant
//	                                                                    |
//	                                     server/validate  <--  Invariant.Check
//
// A compiled invariant reads the fields of the generated structs. Where FHIRPath
// compares (dates known to the month, units, sets) it calls server/fhirpath, so
// that "less than" has one meaning. FHIRPath has three truth values: codegen
// compiles a condition to a Go bool twice, as "it is true" and as "it is not false".
// An invariant holds where its whole expression is not false (fhirpath.Program.Holds).
//
// Invariants without a Check are interpreted: gen/invariant lists them, with the
// reason.
//
// Spec: https://hl7.org/fhir/R4/conformance-rules.html#constraints.
package constraint
