package fill

import (
	"slices"
	"sync"
	"time"
)

const (
	// maxQueued limits the items in the queue.
	maxQueued = 64
	// shortItemsFirst is how long an item that reads all resources of a type waits for items that read a part of it. Many of
	// those are short, and each helps as many searches.
	shortItemsFirst = 2 * time.Second
)

// queue contains the items to be read, and knows the items that are being read.
type queue struct {
	mu      sync.Mutex
	idle    *sync.Cond // signals that some work has ended
	list    []item
	current any // the key of the item that is being read, nil for none
	closed  bool
	added   chan struct{} // has an element if an item was added
	// finished is closed when the next item has been read; nil if nobody waits.
	finished chan struct{}
	// ahead has the keys of the items that are being read ahead, true if a search waits for the item. aheadLeft reports
	// whether items remain, or may remain, to be read ahead.
	ahead     map[any]bool
	aheadLeft bool
}

func newQueue() *queue {
	q := &queue{added: make(chan struct{}, 1)}
	q.idle = sync.NewCond(&q.mu)
	return q
}

// addItem queues an item. It returns false if the item is already queued or being read, or if the queue is full or closed.
func (q *queue) addItem(i item) bool {
	key := i.key()
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.ahead[key]; ok {
		q.ahead[key] = true
		return false
	}
	queued := func(o item) bool { return o.key() == key }
	if q.closed || len(q.list) >= maxQueued || q.current == key || slices.ContainsFunc(q.list, queued) {
		return false
	}
	i.queued = time.Now()
	q.list = append(q.list, i)
	select {
	case q.added <- struct{}{}:
	default:
	}
	return true
}

// takeItem removes the next item from the queue, and notes that it is being read; false if the queue is empty.
func (q *queue) takeItem() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		q.current = nil
		q.idle.Broadcast()
		return item{}, false
	}
	next := 0
	if first := q.list[0]; first.allTerms && time.Since(first.queued) < shortItemsFirst {
		next = max(0, slices.IndexFunc(q.list, func(i item) bool { return !i.allTerms }))
	}
	i := q.list[next]
	q.list = slices.Delete(q.list, next, next+1)
	q.current = i.key()
	return i, true
}

// finishItem wakes the searches that wait for the next item.
func (q *queue) finishItem() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.finished != nil {
		close(q.finished)
		q.finished = nil
	}
}

// nextFinished returns a channel that is closed when the next item has been read.
func (q *queue) nextFinished() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.finished == nil {
		q.finished = make(chan struct{})
	}
	return q.finished
}

// startAhead notes that items are being read ahead, and how many remain after them.
func (q *queue) startAhead(items []item, remaining int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ahead = make(map[any]bool)
	for _, i := range items {
		q.ahead[i.key()] = false
	}
	q.aheadLeft = len(items)+remaining > 0 // these items may lead to more
	q.idle.Broadcast()
}

// finishAhead notes that an item has been read ahead, added to the cache or not.
func (q *queue) finishAhead(i item) {
	q.mu.Lock()
	delete(q.ahead, i.key())
	q.mu.Unlock()
	q.finishItem()
}

// isAheadAwaited reports whether a search waits for an item that is being read ahead. All of them are then
// read at full speed, because it may come after the others.
func (q *queue) isAheadAwaited() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, awaited := range q.ahead {
		if awaited {
			return true
		}
	}
	return false
}

// expectAhead notes that items will be read ahead.
func (q *queue) expectAhead() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.aheadLeft = true
}

// wakeIdle wakes the callers of awaitIdle.
func (q *queue) wakeIdle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle.Broadcast()
}

// awaitIdle waits until every item has been read, and pending reports false.
func (q *queue) awaitIdle(pending func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.current != nil || len(q.list) > 0 || q.aheadLeft || pending() {
		q.idle.Wait()
	}
}

// closeQueue empties the queue. It takes no further items.
func (q *queue) closeQueue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.list = true, nil
}
