package strategy

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/remembered"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// AheadFrom is how many resources a type has of which something is read ahead: of fewer the
// first broad search is short without, and the first that a link leads through. A type that comes to BesideFrom
// is read beside whatever else there is to do: what an import leaves of fewer is read in seconds when it has ended.
const (
	AheadFrom  = 30_000
	BesideFrom = 1_000_000
)

// aheadEvery is how often a server looks for what could be read ahead, busyFor how long it leaves a
// database alone that it has found at work. It reads when it has found it at rest at restTicks looks
// in a row, one restEvery, and then aheadTogether at the same time.
const (
	aheadEvery    = 10 * time.Second
	busyFor       = 2 * time.Second
	restEvery     = 250 * time.Millisecond
	restTicks     = 4
	aheadTogether = 2
)

// ahead is what a server reads before anybody has asked for it, while the database has nothing
// else to do: what broad searches of the types with most resources need.
type ahead struct {
	from   int64     // resources of a type
	next   time.Time // not before
	queue  []finding
	stale  bool // the queue, as the database has been at work since
	rested int  // looks in a row
	// tried is the generation of the memory in which something was last read: what was not kept,
	// or gave way to others, is not read again before everything was forgotten.
	tried map[any]try
	// coded is the same of the types for whose codes columns were looked for, and how large they were.
	coded map[int16]codedLook
}

// A try is in which generation something was read, and how often.
type try struct{ generation, times int }

// A codedLook is in which generation columns of codes were looked for, how many resources there were, and which
// have entries.
type codedLook struct {
	generation int
	size       int64
	columns    []remembered.ColumnKey
}

// ReadAhead begins to read ahead, of the types with so many resources or more, and beside others of those that come
// to beside.
func (s *Searcher) ReadAhead(from, beside int64) {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.begin(s)
	ctx, stop := context.WithCancel(context.Background())
	begun := w.stop
	w.stop, w.early = func() { stop(); begun() }, true
	w.beside, w.grown = beside, make(chan struct{}, 1)
	w.done.Go(func() { s.readAhead(ctx, from) })
}

// readAhead works until ctx ends.
func (s *Searcher) readAhead(ctx context.Context, from int64) {
	w := &s.finder
	a := &ahead{from: from, tried: make(map[any]try), coded: make(map[int16]codedLook)}
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for {
		next := s.nextAhead(ctx, a)
		w.readsAhead(next, len(a.queue))
		var together errgroup.Group
		together.SetLimit(aheadTogether)
		for _, f := range next {
			together.Go(func() error {
				_ = s.found(ctx, f) // what cannot be found is left to those who ask
				w.hasRead(f)
				return nil
			})
		}
		_ = together.Wait()
		if len(next) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.grown:
			a.stale, a.next = true, time.Time{}
		case <-tick.C:
		}
	}
}

// Given notes that the surrogates of a type are given out up to a number: there may be as many resources. An import
// of many millions is read ahead when it comes to BesideFrom of a type, and followed from then on: what it leaves
// would take minutes to be read when it ends, and most of it would have left every cache by then.
func (s *Searcher) Given(typ int16, n int64) {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.given == nil {
		w.given = make(map[int16]int64)
	}
	before := w.given[typ]
	if w.given[typ] = max(before, n); w.grown != nil && before < w.beside && n >= w.beside {
		select {
		case w.grown <- struct{}{}:
		default:
		}
	}
}

// readsAhead notes what is read ahead now, and how much is to be read behind it.
func (w *finder) readsAhead(next []finding, behind int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aheadNow = make(map[any]bool)
	for _, f := range next {
		w.aheadNow[f.key()] = false
	}
	w.early = len(next)+behind > 0 // what was read may tell what else to read
	w.idle.Broadcast()
}

// hasRead notes that something has been read ahead, kept or not.
func (w *finder) hasRead(f finding) {
	w.mu.Lock()
	delete(w.aheadNow, f.key())
	w.mu.Unlock()
	w.tell()
}

// isAwaited reports whether a search waits for something that is read ahead now: all of it is read at full
// speed then, as it may come behind the others.
func (w *finder) isAwaited() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, awaited := range w.aheadNow {
		if awaited {
			return true
		}
	}
	return false
}

// atOnce is how much is read without a look whether the database rests, codedAtOnce how many columns of a
// code, which take less. What reads stands aside itself where this server serves anybody.
const (
	atOnce      = 4
	codedAtOnce = 8
)

// nextAhead is what is to be read ahead now. What fails is left to those who ask.
func (s *Searcher) nextAhead(ctx context.Context, a *ahead) (next []finding) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := s.now()
	if now.Before(a.next) {
		return nil
	}
	generation, unasked := s.remembered.Generation()
	if len(a.queue) == 0 || a.stale {
		a.queue, a.stale = nil, false
		if !unasked {
			a.queue, _ = s.unread(ctx, a, generation)
		}
		if len(a.queue) == 0 {
			a.next, a.rested = now.Add(aheadEvery), 0
		}
		return nil
	}
	if s.remembered.AheadLeft() <= 0 {
		a.queue = nil
		return nil
	}
	if !a.queue[0].beside {
		if rests, err := s.databaseRests(ctx); err != nil || !rests {
			a.stale, a.rested, a.next = true, 0, now.Add(busyFor)
			return nil
		}
		if a.rested++; a.rested < restTicks {
			return nil
		}
	}
	alike := func(f finding) bool { return f.beside == a.queue[0].beside && f.coded == a.queue[0].coded }
	n, most := 1, atOnce
	if a.queue[0].coded {
		most = codedAtOnce
	}
	for n < min(most, len(a.queue)) && alike(a.queue[n]) {
		n++
	}
	next, a.queue = a.queue[:n:n], a.queue[n:]
	for _, f := range next {
		last := a.tried[f.key()]
		if last.generation != generation {
			last = try{generation: generation}
		}
		a.tried[f.key()] = try{generation, last.times + 1}
	}
	return next
}

// besideTimes is how often something is read beside others: more may be written meanwhile than can be brought in.
const besideTimes = 4

// isBeside reports whether a type of so many resources is read beside others: one of many more takes too long.
func (w *finder) isBeside(size int64) bool { return size >= w.beside && size <= w.beside+w.beside/2 }

// sharedFrom is how many resources have the same last update from which a column of them is small:
// what is written at once has one.
const sharedFrom = 10

// linksFrom is how many resources of a type there are at least for each that they refer to where links to
// these are read ahead: without, each of them is looked up by itself.
const linksFrom = 6

// unread is what broad searches need and memory does not have: of the types with most resources first the
// common terms, each column, the values of each common code by themselves, and the references to what many
// refer to, with what links ask of that: patients. Values of codes need the terms to be known: until
// then it is what comes before. Columns of last updates come when all others are there,
// as they are seldom asked for; but where its column is small, that of the largest type, which takes
// longest without, is one of the others.
func (s *Searcher) unread(ctx context.Context, a *ahead, generation int) ([]finding, error) {
	if s.store.Resources() == nil || s.remembered.AheadLeft() <= 0 {
		return nil, nil
	}
	registry := s.store.Resources().Current()
	var numbers []int16
	names := make(map[int16]string)
	for _, typ := range registry.Types() {
		if n, ok := s.store.KnownType(typ); ok && !slices.Contains(unlogged, typ) {
			numbers, names[n] = append(numbers, n), typ
		}
	}
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	sizes, err := typeSizes(ctx, conn)
	if err != nil {
		return nil, err
	}
	for n, given := range s.finder.givenOut() {
		if s.finder.isBeside(given) { // the statistics may be of long ago
			sizes[n] = given
		}
	}
	var shared float64
	st := plan.PerInstant()
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&shared); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	small := func(n int16) bool { return sizes[n] < a.from }
	numbers = slices.DeleteFunc(numbers, small)
	slices.SortFunc(numbers, func(a, b int16) int { return cmp.Compare(sizes[b], sizes[a]) })
	r := &reading{names: names, sizes: sizes, parameters: registry.Parameters, beside: s.finder.isBeside, missing: func(f finding) bool {
		last := a.tried[f.key()]
		again := last.generation != generation || last.times == 0 || f.beside && last.times < besideTimes
		return again && !s.remembered.Has(f.key()) && (f.column == nil || !s.remembered.Refused(*f.column))
	}}
	late := numbers
	waits := false
	for i, n := range numbers {
		beside := s.finder.isBeside(sizes[n])
		if waits && !beside {
			continue
		}
		r.all(n)
		if r.missing(r.of(n, finding{terms: true})) {
			if beside {
				return r.first(), nil
			}
			waits = true
			continue
		}
		if last, looked := a.coded[n]; !looked || last.generation != generation || sizes[n] > codedGrown*last.size {
			coded, err := s.withEntries(ctx, conn, plan.CodedColumns(n, registry.Parameters(names[n]), s.remembered.CommonTerms(n)))
			if err != nil {
				return nil, err
			}
			a.coded[n] = codedLook{generation, sizes[n], coded}
		}
		for _, key := range a.coded[n].columns {
			r.add(n, finding{column: &key, coded: true})
		}
		if i == 0 && shared >= sharedFrom {
			r.column(n, plan.UpdatedColumn(n))
			late = numbers[1:]
		}
		for _, ref := range r.links(n) {
			r.column(n, ref.References)
			to := r.number(ref.Target)
			if r.column(to, remembered.OwnRefs(to)); small(to) { // it takes little time and room
				r.all(to)
			}
		}
	}
	if !waits {
		for _, n := range late {
			r.column(n, plan.UpdatedColumn(n))
		}
	}
	return r.first(), nil
}

// codedGrown is how many times as large a type has grown when other codes are looked for.
const codedGrown = 8

// withEntries are those of some columns of a type that have entries.
func (s *Searcher) withEntries(ctx context.Context, conn Conn, columns []remembered.ColumnKey) ([]remembered.ColumnKey, error) {
	if len(columns) == 0 {
		return nil, nil
	}
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return nil, err
	}
	var out []remembered.ColumnKey
	for _, kind := range []remembered.Kind{remembered.Dates, remembered.Numbers, remembered.Quantities} {
		of := slices.DeleteFunc(slices.Clone(columns), func(c remembered.ColumnKey) bool { return c.Kind != kind })
		if len(of) == 0 {
			continue
		}
		st := plan.WithEntries(of, &match.Env{Parts: parts})
		rows, err := conn.Query(ctx, st.SQL, st.Args...)
		if err != nil {
			return nil, err
		}
		var at int
		if _, err := pgx.ForEachRow(rows, []any{&at}, func() error {
			out = append(out, of[at])
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// A reading is what is to be read ahead, in its order.
type reading struct {
	names      map[int16]string // of the types
	sizes      map[int16]int64
	parameters func(typ string) []*fhir.Parameter
	beside     func(size int64) bool
	missing    func(finding) bool
	list       []finding
}

// of is a finding of a type.
func (r *reading) of(n int16, f finding) finding {
	f.typ, f.name, f.ahead, f.beside = n, r.names[n], true, r.beside(r.sizes[n])
	return f
}

// first is the list, with what is read beside others before the rest.
func (r *reading) first() []finding {
	slices.SortStableFunc(r.list, func(a, b finding) int {
		switch {
		case a.beside == b.beside:
			return 0
		case a.beside:
			return -1
		}
		return 1
	})
	return r.list
}

func (r *reading) add(n int16, f finding) {
	f = r.of(n, f)
	listed := func(o finding) bool { return o.key() == f.key() }
	if r.missing(f) && !slices.ContainsFunc(r.list, listed) {
		r.list = append(r.list, f)
	}
}

func (r *reading) column(n int16, key remembered.ColumnKey) { r.add(n, finding{column: &key}) }

// all adds the common terms of a type, and each column of values.
func (r *reading) all(n int16) {
	r.add(n, finding{terms: true})
	for _, c := range plan.ColumnsOf(n, r.parameters(r.names[n])) {
		r.column(n, c)
	}
}

// links are the references of a type that are read: to what many of its resources refer to.
func (r *reading) links(n int16) []plan.Reference {
	return slices.DeleteFunc(plan.LinksOf(n, r.parameters(r.names[n])), func(ref plan.Reference) bool {
		size := r.sizes[r.number(ref.Target)]
		return size == 0 || size*linksFrom > r.sizes[n]
	})
}

// number is that of a type, 0 for one that there is nothing of.
func (r *reading) number(typ string) int16 {
	for n, name := range r.names {
		if name == typ {
			return n
		}
	}
	return 0
}

// typeSizes are about how many resources of each type there are, as far as PostgreSQL has looked.
func typeSizes(ctx context.Context, conn Conn) (map[int16]int64, error) {
	st := plan.TypeSizes()
	rows, err := conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	out := make(map[int16]int64)
	var typ int16
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&typ, &size}, func() error {
		out[typ] = size
		return nil
	})
	return out, err
}

// givenOut is about how many surrogates of each type are given out, as far as this server has taken any.
func (w *finder) givenOut() map[int16]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.given)
}

// databaseRests reports whether no server does anything on the database at this moment, and it
// is no standby, where nothing is remembered.
func (s *Searcher) databaseRests(ctx context.Context) (rests bool, err error) {
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	s.finder.looking.Lock()
	defer s.finder.looking.Unlock()
	err = conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery() AND NOT EXISTS (SELECT FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.state = 'active' AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid())`).Scan(&rests)
	return rests, err
}
