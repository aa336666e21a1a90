package main

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// runKiln runs a command to its end.
func runKiln(t *testing.T, environment []string, args ...string) (string, error) {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Dir, c.Env = t.TempDir(), append(append(os.Environ(), "RUN_AS_KILN=1"), environment...)
	out, err := c.CombinedOutput()
	return string(out), err
}

// Contract, Operations: `kiln backup FILE`, and `kiln restore FILE --verify`, which counts
// and samples against the manifest: a backup whose manifest says otherwise is told.
func TestBackupCommands(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	empty := func() string { return emptyDatabase(t) }
	database, address := storetest.New(t), freeAddress(t)
	s := startProcess(t, database, address, "http://"+address)
	storePatient(t, s.base, database, "123")
	file := filepath.Join(t.TempDir(), "backup.zip")
	on := func(url string) []string { return []string{"KILN_DATABASE__URL=" + url} }
	if out, err := runKiln(t, on(database), "backup", file); err != nil || !strings.Contains(out, "written") {
		t.Fatalf("backup: %v %s", err, out)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := runKiln(t, on(database), "backup", pipe); err == nil || !strings.Contains(out, "not a regular file") {
		t.Errorf("backup in the place of a pipe: %v %s", err, out)
	}
	if i, err := os.Stat(pipe); err != nil || i.Mode().IsRegular() {
		t.Errorf("%v: a backup has replaced a pipe", err)
	}
	if out, err := runKiln(t, on(empty()), "restore", file, "--verify"); err != nil || !strings.Contains(out, "the same as in the backup") {
		t.Errorf("restore --verify: %v %s", err, out)
	}
	if out, err := runKiln(t, on(database), "restore", file); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("restore over a database in use: %v %s", err, out)
	}
	// Another backup holds the file that this one would write.
	part, err := os.Create(file + ".part")
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := syscall.Flock(int(part.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if out, err := runKiln(t, on(database), "backup", file); err == nil || !strings.Contains(out, "another backup writes") {
		t.Errorf("two backups into one file: %v %s", err, out)
	}
	part.Close() // as when its process is killed
	if out, err := runKiln(t, on(database), "backup", file); err != nil {
		t.Errorf("a backup where a killed one has left a file: %v %s", err, out)
	}
	// One row more in the manifest of a table that has some.
	changed := filepath.Join(t.TempDir(), "changed.zip")
	in, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := os.Create(changed)
	if err != nil {
		t.Fatal(err)
	}
	w, rows := zip.NewWriter(f), 0
	for _, part := range in.File {
		r, err := part.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(part.Name, ".json") {
			text = regexp.MustCompile(`("resource": ?\{\s*"rows": ?)\d+`).ReplaceAllFunc(text, func(m []byte) []byte { rows++; return append(bytes.Clone(m), '7') })
		}
		to, err := w.CreateHeader(&zip.FileHeader{Name: part.Name, Method: part.Method})
		if err == nil {
			_, err = to.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil || f.Close() != nil || rows != 1 {
		t.Fatalf("%v, %d manifests changed", err, rows)
	}
	if out, err := runKiln(t, on(empty()), "restore", changed, "--verify"); err == nil || !strings.Contains(out, "resource") {
		t.Errorf("a backup with other rows than its manifest says: %v %s", err, out)
	}
}

// Contract, Operations: `kiln admin audit tail|export`: AuditEvents as NDJSON, oldest first;
// tail goes on with new ones.
func TestAuditCommands(t *testing.T) {
	t.Parallel()
	database, address := storetest.New(t), freeAddress(t)
	s := startProcess(t, database, address, "http://"+address) // audit.rest is writes
	key, err := runKiln(t, []string{"KILN_DATABASE__URL=" + database}, "admin", "apikey", "create", "--name", "audit", "--scope", "admin system/*.cruds")
	if err != nil {
		t.Fatal(key)
	}
	lines := strings.Split(strings.TrimSpace(key), "\n")
	token := lines[len(lines)-1]
	storePatient(t, s.base, database, "first")
	out, err := runKiln(t, nil, "admin", "audit", "export", "--server", s.base, "--token", token)
	if n := strings.Count(out, `"reference":"Patient/first"`); err != nil || n == 0 || !strings.HasPrefix(out, `{`) {
		t.Fatalf("export: %v, %d: %s", err, n, out)
	}
	if again, err := runKiln(t, nil, "admin", "audit", "export", "--since", "2999-01-01", "--server", s.base, "--token", token); err != nil || strings.TrimSpace(again) != "" {
		t.Errorf("export --since: %v %s", err, again)
	}
	tail, said := startKiln(t, "admin", "audit", "tail", "--server", s.base, "--token", token)
	_ = tail
	storePatient(t, s.base, database, "second")
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), "Patient/second"); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("tail does not print the new event: %s", said)
		}
	}
	if n := strings.Count(said.String(), `{"what":{"reference":"Patient/first"}`); n != strings.Count(out, `{"what":{"reference":"Patient/first"}`) {
		t.Errorf("tail prints %d entities of the first event: %s", n, said)
	}
}

// emptyDatabase is a database without the schema.
func emptyDatabase(t *testing.T) string {
	t.Helper()
	url := storetest.New(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
		t.Fatal(err)
	}
	return url
}

// The commands of the page about backups work from top to bottom.
func TestBackupGuide(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	env := []string{"KILN_DATABASE__URL=" + storetest.New(t), "NEW_DATABASE=" + emptyDatabase(t), "KILN_SERVER__LISTEN=" + freeAddress(t)}
	script := strings.ReplaceAll(shellBlocks(t, "docs/how-to/backup-and-restore.md"), `kiln doctor --database-url "$NEW_DATABASE"`,
		`kiln doctor --database-url "$NEW_DATABASE" || true # the PostgreSQL of tests has fsync off`)
	out := pasteBlocks(t, "PATH=$PWD/bin:$PATH\n"+script, env)
	showsAll(t, out, "rows written", "the same as in the backup", "up to date, every table is there")
}
