package live

import (
	"context"
	"errors"
	"time"

	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/store"
)

// since selects the events that a client has not received: after a position, made at or
// after an instant, and of transactions that had not ended at a snapshot.
type since struct {
	position store.ChangePosition
	instant  time.Time
	snapshot store.ChangeSnapshot
}

// includesPosition reports whether a change at a position belongs to it.
func (s since) includesPosition(p store.ChangePosition) bool {
	return p.Compare(s.position) > 0 && !s.snapshot.IsOver(p)
}

// parseSince reads a cursor or an instant; "" is now. A position before the start of the log is
// 410.
func parseSince(ctx context.Context, data *store.Store, text string) (since, error) {
	if text == "" {
		at, err := data.ChangeSnapshot(ctx)
		return since{position: at.Last(), snapshot: at}, err
	}
	at, err := matching.ParseInstant(text)
	if err != nil {
		p, err := matching.ParseCursor(text)
		var ahead bool
		if err == nil {
			ahead, err = data.FindCursor(ctx, p)
		}
		if ahead { // it would wait for events that have long been
			err = outcome.Invalid("%q is a cursor of events that have not been: this server has not given it out", outcome.Clip(text))
		}
		return since{position: p}, gone(err)
	}
	p, err := data.ChangesSince(ctx, at)
	return since{position: p, instant: at}, gone(err)
}

// gone makes a 410 of the error for a trimmed position.
func gone(err error) error {
	var trimmed *store.TrimmedError
	if errors.As(err, &trimmed) && trimmed.Lost {
		return outcome.New(outcome.CodeDeleted, "the cursor names an event that is not part of the database's history: the database was restored or has failed over without it; "+
			"ask for events with _since=%s", trimmed.Next().Format(time.RFC3339Nano))
	}
	if errors.As(err, &trimmed) {
		return outcome.New(outcome.CodeDeleted, "events are kept for a limited time, and events before %s are deleted; ask for later ones",
			trimmed.Next().Format(time.RFC3339Nano))
	}
	return err
}
