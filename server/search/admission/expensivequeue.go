package admission

import (
	"context"
	"slices"
	"sync"
)

// Key identifies the work of an expensive search. Searches with the same clauses have the same key. The zero key
// is not shared.
type Key [16]byte

// IsAnswered reports whether a waiting search has found its answer elsewhere and needs no admission. If it needs
// one, the function is called again after changed is closed. A nil channel is never closed.
type IsAnswered func() (answered bool, changed <-chan struct{})

// queue admits a limited number of searches in the order of arrival, and one at a time for each key. The next
// search with that key finds the result in the cache.
type queue struct {
	mu      sync.Mutex
	free    int              // number of searches that may be admitted now
	running map[Key]struct{} // keys of the admitted searches
	waiting []waiter
}

// waiter is a waiting search.
type waiter struct {
	admitted chan struct{} // closed on admission
	key      Key
}

// mayAdmit reports whether a search with the key may be admitted now. The caller holds mu.
func (q *queue) mayAdmit(key Key) bool {
	_, running := q.running[key]
	return q.free > 0 && !running
}

// admit counts a search as admitted. The caller holds mu.
func (q *queue) admit(key Key) {
	q.free--
	if key == (Key{}) {
		return
	}
	if q.running == nil {
		q.running = make(map[Key]struct{})
	}
	q.running[key] = struct{}{}
}

// tryAdmit admits a search if that needs no waiting.
func (q *queue) tryAdmit(key Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayAdmit(key) {
		return false
	}
	q.admit(key)
	return true
}

// awaitAdmission waits until the search is admitted. It returns false with the error of ctx if that ends first, and false
// without an error if answered, which may be nil, reports true.
func (q *queue) awaitAdmission(ctx context.Context, key Key, answered IsAnswered) (admitted bool, err error) {
	if q.tryAdmit(key) {
		return true, nil
	}
	mine := waiter{make(chan struct{}), key}
	q.mu.Lock()
	q.waiting = append(q.waiting, mine)
	q.admitWaiting()
	q.mu.Unlock()
	for {
		var changed <-chan struct{}
		if answered != nil {
			var yes bool
			if yes, changed = answered(); yes {
				break
			}
		}
		select {
		case <-mine.admitted:
			return true, nil
		case <-changed:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	q.mu.Lock()
	i := slices.Index(q.waiting, mine)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	q.mu.Unlock()
	if i < 0 { // the search was admitted meanwhile
		q.end(key)
	}
	return false, err
}

// end ends an admitted search, and admits the next ones.
func (q *queue) end(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	delete(q.running, key)
	q.admitWaiting()
}

// admitWaiting admits the waiting searches that may be admitted. The caller holds mu.
func (q *queue) admitWaiting() {
	for {
		i := slices.IndexFunc(q.waiting, func(w waiter) bool { return q.mayAdmit(w.key) })
		if i < 0 {
			return
		}
		q.admit(q.waiting[i].key)
		close(q.waiting[i].admitted)
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
}

// countWaiting returns the number of waiting searches.
func (q *queue) countWaiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
