package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func newFeed(t *testing.T, s *store.Store, poll time.Duration) *store.Feed {
	t.Helper()
	f := store.NewFeed(s, poll)
	t.Cleanup(f.Close)
	return f
}

// One server is woken by the commit of another without polling, and by polling alone
// where nobody sends a NOTIFY.
func TestFeedWakesAndPolls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		writer bool // has a Feed and so sends NOTIFY
		poll   time.Duration
	}{
		{"a NOTIFY of another server", true, time.Hour},
		{"polling alone", false, 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := storetest.New(t)
			a, b := openAt(t, url), openAt(t, url)
			if c.writer {
				newFeed(t, a, time.Hour)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			r := newFeed(t, b, c.poll).Follow(store.ChangePosition{})
			defer r.Close()
			for i := 1; i <= 5; i++ {
				w := put(t, "Patient", "a", fmt.Sprint(i))
				time.Sleep(20 * time.Millisecond) // the reader is asleep by then
				go func() {
					if err := a.Write(ctx, w); err != nil {
						t.Error(err)
					}
				}()
				got, err := r.Next(ctx, 10, 0)
				if err != nil || len(got) != 1 || got[0].VersionID != i {
					t.Fatalf("change %d is %+v, %v", i, got, err)
				}
			}
		})
	}
}

// A change of a transaction that commits late comes late, and is not skipped.
func TestFeedWaitsForLateCommits(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	f := newFeed(t, s, time.Second)
	horizon, err := s.ChangeHorizon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := f.Follow(horizon)
	defer r.Close()
	written, finish := make(chan struct{}), make(chan struct{})
	var late sync.WaitGroup
	late.Go(func() {
		err := s.InTx(ctx, func(tx *store.Tx) error {
			if err := tx.Write(ctx, []*store.Write{put(t, "Patient", "late", "1")}); err != nil {
				return err
			}
			close(written)
			<-finish
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-written
	write(t, s, put(t, "Patient", "soon", "1"))
	if got, err := r.Next(ctx, 10, 50*time.Millisecond); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v came before the older transaction ended", got, err)
	}
	close(finish)
	late.Wait()
	var got []store.Change
	for len(got) < 2 && err == nil {
		var more []store.Change
		more, err = r.Next(ctx, 10, 0)
		got = append(got, more...)
	}
	if err != nil || got[0].Ref != int64(fhir.ValueReference("Patient", "late")) || got[1].Ref != int64(fhir.ValueReference("Patient", "soon")) {
		t.Errorf("changes %+v, %v; want late, soon", got, err)
	}
}

// Whatever happens to the servers that run a named reader, each change is committed once.
func TestNamedReaderCommitsEachChangeOnce(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	db := connect(t, url)
	if _, err := db.Exec(ctx, "CREATE TABLE seen (xid bigint, rid bigint, version int)"); err != nil {
		t.Fatal(err)
	}
	const writes = 300
	var working atomic.Int32
	fails := errors.New("it fails now and then")
	handler := func() store.Handler {
		n := 0
		return store.Handler{
			Batch: 7,
			Begin: func(context.Context) error {
				if working.Add(1) != 1 {
					t.Error("two servers work at a time")
				}
				return nil
			},
			Ended: func() { working.Add(-1) },
			Handle: func(ctx context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
				if n++; n%20 == 0 {
					return nil, fails
				}
				return func(ctx context.Context, tx pgx.Tx) error {
					for _, c := range changes {
						if _, err := tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2, $3)", c.Position.XID, c.Position.RID, c.VersionID); err != nil {
							return err
						}
					}
					return nil
				}, nil
			},
		}
	}
	first := openAt(t, url)
	feed := newFeed(t, first, 50*time.Millisecond)
	running, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { feed.Run(running, "test", handler()) })
	for len(readers(t, first)) == 0 {
	}
	other := openAt(t, url)
	otherFeed := newFeed(t, other, 50*time.Millisecond)
	otherRunning, stopOther := context.WithCancel(ctx)
	defer done.Wait()
	defer stopOther()
	defer stop()
	done.Go(func() { otherFeed.Run(otherRunning, "test", handler()) })
	for i := range writes {
		write(t, first, put(t, "Patient", fmt.Sprint(i%10), fmt.Sprint(i)))
		if i == writes/2 {
			stop() // the other one takes over
		}
	}
	for n := 0; n < writes && ctx.Err() == nil; {
		if err := db.QueryRow(ctx, "SELECT count(*) FROM seen").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	var n, distinct int
	if err := db.QueryRow(ctx, "SELECT count(*), count(DISTINCT (xid, rid, version)) FROM seen").Scan(&n, &distinct); err != nil || n != writes || distinct != writes {
		t.Errorf("%d rows, %d distinct, %v; want %d", n, distinct, err, writes)
	}
}

// Writes after a reader was added reach it, whenever it begins to run.
func TestFeedAdd(t *testing.T) {
	t.Parallel()
	s := openAt(t, storetest.New(t))
	feed := newFeed(t, s, 50*time.Millisecond)
	for range 2 { // the second time changes nothing
		if err := feed.Add(t.Context(), "late"); err != nil {
			t.Fatal(err)
		}
		write(t, s, put(t, "Patient", "after", "1"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []int
	err := feed.Run(ctx, "late", store.Handler{Handle: func(_ context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
		for _, c := range changes {
			got = append(got, c.VersionID)
		}
		if len(got) >= 2 {
			cancel()
		}
		return nil, nil
	}})
	if !errors.Is(err, context.Canceled) || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("versions %v, %v; want 1 and 2", got, err)
	}
}

// Each of several readers of a server gets every change once and in order, independently of
// the other readers.
func TestReadersOfOneServer(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	feed := newFeed(t, s, 20*time.Millisecond)
	const writes = 200
	var reading sync.WaitGroup
	seen := make([][]store.Change, 4)
	for i := range seen {
		reading.Go(func() {
			r := feed.Follow(store.ChangePosition{})
			defer r.Close()
			for len(seen[i]) < writes {
				more, err := r.Next(ctx, 1+i*5, 0)
				if err != nil {
					t.Errorf("reader %d after %d changes: %v", i, len(seen[i]), err)
					return
				}
				seen[i] = append(seen[i], more...)
			}
		})
	}
	for i := range writes {
		write(t, s, put(t, "Patient", "a", fmt.Sprint(i)))
	}
	reading.Wait()
	all, err := s.Changes(ctx, store.ChangePosition{}, 2*writes)
	if err != nil || len(all) != writes {
		t.Fatalf("%d changes, %v; want %d", len(all), err, writes)
	}
	for i, list := range seen {
		if !slices.Equal(list, all) {
			t.Errorf("reader %d has read %d changes, not those of the log in their order", i, len(list))
		}
	}
}

// A named reader that stores nothing still moves, soon and at its end.
func TestNamedReaderThatStoresNothing(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	feed := newFeed(t, s, 20*time.Millisecond)
	var handled atomic.Pointer[store.ChangePosition]
	handler := store.Handler{Handle: func(_ context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
		handled.Store(&changes[len(changes)-1].Position)
		return nil, nil
	}}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var done sync.WaitGroup
	done.Go(func() { feed.Run(running, "idle", handler) })
	for len(readers(t, s)) == 0 {
	}
	last := func(id string) store.ChangePosition {
		write(t, s, put(t, "Patient", id, "1"))
		for {
			all, err := s.Changes(ctx, store.ChangePosition{}, 100)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(all); n > 0 && handled.Load() != nil && *handled.Load() == all[n-1].Position {
				return all[n-1].Position
			}
		}
	}
	at := last("a")
	for readers(t, s)[0].Position != at {
		if ctx.Err() != nil {
			t.Fatal("the reader does not move")
		}
	}
	at = last("b")
	stop()
	done.Wait()
	if got := readers(t, s)[0].Position; got != at {
		t.Errorf("the reader ends at %+v, want %+v", got, at)
	}
}

func readers(t *testing.T, s *store.Store) []store.ReaderState {
	t.Helper()
	list, err := s.Readers(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestChangedVersionsHaveBeforeAndAfter(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	ctx := context.Background()
	write(t, s, put(t, "Patient", "a", "one"))
	write(t, s, put(t, "Patient", "a", "two"))
	write(t, s, remove("Patient", "a"))
	write(t, s, put(t, "Patient", "a", "again"))
	f := newFeed(t, s, 20*time.Millisecond).Follow(store.ChangePosition{})
	defer f.Close()
	var changes []store.Change
	for len(changes) < 4 {
		more, err := f.Next(ctx, 10, 0)
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, more...)
	}
	var methods []fhir.Method
	var keys []store.VersionKey
	types := map[int64]string{}
	for _, c := range changes {
		methods = append(methods, c.Method)
		keys = append(keys, c.Key(), c.Previous())
		types[c.Ref] = c.ResourceType
	}
	// A PUT that creates is a create, after a deletion too.
	if want := []fhir.Method{fhir.POST, fhir.PUT, fhir.DELETE, fhir.POST}; !slices.Equal(methods, want) {
		t.Errorf("methods %v, want %v", methods, want)
	}
	versions, err := s.ChangedVersions(ctx, keys, types)
	if err != nil || len(versions) != 4 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	deletion, before := versions[changes[2].Key()], versions[changes[2].Previous()]
	if !deletion.Deleted() || deletion.Body != nil || deletion.ID != "a" || deletion.VersionID != 3 {
		t.Errorf("deletion %+v", deletion)
	}
	if before.VersionID != 2 || before.ResourceType != "Patient" || len(before.Body) == 0 {
		t.Errorf("before the deletion %+v", before)
	}
}

// The log is trimmed behind the slowest reader, and behind nobody once it is old enough.
func TestTrimIsBoundedByTheSlowestReader(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	ctx := context.Background()
	db := connect(t, url)
	write(t, s, put(t, "Patient", "a", "1"))
	if _, err := db.Exec(ctx, "INSERT INTO change_reader (name, xid, rid, version) SELECT 'slow', xid, 0, 0 FROM change"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	write(t, s, put(t, "Patient", "a", "2"))
	later := time.Now().Add(time.Hour)
	if n, err := s.TrimChanges(ctx, later, time.Time{}); err != nil || n != 0 {
		t.Errorf("trimmed %d, %v before the reader has passed", n, err)
	}
	if _, err := db.Exec(ctx, "UPDATE change_reader SET xid = (SELECT xid FROM change ORDER BY xid DESC LIMIT 1)"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.TrimChanges(ctx, later, time.Time{}); err != nil || n != 1 {
		t.Errorf("trimmed %d, %v; want the one that the reader has passed", n, err)
	}
	var gone *store.TrimmedError
	if err := s.CheckPosition(ctx, store.ChangePosition{}); !errors.As(err, &gone) || gone.Since.After(start) {
		t.Errorf("the beginning is %v; want that it is trimmed", err)
	}
	if _, err := s.ChangesSince(ctx, start.Add(-time.Hour)); !errors.As(err, &gone) {
		t.Errorf("an hour ago is %v; want that it is trimmed", err)
	}
	if n, err := s.TrimChanges(ctx, later, later); err != nil || n != 1 {
		t.Errorf("trimmed %d, %v; want the rest, which is too old to be kept for anybody", n, err)
	}
}

// A position by an instant lies before everything that was made from then on.
func TestChangesSince(t *testing.T) {
	t.Parallel()
	s, url := open(t)
	ctx := context.Background()
	db := connect(t, url)
	for i := range 20 {
		write(t, s, put(t, "Patient", "a", fmt.Sprint(i)))
	}
	// Ten minutes apart.
	if _, err := db.Exec(ctx, `UPDATE change c SET written = now() - (20 - n.n) * interval '10 min'
		FROM (SELECT xid, row_number() OVER (ORDER BY xid) AS n FROM change) n WHERE n.xid = c.xid`); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		at := time.Now().Add(-time.Duration(20-i) * 10 * time.Minute).Add(-time.Minute)
		p, err := s.ChangesSince(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := db.QueryRow(ctx, "SELECT count(*) FROM change WHERE xid::text::bigint >= $1", p.XID).Scan(&n); err != nil || n != min(20, 21-i) {
			t.Errorf("%d changes since number %d, %v; want %d", n, i, err, min(20, 21-i))
		}
	}
	if p, err := s.ChangesSince(ctx, time.Now().Add(time.Hour)); err != nil || p.XID == 0 {
		t.Errorf("since the future: %+v, %v", p, err)
	}
}
