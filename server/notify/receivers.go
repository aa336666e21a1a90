package notify

import (
	"context"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
)

// receivers find out how subscribers are sent to: queue.Receivers.
type receivers struct{ s *Service }

// AreOn implements queue.Receivers.
func (x receivers) AreOn() bool {
	c := x.s.Settings()
	return c.Enabled && (c.Webhook.Enabled || len(x.s.kinds) > 0)
}

// MaxTimeout implements queue.Receivers.
func (x receivers) MaxTimeout() time.Duration {
	t := x.s.Settings().Webhook.Timeout
	for _, k := range x.s.kinds {
		t = max(t, k.Timeout())
	}
	return t
}

// FindReceiver implements queue.Receivers.
func (x receivers) FindReceiver(ctx context.Context, subscriber string) (*queue.Receiver, error) {
	if id, ok := strings.CutPrefix(subscriber, "Subscription/"); ok {
		return x.s.webhookReceiver(ctx, id)
	}
	for _, k := range x.s.kinds {
		if strings.HasPrefix(subscriber, k.Prefix()) {
			policy, err := k.Policy(ctx, subscriber)
			if err != nil {
				return nil, err
			}
			return &queue.Receiver{
				Policy: policy,
				Deliver: func(ctx context.Context, d *queue.Delivery) webhook.Result {
					r := k.Deliver(ctx, subscriber, d, message.AppendEvent(nil, d.Event, d.ID, subscriber, "", true))
					if !r.Withheld {
						x.s.metrics.countDelivery(strings.ToLower(k.ResourceType()), subscriber, r, d.Event.Written)
					}
					return r
				},
				After: func(ctx context.Context, d *queue.Delivery, r webhook.Result, givenUp bool) {
					if givenUp {
						k.DeadLetter(ctx, subscriber, d, r.Err)
					}
				},
			}, nil
		}
	}
	return nil, queue.ErrNoReceiver
}

// webhookReceiver sends to the endpoint of a Subscription.
func (s *Service) webhookReceiver(ctx context.Context, id string) (*queue.Receiver, error) {
	c, err := s.subscriptions.Read(ctx, id)
	if err != nil {
		return nil, err
	}
	if c.Endpoint == nil {
		return nil, queue.ErrNoReceiver
	}
	row, err := s.db().Subscription(ctx, id)
	if err != nil {
		return nil, err
	}
	k := s.sender.FindKeys(row.Secret, row.PreviousSecret, row.SecretChanged.Time)
	w := s.Settings().Webhook
	return &queue.Receiver{
		Policy: webhook.Policy{MaxAttempts: w.MaxAttempts, Backoff: w.Backoff},
		Deliver: func(ctx context.Context, d *queue.Delivery) webhook.Result {
			seen, err := s.mayStillSee(ctx, id, owner.Decode(row.Owner), d.Event)
			if err != nil || !seen {
				return webhook.Result{At: time.Now(), Withheld: err == nil, Ours: err}
			}
			reading := ctx
			if s.Rights != nil { // the owner must be allowed to read the topic's additions too
				p, err := s.Rights.Principal(ctx, owner.Decode(row.Owner))
				if err != nil {
					return webhook.Result{At: time.Now(), Ours: err}
				}
				reading = access.WithPrincipal(ctx, p)
			}
			body, contentType := s.messages.ComposeDelivery(reading, c, row.Status, row.Events, d)
			r := s.postMessage(ctx, c, k, d.ID.String(), contentType, body)
			s.metrics.countDelivery("webhook", c.Reference(), r, d.Event.Written)
			return r
		},
		After: func(ctx context.Context, d *queue.Delivery, r webhook.Result, givenUp bool) {
			ctx = context.WithoutCancel(ctx)
			var err error
			switch {
			case r.Gone:
				err = s.changeStatus(ctx, id, []string{subscription.Active, subscription.Error, subscription.Requested}, subscription.Off, "the endpoint answered 410 Gone")
			case givenUp:
				err = s.changeStatus(ctx, id, []string{subscription.Active}, subscription.Error, "a notification could not be delivered: "+r.Err)
			case r.OK() && row.Status == subscription.Error:
				err = s.changeStatus(ctx, id, []string{subscription.Error}, subscription.Active, "")
			}
			if err != nil {
				s.Log.Warn("set the status of a subscription", "subscription", id, "error", err)
			}
		},
	}, nil
}

// mayStillSee reports whether the owner may read the resource of an event now. A client that
// is revoked, or a user that is disabled, ends the subscription.
func (s *Service) mayStillSee(ctx context.Context, id string, o owner.Owner, e *matching.Event) (bool, error) {
	if s.Rights == nil {
		return true, nil
	}
	p, err := s.Rights.Principal(ctx, o)
	if err != nil {
		if owner.IsRevoked(err) {
			return false, s.endRevoked(ctx, id, err)
		}
		return false, err
	}
	return s.evaluator().PrincipalSees(ctx, p, e)
}
