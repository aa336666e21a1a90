// Package queries holds the SQL that does not change at run time: the schema as
// numbered migrations, and the queries that sqlc turns into gen/db.
package queries

import "embed"

// FS has the migrations in the folder schema, as goose reads them.
//
//go:embed schema/*.sql
var FS embed.FS
