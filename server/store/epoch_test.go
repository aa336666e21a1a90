package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/store/storetest"

	"github.com/jackc/pgx/v5"
)

// TestEpochOfAPromotion promotes a standby that lacks the last writes of its primary. The
// server on it empties its memory, and a change of the lost timeline is found nowhere.
func TestEpochOfAPromotion(t *testing.T) {
	ctx := t.Context()
	s, at := open(t)
	write(t, s, put(t, "Patient", "p", "x"))
	standbyURL := startStandby(t, at)
	standby := openAt(t, standbyURL)
	if n := standby.Epoch().Number(); n != 1 {
		t.Fatalf("epoch %d on the standby, want 1", n)
	}
	execute(t, standbyURL, "SELECT pg_wal_replay_pause()")
	write(t, s, put(t, "Patient", "lost", "x"))
	lost, err := s.ChangeHorizon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, standbyURL, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()", "SELECT pg_promote()")
	write(t, standby, renewed(t, standby, put(t, "Device", "d", "x")))
	epochs, err := standby.Epochs(ctx)
	if err != nil || len(epochs) != 2 || epochs[1].Cause != "promotion" || epochs[1].Timeline != 2 || epochs[1].ID != standby.Epoch() {
		t.Fatalf("epochs %+v, %v", epochs, err)
	}
	changes, err := standby.Changes(ctx, store.ChangePosition{}, 10)
	if err != nil || len(changes) < 2 || changes[len(changes)-1].Position.Epoch != epochs[1].ID {
		t.Fatalf("changes %+v, %v", changes, err)
	}
	if ahead, err := standby.FindCursor(ctx, changes[0].Position); ahead || err != nil {
		t.Errorf("the cursor of a change of the former epoch: ahead %v, %v", ahead, err)
	}
	beyond := lost
	beyond.XID += 1000
	for _, p := range []store.ChangePosition{beyond, {Epoch: epochs[1].ID + 1, XID: 900, RID: 1, Version: 1}} {
		var gone *store.TrimmedError
		if _, err := standby.FindCursor(ctx, p); !errors.As(err, &gone) || !gone.Lost {
			t.Errorf("the cursor %+v of a change that is not part of the history: %v", p, err)
		} else if _, err := standby.ChangesSince(ctx, gone.Next()); err != nil {
			t.Errorf("the instant %v of the answer does not work: %v", gone.Next(), err)
		}
	}
}

// TestEpochOfACopy restores a database elsewhere with pg_dump and psql: transaction numbers begin again, readers continue
// behind their last change, and nothing is read twice.
func TestEpochOfACopy(t *testing.T) {
	ctx := t.Context()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("pg_dump is not installed: ", err)
	}
	s, at := open(t)
	execute(t, at, "INSERT INTO change_reader (name, xid, rid, version) VALUES ('r', '0', 0, 0)")
	for _, id := range []string{"a", "b", "c"} {
		write(t, s, put(t, "Patient", id, "x"))
	}
	var all []store.Change
	for deadline := time.Now().Add(time.Minute); len(all) < 3; { // a transaction of another test may be open
		var err error
		if all, err = s.Changes(ctx, store.ChangePosition{}, 10); err != nil || time.Now().After(deadline) {
			t.Fatalf("changes %+v, %v", all, err)
		}
	}
	// As in another cluster, the numbers of this database lie far ahead.
	execute(t, at, "UPDATE change SET xid = (xid::text::bigint + 1000000000)::text::xid8",
		"UPDATE change_reader SET xid = (SELECT max(xid::text::bigint)::text::xid8 FROM change)")
	copied := storetest.New(t)
	execute(t, copied, "DROP SCHEMA public, view CASCADE", "CREATE SCHEMA public")
	dump := exec.Command("sh", "-c", `pg_dump "$FROM" | psql -q -v ON_ERROR_STOP=1 "$TO"`)
	dump.Env = append(os.Environ(), "FROM="+at, "TO="+copied)
	if out, err := dump.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := openAt(t, copied)
	write(t, c, renewed(t, c, put(t, "Patient", "d", "x")))
	epochs, err := c.Epochs(ctx)
	if err != nil || len(epochs) != 2 || epochs[1].Cause != "copy" {
		t.Fatalf("epochs %+v, %v", epochs, err)
	}
	readers, err := c.Readers(ctx)
	if err != nil || len(readers) != 1 || readers[0].Ahead {
		t.Fatalf("readers %+v, %v", readers, err)
	}
	var rest []store.Change
	for deadline := time.Now().Add(time.Minute); len(rest) == 0 || rest[len(rest)-1].Position.Epoch != epochs[1].ID; { // as above
		if rest, err = c.Changes(ctx, readers[0].Position, 10); err != nil || time.Now().After(deadline) {
			t.Fatalf("changes %+v, %v", rest, err)
		}
	}
	if last := rest[len(rest)-1]; last.Ref != int64(fhir.ValueReference("Patient", "d")) || last.Position.Epoch != epochs[1].ID {
		t.Errorf("the last change is %+v", last)
	}
	execute(t, copied, "UPDATE change_reader SET xid = '9000000000', epoch = (SELECT epoch FROM search_registry)")
	if readers, err := c.Readers(ctx); err != nil || !readers[0].Ahead {
		t.Errorf("a reader ahead of the database: %+v, %v", readers, err)
	}
}

// TestManualEpoch stores a new epoch while a server writes: the server notices it with its next write, and the changes of
// both epochs are read in order.
func TestManualEpoch(t *testing.T) {
	ctx := t.Context()
	s, at := open(t)
	s.IndexBy(&renewing{store: s})
	write(t, s, put(t, "Patient", "a", "x"))
	e, err := store.StartEpoch(ctx, at)
	if err != nil || e.ID.Number() != 2 || e.Cause != "manual" {
		t.Fatalf("epoch %+v, %v", e, err)
	}
	write(t, s, searchtest.NewWrite(t, []byte(`{"resourceType":"Patient","id":"b"}`)))
	if s.Epoch() != e.ID {
		t.Errorf("the server works in epoch %x, want %x", s.Epoch(), e.ID)
	}
	// Changes stops before the oldest transaction on this PostgreSQL, which may belong to another test.
	var changes []store.Change
	for deadline := time.Now().Add(time.Minute); len(changes) < 2 && err == nil && time.Now().Before(deadline); {
		changes, err = s.Changes(ctx, store.ChangePosition{}, 10)
	}
	if err != nil || len(changes) != 2 || changes[0].Position.Epoch != store.FirstEpoch || changes[1].Position.Epoch != e.ID {
		t.Errorf("changes %+v, %v", changes, err)
	}
}

// renewing is the indexer of a server whose search parameters never change, but for their version, which a new epoch
// raises.
type renewing struct {
	searchtest.Indexer
	store   *store.Store
	version atomic.Int64
}

func (x *renewing) Refresh(ctx context.Context) error {
	state, err := x.store.ParametersState(ctx)
	x.version.Store(state.Version)
	return err
}

func (x *renewing) Index(id string, r fhir.Resource) (*fhir.Index, error) {
	out, err := x.Indexer.Index(id, r)
	out.ParametersVersion = x.version.Load()
	return out, err
}

// renewed gives a write the version of the search parameters of now.
func renewed(t *testing.T, s *store.Store, w *store.Write) *store.Write {
	t.Helper()
	state, err := s.ParametersState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.Index.ParametersVersion = state.Version
	return w
}

// TestPromotionThatLostTransactions has two servers on a primary, which write what its standby does not get. After the
// standby has taken over both go on, beside a server that starts then. Nothing that they remember of the lost
// transactions does harm.
func TestPromotionThatLostTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := storetest.NewCluster(t)
	standby := primary.Standby("standby")
	url := storetest.URLOf(primary, standby)
	server := func() *store.Store {
		s := openAt(t, url)
		s.IndexBy(&renewing{store: s})
		return s
	}
	resource := func(typ, id, more string) *store.Write {
		return searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":%q,"id":%q%s}`, typ, id, more))
	}
	a, b := server(), server()
	reader := readAll(t, a)
	write(t, a, resource("Patient", "p", ""))
	write(t, a, resource("Encounter", "e", ""))
	reader.await("Patient/p/1", "Encounter/e/1")
	standby.Follows(primary)
	standby.CutOff()

	// Lost: surrogates of b, a type with its number, a text, a unit, versions, a setting, a policy.
	const text, quantity = `,"code":{"text":"Unheard of"}`, `,"valueQuantity":{"value":1,"unit":"u","system":"http://u","code":"u"}`
	write(t, b, resource("Encounter", "lost", ""))
	write(t, a, resource("Device", "lost", ""))
	write(t, b, resource("Device", "lost2", ""))
	write(t, a, resource("Observation", "lost", text+quantity))
	write(t, a, resource("Patient", "p", `,"gender":"male"`))
	reader.await("Encounter/lost/1", "Device/lost/1", "Device/lost2/1", "Observation/lost/1", "Patient/p/2")
	lost, err := a.ChangeHorizon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.PutSetting(ctx, store.Setting{Name: "lost", Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ChangePolicy(ctx, "lost", func([]byte) ([]byte, error) { return []byte("{}"), nil }); err != nil {
		t.Fatal(err)
	}
	before := counters(t, a)
	gone, err := a.Changes(ctx, store.ChangePosition{}, 100)
	if err != nil || len(gone) != 7 {
		t.Fatalf("%d changes, %v", len(gone), err)
	}

	primary.Stop()
	standby.Promote()
	c := server()
	for name, s := range map[string]*store.Store{"a": a, "b": b, "c": c} { // each finds the new primary
		for deadline := time.Now().Add(30 * time.Second); s.Ping(ctx) != nil || s.Epoch().Number() != 2; {
			if time.Now().After(deadline) {
				t.Fatalf("%s is in epoch %d", name, s.Epoch().Number())
			}
			_, _ = s.ParametersState(ctx)
		}
	}
	for name, n := range counters(t, a) {
		if n <= before[name] {
			t.Errorf("the counter %s is %d, and was %d on the primary that is lost", name, n, before[name])
		}
	}
	var want []string
	add := func(s *store.Store, w *store.Write) {
		t.Helper()
		v := write(t, s, w)
		want = append(want, fmt.Sprintf("%s/%s/%d", v.ResourceType, v.ID, v.VersionID))
	}
	add(b, resource("Basic", "b1", "")) // the number of Device or of Observation is free again
	add(c, resource("Specimen", "s1", ""))
	add(a, resource("Device", "d1", ""))
	add(a, resource("Observation", "o1", text+quantity))
	for i := range 6 {
		for n, s := range []*store.Store{a, b, c} {
			add(s, resource("Encounter", fmt.Sprintf("e%d-%d", n, i), ""))
			add(s, resource("Device", fmt.Sprintf("d%d-%d", n, i), ""))
		}
	}
	add(b, resource("Patient", "p", `,"gender":"female"`))
	reader.await(want...)

	db := connect(t, standby.URL())
	var resources, surrogates, types, numbers int
	if err := db.QueryRow(ctx, `SELECT (SELECT count(*) FROM resource), (SELECT count(DISTINCT rid) FROM resource),
		(SELECT count(*) FROM resource_type), (SELECT count(DISTINCT typ) FROM resource_type)`).Scan(&resources, &surrogates, &types, &numbers); err != nil {
		t.Fatal(err)
	}
	if resources != surrogates || types != numbers {
		t.Errorf("%d resources have %d surrogates, %d types %d numbers", resources, surrogates, types, numbers)
	}
	for name, s := range map[string]*store.Store{"a": a, "b": b, "c": c} {
		for _, tt := range []searchtest.Case{
			{Type: "Observation", Values: searchtest.Parameters("code:text", "unheard"), Want: []string{"o1"}},
			{Type: "Observation", Values: searchtest.Parameters("value-quantity", "1|http://u|u"), Want: []string{"o1"}},
			{Type: "Basic", Values: nil, Want: []string{"b1"}},
			{Type: "Specimen", Values: nil, Want: []string{"s1"}},
			{Type: "Device", Values: searchtest.Parameters("_id", "d1,lost,lost2"), Want: []string{"d1"}},
			{Type: "Encounter", Values: searchtest.Parameters("_id", "e0-1,e1-1,e2-1,lost"), Want: []string{"e0-1", "e1-1", "e2-1"}},
			{Type: "Patient", Values: searchtest.Parameters("gender", "male"), Want: nil},
			{Type: "Patient", Values: searchtest.Parameters("gender", "female"), Want: []string{"p"}},
		} {
			r := searchtest.FindMatches(t, s, tt.ParseQuery(t))
			var ids []string
			for _, m := range r.Matches {
				ids = append(ids, m.ID)
			}
			slices.Sort(ids)
			if !slices.Equal(ids, tt.Want) || r.Total == nil || *r.Total != len(tt.Want) {
				t.Errorf("server %s: %s found %v, want %v", name, &tt, ids, tt.Want)
			}
		}
		var trimmed *store.TrimmedError
		if _, err := s.FindCursor(ctx, lost); !errors.As(err, &trimmed) || !trimmed.Lost {
			t.Errorf("server %s: the cursor of a lost change: %v", name, err)
		}
	}
	// One version number, given twice, has two positions, of which notification ids are made.
	now, err := a.Changes(ctx, store.ChangePosition{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	find := func(list []store.Change) store.ChangePosition {
		for _, c := range list {
			if c.Ref == int64(fhir.ValueReference("Patient", "p")) && c.VersionID == 2 {
				return c.Position
			}
		}
		t.Fatal("Patient/p has no version 2")
		return store.ChangePosition{}
	}
	if x, y := find(gone), find(now); x.Epoch == y.Epoch {
		t.Errorf("version 2 that is lost, and the one in its place, are both of epoch %d", x.Epoch.Number())
	}
}

// counters are the counters by which servers notice changes.
func counters(t *testing.T, s *store.Store) map[string]int64 {
	t.Helper()
	ctx := t.Context()
	signals, err := s.Signals(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, policies, err := s.Policies(ctx, -1)
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.ParametersState(ctx)
	if err != nil {
		t.Fatal(err)
	}
	apps, err := s.AppsVersion(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int64{"settings": signals[store.SignalSettings].Version, "caches": signals[store.SignalCaches].Version, "policies": policies,
		"parameters": state.Version, "progress": state.Progress, "definitions": state.Definitions, "apps": apps}
}

// readerOfAll is a named reader that notes each change.
type readerOfAll struct {
	t    *testing.T
	mu   sync.Mutex
	seen []string
	more chan struct{}
}

// readAll runs a named reader of a server from now on.
func readAll(t *testing.T, s *store.Store) *readerOfAll {
	t.Helper()
	r := &readerOfAll{t: t, more: make(chan struct{}, 1)}
	f := newFeed(t, s, 50*time.Millisecond)
	if err := f.Add(t.Context(), "all"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	done.Go(func() {
		_ = f.Run(ctx, "all", store.Handler{Handle: func(ctx context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
			keys := make([]store.VersionKey, len(changes))
			types := make(map[int64]string)
			for i, c := range changes {
				keys[i], types[c.Ref] = c.Key(), c.ResourceType
			}
			versions, err := s.ChangedVersions(ctx, keys, types)
			if err != nil {
				return nil, err
			}
			var names []string
			for _, k := range keys {
				v := versions[k]
				names = append(names, fmt.Sprintf("%s/%s/%d", v.ResourceType, v.ID, v.VersionID))
			}
			return func(context.Context, pgx.Tx) error { return r.note(names) }, nil
		}})
	})
	return r
}

func (r *readerOfAll) note(names []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, names...)
	select {
	case r.more <- struct{}{}:
	default:
	}
	return nil
}

// await waits until the reader has read just these changes since the last time, in any order.
func (r *readerOfAll) await(want ...string) {
	r.t.Helper()
	slices.Sort(want)
	end := time.After(time.Minute)
	for {
		r.mu.Lock()
		seen := slices.Sorted(slices.Values(r.seen))
		r.mu.Unlock()
		if slices.Equal(seen, want) {
			break
		}
		select {
		case <-r.more:
		case <-end:
			r.t.Fatalf("the reader has read\n%v, want\n%v", seen, want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = nil
}

func execute(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range statements {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}
