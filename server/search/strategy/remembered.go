package strategy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/remembered"

	"github.com/jackc/pgx/v5"
)

// question is the search as package remembered reads it; nil for one that it does not
// answer.
func (x *searching) question() (*remembered.Question, error) {
	if x.asksKnown || !x.remembers() {
		return x.asks, nil
	}
	x.asksKnown = true
	compared, rest, ok := x.plan.Columns()
	if !ok {
		return nil, nil
	}
	page, ok, err := x.plan.RememberedPage()
	if err != nil || !ok {
		return nil, err
	}
	q := &remembered.Question{Type: x.plan.OnlyType(), Clauses: x.plan.Clauses(), Columns: compared, HasRest: len(rest) > 0, Page: page}
	if q.Whole, err = clausesKey(q.Type, q.Clauses); err != nil {
		return nil, err
	}
	if q.HasRest {
		if q.Rest, err = clausesKey(q.Type, rest); err != nil {
			return nil, err
		}
	}
	x.asks, x.rest = q, rest
	return q, nil
}

// clausesKey names clauses that match.ByRows: they are told apart by their fields.
func clausesKey(typ int16, clauses []match.Clause) (k remembered.Key, err error) {
	type clause struct {
		Any []match.Match
		Not bool
	}
	named := struct {
		Type    int16
		Clauses []clause
	}{Type: typ}
	for _, c := range clauses {
		named.Clauses = append(named.Clauses, clause{c.Any, c.Not})
	}
	b, err := json.Marshal(named)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(b)
	copy(k[:], sum[:])
	return k, nil
}

// changes are the columns of plan.Changes.
type changes struct {
	followed  *bool
	rows, now *string
}

func (c *changes) into() []any { return []any{&c.followed, &c.rows, &c.now} }

func (c *changes) since(state string, types []int16) remembered.Changes {
	out := remembered.Changes{Since: state, Types: types}
	if c.followed != nil && c.now != nil {
		out.Followed, out.Now = *c.followed, *c.now
	}
	if c.rows != nil {
		out.Rows = *c.rows
	}
	return out
}

// maxAsked is how often memory is asked for one search, while others write.
const maxAsked = 4

// byMemory answers a search without `_sort` from memory; nil where it cannot.
func (x *searching) byMemory(ctx context.Context) (*pageRows, error) {
	q, err := x.question()
	if q == nil || err != nil {
		return nil, err
	}
	if len(x.q.Sort) > 0 && x.q.Count > 0 {
		return nil, nil
	}
	memory := x.s.remembered
	for range maxAsked {
		a, ok := memory.Ask(q)
		if !ok {
			return nil, nil
		}
		st := x.plan.RowsChanged(a.RIDs, a.State, a.Types)
		x.note("rows from memory", st)
		var c changes
		p, err := x.rows(ctx, st, c.into()...)
		if err != nil {
			return nil, err
		}
		b, ok := memory.Settle(a, c.since(a.State, a.Types))
		if !ok || len(p.rows) != len(a.RIDs) {
			continue
		}
		at := make(map[int64]row, len(p.rows))
		for _, m := range p.rows {
			at[m.rid] = m
		}
		for i, rid := range a.RIDs {
			p.rows[i] = at[rid]
		}
		p.total = b.Total
		return p, nil
	}
	return nil, nil
}

// bySet is the total that memory has, for a page that a statement finds; nil where there
// is none.
func (x *searching) bySet() (*knownTotal, error) {
	q, err := x.question()
	if q == nil || err != nil {
		return nil, err
	}
	total := *q
	total.Page, total.Exactly = remembered.Page{}, true
	a, ok := x.s.remembered.Ask(&total)
	if !ok {
		return nil, nil
	}
	r := &knownTotal{about: a.Total, row: plan.Changes(a.State, a.Types)}
	r.scan = func() ([]any, func() (int64, bool)) {
		var c changes
		return c.into(), func() (int64, bool) {
			b, ok := x.s.remembered.Settle(a, c.since(a.State, a.Types))
			return b.Total, ok
		}
	}
	return r, nil
}

// learn lets what would have answered the search be found in the background, when a second
// search has missed it.
func (x *searching) learn() {
	q := x.asks
	if q == nil || x.learned {
		return
	}
	x.learned = true
	memory := x.s.remembered
	if len(q.Columns) == 0 {
		x.s.find(memory, q.Whole, finding{typ: x.plan.OnlyType(), name: x.q.Types[0], set: q.Whole, clauses: q.Clauses})
		return
	}
	if memory.Has(q.Whole) {
		return
	}
	for _, c := range q.Columns {
		if memory.Refused(c.Column) { // then the matches themselves
			x.s.find(memory, q.Whole, finding{typ: q.Type, name: x.q.Types[0], set: q.Whole, clauses: q.Clauses})
			return
		}
	}
	for _, c := range q.Columns {
		x.s.find(memory, c.Column, finding{typ: q.Type, name: x.q.Types[0], column: &c.Column})
	}
	if q.HasRest {
		x.s.find(memory, q.Rest, finding{typ: q.Type, name: x.q.Types[0], set: q.Rest, clauses: x.rest})
	}
}

// finding is something to remember.
type finding struct {
	typ     int16
	name    string // of the type
	set     remembered.Key
	clauses []match.Clause
	column  *remembered.ColumnKey
}

// key is what memory knows it by.
func (f finding) key() any {
	if f.column != nil {
		return *f.column
	}
	return f.set
}

// finder finds in the background what is to be remembered, one thing after the other, and
// keeps what is remembered abreast of the change log between searches.
type finder struct {
	mu    sync.Mutex
	queue []finding
	now   any                // the key of what is being looked for, nil for nothing
	stop  context.CancelFunc // nil before the first
	ended bool
	done  sync.WaitGroup
	idle  *sync.Cond
	wake  chan struct{}
	next  chan struct{} // closed when something has been looked for; nil where nobody waits
}

// news is closed when the next finding has been looked for.
func (w *finder) news() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next
}

func (w *finder) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// maxFindings bounds what waits to be found.
const maxFindings = 64

// followEvery is how often changes are read where no search reads them.
const followEvery = 250 * time.Millisecond

// find queues a finding that is wanted and not there.
func (s *Searcher) find(memory *remembered.Memory, key any, f finding) {
	if memory.Has(key) || !memory.Wants(key) {
		return
	}
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || len(w.queue) >= maxFindings || w.now == key || slices.ContainsFunc(w.queue, func(f finding) bool { return f.key() == key }) {
		return
	}
	w.queue = append(w.queue, f)
	if w.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		w.stop, w.wake = stop, make(chan struct{}, 1)
		w.done.Go(func() { s.findAll(ctx) })
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// findAll works until ctx ends.
func (s *Searcher) findAll(ctx context.Context) {
	w := &s.finder
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		w.mu.Lock()
		var f finding
		some := len(w.queue) > 0
		w.now = nil
		if some {
			f = w.queue[0]
			w.queue, w.now = w.queue[1:], f.key()
		} else {
			w.idle.Broadcast()
		}
		w.mu.Unlock()
		if some {
			if !s.remembered.Has(f.key()) {
				// What cannot be found now is wanted again.
				_ = s.found(ctx, f)
			}
			w.tell()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-tick.C:
			s.follow(ctx)
		}
	}
}

// Close ends what runs in the background.
func (s *Searcher) Close() {
	w := &s.finder
	w.mu.Lock()
	w.ended, w.queue = true, nil
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		stop()
		w.done.Wait()
	}
}

// Settled waits until everything that was wanted has been looked for.
func (s *Searcher) Settled() {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.now != nil || len(w.queue) > 0 {
		w.idle.Wait()
	}
}

// follow brings what is remembered up to the present.
func (s *Searcher) follow(ctx context.Context) {
	since, types, ok := s.remembered.Following()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	st := plan.Changes(since, types)
	var c changes
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...); err == nil {
		s.remembered.Bring(c.since(since, types))
	}
}

// found finds something and remembers it.
func (s *Searcher) found(ctx context.Context, f finding) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	l := &connection{s: s}
	defer l.close()
	if _, err := l.becomeDear(ctx, totalKey{}, nil); err != nil {
		return err
	}
	conn, err := l.get(ctx)
	if err != nil {
		return err
	}
	out := remembered.Found{Type: f.typ, Set: f.set, Clauses: f.clauses}
	begin := time.Now()
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT "+plan.Now).Scan(&out.State); err != nil || !plan.Lasting(out.State) {
			return err
		}
		if f.column != nil {
			return s.readColumn(ctx, tx, *f.column, &out)
		}
		return s.readSet(ctx, tx, f, &out)
	})
	if err != nil || !plan.Lasting(out.State) {
		return err
	}
	out.Cost = time.Since(begin)
	for range 10 {
		since, types, ok := s.remembered.Since(out.State, f.typ, f.name)
		if !ok {
			return nil
		}
		st := plan.Changes(since, types)
		var c changes
		if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...); err != nil {
			return err
		}
		kept, again := s.remembered.Add(&out, c.since(since, types))
		if kept || !again {
			if !kept && f.column != nil {
				s.remembered.Refuse(*f.column)
			}
			return nil
		}
	}
	return nil
}

// entriesFor is how many entries of a column fit into so many bytes, members how many
// members of a set.
const (
	columnEntryBytes = 60
	setMemberBytes   = 2
)

// readSet reads the members of a set; it is left without a state where there are too
// many.
func (s *Searcher) readSet(ctx context.Context, tx pgx.Tx, f finding, out *remembered.Found) error {
	env := &match.Env{Limit: s.memory.limit, Type: func(string) (int16, bool) { return f.typ, true }}
	if match.NeedUnits(f.clauses) {
		units, err := readUnits(ctx, tx)
		if err != nil {
			return err
		}
		for _, u := range units {
			env.Units = append(env.Units, *u)
		}
	}
	p := plan.Compile(&search.Query{Type: f.name, Types: []string{f.name}, Clauses: f.clauses}, env)
	if p.Empty {
		return nil
	}
	st := p.Members()
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	most := int(s.remembered.Limit() / 2 / setMemberBytes)
	for rows.Next() {
		v := rows.RawValues()[0]
		if len(v) != 8 {
			return errNotBinary
		}
		out.RIDs = append(out.RIDs, rawInt8(v))
		if len(out.RIDs) > most {
			out.State = ""
			return nil
		}
	}
	return rows.Err()
}

// readColumn reads the entries of a column; it is left without a state where there are
// too many, or ranges of numbers.
func (s *Searcher) readColumn(ctx context.Context, tx pgx.Tx, key remembered.ColumnKey, out *remembered.Found) error {
	out.Column, out.Entries = key, []remembered.Entry{}
	var err error
	if key.Kind == remembered.Quantities {
		if out.Units, err = readUnits(ctx, tx); err != nil {
			return err
		}
	}
	refuse := func() error {
		s.remembered.Refuse(key)
		out.State = ""
		return nil
	}
	st := plan.Column(key)
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	most := int(s.remembered.Limit() / 2 / columnEntryBytes)
	for rows.Next() {
		v := rows.RawValues()
		for _, i := range []int{0, 2, 3, 5} {
			if len(v[i]) != 8 {
				return errNotBinary
			}
		}
		e := remembered.Entry{RID: rawInt8(v[0]), Low: rawInt8(v[2]), High: rawInt8(v[3]), Number: string(v[4]), Unit: rawInt8(v[5])}
		out.Entries = append(out.Entries, e)
		if len(out.Entries) > most || v[1][0] != 0 || int16(e.RID>>48) != key.Type {
			return refuse()
		}
	}
	return rows.Err()
}

// readUnits reads all units in use.
func readUnits(ctx context.Context, tx pgx.Tx) (map[int64]*match.Unit, error) {
	rows, err := tx.Query(ctx, `SELECT id, system, code, unit FROM quantity_unit`)
	if err != nil {
		return nil, err
	}
	units := make(map[int64]*match.Unit)
	var id int64
	var system, code, unit string
	_, err = pgx.ForEachRow(rows, []any{&id, &system, &code, &unit}, func() error {
		u := match.NewUnit(id, system, code, unit)
		units[id] = &u
		return nil
	})
	return units, err
}

// unlogged are the resource types of which some versions are written without a row in
// the change log (store.Write.Unlogged): what is found of them is not remembered.
var unlogged = []string{"AuditEvent"}

// remembers reports whether what the search finds may be remembered, and what is
// remembered may answer it.
func (x *searching) remembers() bool {
	return !x.private() && len(x.q.Types) > 0 && !slices.ContainsFunc(x.q.Types, func(t string) bool { return slices.Contains(unlogged, t) })
}

// Remembered tells what is remembered of matches and values.
func (s *Searcher) Remembered() remembered.Stat { return s.remembered.Stat() }
