// Package queue has the queue of deliveries: which events are to be sent to which subscribers. Any server adds
// deliveries (AddDeliveries), and any server sends them, by a lease on their subscriber (Queue).
//
// While the oldest event of a subscriber fails, the newer ones wait behind it.
package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/server/notify/config"
	"kiln/server/store"
)

// Parts are the parts of the service that a Queue uses.
type Parts struct {
	Store        *store.Store
	Settings     *config.Watch
	Receivers    Receivers
	ReadVersions VersionReader
	Audit        Audit
	Log          *slog.Logger
}

// A Queue is this server's share of the work on the queue of deliveries. It leases subscribers
// that have something due, sends to each of them in the order of its events, and writes many
// results at a time. When a server dies, its leases run out.
type Queue struct {
	Parts
	wake     chan struct{}
	places   places // one for each subscriber that is sent to
	sender   sender
	recorder recorder
}

// New returns a Queue that has not begun.
func New(p Parts) *Queue {
	q := &Queue{Parts: p, wake: make(chan struct{}, 1), places: newPlaces()}
	ended := make(chan finished, flushSize)
	q.recorder = recorder{holder: uuid.NewString(), store: p.Store, audit: p.Audit, log: p.Log, written: q.WakeUp, ended: ended}
	q.sender = sender{receivers: p.Receivers, settings: p.Settings, log: p.Log, results: ended}
	return q
}

// perClaim is how many deliveries of a subscriber are taken at a time.
const perClaim = 64

// limit is how many subscribers may be sent to at a time.
func (q *Queue) limit() int { return max(1, q.Settings.Current().Webhook.MaxConcurrent) }

// workers is how many goroutines fetch deliveries now: none where nothing is sent.
func (q *Queue) workers() int {
	if !q.Receivers.AreOn() {
		return 0
	}
	return max(1, q.Settings.Current().Workers)
}

// WakeUp makes the queue look for new deliveries.
func (q *Queue) WakeUp() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Run works on the queue until ctx ends, and then waits for running deliveries.
func (q *Queue) Run(ctx context.Context) {
	var writing sync.WaitGroup
	writing.Go(q.recorder.run)
	var working sync.WaitGroup
	var fetching sync.WaitGroup
	var mu sync.Mutex
	fetches := make(map[int]bool)
	for ctx.Err() == nil {
		changed := q.Settings.NextChange()
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
	close(q.recorder.ended)
	writing.Wait()
}

// fetch is one of the workers that take deliveries from the queue, while it is wanted.
func (q *Queue) fetch(ctx context.Context, working *sync.WaitGroup, wanted func() bool) {
	for ctx.Err() == nil && wanted() {
		n, err := q.claim(ctx, working)
		if err != nil && ctx.Err() == nil {
			q.Log.Warn("take deliveries from the queue", "error", err)
			store.SleepFor(ctx, time.Second)
			continue
		}
		if n == 0 {
			q.rest(ctx)
		}
	}
}

// rest waits until something may be due.
func (q *Queue) rest(ctx context.Context) {
	wait := q.Settings.Current().Poll
	next := db.NextDueParams{Answers: q.places.openPlaces(q.limit()), Webhooks: q.Settings.Current().Webhook.Enabled}
	if rows, err := db.New(q.Store.Pool()).NextDue(ctx, next); err == nil && len(rows) > 0 {
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
func (q *Queue) claim(ctx context.Context, working *sync.WaitGroup) (int, error) {
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
			q.recorder.ended <- finished{subscriber: sub.ID}
			continue
		}
		working.Go(func() {
			defer q.places.returnPlaces(sub.Answers)
			sent, answers := q.sender.sendDeliveries(ctx, sub.ID, lists[sub.ID], claimed)
			q.recorder.ended <- finished{subscriber: sub.ID, sent: sent, answers: answers}
		})
	}
	if err != nil {
		return 0, err
	}
	return len(subscribers), nil
}

// claimDeliveries leases as many subscribers with due deliveries as there are free places. It returns the
// due deliveries of each, in order. With an error it may have leased subscribers too.
func (q *Queue) claimDeliveries(ctx context.Context, free freePlaces) (subscribers []db.ClaimSubscribersRow, lists map[string][]*Delivery, err error) {
	var rows []db.ClaimDeliveriesRow
	err = q.Store.InTx(ctx, func(t *store.Tx) (err error) {
		// A lease lost in a crash is taken again, and a message already sent is sent again
		// under its id.
		if err = t.CommitEarly(ctx); err != nil {
			return err
		}
		d := db.New(t.Conn())
		subscribers, err = d.ClaimSubscribers(ctx, db.ClaimSubscribersParams{
			Count: int64(free.all), Unproven: int64(free.unproven), Late: int64(free.late),
			Holder: q.recorder.holder, LeaseMs: q.sender.leaseTime().Milliseconds(), Webhooks: q.Settings.Current().Webhook.Enabled,
		})
		if err != nil || len(subscribers) == 0 {
			return err
		}
		ids := make([]string, len(subscribers))
		for i, sub := range subscribers {
			ids[i] = sub.ID
		}
		rows, err = d.ClaimDeliveries(ctx, db.ClaimDeliveriesParams{Count: perClaim, Subscribers: ids, Holder: q.recorder.holder})
		return err
	})
	if err == nil {
		lists, err = ReadDeliveries(ctx, q.ReadVersions, rows)
	}
	return subscribers, lists, err
}
