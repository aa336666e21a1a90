package sandbox

import (
	"context"
	"errors"
	"time"
)

// A call has a turn while it runs. There are two kinds of turns: first calls, and nested calls,
// for which the script of another call waits. The scheduler below gives out the turns.
//
//	first calls    surge × Pool.Size turns; beyond Pool.Size only beside calls that run for patience
//	nested calls   maxNested turns in the pool, treeNested of one tree
//
// A tree is a first call and all the nested calls below it. Workers are as many as turns, so the
// memory of all workers is bounded by these numbers and by Limits.Memory.
//
// A first call counts for its App and its client. Its level is the number of turns that these
// have, the smaller of the two. The lowest level goes first, and the last free turns are only for
// level 0: an App or a client that floods the pool leaves turns to the others.
//
// A nested call starts only while enough turns remain for the deepest chain of calls below it.
// The call that has started last can therefore always start another one below it. So scripts that
// wait for each other never wait for ever.
const (
	patience = 100 * time.Millisecond
	surge    = 4

	// maxTreeDepth is the number of calls that may wait for each other, the first one included.
	maxTreeDepth = 8
	// maxNested and treeNested are numbers of nested calls that run at the same time.
	maxNested  = 12
	treeNested = 10

	// maxHosts is how many host calls of a tree the server carries out at the same time.
	maxHosts = 4
	// maxTreeBytes is the size of the answers on their way to the scripts of a tree, in bytes,
	// from which on the server carries out no further host call for them.
	maxTreeBytes = 8 << 20
)

// turn is one call that runs or waits to run.
type turn struct {
	pool        *Pool
	tree        *tree
	app, client string // of the first call; "" is not counted
	depth       int    // 1 for the first call of a tree
	began       time.Time
	ready       chan struct{} // closed when a call that waited may run
}

// tree is a first call with its nested calls. Pool.mu guards it.
type tree struct {
	nested  int           // calls that run below the first one
	hosts   int           // host calls that the server carries out
	bytes   int           // size of the answers on their way to scripts
	changed chan struct{} // closed when hosts or bytes has become smaller; nil where nobody waits
}

type turnKey struct{}

// turnOf returns the turn of the script that a context works for, nil for none.
func turnOf(ctx context.Context) *turn {
	t, _ := ctx.Value(turnKey{}).(*turn)
	return t
}

// newTurn returns the turn of a call that has not started.
func (p *Pool) newTurn(ctx context.Context, c *Call) (*turn, error) {
	parent := turnOf(ctx)
	if parent == nil || parent.pool != p {
		return &turn{pool: p, tree: new(tree), app: c.App, client: c.Client, depth: 1}, nil
	}
	if parent.depth >= maxTreeDepth {
		return nil, &Failure{Kind: KindError, Message: "scripts wait for each other too deeply"}
	}
	return &turn{pool: p, tree: parent.tree, app: parent.app, client: parent.client, depth: parent.depth + 1}, nil
}

// enterTurn waits for a turn. It fails with the error of ctx where that ends first.
func (p *Pool) enterTurn(ctx context.Context, c *Call) (*turn, error) {
	t, err := p.newTurn(ctx, c)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return nil, errClosed
	}
	if p.mayStart(t) {
		p.startTurn(t)
		p.mu.Unlock()
		return t, nil
	}
	t.ready = make(chan struct{})
	p.waiting = append(p.waiting, t)
	p.dispatch() // sets the timer
	p.mu.Unlock()
	select {
	case <-t.ready:
	case <-ctx.Done():
		p.mu.Lock()
		waits := p.removeWaiting(t)
		p.mu.Unlock()
		if !waits && !t.began.IsZero() {
			p.leaveTurn(t)
		}
		return nil, ctx.Err()
	}
	if t.began.IsZero() {
		return nil, errClosed
	}
	return t, nil
}

var errClosed = errors.New("sandbox: the pool is closed")

// removeWaiting takes a call out of the waiting ones. It reports whether it was there.
func (p *Pool) removeWaiting(t *turn) bool {
	for i, w := range p.waiting {
		if w == t {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// startTurn makes a call one that runs.
func (p *Pool) startTurn(t *turn) {
	t.began = time.Now()
	if p.turns == nil {
		p.turns, p.byApp, p.byClient = make(map[*turn]struct{}), make(map[string]int), make(map[string]int)
	}
	if t.depth == 1 {
		p.turns[t] = struct{}{}
	} else {
		p.nested++
		t.tree.nested++
		if t.depth == 2 {
			p.nestedByApp(t, 1)
		}
	}
	p.count(t, 1)
	p.running.Add(1)
}

// leaveTurn ends a turn.
func (p *Pool) leaveTurn(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.depth == 1 {
		delete(p.turns, t)
	} else {
		p.nested--
		t.tree.nested--
		if t.depth == 2 {
			p.nestedByApp(t, -1)
		}
	}
	p.count(t, -1)
	p.running.Done()
	p.dispatch()
}

// count counts a turn for its App and its client.
func (p *Pool) count(t *turn, n int) {
	if t.app != "" {
		addCount(p.byApp, t.app, n)
	}
	if t.client != "" {
		addCount(p.byClient, t.client, n)
	}
}

func (p *Pool) nestedByApp(t *turn, n int) {
	if p.nestedOf == nil {
		p.nestedOf = make(map[string]int)
	}
	addCount(p.nestedOf, t.app, n)
}

// addCount adds to a count, and removes it when it is 0.
func addCount(counts map[string]int, key string, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// turnLevel is the number of turns of a call's App or of its client, the smaller one.
func (p *Pool) turnLevel(t *turn) int {
	switch {
	case t.app == "" && t.client == "":
		return 0
	case t.app == "":
		return p.byClient[t.client]
	case t.client == "":
		return p.byApp[t.app]
	}
	return min(p.byApp[t.app], p.byClient[t.client])
}

// slowFor is how long an App and a client are slow after a slow script. maxSlow bounds how many are
// remembered.
const (
	slowFor = 10 * time.Second
	maxSlow = 10_000
)

// noteSlow remembers that a script of a turn's App and client was slow.
func (p *Pool) noteSlow(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slowApps == nil || len(p.slowApps)+len(p.slowClients) > maxSlow {
		p.slowApps, p.slowClients = make(map[string]time.Time), make(map[string]time.Time)
	}
	p.slowApps[t.app], p.slowClients[t.client] = time.Now(), time.Now()
}

// isSlow reports whether both the App and the client of a turn had a slow script of late.
func (p *Pool) isSlow(t *turn) bool {
	return time.Since(p.slowApps[t.app]) < slowFor && time.Since(p.slowClients[t.client]) < slowFor
}

// mayStart reports whether a call may run now.
func (p *Pool) mayStart(t *turn) bool {
	if t.depth > 1 {
		return p.mayNest(t)
	}
	free := surge*p.Size - len(p.turns)
	if free <= 0 || p.fresh() >= p.Size {
		return false
	}
	if t.client != "" && p.byClient[t.client] >= surge*p.Size*3/4 {
		return false
	}
	level := p.turnLevel(t)
	return level == 0 || free > level+1
}

// mayNest is mayStart of a nested call.
func (p *Pool) mayNest(t *turn) bool {
	below := maxTreeDepth - t.depth // calls that may come to wait for each other below this one
	if p.nested+1+below > maxNested || t.tree.nested+1+below > treeNested || t.tree.bytes >= maxTreeBytes {
		return false
	}
	// Only calls of depth 2 are held to a fair share: nothing nested waits for a call that is
	// refused here, so the chain below the last one that started goes on.
	held := p.nestedOf[t.app]
	return t.depth > 2 || held == 0 || held < maxNested-(maxTreeDepth-2)-p.nested
}

// fresh is the number of first calls that have run for less than patience.
func (p *Pool) fresh() (n int) {
	for t := range p.turns {
		if time.Since(t.began) < patience {
			n++
		}
	}
	return n
}

// goesFirst reports whether a goes before b where both may start. a has waited longer.
func (p *Pool) goesFirst(a, b *turn) bool {
	if a.depth != b.depth {
		return a.depth > b.depth
	}
	return p.turnLevel(a) <= p.turnLevel(b)
}

// dispatch starts the waiting calls that may run, and sets a timer where time alone lets others
// run. p.mu is held.
func (p *Pool) dispatch() {
	for {
		var first *turn
		for _, t := range p.waiting {
			if p.mayStart(t) && (first == nil || !p.goesFirst(first, t)) {
				first = t
			}
		}
		if first == nil {
			break
		}
		p.removeWaiting(first)
		p.startTurn(first)
		close(first.ready)
	}
	if len(p.waiting) == 0 || p.later {
		return
	}
	p.later = true
	time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.later = false
		p.dispatch()
	})
}

// HoldResult waits until the server may work for the script that ctx belongs to, and returns a function
// that ends that. A tree of calls has maxHosts such works at the same time, and none while many
// bytes of answers wait for its scripts. Where ctx belongs to no script, it does not wait.
// A call of another script is no such work: it would wait for works of its own.
func HoldResult(ctx context.Context) (release func(), err error) {
	t := turnOf(ctx)
	if t == nil {
		return func() {}, nil
	}
	p, tree := t.pool, t.tree
	for {
		p.mu.Lock()
		if tree.hosts < maxHosts && tree.bytes < maxTreeBytes {
			tree.hosts++
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				tree.hosts--
				tree.wake()
			}, nil
		}
		if tree.changed == nil {
			tree.changed = make(chan struct{})
		}
		changed := tree.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// wake makes the callers of Hold check their tree again. Pool.mu is held.
func (t *tree) wake() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// addBytes counts bytes of answers that are on their way to the script of a turn.
func (t *turn) addBytes(n int) {
	if n == 0 {
		return
	}
	p := t.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.tree.bytes += n; n < 0 {
		t.tree.wake()
		p.dispatch()
	}
}
