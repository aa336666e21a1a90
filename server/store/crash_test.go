package store_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"kiln/server/outcome"
	"kiln/server/postgres"
	"kiln/server/store"
)

// PostgreSQL is killed under write load, twice. Every acknowledged write exists afterwards,
// no write exists in part, and the same Store continues by itself.
func TestCrashLosesNothingAcknowledged(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	pg, err := postgres.Start(ctx, postgres.Options{DataDir: dir})
	if err != nil {
		if strings.Contains(err.Error(), "not installed") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	defer pg.Stop()
	if err := store.Migrate(ctx, pg.URL); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, pg.URL)
	var acknowledged, failed atomic.Int64
	kill := func() {
		b, err := os.ReadFile(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
		if err != nil {
			t.Error(err)
			return
		}
		pid, err := strconv.Atoi(strings.SplitN(string(b), "\n", 2)[0])
		if err != nil {
			t.Error(err)
			return
		}
		syscall.Kill(pid, syscall.SIGKILL)
	}
	const workers, each = 12, 60
	versions := make([]map[string]int, workers) // acknowledged, by id
	var wg sync.WaitGroup
	for worker := range workers {
		versions[worker] = map[string]int{}
		wg.Go(func() {
			for done := 0; done < each; {
				id := fmt.Sprint("w", worker, "-", done%10)
				pair := []*store.Write{put(t, "Patient", id, "x"), post(t, "Group", "x")}
				var err error
				if done%2 == 0 {
					err = s.WriteAll(ctx, pair)
				} else {
					err = s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, pair) })
				}
				if err != nil {
					failed.Add(1)
					if o, ok := outcome.From(err); !ok || o.HTTPStatus() != http.StatusServiceUnavailable {
						t.Errorf("a write failed with %v", err)
						return
					}
					continue
				}
				done++
				for _, w := range pair {
					versions[worker][w.ResourceType+"/"+w.ID] = w.Result.VersionID
				}
				switch acknowledged.Add(1) {
				case workers * each / 3, workers * each * 2 / 3:
					kill()
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() == 0 {
		t.Error("no write failed: PostgreSQL was not killed under load")
	}
	for _, byID := range versions {
		for name, version := range byID {
			typ, id, _ := strings.Cut(name, "/")
			if v, err := s.Read(ctx, typ, id); err != nil || v.VersionID < version {
				t.Errorf("%s is at version %d, %v; version %d was acknowledged", name, v.VersionID, err, version)
			}
		}
	}
	checkConsistent(t, pg.URL)
}
