package queue

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/notify/matching"
	"kiln/server/notify/webhook"
	"kiln/server/store"
)

// finished is what came of a delivery, or of the work on a subscriber.
type finished struct {
	delivery *Delivery // nil when the subscriber is given back
	result   webhook.Result
	status   Status
	retry    time.Duration
	tried    bool
	written  chan<- struct{} // closed once it is written; nil where nobody waits

	subscriber string
	sent       bool
	answers    string // of the last request to the subscriber; "" where there was none
}

// A recorder writes the results of deliveries, many at a time.
type recorder struct {
	holder  string // of the leases
	store   *store.Store
	audit   Audit
	log     *slog.Logger
	written func() // called after each write
	ended   chan finished
}

const (
	// flushInterval and flushSize bound how long and how many results wait to be written.
	flushInterval = 4 * time.Millisecond
	flushSize     = 400
)

// run writes what came of deliveries, many at a time.
func (q *recorder) run() {
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
			q.log.Warn("write the results of deliveries", "error", err, "attempt", attempt)
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
		q.written()
	}
}

// An Attempt is one in the log of a delivery.
type Attempt struct {
	At         string  `json:"at"`
	Status     *int    `json:"status"` // of HTTP; null where there was no answer
	DurationMS int64   `json:"durationMs"`
	Error      *string `json:"error"` // null for success
}

func attemptOf(r webhook.Result) Attempt {
	if r.Withheld {
		r.Err = "withheld: the owner of the subscription may not read the resource"
	}
	a := Attempt{At: matching.FormatInstant(r.At), DurationMS: r.Duration.Milliseconds()}
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
func (q *recorder) flush(ctx context.Context, batch []finished) error {
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
			b, _ := json.Marshal([]Attempt{attemptOf(f.result)})
			log, tried = string(b), 1
			if !f.result.Withheld {
				audits = append(audits, auditEvent(f))
			}
		}
		p.Ids = append(p.Ids, pgtype.UUID{Bytes: f.delivery.ID, Valid: true})
		p.Statuses = append(p.Statuses, f.status.Letter())
		p.Tried = append(p.Tried, tried)
		p.RetryMs = append(p.RetryMs, f.retry.Milliseconds())
		p.AskedMs = append(p.AskedMs, f.result.RetryAfter.Milliseconds())
		p.Logs = append(p.Logs, log)
	}
	err := q.store.InTx(ctx, func(t *store.Tx) error {
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
			return q.audit.Keep(ctx, t, audits)
		}
		return nil
	})
	if err == nil && len(audits) > 0 {
		q.audit.Wake()
	}
	return err
}
