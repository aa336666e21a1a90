package strategy

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
)

// finding is something to remember.
type finding struct {
	typ     int16
	name    string // of the type
	set     cache.Key
	clauses []match.Clause
	column  *cache.ColumnKey
	terms   bool    // the common terms of the type
	some    []int64 // some terms alone
	again   bool    // they are common, and not remembered
	ahead   bool    // nobody has asked for it
	behind  int     // how many types have more resources then
	soon    bool    // nor is the database to rest for it
	coded   bool    // a column of the values of one code
	dear    bool    // an expensive search missed it
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
		return cache.TypeKey(f.typ)
	case f.some != nil:
		return someKey{f.typ, fmt.Sprint(f.some)}
	}
	return f.set
}

// finder fills the cache in the background, one item after the other. Between searches it also applies the changes of the
// change log to the cache.
type finder struct {
	mu    sync.Mutex
	queue []finding
	now   any                // the key of the current item, nil for none
	stop  context.CancelFunc // nil before the first
	ended bool
	done  sync.WaitGroup
	idle  *sync.Cond
	wake  chan struct{}
	next  chan struct{} // closed when something has been looked for; nil where nobody waits
	// aheadNow has the keys of the items being read ahead, true if a search waits for the item. early reports whether
	// items remain, or may remain, to be read ahead.
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

// beginWorkers starts findAll, once; mu is held.
func (w *finder) beginWorkers(s *Searcher) {
	if w.stop != nil || w.ended {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.wake = stop, make(chan struct{}, 1)
	w.done.Go(func() { s.findAll(ctx) })
	w.done.Go(func() { s.followAll(ctx) })
}

// newWork is closed when the next finding has been looked for.
func (w *finder) newWork() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next
}

func (w *finder) announceWork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// maxFindings bounds what waits to be found.
const maxFindings = 64

// addFinding queues a finding that is wanted and not there.
func (s *Searcher) addFinding(f finding) {
	key := f.key()
	if s.cache.Has(key) && !f.again || !s.cache.Wants(key, f.dear) {
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
	w.beginWorkers(s)
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
			if f.again || !s.cache.Has(f.key()) {
				// What cannot be found now is wanted again.
				_ = s.runFinding(ctx, f)
			}
			w.announceWork()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
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

// Settled waits until everything that was wanted, or is to be read ahead, has been looked for.
func (s *Searcher) Settled() {
	w := &s.finder
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.now != nil || len(w.queue) > 0 || w.early || s.cache.Stat().Lags {
		w.idle.Wait()
	}
}

// quietTime returns a function to be called between parts of long work. While short searches wait, it pauses as long as the
// work has taken. Reading ahead, for which nobody waits, pauses while the server serves any request. The function
// returns the total of its pauses.
func (s *Searcher) quietTime(ahead bool) func(ctx context.Context) time.Duration {
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
		case time.Since(begin) > restFrom && s.admission.IsBusy():
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

// runFinding computes an item and caches it. It bypasses the queues: the expensive searches there need the item. While short
// searches wait, a long computation pauses as long as it works.
func (s *Searcher) runFinding(ctx context.Context, f finding) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	out := cache.Found{Type: f.typ, Name: f.name, Set: f.set, Clauses: f.clauses, Ahead: f.ahead, Behind: f.behind}
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
		rests := s.quietTime(f.ahead && !f.soon)
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
		if n < cache.MaxChanges/4 || n > last/10*9 { // few are left, or they do not become fewer
			break
		}
		last = n
	}
	for range 10 {
		since, ok := s.cache.Since(out.State, f.typ, f.name)
		if !ok {
			return nil
		}
		st := plan.Changes(since)
		var c changes
		if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...); err != nil {
			return err
		}
		if kept, again := s.cache.Add(&out, c.since(since)); kept || !again {
			if !kept && f.column != nil && !f.ahead {
				s.cache.Refuse(*f.column)
			}
			return nil
		}
	}
	return nil
}

// wait returns after a time, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
