// Package interaction holds the FHIR interactions and operations, one file each:
// what create, search or transaction mean, decided once, for requests of their own
// and for the entries of a Bundle alike.
//
//	params --May?--> decode --> index --> splice --> store --> Response
//
// It knows no HTTP: a Response says status, version and content in FHIR's words;
// server/rest writes it as headers and a body, and as an entry of a batch
// response. Storage and its transactions belong to server/store, the meaning of
// a query string to server/search.
package interaction
