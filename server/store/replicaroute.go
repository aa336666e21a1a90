package store

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/outcome"
)

// Served says where an answer came from.
type Served struct {
	Source   string   // primary, or replica-N
	Position Position // behind everything that the answer shows; the zero Position where nobody could tell
}

// ReadOnReplica runs read on a standby that has replayed a position. ok is false where none can answer: the
// primary has to. It waits at most ReplicaConfig.Wait for the position. alone says that read probably needs one
// statement. read may be called more than once: when it needs another, or other parts than assumed. While the primary is
// lost, a read that a standby has failed is repeated on the others.
func (s *Store) ReadOnReplica(ctx context.Context, need Position, alone bool, read func(context.Context, *ReplicaReader) error) (served Served, ok bool, err error) {
	r := &s.replicas
	epoch := s.Epoch()
	place := need.LSN
	if need.Epoch != epoch { // the caller knows that the present epoch contains it
		place = 0
	}
	var failed []*replica
	for {
		if !r.mayServe() {
			return served, false, nil
		}
		began := time.Now()
		rep, started, reason := r.choose(ctx, place, failed)
		if rep == nil {
			r.noteFallback(reason)
			return served, false, nil
		}
		at, err := rep.read(ctx, snapshot{rep: rep, began: began, started: started, alone: alone}, read)
		if err == nil || isAnswer(ctx, err) {
			if s.Epoch() == epoch && at.Epoch == epoch {
				rep.reads.Add(1)
				return Served{rep.name, at}, true, err
			}
			reason = fellForState
		} else if reason = fellForLost; errors.Is(err, errUsePrimary) {
			reason = fellForState
		} else if isConflict(err) {
			reason = fellForConflict
		}
		rep.fallbacks.Add(1)
		r.noteFallback(reason)
		failed = append(failed, rep)
		if !r.isPrimaryLost() || ctx.Err() != nil {
			return served, false, nil
		}
	}
}

// isAnswer reports whether the error of a read is the client's to know: another PostgreSQL would give it too.
func isAnswer(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	var pg *pgconn.PgError
	return outcome.Theirs(err) && !errors.As(err, &pg) || errors.Is(err, context.DeadlineExceeded) && !pgconn.Timeout(err)
}

// isConflict reports whether replay has cancelled a statement.
func isConflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

func (r *replicas) noteFallback(reason string) {
	n, _ := r.fell.LoadOrStore(reason, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// choose returns a standby that has replayed a place, in turn, or nil and the reason. It waits for the first that has it,
// but for none that has failed.
func (r *replicas) choose(ctx context.Context, place uint64, failed []*replica) (rep *replica, started, reason string) {
	var list, full []*replica
	first := int(r.next.Add(1))
	for i := range r.list {
		one := r.list[(first+i)%len(r.list)]
		switch {
		case !one.serves() || slices.Contains(failed, one):
		case len(one.places) == cap(one.places):
			full = append(full, one)
		default:
			list = append(list, one)
		}
	}
	list = append(list, full...)
	if len(list) == 0 {
		return nil, "", fellForState
	}
	has := func() bool {
		for _, one := range list {
			if at, ok := one.servesPlace(place); ok {
				rep, started = one, at
				return true
			}
		}
		return false
	}
	if has() {
		return rep, started, ""
	}
	began := time.Now()
	if r.Waited != nil {
		defer func() { r.Waited(time.Since(began)) }()
	}
	wait, cancel := context.WithTimeout(ctx, r.config.Wait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(pause*5/4, 5*time.Millisecond) {
		answered := make(chan struct{}, len(list)) // all are asked at once: one of them may hang
		for _, one := range list {
			go func() {
				_ = one.askReplayed(wait)
				answered <- struct{}{}
			}()
		}
		for range list {
			<-answered
			if has() {
				return rep, started, ""
			}
		}
		if !SleepFor(wait, pause) { // nothing tells of a replay
			return nil, "", fellForPosition
		}
	}
}
