package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// open returns a Store on a database of the test's own, and its URL.
func open(t testing.TB) (*store.Store, string) {
	t.Helper()
	url := storetest.New(t)
	return openAt(t, url), url
}

func openAt(t testing.TB, url string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// body returns a small resource with a text that tells versions apart.
func body(t testing.TB, typ, id, text string) *fhir.Body {
	t.Helper()
	b, err := fhir.Splice(fmt.Appendf(nil, `{"resourceType":%q,"id":%q,"language":%q}`, typ, id, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(t testing.TB, typ, id, text string) *store.Write {
	t.Helper()
	return &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id, Body: body(t, typ, id, text), Index: &fhir.Index{}}
}

func post(t testing.TB, typ, text string) *store.Write {
	t.Helper()
	id := uuid.NewString()
	return &store.Write{Method: fhir.POST, ResourceType: typ, ID: id, Body: body(t, typ, id, text), Index: &fhir.Index{}}
}

func remove(typ, id string) *store.Write {
	return &store.Write{Method: fhir.DELETE, ResourceType: typ, ID: id}
}

func write(t testing.TB, s *store.Store, w *store.Write) fhir.Version {
	t.Helper()
	if err := s.Write(context.Background(), w); err != nil {
		t.Fatalf("%s %s/%s: %v", w.Method, w.ResourceType, w.ID, err)
	}
	return w.Result
}

// wantStatus fails unless err is an outcome with the status.
func wantStatus(t testing.TB, err error, status int) {
	t.Helper()
	o, ok := outcome.From(err)
	if !ok || o.HTTPStatus() != status {
		t.Errorf("got %v, want an outcome with status %d", err, status)
	}
}

func TestVersions(t *testing.T) {
	s, _ := open(t)
	ctx := context.Background()

	_, err := s.Read(ctx, "Patient", "a")
	wantStatus(t, err, http.StatusNotFound)
	first := write(t, s, put(t, "Patient", "a", "one"))
	second := write(t, s, put(t, "Patient", "a", "two"))
	if first.VersionID != 1 || second.VersionID != 2 {
		t.Errorf("versions %d, %d, want 1, 2", first.VersionID, second.VersionID)
	}
	if !second.LastUpdated.After(first.LastUpdated) {
		t.Errorf("last updated %v, then %v", first.LastUpdated, second.LastUpdated)
	}
	current, err := s.Read(ctx, "Patient", "a")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"resourceType":"Patient","id":"a","meta":{"versionId":"2","lastUpdated":"%s"},"language":"two"}`,
		fhir.AppendInstant(nil, second.LastUpdated))
	if string(current.Body) != want || string(second.Body) != want {
		t.Errorf("read %s\nwrote %s\nwant %s", current.Body, second.Body, want)
	}
	if !current.LastUpdated.Equal(second.LastUpdated) || current.Method != fhir.PUT {
		t.Errorf("read %v %v, want %v PUT", current.LastUpdated, current.Method, second.LastUpdated)
	}

	old, err := s.VRead(ctx, "Patient", "a", 1)
	if err != nil || string(old.Body) != string(first.Body) {
		t.Errorf("version 1 is %s, %v; want %s", old.Body, err, first.Body)
	}
	for _, version := range []int{-1, 0, 3, 1 << 40} {
		_, err = s.VRead(ctx, "Patient", "a", version)
		wantStatus(t, err, http.StatusNotFound)
	}

	gone := write(t, s, remove("Patient", "a"))
	if gone.VersionID != 3 || !gone.Deleted() {
		t.Errorf("deletion is version %d, %v", gone.VersionID, gone.Method)
	}
	if again := write(t, s, remove("Patient", "a")); again.VersionID != 3 {
		t.Errorf("second deletion is version %d, want still 3", again.VersionID)
	}
	_, err = s.Read(ctx, "Patient", "a")
	wantStatus(t, err, http.StatusGone)
	_, err = s.VRead(ctx, "Patient", "a", 3)
	wantStatus(t, err, http.StatusGone)

	w := put(t, "Patient", "a", "back")
	back := write(t, s, w)
	if back.VersionID != 4 || !w.Created {
		t.Errorf("resurrected as version %d, created %v; want 4, true", back.VersionID, w.Created)
	}
	if never := write(t, s, remove("Patient", "nobody")); never.VersionID != 0 {
		t.Errorf("deletion of what never was is version %d, want 0", never.VersionID)
	}
}

func TestPreconditions(t *testing.T) {
	s, _ := open(t)
	write(t, s, put(t, "Patient", "here", "1"))
	write(t, s, put(t, "Patient", "gone", "1"))
	write(t, s, remove("Patient", "gone"))
	with := func(w *store.Write, f func(*store.Write)) *store.Write { f(w); return w }
	match := func(n ...int) func(*store.Write) { return func(w *store.Write) { w.IfMatch = n } }
	must := func(w *store.Write) { w.MustExist = true }
	none := func(w *store.Write) { w.IfNoneMatch = true }
	for _, tt := range []struct {
		name  string
		write *store.Write
		want  int
	}{
		{"If-Match of another version", with(put(t, "Patient", "here", "x"), match(7)), 409},
		{"If-Match of other versions", with(put(t, "Patient", "here", "x"), match(7, 8)), 409},
		{"If-Match of an absent resource", with(put(t, "Patient", "new", "x"), match(1)), 412},
		{"If-Match of a deleted resource", with(put(t, "Patient", "gone", "x"), match(2)), 412},
		{"If-None-Match: * of an existing one", with(put(t, "Patient", "here", "x"), none), 412},
		{"an absent one that must exist", with(put(t, "Patient", "new", "x"), must), 404},
		{"a deleted one that must exist", with(put(t, "Patient", "gone", "x"), must), 410},
		{"delete with If-Match of another version", with(remove("Patient", "here"), match(2)), 409},
		{"patch of an absent one", &store.Write{Method: fhir.PATCH, ResourceType: "Patient", ID: "new", Modify: keep}, 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantStatus(t, s.Write(context.Background(), tt.write), tt.want)
		})
	}
	if v, err := s.Read(context.Background(), "Patient", "here"); err != nil || v.VersionID != 1 {
		t.Errorf("version %d, %v after failed writes, want 1", v.VersionID, err)
	}
}

// keep is a Modify that changes nothing.
func keep(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
	b, err := fhir.Splice(current.Body, nil)
	return b, &fhir.Index{}, err
}

func TestModify(t *testing.T) {
	s, _ := open(t)
	write(t, s, put(t, "Patient", "a", "en"))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			w := &store.Write{Method: fhir.PATCH, ResourceType: "Patient", ID: "a"}
			w.Modify = func(v fhir.Version) (*fhir.Body, *fhir.Index, error) {
				b, err := fhir.Splice([]byte(strings.Replace(string(v.Body), `"en`, `"en+`, 1)), nil)
				return b, &fhir.Index{}, err
			}
			if err := s.Write(context.Background(), w); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	v, err := s.Read(context.Background(), "Patient", "a")
	if err != nil || v.VersionID != 21 || strings.Count(string(v.Body), "+") != 20 {
		t.Errorf("version %d: %s, %v; want 21 with 20 changes", v.VersionID, v.Body, err)
	}
	refused := errors.New("refused")
	w := &store.Write{Method: fhir.PATCH, ResourceType: "Patient", ID: "a"}
	w.Modify = func(fhir.Version) (*fhir.Body, *fhir.Index, error) { return nil, nil, refused }
	if err := s.Write(context.Background(), w); !errors.Is(err, refused) {
		t.Errorf("got %v, want the error of Modify", err)
	}
}

func TestParallelPutsWithOneIfMatch(t *testing.T) {
	url := storetest.New(t)
	a, b := openAt(t, url), openAt(t, url) // two servers on one database
	write(t, a, put(t, "Patient", "a", "0"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 50 {
		s := []*store.Store{a, b}[i%2]
		wg.Go(func() {
			w := put(t, "Patient", "a", fmt.Sprint(i))
			w.IfMatch = []int{1}
			err := s.Write(context.Background(), w)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
				return
			}
			wantStatus(t, err, http.StatusConflict)
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of 50 won, want 1", won)
	}
}

// Everything at once on a few resources, through two servers: creating puts,
// deletes, bundles in different orders. Versions stay without gaps.
func TestVersionsHaveNoGaps(t *testing.T) {
	url := storetest.New(t)
	stores := []*store.Store{openAt(t, url), openAt(t, url)}
	ctx := context.Background()
	ids := []string{"a", "b", "c", "d"}
	var wg sync.WaitGroup
	for worker := range 12 {
		s := stores[worker%2]
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range 25 {
				first, second := ids[random.IntN(4)], ids[random.IntN(4)]
				var err error
				switch random.IntN(4) {
				case 0:
					err = s.Write(ctx, remove("Patient", first))
				case 1, 2:
					err = s.Write(ctx, put(t, "Patient", first, fmt.Sprint(worker, i)))
				case 3:
					if first == second {
						continue
					}
					ws := []*store.Write{put(t, "Patient", first, "bundle"), remove("Patient", second)}
					err = s.InTx(ctx, func(tx *store.Tx) error {
						// Two calls, so that locks are not taken in order and circles occur.
						if err := tx.Write(ctx, ws[:1]); err != nil {
							return err
						}
						return tx.Write(ctx, ws[1:])
					})
				}
				if err != nil {
					t.Errorf("worker %d, write %d: %v", worker, i, err)
				}
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		page, err := stores[0].History(ctx, store.HistoryQuery{ResourceType: "Patient", ID: id, Count: 10000})
		if err != nil {
			t.Fatal(err)
		}
		if page.Total != len(page.Versions) {
			t.Errorf("%s: total %d of %d versions", id, page.Total, len(page.Versions))
		}
		for i, v := range page.Versions {
			if want := len(page.Versions) - i; v.VersionID != want {
				t.Fatalf("%s: version %d where %d is due", id, v.VersionID, want)
			}
			if i > 0 && !v.LastUpdated.Before(page.Versions[i-1].LastUpdated) {
				t.Errorf("%s: version %d is not older than its successor", id, v.VersionID)
			}
			if i > 0 && v.Deleted() && page.Versions[i-1].Deleted() {
				t.Errorf("%s: version %d deletes what version %d deletes again", id, v.VersionID, v.VersionID+1)
			}
		}
	}
	checkConsistent(t, url)
}

// checkConsistent checks what must hold between the tables.
func checkConsistent(t testing.TB, url string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for what, sql := range map[string]string{
		"a resource is in history with its current version or a later one": `
			SELECT count(*) FROM resource r JOIN resource_history h ON h.ref = r.ref AND h.version >= r.version`,
		"a version is missing": `
			SELECT count(*) FROM (
				SELECT ref, max(version) - count(*) AS gaps
				FROM (SELECT ref, version FROM resource UNION ALL SELECT ref, version FROM resource_history) v
				GROUP BY ref) g WHERE gaps <> 0`,
		"a surrogate stands for two resources": `
			SELECT count(*) FROM (SELECT rid FROM (SELECT rid, ref FROM resource UNION SELECT rid, ref FROM resource_history) v
				GROUP BY rid HAVING count(*) > 1) d`,
		"the last version of a resource that is not current is no deletion": `
			SELECT count(*) FROM (
				SELECT DISTINCT ON (ref) ref, method FROM resource_history ORDER BY ref, version DESC) h
			WHERE method <> 'D' AND NOT EXISTS (SELECT FROM resource r WHERE r.ref = h.ref)`,
		"a version is not in the change log, or twice": `
			SELECT count(*) FROM (SELECT ref, version FROM resource UNION ALL SELECT ref, version FROM resource_history) v
			FULL JOIN (SELECT ref, version, count(*) AS n FROM (SELECT unnest(refs) AS ref, unnest(versions) AS version FROM change) u GROUP BY 1, 2) c USING (ref, version)
			WHERE c.n IS DISTINCT FROM 1`,
		"an index row has no resource": `
			SELECT count(*) FROM (SELECT rid FROM index_date UNION SELECT rid FROM index_number UNION
				SELECT rid FROM index_quantity UNION SELECT rid FROM index_string) x
			WHERE NOT EXISTS (SELECT FROM resource r WHERE r.rid = x.rid)`,
		"a shard is wrong": `
			SELECT (SELECT count(*) FROM resource WHERE shard <> ref & 255) + (SELECT count(*) FROM resource_history WHERE shard <> ref & 255)`,
	} {
		var n int
		if err := conn.QueryRow(ctx, sql).Scan(&n); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
}

func TestWriteAllIsAtomicAndBadNeighboursAreAlone(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	var wg sync.WaitGroup
	const n = 60
	for i := range n {
		wg.Go(func() {
			good := put(t, "Patient", fmt.Sprint("good", i), "x")
			switch i % 3 {
			case 0:
				if err := s.Write(ctx, good); err != nil {
					t.Errorf("a good write failed: %v", err)
				}
			case 1: // refused in Go
				bad := put(t, "Patient", fmt.Sprint("bad", i), "x")
				bad.MustExist = true
				err := s.WriteAll(ctx, []*store.Write{good, bad})
				wantStatus(t, err, http.StatusNotFound)
				var at *store.WriteError
				if !errors.As(err, &at) || at.Index != 1 {
					t.Errorf("got %v, want the second write to be named", err)
				}
			case 2: // refused by PostgreSQL
				bad := put(t, "Patient", fmt.Sprint("bad", i), "x")
				bad.Index = &fhir.Index{Strings: []fhir.StringEntry{{Key: 1, Text: "nul\x00"}}}
				wantStatus(t, s.WriteAll(ctx, []*store.Write{good, bad}), http.StatusBadRequest)
			}
		})
	}
	wg.Wait()
	for i := range n {
		_, err := s.Read(ctx, "Patient", fmt.Sprint("good", i))
		if i%3 == 0 && err != nil {
			t.Errorf("good write %d is not there: %v", i, err)
		}
		if i%3 != 0 {
			wantStatus(t, err, http.StatusNotFound)
		}
		if _, err = s.Read(ctx, "Patient", fmt.Sprint("bad", i)); err == nil {
			t.Errorf("bad write %d is there", i)
		}
	}
	checkConsistent(t, url)
}

func TestSameResourceTwice(t *testing.T) {
	s, _ := open(t)
	ctx := context.Background()
	ws := func() []*store.Write { return []*store.Write{put(t, "Patient", "a", "1"), put(t, "Patient", "a", "2")} }
	wantStatus(t, s.WriteAll(ctx, ws()), http.StatusBadRequest)
	wantStatus(t, s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, ws()) }), http.StatusBadRequest)
	both := ws()
	err := s.InTx(ctx, func(tx *store.Tx) error {
		if err := tx.Write(ctx, both[:1]); err != nil {
			return err
		}
		return tx.Write(ctx, both[1:])
	})
	if err != nil || both[1].Result.VersionID != 2 {
		t.Errorf("version %d, %v; want 2 after two calls in one transaction", both[1].Result.VersionID, err)
	}
}

// Resources created together have one instant: the cache of last updates is runs of one
// value.
func TestCreatedAtOnce(t *testing.T) {
	s, _ := open(t)
	ws := make([]*store.Write, 100)
	for i := range ws {
		ws[i] = post(t, "Patient", "x")
	}
	if err := s.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	for i, w := range ws {
		if at := ws[0].Result.LastUpdated; !w.Result.LastUpdated.Equal(at) {
			t.Fatalf("the last update of write %d is %v, and of the first %v", i, w.Result.LastUpdated, at)
		}
	}
}

func TestInTxRollsBack(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	refused := errors.New("refused")
	err := s.InTx(ctx, func(tx *store.Tx) error {
		if err := tx.Write(ctx, []*store.Write{post(t, "Patient", "x"), put(t, "Patient", "a", "x")}); err != nil {
			return err
		}
		if _, err := tx.Read(ctx, "Patient", "a"); err != nil {
			t.Errorf("a transaction does not see its own write: %v", err)
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("got %v, want the function's error", err)
	}
	_, err = s.Read(ctx, "Patient", "a")
	wantStatus(t, err, http.StatusNotFound)
	checkConsistent(t, url)
}

func TestIndexRowsFollowTheResource(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	index := func(n int64) *fhir.Index {
		return &fhir.Index{
			Terms: []int64{n, n + 1, -n}, Targets: []int64{n * 10},
			Dates:      []fhir.DateEntry{{Key: 1, Low: n, High: n + 1}},
			Numbers:    []fhir.NumberEntry{{Key: 2, Low: fmt.Sprint(n, ".50"), High: fmt.Sprint(n, ".50")}, {Key: 2, Low: "", High: "7"}, {Key: 2, Low: "-3e2", High: ""}},
			Quantities: []fhir.QuantityEntry{{Key: 3, Low: "1", High: "2", System: "s", Code: "c", Unit: fmt.Sprint("u", n)}},
			Strings:    []fhir.StringEntry{{Key: 4, Text: fmt.Sprint("text ", n)}},
			Texts:      []fhir.TextEntry{{Key: 5, Text: fmt.Sprint("display ", n)}},
		}
	}
	const rows = `
		SELECT (SELECT string_agg(terms::text || targets::text, ' ') FROM resource)
			|| '; ' || (SELECT string_agg(low || '-' || high, ' ' ORDER BY low) FROM index_date)
			|| '; ' || (SELECT string_agg(low || '-' || coalesce(high::text, 'null'), ' ' ORDER BY low) FROM index_number)
			|| '; ' || (SELECT string_agg(q.low || '-' || q.high || u.system || u.code || u.unit, ' ') FROM index_quantity q JOIN quantity_unit u ON u.id = q.unit)
			|| '; ' || (SELECT string_agg(text, ' ') FROM index_string)`
	w := put(t, "Patient", "a", "1")
	for n := int64(1); n <= 2; n++ {
		w.Index = index(n)
		write(t, s, w)
		want := fmt.Sprintf("{%d,%d,%d}{%d}; %d-%d; -Infinity-7 -300-Infinity %d.5-null; 1-2scu%d; text %d", n, n+1, -n, n*10, n, n+1, n, n, n)
		var got string
		if err := conn.QueryRow(ctx, rows).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("index rows of version %d:\n%s\nwant\n%s", n, got, want)
		}
	}
	write(t, s, remove("Patient", "a"))
	checkConsistent(t, url)
	var texts string
	err = conn.QueryRow(ctx, `SELECT string_agg(key || '/' || (value = $1) || '/' || text, ' ' ORDER BY text) FROM token_text`,
		int64(fhir.ValueText("display 1"))).Scan(&texts)
	if want := "5/true/display 1 5/false/display 2"; err != nil || texts != want {
		t.Errorf("token_text has %q, %v; want %q", texts, err, want)
	}
}

func TestHistory(t *testing.T) {
	s, _ := open(t)
	ctx := context.Background()
	var all []fhir.Version // oldest first
	for i := range 3 {
		for _, id := range []string{"a", "b"} {
			all = append(all, write(t, s, put(t, "Patient", id, fmt.Sprint(i))))
			all = append(all, write(t, s, put(t, "Group", id, fmt.Sprint(i))))
		}
	}
	all = append(all, write(t, s, remove("Patient", "a")))
	of := func(typ, id string) []fhir.Version {
		var vs []fhir.Version
		for i := len(all) - 1; i >= 0; i-- {
			if v := all[i]; (typ == "" || v.ResourceType == typ) && (id == "" || v.ID == id) {
				vs = append(vs, v)
			}
		}
		return vs
	}
	name := func(vs []fhir.Version) string {
		var b strings.Builder
		for _, v := range vs {
			fmt.Fprintf(&b, "%s/%s/%d %s %d\n", v.ResourceType, v.ID, v.VersionID, v.Method, len(v.Body))
		}
		return b.String()
	}
	for _, q := range []store.HistoryQuery{{}, {ResourceType: "Patient"}, {ResourceType: "Patient", ID: "a"}, {ResourceType: "Group", ID: "b"}, {ResourceType: "Basic"}} {
		want := of(q.ResourceType, q.ID)
		for _, q.Count = range []int{1, 2, 100} {
			var got []fhir.Version
			for q.Cursor = ""; ; {
				page, err := s.History(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				if page.Total != len(want) {
					t.Errorf("%+v: total %d, want %d", q, page.Total, len(want))
				}
				got = append(got, page.Versions...)
				if (q.Cursor == "") != (page.Previous == "") {
					t.Errorf("%+v: previous is %q", q, page.Previous)
				}
				if page.Next == "" {
					break
				}
				q.Cursor = page.Next
			}
			if name(got) != name(want) {
				t.Errorf("%+v: got\n%swant\n%s", q, name(got), name(want))
			}
			// The way back from the last page has the same pages.
			page, err := s.History(ctx, q)
			for got = page.Versions; err == nil && page.Previous != ""; got = slices.Concat(page.Versions, got) {
				q.Cursor = page.Previous
				if page, err = s.History(ctx, q); err == nil && (len(page.Versions) != q.Count || page.Next == "") {
					t.Errorf("%+v: %d versions, next %q", q, len(page.Versions), page.Next)
				}
			}
			if err != nil || name(got) != name(want) {
				t.Errorf("%+v: back, %v: got\n%swant\n%s", q, err, name(got), name(want))
			}
		}
	}
	for _, tt := range []struct {
		name string
		q    store.HistoryQuery
		want []fhir.Version
	}{
		{"since the last but one", store.HistoryQuery{Since: all[len(all)-2].LastUpdated}, of("", "")[:2]},
		{"since, of one", store.HistoryQuery{ResourceType: "Patient", ID: "b", Since: all[6].LastUpdated}, of("Patient", "b")[:2]},
		{"at an instant, of one", store.HistoryQuery{ResourceType: "Patient", ID: "a", At: all[4].LastUpdated}, []fhir.Version{all[4]}},
		{"at an instant, of all", store.HistoryQuery{At: all[5].LastUpdated}, []fhir.Version{all[5], all[4], all[3], all[2]}},
		{"over a time, of a type", store.HistoryQuery{ResourceType: "Group", At: all[1].LastUpdated, AtEnd: all[7].LastUpdated}, []fhir.Version{all[5], all[3], all[1]}},
	} {
		tt.q.Count = 100
		page, err := s.History(ctx, tt.q)
		if err != nil || name(page.Versions) != name(tt.want) || page.Total != len(tt.want) {
			t.Errorf("%s: %v, total %d, got\n%swant\n%s", tt.name, err, page.Total, name(page.Versions), name(tt.want))
		}
	}
	_, err := s.History(ctx, store.HistoryQuery{ResourceType: "Patient", ID: "nobody", Count: 1})
	wantStatus(t, err, http.StatusNotFound)
	_, err = s.History(ctx, store.HistoryQuery{Count: 1, Cursor: "x"})
	wantStatus(t, err, http.StatusBadRequest)
}

// A reader follows the change log while transactions of different length commit
// out of order, and gets every version once.
func TestChangeLogSkipsNothing(t *testing.T) {
	url := storetest.New(t)
	s, reader := openAt(t, url), openAt(t, url)
	ctx := context.Background()
	const workers, writes = 8, 30
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := range writes {
				w := put(t, "Patient", fmt.Sprint("p", (worker+i)%5), "x")
				var err error
				if i%3 == 0 {
					err = s.InTx(ctx, func(tx *store.Tx) error {
						if err := tx.Write(ctx, []*store.Write{w}); err != nil {
							return err
						}
						for range worker * 3 { // round trips keep it open
							if _, err := tx.Read(ctx, "Patient", w.ID); err != nil {
								return err
							}
						}
						return nil
					})
				} else {
					err = s.Write(ctx, w)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	seen := map[string]int{}
	var position store.ChangePosition
	deadline := time.Now().Add(2 * time.Minute)
	for done := false; ; {
		select {
		case <-finished:
			done = true
		default:
		}
		changes, err := reader.Changes(ctx, position, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			seen[fmt.Sprintf("%s %d %d", c.ResourceType, c.Ref, c.VersionID)]++
			position = c.Position
		}
		// Transactions of other databases on the server hold the log back too.
		if done && len(changes) == 0 && (len(seen) >= workers*writes || time.Now().After(deadline)) {
			break
		}
	}
	if len(seen) != workers*writes {
		t.Errorf("%d versions in the log, want %d", len(seen), workers*writes)
	}
	for v, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", v, n)
		}
	}
}

func TestCancelledWriteLeavesNothingHalf(t *testing.T) {
	s, url := open(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*100*time.Microsecond)
			defer cancel()
			w := put(t, "Patient", fmt.Sprint(i), "x")
			if err := s.Write(ctx, w); err != nil {
				wantStatus(t, err, http.StatusServiceUnavailable)
				return
			}
			if _, err := s.Read(context.Background(), "Patient", w.ID); err != nil {
				t.Errorf("an acknowledged write is not there: %v", err)
			}
		})
	}
	wg.Wait()
	checkConsistent(t, url)
}

func TestMigrateTogether(t *testing.T) {
	url := storetest.New(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
		t.Fatal(err)
	}
	if pending, err := store.Plan(ctx, url); err != nil || len(pending) == 0 {
		t.Errorf("plan of an empty database: %v, %v", pending, err)
	}
	if _, err := store.Open(ctx, store.Config{URL: url}); err == nil {
		t.Error("a database without a schema was opened")
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := store.Migrate(ctx, url); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pending, err := store.Plan(ctx, url); err != nil || len(pending) != 0 {
		t.Errorf("plan after migrating: %v, %v", pending, err)
	}
	write(t, openAt(t, url), put(t, "Patient", "a", "x"))
	var gender string
	if err := conn.QueryRow(ctx, "SELECT body->>'language' FROM resource_json WHERE type = 'Patient'").Scan(&gender); err != nil || gender != "x" {
		t.Errorf("resource_json says %q, %v", gender, err)
	}
}

// A large transaction copies its rows, a small one inserts them: both store the same.
func TestManyRowsAsFew(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	writes := func(typ string) []*store.Write {
		var ws []*store.Write
		for i := range int64(200) {
			w := post(t, typ, strings.Repeat("x", int(i)))
			w.ID = fmt.Sprint("id", i)
			x := w.Index
			for j := range i % 7 {
				x.Terms = append(x.Terms, i*100+j, -i)
				x.Dates = append(x.Dates, fhir.DateEntry{Key: fhir.Key(j), Low: i, High: -i})
				x.Numbers = append(x.Numbers, fhir.NumberEntry{Key: 1, Low: fmt.Sprint(i, ".", j), High: []string{"", "99", fmt.Sprint(i, ".", j)}[j%3]})
				x.Quantities = append(x.Quantities, fhir.QuantityEntry{Key: 2, High: fmt.Sprint(-i, "e", j), Unit: fmt.Sprint(j)})
				x.Strings = append(x.Strings, fhir.StringEntry{Key: 3, Text: strings.Repeat("ü", int(j))})
			}
			for j := range i % 4 {
				x.Targets = append(x.Targets, i<<40+j)
			}
			ws = append(ws, w)
		}
		return ws
	}
	many, few := writes("Group"), writes("Basic")
	if err := s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, many) }); err != nil {
		t.Fatal(err)
	}
	for _, w := range few {
		write(t, s, w)
	}
	checkConsistent(t, url)
	stored := func(typ string) string {
		var text string
		err := conn.QueryRow(ctx, `
			SELECT string_agg(concat_ws(' ', r.id, r.version, r.method, r.rid >> 48 = r.typ, r.terms, r.targets,
				regexp_replace(resource_body(r.body), '"resourceType":"[A-Za-z]*"|"lastUpdated":"[^"]*"', '', 'g'),
				(SELECT string_agg(concat_ws(',', x.key, x.low, x.high), ';' ORDER BY x.ctid) FROM index_date x WHERE x.rid = r.rid),
				(SELECT string_agg(concat_ws(',', x.key, x.low, x.high), ';' ORDER BY x.ctid) FROM index_number x WHERE x.rid = r.rid),
				(SELECT string_agg(concat_ws(',', x.key, x.low, x.high, x.unit), ';' ORDER BY x.ctid) FROM index_quantity x WHERE x.rid = r.rid),
				(SELECT string_agg(concat_ws(',', x.key, x.text), ';' ORDER BY x.ctid) FROM index_string x WHERE x.rid = r.rid)), E'\n' ORDER BY r.rid)
			FROM resource r JOIN resource_type t ON t.typ = r.typ WHERE t.name = $1`, typ).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	same := func(what string) {
		if diff := cmp.Diff(strings.Split(stored("Basic"), "\n"), strings.Split(stored("Group"), "\n")); diff != "" {
			t.Errorf("%s: one transaction of many (+) stored something else than many of one (-):\n%s", what, diff)
		}
	}
	same("create")
	for _, w := range slices.Concat(many, few) {
		w.Method = fhir.PUT
	}
	if err := s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, many) }); err != nil {
		t.Fatal(err)
	}
	for _, w := range few {
		write(t, s, w)
	}
	same("update")
	checkConsistent(t, url)
}

func TestTrimChanges(t *testing.T) {
	s, _ := open(t)
	ctx := context.Background()
	write(t, s, put(t, "Patient", "a", "1"))
	write(t, s, put(t, "Patient", "a", "2"))
	var before []store.Change
	var err error
	for deadline := time.Now().Add(2 * time.Minute); len(before) < 2 && err == nil && time.Now().Before(deadline); {
		before, err = s.Changes(ctx, store.ChangePosition{}, 10)
	}
	if err != nil || len(before) != 2 || time.Since(before[0].Written).Abs() > time.Minute {
		t.Fatalf("changes %+v, %v", before, err)
	}
	if n, err := s.TrimChanges(ctx, before[1].Written, time.Time{}); err != nil || n != 1 {
		t.Errorf("trimmed %d, %v; want the first of two", n, err)
	}
	after, err := s.Changes(ctx, store.ChangePosition{}, 10)
	if err != nil || len(after) != 1 || after[0] != before[1] {
		t.Errorf("changes %+v, %v; want the second of two", after, err)
	}
}

// Reads share queries: each gets its own answer.
func TestParallelReads(t *testing.T) {
	s, _ := open(t)
	ctx := context.Background()
	const n = 30
	for i := range n {
		w := put(t, "Patient", fmt.Sprint(i), strings.Repeat("x", i))
		write(t, s, w)
		if i%3 == 0 {
			write(t, s, remove("Patient", w.ID))
		}
	}
	var wg sync.WaitGroup
	for worker := range 40 {
		wg.Go(func() {
			for i := range 2 * n {
				i = (i + worker) % (2 * n)
				ctx, cancel := context.WithCancel(ctx)
				if worker == 0 {
					cancel()
				}
				v, err := s.Read(ctx, "Patient", fmt.Sprint(i))
				cancel()
				switch {
				case worker == 0:
					if err != nil {
						continue // with luck it was faster than the end of its context
					}
				case i >= n:
					wantStatus(t, err, http.StatusNotFound)
					continue
				case i%3 == 0:
					wantStatus(t, err, http.StatusGone)
					continue
				}
				if err != nil || v.ID != fmt.Sprint(i) || v.ResourceType != "Patient" || v.VersionID != 1 || v.Method != fhir.PUT ||
					!strings.Contains(string(v.Body), `"id":"`+v.ID+`"`) || strings.Count(string(v.Body), "x") != i {
					t.Errorf("read of %d gave %+v, %v: %s", i, v, err, v.Body)
				}
			}
		})
	}
	wg.Wait()
}

// Transactions that ask the Store for something else leave it connections to
// answer with.
func TestTransactionsLeaveConnections(t *testing.T) {
	s, err := store.Open(context.Background(), store.Config{URL: storetest.New(t), MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	write(t, s, put(t, "Patient", "a", "x"))
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			err := s.InTx(ctx, func(tx *store.Tx) error {
				if err := tx.Write(ctx, []*store.Write{put(t, "Group", fmt.Sprint(i), "x")}); err != nil {
					return err
				}
				_, err := s.Read(ctx, "Patient", "a")
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Searches that take long leave connections to reads and writes, and one that finds
// none is told so in time.
func TestLongSearchesLeaveConnections(t *testing.T) {
	s, err := store.Open(context.Background(), store.Config{URL: storetest.New(t), MaxConns: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	write(t, s, put(t, "Patient", "a", "x"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	sc := searchtest.Case{Type: "Patient"}
	var release []func()
	for range 3 {
		if n := len(searchtest.FindMatches(t, s, sc.ParseQuery(t)).Matches); n != 1 {
			t.Fatalf("beside %d long searches there are %d matches, want 1", len(release), n)
		}
		r, err := s.HoldConnection(ctx)
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, r)
	}
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	var failed *outcome.Error
	if _, err := s.Search(soon, sc.ParseQuery(t)); !errors.As(err, &failed) || failed.Issues[0].Code != outcome.CodeTimeout {
		t.Errorf("a search for which there is no connection gives %v, want a timeout", err)
	}
	write(t, s, put(t, "Patient", "b", "x"))
	if _, err := s.Read(ctx, "Patient", "b"); err != nil {
		t.Error(err)
	}
	for _, r := range release {
		r()
	}
	if n := len(searchtest.FindMatches(t, s, sc.ParseQuery(t)).Matches); n != 2 {
		t.Errorf("afterwards there are %d matches, want 2", n)
	}
}
