// Package convert says how a value of each datatype is indexed, by search parameter
// type: the part of gen/index that is the same for any definitions. codegen/emit
// copies convert.go into gen/index, so that generated extractors call these functions
// within their own package; nothing imports this one.
//
// A function is named by the search parameter type and the datatype that it reads
// (tokenCoding, dateTiming); codegen/ir decides which one a path ends in.
//
// Spec: https://hl7.org/fhir/R4/search.html#ptypes.
package convert
