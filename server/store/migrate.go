package store

import (
	"context"

	"kiln/queries"
)

// Migrate brings the database's schema up to date, where its PostgreSQL is new enough and no pooler is
// in the way (CheckPooler). Servers that start together
// wait for each other, and all but one find nothing to do.
func Migrate(ctx context.Context, url string) error {
	if err := CheckVersion(ctx, url); err != nil {
		return err
	}
	if _, err := CheckPooler(ctx, url); err != nil {
		return err
	}
	_, err := queries.Migrate(ctx, url)
	return err
}

// Status returns every migration, oldest first, with the time it was applied.
func Status(ctx context.Context, url string) ([]queries.Migration, error) {
	return queries.Status(ctx, url)
}

// CheckSchema reports a schema that this build cannot use: it is of a later build, or
// tables are missing.
func CheckSchema(ctx context.Context, url string) error { return queries.Check(ctx, url) }

// Plan returns the migrations that Migrate would apply. It fails with
// queries.LaterSchemaError where a later build has migrated the database: Migrate would too.
func Plan(ctx context.Context, url string) ([]queries.Migration, error) {
	if err := queries.CheckVersion(ctx, url); err != nil {
		return nil, err
	}
	all, err := queries.Status(ctx, url)
	if err != nil {
		return nil, err
	}
	var pending []queries.Migration
	for _, m := range all {
		if m.Applied.IsZero() {
			pending = append(pending, m)
		}
	}
	return pending, nil
}
