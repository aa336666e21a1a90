package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/store"
	"kiln/server/telemetry"
)

// queue is this server's share of the work on the queue of deliveries. It leases subscribers
// that have something due, sends to each of them in the order of its events, and writes many
// results at a time. When a server dies, its leases run out.
//
// While the oldest event of a subscriber fails, the newer ones wait behind it.
type queue struct {
	s      *Service
	holder string
	wake   chan struct{}
	places places // one for each subscriber that is sent to
	ended  chan finished
}

// Delivery is an event on its way to a subscriber.
type Delivery struct {
	ID         uuid.UUID // of the notification
	Subscriber string
	Number     int64 // of the event, counted by subscriber
	Attempts   int   // before this one
	Event      *matching.Event
	Queued     time.Time
	// Run is the SubscriberKind's id of the attempt, from Deliver to DeadLetter.
	Run uuid.UUID

	ref int64
}

// finished is what came of a delivery, or of the work on a subscriber.
type finished struct {
	delivery *Delivery // nil when the subscriber is given back
	result   webhook.Result
	status   deliveryStatus
	retry    time.Duration
	tried    bool
	written  chan<- struct{} // closed once it is written; nil where nobody waits

	subscriber string
	sent       bool
	answers    string // of the last request to the subscriber; "" where there was none
}

const (
	// perClaim is how many deliveries of a subscriber are taken at a time.
	perClaim = 64
	// oursRetry is how long a delivery waits that could not be tried for a fault of this server.
	oursRetry = time.Second
	// flushInterval and flushSize bound how long and how many results wait to be written.
	flushInterval = 4 * time.Millisecond
	flushSize     = 400
)

func newQueue(s *Service) *queue {
	return &queue{
		s: s, holder: uuid.NewString(), wake: make(chan struct{}, 1), places: newPlaces(),
		ended: make(chan finished, flushSize),
	}
}

// limit is how many subscribers may be sent to at a time.
func (q *queue) limit() int { return max(1, q.s.Settings().Webhook.MaxConcurrent) }

// workers is how many goroutines fetch deliveries now: none where nothing is sent.
func (q *queue) workers() int {
	c := q.s.Settings()
	if !c.Enabled || !c.Webhook.Enabled && len(q.s.kinds) == 0 {
		return 0
	}
	return max(1, c.Workers)
}

func (q *queue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// lease is how long a server has a subscriber: it starts no attempt that could end later.
func (q *queue) lease() time.Duration { return 2*q.timeout() + 5*time.Second }

// timeout is how long an attempt may take, of any kind of subscriber.
func (q *queue) timeout() time.Duration {
	t := q.s.Settings().Webhook.Timeout
	for _, k := range q.s.kinds {
		t = max(t, k.Timeout())
	}
	return t
}

// addDeliveries counts hits and queues deliveries of them. It leaves out Subscriptions that are off or deleted
// by now, and events from before a Subscription started.
func (q *queue) addDeliveries(ctx context.Context, tx pgx.Tx, hits []matching.Hit) error {
	d := db.New(tx)
	hits, err := q.lockHearing(ctx, d, hits)
	if err != nil || len(hits) == 0 {
		return err
	}
	at := make(map[string]int)
	var count db.CountEventsParams
	for _, h := range hits {
		i, ok := at[h.Subscriber.ID]
		if !ok {
			i = len(count.Ids)
			at[h.Subscriber.ID] = i
			count.Ids = append(count.Ids, h.Subscriber.ID)
			count.Events = append(count.Events, 0)
			count.Queued = append(count.Queued, h.Subscriber.Queued)
		}
		count.Events[i]++
	}
	rows, err := d.CountEvents(ctx, count)
	if err != nil {
		return err
	}
	number := make(map[string]int64, len(rows))
	for _, r := range rows {
		number[r.ID] = r.Before
	}
	var p db.AddDeliveriesParams
	for _, h := range hits {
		number[h.Subscriber.ID]++
		status := deliveryPending
		if !h.Subscriber.Queued {
			if !h.Subscriber.Logged {
				continue
			}
			status = deliveryDelivered
		}
		e := h.Event
		p.Statuses = append(p.Statuses, status.letter())
		p.Ids = append(p.Ids, pgtype.UUID{Bytes: e.NotificationID(h.Subscriber.ID), Valid: true})
		p.Subscribers = append(p.Subscribers, h.Subscriber.ID)
		p.Numbers = append(p.Numbers, number[h.Subscriber.ID])
		p.Epochs = append(p.Epochs, int64(e.Position.Epoch))
		p.Xids = append(p.Xids, e.Position.XID)
		p.Rids = append(p.Rids, e.Position.RID)
		p.Refs = append(p.Refs, e.Ref)
		p.Versions = append(p.Versions, int32(e.Version.VersionID))
		p.Events = append(p.Events, string(rune(e.Kind)))
		p.ResourceTypes = append(p.ResourceTypes, e.Version.ResourceType)
		p.ResourceIds = append(p.ResourceIds, e.Version.ID)
		p.Createds = append(p.Createds, e.Written)
		p.Traces = append(p.Traces, e.Trace)
	}
	if len(p.Ids) == 0 {
		return nil
	}
	return d.AddDeliveries(ctx, p)
}

// lockHearing locks the subscribers of hits and returns the hits whose subscribers hear of them. The
// write that ends a Subscription waits for that lock, and then deletes the pending deliveries.
func (q *queue) lockHearing(ctx context.Context, d *db.Queries, hits []matching.Hit) ([]matching.Hit, error) {
	var all, others, subscriptions []string
	seen := make(map[string]bool)
	for _, h := range hits {
		id := h.Subscriber.ID
		if seen[id] {
			continue
		}
		seen[id] = true
		all = append(all, id)
		if subscription, ok := strings.CutPrefix(id, "Subscription/"); ok {
			subscriptions = append(subscriptions, subscription)
		} else {
			others = append(others, id)
		}
	}
	if err := d.AddSubscribers(ctx, others); err != nil {
		return nil, err
	}
	if err := d.LockSubscribers(ctx, all); err != nil {
		return nil, err
	}
	since := make(map[string]time.Time, len(subscriptions))
	if len(subscriptions) > 0 {
		rows, err := d.HearingSubscriptions(ctx, subscriptions)
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			since["Subscription/"+r.ID] = r.StartedAt
		}
	}
	return slices.DeleteFunc(slices.Clone(hits), func(h matching.Hit) bool {
		if !strings.HasPrefix(h.Subscriber.ID, "Subscription/") {
			return false
		}
		start, hears := since[h.Subscriber.ID]
		return !hears || h.Event.Written.Before(start)
	}), nil
}

// run works on the queue until ctx ends, and then waits for running deliveries.
func (q *queue) run(ctx context.Context) {
	var writing sync.WaitGroup
	writing.Go(q.write)
	var working sync.WaitGroup
	var fetching sync.WaitGroup
	var mu sync.Mutex
	fetches := make(map[int]bool)
	for ctx.Err() == nil {
		changed := q.s.watch.NextChange()
		mu.Lock()
		for i := range q.workers() {
			if fetches[i] {
				continue
			}
			fetches[i] = true
			fetching.Go(func() {
				q.fetch(ctx, &working, func() bool {
					mu.Lock()
					defer mu.Unlock()
					fetches[i] = i < q.workers()
					return fetches[i]
				})
			})
		}
		mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	fetching.Wait()
	working.Wait()
	close(q.ended)
	writing.Wait()
}

// fetch is one of the workers that take deliveries from the queue, while it is wanted.
func (q *queue) fetch(ctx context.Context, working *sync.WaitGroup, wanted func() bool) {
	for ctx.Err() == nil && wanted() {
		n, err := q.claim(ctx, working)
		if err != nil && ctx.Err() == nil {
			q.s.Log.Warn("take deliveries from the queue", "error", err)
			sleepFor(ctx, time.Second)
			continue
		}
		if n == 0 {
			q.rest(ctx)
		}
	}
}

// rest waits until something may be due.
func (q *queue) rest(ctx context.Context) {
	wait := q.s.Settings().Poll
	next := db.NextDueParams{Answers: q.places.openPlaces(q.limit()), Webhooks: q.s.Settings().Webhook.Enabled}
	if rows, err := q.s.db().NextDue(ctx, next); err == nil && len(rows) > 0 {
		wait = min(wait, time.Duration(max(1, rows[0]+1))*time.Millisecond)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.wake:
	case <-ctx.Done():
	}
}

// claim leases subscribers that have something due and sends to them. It waits while every
// place is taken.
func (q *queue) claim(ctx context.Context, working *sync.WaitGroup) (int, error) {
	free, ok := q.places.takePlaces(ctx, q.limit)
	if !ok {
		return 0, ctx.Err()
	}
	claimed := time.Now()
	subscribers, lists, err := q.claimDeliveries(ctx, free)
	q.places.keepPlaces(free, subscribers)
	for _, sub := range subscribers {
		if err != nil {
			q.places.returnPlaces(sub.Answers)
			q.ended <- finished{subscriber: sub.ID}
			continue
		}
		working.Go(func() {
			defer q.places.returnPlaces(sub.Answers)
			sent, answers := q.sendDeliveries(ctx, sub.ID, lists[sub.ID], claimed)
			q.ended <- finished{subscriber: sub.ID, sent: sent, answers: answers}
		})
	}
	if err != nil {
		return 0, err
	}
	return len(subscribers), nil
}

// claimDeliveries leases as many subscribers with due deliveries as there are free places. It returns the
// due deliveries of each, in order. With an error it may have leased subscribers too.
func (q *queue) claimDeliveries(ctx context.Context, free freePlaces) (subscribers []db.ClaimSubscribersRow, lists map[string][]*Delivery, err error) {
	var rows []db.ClaimDeliveriesRow
	err = q.s.Store.InTx(ctx, func(t *store.Tx) (err error) {
		// A lease lost in a crash is taken again, and a message already sent is sent again
		// under its id.
		if err = t.CommitEarly(ctx); err != nil {
			return err
		}
		d := db.New(t.Conn())
		subscribers, err = d.ClaimSubscribers(ctx, db.ClaimSubscribersParams{
			Count: int64(free.all), Unproven: int64(free.unproven), Late: int64(free.late),
			Holder: q.holder, LeaseMs: q.lease().Milliseconds(), Webhooks: q.s.Settings().Webhook.Enabled,
		})
		if err != nil || len(subscribers) == 0 {
			return err
		}
		ids := make([]string, len(subscribers))
		for i, sub := range subscribers {
			ids[i] = sub.ID
		}
		rows, err = d.ClaimDeliveries(ctx, db.ClaimDeliveriesParams{Count: perClaim, Subscribers: ids, Holder: q.holder})
		return err
	})
	if err == nil {
		lists, err = q.readDeliveries(ctx, rows)
	}
	return subscribers, lists, err
}

// readDeliveries reads what claimed deliveries are about. It returns them by subscriber, in order.
func (q *queue) readDeliveries(ctx context.Context, rows []db.ClaimDeliveriesRow) (map[string][]*Delivery, error) {
	slices.SortFunc(rows, func(a, b db.ClaimDeliveriesRow) int {
		if again := (a.Attempts < 0) != (b.Attempts < 0); again { // an administrator sends it again
			return cmp.Compare(a.Attempts, b.Attempts)
		}
		return cmp.Compare(a.Number, b.Number)
	})
	keys := make([]store.VersionKey, 0, len(rows))
	types := make(map[int64]string, len(rows))
	for _, r := range rows {
		keys = append(keys, store.VersionKey{Ref: r.Ref, VersionID: int(r.Version)})
		types[r.Ref] = r.ResourceType
		if matching.Kind(r.Event) == matching.Delete || r.Version > 1 && !strings.HasPrefix(r.Subscriber, "Subscription/") {
			keys = append(keys, store.VersionKey{Ref: r.Ref, VersionID: int(r.Version) - 1})
		}
	}
	versions, err := q.s.subscriptions.ReadVersions(ctx, keys, types)
	if err != nil {
		return nil, err
	}
	lists := make(map[string][]*Delivery)
	for _, r := range rows {
		v, ok := versions[store.VersionKey{Ref: r.Ref, VersionID: int(r.Version)}]
		if !ok {
			v = fhir.Version{ResourceType: r.ResourceType, ID: r.ResourceID, VersionID: int(r.Version), LastUpdated: r.Created}
		}
		e := &matching.Event{Kind: matching.Kind(r.Event), Version: v, Written: r.Created, Trace: r.Trace, Ref: r.Ref}
		if e.Kind == matching.Delete || e.Kind == matching.Update && !strings.HasPrefix(r.Subscriber, "Subscription/") {
			e.Previous = versions[store.VersionKey{Ref: r.Ref, VersionID: int(r.Version) - 1}]
		}
		lists[r.Subscriber] = append(lists[r.Subscriber], &Delivery{
			ID: r.ID.Bytes, Subscriber: r.Subscriber, Number: r.Number, Attempts: max(0, int(r.Attempts)), Event: e, Queued: r.Queued, ref: r.Ref,
		})
	}
	return lists, nil
}

// sendDeliveries sends deliveries to one subscriber, in order, and stops at the first that fails. It
// reports whether any arrived, and how the subscriber answers.
func (q *queue) sendDeliveries(ctx context.Context, subscriber string, list []*Delivery, claimed time.Time) (sent bool, answers string) {
	if len(list) == 0 {
		return false, ""
	}
	to, err := q.receiver(ctx, subscriber)
	if err != nil {
		if ctx.Err() == nil {
			q.s.Log.Warn("a subscriber cannot be sent to", "subscriber", subscriber, "error", err)
		}
		for _, d := range list {
			q.ended <- finished{delivery: d, status: deliveryPending, retry: oursRetry}
		}
		return false, ""
	}
	parallel := max(1, q.s.Settings().Webhook.MaxInFlight)
	var mu sync.Mutex
	stopped := false
	var group sync.WaitGroup
	underWay := make(chan struct{}, parallel)
	for _, d := range list {
		underWay <- struct{}{}
		mu.Lock()
		skip := stopped
		mu.Unlock()
		if skip || ctx.Err() != nil || time.Since(claimed) > q.lease()-q.timeout()-time.Second {
			<-underWay
			q.ended <- finished{delivery: d, status: deliveryPending}
			continue
		}
		group.Go(func() {
			defer func() { <-underWay }()
			// A running delivery is finished when the server stops, within the timeout.
			r := to.deliver(telemetry.Continue(context.WithoutCancel(ctx), d.Event.Trace), d)
			f, stop := q.settle(to, d, r)
			mu.Lock()
			sent = sent || r.OK()
			stopped = stopped || stop
			if f.tried && !r.Withheld {
				answers = answersOf(r, q.timeout())
			}
			mu.Unlock()
			// A dead letter affects its subscriber only after it is written: switching off
			// deletes unfinished deliveries, and a client that sees the error finds its
			// cause.
			if f.status == deliveryFailed {
				written := make(chan struct{})
				f.written = written
				q.ended <- f
				<-written
			} else {
				q.ended <- f
			}
			to.after(ctx, d, r, f)
		})
	}
	group.Wait()
	return sent, answers
}

// settle decides what becomes of a delivery, and whether the rest of the list has to wait.
func (q *queue) settle(to *receiver, d *Delivery, r webhook.Result) (f finished, stop bool) {
	f = finished{delivery: d, result: r, status: deliveryDelivered, tried: true}
	switch {
	case r.Ours != nil:
		q.s.Log.Warn("a notification cannot be sent yet", "subscriber", d.Subscriber, "notification", d.ID, "error", r.Ours)
		f.status, f.retry, f.tried = deliveryPending, oursRetry, false
		return f, true
	case r.Withheld, r.OK():
		return f, false
	case r.Gone:
		f.status = deliveryFailed
		return f, true
	}
	retry, again := to.policy.NextAttempt(d.Attempts+1, r)
	if !again {
		f.status = deliveryFailed
		return f, true
	}
	f.status, f.retry = deliveryPending, retry
	return f, true
}

// receiver is how a subscriber is sent to.
type receiver struct {
	policy  webhook.Policy
	deliver func(ctx context.Context, d *Delivery) webhook.Result
	// after is told of each attempt: once it is on its way to be written, of a dead letter
	// once it is written.
	after func(ctx context.Context, d *Delivery, r webhook.Result, f finished)
}

// errNoReceiver is of a subscriber that there is no more.
var errNoReceiver = errors.New("there is no such subscriber")

// receiver finds out how a subscriber is sent to.
func (q *queue) receiver(ctx context.Context, subscriber string) (*receiver, error) {
	if id, ok := strings.CutPrefix(subscriber, "Subscription/"); ok {
		return q.s.webhookReceiver(ctx, id)
	}
	for _, k := range q.s.kinds {
		if strings.HasPrefix(subscriber, k.Prefix()) {
			policy, err := k.Policy(ctx, subscriber)
			if err != nil {
				return nil, err
			}
			return &receiver{
				policy: policy,
				deliver: func(ctx context.Context, d *Delivery) webhook.Result {
					r := k.Deliver(ctx, subscriber, d, appendMessage(nil, d.Event, d.ID, subscriber, "", true))
					if !r.Withheld {
						q.s.metrics.countDelivery(strings.ToLower(k.ResourceType()), subscriber, r, d.Event.Written)
					}
					return r
				},
				after: func(ctx context.Context, d *Delivery, r webhook.Result, f finished) {
					if f.status == deliveryFailed {
						k.DeadLetter(ctx, subscriber, d, r.Err)
					}
				},
			}, nil
		}
	}
	return nil, errNoReceiver
}

// webhookReceiver sends to the endpoint of a Subscription.
func (s *Service) webhookReceiver(ctx context.Context, id string) (*receiver, error) {
	c, err := s.subscriptions.Read(ctx, id)
	if err != nil {
		return nil, err
	}
	if c.Endpoint == nil {
		return nil, errNoReceiver
	}
	row, err := s.db().Subscription(ctx, id)
	if err != nil {
		return nil, err
	}
	k := s.sender.FindKeys(row.Secret, row.PreviousSecret, row.SecretChanged.Time)
	w := s.Settings().Webhook
	return &receiver{
		policy: webhook.Policy{MaxAttempts: w.MaxAttempts, Backoff: w.Backoff},
		deliver: func(ctx context.Context, d *Delivery) webhook.Result {
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
			body, contentType := s.deliveryBody(reading, c, row.Status, row.Events, d)
			r := s.postMessage(ctx, c, k, d.ID.String(), contentType, body)
			s.metrics.countDelivery("webhook", c.Reference(), r, d.Event.Written)
			return r
		},
		after: func(ctx context.Context, d *Delivery, r webhook.Result, f finished) {
			ctx = context.WithoutCancel(ctx)
			var err error
			switch {
			case r.Gone:
				err = s.changeStatus(ctx, id, []string{subscription.Active, subscription.Error, subscription.Requested}, subscription.Off, "the endpoint answered 410 Gone")
			case f.status == deliveryFailed:
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
	v, x := s.evaluator().IndexedVersion(e, e.Kind == matching.Delete)
	return s.Rights.Sees(ctx, p, v, x)
}

// write writes what came of deliveries, many at a time.
func (q *queue) write() {
	for f := range q.ended {
		batch := []finished{f}
		timer := time.NewTimer(flushInterval)
	collect:
		for len(batch) < flushSize {
			select {
			case f, ok := <-q.ended:
				if !ok {
					break collect
				}
				batch = append(batch, f)
			case <-timer.C:
				break collect
			}
		}
		timer.Stop()
		for attempt := 1; ; attempt++ {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err := q.flush(ctx, batch)
			cancel()
			if err == nil {
				break
			}
			q.s.Log.Warn("write the results of deliveries", "error", err, "attempt", attempt)
			if attempt == 5 {
				break // the leases run out, and the deliveries are sent again under their ids
			}
			time.Sleep(time.Duration(attempt) * 200 * time.Millisecond)
		}
		for _, f := range batch {
			if f.written != nil {
				close(f.written)
			}
		}
		q.wakeUp()
	}
}

// attempt is one in the log of a delivery.
type attempt struct {
	At         string  `json:"at"`
	Status     *int    `json:"status"` // of HTTP; null where there was no answer
	DurationMS int64   `json:"durationMs"`
	Error      *string `json:"error"` // null for success
}

func attemptOf(r webhook.Result) attempt {
	if r.Withheld {
		r.Err = "withheld: the owner of the subscription may not read the resource"
	}
	a := attempt{At: rfc3339(r.At), DurationMS: r.Duration.Milliseconds()}
	if r.Status != 0 {
		a.Status = &r.Status
	}
	if r.Err != "" {
		a.Error = &r.Err
	}
	return a
}

// flush writes results, gives subscribers back, and keeps AuditEvents of the deliveries, in
// one transaction. The subscribers do not wait until these are stored.
func (q *queue) flush(ctx context.Context, batch []finished) error {
	var p db.FinishDeliveriesParams
	var back db.ReleaseSubscribersParams
	back.Holder = q.holder
	var audits [][]byte
	for _, f := range batch {
		if f.delivery == nil {
			back.Ids, back.Sents, back.Answers = append(back.Ids, f.subscriber), append(back.Sents, f.sent), append(back.Answers, f.answers)
			continue
		}
		log, tried := "[]", int32(0)
		if f.tried {
			b, _ := json.Marshal([]attempt{attemptOf(f.result)})
			log, tried = string(b), 1
			if !f.result.Withheld {
				audits = append(audits, auditEvent(f))
			}
		}
		p.Ids = append(p.Ids, pgtype.UUID{Bytes: f.delivery.ID, Valid: true})
		p.Statuses = append(p.Statuses, f.status.letter())
		p.Tried = append(p.Tried, tried)
		p.RetryMs = append(p.RetryMs, f.retry.Milliseconds())
		p.AskedMs = append(p.AskedMs, f.result.RetryAfter.Milliseconds())
		p.Logs = append(p.Logs, log)
	}
	err := q.s.Store.InTx(ctx, func(t *store.Tx) error {
		d := db.New(t.Conn())
		if len(p.Ids) > 0 {
			if err := d.FinishDeliveries(ctx, p); err != nil {
				return err
			}
		}
		if len(back.Ids) > 0 {
			if err := d.LockSubscribers(ctx, back.Ids); err != nil {
				return err
			}
			if err := d.ReleaseSubscribers(ctx, back); err != nil {
				return err
			}
		}
		if len(audits) > 0 {
			return q.s.Audit.Keep(ctx, t, audits)
		}
		return nil
	})
	if err == nil && len(audits) > 0 {
		q.s.Audit.Wake()
	}
	return err
}
