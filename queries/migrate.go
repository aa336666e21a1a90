package queries

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
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

// Status returns every migration, oldest first.
func Status(ctx context.Context, url string) ([]Migration, error) {
	p, _, err := provider(url)
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
	return all, nil
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
