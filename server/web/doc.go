// Package web is what every path of the service has in common, whoever answers it:
//
//	request -> request id -> recover, access log, metrics -> CORS -> /fhir prefix
//	        -> route -> principal -> rate limit -> the part that has mounted the path
//
// Parts mount themselves on the Mux, each path in the Group that says who may call
// it. Every answer goes through an Exchange, which can be hijacked (WebSocket) and
// flushed (Server-Sent Events); a long-lived one is told to Streams, so that it
// outlives the server's timeouts and ends before the service does. An error is an
// OperationOutcome on every path.
//
// What a path means is left to the part: FHIR to server/rest, health and
// administration to server/admin.
package web
