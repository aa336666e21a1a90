package queue

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/store"
)

// A Delivery is an event on its way to a subscriber.
type Delivery struct {
	ID         uuid.UUID // of the notification
	Subscriber string
	Number     int64 // of the event, counted by subscriber
	Attempts   int   // before this one
	Event      *matching.Event
	Queued     time.Time
	// Run is the SubscriberKind's id of the attempt, from Deliver to DeadLetter.
	Run uuid.UUID
}

// A VersionReader reads the versions of events as subscribers may see them.
type VersionReader func(ctx context.Context, keys []store.VersionKey, types map[int64]string) (map[store.VersionKey]fhir.Version, error)

// ReadDeliveries reads what claimed deliveries are about. It returns them by subscriber, in order.
func ReadDeliveries(ctx context.Context, read VersionReader, rows []db.ClaimDeliveriesRow) (map[string][]*Delivery, error) {
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
	versions, err := read(ctx, keys, types)
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
			ID: r.ID.Bytes, Subscriber: r.Subscriber, Number: r.Number, Attempts: max(0, int(r.Attempts)), Event: e, Queued: r.Queued,
		})
	}
	return lists, nil
}

// FindEvents returns the events of a Subscription from one number up to another, in order.
func FindEvents(ctx context.Context, data *store.Store, read VersionReader, id string, first, last int64, count int32) ([]*Delivery, error) {
	rows, err := db.New(data.Pool()).EventsOfSubscription(ctx, db.EventsOfSubscriptionParams{Subscription: id, First: first, Last: last, Count: count})
	if err != nil {
		return nil, err
	}
	claimed := make([]db.ClaimDeliveriesRow, len(rows))
	for i, r := range rows {
		claimed[i] = db.ClaimDeliveriesRow(r)
		claimed[i].Attempts = 0 // ReadDeliveries sorts by number
	}
	lists, err := ReadDeliveries(ctx, read, claimed)
	return lists["Subscription/"+id], err
}
