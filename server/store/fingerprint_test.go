package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// claim makes the index of s belong to a build, and returns the types to index again; nil
// if no question was asked.
func claim(t testing.TB, s *store.Store, f search.Fingerprints, meanwhile func()) (asked bool, types []string) {
	t.Helper()
	err := s.InTx(context.Background(), func(tx *store.Tx) error {
		return tx.ClaimIndex(context.Background(), f, func(list []string, version int64) ([]store.ReindexJob, error) {
			asked, types = true, list
			meanwhile()
			jobs := make([]store.ReindexJob, len(list))
			for i, typ := range list {
				jobs[i] = store.ReindexJob{ID: "build " + typ, ResourceType: typ, ParametersVersion: version, Keys: []fhir.Key{keyOfVersion(version)}, Ranges: true, Created: time.Now()}
			}
			return jobs, nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return asked, types
}

func nothing() {}

func TestClaimIndex(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	x := follow(s)
	build := func(n int64) search.Fingerprints {
		return search.Fingerprints{All: n, Types: map[string]int64{"Basic": n, "Patient": 7, "Group": n}}
	}
	for i, want := range []bool{true, false} {
		if done, err := s.ClaimFresh(ctx, build(1)); done != want || err != nil {
			t.Fatalf("claim %d of a new database is %v, %v", i, done, err)
		}
	}
	if asked, _ := claim(t, s, build(1), nothing); asked {
		t.Error("the same build asks for jobs")
	}
	if err := x.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	write(t, s, x.write(t, "Basic", "a", "en"))
	write(t, s, x.write(t, "Patient", "a", "en"))
	if asked, types := claim(t, s, build(2), nothing); !asked || !slices.Equal(types, []string{"Basic"}) {
		t.Errorf("another build indexes %v again; Patient is the same by it, and Group was never stored", types)
	}
	state, err := s.ParametersState(ctx)
	if err != nil || state.Version != 2 || state.Fingerprint != 2 {
		t.Errorf("the registry is %+v, %v", state, err)
	}
	x.version.Store(1)
	write(t, s, x.write(t, "Basic", "b", "en")) // fails by version 1, and is done again
	work(t, s)
	if ids, rows := indexedBy(t, url, 2); !slices.Equal(ids, []string{"a", "b"}) || rows != 3 {
		t.Errorf("%v are indexed by the other build, of %d rows", ids, rows)
	}
	if done, err := s.ClaimFresh(ctx, build(3)); done || err != nil {
		t.Errorf("a claim of a used database as a new one is %v, %v", done, err)
	}
}

// A type that is stored for the first time while another build takes over is
// indexed by that build: its number waits, and then its write fails by the older
// version.
func TestClaimIndexHoldsBackNewTypes(t *testing.T) {
	s, url := open(t)
	other := openAt(t, url)
	x := follow(other)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	written := make(chan error, 1)
	asked, types := claim(t, s, search.Fingerprints{All: 2, Types: map[string]int64{"Basic": 2}}, func() {
		w := x.write(t, "Basic", "a", "en")
		go func() { written <- other.Write(ctx, w) }()
		for waits := false; !waits; {
			select {
			case err := <-written:
				t.Fatalf("the first write of a type did not wait: %v", err)
			default:
			}
			if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'resource_type'::regclass)").Scan(&waits); err != nil {
				t.Fatal(err)
			}
		}
	})
	if !asked || len(types) != 0 {
		t.Errorf("to be indexed again are %v, %v", asked, types)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if ids, rows := indexedBy(t, url, 1); !slices.Equal(ids, []string{"a"}) || rows != 1 {
		t.Errorf("%v are indexed by the build that took over, of %d rows", ids, rows)
	}
}

// A server leaves a job alone if it cannot index for it: the server may be of another
// build.
func TestReindexStopsWhereNobodyKnows(t *testing.T) {
	s, url := open(t)
	x := follow(s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	bump(t, s, 0)
	s.IndexBy(refusing{x})
	ctx, stop := context.WithCancel(context.Background())
	core, wait := startWork(ctx, s)
	var parts []int
	advance(t, s, core, func(bool) bool { return givenBack(t, url, &parts) })
	stop()
	wait()
	if !slices.Equal(parts, []int{0}) {
		t.Errorf("the attempts of the parts are %v", parts)
	}
	s.IndexBy(x)
	work(t, s)
	jobs, err := s.ReindexJobs(context.Background())
	if err != nil || len(jobs) != 1 || jobs[0].Failed != 0 || jobs[0].Changed != 1 {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
	if ids, _ := indexedBy(t, url, 1); !slices.Equal(ids, []string{"a"}) {
		t.Errorf("indexed are %v", ids)
	}
}

// A resource that cannot be indexed may be missing from every search of the job's
// keys.
func TestReindexTellsOfWhatCannotBeRead(t *testing.T) {
	s, url := open(t)
	x := follow(s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), `UPDATE resource SET body = '{"resourceType":'`); err != nil {
		t.Fatal(err)
	}
	bump(t, s, 0)
	work(t, s)
	jobs, err := s.ReindexJobs(context.Background())
	if err != nil || len(jobs) != 1 || jobs[0].Failed != 1 || !slices.Equal(jobs[0].FailedKeys, []fhir.Key{keyOfVersion(1)}) {
		t.Errorf("the jobs are %+v, %v", jobs, err)
	}
}

// refusing is the indexer of a server that may not write.
type refusing struct{ *indexer }

func (refusing) Index(string, fhir.Resource) (*fhir.Index, error) {
	return nil, outcome.Unavailable("of another build")
}

// givenBack reports whether a part was leased and is waiting again, and sets the attempts of all parts.
func givenBack(t testing.TB, url string, attempts *[]int) (back bool) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	err = conn.QueryRow(context.Background(), "SELECT coalesce(bool_or(lease > 0 AND state = 'waiting'), false), coalesce(array_agg(attempts), '{}') FROM job_part").Scan(&back, attempts)
	if err != nil {
		t.Fatal(err)
	}
	return back
}
