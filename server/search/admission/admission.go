package admission

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// The limits of running searches.
const (
	// ReservedConns is the number of connections of the pool that searches leave to reads and writes.
	ReservedConns = 3
	// shortFor is how long a search occupies the place of a short search. A search that takes longer
	// keeps running, and makes room for another.
	shortFor = 20 * time.Millisecond
)

// Admission limits the searches of one server. It is safe for concurrent use.
type Admission struct {
	// pool has an element for each running short search. Its capacity is the number of connections less ReservedConns.
	pool chan struct{}
	// short has enough places to keep every processor busy. More searches would only take turns, and all end later.
	short shortPlaces
	// expensive admits as many searches as half of the processors, at least one.
	expensive queue
	// sorting has an element for each search that sorts many resources, with the same limit.
	sorting      chan struct{}
	computations computations
}

// New returns the limits for a pool of maxConns connections.
func New(maxConns int) *Admission {
	half := max(1, runtime.NumCPU()/2)
	return &Admission{
		pool:      make(chan struct{}, max(1, maxConns-ReservedConns)),
		short:     shortPlaces{free: max(1, min(maxConns/2, 2*runtime.NumCPU()))},
		expensive: queue{free: half},
		sorting:   make(chan struct{}, half),
	}
}

// AdmitShort waits for the places of a short search, and returns how to give them back. Searches with few rows come
// before broad ones. It fails with the error of ctx if that ends first.
func (a *Admission) AdmitShort(ctx context.Context, broad bool) (end func(), err error) {
	if err := a.short.takePlace(ctx, broad); err != nil {
		return nil, err
	}
	select {
	case a.pool <- struct{}{}:
	case <-ctx.Done():
		a.short.returnPlace()
		return nil, ctx.Err()
	}
	returnPlace := sync.OnceFunc(a.short.returnPlace)
	timer := time.AfterFunc(shortFor, returnPlace)
	return func() {
		timer.Stop()
		returnPlace()
		<-a.pool
	}, nil
}

// IsBusy reports whether a short search would have to wait.
func (a *Admission) IsBusy() bool { return a.short.isFull() }

// TryExpensive admits an expensive search if that needs no waiting.
func (a *Admission) TryExpensive(key Key) bool { return a.expensive.tryAdmit(key) }

// AdmitExpensive waits until an expensive search is admitted. It returns false with the error of ctx if that ends first, and
// false without an error if answered, which may be nil, reports true.
func (a *Admission) AdmitExpensive(ctx context.Context, key Key, answered IsAnswered) (admitted bool, err error) {
	return a.expensive.awaitAdmission(ctx, key, answered)
}

// EndExpensive ends an admitted expensive search.
func (a *Admission) EndExpensive(key Key) { a.expensive.end(key) }

// CountWaiting returns the number of expensive searches that wait for admission.
func (a *Admission) CountWaiting() int { return a.expensive.countWaiting() }

// AdmitSort waits until the search may sort many resources, and returns how to end that.
func (a *Admission) AdmitSort(ctx context.Context) (end func(), err error) {
	select {
	case a.sorting <- struct{}{}:
		return func() { <-a.sorting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// BeginComputation starts the computation of a value that several searches need, and returns how to end it. If another
// search computes the value, it returns a nil end, and a channel that is closed when the other search has ended.
func (a *Admission) BeginComputation(key Key) (end func(), ended <-chan struct{}) {
	return a.computations.begin(key)
}
