package strategy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/admission"
	"kiln/server/search/cache"
	"kiln/server/search/cache/fill"
	"kiln/server/search/match"
	"kiln/server/search/pgvalue"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
)

// Result is one page of a search.
type Result struct {
	// Total is the number of matches on all pages, nil where none was asked for; about,
	// where an estimate was asked for (EndOffset and End are then left out).
	Total   *int
	Matches []fhir.Version // in the order asked for
	// Includes are what `_include` and `_revinclude` add, none twice and none
	// that is a match.
	Includes []fhir.Version

	// Offset is the place of the first match in the whole result, from 0.
	Offset int
	// First is the cursor of the page before this one, Last of the page after
	// it, End of the last page; EndOffset is where that begins. They are "" where
	// there is no such page.
	First, Last, End string
	EndOffset        int
	HasNext          bool

	// Issues are messages for the client: a limit that was reached, a requested explanation.
	Issues []outcome.Issue

	bodies Bodies // of the matches and includes
}

// Release gives the memory of the bodies to other searches: the caller that has copied
// them calls it, and uses none afterwards. Without it they are collected as usual.
func (r *Result) Release() {
	if r.bodies != nil {
		r.bodies.Release()
	}
	r.bodies = nil
}

// Store keeps the resources that are searched.
type Store interface {
	fill.Store
	// TypeNumber returns the number of a resource type, false for one that has never
	// been stored. It may ask the database.
	TypeNumber(ctx context.Context, typ string) (int16, bool, error)
	// TypeName returns the resource type of a number.
	TypeName(ctx context.Context, number int16) (string, error)
	// Bodies returns memory for the bodies of one page.
	Bodies() Bodies
	// DecodeBody returns the JSON of the column body, which may share its memory.
	DecodeBody(stored []byte) ([]byte, error)
	// Resources reads values that the index has as hashes only; nil if that is never needed.
	Resources() Resources
}

// Bodies decodes the bodies of one page into memory that is used again.
type Bodies interface {
	Decode(stored []byte) ([]byte, error)
	// Release ends the use of everything that was decoded.
	Release()
}

// Resources reads stored resources.
type Resources interface {
	Decode(body []byte) (fhir.Resource, error)
	// Sort passes the sort values of r to the sorters.
	Sort(r fhir.Resource, by []*fhir.Sorter) error
}

// errNoResources reports that a search needs values of resources that the index lacks.
var errNoResources = errors.New("search: the values of stored resources need Store.Resources")

// Config is the configuration of a Searcher.
type Config struct {
	Store Store
	// MaxConns is the number of connections of the store's pool.
	MaxConns int
	Now      func() time.Time // nil means time.Now
	// Limit is the number of rows that a driver may find, 0 for the default of
	// plan.Compile.
	Limit int
	// Walk is how many resources a walk tests at most where its page may lie far away, 0 for the default.
	Walk int
	// ChangeTakes, StepTakes and Stepped are fields of fill.Config.
	ChangeTakes time.Duration
	StepTakes   time.Duration
	Stepped     func(gaveWay bool)
	// MemoryBytes limits the cache; 0 means DefaultMemory, below 0 no cache.
	MemoryBytes int64
	// ReportBytes is fill.Config.ReportBytes.
	ReportBytes func(bytes int64)
}

// ordersPart is the part of the memory that orders may take.
const ordersPart = 4

// DefaultMemory is the bytes that are remembered at most where nobody says otherwise.
const DefaultMemory = 256 << 20

// Searcher answers searches, and remembers what helps with the next ones. It is
// safe for concurrent use.
type Searcher struct {
	store    Store
	now      func() time.Time
	memory   memory
	maxConns int
	// memoryBytes bounds everything that is remembered.
	memoryBytes atomic.Int64
	admission   *admission.Admission
	cache       *cache.Memory
	filler      *fill.Filler
	walkMost    int
	reportBytes func(bytes int64) // may be nil
}

// New returns a Searcher with an empty cache.
func New(c Config) *Searcher {
	s := &Searcher{}
	s.start(c)
	return s
}

// start gives a Searcher its configuration and an empty cache.
func (s *Searcher) start(c Config) {
	s.store, s.now, s.reportBytes, s.maxConns = c.Store, c.Now, c.ReportBytes, c.MaxConns
	if s.now == nil {
		s.now = time.Now
	}
	s.walkMost = cmp.Or(c.Walk, defaultWalk)
	s.admission = admission.New(c.MaxConns)
	s.memory = memory{limit: c.Limit}
	s.cache = cache.New(0, s.now)
	s.filler = fill.New(fill.Config{
		Store: s.store, Cache: s.cache, Admission: s.admission, Now: s.now, Limit: c.Limit,
		ChangeTakes: c.ChangeTakes, StepTakes: c.StepTakes, Stepped: c.Stepped, ReportBytes: c.ReportBytes,
	})
	s.SetMemory(c.MemoryBytes)
}

// SetMemory changes what Config.MemoryBytes has said, at once.
func (s *Searcher) SetMemory(bytes int64) {
	bytes = max(0, cmp.Or(bytes, DefaultMemory))
	s.memoryBytes.Store(bytes)
	s.memory.orders.setLimit(int(bytes / ordersPart))
	s.shareMemory()
}

// shareMemory gives matches and values the memory that orders do not take.
func (s *Searcher) shareMemory() {
	s.cache.SetLimit(s.memoryBytes.Load() - int64(s.memory.orders.takenBytes()))
}

// keepOrder keeps an order, nil for none, by its key.
func (s *Searcher) keepOrder(k totalKey, o *keptOrder) {
	s.memory.orders.keepOrder(k, o)
	s.shareMemory()
}

// Search runs a search on a connection of the pool. The statement is cancelled in
// PostgreSQL when the context ends.
// Spec: https://hl7.org/fhir/R4/http.html#search.
func (s *Searcher) Search(ctx context.Context, q *search.Query) (*Result, error) {
	for {
		r, err := s.searchOnce(ctx, q)
		if !errors.Is(err, errNewParts) {
			return r, err
		}
	}
}

func (s *Searcher) searchOnce(ctx context.Context, q *search.Query) (*Result, error) {
	l := &connection{s: s}
	defer l.close()
	return s.runSearch(ctx, l, l, q, s.store)
}

// SearchIn runs a search inside a transaction, whose writes it sees.
func (s *Searcher) SearchIn(ctx context.Context, tx pgx.Tx, q *search.Query) (*Result, error) {
	return s.runSearch(ctx, tx, nil, q, s.store)
}

// SearchOn runs a search in one snapshot of another PostgreSQL with the same data, without the cache. Parts and type
// numbers of that snapshot come from store.
func (s *Searcher) SearchOn(ctx context.Context, conn Conn, q *search.Query, store Store) (*Result, error) {
	return s.runSearch(ctx, conn, nil, q, store)
}

// Conn is a connection, a connection or a transaction.
type Conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// An aloneConn is a connection to one snapshot. QueryAlone is Query for a statement that is probably the only one of the search.
type aloneConn interface {
	QueryAlone(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// searching is one search under way.
type searching struct {
	s     *Searcher
	store Store
	conn  Conn
	q     *search.Query
	plan  *plan.Plan
	steps []step // for an explanation
	// connection is the connection, nil in a transaction, which sees more than other searches: its counts are not cached.
	connection *connection
	bodies     Bodies // of the page; nil until a row is there

	assumed map[fhir.Key]keyTexts // that the plan was made with, and the database was not asked for

	asks       *cache.Question // nil until asksKnown, and where memory is not asked
	asksKnown  bool
	learned    bool // missing items were requested
	inSnapshot bool // conn is a transaction that sees one snapshot
	alone      bool // the next page statement probably answers the search

	first      totalKey // of driver 0, once it is known
	firstKnown bool
}

// isPrivate reports whether the search sees uncommitted data.
func (x *searching) isPrivate() bool { return x.connection == nil }

// drivingKey is what driver i is remembered by.
func (x *searching) drivingKey(i int) totalKey {
	if i > 0 {
		return keyOf(x.plan.Driving(i))
	}
	if !x.firstKnown {
		x.first, x.firstKnown = keyOf(x.plan.Driving(0)), true
	}
	return x.first
}

// step is one statement that was run.
type step struct {
	name string
	st   match.Statement
}

// pageRows is the answer of a page statement.
type pageRows struct {
	seen, total int64
	estimated   bool // total
	rows        []row
}

// row is a row of a page with its place in the order.
type row struct {
	rid  int64
	keys []*string
	v    fhir.Version
}

// walkCost is how many resources a walk may test for a page before fetching all
// matches is cheaper.
const walkCost = 10_000

// defaultWalk is the default of Config. If the number of rows of a page is known, a walk ends after so many tests, and all
// matches are fetched: they may be adjacent, like those of one patient, and far from the beginning of the walk.
const defaultWalk = 2 * walkCost

// entriesForProbe is how many entries of an index are read in the time of one test;
// below walkFrom matches reading them all is short anyway.
const (
	entriesForProbe = 15
	walkFrom        = 2_000
)

func (s *Searcher) runSearch(ctx context.Context, conn Conn, l *connection, q *search.Query, store Store) (_ *Result, err error) {
	defer func() { err = tooManyWords(q, err) }()
	x := &searching{s: s, store: store, conn: conn, connection: l, q: q}
	if err := x.boundContent(ctx); err != nil {
		return nil, err
	}
	needsUnits := match.NeedUnits(q.Clauses)
	seen := s.memory.units.Load()
	if needsUnits && seen == nil {
		seen = &unitsSeen{ids: []int64{}}
	}
	// Cached quantities include their units. Texts may be those seen earlier, which the statement verifies; it verifies
	// nothing else.
	if err := x.compile(ctx, seen, x.isPrivate()); err != nil {
		return nil, err
	}
	if !x.plan.Empty {
		if p, err := x.byMemory(ctx); p != nil || err != nil {
			return x.resultOf(ctx, p, true, err)
		}
	}
	if len(x.assumed) > 0 {
		if err := x.recompile(ctx, seen); err != nil {
			return nil, err
		}
	}
	if x.plan.Empty {
		return x.result(ctx, &pageRows{}, true)
	}
	if needsUnits {
		now, err := x.unitsInUse(ctx, seen)
		if err != nil {
			return nil, err
		}
		if now != seen {
			if err := x.recompile(ctx, now); err != nil {
				return nil, err
			}
		}
	}
	if (x.plan.InMemory() || x.plan.Tied()) && q.Count > 0 {
		if p, err := x.byOrder(ctx); p != nil || err != nil {
			return x.resultOf(ctx, p, true, err)
		}
	}
	p, exact, err := x.run(ctx)
	return x.resultOf(ctx, p, exact, err)
}

func (x *searching) resultOf(ctx context.Context, p *pageRows, exact bool, err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	return x.result(ctx, p, exact)
}

// compile plans the query with the database's type numbers, with units, and with the texts of the dictionary (textsOf).
func (x *searching) compile(ctx context.Context, units *unitsSeen, sure bool) error {
	var failure error
	asked := false // the database, for a type that this server has not seen
	env := &match.Env{Limit: x.s.memory.limit, MaxOrder: x.s.memory.orders.maxBytes() / bytesOfOrdered, Type: func(typ string) (int16, bool) {
		if n, ok := x.store.KnownType(typ); ok || asked {
			return n, ok
		}
		asked = true
		n, ok, err := x.store.TypeNumber(ctx, typ)
		if err != nil && failure == nil {
			failure = err
		}
		return n, ok
	}}
	read := make(map[fhir.Key][]string)
	env.Texts = func(key fhir.Key) []string {
		texts, ok := read[key]
		if !ok {
			var err error
			if texts, err = x.textsOf(ctx, key, sure); err != nil && failure == nil {
				failure = err
			}
			read[key] = texts
		}
		return texts
	}
	if units != nil {
		env.Units = units.units
	}
	var err error
	if env.Parts, err = x.store.Parts(ctx); err != nil {
		return err
	}
	if !x.isPrivate() {
		x.connection.parts = env.Parts
	}
	x.assumed = nil
	x.plan, x.firstKnown = plan.Compile(x.q, env), false
	return failure
}

// recompile compiles again with the present data of the database, after the cache was asked: missing items are those of
// the new plan.
func (x *searching) recompile(ctx context.Context, units *unitsSeen) error {
	x.asks, x.asksKnown = nil, false
	if err := x.compile(ctx, units, true); err != nil {
		return err
	}
	_, err := x.cacheQuestion()
	return err
}

// unitsInUse adds the rows of quantity_unit that this server has not seen. Its result is as new as the search. Rows
// never change.
func (x *searching) unitsInUse(ctx context.Context, seen *unitsSeen) (*unitsSeen, error) {
	rows, err := x.conn.Query(ctx, `SELECT id, system, code, unit FROM quantity_unit WHERE id <> ALL ($1)`, seen.ids)
	if err != nil {
		return nil, err
	}
	more, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (match.Unit, error) {
		var id int64
		var system, code, unit string
		err := r.Scan(&id, &system, &code, &unit)
		return match.NewUnit(id, system, code, unit), err
	})
	if err != nil || len(more) == 0 {
		return seen, err
	}
	now := &unitsSeen{ids: slices.Clone(seen.ids), units: append(slices.Clone(seen.units), more...)}
	for _, u := range more {
		now.ids = append(now.ids, u.ID)
	}
	x.s.memory.units.Store(now)
	return now, nil
}

// unitsSeen are units that are committed.
type unitsSeen struct {
	ids   []int64
	units []match.Unit
}

// learnFrom is the number of matches from which it pays to remember which they are: for
// the next page, and for others that ask the same.
const learnFrom = 100

// common finds the page of a search with many matches: along the order where they are
// common enough, else among all of them. The total comes from known, where it holds, or
// is counted; page and total are of one snapshot.
func (x *searching) common(ctx context.Context, known *knownTotal) (*pageRows, error) {
	if !x.plan.Walkable() {
		return x.sortedPage(ctx)
	}
	for range maxAsked {
		if known == nil {
			break
		}
		if known.about == 0 { // a walk would find nothing, and test everything
			if n, ok, err := x.exactTotal(ctx, known); ok && n == 0 || err != nil {
				return &pageRows{}, err
			}
			break
		}
		ofType, err := x.totalOfType(ctx, known.about)
		if err != nil {
			return nil, err
		}
		if x.probesFor(known.about, ofType) > walkCost && known.about < ofType {
			return x.gatherPage(ctx)
		}
		// The rows and the proof of the total come from one snapshot.
		p, err := x.walkKnowing(ctx, known)
		if p != nil || err != nil {
			return p, err
		}
		if known, err = x.knownTotal(); err != nil {
			return nil, err
		}
	}
	p, waited, err := x.becomeDearUnlessFound(ctx)
	if p != nil || err != nil {
		return p, err
	}
	if waited || known == nil { // somebody else may have counted
		if known, err = x.knownTotal(); err != nil {
			return nil, err
		}
		if known != nil && known.about > 0 {
			if p, err := x.walkKnowing(ctx, known); p != nil || err != nil {
				return p, err
			}
		}
	}
	err = x.atOnce(ctx, func(x *searching) error {
		total, err := x.computeTotal(ctx, nil)
		if err != nil {
			return err
		}
		ofType, err := x.totalOfType(ctx, total)
		switch {
		case err != nil:
			return err
		case total == 0:
			p = &pageRows{}
			return nil
		case x.probesFor(total, ofType) > walkCost && total < ofType:
			p, err = x.gatherPage(ctx)
			return err
		}
		if p, err = x.walkPage(ctx, total); err == nil {
			p.total = total
		}
		return err
	})
	return p, err
}

// atOnce runs f in one snapshot; its results may be cached. An expensive search enters the queue of those before.
func (x *searching) atOnce(ctx context.Context, f func(*searching) error) error {
	if x.isPrivate() || x.inSnapshot {
		return f(x)
	}
	conn, err := x.connection.getConnection(ctx)
	if err != nil {
		return err
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		inside := *x
		inside.conn, inside.inSnapshot = tx, true
		err := f(&inside)
		x.steps, x.bodies = inside.steps, inside.bodies
		return err
	})
}

// probesFor is about how many resources a walk tests for the page, in tests of the usual
// price.
func (x *searching) probesFor(total, ofType int64) int64 {
	far := int64(x.q.Count + 1)
	if x.q.Cursor == nil {
		far += int64(x.q.Offset)
	}
	return min(far, total) * ofType / total * x.plan.ProbeCost()
}

func (x *searching) gatherPage(ctx context.Context) (*pageRows, error) {
	if p, _, err := x.becomeDearUnlessFound(ctx); p != nil || err != nil {
		return p, err
	}
	st, err := x.plan.Gather()
	if err != nil {
		return nil, err
	}
	return x.readPage(ctx, "gather", st)
}

// walkPage goes along the order, phase by phase, until the page is full. total is how many matches there are
// at least, 0 where that is not known.
func (x *searching) walkPage(ctx context.Context, total int64) (p *pageRows, err error) {
	if x.plan.Phases() == 1 {
		return x.walkPhases(ctx, nil, total)
	}
	err = x.atOnce(ctx, func(x *searching) (err error) {
		p, err = x.walkPhases(ctx, nil, total)
		return err
	})
	return p, err
}

// walkKnowing is walk with the total that memory has; nil where that does not hold any
// more.
func (x *searching) walkKnowing(ctx context.Context, known *knownTotal) (p *pageRows, err error) {
	if x.plan.Phases() == 1 {
		return x.walkPhases(ctx, known, known.about)
	}
	err = x.atOnce(ctx, func(x *searching) (err error) {
		p, err = x.walkPhases(ctx, known, known.about)
		return err
	})
	return p, err
}

// walkPhases is walk, or with known walkKnowing. Where the page lies far away it gathers the matches.
func (x *searching) walkPhases(ctx context.Context, known *knownTotal, total int64) (*pageRows, error) {
	all := &pageRows{}
	skipped := 0 // by the phases before, of a hand-written offset
	most := 0
	if total > 0 && x.plan.CanStop() {
		most = max(1, x.s.walkMost/int(x.plan.ProbeCost()))
	}
	for phase := range x.plan.Phases() {
		st, ok, err := x.plan.Walk(phase, len(all.rows), skipped, most)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		var p *pageRows
		name := fmt.Sprintf("walk %d", phase+1)
		if known != nil {
			if p, total, ok, err = x.pageKnowing(ctx, name, st, known); err == nil && !ok {
				return nil, nil
			}
			all.total = total
			known = nil
		} else {
			p, err = x.readPage(ctx, name, st)
		}
		if err != nil {
			return nil, err
		}
		all.rows = append(all.rows, p.rows...)
		if far, err := x.farAway(ctx, phase, most, len(all.rows), total); far || err != nil {
			if err != nil {
				return nil, err
			}
			return x.gatherPage(ctx)
		}
		if phase+1 < x.plan.Phases() && x.q.Offset > 0 && x.q.Cursor == nil && len(all.rows) == 0 {
			// The offset may lie among the matches without a value: count those
			// with one.
			var n int64
			if err := x.queryRow(ctx, "count of those with a value", x.plan.CountValued(), &n); err != nil {
				return nil, err
			}
			skipped = int(n)
		}
	}
	return all, nil
}

// farAway reports whether a walk that has tested as many resources as it may, most, has not come to the end of
// its page: have rows are there, of total matches at least.
func (x *searching) farAway(ctx context.Context, phase, most, have int, total int64) (far bool, err error) {
	if most == 0 || phase > 0 || int64(have) >= min(int64(x.q.Count)+1, total-int64(x.q.Offset)) {
		return false, nil
	}
	if x.plan.Phases() == 1 {
		return true, nil
	}
	st, err := x.plan.Beyond(most) // else the others have no value
	if err != nil {
		return false, err
	}
	err = x.queryRow(ctx, "more to walk along", st, &far)
	return far, err
}

func (x *searching) queryRow(ctx context.Context, name string, st match.Statement, into ...any) error {
	x.noteStatement(name, st)
	return x.conn.QueryRow(ctx, st.SQL, st.Args...).Scan(into...)
}

func (x *searching) noteStatement(name string, st match.Statement) {
	if x.q.Explain {
		x.steps = append(x.steps, step{name, st})
	}
}

// readPage runs a page statement.
func (x *searching) readPage(ctx context.Context, name string, st match.Statement) (*pageRows, error) {
	x.noteStatement(name, st)
	return x.readRows(ctx, st)
}

// readRows reads the rows of a page statement, after those columns that go to before.
func (x *searching) readRows(ctx context.Context, st match.Statement, before ...any) (*pageRows, error) {
	query := x.conn.Query
	if conn, ok := x.conn.(aloneConn); ok && x.alone {
		query = conn.QueryAlone
	}
	rows, err := query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	p := &pageRows{}
	nkeys := len(x.q.Sort)
	for first := true; rows.Next(); first = false {
		v := rows.RawValues()
		if first {
			if err := pgvalue.CheckColumns(rows, len(before)+3, 6); err != nil {
				return nil, err
			}
			if len(before) > 0 { // the same in every row
				if err := rows.Scan(append(before, make([]any, len(v)-len(before))...)...); err != nil {
					return nil, err
				}
			}
		}
		v = v[len(before):]
		if count := v[1]; count != nil {
			p.seen, p.total = pgvalue.ReadInt8(v[0]), pgvalue.ReadInt8(count)
		}
		rid := v[2]
		if rid == nil {
			continue
		}
		if p.rows == nil {
			p.rows = make([]row, 0, min(x.q.Count+1, 256))
		}
		m := row{rid: pgvalue.ReadInt8(rid)}
		for _, k := range v[3 : 3+nkeys] {
			var key *string
			if k != nil {
				key = new(string(k))
			}
			m.keys = append(m.keys, key)
		}
		if m.v, err = x.readVersion(ctx, v[3+nkeys:]); err != nil {
			return nil, err
		}
		p.rows = append(p.rows, m)
	}
	return p, rows.Err()
}

// readVersion reads search.rowColumns.
func (x *searching) readVersion(ctx context.Context, v [][]byte) (fhir.Version, error) {
	name, err := x.store.TypeName(ctx, pgvalue.ReadInt2(v[4]))
	if err != nil {
		return fhir.Version{}, err
	}
	if x.bodies == nil {
		x.bodies = x.store.Bodies()
	}
	body, err := x.bodies.Decode(v[5])
	if err != nil {
		return fhir.Version{}, err
	}
	return fhir.Version{
		ResourceType: name, ID: string(v[0]), VersionID: int(pgvalue.ReadInt4(v[1])),
		LastUpdated: pgvalue.ReadTime(v[2]), Method: fhir.Method(v[3][0]), Body: body,
	}, nil
}

// pageSize is the number of matches on the page at most.
func (x *searching) pageSize() int {
	if c := x.q.Cursor; c != nil && c.Size > 0 {
		return min(c.Size, x.q.Count)
	}
	return x.q.Count
}

// result makes the page that the client sees: the row too many becomes HasNext,
// cursors and includes are added.
func (x *searching) result(ctx context.Context, p *pageRows, exact bool) (*Result, error) {
	q := x.q
	r := &Result{Offset: q.Offset, bodies: x.bodies}
	total := int(p.total)
	if (exact || p.estimated) && q.Total != search.TotalNone {
		r.Total = &total
	}
	size := x.pageSize()
	backwards := q.Cursor != nil && q.Cursor.Before
	more := len(p.rows) > size
	if more {
		p.rows = p.rows[:size]
	}
	if backwards {
		slices.Reverse(p.rows)
	}
	r.Matches = make([]fhir.Version, len(p.rows))
	for i := range p.rows {
		r.Matches[i] = p.rows[i].v
	}
	atEnd := backwards && q.Cursor.RID == 0
	r.HasNext = more
	if backwards {
		r.HasNext = !atEnd && len(p.rows) > 0
		if !more {
			r.Offset = 0
		} else if atEnd && exact {
			r.Offset = max(0, total-len(p.rows))
		}
	}
	if n := len(p.rows); n > 0 {
		if r.HasNext {
			r.Last = (&search.Cursor{Keys: p.rows[n-1].keys, RID: p.rows[n-1].rid}).String()
		}
		if backwards && more || !backwards && (q.Offset > 0 || q.Cursor != nil) {
			r.First = (&search.Cursor{Keys: p.rows[0].keys, RID: p.rows[0].rid, Before: true}).String()
		}
	}
	if exact && q.Count > 0 && total > q.Count {
		r.EndOffset = (total - 1) / q.Count * q.Count
		r.End = (&search.Cursor{Before: true, Size: total - r.EndOffset}).String()
	}
	if len(p.rows) > 0 && len(q.Includes)+len(q.RevIncludes) > 0 {
		rids := make([]int64, len(p.rows))
		for i := range p.rows {
			rids[i] = p.rows[i].rid
		}
		if err := x.addIncludes(ctx, r, rids); err != nil {
			return nil, err
		}
	}
	if q.Explain {
		if err := x.addExplanation(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}
