package queue

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/store"
)

// Retain deletes the log of deliveries, and the messages to users, from before an instant.
// It returns the number of deliveries.
func Retain(ctx context.Context, data *store.Store, before time.Time) (int, error) {
	d := db.New(data.Pool())
	total := 0
	for {
		n, err := d.TrimDeliveries(ctx, db.TrimDeliveriesParams{Before: before, Count: 5000})
		total += int(n)
		if err != nil {
			return total, err
		}
		if n < 5000 {
			break
		}
	}
	_, err := d.TrimMessages(ctx, before)
	return total, err
}
