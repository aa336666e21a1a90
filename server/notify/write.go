package notify

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/store"
)

// ownWrite marks the context of the server's own writes of a Subscription.
type ownWrite struct{}

func isOwn(ctx context.Context) bool { return ctx.Value(ownWrite{}) != nil }

// redraft makes the stored form of a Subscription that was changed in Go.
func (s *Service) redraft(id string, r *r4.Subscription) (*fhir.Body, *fhir.Index, fhir.Resource, error) {
	r.ID.Text = id
	if r.Meta != nil { // the version and the instant are the server's
		if r.Meta.VersionID, r.Meta.LastUpdated = (fhir.ID{}), (fhir.Instant{}); len(fhir.Encode(nil, r.Meta)) <= len("{}") {
			r.Meta = nil
		}
	}
	again, err := fhir.Decode(s.Service.Model, fhir.Encode(nil, r))
	if err != nil {
		return nil, nil, nil, err
	}
	body, err := fhir.Splice(again.Header().Raw, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	index, err := s.Store.Indexer().Index(id, again)
	return body, index, again, err
}

// beforeWrite checks Subscriptions that clients write, and decides their status. It runs in
// the transaction of the writes, so that every stored Subscription was checked.
func (s *Service) beforeWrite(ctx context.Context, t *store.Tx, ws []*store.Write) error {
	if isOwn(ctx) {
		return nil
	}
	begun := 0
	for i, w := range ws {
		if w.Method == fhir.DELETE {
			continue
		}
		if err := s.prepare(ctx, t, w, &begun); err != nil {
			return &store.WriteError{Index: i, Err: err}
		}
	}
	return nil
}

// prepare is beforeWrite for one Subscription. begun is how many the transaction has begun.
func (s *Service) prepare(ctx context.Context, t *store.Tx, w *store.Write, begun *int) error {
	if w.Modify != nil {
		modify := w.Modify
		w.Modify = func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
			was, err := s.subscriptions.Decode(current.Body)
			if err != nil {
				return nil, nil, err
			}
			foreign, err := s.isForeign(ctx, w.ID)
			if err != nil {
				return nil, nil, err
			}
			if foreign { // a patch must not copy or test headers that the client cannot read
				current.Body = s.subscriptions.MaskBody(current.Body)
			}
			body, _, err := modify(current)
			if err != nil {
				return nil, nil, err
			}
			r, err := s.subscriptions.Decode(body.Render(nil, w.ID, 1, time.Unix(0, 0)))
			if err != nil {
				return nil, nil, err
			}
			if err := s.admit(ctx, w, r, was, foreign, begun); err != nil {
				return nil, nil, err
			}
			body, index, _, err := s.redraft(w.ID, r)
			return body, index, err
		}
		return nil
	}
	r, err := s.subscriptions.Decode(w.Body.Render(nil, w.ID, 1, time.Unix(0, 0)))
	if err != nil {
		return err
	}
	var was *r4.Subscription
	foreign := false
	if w.Method != fhir.POST {
		v, err := t.Read(ctx, "Subscription", w.ID)
		if err == nil {
			was, err = s.subscriptions.Decode(v.Body)
		}
		if outcome.Ours(err) {
			return err
		}
		if was != nil {
			if foreign, err = s.isForeign(ctx, w.ID); err != nil {
				return err
			}
		}
	}
	asked := string(fhir.Encode(nil, r))
	if err := s.admit(ctx, w, r, was, foreign, begun); err != nil {
		return err
	}
	if string(fhir.Encode(nil, r)) == asked {
		return nil
	}
	w.Body, w.Index, w.Resource, err = s.redraft(w.ID, r)
	return err
}

// admit refuses a Subscription that cannot be carried out, and sets its status: requested
// until a handshake has succeeded, even if the client sent another one. was is the current
// version, nil if there is none; foreign says that another owner wrote it.
func (s *Service) admit(ctx context.Context, w *store.Write, r, was *r4.Subscription, foreign bool, begun *int) error {
	id := w.ID
	note, err := subscription.RestoreHeaders(r, was, foreign)
	if err != nil {
		return err
	}
	w.Note = note
	c, err := s.subscriptions.Compile(ctx, id, r)
	if err != nil {
		return err
	}
	if err := subscription.CheckForm(r); err != nil {
		return err
	}
	if err := s.mayFollow(ctx, c); err != nil {
		return err
	}
	r.Error.Text = ""
	if r.Status.Text == subscription.Off || !c.End.IsZero() && !c.End.After(time.Now()) {
		r.Status.Text = subscription.Off
		return nil
	}
	if was != nil && was.Status.Text == subscription.Active && r.Status.Text == subscription.Active && subscription.HasSameChannel(r, was) {
		return nil
	}
	r.Status.Text = subscription.Requested
	if was == nil || was.Status.Text == subscription.Off {
		if err := s.begin(ctx, id, *begun); err != nil {
			return err
		}
		*begun++
	}
	return nil
}

// begin refuses a Subscription beyond notifications.max_subscriptions. before is how many
// others the same transaction begins, which no count finds yet.
func (s *Service) begin(ctx context.Context, id string, before int) error {
	most := int64(s.Settings().MaxSubscriptions)
	if s.room.takeRoom(most) {
		return nil
	}
	n, err := s.db().CountSubscriptions(ctx, id)
	if err != nil {
		return err
	}
	if n += int64(before); n >= most {
		return subscription.Unprocessable("Subscription", outcome.CodeTooCostly, "there are %d subscriptions, as many as notifications.max_subscriptions allows", n)
	}
	s.room.found(most, n)
	return nil
}

// room is how many Subscriptions may begin before they are counted again: counting reads
// each of them, so that to count at each of 100,000 would read five billion.
type room struct {
	mu    sync.Mutex
	most  int64 // notifications.max_subscriptions when they were counted
	left  int64
	until time.Time
}

const (
	// roomPart is the part of the room that is left which one server fills before it
	// counts again: others fill it too.
	roomPart = 16
	// roomAge is how old a count may be.
	roomAge = time.Second
)

// takeRoom reports whether one may begin without a count.
func (r *room) takeRoom(most int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 || r.most != most || time.Now().After(r.until) {
		return false
	}
	r.left--
	return true
}

// found keeps that there were n of most.
func (r *room) found(most, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most, r.left, r.until = most, (most-n)/roomPart, time.Now().Add(roomAge)
}

// mayFollow refuses a Subscription whose author may not search and read its resources.
func (s *Service) mayFollow(ctx context.Context, c *subscription.Subscription) error {
	var asked []string
	for _, r := range c.Rules {
		if slices.Contains(asked, r.ResourceType) {
			continue
		}
		asked = append(asked, r.ResourceType)
		for _, i := range []access.Interaction{access.Search, access.Read} {
			if err := s.Service.CheckAllowed(ctx, i, r.ResourceType, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// afterWrite updates the server's rows of Subscriptions together with the resources.
func (s *Service) afterWrite(ctx context.Context, t *store.Tx, ws []*store.Write) (changed bool, err error) {
	for _, w := range ws {
		if err := s.follow(ctx, t, w); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (s *Service) follow(ctx context.Context, t *store.Tx, w *store.Write) error {
	q := db.New(t.Conn())
	reference := "Subscription/" + w.ID
	if w.Method == fhir.DELETE {
		// The subscriber first: the reader that queues events holds its lock, and DropPending then
		// finds the events.
		if err := q.DeleteSubscriber(ctx, reference); err != nil {
			return err
		}
		if err := q.DropPending(ctx, reference); err != nil {
			return err
		}
		return q.DeleteSubscription(ctx, w.ID)
	}
	r, err := s.subscriptions.Decode(w.Result.Body)
	if err != nil {
		return err
	}
	now := time.Now()
	p := db.PutSubscriptionParams{
		ID: w.ID, Status: r.Status.Text, Owner: owner.FromPrincipal(access.PrincipalFrom(ctx)).Encode(), Error: r.Error.Text,
		KeepOwner: isOwn(ctx), Version: int32(w.Result.VersionID),
	}
	if note, ok := w.Note.(subscription.Ownership); ok && note.Keep {
		p.KeepOwner = true
	}
	var end time.Time
	if r.End.Text != "" {
		end, _ = time.Parse(time.RFC3339Nano, r.End.Text)
	}
	var due time.Time
	switch p.Status {
	case subscription.Requested:
		due = now
	case subscription.Active:
		p.Started = true
		due = s.nextHeartbeat(now, end, r)
	case subscription.Error:
		p.Failing, due = timestamptz(now), now.Add(errorHeartbeat)
		if !end.IsZero() && end.Before(due) {
			due = end
		}
	}
	p.Due = timestamptz(due)
	if err := q.PutSubscription(ctx, p); err != nil {
		return err
	}
	if err := q.AddSubscribers(ctx, []string{reference}); err != nil {
		return err
	}
	if p.Status == subscription.Off {
		if err := q.StopSubscriber(ctx, reference); err != nil {
			return err
		}
		return q.DropPending(ctx, reference)
	}
	if p.Status == subscription.Requested {
		if err := q.RestartSubscriber(ctx, w.ID); err != nil {
			return err
		}
	}
	return q.PauseSubscriber(ctx, db.PauseSubscriberParams{ID: reference, Paused: p.Status != subscription.Active})
}

// nextHeartbeat is when an active subscription needs attention: a heartbeat, at a time of
// its own so that all are spread evenly, or its end.
func (s *Service) nextHeartbeat(now, end time.Time, r *r4.Subscription) time.Time {
	var due time.Time
	if every := s.heartbeatOf(r); every > 0 && r.Channel != nil && r.Channel.Type_.Text == "rest-hook" {
		due = now.Add(every/2 + rand.N(every/2+1))
	}
	if !end.IsZero() && (due.IsZero() || end.Before(due)) {
		due = end
	}
	return due
}

// heartbeatOf is the heartbeat period of a Subscription, 0 for none. A Backport Subscription has
// heartbeats only where it names a period.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-heartbeat-period.html.
func (s *Service) heartbeatOf(r *r4.Subscription) time.Duration {
	if r.Channel != nil {
		for _, x := range r.Channel.Extension {
			if x.URL.Text == subscription.HeartbeatExtension {
				if d := subscription.ParseDuration(x.Value); d > 0 {
					return d
				}
			}
		}
	}
	if subscription.IsBackport(r) {
		return 0
	}
	return s.Settings().Webhook.Heartbeat
}

// errUnchanged ends a transition that is not due any more.
var errUnchanged = outcome.New(outcome.CodeConflict, "the subscription has changed meanwhile")

// changeStatus writes a new status of a Subscription, a new version, if its status is one of
// from. reason is kept in Subscription.error.
func (s *Service) changeStatus(ctx context.Context, id string, from []string, to, reason string) error {
	ctx = access.WithPrincipal(context.WithValue(ctx, ownWrite{}, true), access.Open)
	w := &store.Write{Method: fhir.PUT, ResourceType: "Subscription", ID: id, MustExist: true}
	w.Modify = func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		r, err := s.subscriptions.Decode(current.Body)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Contains(from, r.Status.Text) {
			return nil, nil, errUnchanged
		}
		r.Status.Text, r.Error.Text = to, reason
		body, index, _, err := s.redraft(id, r)
		return body, index, err
	}
	err := s.Store.Write(ctx, w)
	if o, ok := outcome.From(err); ok && o == errUnchanged || outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return nil
	}
	if err == nil {
		s.Log.Info("subscription", "id", id, "status", to, "reason", reason)
	}
	return err
}
