package queries_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/queries"
	"kiln/server/store/storetest"
)

// sqlc reads `x=@p` as an operator and drops the parameter without a word.
func TestParametersHaveSpace(t *testing.T) {
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no queries: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(b), "\n") {
			if strings.Contains(line, "=@") && !strings.HasPrefix(line, "--") {
				t.Errorf("%s:%d: write a space before the parameter: %s", file, n+1, line)
			}
		}
	}
}

// Every generated query is one that PostgreSQL takes, on the schema as it is.
func TestQueriesPrepare(t *testing.T) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, storetest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	files, err := filepath.Glob("../gen/db/*.sql.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no generated queries: %v", err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil && strings.HasPrefix(text, "-- name: ") {
				if _, err := conn.Prepare(ctx, "", text); err != nil {
					t.Errorf("%s: %v", strings.SplitN(text, "\n", 2)[0], err)
				}
			}
			return true
		})
	}
}

// TestMigrateEmptyDatabase: an empty database gets every migration, one after another, and a second run finds nothing to do.
func TestMigrateEmptyDatabase(t *testing.T) {
	ctx := context.Background()
	url := storetest.New(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
		t.Fatal(err)
	}
	done, err := queries.Migrate(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	status, err := queries.Status(ctx, url)
	if err != nil || len(status) != len(done) {
		t.Fatalf("%d migrations were applied, the status has %d: %v", len(done), len(status), err)
	}
	for i, m := range status {
		if i > 0 && m.Version <= status[i-1].Version {
			t.Errorf("migration %d follows %d", m.Version, status[i-1].Version)
		}
		text, err := queries.Text(m)
		if m.Applied.IsZero() || err != nil || !strings.HasPrefix(text, "-- +goose Up") || strings.Contains(text, "-- +goose Down") {
			t.Errorf("migration %+v: %v", m, err)
		}
	}
	if again, err := queries.Migrate(ctx, url); err != nil || len(again) != 0 {
		t.Errorf("a second run: %v, %v", again, err)
	}
	if err := queries.Check(ctx, url); err != nil {
		t.Error(err)
	}
}

// TestReserveRIDs: surrogates of each resource type begin at 1 and are given out once.
func TestReserveRIDs(t *testing.T) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, storetest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DELETE FROM rid_next"); err != nil { // those of storetest begin elsewhere
		t.Fatal(err)
	}
	reserve := func(typ int16, count int64) (int64, error) {
		r, err := db.New(conn).ReserveRIDs(ctx, db.ReserveRIDsParams{Typ: typ, Count: count})
		return r.First, err
	}
	for _, c := range []struct {
		typ         int16
		count, want int64
	}{{1, 100, 1}, {2, 100, 1}, {1, 100, 101}, {1, 1 << 19, 201}} {
		if got, err := reserve(c.typ, c.count); err != nil || got != c.want {
			t.Errorf("%d of type %d begin at %d, %v; want %d", c.count, c.typ, got, err, c.want)
		}
	}
	if got, err := reserve(1, 1<<19); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("numbers of a part that is not announced: %d, %v", got, err)
	}
}
