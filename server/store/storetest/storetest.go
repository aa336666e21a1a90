// Package storetest gives tests a PostgreSQL database of their own, on the server of
// TEST_DATABASE_URL: New copies a template with the schema of queries/schema, which is
// made once for each state of the migrations, and drops the copy when the test ends.
// Without TEST_DATABASE_URL the test is skipped.
package storetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/queries"
)

// New returns the URL of a new database with the current schema, which is gone
// when the test ends. It is cloned from a template that the first test makes, in
// some 50 ms. The server is named by TEST_DATABASE_URL; without it the test is
// skipped.
func New(t testing.TB) string {
	t.Helper()
	server := os.Getenv("TEST_DATABASE_URL")
	if server == "" {
		t.Skip("TEST_DATABASE_URL names no PostgreSQL server to test on")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatalf("connect to the server of TEST_DATABASE_URL: %v", err)
	}
	defer conn.Close(ctx)
	template, err := makeTemplate(ctx, conn, server)
	if err != nil {
		t.Fatalf("make the template database: %v", err)
	}
	name := fmt.Sprintf("kiln_test_%d_%d", os.Getpid(), counter.Add(1))
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		t.Fatalf("drop database: %v", err)
	}
	create := "CREATE DATABASE " + name + " TEMPLATE " + template
	if fileCopy(ctx, conn) {
		create += " STRATEGY file_copy"
	}
	if _, err := conn.Exec(ctx, create); err != nil {
		t.Fatalf("clone the template database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			t.Errorf("connect to drop the database: %v", err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	return withDatabase(server, name)
}

var counter atomic.Int64

// nearPart makes the surrogates of each type begin shortly before the second part of index_date and
// index_quantity (match.PartSize): the resources of a test lie in two.
const nearPart = `INSERT INTO rid_next (typ, next, usable, announced)
	SELECT typ, (1 << 20) - 40, 2 << 20, 2 << 20 FROM generate_series(1, 400) AS typ`

// makeTemplate returns the name of a migrated database, made under a lock by
// whichever test process comes first. The name follows the migrations.
func makeTemplate(ctx context.Context, conn *pgx.Conn, server string) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(queries.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(queries.FS, path)
		h.Write(b)
		return err
	})
	if err != nil {
		return "", err
	}
	h.Write([]byte(nearPart))
	template := fmt.Sprintf("kiln_template_%x", h.Sum(nil)[:8])
	const lock = 0x6b746d70
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lock); err != nil {
		return "", err
	}
	defer conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", lock)
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", template).Scan(&exists); err != nil || exists {
		return template, err
	}
	building := template + "_building"
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + building + " WITH (FORCE)", "CREATE DATABASE " + building} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	if _, err := queries.Migrate(ctx, withDatabase(server, building)); err != nil {
		return "", err
	}
	migrated, err := pgx.Connect(ctx, withDatabase(server, building))
	if err != nil {
		return "", err
	}
	_, err = migrated.Exec(ctx, nearPart)
	if err := cmp.Or(err, migrated.Close(ctx)); err != nil {
		return "", err
	}
	// A backend takes a moment to go after its connection is closed, and a
	// database with connections cannot be renamed.
	for {
		_, err := conn.Exec(ctx, "ALTER DATABASE "+building+" RENAME TO "+template)
		if err == nil || !strings.Contains(err.Error(), "being accessed") {
			return template, err
		}
	}
}

// fileCopy reports whether CREATE DATABASE knows the faster of two strategies.
func fileCopy(ctx context.Context, conn *pgx.Conn) bool {
	var version int
	err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version)
	return err == nil && version >= 150000
}

// withDatabase replaces the database of a URL or a keyword/value string.
func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return server + " dbname=" + name // the last one counts
	}
	u.Path = "/" + name
	return u.String()
}
