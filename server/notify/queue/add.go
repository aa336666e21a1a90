package queue

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/notify/matching"
)

// AddDeliveries counts hits and queues deliveries of them. It leaves out Subscriptions that are off or deleted
// by now, and events from before a Subscription started.
func AddDeliveries(ctx context.Context, tx pgx.Tx, hits []matching.Hit) error {
	d := db.New(tx)
	hits, err := lockHearing(ctx, d, hits)
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
		status := Pending
		if !h.Subscriber.Queued {
			if !h.Subscriber.Logged {
				continue
			}
			status = Delivered
		}
		e := h.Event
		p.Statuses = append(p.Statuses, status.Letter())
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
func lockHearing(ctx context.Context, d *db.Queries, hits []matching.Hit) ([]matching.Hit, error) {
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
