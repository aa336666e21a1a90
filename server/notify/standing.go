package notify

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/notify/owner"
	"kiln/server/store"
)

// ownerInterval is the time between two looks at whether the access of owners was revoked. A look at many
// owners makes it longer.
const ownerInterval = 2 * time.Second

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
