// Package queries holds the SQL that does not change at run time: the schema as
// numbered migrations, and the queries that sqlc turns into gen/db.
package queries

import "embed"

// FS has the migrations in the folder schema, as goose reads them.
//
//go:embed schema/*.sql
var FS embed.FS

// BodyDictionary is what bodies are compressed with under the number 1: pieces of
// JSON that many resources share, the commonest last, picked from HL7's examples
// and from Synthea's records. It does not change: stored bodies depend on it.
//
//go:embed body1.dict
var BodyDictionary []byte
