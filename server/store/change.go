package store

import (
	"context"
	"strconv"
	"sync"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// ChangePosition is a place in the change log. The zero value is its beginning.
type ChangePosition struct {
	XID     int64 // transaction
	RID     int64
	Version int
}

// Change is one version in the order of the change log: by transaction, then by
// resource. A transaction's id is given when it begins to write, so the order is
// not that of the commits.
type Change struct {
	Position     ChangePosition
	ResourceType string
	Ref          int64 // fhir.ValueReference(type, id)
	VersionID    int
	Method       fhir.Method
	Written      time.Time // when its transaction began, by PostgreSQL's clock
}

// Changes returns up to count changes behind a position. It stops before the
// oldest transaction that is still running, so what it has passed is complete:
// a reader that goes on from the last position skips nothing. A long transaction
// anywhere on the PostgreSQL server, in another database too, holds it back.
func (s *Store) Changes(ctx context.Context, after ChangePosition, count int) ([]Change, error) {
	rows, err := db.New(s.pool).Changes(ctx, db.ChangesParams{
		AfterXid: strconv.FormatInt(after.XID, 10), AfterRid: after.RID, AfterVersion: int32(after.Version), Count: int32(count),
	})
	if err != nil {
		return nil, translate(err)
	}
	changes := make([]Change, len(rows))
	for i, r := range rows {
		typ, err := s.typeName(ctx, int16(r.Rid>>48))
		if err != nil {
			return nil, err
		}
		changes[i] = Change{
			Position:     ChangePosition{XID: r.Xid, RID: r.Rid, Version: int(r.Version)},
			ResourceType: typ, Ref: r.Ref, VersionID: int(r.Version), Method: r.Method, Written: r.Written.UTC(),
		}
	}
	return changes, nil
}

// ChangeHorizon is the position behind all changes of transactions that are no
// longer running: where a reader begins that wants only news.
func (s *Store) ChangeHorizon(ctx context.Context) (ChangePosition, error) {
	xid, err := db.New(s.pool).ChangeHorizon(ctx)
	return ChangePosition{XID: xid}, translate(err)
}

// TrimChanges deletes the changes that were written before an instant and returns
// the number of their transactions.
func (s *Store) TrimChanges(ctx context.Context, before time.Time) (int, error) {
	const chunk = 5000
	for total := 0; ; {
		n, err := db.New(s.pool).TrimChanges(ctx, db.TrimChangesParams{Before: before, Count: chunk})
		total += int(n)
		if err != nil || n < chunk {
			return total, translate(err)
		}
	}
}

// trimmer deletes old changes every hour. Any number of servers may do so.
type trimmer struct {
	quit chan struct{}
	done sync.WaitGroup
}

func (t *trimmer) start(s *Store, keep time.Duration) {
	t.quit = make(chan struct{})
	t.done.Go(func() {
		tick := time.NewTicker(time.Hour)
		defer tick.Stop()
		for {
			select {
			case <-t.quit:
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			if _, err := s.TrimChanges(ctx, s.now().Add(-keep)); err != nil {
				s.log.Warn("delete old changes", "error", err)
			}
			cancel()
		}
	})
}

func (t *trimmer) stop() {
	close(t.quit)
	t.done.Wait()
}
