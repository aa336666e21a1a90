package strategy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/remembered"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// question is the search as package remembered reads it; nil for one that it does not
// answer.
func (x *searching) question() (*remembered.Question, error) {
	if x.asksKnown || !x.remembers() {
		return x.asks, nil
	}
	x.asksKnown = true
	q, err := questionOf(x.plan)
	if q == nil || err != nil {
		return nil, err
	}
	page, ok, err := x.plan.RememberedPage()
	if !ok || err != nil {
		return nil, err
	}
	q.Page = page
	x.asks = q
	return q, nil
}

// questionOf is what a plan finds, as package remembered reads it, without a page; nil where it does
// not answer that.
func questionOf(p *plan.Plan) (*remembered.Question, error) {
	typ, ok := p.OneType()
	if !ok || slices.Contains(unlogged, typ) {
		return nil, nil
	}
	if links, beside := p.Links(); len(links) > 0 {
		return linkedQuestion(p, links, beside)
	}
	compared, others, ok := p.Columns()
	if !ok {
		return nil, nil
	}
	q := &remembered.Question{Type: p.OnlyType(), Name: typ, Clauses: p.Clauses(), Columns: remembered.Together(compared), Others: others, Terms: p.Terms(len(compared))}
	var err error
	if q.Whole, err = clausesKey(q.Type, q.Clauses); err != nil {
		return nil, err
	}
	if len(others) > 0 {
		q.Rest, err = clausesKey(q.Type, others)
	}
	return q, err
}

// linkedQuestion is questionOf a plan with links.
func linkedQuestion(p *plan.Plan, links []plan.Link, beside *plan.Plan) (*remembered.Question, error) {
	typ, _ := p.OneType()
	q := &remembered.Question{Type: p.OnlyType(), Name: typ}
	var err error
	if beside != nil {
		if q.Beside, err = questionOf(beside); q.Beside == nil || err != nil {
			return nil, err
		}
	}
	for _, l := range links {
		others, err := questionOf(l.Others)
		if others == nil || err != nil {
			return nil, err
		}
		q.Links = append(q.Links, remembered.Link{References: l.References, Own: l.Own, Back: l.Back, Others: others})
	}
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
type changes struct{ rows, now *string }

func (c *changes) into() []any { return []any{&c.rows, &c.now} }

func (c *changes) since(p remembered.Position) remembered.Changes {
	out := remembered.Changes{Position: p}
	if c.now != nil {
		out.Now, out.Followed = *c.now, plan.Lasting(*c.now)
	}
	if c.rows != nil {
		out.Rows, out.Many = *c.rows, *c.rows == ""
	}
	return out
}

// maxAsked is how often memory is asked for one search, while others write.
const maxAsked = 4

// byMemory answers a search from memory; nil where it cannot. It is not asked in a snapshot, which
// may be older than what memory has.
func (x *searching) byMemory(ctx context.Context) (*pageRows, error) {
	q, err := x.question()
	if q == nil || err != nil {
		return nil, err
	}
	if len(x.q.Sort) > 0 && q.Page.Order == nil && x.q.Count > 0 {
		return nil, nil
	}
	memory := x.s.remembered
	for range maxAsked {
		a, ok := memory.Ask(q)
		if !ok {
			return nil, nil
		}
		x.connection.broad = a.Total >= int64(x.plan.Limit)
		if _, err := x.connection.get(ctx); err != nil {
			return nil, err
		}
		// While it waited others have brought in what had changed: it need not be read again.
		if a, ok = memory.Renew(a); !ok {
			continue
		}
		shown := a.RIDs[:min(len(a.RIDs), x.pageSize())] // the one behind the page is only there
		st := x.plan.RowsChanged(shown, a.Position, x.assumedTexts())
		x.note("rows from memory", st)
		var c changes
		var held bool
		p, err := x.rows(ctx, st, append(c.into(), &held)...)
		if err != nil {
			return nil, err
		}
		b, ok := memory.Settle(a, c.since(a.Position))
		if !held {
			return nil, nil
		}
		if !ok || len(p.rows) != len(shown) {
			continue
		}
		at := make(map[int64]row, len(p.rows))
		for _, m := range p.rows {
			at[m.rid] = m
		}
		p.rows = p.rows[:0]
		for i, rid := range a.RIDs {
			m := at[rid]
			if b.Places != nil {
				m.keys = []*string{sortKey(b.Places[i])}
			}
			p.rows = append(p.rows, m)
		}
		p.total = b.Total
		return p, nil
	}
	return nil, nil
}

// linkedLimit is Plan.Limit where links are remembered.
const linkedLimit = 201

// maxFew is how many members a search waits for: they are read in some milliseconds.
const maxFew = 5_000

// linksRemembered reports whether memory could answer the search, which has links, if it had the resources
// at their other ends.
func (x *searching) linksRemembered() bool {
	q := x.asks
	if q == nil || len(q.Links) == 0 || len(x.q.Sort) > 0 && q.Page.Order == nil {
		return false
	}
	for i := range q.Links {
		if l := &q.Links[i]; !x.s.remembered.Has(l.References) || !x.s.remembered.Has(l.Own) {
			return false
		}
	}
	return true
}

// byLinks is byMemory where links are remembered: few resources at their other ends, as those of a name are,
// are found at once, and what they are linked to is in memory. To count that in the database would read each.
func (x *searching) byLinks(ctx context.Context) (*pageRows, error) {
	q, memory := x.asks, x.s.remembered
	for i := range q.Links {
		others := q.Links[i].Others
		if _, ok := memory.Ask(others); ok {
			continue
		}
		f := finding{typ: others.Type, name: others.Name, set: others.Whole, clauses: others.Clauses, few: true}
		if len(others.Columns) > 0 {
			f.set, f.clauses = others.Rest, others.Others
		}
		if len(f.clauses) == 0 || !memory.Wants(f.key(), true) {
			return nil, nil
		}
		x.connection.release() // it takes one of its own
		if err := x.s.found(ctx, f); err != nil {
			return nil, err
		}
	}
	return x.byMemory(ctx)
}

// sortKey is the text of a place for a cursor, nil for no value.
func sortKey(p remembered.Place) *string {
	if !p.Valued {
		return nil
	}
	return new(strconv.FormatInt(p.Low, 10))
}

// learn lets what would have answered the search be found in the background, when a second
// search has missed it. A dear search has found too much to look at each: columns are wanted at
// once then, and what is asked of terms is answered by all common terms of the type; a search for all
// there is by their surrogates alone.
func (x *searching) learn(dear bool) {
	if x.asks == nil || x.learned {
		return
	}
	x.learned = true
	x.learnOrder(dear)
	x.s.learn(x.asks, dear)
}

func (s *Searcher) learn(q *remembered.Question, dear bool) {
	if len(q.Links) > 0 {
		s.learnLinks(q, dear)
		return
	}
	memory := s.remembered
	find := func(f finding) {
		f.typ, f.name = q.Type, q.Name
		s.find(f)
	}
	known := memory.Has(remembered.TypeKey(q.Type))
	terms := false            // all that are common
	var lost, unknown []int64 // of those that are common, and beside them
	if dear && q.Terms != nil {
		lost = memory.Lost(q.Type, q.Terms)
		switch {
		case !known:
			terms = !q.Terms.Everything()
		case len(lost) > maxLost:
			terms = true
		case len(lost) == 0:
			unknown = memory.Unknown(q.Type, q.Terms)
		}
	}
	whole := len(q.Columns) == 0
	for _, c := range q.Columns {
		whole = whole || memory.Refused(c.Column) // then the matches themselves
	}
	switch {
	case memory.Has(q.Whole):
		return
	case terms:
		find(finding{terms: true, again: known, dear: true})
	case len(lost) > 0:
		find(finding{some: lost, again: true, dear: true})
	case len(unknown) > 0:
		find(finding{some: unknown, dear: true})
	case whole:
		find(finding{set: q.Whole, clauses: q.Clauses})
	case len(q.Others) > 0:
		find(finding{set: q.Rest, clauses: q.Others})
	}
	for _, c := range q.Columns {
		if !whole || terms {
			find(finding{column: &c.Column, dear: dear})
		}
	}
}

// learnLinks is learn for a question with links: what these lead along, and both of their ends.
func (s *Searcher) learnLinks(q *remembered.Question, dear bool) {
	if q.Beside != nil {
		s.learn(q.Beside, dear)
	}
	for i := range q.Links {
		l := &q.Links[i]
		s.learn(l.Others, dear)
		from, to := q, l.Others
		if l.Back {
			from, to = to, from
		}
		s.find(finding{typ: from.Type, name: from.Name, column: &l.References, dear: dear})
		s.find(finding{typ: to.Type, name: to.Name, column: &l.Own, dear: dear})
	}
}

// maxLost is how many common terms that have given way are read by themselves: more take as long as
// reading all resources of the type.
const maxLost = 4

// learnOrder is learn for the column that has the order alone. That of last updates has an index
// of the resources themselves.
func (x *searching) learnOrder(dear bool) {
	if q := x.asks; q != nil && q.Page.Order != nil && x.q.Sort[0].Code != "_lastUpdated" {
		x.s.find(finding{typ: q.Type, name: q.Name, column: &q.Page.Order.Column, dear: dear})
	}
}

// finding is something to remember.
type finding struct {
	typ     int16
	name    string // of the type
	set     remembered.Key
	clauses []match.Clause
	column  *remembered.ColumnKey
	terms   bool    // the common terms of the type
	some    []int64 // some terms alone
	again   bool    // they are common, and not remembered
	ahead   bool    // nobody has asked for it
	behind  int     // how many types have more resources then
	soon    bool    // nor is the database to rest for it
	coded   bool    // a column of the values of one code
	dear    bool    // what misses it is
	few     bool    // a set of more than maxFew members is not
	queued  time.Time
}

// someKey is the key of some terms.
type someKey struct {
	typ   int16
	terms string
}

// key is what memory knows it by.
func (f finding) key() any {
	switch {
	case f.column != nil:
		return *f.column
	case f.terms:
		return remembered.TypeKey(f.typ)
	case f.some != nil:
		return someKey{f.typ, fmt.Sprint(f.some)}
	}
	return f.set
}

// finder finds in the background what is to be remembered, one thing after the other, and beside
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
	// aheadNow has the keys of what is read ahead now, true where a search waits for it, early is whether
	// something is still to be read ahead, or may be.
	aheadNow map[any]bool
	early    bool
	// looking is held by statements that follow, and while it is looked whether the database rests: they are no
	// work.
	looking sync.Mutex
	// looked is the state of the last look whether writers are calm, "" before the first. It, looks and
	// left belong to followAll.
	looked string
	looks  looks
	left   left
}

// push queues a finding; mu is held.
func (w *finder) push(f finding) {
	f.queued = time.Now()
	w.queue = append(w.queue, f)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// shortFirst is how long a finding that reads all resources of a type lets those go first that read a
// part: many of them are short, and each spares searches as much.
const shortFirst = 2 * time.Second

// take takes the finding whose turn it is out of the queue, which is not empty; mu is held.
func (w *finder) take() finding {
	i := 0
	if f := w.queue[0]; f.terms && time.Since(f.queued) < shortFirst {
		i = max(0, slices.IndexFunc(w.queue, func(f finding) bool { return !f.terms }))
	}
	f := w.queue[i]
	w.queue = slices.Delete(w.queue, i, i+1)
	w.now = f.key()
	return f
}

// begin starts findAll, once; mu is held.
func (w *finder) begin(s *Searcher) {
	if w.stop != nil || w.ended {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.wake = stop, make(chan struct{}, 1)
	w.done.Go(func() { s.findAll(ctx) })
	w.done.Go(func() { s.followAll(ctx) })
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

// tellFrom is by how many bytes what is remembered has changed when it is told.
const tellFrom = 4 << 20

// find queues a finding that is wanted and not there.
func (s *Searcher) find(f finding) {
	key := f.key()
	if s.remembered.Has(key) && !f.again || !s.remembered.Wants(key, f.dear) {
		return
	}
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.aheadNow[key]; ok {
		w.aheadNow[key] = true
		return
	}
	if w.ended || len(w.queue) >= maxFindings || w.now == key || slices.ContainsFunc(w.queue, func(f finding) bool { return f.key() == key }) {
		return
	}
	w.begin(s)
	w.push(f)
}

// findAll works until ctx ends.
func (s *Searcher) findAll(ctx context.Context) {
	w := &s.finder
	for {
		w.mu.Lock()
		var f finding
		some := len(w.queue) > 0
		w.now = nil
		if some {
			f = w.take()
		} else {
			w.idle.Broadcast()
		}
		w.mu.Unlock()
		if some {
			if f.again || !s.remembered.Has(f.key()) {
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
		}
	}
}

// followAll works until ctx ends.
func (s *Searcher) followAll(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var told int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.remembered.ManyWritten():
		case <-tick.C:
		}
		s.follow(ctx)
		if now := s.remembered.Bytes(); s.remembers != nil && max(now-told, told-now) >= tellFrom {
			told = now
			s.remembers(now)
		}
		s.finder.mu.Lock()
		s.finder.idle.Broadcast()
		s.finder.mu.Unlock()
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

// Settled waits until everything that was wanted, or is to be read ahead, has been looked for.
func (s *Searcher) Settled() {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.now != nil || len(w.queue) > 0 || w.early || s.remembered.Stat().Lags {
		w.idle.Wait()
	}
}

// follow brings what is remembered up to the present.
func (s *Searcher) follow(ctx context.Context) {
	if behind, ok := s.remembered.CatchUp(); ok {
		s.catchUpWhereCalm(ctx, behind)
		return
	}
	if _, _, ok := s.remembered.Following(); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	since, most, ok := s.remembered.Following() // with what this server has written meanwhile, which is not read
	if !ok {
		return
	}
	st := plan.MostChanges(since, most)
	var c changes
	s.finder.looking.Lock()
	err = conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...)
	s.finder.looking.Unlock()
	if err == nil {
		s.remembered.Bring(c.since(since))
	}
}

// calmPart is the part of MaxChanges that changes between two looks where writers are calm: while they
// are not, memory that lags would be behind again at once, and catching up would slow them down. Where
// nobody asks they are to be calm for calmLooks: an import that waits for the disk is not over. Where
// somebody asks it waits for busyLooks at most: what is found anew follows them.
const (
	calmPart  = 4
	calmLooks = 2
	busyLooks = 20
)

// defaultChangeTakes is that of Config. It takes a third where nothing has to be read from the disk.
const defaultChangeTakes = 50 * time.Microsecond

// catchUpWhereCalm catches up with what memory lags behind when little has changed since the last look.
// Where finding everything anew takes less it is forgotten.
func (s *Searcher) catchUpWhereCalm(ctx context.Context, behind remembered.CatchUp) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	w := &s.finder
	st := plan.ChangedSince(cmp.Or(w.looked, behind.State), behind.Types, remembered.MaxChanges/calmPart)
	var followed bool
	var rids []int64
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&followed, &rids, &w.looked); err != nil {
		return
	}
	most := min(remembered.MaxBrought, int(behind.Cost/s.changeTakes))
	most, ready := w.looks.look(len(rids), most, behind.Asked)
	if !ready {
		return
	}
	w.looked, w.looks = "", looks{}
	if !s.catchUpInSteps(ctx, conn, behind, most) {
		s.remembered.Forget()
	}
}

// left is what a catch-up has left to be brought in by the next one.
type left struct {
	generation int    // of the memory
	state      string // in which the others were brought in
	rids       []int64
}

// defaultStepTakes is that of Config; a step is one transaction.
const defaultStepTakes = time.Second

// catchUpInSteps brings into a memory that lags what has changed, and returns false where that cannot be
// followed, or is more than most. It stops between two steps when writers are no longer calm and nobody
// asks: an import goes on.
func (s *Searcher) catchUpInSteps(ctx context.Context, conn *pgxpool.Conn, behind remembered.CatchUp, most int) bool {
	w := &s.finder
	if w.left.generation != behind.Generation || w.left.state == "" {
		w.left = left{generation: behind.Generation, state: behind.State}
	}
	rest := s.rests(false)
	for first := true; ; first = false {
		followed, busy := true, false
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			rids, now, ok, err := changedSince(ctx, tx, w.left.state, behind.Types, max(0, most-len(w.left.rids)))
			if err != nil || !ok {
				followed = err != nil
				return err
			}
			if busy = !first && !behind.Asked && len(rids) > remembered.MaxChanges; busy {
				return nil
			}
			rids = append(rids, w.left.rids...)
			slices.Sort(rids)
			rids = slices.Compact(rids)
			for until := time.Now().Add(s.stepTakes); len(rids) > 0; rest(ctx) {
				n := min(broughtAtOnce, len(rids))
				if ok, err := bring(ctx, tx, rids[:n], behind); err != nil || !ok {
					followed = err != nil
					return err
				}
				if rids = rids[n:]; time.Now().After(until) {
					break
				}
			}
			w.left.state, w.left.rids = now, slices.Clone(rids)
			return nil
		})
		if s.stepped != nil {
			s.stepped(busy)
		}
		switch {
		case !followed:
			w.left = left{}
			return false
		case err != nil || busy:
			return true
		case len(w.left.rids) == 0:
			now := w.left.state
			w.left = left{}
			return behind.Brought(now)
		}
	}
}

// looks are how often writers were calm, in succession, and busy.
type looks struct{ calm, busy int }

// look says whether to catch up where so many resources have changed since the last look, and with
// how many at most, of those that most allows: after more, and with none at all where writers are never
// calm and somebody asks, everything is forgotten.
func (l *looks) look(changed, most int, asked bool) (atMost int, ready bool) {
	switch {
	case changed <= remembered.MaxChanges/calmPart:
		l.calm++
		return most, asked || l.calm >= calmLooks
	case changed >= most:
		return most, true
	}
	l.calm = 0
	l.busy++
	return 0, asked && l.busy >= busyLooks
}

// rests returns what is called between parts of long work: while short searches wait it rests as long as
// the work takes. What is read ahead, for which nobody waits, stands aside while anything else is served. It returns how
// long it has rested so far.
func (s *Searcher) rests(ahead bool) func(ctx context.Context) time.Duration {
	begin := time.Now()
	worked := begin
	served := s.store.Acquired()
	var rested time.Duration
	return func(ctx context.Context) time.Duration {
		from := time.Now()
		took := from.Sub(worked)
		switch {
		case ahead && !s.finder.isAwaited():
			until := worked.Add((1 + asideFor) * took)
			for since := worked; s.serves(&served, since) && time.Now().Before(until) && ctx.Err() == nil && !s.finder.isAwaited(); {
				since = time.Now()
				wait(ctx, lookEvery)
			}
		case time.Since(begin) > restFrom && s.admission.short.busy():
			wait(ctx, took)
		}
		worked, served = time.Now(), s.store.Acquired()
		rested += worked.Sub(from)
		return rested
	}
}

const (
	// restFrom is the time from which a finding rests.
	restFrom = 500 * time.Millisecond
	// asideFor is how long reading ahead stands aside at most, in the time that it has worked: it holds a
	// snapshot.
	asideFor = 9
	// lookEvery is how often it looks whether others are still served, servedEvery how often a connection is
	// taken from the pool where they are.
	lookEvery   = 20 * time.Millisecond
	servedEvery = 10 * time.Millisecond
)

// serves reports whether others are served, by how many connections were taken since then; served was
// their number.
func (s *Searcher) serves(served *int64, since time.Time) bool {
	before := *served
	*served = s.store.Acquired()
	return *served-before > 1+int64(time.Since(since)/servedEvery)
}

// found finds something and remembers it. It stands in no line: the dear searches that wait
// there need what it finds. While short searches wait one that is long rests as long as it works.
func (s *Searcher) found(ctx context.Context, f finding) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	out := remembered.Found{Type: f.typ, Name: f.name, Set: f.set, Clauses: f.clauses, Ahead: f.ahead, Behind: f.behind}
	begin := time.Now()
	var rested time.Duration
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT "+plan.Now).Scan(&out.State); err != nil || !plan.Lasting(out.State) {
			return err
		}
		if f.ahead { // a sort does not stand aside: it takes one process, not all
			if _, err := tx.Exec(ctx, "SET LOCAL max_parallel_workers_per_gather = 0"); err != nil {
				return err
			}
		}
		rests := s.rests(f.ahead && !f.soon)
		rest := func() { rested = rests(ctx) }
		switch {
		case f.column != nil:
			return s.readColumn(ctx, tx, *f.column, &out, rest)
		case f.terms:
			return s.readTerms(ctx, tx, f.typ, &out, rest)
		case f.some != nil:
			return s.readSomeTerms(ctx, tx, f, &out, rest)
		}
		return s.readSet(ctx, tx, f, &out, rest)
	})
	if err != nil || !plan.Lasting(out.State) {
		return err
	}
	out.Cost = time.Since(begin) - rested
	if !out.Make(s.now()) {
		return nil
	}
	for last := math.MaxInt; ; {
		n, err := s.catchUp(ctx, conn, out.State, f.typ, &out)
		if err != nil || n < 0 {
			return err
		}
		if n < remembered.MaxChanges/4 || n > last/10*9 { // few are left, or they do not become fewer
			break
		}
		last = n
	}
	for range 10 {
		since, ok := s.remembered.Since(out.State, f.typ, f.name)
		if !ok {
			return nil
		}
		st := plan.Changes(since)
		var c changes
		if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...); err != nil {
			return err
		}
		if kept, again := s.remembered.Add(&out, c.since(since)); kept || !again {
			if !kept && f.column != nil && !f.ahead {
				s.remembered.Refuse(*f.column)
			}
			return nil
		}
	}
	return nil
}

// broughtAtOnce is how many resources are brought in at once of those that were written while something was
// found.
const broughtAtOnce = 500

// behind is what resources are brought into that have changed since, some at a time.
type behind interface {
	Stored(rids []int64) *remembered.Stored
	Bring(s *remembered.Stored) bool
	Brought(now string) bool
}

// catchUp brings into something of a state the resources of a type that have changed since, and
// returns their number; below 0 where they cannot be followed, or are more than remembered.MaxBrought.
func (s *Searcher) catchUp(ctx context.Context, conn *pgxpool.Conn, state string, typ int16, to behind) (n int, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		n = -1
		rids, now, ok, err := changedSince(ctx, tx, state, []int16{typ}, remembered.MaxBrought)
		if err != nil || !ok {
			return err
		}
		for some := range slices.Chunk(rids, broughtAtOnce) {
			if ok, err := bring(ctx, tx, some, to); err != nil || !ok {
				return err
			}
		}
		if to.Brought(now) {
			n = len(rids)
		}
		return nil
	})
	return n, err
}

// changedSince reads which resources of some types have changed since a state, and the present one; ok is
// false where that cannot be followed, or is more than most.
func changedSince(ctx context.Context, tx pgx.Tx, state string, types []int16, most int) (rids []int64, now string, ok bool, err error) {
	st := plan.ChangedSince(state, types, most)
	err = tx.QueryRow(ctx, st.SQL, st.Args...).Scan(&ok, &rids, &now)
	return rids, now, ok && len(rids) <= most, err
}

// bring brings in some resources; false where that cannot be followed. They are read in one round trip:
// changed_resources would write them as JSON, which takes both sides several times as long.
func bring(ctx context.Context, tx pgx.Tx, rids []int64, to behind) (bool, error) {
	stored := to.Stored(rids)
	resources, dates, numbers, quantities, strings := plan.Stored(rids)
	var batch pgx.Batch
	queue := func(st match.Statement) *pgx.QueuedQuery { return batch.Queue(st.SQL, st.Args...) }
	queue(resources).Query(func(rows pgx.Rows) error {
		var rid, updated int64
		var id string
		var version int
		var terms, targets []int64
		_, err := pgx.ForEachRow(rows, []any{&rid, &id, &version, &updated, &terms, &targets}, func() error {
			stored.Resource(rid, id, version, updated, terms, targets)
			return nil
		})
		return err
	})
	var of, keys, low, high []int64
	var from, until, system, code, unit, text []string
	entries := func(st match.Statement, add func(i int), columns ...any) {
		queue(st).QueryRow(func(row pgx.Row) error {
			if err := row.Scan(append([]any{&of, &keys}, columns...)...); err != nil {
				return err
			}
			for i := range of {
				add(i)
			}
			return nil
		})
	}
	entries(dates, func(i int) { stored.Date(of[i], keys[i], low[i], high[i]) }, &low, &high)
	entries(numbers, func(i int) { stored.Number(of[i], keys[i], from[i], until[i]) }, &from, &until)
	entries(quantities, func(i int) {
		stored.Quantity(of[i], keys[i], from[i], until[i], system[i], code[i], unit[i])
	}, &from, &until, &system, &code, &unit)
	entries(strings, func(i int) { stored.String(of[i], keys[i], text[i]) }, &text)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return true, err
	}
	return to.Bring(stored), nil
}

// readAtOnce is the number of rows that are read without a rest.
const readAtOnce = 10_000

// wait returns after a time, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// setMemberBytes is about what a member of a set takes.
const setMemberBytes = 2

// readSet reads the members of a set; it is left without a state where there are too
// many.
func (s *Searcher) readSet(ctx context.Context, tx pgx.Tx, f finding, out *remembered.Found, rest func()) error {
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return err
	}
	env := &match.Env{Limit: s.memory.limit, Type: func(string) (int16, bool) { return f.typ, true }, Parts: parts}
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
	most := int(s.remembered.Most() / setMemberBytes)
	if f.few {
		most = min(most, maxFew)
		st = st.AtMost(maxFew + 1)
	}
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
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
		if len(out.RIDs)%readAtOnce == 0 {
			rest()
		}
	}
	return rows.Err()
}

// mostCommon bounds the terms of a type that are remembered together. Each is commonFrom times at
// least among those of plan.SampleTerms, and has commonIn resources for each 65,536 of all types, of
// which a set has a container: one of fewer takes more for these than for its members, and candidates
// find them soon.
const (
	mostCommon = 4096
	commonFrom = 16
	commonIn   = 8
)

// readTerms reads which resources of a type have the terms that are common there.
func (s *Searcher) readTerms(ctx context.Context, tx pgx.Tx, typ int16, out *remembered.Found, rest func()) error {
	common, err := s.commonTerms(ctx, tx, typ)
	if err != nil {
		return err
	}
	terms := remembered.NewTerms(common)
	st := plan.AllTerms(typ)
	all, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer all.Close()
	var has []int64
	for n := 1; all.Next(); n++ {
		v := all.RawValues()
		if len(v[0]) != 8 {
			return errNotBinary
		}
		has = append(has[:0], remembered.Every)
		if err := eachInt8(v[1], func(term int64) { has = append(has, term) }); err != nil {
			return err
		}
		if !terms.Add(rawInt8(v[0]), has) {
			out.State = ""
			return nil
		}
		if n%readAtOnce == 0 {
			rest()
		}
	}
	out.Terms = terms
	return all.Err()
}

// rareTerm is how many resources have a term at most that is read by itself.
const rareTerm = 20_000

// readSomeTerms reads which resources of a type have each of some terms. Of those that are not known
// to be common, those that too many have are left out.
func (s *Searcher) readSomeTerms(ctx context.Context, tx pgx.Tx, f finding, out *remembered.Found, rest func()) error {
	out.Terms = remembered.NewSomeTerms(f.some)
	most := rareTerm + 1
	if f.again {
		most = math.MaxInt32
	}
	for _, term := range f.some {
		st := plan.WithTerm(f.typ, term, most)
		rows, err := tx.Query(ctx, st.SQL, st.Args...)
		if err != nil {
			return err
		}
		n := 0
		for ; rows.Next(); n++ {
			if v := rows.RawValues(); len(v[0]) != 8 {
				rows.Close()
				return errNotBinary
			} else if !out.Terms.Add(rawInt8(v[0]), []int64{term}) {
				rows.Close()
				out.State = ""
				return nil
			}
			if n%readAtOnce == readAtOnce-1 {
				rest()
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if n == most {
			s.remembered.Common(f.typ, term)
			out.Terms.Drop(term)
		}
	}
	return nil
}

// commonTerms reads which terms are common in a type. Those of a list come together, as far as
// a sample tells.
func (s *Searcher) commonTerms(ctx context.Context, tx pgx.Tx, typ int16) (together [][]int64, err error) {
	type seen struct {
		times int
		where uint64 // a hash of the resources that have it
	}
	terms := make(map[int64]seen)
	st := plan.SampleTerms(typ)
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sampled := uint64(0)
	for rows.Next() {
		sampled++
		err := eachInt8(rows.RawValues()[0], func(term int64) {
			s := terms[term]
			terms[term] = seen{times: s.times + 1, where: (s.where ^ sampled) * fnvPrime}
		})
		if err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	sizes, err := typeSizes(ctx, tx)
	if err != nil {
		return nil, err
	}
	from := commonFrom
	if of := sizes[typ]; of > 0 {
		var all int64
		for _, n := range sizes {
			all += n
		}
		from = max(from, int(all*commonIn>>16*int64(sampled)/of))
	}
	common := slices.Collect(maps.Keys(terms))
	common = slices.DeleteFunc(common, func(term int64) bool { return terms[term].times < from })
	slices.SortFunc(common, func(a, b int64) int {
		return cmp.Or(cmp.Compare(terms[b].times, terms[a].times), cmp.Compare(terms[a].where, terms[b].where), cmp.Compare(a, b))
	})
	common = common[:min(mostCommon, len(common))]
	for _, term := range common {
		if last := len(together) - 1; last >= 0 && terms[together[last][0]] == terms[term] {
			together[last] = append(together[last], term)
		} else {
			together = append(together, []int64{term})
		}
	}
	return together, nil
}

// fnvPrime is that of FNV-1a with 64 bits.
const fnvPrime = 1099511628211

// eachInt8 calls f for each element of a bigint[] of one dimension without nulls, in
// PostgreSQL's binary format: dimensions, flags and type, then length and lower bound, then
// each element behind its size.
func eachInt8(array []byte, f func(int64)) error {
	if len(array) == 12 && binary.BigEndian.Uint32(array) == 0 {
		return nil // empty
	}
	if len(array) < 20 || binary.BigEndian.Uint32(array) != 1 || len(array) != 20+12*int(binary.BigEndian.Uint32(array[12:])) {
		return errNotBinary
	}
	for b := array[20:]; len(b) > 0; b = b[12:] {
		f(rawInt8(b[4:12]))
	}
	return nil
}

// readColumn reads the entries of a column; it is left without a state where there are
// too many, or ranges of numbers.
func (s *Searcher) readColumn(ctx context.Context, tx pgx.Tx, key remembered.ColumnKey, out *remembered.Found, rest func()) error {
	most := s.remembered.Most()
	if out.Ahead {
		most = min(most, s.remembered.AheadLeft())
	}
	var units map[int64]*match.Unit
	if key.Kind == remembered.Quantities {
		var err error
		if units, err = readUnits(ctx, tx); err != nil {
			return err
		}
	}
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return err
	}
	out.Column = remembered.NewColumn(key, units)
	st := plan.Column(key, &match.Env{Parts: parts})
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 1; rows.Next(); n++ {
		v := rows.RawValues()
		for _, i := range []int{0, 2, 3, 5} {
			if len(v[i]) != 8 {
				return errNotBinary
			}
		}
		e := remembered.Entry{RID: rawInt8(v[0]), Low: rawInt8(v[2]), High: rawInt8(v[3]), Number: string(v[4]), Unit: rawInt8(v[5])}
		full := n%readAtOnce == 0 && out.Column.Bytes() > most
		if full || v[1][0] != 0 || int16(e.RID>>48) != key.Type || !out.Column.Add(e) {
			if !full || !out.Ahead { // there may be room when it is asked for
				s.remembered.Refuse(key)
			}
			out.State = ""
			return nil
		}
		if n%readAtOnce == 0 {
			rest()
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

// Writing begins to note what a transaction of this server writes: what is remembered follows without
// reading it.
func (s *Searcher) Writing() *remembered.Writing { return s.remembered.Writing() }

// Remembered tells what is remembered of matches and values.
func (s *Searcher) Remembered() remembered.Stat { return s.remembered.Stat() }
