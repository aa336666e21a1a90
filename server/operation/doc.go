// Package operation holds the $operations, one file each, and the one place where
// they are registered.
//
//	request --> Set.find (an atomic snapshot) --> inputs --> Operation.Run --> Response
//
// An Operation is the generated facts of its OperationDefinition (levels, parameters with
// types and cardinalities, affectsState) and a function Run. Set.Run finds it by the name,
// level and type of the request, refuses a GET of one that changes something (405), reads
// the inputs from the query or the Parameters of the body and checks them against the
// facts (400 by the parameter's name), and writes the output as Parameters or as it is.
// Apps add operations while the server runs: a Set is replaced as a whole.
//
// It stands on server/interaction, which knows the operations only as the interface
// Operations, and knows no HTTP. Spec: https://hl7.org/fhir/R4/operations.html.
package operation
