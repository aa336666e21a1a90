package notify

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/notify/owner"
	"kiln/server/store"
)

// The times between two looks at whether access was revoked: of connections, and of the
// owners of Subscriptions, which a look at many of them makes longer.
const (
	connectionInterval = time.Second
	ownerInterval      = 2 * time.Second
)

// watchConnections ends the connections of those whose access was revoked. Each is
// asked about once, however many connections it has.
func (h *hub) watchConnections(ctx context.Context) {
	if h.s.Rights == nil {
		return
	}
	for store.SleepFor(ctx, connectionInterval) {
		h.mu.Lock()
		owners := make(map[owner.AccessKey][]*client)
		of := make(map[owner.AccessKey]owner.Owner)
		for c := range h.clients {
			if p := c.principal; p != nil && !p.IsOpen() {
				o := owner.FromPrincipal(p)
				if o.AccessKey() == (owner.AccessKey{}) {
					continue // without a token: it is bound to Subscriptions, which have owners of their own
				}
				owners[o.AccessKey()] = append(owners[o.AccessKey()], c)
				of[o.AccessKey()] = o
			}
		}
		h.mu.Unlock()
		for key, clients := range owners {
			if _, err := h.s.Rights.Principal(ctx, of[key]); err != nil && owner.IsRevoked(err) {
				for _, c := range clients {
					c.endedOnce.Do(func() { close(c.ended) })
				}
			}
		}
	}
}

// untilExpiry fires when a principal's access ends by itself; nil where it never does.
func untilExpiry(p *access.Principal) (<-chan time.Time, func()) {
	if p == nil || p.IsOpen() || p.Expires.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(p.Expires))
	return t.C, func() { t.Stop() }
}

// watchOwners ends the Subscriptions of those whose access was revoked, also where
// nothing is sent to them.
func (l *life) watchOwners(ctx context.Context) {
	s := l.s
	if s.Rights == nil {
		return
	}
	for wait := ownerInterval; store.SleepFor(ctx, wait); {
		start := time.Now()
		owners, err := s.db().DistinctOwners(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.Log.Warn("look at the owners of subscriptions", "error", err)
			}
			continue
		}
		wait = max(ownerInterval, 50*time.Since(start)) // at most one part in fifty of the time
		for _, stored := range owners {
			if _, err := s.Rights.Principal(ctx, owner.Decode(stored)); err == nil || !owner.IsRevoked(err) {
				continue
			}
			ids, err := s.db().SubscriptionsOf(ctx, db.SubscriptionsOfParams{Owner: stored, Count: 1000})
			for _, id := range ids {
				if err == nil {
					_, err = s.ownerStands(ctx, id, owner.Decode(stored))
				}
			}
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("end the subscriptions of a revoked owner", "error", err)
			}
		}
	}
}
