// Package codegen compiles FHIR definitions to Go.
//
//	definitions/ --definition--> samply's typed models
//	             --ir----------> Go-shaped types, decided identifiers
//	             --emit--------> gen/r4, gen/index, gen/handler
//
// definition reads, ir decides, emit prints. Behaviour is not generated: what
// comes out are facts that server/fhir, server/search and server/rest work on.
package codegen

//go:generate go run ./generate -definitions ../definitions -gen ../gen
