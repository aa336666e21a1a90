package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/store/storetest"
)

// Contract, Design 4 ("Writes are read back by the next search"): two servers in processes of their own write (create,
// update, both patches, delete, transactions) and search. Meanwhile one is ended by kill -9, connections are lost, everything
// is reindexed, and a SearchParameter is added. Each answer's total and page equal those of the stored versions in one
// snapshot of PostgreSQL between the request and its answer.
//
// KILN_TEST_CONCURRENT is the duration, such as "10m"; the default is two seconds.
func TestSearchesWhileServersAreKilled(t *testing.T) {
	length := 2 * time.Second
	if text := os.Getenv("KILN_TEST_CONCURRENT"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := uint64(0); length > 0; round++ {
		part := min(length, 20*time.Second) // the log of a round is evaluated as a whole
		length -= part
		if !t.Run(fmt.Sprint("round ", round), func(t *testing.T) { searchWhileKilling(t, round, part) }) {
			return
		}
	}
}

// reading is an Observation of the test.
type reading struct {
	code, status, day, value, subject int
}

const readingIDs = 160

var readingStatuses = []string{"final", "amended", "preliminary"}

func (o *reading) json(id string) string {
	return fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":%q,"code":{"coding":[{"system":"http://c","code":"c%d"}]},`+
		`"subject":{"reference":"Patient/p%d"},"effectiveDateTime":"2020-01-%02d","valueQuantity":{"value":%d,"system":"http://unitsofmeasure.org","code":"mg"}}`,
		id, readingStatuses[o.status], o.code, o.subject, o.day+1, o.value)
}

func randomReading(r *rand.Rand) *reading {
	return &reading{r.IntN(5), r.IntN(len(readingStatuses)), r.IntN(28), r.IntN(50), r.IntN(8)}
}

// readingQuery is a search with its meaning.
type readingQuery struct {
	text   string
	holds  []func(*reading) bool
	sorted bool // by date, the last first
	custom bool // uses the SearchParameter that comes later
}

func randomQuery(r *rand.Rand) *readingQuery {
	q := &readingQuery{}
	add := func(text string, holds func(*reading) bool) {
		q.text += "&" + text
		q.holds = append(q.holds, holds)
	}
	for range 1 + r.IntN(2) {
		n := r.IntN(50)
		switch r.IntN(7) {
		case 0:
			add(fmt.Sprintf("code=http://c|c%d", n%5), func(o *reading) bool { return o.code == n%5 })
		case 1:
			add("status="+readingStatuses[n%3], func(o *reading) bool { return o.status == n%3 })
		case 2:
			add(fmt.Sprintf("date=ge2020-01-%02d", n%28+1), func(o *reading) bool { return o.day >= n%28 })
		case 3:
			add(fmt.Sprintf("date=lt2020-01-%02d", n%28+1), func(o *reading) bool { return o.day < n%28 })
		case 4:
			add(fmt.Sprintf("value-quantity=gt%d||mg", n), func(o *reading) bool { return o.value > n })
		case 5:
			add(fmt.Sprintf("subject=Patient/p%d", n%8), func(o *reading) bool { return o.subject == n%8 })
		case 6:
			q.custom = true
			add(fmt.Sprintf("reading=lt%d", n), func(o *reading) bool { return o.value < n })
		}
	}
	if q.sorted = r.IntN(5) == 0; q.sorted {
		q.text += "&_sort=-date"
	}
	return q
}

const readingParameter = `{"resourceType":"SearchParameter","id":"reading","url":"http://example.org/reading","name":"Reading","status":"active",
	"description":"the value alone","code":"reading","base":["Observation"],"type":"number","expression":"(Observation.value as Quantity).value"}`

// liveAnswer is the answer to a search.
type liveAnswer struct {
	query         *readingQuery
	count, total  int
	ids           []string
	before, after visible
}

// visible is a snapshot of PostgreSQL.
type visible struct {
	xmax    int64
	running []int64
}

func (v *visible) take(ctx context.Context, conn *pgx.Conn) error {
	return conn.QueryRow(ctx, `SELECT pg_snapshot_xmax(s)::text::bigint, ARRAY(SELECT pg_snapshot_xip(s)::text::bigint) FROM pg_current_snapshot() s`).Scan(&v.xmax, &v.running)
}

func (v *visible) xmin() int64 { return slices.Min(append([]int64{v.xmax}, v.running...)) }

func (v *visible) sees(xid int64) bool { return xid < v.xmax && !slices.Contains(v.running, xid) }

func searchWhileKilling(t *testing.T, seed uint64, length time.Duration) {
	ctx := t.Context()
	url := storetest.New(t)
	const servers = 2
	var alive [servers]atomic.Pointer[service]
	var process [servers]*exec.Cmd
	run := func(i int) {
		s, cmd := spawn(t, url)
		process[i] = cmd
		alive[i].Store(s)
	}
	for i := range servers {
		run(i)
	}
	base := rand.New(rand.NewPCG(seed, 1))
	var entries []string
	for i := range readingIDs {
		id := fmt.Sprint("o", i)
		entries = append(entries, entry("PUT", "Observation/"+id, "", randomReading(base).json(id)))
	}
	alive[0].Load().post("/", bundle("transaction", entries...)).want(200)
	pool := make([]*readingQuery, 50)
	for i := range pool {
		pool[i] = randomQuery(base)
	}

	stop := make(chan struct{})
	var working sync.WaitGroup
	var serial atomic.Int64
	for w := range 4 {
		working.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(10+w)))
			id := func() string { return fmt.Sprint("o", r.IntN(readingIDs)) }
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond):
				}
				s := alive[w%servers].Load()
				// A write without an answer was done or not: the history tells.
				switch at := id(); r.IntN(6) {
				case 0:
					at = fmt.Sprint("n", serial.Add(1))
					_, _ = s.try("PUT", "/Observation/"+at, randomReading(r).json(at))
				case 1:
					_, _ = s.try("DELETE", "/Observation/"+at, "")
				case 2:
					_, _ = s.try("PATCH", "/Observation/"+at, fmt.Sprintf(`[{"op":"replace","path":"/valueQuantity/value","value":%d}]`, r.IntN(50)), "Content-Type", "application/json-patch+json")
				case 3:
					_, _ = s.try("PATCH", "/Observation/"+at, fmt.Sprintf(`{"resourceType":"Parameters","parameter":[{"name":"operation","part":[{"name":"type","valueCode":"replace"},{"name":"path","valueString":"Observation.status"},{"name":"value","valueCode":%q}]}]}`,
						readingStatuses[r.IntN(3)]))
				case 4:
					some := []string{id(), id(), id()}
					slices.Sort(some)
					some = slices.Compact(some)
					for i, at := range some {
						some[i] = entry("PUT", "Observation/"+at, "", randomReading(r).json(at))
					}
					_, _ = s.try("POST", "/", bundle("transaction", some...))
				default:
					_, _ = s.try("PUT", "/Observation/"+at, randomReading(r).json(at))
				}
			}
		})
	}
	var mu sync.Mutex
	var answers []liveAnswer
	custom := 0
	for i := range 6 {
		conn, err := pgx.Connect(ctx, url+"&application_name=searcher")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		working.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				a := liveAnswer{query: pool[r.IntN(len(pool))], count: r.IntN(12)}
				if err := a.before.take(ctx, conn); err != nil {
					t.Error(err)
					return
				}
				b, err := alive[i%servers].Load().try("GET", fmt.Sprintf("/Observation?_count=%d%s", a.count, a.query.text), "", "Prefer", "handling=strict")
				if err != nil || b.status != 200 {
					continue // killed, without connections, or the parameter is not there yet
				}
				if err := a.after.take(ctx, conn); err != nil {
					t.Error(err)
					return
				}
				if a.total, err = strconv.Atoi(b.str("total")); err != nil {
					t.Errorf("%s: %s", a.query.text, b.body)
					return
				}
				list, _ := b.at("entry").([]any)
				told := false // that not everything is indexed yet
				for j := range list {
					a.ids = append(a.ids, b.str(fmt.Sprintf("entry.%d.resource.id", j)))
					told = told || b.str(fmt.Sprintf("entry.%d.search.mode", j)) == "outcome"
				}
				if told {
					if !a.query.custom {
						t.Errorf("%s: %s", a.query.text, b.body)
					}
					continue
				}
				mu.Lock()
				answers = append(answers, a)
				if a.query.custom {
					custom++
				}
				mu.Unlock()
			}
		})
	}
	admin, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	part := length / 6
	for _, disturb := range []func(){
		func() { alive[0].Load().put("/SearchParameter/reading", readingParameter).want(201) },
		func() {
			_ = process[0].Process.Kill()
			_ = process[0].Wait()
			run(0)
		},
		func() { alive[1].Load().post("/$reindex", "").want(202) },
		func() {
			if _, err := admin.Exec(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'searcher'"); err != nil {
				t.Error(err)
			}
		},
		func() {
			_ = process[1].Process.Kill()
			_ = process[1].Wait()
			run(1)
		},
	} {
		time.Sleep(part) // of undisturbed work
		disturb()
	}
	time.Sleep(part)
	close(stop)
	working.Wait()
	judge(t, admin, alive[0].Load(), answers)
	t.Logf("%d answers, %d with the new parameter", len(answers), custom)
}

// judge compares each answer with the snapshots that it may be of.
func judge(t *testing.T, conn *pgx.Conn, s *service, answers []liveAnswer) {
	type version struct {
		id string
		n  int
	}
	stored := make(map[version]*reading) // nil is a deletion
	for page := "/Observation/_history?_count=1000"; page != ""; {
		a := s.get(page).want(200)
		var b struct {
			Link  []struct{ Relation, URL string }
			Entry []struct {
				FullURL  string `json:"fullUrl"`
				Resource *struct {
					Meta              struct{ VersionID string }
					Status            string
					Code              struct{ Coding []struct{ Code string } }
					Subject           struct{ Reference string }
					EffectiveDateTime string
					ValueQuantity     struct{ Value int }
				}
				Response struct{ Etag string }
			}
		}
		if err := json.Unmarshal(a.body, &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Entry {
			n, err := strconv.Atoi(strings.Trim(e.Response.Etag, `W/"`))
			if err != nil {
				t.Fatalf("%+v", e)
			}
			v := version{e.FullURL[strings.LastIndex(e.FullURL, "/")+1:], n}
			stored[v] = nil
			if r := e.Resource; r != nil {
				day, _ := strconv.Atoi(r.EffectiveDateTime[8:])
				stored[v] = &reading{int(r.Code.Coding[0].Code[1] - '0'), slices.Index(readingStatuses, r.Status), day - 1, r.ValueQuantity.Value, int(r.Subject.Reference[9] - '0')}
			}
		}
		page = ""
		for _, l := range b.Link {
			if l.Relation == "next" {
				page = strings.TrimPrefix(l.URL, s.base)
			}
		}
	}
	ids := make(map[int64]string)
	for v := range stored {
		ids[int64(fhir.ValueReference("Observation", v.id))] = v.id
	}
	type change struct {
		xid, rid, ref int64
		n             int
	}
	rows, err := conn.Query(context.Background(), `SELECT c.xid::text::bigint, u.rid, u.ref, u.version FROM change c
		CROSS JOIN LATERAL unnest(c.rids, c.refs, c.versions) AS u(rid, ref, version) ORDER BY c.xid, u.version`)
	if err != nil {
		t.Fatal(err)
	}
	log, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c change, err error) {
		return c, r.Scan(&c.xid, &c.rid, &c.ref, &c.n)
	})
	if err != nil {
		t.Fatal(err)
	}
	log = slices.DeleteFunc(log, func(c change) bool { return ids[c.ref] == "" })
	evaluate := func(a *liveAnswer, state map[int64]change) (total int, page []string) {
		type match struct {
			rid int64
			day int
			id  string
		}
		var all []match
		for ref, c := range state {
			o := stored[version{ids[ref], c.n}]
			if o != nil && !slices.ContainsFunc(a.query.holds, func(holds func(*reading) bool) bool { return !holds(o) }) {
				all = append(all, match{c.rid, o.day, ids[ref]})
			}
		}
		slices.SortFunc(all, func(x, y match) int {
			if a.query.sorted && x.day != y.day {
				return cmp.Compare(y.day, x.day)
			}
			return cmp.Compare(x.rid, y.rid)
		})
		for _, m := range all[:min(a.count, len(all))] {
			page = append(page, m.id)
		}
		return len(all), page
	}
	// Answers in the order of their snapshots share what both saw before.
	slices.SortFunc(answers, func(a, b liveAnswer) int { return cmp.Compare(a.before.xmin(), b.before.xmin()) })
	wrong, skipped, done := 0, 0, 0
	settled := make(map[int64]change) // of all rows of log[:done]
	for _, a := range answers {
		for ; done < len(log) && log[done].xid < a.before.xmin(); done++ {
			if c := log[done]; c.n > settled[c.ref].n {
				settled[c.ref] = c
			}
		}
		state := make(map[int64]change, len(settled))
		for ref, c := range settled {
			state[ref] = c
		}
		var between []int64
		recent := log[done:]
		for i, c := range recent {
			if c.xid >= a.after.xmax {
				recent = recent[:i]
				break
			}
			if a.before.sees(c.xid) {
				if c.n > state[c.ref].n {
					state[c.ref] = c
				}
			} else if a.after.sees(c.xid) && !slices.Contains(between, c.xid) {
				between = append(between, c.xid)
			}
		}
		if len(between) > 10 {
			skipped++
			continue
		}
		ok := false
		for subset := 0; subset < 1<<len(between) && !ok; subset++ { // commits in any order
			now := make(map[int64]change, len(state))
			for ref, c := range state {
				now[ref] = c
			}
			for _, c := range recent {
				if i := slices.Index(between, c.xid); i >= 0 && subset>>i&1 == 1 && c.n > now[c.ref].n {
					now[c.ref] = c
				}
			}
			total, page := evaluate(&a, now)
			ok = total == a.total && (a.count == 0 || slices.Equal(page, a.ids))
		}
		if !ok {
			if wrong++; wrong < 5 {
				total, page := evaluate(&a, state)
				t.Errorf("%s _count=%d: total %d, page %v; before it was %d, %v, and no commit of %v makes the difference", a.query.text, a.count, a.total, a.ids, total, page, between)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d answers are of no snapshot", wrong, len(answers))
	}
	if skipped > len(answers)/2 {
		t.Errorf("%d of %d answers could not be judged", skipped, len(answers))
	}
	t.Logf("%d answers, %d not judged, %d changes", len(answers), skipped, len(log))
}
