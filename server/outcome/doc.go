// Package outcome is the one error of the FHIR side of the service: issues with
// a severity, a code, a diagnostic text and the place they are about. It owns
// the table from issue code to HTTP status and the form of an OperationOutcome.
//
// Every package that can refuse a request returns *Error, made by name
// (NotFound, Invalid, MethodNotAllowed, …), and asks for one with Is, Theirs or Ours;
// server/rest writes it. The name decides the status (status.go). Any other error is a bug or a
// failing neighbour: it becomes "exception", 500, and its text goes to the log
// only.
package outcome
