package live

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"kiln/gen/db"
	"kiln/server/notify/owner"
	"kiln/server/store"
)

// bindingInterval is how often a server looks for events that another server has queued.
const bindingInterval = time.Second

// bindings are the Subscriptions that WebSockets of this server are bound to by tokens.
type bindings struct {
	wake chan struct{} // has an element when this server has queued events

	mu    sync.Mutex
	bound map[string]map[*binding]struct{} // by id of the Subscription
}

// binding is one Subscription that one WebSocket is bound to.
type binding struct {
	id      string
	owner   owner.Owner   // of the token
	ready   chan struct{} // has an element when there may be events, or the Subscription has changed
	last    int64         // number of the last event that was sent
	started time.Time     // of the Subscription, whose events are counted from then on
	beating time.Duration // the heartbeat period when it was last read
}

func newBindings() *bindings {
	return &bindings{wake: make(chan struct{}, 1), bound: make(map[string]map[*binding]struct{})}
}

func (b *bindings) wakeUp() { signal(b.wake) }

// signal puts an element into a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// addBinding makes a binding known.
func (b *bindings) addBinding(one *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bound[one.id] == nil {
		b.bound[one.id] = make(map[*binding]struct{})
	}
	b.bound[one.id][one] = struct{}{}
}

func (b *bindings) removeBinding(one *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.bound[one.id], one); len(b.bound[one.id]) == 0 {
		delete(b.bound, one.id)
	}
}

// ids lists the Subscriptions that somebody is bound to.
func (b *bindings) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, 0, len(b.bound))
	for id := range b.bound {
		ids = append(ids, id)
	}
	return ids
}

// run tells bindings of new events and of changes, until ctx ends. One query asks for all of them.
func (b *bindings) run(ctx context.Context, data *store.Store, log *slog.Logger) {
	known := make(map[string]db.EventCountsRow)
	tick := time.NewTicker(bindingInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		ids := b.ids()
		if len(ids) == 0 {
			clear(known)
			continue
		}
		rows, err := db.New(data.Pool()).EventCounts(ctx, ids)
		if err != nil {
			if ctx.Err() == nil {
				log.Warn("look for events of bound subscriptions", "error", err)
			}
			continue
		}
		now := make(map[string]db.EventCountsRow, len(rows))
		for _, r := range rows {
			now[r.ID] = r
		}
		b.mu.Lock()
		for _, id := range ids {
			if before, ok := known[id]; ok && before == now[id] {
				continue
			}
			for one := range b.bound[id] {
				signal(one.ready)
			}
		}
		b.mu.Unlock()
		known = now
	}
}
