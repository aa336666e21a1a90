package fill

import (
	"context"
	"sync"
)

// Filler reads items into a cache in the background, one after the other, and applies the changes of the change log to
// it. It is safe for concurrent use.
type Filler struct {
	Config
	queue  *queue
	pacer  *pacer
	reader *reader

	mu     sync.Mutex
	ctx    context.Context // of the background work; nil before its start
	cancel context.CancelFunc
	closed bool
	done   sync.WaitGroup
}

// New returns a Filler that has not started: its goroutines start with the first item.
func New(c Config) *Filler {
	c = c.withDefaults()
	f := &Filler{Config: c, queue: newQueue()}
	f.pacer = &pacer{store: c.Store, admission: c.Admission, queue: f.queue}
	f.reader = &reader{Config: c, pacer: f.pacer}
	return f
}

// start starts the background work, once. It returns false after Close. The caller holds mu.
func (f *Filler) start() bool {
	if f.closed {
		return false
	}
	if f.ctx != nil {
		return true
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.done.Go(func() { f.readItems(f.ctx) })
	follower := &follower{Config: f.Config, pacer: f.pacer, queue: f.queue}
	f.done.Go(func() { follower.run(f.ctx) })
	return true
}

// readItems reads the items of the queue until ctx ends.
func (f *Filler) readItems(ctx context.Context) {
	for {
		if i, ok := f.queue.takeItem(); ok {
			if i.evicted || !f.Cache.HasItem(i.key()) {
				_ = f.reader.readItem(ctx, i) // after a failure, a search requests the item again
			}
			f.queue.finishItem()
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-f.queue.added:
		}
	}
}

// addItem queues an item that the cache lacks and wants.
func (f *Filler) addItem(i item) {
	key := i.key()
	if f.Cache.HasItem(key) && !i.evicted || !f.Cache.WantsItem(key, i.expensive) || !f.queue.addItem(i) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.start()
}

// ReadAhead starts to read ahead, for the types with at least so many resources.
func (f *Filler) ReadAhead(from int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.start() {
		return
	}
	f.queue.expectAhead()
	a := &aheadReader{reader: f.reader, queue: f.queue, from: from, tried: make(map[any]int), coded: make(map[int16]int)}
	f.done.Go(func() { a.run(f.ctx) })
}

// NextRead returns a channel that is closed when the next item has been read.
func (f *Filler) NextRead() <-chan struct{} { return f.queue.nextFinished() }

// AwaitIdle waits until every item that was requested, or is to be read ahead, has been read, and the cache does not lag.
func (f *Filler) AwaitIdle() {
	f.queue.awaitIdle(func() bool { return f.Cache.Stat().Lags })
}

// Close ends the background work.
func (f *Filler) Close() {
	f.mu.Lock()
	f.closed = true
	cancel := f.cancel
	f.mu.Unlock()
	f.queue.closeQueue()
	if cancel != nil {
		cancel()
		f.done.Wait()
	}
}
