package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/search/match"
	"kiln/server/search/searchtest"
	"kiln/server/store"
)

// parts is the database of a test, with the row of rid_next for Observation.
type parts struct {
	t    *testing.T
	conn *pgx.Conn
}

func partsOf(t *testing.T, url string) parts {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return parts{t, conn}
}

// set changes the row of Observation.
func (p parts) set(columns string, args ...any) {
	p.t.Helper()
	tag, err := p.conn.Exec(p.t.Context(), "UPDATE rid_next SET "+columns+" WHERE typ = (SELECT typ FROM resource_type WHERE name = 'Observation')", args...)
	if err != nil || tag.RowsAffected() != 1 {
		p.t.Fatalf("%v, %d rows", err, tag.RowsAffected())
	}
}

func (p parts) row() (next, usable, announced int64) {
	p.t.Helper()
	err := p.conn.QueryRow(p.t.Context(), "SELECT next, usable, announced FROM rid_next JOIN resource_type USING (typ) WHERE name = 'Observation'").Scan(&next, &usable, &announced)
	if err != nil {
		p.t.Fatal(err)
	}
	return next, usable, announced
}

// Surrogates are announced long before they are given out: half a part at first, later as
// many as exist, four parts at most. No write waits then.
func TestPartsAreAnnouncedAhead(t *testing.T) {
	s, url := open(t)
	p := partsOf(t, url)
	n := 0
	write := func(s *store.Store) {
		t.Helper()
		n++
		if err := s.Write(t.Context(), put(t, "Observation", fmt.Sprint(n), "x")); err != nil {
			t.Fatal(err)
		}
	}
	write(s)
	for _, at := range []int64{1, match.PartSize / 2, 3 * match.PartSize, 100 * match.PartSize} {
		p.set("next = $1::bigint, usable = (($1::bigint >> 20) + 1) << 20, announced = (($1::bigint >> 20) + 1) << 20, announced_at = 'epoch'", at)
		write(openAt(t, url))
		next, usable, announced := p.row()
		want := max(match.PartSize/2, min(next, 4*match.PartSize))
		if announced < next+want || announced > next+want+match.PartSize || announced%match.PartSize != 0 || usable < next || usable%match.PartSize != 0 {
			t.Errorf("from %d on: %d are given out, %d usable, %d announced", at, next, usable, announced)
		}
	}
}

// An announced part is used once every server has learned of it, and not before.
func TestPartsAreUsedLater(t *testing.T) {
	s, url := open(t)
	p := partsOf(t, url)
	if err := s.Write(t.Context(), put(t, "Observation", "1", "x")); err != nil {
		t.Fatal(err)
	}
	other := openAt(t, url)
	p.set("next = $1 - 1, usable = $1, announced = 2 * $1::bigint, announced_at = clock_timestamp()", match.PartSize)
	done := make(chan error, 1)
	go func() { done <- other.Write(t.Context(), put(t, "Observation", "2", "x")) }()
	select {
	case err := <-done:
		t.Errorf("surrogates of a part were given out before every server can know it: %v", err)
	case <-time.After(time.Second):
	}
	if next, usable, _ := p.row(); next != match.PartSize-1 || usable != match.PartSize {
		t.Errorf("%d are given out and %d usable", next, usable)
	}
	p.set("announced_at = clock_timestamp() - interval '1 minute'")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if next, usable, _ := p.row(); next < match.PartSize || usable < 2*match.PartSize {
		t.Errorf("%d are given out and %d usable", next, usable)
	}
}

// A search that is planned, and waits while a part is announced and filled, asks that part too.
func TestSearchThatWaitsAsksNewParts(t *testing.T) {
	s, url := open(t)
	c := searchtest.NewCorpus(33, 40, 400)
	c.Load(t, s)
	s.SetSearchLimit(50) // more matches than that are counted
	dear := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("date", "ge1900", "status:not", "unknown")}
	total := func() int {
		t.Helper()
		r, err := s.Search(t.Context(), dear.ParseQuery(t))
		if err != nil {
			t.Fatal(err)
		}
		return int(*r.Total)
	}
	before := total()
	s.SetSearchLimit(50)
	release, err := s.HoldExpensiveSearches(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int, 1)
	go func() {
		r, err := s.Search(context.Background(), dear.ParseQuery(t))
		if err != nil {
			t.Error(err)
			done <- -1
			return
		}
		done <- int(*r.Total)
	}()
	s.AwaitExpensiveSearches(1)
	p := partsOf(t, url)
	p.set("next = 7 * $1::bigint, usable = 8 * $1::bigint, announced = 8 * $1::bigint", match.PartSize)
	more := searchtest.NewCorpus(34, 40, 100)
	for i := range more.Observations {
		more.Observations[i].ID = "more-" + more.Observations[i].ID
	}
	more.Load(t, openAt(t, url))
	if _, err := s.ParametersState(t.Context()); err != nil { // as searches have it read now and then
		t.Fatal(err)
	}
	release()
	after := <-done
	if now := total(); after != now || now <= before {
		t.Errorf("%d were found before; the search that waited finds %d, the next one %d", before, after, now)
	}
}
