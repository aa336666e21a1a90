package strategy

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// AheadFrom is how many resources a type has of which something is read ahead: of fewer the
// first broad search is short without, and the first that a link leads through.
const AheadFrom = 10_000

// soonPart limits the types that are read ahead while the server has other work and writes: at most soonPart times
// AheadFrom resources. Such a read takes half a second. From then on the cache grows with the server's own writes, so
// that after an import of millions nothing remains to be read.
const soonPart = 12

// aheadEvery is how often a server looks for what could be read ahead, and busyFor where it writes; that is also how long
// it leaves a database alone that it has found at work. It reads when it has found it at rest at restTicks looks
// in a row, one restEvery, and then aheadTogether at the same time.
const (
	aheadEvery    = 10 * time.Second
	busyFor       = 2 * time.Second
	restEvery     = 250 * time.Millisecond
	restTicks     = 4
	aheadTogether = 2
)

// ahead is the work of reading ahead: while the database is idle, a server reads the data that broad searches of
// large types need, before the first such search.
type ahead struct {
	from   int64     // resources of a type
	next   time.Time // not before
	queue  []finding
	rested int // looks in a row
	// tried contains the generation of the cache in which something was last read. An item that was not kept, or was
	// evicted, is read again only after the cache was cleared.
	tried map[any]int
	// coded is the same of the types for whose codes columns were looked for.
	coded map[int16]int
}

// ReadAhead begins to read ahead, of the types with so many resources or more.
func (s *Searcher) ReadAhead(from int64) {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.beginWorkers(s)
	ctx, stop := context.WithCancel(context.Background())
	begun := w.stop
	w.stop, w.early = func() { stop(); begun() }, true
	w.done.Go(func() { s.readAhead(ctx, from) })
}

// readAhead works until ctx ends.
func (s *Searcher) readAhead(ctx context.Context, from int64) {
	w := &s.finder
	a := &ahead{from: from, tried: make(map[any]int), coded: make(map[int16]int)}
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for {
		next := s.nextAhead(ctx, a)
		w.readsAhead(next, len(a.queue))
		var together errgroup.Group
		together.SetLimit(aheadTogether)
		for _, f := range next {
			together.Go(func() error {
				_ = s.runFinding(ctx, f) // after a failure, a search reads it
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
		case <-tick.C:
		}
	}
}

// readsAhead records the items that are being read ahead, and the number of items behind them.
func (w *finder) readsAhead(next []finding, behind int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aheadNow = make(map[any]bool)
	for _, f := range next {
		w.aheadNow[f.key()] = false
	}
	w.early = len(next)+behind > 0 // the data just read may name more to read
	w.idle.Broadcast()
}

// hasRead notes that something has been read ahead, kept or not.
func (w *finder) hasRead(f finding) {
	w.mu.Lock()
	delete(w.aheadNow, f.key())
	w.mu.Unlock()
	w.announceWork()
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

// atOnce is the number of items read between two checks whether the database is idle. codedAtOnce is the number of
// columns of a code, which are cheaper. A read pauses by itself while this server serves requests.
const (
	atOnce      = 4
	codedAtOnce = 8
)

// nextAhead returns the items to read ahead now. After a failure, searches read the item.
func (s *Searcher) nextAhead(ctx context.Context, a *ahead) (next []finding) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := s.now()
	if now.Before(a.next) {
		return nil
	}
	generation, unasked := s.cache.Generation()
	if len(a.queue) == 0 {
		if !unasked {
			a.queue, _ = s.unread(ctx, a, generation)
		}
		if len(a.queue) == 0 {
			a.next, a.rested = now.Add(aheadEvery), 0
			if s.cache.Writes() {
				a.next = now.Add(busyFor)
			}
		}
		return nil
	}
	if s.cache.AheadLeft() <= 0 {
		a.queue = nil
		return nil
	}
	if soon := s.cache.Writes() && a.soonFirst(); !soon {
		if rests, err := s.databaseRests(ctx); err != nil || !rests {
			a.rested, a.next = 0, now.Add(busyFor)
			if s.cache.Writes() { // other types have grown meanwhile
				more, _ := s.unread(ctx, a, generation)
				a.add(more)
			}
			return nil
		}
		if a.rested++; a.rested < restTicks {
			return nil
		}
	}
	n := 1
	for n < len(a.queue) && a.queue[n].soon == a.queue[0].soon && (n < atOnce || n < codedAtOnce && a.queue[0].coded && a.queue[n].coded) {
		n++
	}
	next, a.queue = a.queue[:n:n], a.queue[n:]
	for _, f := range next {
		a.tried[f.key()] = generation
	}
	return next
}

// add adds the items that are not in the list. Items already in the list stay: columns of codes are looked up once.
func (a *ahead) add(more []finding) {
	for _, f := range more {
		if !slices.ContainsFunc(a.queue, func(o finding) bool { return o.key() == f.key() }) {
			a.queue = append(a.queue, f)
		}
	}
}

// soonFirst moves the items to be read soon to the front, and reports whether there are any.
func (a *ahead) soonFirst() bool {
	rank := func(f finding) int {
		if f.soon {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(a.queue, func(x, y finding) int { return cmp.Compare(rank(x), rank(y)) })
	return a.queue[0].soon
}

// sharedFrom is the mean number of resources with the same last update from which a column of last updates is small:
// resources written together share one.
const sharedFrom = 10

// linksFrom is how many resources of a type there are at least for each that they refer to where links to
// these are read ahead: without, each of them is looked up by itself.
const linksFrom = 6

// unread returns the data that broad searches need and the cache lacks. Common terms and columns of each type come first,
// the largest types before others: a cache that is too small lacks the rest. Then follow, type by type, the
// values of each common code, and the references to patients with the data that links along them need. Values of
// codes need the terms; until these are cached, unread returns the items before them. Columns of last updates
// come last, because few searches need them. The column of the largest type, whose searches are slowest without
// it, comes behind the columns of values if it is small.
func (s *Searcher) unread(ctx context.Context, a *ahead, generation int) ([]finding, error) {
	if s.store.Resources() == nil || s.cache.AheadLeft() <= 0 {
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
	small := func(n int16) bool { return sizes[n] < a.from }
	unseen := slices.DeleteFunc(slices.Clone(numbers), func(n int16) bool { return !small(n) })
	spans, err := readSizes(ctx, conn, plan.TypeSpans(unseen))
	if err != nil {
		return nil, err
	}
	maps.Copy(sizes, spans)
	var shared float64
	st := plan.PerInstant()
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&shared); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	numbers = slices.DeleteFunc(numbers, small)
	slices.SortFunc(numbers, func(a, b int16) int { return cmp.Compare(sizes[b], sizes[a]) })
	r := &reading{names: names, types: numbers, sizes: sizes, soon: a.from * soonPart, parameters: registry.Parameters, missing: func(f finding) bool {
		last, tried := a.tried[f.key()]
		return !s.cache.Has(f.key()) && (!tried || last != generation)
	}}
	for _, n := range numbers {
		r.all(n)
	}
	late := numbers
	if len(numbers) > 0 && shared >= sharedFrom {
		r.column(numbers[0], plan.UpdatedColumn(numbers[0]))
		late = numbers[1:]
	}
	for _, n := range numbers {
		if r.missing(finding{typ: n, terms: true}) {
			return r.list, nil
		}
		if last, tried := a.coded[n]; !tried || last != generation {
			coded, err := s.withEntries(ctx, conn, plan.CodedColumns(n, registry.Parameters(names[n]), s.cache.CommonTerms(n)))
			if err != nil {
				return nil, err
			}
			a.coded[n] = generation
			for _, key := range coded {
				r.add(n, finding{column: &key, coded: true})
			}
		}
		for _, ref := range r.links(n) {
			r.column(n, ref.References)
			to := r.number(ref.Target)
			if r.column(to, cache.OwnRefs(to)); small(to) { // it takes little time and room
				r.all(to)
			}
		}
	}
	for _, n := range late {
		r.column(n, plan.UpdatedColumn(n))
	}
	return r.list, nil
}

// withEntries returns the columns of a type that have entries.
func (s *Searcher) withEntries(ctx context.Context, conn Conn, columns []cache.ColumnKey) ([]cache.ColumnKey, error) {
	if len(columns) == 0 {
		return nil, nil
	}
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return nil, err
	}
	var out []cache.ColumnKey
	for _, kind := range []cache.Kind{cache.Dates, cache.Numbers, cache.Quantities} {
		of := slices.DeleteFunc(slices.Clone(columns), func(c cache.ColumnKey) bool { return c.Kind != kind })
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

// A reading is a list of items to read ahead, in order.
type reading struct {
	names      map[int16]string // of the types
	types      []int16          // that are large, the largest first
	sizes      map[int16]int64
	soon       int64 // the most resources of a type that is read soon
	parameters func(typ string) []*fhir.Parameter
	missing    func(finding) bool
	list       []finding
}

func (r *reading) add(n int16, f finding) {
	f.typ, f.name, f.ahead, f.soon = n, r.names[n], true, r.sizes[n] <= r.soon
	f.behind = max(0, slices.Index(r.types, n))
	listed := func(o finding) bool { return o.key() == f.key() }
	if r.missing(f) && !slices.ContainsFunc(r.list, listed) {
		r.list = append(r.list, f)
	}
}

func (r *reading) column(n int16, key cache.ColumnKey) { r.add(n, finding{column: &key}) }

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

// number returns the number of a type, 0 for a type without resources.
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
	return readSizes(ctx, conn, plan.TypeSizes())
}

// readSizes reads sizes by type.
func readSizes(ctx context.Context, conn Conn, st match.Statement) (map[int16]int64, error) {
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
