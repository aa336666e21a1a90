// Package operate serves the operations of SQL on FHIR: $sql-run, $sql-export and their older names. It owns their
// parameters, the choice of resources and the stream of an answer. Package view
// makes the rows, and package format writes them. Package bulk checks the rights of the reader, and reads the
// resources of one moment.
//
//	request ──> runRequest (parsed, rights checked) ──> moment
//
//	bulk.Reading ──> decode ──> batches ──> Evaluator ──> format.Writer ──> answer
//	   pages of the moment      (a goroutine)                                 |
//	                                           the first 64 KiB wait for an error
//
// A run holds a connection of the database only while it reads a page, and no snapshot: the moment is a
// time, not a transaction. So a slow client costs a few batches of memory.
//
// An export is a job of package jobs: one part fixes the moment, then each output is a part that writes
// files. Its status and files are served by package bulk, its result by this package.
//
// Spec: SQL on FHIR 3.0.0-ballot, $sql-run and $sql-export.
package operate
