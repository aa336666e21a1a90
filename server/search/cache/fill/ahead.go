package fill

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// AheadFrom is the number of resources from which on a type is read ahead. The first broad search of a smaller type is
// short without its items, and so is the first search along references to it.
const AheadFrom = 10_000

// soonPart limits the types that are read ahead while the server has other work and writes: at most soonPart times
// AheadFrom resources. Such a read takes half a second. From then on the cache grows with the server's own writes, so
// that after an import of millions nothing remains to be read.
const soonPart = 12

const (
	// aheadEvery is the time between two lists of items to read ahead.
	aheadEvery = 10 * time.Second
	// busyFor replaces aheadEvery while this server writes. It is also the time between two checks if the database was busy.
	busyFor = 2 * time.Second
	// Reading begins when the database was idle at idleChecks checks in a row, one each idleEvery.
	idleEvery  = 250 * time.Millisecond
	idleChecks = 4
	// listTimeout limits one check, and one list.
	listTimeout = 10 * time.Second
)

const (
	// aheadTogether is the number of items that are read at the same time.
	aheadTogether = 2
	// itemsAtOnce is the number of items between two checks whether the database is idle. codedAtOnce is the number of columns
	// of a code, which are cheaper. A read pauses by itself while this server serves requests.
	itemsAtOnce = 4
	codedAtOnce = 8
)

// aheadReader reads ahead: while the database is idle, it reads the items that broad searches of large types need, before
// the first such search.
type aheadReader struct {
	*reader
	queue *queue

	from int64 // the number of resources from which on a type is read
	next time.Time
	list []item
	idle int // checks in a row at which the database was idle
	// tried contains the generation of the cache in which an item was last read. An item that was not kept, or was
	// evicted, is read again only after the cache was cleared. coded is the same for the types whose columns of codes
	// were listed.
	tried map[any]int
	coded map[int16]int
}

// run works until ctx ends.
func (a *aheadReader) run(ctx context.Context) {
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		items := a.nextItems(ctx)
		a.queue.startAhead(items, len(a.list))
		var together errgroup.Group
		together.SetLimit(aheadTogether)
		for _, i := range items {
			together.Go(func() error {
				_ = a.readItem(ctx, i) // after a failure, a search requests the item
				a.queue.finishAhead(i)
				return nil
			})
		}
		_ = together.Wait()
		if len(items) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// nextItems returns the items to read ahead now. After a failure it returns none: searches request the items.
func (a *aheadReader) nextItems(ctx context.Context) []item {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	now := a.Now()
	if now.Before(a.next) {
		return nil
	}
	generation, unasked := a.Cache.Generation()
	if len(a.list) == 0 {
		if !unasked {
			a.list, _ = a.listMissing(ctx, generation)
		}
		if len(a.list) == 0 {
			a.next, a.idle = now.Add(aheadEvery), 0
			if a.Cache.HasRecentWrites() {
				a.next = now.Add(busyFor)
			}
		}
		return nil
	}
	if a.Cache.AheadBytesLeft() <= 0 {
		a.list = nil
		return nil
	}
	if soon := a.Cache.HasRecentWrites() && a.moveSoonFirst(); !soon && !a.awaitIdle(ctx, now, generation) {
		return nil
	}
	return a.takeItems(generation)
}

// awaitIdle checks whether the database is idle, and reports whether it has been for long enough.
func (a *aheadReader) awaitIdle(ctx context.Context, now time.Time, generation int) bool {
	if idle, err := a.pacer.isDatabaseIdle(ctx); err != nil || !idle {
		a.idle, a.next = 0, now.Add(busyFor)
		if a.Cache.HasRecentWrites() { // other types have grown meanwhile
			more, _ := a.listMissing(ctx, generation)
			a.appendItems(more)
		}
		return false
	}
	a.idle++
	return a.idle >= idleChecks
}

// takeItems removes the items from the list that are read before the next check.
func (a *aheadReader) takeItems(generation int) []item {
	n := 1
	for first := a.list[0]; n < len(a.list) && a.list[n].soon == first.soon; n++ {
		if n >= codedAtOnce || n >= itemsAtOnce && !(first.coded && a.list[n].coded) {
			break
		}
	}
	items := a.list[:n:n]
	a.list = a.list[n:]
	for _, i := range items {
		a.tried[i.key()] = generation
	}
	return items
}

// appendItems adds the items that are not in the list. Items already in the list stay: columns of codes are listed once.
func (a *aheadReader) appendItems(more []item) {
	for _, i := range more {
		if !slices.ContainsFunc(a.list, func(o item) bool { return o.key() == i.key() }) {
			a.list = append(a.list, i)
		}
	}
}

// moveSoonFirst moves the items to be read soon to the front, and reports whether there are any.
func (a *aheadReader) moveSoonFirst() bool {
	rank := func(i item) int {
		if i.soon {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(a.list, func(x, y item) int { return cmp.Compare(rank(x), rank(y)) })
	return a.list[0].soon
}
