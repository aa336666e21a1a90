package queries_test

import (
	"context"
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

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

// migrations returns the migrations of a database; p moves it down and up.
func migrations(t *testing.T, url string) (p *goose.Provider, db *sql.DB) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	files, err := fs.Sub(queries.FS, "schema")
	if err != nil {
		t.Fatal(err)
	}
	if p, err = goose.NewProvider(goose.DialectPostgres, db, files); err != nil {
		t.Fatal(err)
	}
	return p, db
}

// The migrations lead to an empty schema and back.
func TestMigrateDownAndUp(t *testing.T) {
	ctx := context.Background()
	url := storetest.New(t)
	p, db := migrations(t, url)
	if _, err := p.DownTo(ctx, 0); err != nil {
		t.Fatal(err)
	}
	var left string
	err := db.QueryRowContext(ctx, `SELECT coalesce(string_agg(relname, ' '), '') FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND relname NOT LIKE 'goose%'`).Scan(&left)
	if err != nil || left != "" {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if done, err := queries.Migrate(ctx, url); err != nil || len(done) == 0 {
		t.Errorf("migrated %v, %v", done, err)
	}
	status, err := queries.Status(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range status {
		if text, err := queries.Text(m); m.Applied.IsZero() || err != nil || !strings.Contains(text, "-- +goose Up") {
			t.Errorf("migration %+v: %v", m, err)
		}
	}
}

// The surrogates of a type begin behind those that were given out before types had their own, and
// behind those that a server of before gives out while it still runs beside; it is refused one more.
func TestSurrogatesBehindThoseOfBefore(t *testing.T) {
	ctx := context.Background()
	url := storetest.New(t)
	p, _ := migrations(t, url)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	before := func(count int64) error {
		_, err := conn.Exec(ctx, "UPDATE rid_block SET next = next + $1", count)
		return err
	}
	reserve := func(typ int16) int64 {
		t.Helper()
		r, err := db.New(conn).ReserveRIDs(ctx, db.ReserveRIDsParams{Typ: typ, Count: 100})
		if err != nil {
			t.Fatal(err)
		}
		return r.First
	}
	if _, err := conn.Exec(ctx, "UPDATE rid_block SET first_of_type = 1"); err != nil { // storetest's begin elsewhere
		t.Fatal(err)
	}
	if a, b, c := reserve(1), reserve(2), reserve(1); a != 1 || b != 1 || c != 101 {
		t.Errorf("in an empty database blocks begin at %d, %d and %d", a, b, c)
	}
	if _, err := p.DownTo(ctx, 172); err != nil {
		t.Fatal(err)
	}
	if err := before(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Up(ctx); err != nil {
		t.Fatal(err)
	}
	const room = 1 << 20
	first := int64(201 + 4096 + room)
	if a, b, c := reserve(1), reserve(2), reserve(1); a != first || b != first || c != first+100 {
		t.Errorf("blocks begin at %d, %d and %d, want from %d on", a, b, c, first)
	}
	if err := before(room); err != nil {
		t.Errorf("a server of before gets none of its numbers: %v", err)
	}
	if err := before(1); err == nil || !strings.Contains(err.Error(), "replace_servers_of_earlier_builds") {
		t.Errorf("a server of before that wants numbers a type may have is told %v", err)
	}
}
