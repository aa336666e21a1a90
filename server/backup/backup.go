// Package backup writes a whole database into one file and reads it back. The file
// is a zip archive: database.dump is what pg_dump makes (custom format), and
// manifest.json has the rows of every table counted and summed in the same
// snapshot, so that a restored database can be compared with it.
//
// Others may write meanwhile: dump and manifest are of one moment.
package backup

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// Manifest describes the content of a backup.
type Manifest struct {
	Software string           `json:"software"`
	Made     time.Time        `json:"made"`
	Database string           `json:"postgresql"` // its version
	Schema   int64            `json:"schema_version"`
	Tables   map[string]Table `json:"tables"`
}

// Table describes a table: its number of rows, and the exclusive or of 64 bits of the MD5
// of each row as text, which does not depend on their order.
type Table struct {
	Rows int64  `json:"rows"`
	Sum  string `json:"sum"`
}

const (
	dumpName     = "database.dump"
	manifestName = "manifest.json"
)

// Write writes a backup of the database at url to out. software is the version
// that makes it.
func Write(ctx context.Context, url, software string, out io.Writer) (*Manifest, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // it has only read
	var snapshot string
	if err := tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
		return nil, fmt.Errorf("export a snapshot: %w", err)
	}
	z := zip.NewWriter(out)
	dump, err := z.CreateHeader(&zip.FileHeader{Name: dumpName, Method: zip.Store}) // it is compressed already
	if err != nil {
		return nil, err
	}
	to := &sink{Writer: dump}
	if err := run(ctx, url, nil, to, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--snapshot="+snapshot); to.err != nil {
		return nil, to.err // pg_dump ends by a broken pipe then
	} else if err != nil {
		return nil, err
	}
	m, err := manifest(ctx, tx)
	if err != nil {
		return nil, err
	}
	m.Software, m.Made = software, time.Now().UTC()
	text, err := z.Create(manifestName)
	if err != nil {
		return nil, err
	}
	e := json.NewEncoder(text)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	return m, z.Close()
}

// manifest counts and sums the tables that a transaction sees. It leaves out unlogged
// tables: they are of no use after a restart.
func manifest(ctx context.Context, tx pgx.Tx) (*Manifest, error) {
	// Values as text do not depend on the client.
	if _, err := tx.Exec(ctx, "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL intervalstyle = 'postgres'; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'"); err != nil {
		return nil, err
	}
	m := &Manifest{Tables: make(map[string]Table)}
	if err := tx.QueryRow(ctx, "SELECT current_setting('server_version'), (SELECT max(g.version_id) FROM goose_db_version g)").Scan(&m.Database, &m.Schema); err != nil {
		return nil, fmt.Errorf("the database is not one of this service: %w", err)
	}
	rows, err := tx.Query(ctx, `SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY c.relname`)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var t Table
		if err := tx.QueryRow(ctx, `SELECT count(*), to_hex(coalesce(bit_xor(('x' || left(md5(t::text), 16))::bit(64)::bigint), 0)) FROM `+pgx.Identifier{name}.Sanitize()+` t`).Scan(&t.Rows, &t.Sum); err != nil {
			return nil, fmt.Errorf("sum table %s: %w", name, err)
		}
		m.Tables[name] = t
	}
	return m, nil
}

// Restore reads a backup into the database at url, which must be empty. With verify
// the restored rows are compared with the manifest, table by table.
func Restore(ctx context.Context, url, file string, verify bool) (*Manifest, error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return nil, fmt.Errorf("%s is no backup: %w", file, err)
	}
	defer z.Close()
	text, err := z.Open(manifestName)
	if err != nil {
		return nil, fmt.Errorf("%s is no backup, or not a whole one: %w", file, err)
	}
	defer text.Close()
	want := new(Manifest)
	if err := json.NewDecoder(text).Decode(want); err != nil {
		return nil, fmt.Errorf("%s: its manifest cannot be read: %w", file, err)
	}
	if len(want.Tables) == 0 {
		return nil, fmt.Errorf("%s is no backup: its manifest names no table", file)
	}
	// Checked to its end first: pg_restore would have committed the rows before the sum at
	// the end turns out wrong.
	if err := whole(z.File); err != nil {
		return nil, fmt.Errorf("%s differs from the written file: %w", file, err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var tables int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'").Scan(&tables); err != nil {
		return nil, err
	}
	if tables > 0 {
		return nil, errors.New("the database is not empty: a backup is only restored into an empty one")
	}
	dump, err := z.Open(dumpName)
	if err != nil {
		return nil, fmt.Errorf("%s is no backup: %w", file, err)
	}
	defer dump.Close()
	if err := run(ctx, url, dump, os.Stderr, "pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction"); err != nil {
		return nil, err
	}
	if verify {
		if err := check(ctx, conn, want); err != nil {
			return want, err
		}
	}
	return want, startEpoch(ctx, conn)
}

// startEpoch stores that the restored database begins a new epoch, if its schema knows
// epochs. Transaction numbers in the backup belong to another cluster.
func startEpoch(ctx context.Context, conn *pgx.Conn) error {
	var known bool
	err := conn.QueryRow(ctx, "SELECT to_regclass('epoch') IS NOT NULL").Scan(&known)
	if err == nil && known {
		_, err = conn.Exec(ctx, "SELECT note_epoch('copy')")
	}
	if err != nil {
		return fmt.Errorf("store the new epoch: %w", err)
	}
	return nil
}

// whole reads every file of an archive to its end, where its check sum is compared.
func whole(files []*zip.File) error {
	for _, f := range files {
		r, err := f.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// check compares a database with a manifest, and names every table that differs, is
// missing, or is there though the manifest does not have it.
func check(ctx context.Context, conn *pgx.Conn, want *Manifest) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // it has only read
	got, err := manifest(ctx, tx)
	if err != nil {
		return err
	}
	var wrong []error
	for name, w := range want.Tables {
		if g, ok := got.Tables[name]; !ok {
			wrong = append(wrong, fmt.Errorf("table %s is missing", name))
		} else if g != w {
			wrong = append(wrong, fmt.Errorf("table %s has %d rows with the sum %s, the backup %d with %s", name, g.Rows, g.Sum, w.Rows, w.Sum))
		}
	}
	for name, g := range got.Tables {
		if _, ok := want.Tables[name]; !ok {
			wrong = append(wrong, fmt.Errorf("table %s with %d rows is not in the manifest", name, g.Rows))
		}
	}
	// Named in one order: a map has none.
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(wrong...)
}

// sink keeps the first error of a writer.
type sink struct {
	io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.Writer.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// run runs a program of PostgreSQL's on the database at url. The password is in the
// program's environment, since every user of the machine sees its arguments.
func run(ctx context.Context, url string, in io.Reader, out io.Writer, program string, args ...string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%s is needed and not installed: on Debian it is in postgresql-client", program)
	}
	var complaint bytes.Buffer
	url, password := withoutPassword(url)
	c := exec.CommandContext(ctx, path, append(args, "--dbname="+url)...)
	if password != "" {
		c.Env = append(os.Environ(), "PGPASSWORD="+password)
	}
	c.Stdin, c.Stdout, c.Stderr = in, out, &complaint
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(complaint.String()))
	}
	return nil
}

// withoutPassword takes the password out of a connection string, which is a URL or
// keywords and values. The last of several counts.
// PostgreSQL, Connection Strings: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
func withoutPassword(connection string) (rest, password string) {
	if u, err := neturl.Parse(connection); err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql") {
		if p, ok := u.User.Password(); ok {
			password, u.User = p, neturl.User(u.User.Username())
		}
		if q := u.Query(); q.Has("password") {
			password = q["password"][len(q["password"])-1]
			q.Del("password")
			u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // libpq reads + as itself
		}
		return u.String(), password
	}
	for s := connection; ; {
		s = strings.TrimLeft(s, " \t\r\n\f\v")
		keyword, value, ok := strings.Cut(s, "=")
		if !ok {
			return strings.TrimSpace(rest + s), password
		}
		value = strings.TrimLeft(value, " \t\r\n\f\v")
		text, length := connectionValue(value)
		if strings.TrimSpace(keyword) == "password" {
			password = text
		} else {
			rest += strings.TrimSpace(keyword) + "=" + value[:length] + " "
		}
		s = value[length:]
	}
}

// connectionValue reads the value at the beginning of a string of keywords and values: up
// to a space, or in single quotes; a backslash escapes the next character. length is its
// length in bytes.
func connectionValue(s string) (text string, length int) {
	var b strings.Builder
	quoted := strings.HasPrefix(s, "'")
	if quoted {
		length = 1
	}
	for ; length < len(s); length++ {
		switch c := s[length]; {
		case c == '\\' && length+1 < len(s):
			length++
			b.WriteByte(s[length])
		case quoted && c == '\'':
			return b.String(), length + 1
		case !quoted && strings.IndexByte(" \t\r\n\f\v", c) >= 0:
			return b.String(), length
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), length
}

// Note records a backup in the database at url, so that operators see when the last one was written.
func Note(ctx context.Context, url string, started time.Time, bytes int64, verified bool) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return db.New(conn).AddBackup(ctx, db.AddBackupParams{Started: started, Ended: time.Now(), Bytes: bytes, Verified: verified})
}
