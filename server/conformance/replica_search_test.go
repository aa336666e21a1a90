package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// Contract, "replicas": random searches on a standby while the primary takes single writes and transactions. Replay is
// stopped at any point, and in the middle of a transaction: its rows are on the standby, its commit is not. Totals, pages
// by their links, ranges, chains, _has and sorts equal an evaluation in memory of the versions that SQL shows on the
// standby. A server asks the standby, and so does a Store whose searches may have three candidates, so that it counts and
// walks. Another search asks all the time, also during replay, for resources that are always written together.
//
// KILN_TEST_CONCURRENT is the duration, such as "10m"; the default is four stops.
func TestSearchesOnAReplica(t *testing.T) {
	t.Parallel()
	var length time.Duration
	if text := os.Getenv("KILN_TEST_CONCURRENT"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s, primary, standby := replicated(t, func(c *server.Config) { c.Database.ReadMaxLagSeconds = 3600 })
	x := &replicaSearch{s: s, primary: primary, standby: standby, versions: make(map[string]any)}
	primary.Exec("kiln", holdTransactions)
	x.load(t)
	standby.Follows(primary)
	var err error
	if x.direct, err = store.Open(t.Context(), store.Config{URL: standby.URL(), SearchCandidates: 3}); err != nil {
		t.Fatal(err)
	}
	defer x.direct.Close()
	x.direct.IndexBy(searchtest.Indexer{})

	stop := make(chan struct{})
	var others sync.WaitGroup
	for i, run := range []func(*testing.T, *rand.Rand){x.writeSingle, x.writeTogether, x.findTogether} {
		r := rand.New(rand.NewPCG(5, uint64(i)))
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					run(t, r)
				}
			}
		})
	}
	end := sync.OnceFunc(func() { close(stop); others.Wait() })
	defer end()
	began := time.Now()
	for round := uint64(0); !t.Failed() && (round < 4 || time.Since(began) < length); round++ {
		x.round(t, round)
	}
	end()
	t.Logf("%d searches on %d pages, of them %d by the primary; %d single writes, %d transactions; %d searches of the standby for what is written together, with %d matches; kinds %v",
		x.searches, x.pages, x.elsewhere, x.single.Load(), x.together.Load(), x.found.Load(), x.foundTogether.Load(), x.kinds)
	if x.elsewhere > x.searches/4 {
		t.Errorf("the primary has answered %d of %d searches", x.elsewhere, x.searches)
	}
	if x.foundTogether.Load() == 0 {
		t.Error("the standby has found nothing that is written together")
	}
}

// holdTransactions lets a transaction of several changes wait, after its rows and before its commit, while somebody has the
// advisory lock.
const holdTransactions = `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4242); RETURN NULL; END $$;
CREATE TRIGGER hold AFTER INSERT ON change FOR EACH ROW WHEN (cardinality(NEW.rids) > 1) EXECUTE FUNCTION hold()`

type replicaSearch struct {
	s                *service
	primary, standby *storetest.Instance
	direct           *store.Store // on the standby
	position         string       // an early one, so that the standby may answer while its replay is stopped

	mu       sync.Mutex
	versions map[string]any // Type/id/_history/n to the Patient or Observation

	single, together, serial   atomic.Int64 // writes
	found, foundTogether       atomic.Int64 // searches of the standby by findTogether, and their matches
	searches, pages, elsewhere int
	kinds                      map[string]int
}

// writtenVersion is the content of a PUT; nil is a DELETE.
type writtenVersion struct {
	typ, id string
	content any
	serial  int64 // of the transaction, where that is to be found
}

func (v *writtenVersion) json() searchtest.Object {
	var o searchtest.Object
	switch c := v.content.(type) {
	case searchtest.Patient:
		c.ID = v.id
		v.content, o = c, c.JSON()
	case searchtest.Observation:
		c.ID = v.id
		if o = c.JSON(); o["component"] != nil { // obs-7: it has no value beside a component of the same code
			c.Value = ""
			o = c.JSON()
		}
		v.content = c
	case searchtest.Object:
		o = c
	}
	if v.serial > 0 {
		o["identifier"] = []any{searchtest.Object{"value": fmt.Sprint(v.serial)}}
	}
	return o
}

// note keeps the content of a version, named by its Location.
func (x *replicaSearch) note(v *writtenVersion, location string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.versions[location[strings.LastIndex(location, v.typ+"/"):]] = v.content
}

// transaction writes resources in one transaction.
func (x *replicaSearch) transaction(t *testing.T, all []writtenVersion) {
	var entries []any
	for i := range all {
		at := all[i].typ + "/" + all[i].id
		if all[i].content == nil {
			entries = append(entries, searchtest.Object{"request": searchtest.Object{"method": "DELETE", "url": at}})
			continue
		}
		entries = append(entries, searchtest.Object{"resource": all[i].json(), "request": searchtest.Object{"method": "PUT", "url": at}})
	}
	body, err := json.Marshal(searchtest.Object{"resourceType": "Bundle", "type": "transaction", "entry": entries})
	if err != nil {
		t.Error(err)
		return
	}
	a, err := x.s.try("POST", "/", string(body))
	if err != nil {
		t.Errorf("a transaction: %v", err)
		return
	}
	if a.status != 200 {
		t.Errorf("a transaction: %d %s", a.status, clip(a.body))
		return
	}
	for i := range all {
		if all[i].content != nil {
			x.note(&all[i], a.str(fmt.Sprintf("entry.%d.response.location", i)))
		}
	}
}

// load writes a corpus.
func (x *replicaSearch) load(t *testing.T) {
	x.kinds = make(map[string]int)
	c := searchtest.NewCorpus(8, 20, 240)
	var all []writtenVersion
	for _, o := range searchtest.Organizations() {
		all = append(all, writtenVersion{typ: "Organization", id: o["id"].(string), content: o})
	}
	for i, p := range c.Patients {
		all = append(all, writtenVersion{typ: "Patient", id: fmt.Sprint("p", i), content: p})
	}
	for i, o := range c.Observations {
		all = append(all, writtenVersion{typ: "Observation", id: fmt.Sprint("o", i), content: o})
	}
	for part := range slices.Chunk(all, 100) {
		x.transaction(t, part)
	}
	x.position = x.s.in(t).get("/Patient/p0").want(200).header.Get("X-Kiln-Position")
}

// writeSingle creates, updates or deletes a resource that no transaction writes.
func (x *replicaSearch) writeSingle(t *testing.T, r *rand.Rand) {
	c := searchtest.NewCorpus(r.Uint64(), 20, 1)
	v := writtenVersion{typ: "Observation", id: fmt.Sprint("o", r.IntN(240)), content: c.Observations[0]}
	switch r.IntN(8) {
	case 0:
		v.content = nil
	case 1, 2:
		v.id = fmt.Sprint("n", r.IntN(200))
	case 3:
		v.typ, v.id, v.content = "Patient", fmt.Sprint("p", r.IntN(20)), c.Patients[0]
	case 4:
		v.typ, v.id, v.content = "Patient", fmt.Sprint("p", r.IntN(20)), nil
	}
	at, method, body := "/"+v.typ+"/"+v.id, "DELETE", ""
	if v.content != nil {
		raw, err := json.Marshal(v.json())
		if err != nil {
			t.Error(err)
			return
		}
		method, body = "PUT", string(raw)
	}
	a, err := x.s.try(method, at, body)
	if err != nil {
		t.Errorf("%s %s: %v", method, at, err)
		return
	}
	if a.status >= 300 {
		t.Errorf("%s %s: %d %s", method, at, a.status, clip(a.body))
		return
	}
	if v.content != nil {
		x.note(&v, v.typ+"/"+v.id+"/_history/"+a.str("meta.versionId"))
	}
	x.single.Add(1)
}

const pairsOfReplica = 8

// writeTogether writes or deletes a Patient and two of its Observations, and other Observations, in one transaction.
func (x *replicaSearch) writeTogether(t *testing.T, r *rand.Rand) {
	c := searchtest.NewCorpus(r.Uint64(), 20, 12)
	k, serial := r.IntN(pairsOfReplica), x.serial.Add(1)
	all := []writtenVersion{{typ: "Patient", id: fmt.Sprint("q", k)}, {typ: "Observation", id: fmt.Sprint("a", k)}, {typ: "Observation", id: fmt.Sprint("b", k)}}
	if r.IntN(4) > 0 {
		all[0].content, all[0].serial = c.Patients[0], serial
		for i := range 2 {
			c.Observations[i].Subject = fmt.Sprint("Patient/q", k)
			all[1+i].content, all[1+i].serial = c.Observations[i], serial
		}
	}
	for i, o := range c.Observations[2 : 2+r.IntN(10)] {
		v := writtenVersion{typ: "Observation", id: fmt.Sprint("c", 12*r.IntN(10)+i), content: o}
		if r.IntN(4) == 0 {
			v.content = nil
		}
		all = append(all, v)
	}
	x.transaction(t, all)
	x.together.Add(1)
}

// findTogether searches for what writeTogether writes: all of a transaction is there, or nothing.
func (x *replicaSearch) findTogether(t *testing.T, _ *rand.Rand) {
	var ids []string
	for k := range pairsOfReplica {
		ids = append(ids, fmt.Sprint("a", k), fmt.Sprint("b", k))
	}
	a, err := x.s.try("GET", "/Observation?_count=100&_include=Observation:subject&_id="+strings.Join(ids, ","), "", "X-Kiln-Position", x.position)
	if err != nil {
		t.Errorf("a search for resources that are written together: %v", err)
		return
	}
	if a.status != 200 {
		t.Errorf("a search for resources that are written together: %d %s", a.status, clip(a.body))
		return
	}
	serials := make(map[string]string)
	for i := range a.len("entry") {
		at := fmt.Sprintf("entry.%d.resource.", i)
		serials[a.str(at+"id")] = a.str(at + "identifier.0.value")
	}
	matches := 0
	for k := range pairsOfReplica {
		one, two, of := serials[fmt.Sprint("a", k)], serials[fmt.Sprint("b", k)], serials[fmt.Sprint("q", k)]
		if one != two || one != of {
			t.Errorf("a part of a transaction (%s): a%d of %q, b%d of %q, q%d of %q", a.header.Get("X-Kiln-Source"), k, one, k, two, k, of)
		}
		if one != "" {
			matches += 2
		}
	}
	if a.str("total") != fmt.Sprint(matches) {
		t.Errorf("total %s with %d matches", a.str("total"), matches)
	}
	if a.header.Get("X-Kiln-Source") == "replica-1" {
		x.found.Add(1)
		x.foundTogether.Add(int64(matches))
	}
}

// round stops the replay, compares, and resumes it. In every second round a transaction is under way on the standby.
func (x *replicaSearch) round(t *testing.T, round uint64) {
	held := round%2 == 0
	release, under := func() {}, ""
	if held {
		release, under = x.holdTransaction(t)
		defer release()
		x.standby.Follows(x.primary)
	} else if !x.awaitSingleWrites(t, time.Minute) {
		t.Fatal("no single writes")
	}
	x.standby.Exec("kiln", "SELECT pg_wal_replay_pause()")
	defer x.standby.Exec("kiln", "SELECT pg_wal_replay_resume()")
	x.standby.Await("SELECT pg_get_wal_replay_pause_state() = 'paused'")
	if held {
		if got := x.standby.Query("SELECT pg_xact_status('" + under + "') || ' ' || (pg_snapshot_xmax(pg_current_snapshot()) > '" + under + "')"); got != "in progress true" {
			t.Errorf("the transaction on the standby: %s", got)
		}
	}
	state := x.readState(t)
	x.compare(t, state, 2*round)
	if held { // it is committed, but not on the standby
		committed := x.together.Load()
		release()
		eventually(t, "the transaction", func() bool { return t.Failed() || x.together.Load() > committed })
	}
	x.compare(t, state, 2*round+1)
}

// awaitSingleWrites reports whether five more single writes end within a time.
func (x *replicaSearch) awaitSingleWrites(t *testing.T, within time.Duration) bool {
	for after, deadline := x.single.Load()+5, time.Now().Add(within); x.single.Load() <= after; <-time.After(10 * time.Millisecond) {
		if t.Failed() || time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// holdTransaction holds a transaction before its commit until release, and returns its number. Later single writes are
// committed. One that shares the commit of the transaction would be held as well: then it holds another transaction.
func (x *replicaSearch) holdTransaction(t *testing.T) (release func(), under string) {
	const waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory' AND backend_xid IS NOT NULL"
	for range 5 {
		conn, err := pgx.Connect(t.Context(), x.primary.URL())
		if err != nil {
			t.Fatal(err)
		}
		release = func() { conn.Close(context.Background()) }
		if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(4242)"); err != nil {
			t.Fatal(err)
		}
		x.primary.Await("SELECT EXISTS (SELECT " + waiting + ")")
		under = x.primary.Query("SELECT min(backend_xid::text::bigint) " + waiting)
		if x.awaitSingleWrites(t, 5*time.Second) {
			return release, under
		}
		release()
		if !x.awaitSingleWrites(t, time.Minute) {
			break
		}
	}
	t.Fatal("no single writes beside a transaction that is held")
	return nil, ""
}

// replicaState is what SQL shows on a standby.
type replicaState struct {
	corpus  searchtest.Corpus
	rid     map[string]int64
	updated map[string]time.Time
}

// readState reads the versions that the standby has.
func (x *replicaSearch) readState(t *testing.T) *replicaState {
	conn, err := pgx.Connect(t.Context(), x.standby.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), "SELECT t.name, r.id, r.version, r.rid, r.last_updated FROM resource r JOIN resource_type t USING (typ) WHERE t.name IN ('Patient', 'Observation')")
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Type, ID string
		Version  int
		RID      int64
		Updated  time.Time
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	st := &replicaState{rid: make(map[string]int64), updated: make(map[string]time.Time)}
	for _, v := range all {
		var content any
		eventually(t, "the answer to the write of "+v.Type+"/"+v.ID, func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			content = x.versions[fmt.Sprintf("%s/%s/_history/%d", v.Type, v.ID, v.Version)]
			return content != nil || t.Failed()
		})
		switch c := content.(type) {
		case searchtest.Patient:
			st.corpus.Patients = append(st.corpus.Patients, c)
		case searchtest.Observation:
			st.corpus.Observations = append(st.corpus.Observations, c)
		}
		st.rid[v.ID], st.updated[v.ID] = v.RID, v.Updated
	}
	return st
}

// compare runs random searches in a state.
func (x *replicaSearch) compare(t *testing.T, st *replicaState, seed uint64) {
	for _, sc := range st.corpus.RandomCases(100+seed, 20) {
		near := false // of the present, which is another one for the server
		for name, values := range sc.Values {
			near = near || strings.Contains(name, "date") && slices.ContainsFunc(values, func(v string) bool { return strings.HasPrefix(v, "ap") })
		}
		if near || t.Failed() {
			continue
		}
		want, ordered := st.order(&sc)
		direct := searchtest.FindMatches(t, x.direct, sc.ParseQuery(t, "_count", "10000"))
		equalMatches(t, &sc, "counted and walked", want, ordered, searchtest.IDs(direct), []int{*direct.Total})
		got, totals, replica := x.follow(t, &sc, max(1, len(want)/3))
		x.searches++
		if !replica {
			x.elsewhere++
			continue
		}
		equalMatches(t, &sc, "by the server", want, ordered, got, totals)
		x.countKinds(&sc)
	}
}

func (x *replicaSearch) countKinds(sc *searchtest.Case) {
	text := strings.Join(slices.Sorted(maps.Keys(sc.Values)), " ")
	for kind, mark := range map[string]string{"chain": ".", "_has": "_has", "date": "date", "quantity": "quantity", "sort": "_sort"} {
		if strings.Contains(text, mark) {
			x.kinds[kind]++
		}
	}
}

// follow searches and goes through all pages. replica is false where the primary has answered one.
func (x *replicaSearch) follow(t *testing.T, sc *searchtest.Case, size int) (ids []string, totals []int, replica bool) {
	at := "/" + sc.Type + "?" + sc.Values.Encode() + "&_count=" + strconv.Itoa(size)
	for at != "" {
		a := x.s.in(t).get(at, "X-Kiln-Position", x.position).want(200)
		if a.header.Get("X-Kiln-Source") != "replica-1" {
			return nil, nil, false
		}
		total, err := strconv.Atoi(a.str("total"))
		if err != nil {
			t.Fatal(err)
		}
		ids, totals = append(ids, a.ids()...), append(totals, total)
		x.pages++
		if at = a.link("next"); at == "" {
			break
		}
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		at = "/" + sc.Type + "?" + u.RawQuery
	}
	return ids, totals, true
}

// equalMatches compares the ids and each total; want is in the order of the answer where ordered is true.
func equalMatches(t *testing.T, sc *searchtest.Case, how string, want []string, ordered bool, got []string, totals []int) {
	t.Helper()
	for _, n := range totals {
		if n != len(want) {
			t.Errorf("%s, %s: total %d, want %d", sc, how, n, len(want))
		}
	}
	if !ordered {
		got = slices.Sorted(slices.Values(got))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s, %s:\n%s", sc, how, diff)
	}
}

// order is the matches in the order of the search. ordered is false where it sorts by names, whose order is not made here.
func (st *replicaState) order(sc *searchtest.Case) (want []string, ordered bool) {
	by := sc.Values.Get("_sort")
	if strings.Contains(by, "family") || strings.Contains(by, "name") || strings.Contains(by, "organization") {
		return sc.Want, false
	}
	values := make(map[string]func(code string) []string)
	for i := range st.corpus.Patients {
		values[st.corpus.Patients[i].ID] = func(code string) []string { return sortsPatient(&st.corpus.Patients[i], code) }
	}
	for i := range st.corpus.Observations {
		values[st.corpus.Observations[i].ID] = func(code string) []string { return sortsObservation(&st.corpus.Observations[i], code) }
	}
	key := func(id, code string) []string {
		switch code {
		case "_id":
			return []string{id}
		case "_lastUpdated":
			return []string{fmt.Sprintf("%020d", st.updated[id].UnixMicro())}
		}
		return values[id](code)
	}
	want = slices.Clone(sc.Want)
	slices.SortFunc(want, func(a, b string) int {
		for code := range strings.SplitSeq(by, ",") {
			if code == "" {
				continue
			}
			code, descending := strings.CutPrefix(code, "-")
			if n := compareSorted(key(a, code), key(b, code), descending); n != 0 {
				return n
			}
		}
		return cmp.Compare(st.rid[a], st.rid[b])
	})
	return want, true
}

// compareSorted compares by the value of each that comes first; a resource without comes last.
func compareSorted(a, b []string, descending bool) int {
	if len(a) == 0 || len(b) == 0 {
		return cmp.Compare(len(b), len(a))
	}
	if descending {
		return strings.Compare(slices.Max(b), slices.Max(a))
	}
	return strings.Compare(slices.Min(a), slices.Min(b))
}

func sortsPatient(p *searchtest.Patient, code string) []string {
	switch {
	case code == "gender" && p.Gender != "":
		return []string{p.Gender}
	case code == "birthdate" && p.Birth != "":
		low, _ := searchtest.Span(p.Birth)
		return []string{fmt.Sprintf("%020d", low+1e17)}
	}
	return nil
}

func sortsObservation(o *searchtest.Observation, code string) (out []string) {
	switch code {
	case "status":
		return []string{o.Status}
	case "code":
		for _, c := range o.Code {
			out = append(out, strings.ToLower(c.Code)+" "+c.System)
		}
	case "category":
		return o.Categories
	case "subject", "patient":
		if o.Subject != "" && (code == "subject" || strings.HasPrefix(o.Subject, "Patient/")) {
			return []string{o.Subject}
		}
	case "value-quantity":
		if v, err := strconv.ParseFloat(o.Value, 64); err == nil {
			return []string{fmt.Sprintf("%030.9f", v+1e9)}
		}
	case "date":
		if low, _, ok := o.Date(); ok {
			return []string{fmt.Sprintf("%020d", low)}
		}
	}
	return out
}
