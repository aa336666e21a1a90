package notify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/outcome"
	"kiln/server/store"
)

// errorHeartbeat is how often the endpoint of a subscription in error is tried.
const errorHeartbeat = time.Minute

// heartbeatRate bounds heartbeats, a second, of all subscriptions and servers together.
const heartbeatRate = 100

// life takes Subscriptions through their status: the handshake of one that is requested,
// heartbeats of one that is active or in error, the end of one that has an end. Any server
// does it; each Subscription that is due is taken by one of them.
type life struct {
	s    *Service
	wake chan struct{}
}

func newLife(s *Service) *life { return &life{s: s, wake: make(chan struct{}, 1)} }

func (l *life) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// adopt carries out the Subscriptions of a release that stored them without carrying them out. They
// begin with a handshake. With authorization they go off, because their owner is unknown. A
// Subscription that cannot be read stays as it is, and does not keep the others from their handshakes.
func (l *life) adopt(ctx context.Context) error {
	s := l.s
	for {
		const page = 500
		ids, err := s.db().UnknownSubscriptions(ctx, page)
		if err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			status, reason := subscription.Requested, ""
			if s.Settings().Authorized {
				status, reason = subscription.Off, owner.NoOwner
			}
			err := s.changeStatus(ctx, id, []string{subscription.Requested, subscription.Active, subscription.Error}, status, reason)
			if outcome.Ours(err) {
				return err
			}
			if err != nil {
				s.Log.Warn("a subscription of an older release cannot be carried out", "subscription", id, "error", err)
			}
		}
		// A Subscription that was off, and one that cannot be read, has no row yet.
		if err := s.db().AddSubscriptionsThatAreOff(ctx, ids); err != nil {
			return err
		}
	}
}

// parallelHandshakes bounds the requests of the life under way.
const parallelHandshakes = 32

// run works until ctx ends.
func (l *life) run(ctx context.Context) {
	places := make(chan struct{}, parallelHandshakes)
	var working sync.WaitGroup
	defer working.Wait()
	for l.s.watch.AwaitOn(ctx, func(c *config.Config) bool { return c.Enabled }) {
		err := l.adopt(ctx)
		if err == nil {
			break
		}
		l.s.Log.Warn("adopt the subscriptions of an older release", "error", err)
		store.SleepFor(ctx, time.Second)
	}
	for l.s.watch.AwaitOn(ctx, func(c *config.Config) bool { return c.Enabled }) {
		places <- struct{}{} // there is room for one
		<-places
		rows, err := l.due(ctx)
		if err != nil {
			if ctx.Err() == nil {
				l.s.Log.Warn("look for subscriptions that are due", "error", err)
				store.SleepFor(ctx, time.Second)
			}
			continue
		}
		for _, r := range rows {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			working.Go(func() {
				defer func() { <-places }()
				if err := l.attend(context.WithoutCancel(ctx), r); err != nil && ctx.Err() == nil {
					l.s.Log.Warn("attend to a subscription", "subscription", r.ID, "error", err)
				}
			})
		}
		if len(rows) > 0 {
			continue
		}
		wait := l.s.Settings().Poll
		if next, err := l.s.db().NextSubscriptionDue(ctx); err == nil && len(next) > 0 {
			wait = min(wait, time.Duration(max(1, next[0]+1))*time.Millisecond)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-l.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// dueSubscription is a subscription that this server attends to.
type dueSubscription = db.TakeDueSubscriptionsRow

// due takes subscriptions that need attention: a handshake as soon as there is room, and
// heartbeats at heartbeatRate, which all servers together keep to.
func (l *life) due(ctx context.Context) ([]dueSubscription, error) {
	lease := (2*l.s.Settings().Webhook.Timeout + 10*time.Second).Milliseconds()
	requested, err := l.s.db().TakeRequestedSubscriptions(ctx, db.TakeRequestedSubscriptionsParams{LeaseMs: lease, Count: parallelHandshakes / 2})
	if err != nil {
		return nil, err
	}
	rows, err := l.s.db().TakeDueSubscriptions(ctx, db.TakeDueSubscriptionsParams{
		LeaseMs: lease, EachMs: (time.Second / heartbeatRate).Milliseconds(), Count: parallelHandshakes / 2,
	})
	if err != nil {
		l.s.Log.Warn("look for heartbeats that are due", "error", err)
	}
	for _, r := range requested {
		rows = append(rows, dueSubscription(r))
	}
	return rows, nil
}

// attend sends the next heartbeat or handshake of one subscription, or ends it.
func (l *life) attend(ctx context.Context, row dueSubscription) error {
	s := l.s
	v, err := s.Store.Read(ctx, "Subscription", row.ID)
	if err != nil {
		return l.postpone(ctx, row.ID, errorHeartbeat, 0)
	}
	r, err := s.subscriptions.Decode(v.Body)
	if err != nil {
		return err
	}
	status := r.Status.Text
	c, err := s.subscriptions.Compile(ctx, row.ID, r)
	if outcome.Ours(err) {
		return err // tried again when the lease has run out
	}
	if err != nil {
		// Its criteria or topic can no longer be carried out.
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested, subscription.Active}, subscription.Error, err.Error())
	}
	now := time.Now()
	if status == subscription.Off {
		return l.postpone(ctx, row.ID, idleLook, 0)
	}
	if !c.End.IsZero() && !c.End.After(now) {
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested, subscription.Active, subscription.Error}, subscription.Off, "")
	}
	if s.Rights != nil {
		if ok, err := s.ownerStands(ctx, row.ID, owner.Decode(row.Owner)); err != nil || !ok {
			return err
		}
	}
	switch status {
	case subscription.Requested:
		return l.handshake(ctx, row, c, v.VersionID)
	case subscription.Error:
		return l.recover(ctx, row, c)
	}
	return l.sendHeartbeat(ctx, row, r, c, now)
}

// ownerStands ends a subscription whose owner's access was revoked.
func (s *Service) ownerStands(ctx context.Context, id string, o owner.Owner) (bool, error) {
	if _, err := s.Rights.Principal(ctx, o); err != nil {
		if owner.IsRevoked(err) {
			return false, s.endRevoked(ctx, id, err)
		}
		return false, err
	}
	return true, nil
}

// endRevoked sets a subscription off whose owner has no rights.
func (s *Service) endRevoked(ctx context.Context, id string, why error) error {
	reason := "the owner's access was revoked"
	if o, ok := outcome.From(why); ok && o == owner.ErrNoOwner {
		reason = owner.NoOwner
	}
	return s.changeStatus(ctx, id, []string{subscription.Active, subscription.Error, subscription.Requested}, subscription.Off, reason)
}

func (l *life) postpone(ctx context.Context, id string, wait time.Duration, tried int32) error {
	return l.s.db().SetSubscriptionDue(ctx, db.SetSubscriptionDueParams{WaitMs: wait.Milliseconds(), Tried: tried, ID: id})
}

// handshake asks a requested subscription's endpoint whether it is there.
func (l *life) handshake(ctx context.Context, row dueSubscription, c *subscription.Subscription, version int) error {
	s := l.s
	if c.WebSocket {
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested}, subscription.Active, "")
	}
	if !s.Settings().Webhook.Enabled {
		return l.postpone(ctx, row.ID, untilEnd(c, errorHeartbeat), 0) // Reconfigured makes it due when they are on
	}
	// The attempts of one handshake have one id, made of the version of the Subscription that asks for it.
	id := uuid.NewSHA1(matching.Namespace, fmt.Appendf(nil, "handshake\n%s/%d", c.Reference(), version))
	result := l.sendStatus(ctx, row, c, id, "handshake", subscription.Requested)
	w := s.Settings().Webhook
	switch {
	case result.OK():
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested}, subscription.Active, "")
	case result.Gone:
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested}, subscription.Off, "the endpoint answered 410 Gone")
	}
	s.metrics.failed.WithLabelValues(c.Reference()).Inc()
	retry, again := webhook.Policy{MaxAttempts: w.MaxAttempts, Backoff: w.Backoff}.NextAttempt(int(row.Attempts)+1, result)
	if !again {
		return s.changeStatus(ctx, row.ID, []string{subscription.Requested}, subscription.Error, "the handshake failed: "+result.Err)
	}
	return l.postpone(ctx, row.ID, retry, 1)
}

// recover tries the endpoint of a subscription in error.
func (l *life) recover(ctx context.Context, row dueSubscription, c *subscription.Subscription) error {
	s := l.s
	if c.WebSocket {
		return s.changeStatus(ctx, row.ID, []string{subscription.Error}, subscription.Active, "")
	}
	if !s.Settings().Webhook.Enabled {
		return l.postpone(ctx, row.ID, untilEnd(c, errorHeartbeat), 0)
	}
	result := l.sendStatus(ctx, row, c, uuid.New(), "heartbeat", subscription.Error)
	switch {
	case result.OK():
		return s.changeStatus(ctx, row.ID, []string{subscription.Error}, subscription.Active, "")
	case result.Gone:
		return s.changeStatus(ctx, row.ID, []string{subscription.Error}, subscription.Off, "the endpoint answered 410 Gone")
	case row.Failing.Valid && time.Since(row.Failing.Time) > s.Settings().Webhook.MaxError:
		return s.changeStatus(ctx, row.ID, []string{subscription.Error}, subscription.Off, "in error for too long: "+result.Err)
	}
	return l.postpone(ctx, row.ID, untilEnd(c, max(errorHeartbeat, result.RetryAfter)), 0)
}

// sendHeartbeat tells an active subscription's endpoint that all is well, when nothing else
// was sent for a while.
func (l *life) sendHeartbeat(ctx context.Context, row dueSubscription, r *r4.Subscription, c *subscription.Subscription, now time.Time) error {
	s := l.s
	every := s.heartbeatOf(r)
	if every <= 0 || c.WebSocket || !s.Settings().Webhook.Enabled {
		return l.postpone(ctx, row.ID, untilEnd(c, idleLook), 0)
	}
	if quiet := now.Sub(row.LastSent); quiet < every {
		return l.postpone(ctx, row.ID, untilEnd(c, every-quiet), 0)
	}
	result := l.sendStatus(ctx, row, c, uuid.New(), "heartbeat", subscription.Active)
	if result.Gone {
		return s.changeStatus(ctx, row.ID, []string{subscription.Active}, subscription.Off, "the endpoint answered 410 Gone")
	}
	if !result.OK() {
		s.metrics.failed.WithLabelValues(c.Reference()).Inc()
	}
	// Not all at the same time, should they have begun so.
	return l.postpone(ctx, row.ID, untilEnd(c, every-every/20+rand.N(every/10+1)), 0)
}

// idleLook is when a subscription that nothing is due for is looked at again: settings may
// have changed.
const idleLook = 10 * time.Minute

// untilEnd is wait, or the time until the subscription ends.
func untilEnd(c *subscription.Subscription, wait time.Duration) time.Duration {
	if !c.End.IsZero() {
		return max(0, min(wait, time.Until(c.End)))
	}
	return wait
}

// sendStatus sends a handshake or a heartbeat under an id.
func (l *life) sendStatus(ctx context.Context, row dueSubscription, c *subscription.Subscription, id uuid.UUID, kind, status string) webhook.Result {
	s := l.s
	body, contentType := s.messages.ComposeStatus(c, id.String(), kind, status, row.Events)
	k := s.sender.FindKeys(row.Secret, row.PreviousSecret, row.SecretChanged.Time)
	return s.postMessage(ctx, c, k, id.String(), contentType, body)
}
