// Package constraint is what R4's invariants are made of once codegen has compiled
// them to Go (gen/invariant): their table, and the few functions that the compiled
// expressions call.
//
//	StructureDefinition --codegen/ir--> condition --codegen/emit--> gen/invariant
//	                                                                    |
//	                                     server/validate  <--  Invariant.Check
//
// A compiled invariant reads the fields of the generated structs. Where FHIRPath
// compares (dates known to the month, units, sets) it calls server/fhirpath, so
// that there is one meaning of "less than". FHIRPath has three truth values: a
// condition is compiled to a Go bool twice, as "it is true" and as "it is not
// false", and of the whole expression the second is asked (fhirpath.Program.Holds).
//
// Invariants without a Check are interpreted: gen/invariant lists them, with the
// reason.
//
// Spec: https://hl7.org/fhir/R4/conformance-rules.html#constraints.
package constraint
