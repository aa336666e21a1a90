package main

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"kiln/queries"
)

// migrate makes the server's schema in an empty database.
func migrate(ctx context.Context, url string) error {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*c)
	defer db.Close()
	dir, err := fs.Sub(queries.FS, "schema")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir)
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}
