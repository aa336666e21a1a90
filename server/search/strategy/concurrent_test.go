package strategy_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/searchtest"
	"kiln/server/store"

	"github.com/jackc/pgx/v5"
)

// TestSearchesWhileOthersWrite lets two servers on one database write (create, update,
// delete, bundles) and search at the same time: all Observations, and the Observations of
// some Patients. In between, caches are emptied: the index and the search parameters
// change, connections break. Each answer, its total and its page, must equal the result
// over the written resources in one snapshot between the beginning and the end of the
// search.
//
// KILN_TEST_CONCURRENT sets how long, "10m"; without it two seconds.
// Contract: Design, section 4 ("Writes are read back by the next search").
func TestSearchesWhileOthersWrite(t *testing.T) {
	length := 2 * time.Second
	if text := os.Getenv("KILN_TEST_CONCURRENT"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := uint64(0); length > 0; round++ {
		// The log of a round is evaluated as a whole: short rounds keep that cheap.
		part := min(length, 20*time.Second)
		length -= part
		if !t.Run(fmt.Sprint("round ", round), func(t *testing.T) { searchWhileOthersWrite(t, round, part) }) {
			return
		}
	}
}

func searchWhileOthersWrite(t *testing.T, seed uint64, length time.Duration) {
	ctx := context.Background()
	a, at := searchtest.Open(t)
	b := searchtest.OpenAt(t, at)
	a.IndexBy(searchtest.Indexer{})
	b.IndexBy(searchtest.Indexer{})
	for _, s := range []*store.Store{a, b} {
		limitSearches(s, 20)
	}
	l := &writeLog{versions: make(map[store.VersionKey]written)}
	base := searchtest.NewCorpus(seed, 20, 300)
	r := rand.New(rand.NewPCG(seed, 9))
	for i := range base.Observations {
		base.Observations[i].ID = fmt.Sprint("o", i)
	}
	l.write(t, a, writtenOf(base.Observations, base.Patients))

	pool := make([]concurrentQuery, 60)
	for i := range pool {
		values := url.Values{}
		for range 1 + r.IntN(2) {
			c := base.SimpleObservation(r)
			values.Add(c.Name, c.Value)
			pool[i].all = append(pool[i].all, c)
		}
		if r.IntN(5) == 0 {
			c := updatedWithin(r, length)
			values.Add(c.Name, c.Value)
			pool[i].all = append(pool[i].all, c)
		}
		if r.IntN(4) == 0 {
			gender := searchtest.PickRandom(r, []string{"male", "female", "other,male"})
			values.Add(searchtest.PickRandom(r, []string{"patient.gender", "subject:Patient.gender"}), gender)
			pool[i].subject = func(p *searchtest.Patient) bool {
				return p.Gender != "" && slices.Contains(strings.Split(gender, ","), p.Gender)
			}
		}
		pool[i].sorted = r.IntN(5) == 0
		if pool[i].sorted {
			values.Set("_sort", "-date")
		}
		pool[i].values = values
	}

	stop := make(chan struct{})
	var writers, searchers sync.WaitGroup
	var serial atomic.Int64
	for w := range 4 {
		s := []*store.Store{a, b}[w%2]
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+w)))
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(r.IntN(15)) * time.Millisecond):
				}
				// Resources of one writer, so that it knows the next version of each.
				drawn := searchtest.NewCorpus(r.Uint64(), 20, 1+r.IntN(4)*r.IntN(2))
				some := writtenOf(drawn.Observations, nil)
				for i := range some {
					some[i].id = fmt.Sprint("o", r.IntN(75)*4+w)
					switch r.IntN(4) {
					case 0:
						some[i].id = fmt.Sprint("n", serial.Add(1))
					case 1:
						some[i].observation = nil
					}
				}
				if r.IntN(8) == 0 {
					p := writtenOf(nil, drawn.Patients[:1])[0]
					p.id = fmt.Sprint("p", r.IntN(5)*4+w)
					if r.IntN(3) == 0 {
						p.patient = nil
					}
					some = append(some, p)
				}
				slices.SortFunc(some, func(a, b written) int { return cmp.Or(strings.Compare(a.typ, b.typ), strings.Compare(a.id, b.id)) })
				some = slices.CompactFunc(some, func(a, b written) bool { return a.typ == b.typ && a.id == b.id })
				l.write(t, s, some)
			}
		})
	}
	var mu sync.Mutex
	var answers []concurrentAnswer
	var lost atomic.Bool // connections may be, so that searches may fail
	for i := range 6 {
		s := []*store.Store{a, b}[i%2]
		searchers.Go(func() {
			conn, err := pgx.Connect(ctx, at)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { conn.Close(ctx) }()
			r := rand.New(rand.NewPCG(seed, uint64(200+i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				q := &pool[r.IntN(len(pool))]
				x := concurrentAnswer{q: q, count: r.IntN(12)}
				if r.IntN(4) == 0 {
					x.offset = r.IntN(40)
				}
				sc := searchtest.Case{Type: "Observation", Values: q.values}
				parsed := sc.ParseQuery(t, "_count", strconv.Itoa(x.count), "_offset", strconv.Itoa(x.offset))
				var found *store.SearchResult
				err := conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&x.before)
				if err == nil {
					if found, err = s.Search(ctx, parsed); err == nil {
						err = conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&x.after)
					}
				}
				if err != nil {
					if !lost.Load() {
						t.Errorf("%s: %v", &sc, err)
						return
					}
					conn.Close(ctx)
					if conn, err = pgx.Connect(ctx, at); err != nil {
						t.Error(err)
						return
					}
					continue
				}
				x.total, x.ids = *found.Total, searchtest.IDs(found)
				mu.Lock()
				answers = append(answers, x)
				mu.Unlock()
			}
		})
	}
	// Empty the caches of a server in the middle.
	admin, err := pgx.Connect(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(ctx)
	part := length / 4
	for _, sql := range []string{
		"INSERT INTO change (shard, rids, refs, versions, methods) VALUES (0, '{}', '{}', '{}', '')",
		"UPDATE search_registry SET progress = progress + 1",
		"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = ''",
	} {
		time.Sleep(part)
		lost.Store(lost.Load() || strings.Contains(sql, "terminate"))
		if _, err := admin.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(part)
	close(stop)
	writers.Wait()
	searchers.Wait()
	l.check(t, admin, answers)
	for _, s := range []*store.Store{a, b} {
		t.Logf("%d answers; remembered: %+v", len(answers), s.Searcher().CacheState())
	}
	if length > time.Second && a.Searcher().CacheState().Hits+b.Searcher().CacheState().Hits == 0 {
		t.Error("nothing was answered from memory")
	}
}

type concurrentQuery struct {
	values  url.Values
	all     []searchtest.Condition[searchtest.Observation]
	subject func(*searchtest.Patient) bool // holds for the Patient that it refers to; nil asks nothing
	sorted  bool                           // by date, the last first
}

func (q *concurrentQuery) holds(o *searchtest.Observation) bool {
	return o != nil && !searchtest.AnyOf(q.all, func(c searchtest.Condition[searchtest.Observation]) bool { return !c.Holds(o) })
}

// updatedWithin asks for the last update, at an instant of the time that begins now.
func updatedWithin(r *rand.Rand, length time.Duration) searchtest.Condition[searchtest.Observation] {
	at := time.Now().Add(time.Duration(r.Int64N(int64(length)))).UTC().Truncate(time.Millisecond)
	op := searchtest.PickRandom(r, []string{"ge", "lt", "gt", "le"})
	return searchtest.Condition[searchtest.Observation]{Name: "_lastUpdated", Value: op + at.Format("2006-01-02T15:04:05.000Z"), Holds: func(o *searchtest.Observation) bool {
		switch op {
		case "ge":
			return !o.Updated.Before(at)
		case "lt":
			return o.Updated.Before(at)
		case "gt":
			return !o.Updated.Before(at.Add(time.Millisecond))
		}
		return o.Updated.Before(at.Add(time.Millisecond))
	}}
}

type concurrentAnswer struct {
	q             *concurrentQuery
	count, offset int
	before, after string // snapshots
	total         int
	ids           []string
}

// written is a version of a resource: a deletion has neither.
type written struct {
	typ, id     string
	observation *searchtest.Observation
	patient     *searchtest.Patient
}

func writtenOf(observations []searchtest.Observation, patients []searchtest.Patient) (all []written) {
	for i := range observations {
		all = append(all, written{typ: "Observation", id: observations[i].ID, observation: &observations[i]})
	}
	for i := range patients {
		all = append(all, written{typ: "Patient", id: patients[i].ID, patient: &patients[i]})
	}
	return all
}

// write is the PUT of the version, or the DELETE.
func (v *written) write(t testing.TB) (*store.Write, error) {
	var o searchtest.Object
	switch {
	case v.observation != nil:
		v.observation.ID = v.id
		o = v.observation.JSON()
	case v.patient != nil:
		v.patient.ID = v.id
		o = v.patient.JSON()
	default:
		return &store.Write{Method: fhir.DELETE, ResourceType: v.typ, ID: v.id}, nil
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return searchtest.NewWrite(t, raw), nil
}

// writeLog is the versions that were written.
type writeLog struct {
	mu       sync.Mutex
	versions map[store.VersionKey]written
}

// write writes resources in one transaction. After a lost
// connection nobody knows whether it is there: versions that are not are never in the
// change log.
func (l *writeLog) write(t testing.TB, s *store.Store, all []written) {
	var ws []*store.Write
	for i := range all {
		w, err := all[i].write(t)
		if err != nil {
			t.Error(err)
			return
		}
		ws = append(ws, w)
	}
	if err := s.WriteAll(context.Background(), ws); err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range ws {
		if w.Result.VersionID == 0 {
			continue // nothing was there to delete
		}
		key := store.VersionKey{Ref: int64(fhir.ValueReference(all[i].typ, all[i].id)), VersionID: w.Result.VersionID}
		if _, ok := l.versions[key]; ok && w.Method == fhir.DELETE {
			continue
		}
		if o := all[i].observation; o != nil {
			o.Updated = w.Result.LastUpdated
		}
		l.versions[key] = all[i]
	}
}

// loggedChange is a row of the change log, taken apart.
type loggedChange struct {
	xid      uint64
	rid, ref int64
	version  int
}

// check evaluates every answer in the snapshots that it may be of.
func (l *writeLog) check(t *testing.T, conn *pgx.Conn, answers []concurrentAnswer) {
	rows, err := conn.Query(context.Background(), `SELECT c.xid::text::bigint, u.rid, u.ref, u.version FROM change c CROSS JOIN LATERAL unnest(c.rids, c.refs, c.versions) AS u(rid, ref, version) ORDER BY c.xid, u.version`)
	if err != nil {
		t.Fatal(err)
	}
	log, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c loggedChange, err error) {
		err = r.Scan(&c.xid, &c.rid, &c.ref, &c.version)
		return c, err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]seenAnswer, len(answers))
	for i, a := range answers {
		seen[i] = seenAnswer{a, parseSnapshot(t, a.before), parseSnapshot(t, a.after)}
	}
	slices.SortFunc(seen, func(a, b seenAnswer) int { return cmp.Compare(a.before.xmin(), b.before.xmin()) })
	var parts sync.WaitGroup
	var wrong, skipped atomic.Int64
	for part := range slices.Chunk(seen, len(seen)/runtime.NumCPU()+1) {
		parts.Go(func() { l.judge(t, log, part, &wrong, &skipped) })
	}
	parts.Wait()
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d of %d answers are of no snapshot", n, len(answers))
	}
	if n := skipped.Load(); n > int64(len(answers)/2) {
		t.Errorf("%d of %d answers could not be judged", n, len(answers))
	}
	t.Logf("%d answers, %d not judged", len(answers), skipped.Load())
}

// seenAnswer is an answer and the states that the first and the last statement around it
// saw.
type seenAnswer struct {
	concurrentAnswer
	before, after snapshot
}

// judge is check for a part of the answers, the oldest first.
func (l *writeLog) judge(t *testing.T, log []loggedChange, answers []seenAnswer, wrong, skipped *atomic.Int64) {
	settled := make(map[int64]loggedChange) // the newest version of each resource that all further answers see
	lost := make(map[int64]bool)            // the resources of which that is a write without an answer
	known := func(c loggedChange) bool {
		_, ok := l.versions[store.VersionKey{Ref: c.ref, VersionID: c.version}]
		return ok
	}
	matches := make(map[matchKey]held)
	for _, a := range answers {
		before, after := a.before, a.after
		for len(log) > 0 && log[0].xid < before.xmin() {
			c := log[0]
			log = log[1:]
			if c.version > settled[c.ref].version {
				settled[c.ref] = c
				if delete(lost, c.ref); !known(c) {
					lost[c.ref] = true
				}
			}
		}
		state := maps.Clone(settled)
		var between []uint64
		var pending []loggedChange // of those
		unknown := len(lost) > 0
		for _, c := range log {
			if c.xid >= after.xmax {
				break
			}
			if before.sees(c.xid) {
				if c.version > state[c.ref].version {
					state[c.ref] = c
				}
			} else if after.sees(c.xid) {
				pending = append(pending, c)
				if !slices.Contains(between, c.xid) {
					between = append(between, c.xid)
				}
			}
			unknown = unknown || !known(c) && after.sees(c.xid)
		}
		// The commits between came in an order that nobody knows: any of them may be
		// in the snapshot.
		if unknown || len(between) > 10 {
			skipped.Add(1)
			continue
		}
		ok := false
		var first string
		for subset := 0; subset < 1<<len(between) && !ok; subset++ {
			now := state
			if subset > 0 {
				now = maps.Clone(state)
			}
			for _, c := range pending {
				if subset>>slices.Index(between, c.xid)&1 == 1 && c.version > now[c.ref].version {
					now[c.ref] = c
				}
			}
			total, page := l.evaluate(&a.concurrentAnswer, now, matches)
			if ok = total == a.total && (a.count == 0 || slices.Equal(page, a.ids)); subset == 0 {
				first = fmt.Sprint(total, " ", page)
			}
		}
		if !ok {
			if wrong.Add(1) < 5 {
				t.Errorf("%s _count %d _offset %d: total %d, page %v; before it was %s, and no commit of %v makes the difference", a.q.values.Encode(), a.count, a.offset, a.total, a.ids, first, between)
			}
		}
	}
}

// held is whether a version matches, and its date.
type held struct {
	holds bool
	date  int64
	dated bool
}

type matchKey struct {
	q *concurrentQuery
	store.VersionKey
}

// evaluate answers a search in one state.
func (l *writeLog) evaluate(a *concurrentAnswer, state map[int64]loggedChange, matches map[matchKey]held) (total int, page []string) {
	type found struct {
		rid  int64
		date int64
		ok   bool // it has a date
		id   string
	}
	var all []found
	for ref, c := range state {
		key := store.VersionKey{Ref: ref, VersionID: c.version}
		o := l.versions[key].observation
		m, ok := matches[matchKey{a.q, key}]
		if !ok {
			if m.holds = a.q.holds(o); m.holds {
				m.date, _, m.dated = o.Date()
			}
			matches[matchKey{a.q, key}] = m
		}
		if m.holds && (a.q.subject == nil || a.q.subject(l.subject(o, state))) {
			all = append(all, found{rid: c.rid, id: o.ID, date: m.date, ok: m.dated})
		}
	}
	slices.SortFunc(all, func(x, y found) int {
		if a.q.sorted {
			if x.ok != y.ok {
				if x.ok {
					return -1
				}
				return 1
			}
			if x.ok && x.date != y.date {
				return cmp.Compare(y.date, x.date)
			}
		}
		return cmp.Compare(x.rid, y.rid)
	})
	total = len(all)
	all = all[min(a.offset, len(all)):]
	for _, f := range all[:min(a.count, len(all))] {
		page = append(page, f.id)
	}
	return total, page
}

// subject is the Patient that an Observation refers to in a state, an empty one where there is none.
func (l *writeLog) subject(o *searchtest.Observation, state map[int64]loggedChange) *searchtest.Patient {
	if id, ok := strings.CutPrefix(o.Subject, "Patient/"); ok {
		ref := int64(fhir.ValueReference("Patient", id))
		if p := l.versions[store.VersionKey{Ref: ref, VersionID: state[ref].version}].patient; p != nil {
			return p
		}
	}
	return &searchtest.Patient{}
}

type snapshot struct {
	xmax    uint64
	running []uint64
}

func parseSnapshot(t testing.TB, text string) (s snapshot) {
	parts := strings.Split(text, ":")
	var err error
	if s.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		t.Fatal(err)
	}
	for _, x := range strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s.running = append(s.running, n)
	}
	return s
}

// xmin is the transaction before which all are seen.
func (s *snapshot) xmin() uint64 {
	if len(s.running) == 0 {
		return s.xmax
	}
	return min(s.xmax, slices.Min(s.running))
}

func (s *snapshot) sees(xid uint64) bool { return xid < s.xmax && !slices.Contains(s.running, xid) }
