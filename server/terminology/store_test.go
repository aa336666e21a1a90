package terminology_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
	"kiln/server/store/storetest"
	"kiln/server/terminology"
)

// instance is one of several servers on a database.
func instance(t testing.TB, url string, server string, now func() time.Time) (*terminology.Service, *store.Store) {
	t.Helper()
	data, err := store.Open(t.Context(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(data.Close)
	s, err := terminology.New(terminology.Config{Resources: data, Answers: data, Sets: data, Now: now,
		Server: terminology.ServerConfig{URL: server}})
	if err != nil {
		t.Fatal(err)
	}
	return s, data
}

func put(t testing.TB, data *store.Store, typ, id, body string) {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	spliced, err := fhir.Splice(r.Header().Raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := new(fhir.Index)
	x.Reset()
	index.Extract(x, r)
	x.Finish()
	if err := data.Write(t.Context(), &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id, Body: spliced, Index: x}); err != nil {
		t.Fatal(err)
	}
}

// large answers with a value set of n codes of http://far, and counts requests.
func large(t testing.TB, n int) (url string, requests *atomic.Int64) {
	requests = new(atomic.Int64)
	type code struct {
		System string `json:"system"`
		Code   string `json:"code"`
	}
	codes := make([]code, n)
	for i := range codes {
		codes[i] = code{"http://far", fmt.Sprintf("c%d", i)}
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		var offset, count int
		fmt.Sscan(r.URL.Query().Get("offset"), &offset)
		fmt.Sscan(r.URL.Query().Get("count"), &count)
		w.Header().Set("Content-Type", "application/fhir+json")
		json.NewEncoder(w).Encode(map[string]any{"resourceType": "ValueSet",
			"expansion": map[string]any{"total": n, "contains": codes[min(offset, n):min(offset+count, n)]}})
	}))
	t.Cleanup(web.Close)
	return web.URL, requests
}

func TestInstancesShareAnswers(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	server, requests := large(t, 40_000)
	now := time.Now()
	clock := func() time.Time { return now }
	a, _ := instance(t, url, server, clock)
	b, _ := instance(t, url, server, clock)
	question := search.Expansion{Modifier: "in", ValueSet: "http://far/vs"}

	// 1. The first instance asks, page by page; the second reads the stored answer.
	codes, _, err := a.SearchCodes(t.Context(), question)
	if err != nil || codes.Set == 0 || len(codes.Values) != 0 {
		t.Fatalf("got %+v, %v; want a set", codes, err)
	}
	asked := requests.Load()
	if asked != 4 {
		t.Errorf("the server was asked %d times, want 4 pages", asked)
	}
	same, _, err := b.SearchCodes(t.Context(), question)
	if err != nil || same.Set != codes.Set {
		t.Errorf("the second instance has set %d, %v; want %d", same.Set, err, codes.Set)
	}
	if n := requests.Load(); n != asked {
		t.Errorf("the second instance asked the server %d times", n-asked)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	count := func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(`SELECT count(*) FROM terminology_set_value`); n != 40_000 {
		t.Errorf("%d rows in the set, want 40,000", n)
	}

	// 2. In use it stays; an hour after its last use it goes, and is made again.
	_, data := instance(t, url, server, clock)
	now = now.Add(50 * time.Minute)
	if _, _, err := a.SearchCodes(t.Context(), question); err != nil {
		t.Fatal(err)
	}
	if err := data.DropTerminologySets(t.Context(), now.Add(-time.Hour+10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n := count(`SELECT count(*) FROM terminology_set`); n != 1 {
		t.Errorf("%d sets after a use, want 1", n)
	}
	if err := data.DropTerminologySets(t.Context(), now.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if n := count(`SELECT count(*) FROM terminology_set_value`); n != 0 {
		t.Errorf("%d rows of a set that nobody uses", n)
	}
	now = now.Add(8 * time.Minute)
	if again, _, err := b.SearchCodes(t.Context(), question); err != nil || again.Set != codes.Set {
		t.Errorf("made again: %+v, %v", again, err)
	}
	if n := count(`SELECT count(*) FROM terminology_set_value`); n != 40_000 {
		t.Errorf("made again: %d rows", n)
	}
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	for _, tt := range []struct {
		codes int
		set   bool
	}{{terminology.Threshold - 1, false}, {terminology.Threshold, true}} {
		server, _ := large(t, tt.codes)
		s, _ := instance(t, url, server, nil)
		codes, _, err := s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://far/vs"})
		if err != nil || (codes.Set != 0) != tt.set || !tt.set && len(codes.Values) != tt.codes {
			t.Errorf("%d codes: set %d, %d values, %v", tt.codes, codes.Set, len(codes.Values), err)
		}
	}
}

// The resources stored by one instance are known to the other one with its next answer.
func TestInstancesShareResources(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, data := instance(t, url, "", nil)
	b, _ := instance(t, url, "", nil)
	expand := func(s *terminology.Service) string {
		t.Helper()
		body, err := s.Expand(t.Context(), terminology.ExpandParams{URL: "http://x/vs"})
		if err != nil {
			return err.Error()
		}
		var vs terminology.ValueSet
		if err := json.Unmarshal(body, &vs); err != nil {
			t.Fatal(err)
		}
		var codes []string
		for _, c := range vs.Expansion.Contains {
			codes = append(codes, c.Code)
		}
		return strings.Join(codes, " ")
	}
	const set = `{"resourceType":"ValueSet","id":"v","url":"http://x/vs","status":"active","compose":{"include":[{"system":"http://x/cs"}]}}`
	codes := func(list string) string {
		return `{"resourceType":"CodeSystem","id":"c","url":"http://x/cs","status":"active","content":"complete","concept":[` + list + `]}`
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "ValueSet http://x/vs not found"},
		{func() { put(t, data, "ValueSet", "v", set) }, "CodeSystem http://x/cs is not known here"},
		{func() { put(t, data, "CodeSystem", "c", codes(`{"code":"a"}`)) }, "a"},
		{func() { put(t, data, "CodeSystem", "c", codes(`{"code":"a"},{"code":"b"}`)) }, "a b"},
		{func() {
			if err := data.Write(t.Context(), &store.Write{Method: fhir.DELETE, ResourceType: "ValueSet", ID: "v"}); err != nil {
				t.Fatal(err)
			}
		}, "ValueSet http://x/vs not found"},
		{func() { put(t, data, "ValueSet", "v", set) }, "a b"},
	} {
		step.do()
		for _, s := range []*terminology.Service{a, b} {
			if got := expand(s); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
		}
	}
}

// BenchmarkSearchLargeSet searches 50,000 Observations, whose codes are spread over
// 60,000, by a cached set of 40,000 codes.
func BenchmarkSearchLargeSet(b *testing.B) {
	url := storetest.New(b)
	server, _ := large(b, 40_000)
	s, data := instance(b, url, server, nil)
	const n, batch = 50_000, 500
	for from := 0; from < n; from += batch {
		ws := make([]*store.Write, batch)
		for i := range ws {
			id := fmt.Sprintf("o%d", from+i)
			r, err := fhir.Decode(r4.Model, fmt.Appendf(nil, `{"resourceType":"Observation","id":%q,"status":"final","subject":{"reference":"Patient/p%d"},
				"code":{"coding":[{"system":"http://far","code":"c%d"}]},"effectiveDateTime":"2020-01-%02d"}`, id, i%100, (from+i)*7919%60_000, i%28+1))
			if err != nil {
				b.Fatal(err)
			}
			body, err := fhir.Splice(r.Header().Raw, nil)
			if err != nil {
				b.Fatal(err)
			}
			x := new(fhir.Index)
			x.Reset()
			index.Extract(x, r)
			x.Finish()
			ws[i] = &store.Write{Method: fhir.PUT, ResourceType: "Observation", ID: id, Body: body, Index: x}
		}
		if err := data.WriteAll(b.Context(), ws); err != nil {
			b.Fatal(err)
		}
	}
	registry := search.NewRegistry(r4.Model, index.Parameters, index.Compartments)
	for _, query := range []string{
		"code:in=http://far/vs",
		"code:in=http://far/vs&subject=Patient/p7",
		"code:in=http://far/vs&_sort=-date",
		"code:not-in=http://far/vs",
		"code:in=http://far/vs&date=lt2020-01-02",
	} {
		b.Run(query, func(b *testing.B) {
			values, err := neturl.ParseQuery(query)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				q, err := search.Parse(registry, "Observation", values, search.Options{Expand: func(e search.Expansion) (search.Codes, error) {
					codes, _, err := s.SearchCodes(b.Context(), e)
					return codes, err
				}})
				if err != nil {
					b.Fatal(err)
				}
				r, err := data.Search(b.Context(), q)
				if err != nil || r.Total == nil || *r.Total == 0 {
					b.Fatal(r, err)
				}
			}
		})
	}
}
