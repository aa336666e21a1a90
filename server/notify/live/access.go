package live

import (
	"context"
	"time"

	"kiln/server/access"
	"kiln/server/notify/owner"
	"kiln/server/store"
)

// connectionInterval is the time between two looks at whether the access of connections was revoked.
const connectionInterval = time.Second

// watchConnections ends the connections of those whose access was revoked. Each is
// asked about once, however many connections it has.
func (h *Hub) watchConnections(ctx context.Context) {
	if h.Rights == nil {
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
			if _, err := h.Rights.Principal(ctx, of[key]); err != nil && owner.IsRevoked(err) {
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
