package strategy

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/match"
)

// connection is the connection of one search: taken when it is first needed, kept from
// one statement to the next, so that a search waits once.
type connection struct {
	s     *Searcher
	conn  *pgxpool.Conn
	end   func()
	dear  bool         // it has a place among the dear searches
	key   totalKey     // of that place
	parts *match.Parts // that the plan asks; nil as long as there is no plan
	// broad is set where memory has found many matches: a search of few goes before it.
	broad bool
}

// admission limits the running searches by two queues. A cheap search gets a place of both kinds in the order of
// arrival; searches with few rows come before broad ones. A search that turns out expensive, because it must count or
// read many matches, returns these places and waits in a queue of its own. So no cheap search waits for an
// expensive one.
type admission struct {
	// all has room for fewer searches than there are connections, so that reads and
	// writes find one while long searches run.
	all chan struct{}
	// short has room for a few searches at a time, which keep every processor busy;
	// more would only take turns and all end late.
	short shortPlaces
	// dear has room for the dear searches: half of the processors, at least one.
	dear *line
}

// shortPlaces are the places of short searches. Waiting searches are admitted in the order of arrival, but searches
// with few rows, like those of one patient, before broad ones. Of broadTurn places at least one goes to a
// broad search.
type shortPlaces struct {
	mu      sync.Mutex
	free    int
	given   int
	waiting [2][]chan struct{} // of few rows, broad
}

// broadTurn gives broad searches about the part of the places that they have of a mix: with fewer
// they wait for longer than others even where nobody writes.
const broadTurn = 4

// take waits for a place.
func (p *shortPlaces) take(ctx context.Context, broad bool) error {
	kind := 0
	if broad {
		kind = 1
	}
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	p.waiting[kind] = append(p.waiting[kind], mine)
	p.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiting[kind], mine)
	if i >= 0 {
		p.waiting[kind] = slices.Delete(p.waiting[kind], i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // it was given meanwhile
		p.leave()
	}
	return ctx.Err()
}

// leave gives the place to the next.
func (p *shortPlaces) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := 0
	if p.given++; len(p.waiting[0]) == 0 || p.given%broadTurn == 0 && len(p.waiting[1]) > 0 {
		kind = 1
	}
	if len(p.waiting[kind]) == 0 {
		p.free++
		return
	}
	close(p.waiting[kind][0])
	p.waiting[kind] = slices.Delete(p.waiting[kind], 0, 1)
}

// busy reports whether no place is free.
func (p *shortPlaces) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free == 0
}

// line admits a limited number of searches, in the order of arrival, and one at a time for each key: the next
// search with that key finds the result in the cache.
type line struct {
	mu      sync.Mutex
	room    int
	inside  map[totalKey]struct{} // the keys of those inside
	waiting []place
}

// place is where somebody waits.
type place struct {
	in  chan struct{} // closed when it has been let in
	key totalKey      // the zero key is nobody's
}

// admits reports whether one with that key may go in; mu is held.
func (l *line) admits(key totalKey) bool {
	_, one := l.inside[key]
	return l.room > 0 && !one
}

// admit takes the room of one; mu is held.
func (l *line) admit(key totalKey) {
	l.room--
	if key == (totalKey{}) {
		return
	}
	if l.inside == nil {
		l.inside = make(map[totalKey]struct{})
	}
	l.inside[key] = struct{}{}
}

// try goes in where there is room.
func (l *line) try(key totalKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.admits(key) {
		return false
	}
	l.admit(key)
	return true
}

// needless tells who waits in a line that it need not any more, and else when to ask
// again.
type needless func() (yes bool, again <-chan struct{})

// enter waits until it is let in, or gives up: with the error of ctx, or without one where
// it is needless, which may be nil.
func (l *line) enter(ctx context.Context, key totalKey, needless needless) (in bool, err error) {
	if l.try(key) {
		return true, nil
	}
	mine := place{make(chan struct{}), key}
	l.mu.Lock()
	l.waiting = append(l.waiting, mine)
	l.let()
	l.mu.Unlock()
	for {
		var again <-chan struct{}
		if needless != nil {
			var yes bool
			if yes, again = needless(); yes {
				break
			}
		}
		select {
		case <-mine.in:
			return true, nil
		case <-again:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, mine)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was let in meanwhile
		l.leave(key)
	}
	return false, err
}

// leave makes room for the next.
func (l *line) leave(key totalKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room++
	delete(l.inside, key)
	l.let()
}

// let lets in who may go in; mu is held.
func (l *line) let() {
	for {
		i := slices.IndexFunc(l.waiting, func(p place) bool { return l.admits(p.key) })
		if i < 0 {
			return
		}
		l.admit(l.waiting[i].key)
		close(l.waiting[i].in)
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// shortFor is how long a search counts among the short ones. One that takes longer makes
// room for another there.
const shortFor = 20 * time.Millisecond

// reservedConns is the number of connections of the pool that searches leave to others.
const reservedConns = 3

func newAdmission(maxConns int) *admission {
	return &admission{
		all:   make(chan struct{}, max(1, maxConns-reservedConns)),
		short: shortPlaces{free: max(1, min(maxConns/2, 2*runtime.NumCPU()))},
		dear:  &line{room: max(1, runtime.NumCPU()/2)},
	}
}

// take waits for a turn, and returns how to end it.
func (t *admission) take(ctx context.Context, broad bool) (end func(), err error) {
	if err := t.short.take(ctx, broad); err != nil {
		return nil, err
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		t.short.leave()
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(t.short.leave)
	timer := time.AfterFunc(shortFor, leave)
	return func() {
		timer.Stop()
		leave()
		<-t.all
	}, nil
}

// errNewParts is of a search that has waited for so long that it has to be planned anew.
var errNewParts = errors.New("search: parts of the index have been announced since the plan was made")

// getConnection returns the connection for a statement that begins at once. It fails with errNewParts if the plan reads other
// parts than the present ones.
func (l *connection) getConnection(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := l.takenConnection(ctx)
	if err != nil || l.parts == nil {
		return conn, err
	}
	now, err := l.s.store.Parts(ctx)
	if err == nil && now != l.parts {
		err = errNewParts
	}
	return conn, err
}

func (l *connection) takenConnection(ctx context.Context) (*pgxpool.Conn, error) {
	if l.conn != nil {
		return l.conn, nil
	}
	end := func() {}
	if !l.dear {
		var err error
		if end, err = l.s.admission.take(ctx, l.broad); err != nil {
			return nil, err
		}
	}
	conn, err := l.s.store.Acquire(ctx)
	if err != nil {
		end()
		return nil, err
	}
	l.conn, l.end = conn, end
	return conn, nil
}

// Hold takes a connection as a search does, and returns how to give it back.
func (s *Searcher) Hold(ctx context.Context) (release func(), err error) {
	l := &connection{s: s}
	_, err = l.getConnection(ctx)
	return l.release, err
}

// HoldDear takes a place of a dear search.
func (s *Searcher) HoldDear(ctx context.Context) (release func(), err error) {
	l := &connection{s: s}
	_, err = l.becomeDear(ctx, totalKey{}, nil)
	return l.close, err
}

// DearWaiting is how many wait for a place of a dear search.
func (s *Searcher) DearWaiting() int {
	l := s.admission.dear
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// release returns the connection to the pool; the next statement takes another.
func (l *connection) release() {
	if l.conn != nil {
		l.conn.Release()
		l.end()
		l.conn = nil
	}
}

// becomeDear moves the search to the line of the dear ones; waited is true where others
// were before it, and it is not dear where needless has said so. It gives the connection
// back while it waits. Searches with the same clauses have the same key.
func (l *connection) becomeDear(ctx context.Context, key totalKey, needless needless) (waited bool, err error) {
	if l.dear {
		return false, nil
	}
	if line := l.s.admission.dear; !line.try(key) {
		waited = true
		l.release()
		if in, err := line.enter(ctx, key, needless); !in {
			return true, err
		}
	}
	if l.conn != nil {
		l.end() // its place among the cheap ones
		l.end = func() {}
	}
	l.dear, l.key = true, key
	return waited, nil
}

// becomeDear is connection.becomeDear; inside a transaction, which has a connection, it
// does nothing.
func (x *searching) becomeDear(ctx context.Context) (waited bool, err error) {
	if x.isPrivate() || x.inSnapshot {
		return false, nil
	}
	return x.connection.becomeDear(ctx, x.clauses(), nil)
}

// underWay contains the results that several searches are waiting for.
type underWay struct {
	mu     sync.Mutex
	ending map[totalKey]chan struct{} // closed when it has ended
}

// begin begins something, or returns when the one ends who is at it.
func (u *underWay) begin(key totalKey) (end func(), ends <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.ending[key]; c != nil {
		return nil, c
	}
	c := make(chan struct{})
	if u.ending == nil {
		u.ending = make(map[totalKey]chan struct{})
	}
	u.ending[key] = c
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.ending, key)
		close(c)
	}, nil
}

// runAlone waits, without a connection, until no other search finds what key names. Inside a
// transaction, which has a connection, it does not wait.
func (x *searching) runAlone(ctx context.Context, key totalKey) (end func(), err error) {
	if x.isPrivate() || x.inSnapshot {
		return func() {}, nil
	}
	for {
		end, ends := x.s.underWay.begin(key)
		if end != nil {
			return end, nil
		}
		x.connection.release()
		select {
		case <-ends:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// clauses returns a key of the search's clauses, the same for every page.
func (x *searching) clauses() totalKey { return keyOf(x.plan.Count()) }

// becomeDearUnlessFound is becomeDear, but that it returns the page where memory has it
// before the search is let in.
func (x *searching) becomeDearUnlessFound(ctx context.Context) (p *pageRows, waited bool, err error) {
	q := x.asks
	if q == nil || len(x.q.Sort) > 0 || x.isPrivate() || x.inSnapshot {
		waited, err = x.becomeDear(ctx)
		return nil, waited, err
	}
	found := func() (bool, <-chan struct{}) {
		again := x.s.finder.newWork()
		_, yes := x.s.cache.Ask(q)
		return yes, again
	}
	for range maxAsked {
		more, err := x.connection.becomeDear(ctx, x.clauses(), found)
		waited = waited || more
		if err != nil || !more {
			return nil, waited, err
		}
		if p, err := x.byMemory(ctx); p != nil || err != nil || x.connection.dear {
			return p, waited, err
		}
	}
	_, err = x.becomeDear(ctx)
	return nil, true, err
}

// close ends the search.
func (l *connection) close() {
	l.release()
	if l.dear {
		l.s.admission.dear.leave(l.key)
		l.dear = false
	}
}

func (l *connection) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := l.getConnection(ctx)
	if err != nil {
		return nil, err
	}
	return conn.Query(ctx, sql, args...)
}

func (l *connection) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := l.getConnection(ctx)
	if err != nil {
		return failedRow{err}
	}
	return conn.QueryRow(ctx, sql, args...)
}

// failedRow is the answer of a query that could not be asked.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }
