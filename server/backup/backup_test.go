package backup

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// Contract, Operations: what other users of the machine can see of a running pg_dump has no password.
func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ connection, want, wantPassword string }{
		{"postgres://kiln:p%40ss@db:5433/k?sslmode=require", "postgres://kiln@db:5433/k?sslmode=require", "p@ss"},
		{"postgresql://kiln@db/k", "postgresql://kiln@db/k", ""},
		{"postgres:///k?host=/run/x&user=u", "postgres:///k?host=/run/x&user=u", ""},
		{"postgres:///k?password=a%20b&options=-c%20x%3D1", "postgres:///k?options=-c%20x%3D1", "a b"},
		{"host=db user=kiln password=secret dbname=k", "host=db user=kiln dbname=k", "secret"},
		{"host = db password = 'it'", "host=db", "it"},
		{`password='a \'b\\' host=db options='-c x=1 password=2'`, `host=db options='-c x=1 password=2'`, `a 'b\`},
		{`host=db password=a\ b`, "host=db", "a b"},
		{"", "", ""},
	} {
		rest, password := withoutPassword(test.connection)
		if rest != test.want || password != test.wantPassword {
			t.Errorf("%s: %q and %q, want %q and %q", test.connection, rest, password, test.want, test.wantPassword)
		}
	}
}

// full is a disk without space.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// A backup that has no room says so, and not how pg_dump ended.
func TestWriteWithoutSpace(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip(err)
	}
	url := storetest.New(t)
	for _, room := range []int{0, 100, 20_000} {
		if _, err := Write(t.Context(), url, "test", &full{room}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}

// Contract, Operations: a backup that was altered is refused before anything is restored of
// it, and --verify tells of a table that the manifest does not have.
func TestRestoreOfAlteredBackup(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	var made bytes.Buffer
	m, err := Write(t.Context(), storetest.New(t), "test", &made)
	if err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(made.Bytes()), int64(made.Len()))
	if err != nil {
		t.Fatal(err)
	}
	at, err := z.File[0].DataOffset()
	if err != nil || z.File[0].Name != dumpName {
		t.Fatalf("%v: the first file is %s", err, z.File[0].Name)
	}
	// The format of the date of the dump, which pg_restore takes as it comes: the 18th byte
	// counts seconds.
	altered := bytes.Clone(made.Bytes())
	altered[at+18] ^= 1
	manifest := func(m Manifest) []byte {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		dump, err := w.CreateRaw(&z.File[0].FileHeader)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dump.Write(made.Bytes()[at : at+int64(z.File[0].CompressedSize64)]); err != nil {
			t.Fatal(err)
		}
		text, err := w.Create(manifestName)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(json.NewEncoder(text).Encode(m), w.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	fewer := *m
	fewer.Tables = maps.Clone(m.Tables)
	delete(fewer.Tables, "goose_db_version")
	for name, test := range map[string]struct {
		backup     []byte
		want       string
		wantTables bool
	}{
		"a byte of the dump":           {altered, "checksum", false},
		"a manifest without tables":    {manifest(Manifest{}), "names no table", false},
		"a manifest with a table less": {manifest(fewer), "table goose_db_version with", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := storetest.New(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "backup.zip")
			if err := os.WriteFile(file, test.backup, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Restore(t.Context(), url, file, true); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want it to say %s", err, test.want)
			}
			var tables int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace").Scan(&tables); err != nil || (tables > 0) != test.wantTables {
				t.Errorf("%v: %d relations are left", err, tables)
			}
		})
	}
}
