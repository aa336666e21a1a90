// Package queries holds the SQL that does not change at run time: the schema as
// numbered migrations, and the queries that sqlc turns into gen/db.
package queries

import "embed"

// FS has the migrations in the folder schema, as goose reads them.
//
//go:embed schema/*.sql
var FS embed.FS

// BodyDictionary compresses bodies with the dictionary number 1. It contains pieces of
// JSON that many resources share, the most frequent last, from HL7's examples
// and Synthea's records. It never changes: stored bodies depend on it.
//
//go:embed body1.dict
var BodyDictionary []byte
