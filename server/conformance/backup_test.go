package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/backup"
	"kiln/server/store/storetest"
)

// Operations, Backup: consistent while others write; a restored database is the same
// by its sums, and a server serves from it.
// Contract, Operations: backup: consistent while others write; `kiln restore FILE --verify` counts and
// samples against the manifest.
func TestBackup(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	url := storetest.New(t)
	s := startOn(t, url)
	kept := s.create(`{"resourceType":"Patient","name":[{"family":"Kept"}]}`)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("p%d-%d", i, n%20)
				s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","name":[{"family":"F`+fmt.Sprint(n)+`"}]}`)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "backup.zip")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = backup.Write(t.Context(), url, "test", f)
	close(stop)
	writers.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Restore(t.Context(), url, file, true); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a database that is not empty: %v", err)
	}
	other := storetest.New(t)
	conn, err := pgx.Connect(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	m, err := backup.Restore(t.Context(), other, file, true)
	if err != nil {
		t.Fatal(err)
	}
	if m.Tables["resource"].Rows == 0 {
		t.Errorf("the manifest counts no resources: %v", m.Tables)
	}
	again := startOn(t, other)
	again.get("/Patient/"+kept).want(200).equal("name.0.family", "Kept")
	again.get("/Patient?name=kept").want(200).equal("total", "1")
	again.create(`{"resourceType":"Patient"}`)
}
