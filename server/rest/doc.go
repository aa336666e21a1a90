// Package rest is HTTP in and out of the FHIR interactions: routes, content
// negotiation, conditional headers, Prefer, Bundles and OperationOutcomes.
//
//	request -> request id -> CORS -> /fhir prefix -> principal -> route (gen/handler)
//	        -> parameters -> interaction -> Response -> headers, body
//
// The meaning of an interaction is decided in server/interaction; this package only
// translates. Every answer on every route, the router's own included, is FHIR: an error is
// always an OperationOutcome. Stored resources are written as they are stored, Bundles by
// joining them, a Binary as its content unless FHIR's JSON is asked for (binary.go).
package rest
