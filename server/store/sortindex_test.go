package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/searchtest"
	"kiln/server/searchparam"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// sortServer is a server as far as searches are concerned.
type sortServer struct {
	*store.Store
	url        string
	parameters *searchparam.Service
}

// startSortServer starts one, which works on the jobs too.
func startSortServer(t testing.TB, url string) *sortServer {
	t.Helper()
	s := openAt(t, url)
	p := &searchparam.Service{Base: search.NewRegistry(r4.Model, index.Parameters, index.Compartments), Value: index.Value, Model: r4.Model, Store: s,
		Extract: index.Extract, BaseURLs: []string{"http://here.example/fhir"}, NewID: func() string { return uuid.Must(uuid.NewV7()).String() }, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler), MaxAge: 50 * time.Millisecond, SearchTime: func() time.Duration { return 200 * time.Millisecond }}
	if err := p.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	core := newCore(s)
	p.ReindexOn(core)
	done.Go(func() { core.Run(ctx) })
	done.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return &sortServer{s, url, p}
}

func (s *sortServer) write(t testing.TB, raw string) *store.Write {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	w := &store.Write{Method: fhir.PUT, ResourceType: r.Type().Name, ID: r.Header().ID.Text, Resource: r}
	if w.Body, err = fhir.Splice([]byte(raw), nil); err == nil {
		w.Index, err = s.parameters.Index(w.ID, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// parse reads a search by the parameters in force, or with memory as if nothing were
// indexed for `_sort`.
func (s *sortServer) parse(t testing.TB, memory bool, typ string, values url.Values, extra ...string) *search.Query {
	t.Helper()
	all := url.Values{}
	for k, v := range values {
		all[k] = v
	}
	for i := 0; i < len(extra); i += 2 {
		all.Set(extra[i], extra[i+1])
	}
	reg := s.parameters.Current()
	if memory {
		reg = s.parameters.Base
	}
	q, err := search.Parse(reg, typ, all, search.Options{DefaultCount: 20, MaxCount: 1000, Now: time.Now()})
	if err != nil {
		t.Fatalf("%s?%s: %v", typ, all.Encode(), err)
	}
	return q
}

// inMemory reports whether a search reads its sort keys from resources.
func inMemory(q *search.Query) bool {
	return plan.Compile(q, &match.Env{Type: func(string) (int16, bool) { return 1, true }}).SortsInMemory()
}

// awaitSortIndex waits for the state of an index, "" for none.
func (s *sortServer) awaitSortIndex(t testing.TB, typ, code string, want searchparam.SortIndexState) {
	t.Helper()
	s.await(t, fmt.Sprintf("the index of %s by %s is not %q", typ, code, want), func() bool {
		list, err := s.parameters.SortIndexes(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		state := searchparam.SortIndexState("")
		for _, x := range list {
			if x.ResourceType == typ && x.Parameter == code {
				state = x.State
			}
		}
		return state == want
	})
}

// await waits for a result of the jobs on the index.
func (s *sortServer) await(t testing.TB, what string, done func() bool) {
	t.Helper()
	storetest.Await(t, s.url, what, done, "sort_index", "reindex_job", "search_registry", "index_string")
}

func (s *sortServer) addSortIndex(t testing.TB, typ, code string) searchparam.SortIndex {
	t.Helper()
	x, err := s.parameters.AddSortIndex(context.Background(), typ, code)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// sortedResources makes resources whose tokens, references and uris have every form.
type sortedResources struct {
	r *rand.Rand
	n int // ids
}

func (g *sortedResources) some(of ...string) string { return of[g.r.IntN(len(of))] }

func (g *sortedResources) concept() string {
	var codings []string
	for range g.r.IntN(4) {
		c := map[string]string{}
		if g.r.IntN(5) > 0 {
			c["code"] = g.some("a", "A", "ab", "a-b", "é", "Éa", "z", "x"+strings.Repeat("ü", 126)+g.some("a", "b", "ab"), "10", "9")
		}
		if g.r.IntN(3) > 0 {
			c["system"] = g.some("http://one", "http://two", "urn:x")
		}
		if len(c) == 0 {
			c["display"] = g.some("Apple", "apple  pie", "Zebra")
		}
		b, _ := json.Marshal(c)
		codings = append(codings, string(b))
	}
	text := ""
	if g.r.IntN(2) == 0 {
		text = fmt.Sprintf(`"text":%q`, g.some("Zebra bite", "apple", "Äpfel", "  two   words "))
	}
	switch {
	case len(codings) == 0 && text == "":
		return `{"text":"t"}`
	case len(codings) == 0:
		return "{" + text + "}"
	case text != "":
		text = "," + text
	}
	return `{"coding":[` + strings.Join(codings, ",") + `]` + text + `}`
}

func (g *sortedResources) reference() string {
	return g.some(`{"reference":"Patient/p1"}`, `{"reference":"Patient/p2/_history/1"}`, `{"reference":"http://here.example/fhir/Patient/p3"}`, `{"reference":"http://other.example/Patient/p0"}`,
		`{"reference":"Group/g1"}`, `{"reference":"Group/g0"}`, `{"identifier":{"system":"http://s","value":"V1"}}`, `{"identifier":{"value":"v0"}}`, `{"display":"nobody"}`)
}

func (g *sortedResources) meta() string {
	parts := []string{`"versionId":"1"`}
	if g.r.IntN(2) == 0 {
		parts = append(parts, fmt.Sprintf(`"source":%q`, g.some("urn:a", "urn:b", "http://c/"+strings.Repeat("d", 130)+g.some("1", "2"))))
	}
	if g.r.IntN(2) == 0 {
		parts = append(parts, fmt.Sprintf(`"profile":[%q,%q]`, g.some("http://p/1", "http://p/2|1.0"), "http://p/3"))
	}
	if g.r.IntN(2) == 0 {
		parts = append(parts, fmt.Sprintf(`"tag":[{"system":%q,"code":%q}]`, g.some("s", "t"), g.some("x", "y")))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func (g *sortedResources) resource(id string) string {
	optional := func(name, value string) string {
		if g.r.IntN(4) == 0 {
			return ""
		}
		return fmt.Sprintf(",%q:%s", name, value)
	}
	head := func(typ string) string {
		return fmt.Sprintf(`{"resourceType":%q,"id":%q%s`, typ, id, optional("meta", g.meta()))
	}
	switch g.r.IntN(3) {
	case 0:
		return head("Patient") + optional("active", g.some("true", "false")) + optional("gender", g.some(`"male"`, `"female"`, `"other"`)) +
			optional("birthDate", g.some(`"2000"`, `"1990-01"`, `"2001-02-03"`)) +
			optional("identifier", fmt.Sprintf(`[{"system":%q,"value":%q},{"value":%q}]`, g.some("s1", "s2"), g.some("1", "2", "A"), g.some("0", "b"))) +
			optional("telecom", fmt.Sprintf(`[{"system":%q,"value":%q}]`, g.some("phone", "email"), g.some("1", "2"))) +
			optional("generalPractitioner", `[{"reference":"Practitioner/`+g.some("a", "b")+`"},{"reference":"Organization/`+g.some("a", "b")+`"}]`) + "}"
	case 1:
		return head("Condition") + `,"subject":` + g.reference() + optional("code", g.concept()) + optional("category", "["+g.concept()+","+g.concept()+"]") + "}"
	}
	return head("Observation") + `,"status":"` + g.some("final", "amended") + `","code":` + g.concept() + optional("subject", g.reference()) +
		optional("category", "["+g.concept()+"]") + optional("effectiveDateTime", g.some(`"2020"`, `"2021-01-01"`, `"2021-01-02"`)) +
		optional("valueCodeableConcept", g.concept()) + optional("derivedFrom", `[{"reference":"Observation/`+g.some("o1", "o2")+`"}]`) + "}"
}

// write makes the write of a new resource, or of an old one.
func (g *sortedResources) write(t testing.TB, s *sortServer) *store.Write {
	if g.r.IntN(2) == 0 {
		g.n++
		return s.write(t, g.resource(fmt.Sprintf("r%d", g.n)))
	}
	w := s.write(t, g.resource(fmt.Sprintf("r%d", 1+g.r.IntN(g.n))))
	if g.r.IntN(3) == 0 {
		return remove(w.ResourceType, w.ID)
	}
	return w
}

// indexedOrders are the sort orders that the tests below have indexed for `_sort`.
var indexedOrders = map[string][]string{
	"Patient":     {"active", "gender", "identifier", "telecom", "general-practitioner", "_source", "_profile", "_tag"},
	"Condition":   {"code", "subject", "patient", "category", "_source", "_tag"},
	"Observation": {"code", "status", "subject", "patient", "category", "value-concept", "derived-from", "combo-code", "_source", "_profile", "_tag"},
}

// order is a random `_sort` of types by indexed and other parameters.
func (g *sortedResources) order(types []string) string {
	var keys []string
	for range 1 + g.r.IntN(3) {
		code := g.some(indexedOrders[types[0]]...)
		if slices.ContainsFunc(types, func(typ string) bool { return !slices.Contains(indexedOrders[typ], code) }) {
			code = g.some("_source", "_tag")
		}
		if len(keys) > 0 && g.r.IntN(3) == 0 {
			code = g.some("_id", "_lastUpdated")
		}
		if len(keys) < 2 && len(types) == 1 && g.r.IntN(6) == 0 {
			code = map[string]string{"Patient": "birthdate", "Condition": "onset-date", "Observation": "date"}[types[0]]
		}
		if slices.ContainsFunc(keys, func(k string) bool { return strings.TrimPrefix(k, "-") == code }) {
			continue
		}
		keys = append(keys, g.some("", "-")+code)
	}
	return strings.Join(keys, ",")
}

// TestSortIndexIsTheOrderInMemory pages through random searches, forwards and
// backwards, along the order that the index keeps and along the one that is made in
// memory, while resources are written between the pages: page by page they have the
// same resources, links and totals.
// Spec: https://hl7.org/fhir/R4/search.html#sort.
func TestSortIndexIsTheOrderInMemory(t *testing.T) {
	at := storetest.New(t)
	a, b := startSortServer(t, at), startSortServer(t, at)
	g := &sortedResources{r: rand.New(rand.NewPCG(5, 17))}
	var ws []*store.Write
	for range 400 {
		g.n++
		ws = append(ws, a.write(t, g.resource(fmt.Sprintf("r%d", g.n))))
	}
	if err := a.WriteAll(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	// The indexes come while another server writes.
	var writing sync.WaitGroup
	stop := make(chan struct{})
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := b.Write(context.Background(), g.write(t, b)); err != nil && !strings.Contains(err.Error(), "does not exist") && !strings.Contains(err.Error(), "deleted") {
					t.Errorf("write: %v", err)
				}
			}
		}
	})
	for typ, codes := range indexedOrders {
		for i, code := range codes {
			[]*sortServer{a, b}[i%2].addSortIndex(t, typ, code)
		}
	}
	for typ, codes := range indexedOrders {
		for _, code := range codes {
			a.awaitSortIndex(t, typ, code, searchparam.SortIndexReady)
		}
	}
	close(stop)
	writing.Wait()
	for i := range 150 {
		if i%50 == 0 {
			limit := []int{0, 3, 40}[i/50]
			a.SetSearchLimit(limit)
			b.SetSearchLimit(limit)
		}
		types := [][]string{{"Patient"}, {"Condition"}, {"Observation"}, {"Observation"}, {"Condition", "Observation"}}[g.r.IntN(5)]
		typ, values := types[0], url.Values{"_sort": {g.order(types)}}
		if len(types) > 1 {
			typ, values["_type"] = "", []string{strings.Join(types, ",")}
		}
		if g.r.IntN(3) == 0 && types[0] != "Patient" && len(types) == 1 {
			values.Set(g.some("code", "code:not"), g.some("a", "z"))
		}
		if g.r.IntN(4) == 0 {
			values.Set("_total", g.some("none", "estimate"))
		}
		// The conditions that a policy, or the scopes of a token, would add.
		narrow := func(q *search.Query) *search.Query {
			if i%3 == 0 {
				q.And(match.Clause{Name: "access", Any: []match.Match{match.TermsOf([]fhir.Key{fhir.KeyOf(fhir.SearchToken, "Resource.meta.tag")}, fhir.ValueCode("x"))}, Not: i%2 == 0})
			}
			return q
		}
		size := fmt.Sprint(1 + g.r.IntN(40))
		steps, back := 0, g.r.IntN(3) == 0
		mine, theirs := []string{"_count", size}, []string{"_count", size}
		if g.r.IntN(4) == 0 && !back {
			offset := fmt.Sprint(g.r.IntN(60))
			mine, theirs = append(mine, "_offset", offset), append(theirs, "_offset", offset)
		}
		name := fmt.Sprintf("%s?%s back %v", typ, values.Encode(), back)
		for steps < 12 {
			s := []*sortServer{a, b}[steps%2]
			byIndex, byMemory := narrow(s.parse(t, false, typ, values, mine...)), narrow(s.parse(t, true, typ, values, theirs...))
			if inMemory(byIndex) {
				t.Fatalf("%s is sorted in memory", name)
			}
			got, want := searchtest.FindMatches(t, s.Store, byIndex), searchtest.FindMatches(t, s.Store, byMemory)
			if diff := gocmp.Diff(searchtest.IDs(want), searchtest.IDs(got)); diff != "" {
				t.Fatalf("%s, page %d of %s:\n%s", name, steps, size, diff)
			}
			// Where matches are many no total is known of a page along the index that asks for none.
			if values.Get("_total") == "" && (got.Total == nil || want.Total == nil || *got.Total != *want.Total) {
				t.Fatalf("%s: totals are %v and %v", name, got.Total, want.Total)
			}
			if got.First != want.First || got.Last != want.Last || values.Get("_total") == "" && got.End != want.End {
				t.Fatalf("%s: the links are %q %q %q, in memory %q %q %q", name, got.First, got.Last, got.End, want.First, want.Last, want.End)
			}
			cursor := got.Last
			if back {
				if cursor = got.First; steps == 0 {
					cursor = got.End
				}
			}
			if cursor == "" {
				break
			}
			mine = []string{"_count", size, "_cursor", cursor}
			theirs = slices.Clone(mine)
			steps++
			for range g.r.IntN(3) {
				_ = b.Write(context.Background(), g.write(t, b)) // of one that is not there: nothing
			}
		}
	}
}

// TestSortIndexUntilItIsReady keeps the job from its work: searches sort in memory, and
// writes leave entries already.
func TestSortIndexUntilItIsReady(t *testing.T) {
	at := storetest.New(t)
	a, b := startSortServer(t, at), startSortServer(t, at)
	ctx := context.Background()
	write(t, a.Store, a.write(t, `{"resourceType":"Observation","id":"old","status":"final","code":{"text":"t"}}`))
	older := olderTransaction(t, at)
	x := a.addSortIndex(t, "Observation", "status")
	if x.State != searchparam.SortIndexBuilding || x.Job == "" {
		t.Fatalf("the index is %+v", x)
	}
	if again := b.addSortIndex(t, "Observation", "status"); again.Job != x.Job {
		t.Errorf("asked for again it is %+v, want job %s", again, x.Job)
	}
	// b may write by an index that was made before.
	outdated := b.write(t, `{"resourceType":"Observation","id":"new","status":"amended","code":{"text":"t"}}`)
	write(t, b.Store, outdated)
	order := url.Values{"_sort": {"status"}}
	for _, s := range []*sortServer{a, b} {
		q := s.parse(t, false, "Observation", order)
		if got := searchtest.IDs(searchtest.FindMatches(t, s.Store, q)); !inMemory(q) || !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("before it is ready the order is %v, in memory %v", got, inMemory(q))
		}
	}
	if err := older.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*sortServer{a, b} {
		s.awaitSortIndex(t, "Observation", "status", searchparam.SortIndexReady)
		q := s.parse(t, false, "Observation", order)
		if got := searchtest.IDs(searchtest.FindMatches(t, s.Store, q)); inMemory(q) || !slices.Equal(got, []string{"new", "old"}) {
			t.Errorf("the order is %v, in memory %v", got, inMemory(q))
		}
	}
	if n := sortEntries(t, at); n != 2 {
		t.Errorf("%d entries, want one for each resource", n)
	}

	// Taken back it is not used any more, and its entries go when no search reads them.
	if x, err := b.parameters.RemoveSortIndex(ctx, "Observation", "status"); err != nil || x.State != searchparam.SortIndexRemoving {
		t.Fatalf("removed it is %+v, %v", x, err)
	}
	if q := b.parse(t, false, "Observation", order); !inMemory(q) {
		t.Error("the server that has removed it still uses it")
	}
	a.awaitSortIndex(t, "Observation", "status", "")
	a.await(t, "the entries stay", func() bool { return sortEntries(t, at) == 0 })
	if _, err := b.parameters.RemoveSortIndex(ctx, "Observation", "status"); err == nil {
		t.Error("it can be removed twice")
	}
	write(t, a.Store, a.write(t, `{"resourceType":"Observation","id":"last","status":"preliminary","code":{"text":"t"}}`))
	if got := searchtest.IDs(searchtest.FindMatches(t, a.Store, a.parse(t, false, "Observation", order))); !slices.Equal(got, []string{"new", "old", "last"}) || sortEntries(t, at) != 0 {
		t.Errorf("without it the order is %v, with %d entries", got, sortEntries(t, at))
	}
}

// sortEntries counts the rows of index_string that are part of no parameter of type string.
func sortEntries(t testing.TB, at string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), "SELECT count(*) FROM index_string WHERE word IS NULL").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSortIndexCancelled: the remains of a cancelled job are not used, and a second request
// completes them.
func TestSortIndexCancelled(t *testing.T) {
	at := storetest.New(t)
	a := startSortServer(t, at)
	ctx := context.Background()
	write(t, a.Store, a.write(t, `{"resourceType":"Patient","id":"p","gender":"male"}`))
	older := olderTransaction(t, at)
	x := a.addSortIndex(t, "Patient", "gender")
	if ok, err := a.CancelReindexJob(ctx, x.Job); !ok || err != nil {
		t.Fatalf("cancelled %v, %v", ok, err)
	}
	a.awaitSortIndex(t, "Patient", "gender", searchparam.SortIndexIncomplete)
	if err := older.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// Another job ends, and forgets those that had nothing to do.
	if err := a.AddReindexJob(ctx, store.ReindexJob{ID: "a", ResourceType: "Group", ParametersVersion: 1, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	a.parameters.Wake()
	a.await(t, "the other job stays", func() bool {
		jobs, err := a.ReindexJobs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(jobs, func(j store.ReindexJob) bool { return j.ID == "a" })
	})
	a.awaitSortIndex(t, "Patient", "gender", searchparam.SortIndexIncomplete)
	if q := a.parse(t, false, "Patient", url.Values{"_sort": {"gender"}}); !inMemory(q) {
		t.Error("an index that is not complete is used")
	}
	if again := a.addSortIndex(t, "Patient", "gender"); again.Job == "" || again.Job == x.Job {
		t.Errorf("asked for again it is %+v", again)
	}
	a.awaitSortIndex(t, "Patient", "gender", searchparam.SortIndexReady)
	if n := sortEntries(t, at); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// TestSortIndexFollowsItsParameter changes the SearchParameter whose order is indexed.
func TestSortIndexFollowsItsParameter(t *testing.T) {
	at := storetest.New(t)
	a, b := startSortServer(t, at), startSortServer(t, at)
	ctx := context.Background()
	parameter := func(expression string) *store.Write {
		return a.write(t, fmt.Sprintf(`{"resourceType":"SearchParameter","id":"k","url":"http://x/k","name":"k","status":"active","description":"d","code":"kind","base":["Patient"],"type":"token","expression":%q}`, expression))
	}
	write(t, a.Store, a.write(t, `{"resourceType":"Patient","id":"one","gender":"male","maritalStatus":{"coding":[{"code":"A"}]}}`))
	write(t, a.Store, a.write(t, `{"resourceType":"Patient","id":"two","gender":"female","maritalStatus":{"coding":[{"code":"B"}]}}`))
	write(t, a.Store, parameter("Patient.maritalStatus"))
	a.addSortIndex(t, "Patient", "kind")
	order := url.Values{"_sort": {"kind"}}
	want := func(byIndex bool, want ...string) {
		t.Helper()
		for _, s := range []*sortServer{a, b} {
			q := s.parse(t, false, "Patient", order)
			if got := searchtest.IDs(searchtest.FindMatches(t, s.Store, q)); !slices.Equal(got, want) || byIndex && inMemory(q) {
				t.Errorf("the order is %v, in memory %v; want %v", got, inMemory(q), want)
			}
		}
	}
	ready := func() {
		t.Helper()
		a.awaitSortIndex(t, "Patient", "kind", searchparam.SortIndexReady)
		b.awaitSortIndex(t, "Patient", "kind", searchparam.SortIndexReady)
	}
	ready()
	want(true, "one", "two")
	write(t, a.Store, parameter("Patient.gender"))
	want(false, "two", "one")
	ready()
	want(true, "two", "one")
	if n := sortEntries(t, at); n != 2 {
		t.Errorf("%d entries, want those of the new definition alone", n)
	}
	write(t, a.Store, remove("SearchParameter", "k"))
	a.awaitSortIndex(t, "Patient", "kind", searchparam.SortIndexUnused)
	a.parameters.Wake()
	a.await(t, "the entries of the parameter stay", func() bool { return sortEntries(t, at) == 0 })
	write(t, b.Store, parameter("Patient.maritalStatus"))
	ready()
	want(true, "one", "two")
	if _, err := a.parameters.AddSortIndex(ctx, "Patient", "birthdate"); err == nil || !strings.Contains(err.Error(), "needs no index") {
		t.Errorf("a date: %v", err)
	}
}
