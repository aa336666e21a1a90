package queue

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"kiln/server/notify/config"
	"kiln/server/notify/webhook"
	"kiln/server/telemetry"
)

// A Receiver is how a subscriber is sent to.
type Receiver struct {
	Policy  webhook.Policy
	Deliver func(ctx context.Context, d *Delivery) webhook.Result
	// After is called after each attempt: once its result is on its way to be written, of a delivery that is
	// given up once it is written.
	After func(ctx context.Context, d *Delivery, r webhook.Result, givenUp bool)
}

// ErrNoReceiver is the error of a subscriber that there is no more.
var ErrNoReceiver = errors.New("there is no such subscriber")

// Receivers find out how subscribers are sent to.
type Receivers interface {
	// FindReceiver returns how a subscriber is sent to. It fails with ErrNoReceiver where there is none.
	FindReceiver(ctx context.Context, subscriber string) (*Receiver, error)
	// MaxTimeout is how long an attempt may take, of any kind of subscriber.
	MaxTimeout() time.Duration
	// AreOn reports whether anything is sent now.
	AreOn() bool
}

// A sender sends the deliveries of one subscriber after another.
type sender struct {
	receivers Receivers
	settings  *config.Watch
	log       *slog.Logger
	results   chan<- finished
}

// oursRetry is how long a delivery waits that could not be tried for a fault of this server.
const oursRetry = time.Second

// leaseTime is how long a server has a subscriber: it starts no attempt that could end later.
func (q *sender) leaseTime() time.Duration { return 2*q.receivers.MaxTimeout() + 5*time.Second }

// sendDeliveries sends deliveries to one subscriber, in order, and stops at the first that fails. It
// reports whether any arrived, and how the subscriber answers.
func (q *sender) sendDeliveries(ctx context.Context, subscriber string, list []*Delivery, claimed time.Time) (sent bool, answers string) {
	if len(list) == 0 {
		return false, ""
	}
	to, err := q.receivers.FindReceiver(ctx, subscriber)
	if err != nil {
		if ctx.Err() == nil {
			q.log.Warn("a subscriber cannot be sent to", "subscriber", subscriber, "error", err)
		}
		for _, d := range list {
			q.results <- finished{delivery: d, status: Pending, retry: oursRetry}
		}
		return false, ""
	}
	parallel := max(1, q.settings.Current().Webhook.MaxInFlight)
	var mu sync.Mutex
	stopped := false
	var group sync.WaitGroup
	underWay := make(chan struct{}, parallel)
	for _, d := range list {
		underWay <- struct{}{}
		mu.Lock()
		skip := stopped
		mu.Unlock()
		if skip || ctx.Err() != nil || time.Since(claimed) > q.leaseTime()-q.receivers.MaxTimeout()-time.Second {
			<-underWay
			q.results <- finished{delivery: d, status: Pending}
			continue
		}
		group.Go(func() {
			defer func() { <-underWay }()
			// A running delivery is finished when the server stops, within the timeout.
			r := to.Deliver(telemetry.Continue(context.WithoutCancel(ctx), d.Event.Trace), d)
			f, stop := q.settle(to, d, r)
			mu.Lock()
			sent = sent || r.OK()
			stopped = stopped || stop
			if f.tried && !r.Withheld {
				answers = answersOf(r, q.receivers.MaxTimeout())
			}
			mu.Unlock()
			// A dead letter affects its subscriber only after it is written: switching off
			// deletes unfinished deliveries, and a client that sees the error finds its
			// cause.
			if f.status == Failed {
				written := make(chan struct{})
				f.written = written
				q.results <- f
				<-written
			} else {
				q.results <- f
			}
			to.After(ctx, d, r, f.status == Failed)
		})
	}
	group.Wait()
	return sent, answers
}

// settle decides what becomes of a delivery, and whether the rest of the list has to wait.
func (q *sender) settle(to *Receiver, d *Delivery, r webhook.Result) (f finished, stop bool) {
	f = finished{delivery: d, result: r, status: Delivered, tried: true}
	switch {
	case r.Ours != nil:
		q.log.Warn("a notification cannot be sent yet", "subscriber", d.Subscriber, "notification", d.ID, "error", r.Ours)
		f.status, f.retry, f.tried = Pending, oursRetry, false
		return f, true
	case r.Withheld, r.OK():
		return f, false
	case r.Gone:
		f.status = Failed
		return f, true
	}
	retry, again := to.Policy.NextAttempt(d.Attempts+1, r)
	if !again {
		f.status = Failed
		return f, true
	}
	f.status, f.retry = Pending, retry
	return f, true
}
