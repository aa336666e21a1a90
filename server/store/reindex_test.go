package store_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/search"
	"kiln/server/search/searchtest"
	"kiln/server/searchparam"
	"kiln/server/store"
)

// indexer stands for search parameters that change: by version n, the language of
// a resource is a string under key n, and under no other.
type indexer struct {
	store   *store.Store
	version atomic.Int64
	before  func(id string) // runs before a resource is indexed; may be nil
}

func (x *indexer) Current() *search.Registry { return searchtest.Registry }

func follow(s *store.Store) *indexer {
	x := &indexer{store: s}
	s.IndexBy(x)
	return x
}

func (x *indexer) Refresh(ctx context.Context) error {
	state, err := x.store.ParametersState(ctx)
	x.version.Store(state.Version)
	return err
}

func (x *indexer) Err() error { return nil }

func (x *indexer) Decode(body []byte) (fhir.Resource, error) { return fhir.Decode(r4.Model, body) }

func (x *indexer) Index(id string, r fhir.Resource) (*fhir.Index, error) {
	if x.before != nil {
		x.before(id)
	}
	out := &fhir.Index{ParametersVersion: x.version.Load()}
	out.String(keyOfVersion(out.ParametersVersion), fhir.NodeOf(r).AppendChild(nil, "language")[0].Text())
	out.Finish()
	return out, nil
}

func (x *indexer) Sort(fhir.Resource, []*fhir.Sorter) error { return nil }

func keyOfVersion(n int64) fhir.Key {
	return fhir.KeyOf(fhir.SearchString, fmt.Sprintf("version %d", n))
}

// write makes a write as interactions do, by the search parameters that the server knows.
func (x *indexer) write(t testing.TB, typ, id, text string) *store.Write {
	t.Helper()
	w := put(t, typ, id, text)
	r, err := fhir.Decode(r4.Model, fmt.Appendf(nil, `{"resourceType":%q,"id":%q,"language":%q}`, typ, id, text))
	if err != nil {
		t.Fatal(err)
	}
	w.Resource = r
	if w.Index, err = x.Index(id, r); err != nil {
		t.Fatal(err)
	}
	return w
}

// bump raises the version of the search parameters, with a job for Basic.
func bump(t testing.TB, s *store.Store, current int64) {
	t.Helper()
	err := s.InTx(context.Background(), func(tx *store.Tx) error {
		if err := tx.LockParameters(context.Background(), current); err != nil {
			return err
		}
		v, err := tx.RaiseParametersVersion(context.Background())
		if err != nil {
			return err
		}
		return tx.AddReindexJob(context.Background(), store.ReindexJob{ID: fmt.Sprintf("job %03d", v), ResourceType: "Basic", ParametersVersion: v,
			Keys: []fhir.Key{keyOfVersion(v)}, Ranges: true, Created: time.Now()})
	})
	if err != nil {
		t.Fatalf("raise the version: %v", err)
	}
}

// indexedBy returns the ids of the resources of type Basic that have the string under the
// key of a version, and how many rows there are, except rows of words.
func indexedBy(t testing.TB, url string, version int64) (ids []string, rows int) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	key := keyOfVersion(version)
	err = conn.QueryRow(ctx, `SELECT coalesce(array_agg(r.id ORDER BY r.id), '{}'),
		(SELECT count(*) FROM index_string WHERE key <> $3) FROM resource r
		WHERE r.terms @> ARRAY[$1::bigint] AND EXISTS (SELECT FROM index_string x WHERE x.rid = r.rid AND x.key = $2)`,
		key.Term(fhir.ValuePresent()), int64(key), int64(fhir.WordKey(key))).Scan(&ids, &rows)
	if err != nil {
		t.Fatal(err)
	}
	return ids, rows
}

// newCore is a core that runs jobs of some kinds.
func newCore(s *store.Store, kinds ...jobs.Kind) *jobs.Core {
	c := &jobs.Core{Pool: s.Pool(), NewID: rand.Text, Logger: slog.New(slog.DiscardHandler), Kinds: kinds,
		Settings: func() jobs.Settings {
			return jobs.Settings{Workers: 2, Lease: 10 * time.Second, MaxAttempts: 10, Retention: time.Hour}
		}}
	c.Open(prometheus.NewRegistry())
	return c
}

// startWork makes a server do the work of the jobs until ctx ends.
func startWork(ctx context.Context, s *store.Store) (core *jobs.Core, wait func()) {
	core = newCore(s, searchparam.ReindexKind(s))
	var running sync.WaitGroup
	running.Go(func() { core.Run(ctx) })
	return core, running.Wait
}

// advance adds the work of jobs and records its ends until done reports true.
func advance(t testing.TB, s *store.Store, core *jobs.Core, done func(waits bool) bool) (steps int) {
	t.Helper()
	for {
		worked, waits, err := s.AdvanceReindexJobs(context.Background())
		if err != nil {
			t.Fatalf("reindex: %v", err)
		}
		if worked {
			steps++
			core.Wake()
		}
		if !worked && done(waits) {
			return steps
		}
	}
}

// work does all there is to do, and returns the number of steps beside the work itself.
func work(t testing.TB, s *store.Store) (steps int) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	core, wait := startWork(ctx, s)
	defer wait()
	defer stop()
	return advance(t, s, core, func(waits bool) bool { return !waits })
}

func TestOutdatedWritesAreDoneAgain(t *testing.T) {
	a, url := open(t)
	b := openAt(t, url)
	x := follow(a)
	bump(t, b, 0)

	write(t, a, x.write(t, "Basic", "alone", "en")) // by version 0
	x.version.Store(0)
	ws := []*store.Write{x.write(t, "Basic", "together-1", "en"), x.write(t, "Basic", "together-2", "en")}
	if err := a.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	x.version.Store(0)
	in := x.write(t, "Basic", "inside", "en")
	if err := a.InTx(context.Background(), func(tx *store.Tx) error { return tx.Write(context.Background(), []*store.Write{in}) }); err != nil {
		t.Fatal(err)
	}
	x.version.Store(0)
	patch := &store.Write{Method: fhir.PATCH, ResourceType: "Basic", ID: "alone", Modify: func(v fhir.Version) (*fhir.Body, *fhir.Index, error) {
		r, err := x.Decode(v.Body)
		if err != nil {
			return nil, nil, err
		}
		index, err := x.Index("alone", r)
		return body(t, "Basic", "alone", "de"), index, err
	}}
	write(t, a, patch)
	if ids, rows := indexedBy(t, url, 1); !slices.Equal(ids, []string{"alone", "inside", "together-1", "together-2"}) || rows != 4 {
		t.Errorf("indexed by the version in force are %v, with %d rows in all", ids, rows)
	}

	// Without anybody who could make the index anew the write is refused.
	b.IndexBy(nil)
	err := b.Write(context.Background(), put(t, "Basic", "lost", "en"))
	wantStatus(t, err, http.StatusConflict)
	_, err = b.Read(context.Background(), "Basic", "lost")
	wantStatus(t, err, http.StatusNotFound)
}

func TestReindexOnManyServers(t *testing.T) {
	const n = 1700
	first, url := open(t)
	x := follow(first)
	var ws []*store.Write
	var want []string
	for i := range n {
		id := fmt.Sprintf("r%04d", i)
		ws, want = append(ws, x.write(t, "Basic", id, "en")), append(want, id)
	}
	if err := first.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	before := ws[7].Result
	bump(t, first, 0)
	var wg sync.WaitGroup
	for range 3 {
		s := openAt(t, url)
		follow(s)
		wg.Go(func() { work(t, s) })
	}
	wg.Wait()
	if ids, rows := indexedBy(t, url, 1); !slices.Equal(ids, want) || rows != n {
		t.Errorf("%d of %d resources are indexed, with %d rows", len(ids), n, rows)
	}
	jobs, err := first.ReindexJobs(context.Background())
	if err != nil || len(jobs) != 1 {
		t.Fatalf("jobs are %v, %v", jobs, err)
	}
	if j := jobs[0]; j.Total != n || j.Done != n || j.Changed != n || j.Failed != 0 || j.Finished.IsZero() {
		t.Errorf("the job is %+v", j)
	}
	after, err := first.Read(context.Background(), "Basic", "r0007")
	if err != nil || after.VersionID != 1 || !after.LastUpdated.Equal(before.LastUpdated) || string(after.Body) != string(before.Body) {
		t.Errorf("the resource is version %d of %v, %v; it was %v", after.VersionID, after.LastUpdated, err, before.LastUpdated)
	}

	// Asked for again there is nothing to change.
	if err := first.AddReindexJob(context.Background(), store.ReindexJob{ID: "z", ResourceType: "Basic", Ranges: true, ParametersVersion: 1, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	work(t, first)
	jobs, err = first.ReindexJobs(context.Background())
	if err != nil || jobs[len(jobs)-1].Done != n || jobs[len(jobs)-1].Changed != 0 {
		t.Errorf("the second job is %+v, %v", jobs[len(jobs)-1], err)
	}
}

// olderTransaction is one that writes may belong to, until it or the test ends.
func olderTransaction(t testing.TB, url string) pgx.Tx {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) })
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT pg_current_xact_id()")
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// Work begins when every transaction that may have used older parameters has
// ended.
func TestReindexWaitsForOlderTransactions(t *testing.T) {
	s, url := open(t)
	x := follow(s)
	ctx := context.Background()
	write(t, s, x.write(t, "Basic", "early", "en"))
	older := olderTransaction(t, url)
	bump(t, s, 0)
	for range 3 {
		if worked, waits, err := s.AdvanceReindexJobs(ctx); worked || !waits || err != nil {
			t.Fatalf("worked is %v, waits %v, %v while an older transaction runs", worked, waits, err)
		}
	}
	if err := older.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	work(t, s)
	if ids, _ := indexedBy(t, url, 1); !slices.Equal(ids, []string{"early"}) {
		t.Errorf("indexed are %v", ids)
	}
}

// Versions rise and jobs run while servers write and delete: in the end everything
// is indexed by the last version, and by it alone.
func TestReindexBesideWriters(t *testing.T) {
	first, url := open(t)
	write(t, first, follow(first).write(t, "Basic", "always", "en")) // a job of nothing is forgotten at once
	stores := []*store.Store{first, openAt(t, url), openAt(t, url)}
	ctx, stop := context.WithCancel(context.Background())
	var writers, workers sync.WaitGroup
	for i, s := range stores {
		x := follow(s)
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("w%d-%d", i, n%40)
				w := x.write(t, "Basic", id, fmt.Sprintf("text-%d", n))
				if n%7 == 6 {
					w = remove("Basic", id)
				}
				if err := s.Write(context.Background(), w); err != nil {
					t.Errorf("write %s: %v", id, err)
					return
				}
			}
		})
		core, wait := startWork(ctx, s)
		workers.Go(func() {
			defer wait()
			for ctx.Err() == nil {
				worked, _, err := s.AdvanceReindexJobs(context.Background())
				if err != nil {
					t.Errorf("reindex: %v", err)
					return
				}
				if worked {
					core.Wake()
				}
			}
		})
	}
	const versions = 12
	for v := range int64(versions) {
		bump(t, stores[v%3], v)
		for ctx.Err() == nil { // until a job has been planned by this version or a later one
			jobs, err := first.ReindexJobs(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(jobs, func(j store.ReindexJob) bool { return j.ParametersVersion > v && !j.Planned.IsZero() }) || t.Failed() {
				break
			}
		}
	}
	stop()
	writers.Wait()
	workers.Wait()
	work(t, first)
	all, rows := indexedBy(t, url, versions)
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var n, terms int
	if err := conn.QueryRow(context.Background(), "SELECT count(*), sum(cardinality(terms)) FROM resource").Scan(&n, &terms); err != nil {
		t.Fatal(err)
	}
	if len(all) != n || rows != n || terms != 2*n || n < 40 {
		t.Errorf("%d of %d resources are indexed by the last version, with %d rows and %d terms", len(all), n, rows, terms)
	}
}

// Other servers finish the chunks of a server that died.
func TestReindexSurvivesItsServer(t *testing.T) {
	s, url := open(t)
	x := follow(s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	bump(t, s, 0)
	dead := openAt(t, url)
	y := follow(dead)
	ctx, die := context.WithCancel(context.Background())
	y.before = func(string) { die() }
	core, wait := startWork(ctx, dead)
	advance(t, dead, core, func(bool) bool { return ctx.Err() != nil })
	wait()
	if ids, _ := indexedBy(t, url, 1); len(ids) != 0 {
		t.Fatalf("indexed are %v", ids)
	}
	work(t, s)
	if ids, _ := indexedBy(t, url, 1); !slices.Equal(ids, []string{"a"}) {
		t.Errorf("indexed are %v", ids)
	}
}

// A search parameter of every type makes a job for each type. Types without resources take
// a few steps together, and waiting jobs are not compared with each other when one ends.
func TestReindexOfTypesWithoutResources(t *testing.T) {
	ctx := context.Background()
	s, url := open(t)
	x := follow(s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	for i := range 300 {
		j := store.ReindexJob{ID: fmt.Sprintf("empty %03d", i), ResourceType: "Patient", Ranges: true, Created: time.Now()}
		if err := s.AddReindexJob(ctx, j); err != nil {
			t.Fatal(err)
		}
	}
	bump(t, s, 0)

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+db.TrimReindexJobs, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "(never executed)") {
		t.Errorf("jobs that wait are compared with others:\n%s", text)
	}

	// Two plans of empty types and the one of Basic, and the ends of each.
	steps := work(t, s)
	if steps > 8 {
		t.Errorf("the jobs took %d steps", steps)
	}
	if ids, _ := indexedBy(t, url, 1); !slices.Equal(ids, []string{"a"}) {
		t.Errorf("indexed are %v", ids)
	}
}

// A large transaction copies its index rows; the rows of an update must not be deleted
// together with the old ones.
func TestLargeTransactionsKeepTheRowsOfUpdates(t *testing.T) {
	s, url := open(t)
	for round := range 2 {
		var ws []*store.Write
		for i := range 80 {
			w := put(t, "Basic", fmt.Sprintf("b%d", i), fmt.Sprint("round ", round))
			w.Index.String(keyOfVersion(0), fmt.Sprintf("text%dofround%d", i, round))
			w.Index.Date(1, "2020-01-01")
			w.Index.Finish()
			ws = append(ws, w)
		}
		if err := s.InTx(context.Background(), func(tx *store.Tx) error { return tx.Write(context.Background(), ws) }); err != nil {
			t.Fatal(err)
		}
		if ids, rows := indexedBy(t, url, 0); len(ids) != 80 || rows != 80 {
			t.Errorf("round %d: %d resources have rows, of %d", round, len(ids), rows)
		}
	}
}
