package queries

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver that goose runs on
	"github.com/pressly/goose/v3"
)

// Migration is one step of the schema.
type Migration struct {
	Version int64
	Name    string    // file name
	Applied time.Time // zero when it is still to do
}

// Migrate brings the schema up to date and returns the steps it took. Servers
// that start together wait for each other.
func Migrate(ctx context.Context, url string) ([]Migration, error) {
	p, conn, err := provider(url)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := laterSchema(ctx, p); err != nil {
		return nil, err
	}
	results, err := p.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	// For SQL by hand; the server has its own copy.
	_, err = conn.ExecContext(ctx, "INSERT INTO body_dictionary (number, content) VALUES (1, $1) ON CONFLICT DO NOTHING", BodyDictionary)
	if err != nil {
		return nil, fmt.Errorf("store the dictionary of bodies: %w", err)
	}
	done := make([]Migration, len(results))
	for i, r := range results {
		done[i] = Migration{Version: r.Source.Version, Name: r.Source.Path, Applied: time.Now()}
	}
	return done, nil
}

// LaterSchemaError says that a later build has migrated the database: this one does
// not know its tables.
type LaterSchemaError struct{ Database, Build int64 }

func (e LaterSchemaError) Error() string {
	return fmt.Sprintf("the database has schema %04d, and this build knows %04d at most: a later build has migrated it; run that build, or restore a backup from before", e.Database, e.Build)
}

// laterSchema fails with LaterSchemaError.
func laterSchema(ctx context.Context, p *goose.Provider) error {
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	known := p.ListSources()
	if latest := known[len(known)-1].Version; have > latest {
		return LaterSchemaError{have, latest}
	}
	return nil
}

// CheckVersion fails with LaterSchemaError.
func CheckVersion(ctx context.Context, url string) error {
	p, _, err := provider(url)
	if err != nil {
		return err
	}
	defer p.Close()
	return laterSchema(ctx, p)
}

// Check reports faults of the schema of a migrated database: the schema of a later build (LaterSchemaError), or
// missing tables.
func Check(ctx context.Context, url string) error {
	p, db, err := provider(url)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := laterSchema(ctx, p); err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil || have == 0 {
		return err // nothing is migrated yet
	}
	var missing []string
	for _, table := range tablesAt(have) {
		var there bool
		if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&there); err != nil {
			return fmt.Errorf("look for tables: %w", err)
		}
		if !there {
			missing = append(missing, table)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the schema is %04d and the table %s is missing: restore the database from a backup", have, strings.Join(missing, ", "))
	}
	return nil
}

// tableStatement finds what creates, drops and renames tables in a migration.
var tableStatement = regexp.MustCompile(`(?im)^\s*(?:(CREATE)\s+(?:UNLOGGED\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?([a-z0-9_]+)|(DROP)\s+TABLE\s+(?:IF\s+EXISTS\s+)?([a-z0-9_, ]+)|ALTER\s+TABLE\s+([a-z0-9_]+)\s+RENAME\s+TO\s+([a-z0-9_]+))`)

// tablesAt are the tables of a schema version, sorted.
func tablesAt(version int64) []string {
	tables := make(map[string]bool)
	files, _ := fs.Glob(FS, "schema/*.sql") // the pattern is good
	for _, name := range files {            // in order
		if n, _, _ := strings.Cut(path.Base(name), "_"); atoi(n) > version {
			continue
		}
		text, err := FS.ReadFile(name)
		if err != nil {
			continue
		}
		for _, m := range tableStatement.FindAllStringSubmatch(string(text), -1) {
			switch {
			case m[1] != "":
				tables[m[2]] = true
			case m[3] != "":
				for t := range strings.SplitSeq(m[4], ",") {
					delete(tables, strings.TrimSpace(t))
				}
			default:
				delete(tables, m[5])
				tables[m[6]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(tables))
}

func atoi(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Latest returns the version of this build's schema.
func Latest() int64 {
	var last int64
	files, _ := fs.Glob(FS, "schema/*.sql") // the pattern is good
	for _, name := range files {
		n, _, _ := strings.Cut(path.Base(name), "_")
		last = max(last, atoi(n))
	}
	return last
}

// Tables are the tables that this build keeps its data in, sorted.
func Tables() []string { return tablesAt(math.MaxInt64) }

// Status returns every migration, oldest first; those of later builds have the name
// LaterMigration.
func Status(ctx context.Context, url string) ([]Migration, error) {
	p, db, err := provider(url)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	status, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	all := make([]Migration, len(status))
	for i, s := range status {
		all[i] = Migration{Version: s.Source.Version, Name: s.Source.Path, Applied: s.AppliedAt}
	}
	later, err := laterMigrations(ctx, db, all[len(all)-1].Version)
	return append(all, later...), err
}

// LaterMigration is the name of a migration that only later builds have.
const LaterMigration = "(of a later build)"

// laterMigrations are those applied to the database that this build does not have.
func laterMigrations(ctx context.Context, db *sql.DB, known int64) ([]Migration, error) {
	rows, err := db.QueryContext(ctx, "SELECT version_id, max(tstamp) FROM goose_db_version WHERE version_id > $1 GROUP BY version_id ORDER BY version_id", known)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	defer rows.Close()
	var out []Migration
	for rows.Next() {
		m := Migration{Name: LaterMigration}
		if err := rows.Scan(&m.Version, &m.Applied); err != nil {
			return nil, fmt.Errorf("migration status: %w", err)
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// Text returns the SQL of a migration.
func Text(m Migration) (string, error) {
	b, err := FS.ReadFile("schema/" + m.Name)
	return string(b), err
}

func provider(url string) (*goose.Provider, *sql.DB, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, nil, fmt.Errorf("migrate: %w", err)
	}
	files, err := fs.Sub(FS, "schema")
	if err != nil {
		return nil, nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker{}))
	if err != nil {
		db.Close()
		return nil, nil, fmt.Errorf("migrate: %w", err)
	}
	return p, db, nil
}

// locker makes servers that start together wait in PostgreSQL's own queue:
// goose's locker polls, at best once a second.
type locker struct{}

const lockID = 0x6b696c6e // "kiln"

func (locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", lockID)
	return err
}

func (locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", lockID)
	return err
}
