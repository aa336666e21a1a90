// Package web is the part of HTTP that all paths of the service have in common:
//
//	request -> request id -> recover, access log, metrics -> CORS -> /fhir prefix
//	        -> route -> principal -> rate limit -> the part that has mounted the path
//
// Parts mount themselves on the Mux, each path in the Group that says who may call
// it. Every answer goes through an Exchange, which can be hijacked (WebSocket) and
// flushed (Server-Sent Events); a long-lived one is registered in OpenStreams, so that
// it outlives the server's timeouts and ends before the service does. An error is an
// OperationOutcome on every path.
//
// The parts decide the meaning of a path: server/rest for FHIR, server/admin for health and
// administration.
package web
