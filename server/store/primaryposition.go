package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// place is a place of the primary's log at a time.
type logPlace struct {
	at  time.Time
	lsn uint64
}

// endedBefore says that the primary has ended all transactions below a number.
type endedBefore struct {
	epoch EpochID
	xid   uint64
}

type positionAnswer struct {
	p   Position
	err error
}

// positionSQL reads the place up to which commits are on disk, the epoch, and a number below which all transactions have
// ended. Where commits do not wait for the disk it is the place of the last record, which the WAL writer writes within
// 200 ms.
const positionSQL = `SELECT (CASE current_setting('synchronous_commit') WHEN 'off' THEN pg_current_wal_insert_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn)::bigint,
	g.epoch, pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM search_registry g`

// readPosition asks the primary.
func (r *replicas) readPosition(ctx context.Context) (Position, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	var lsn, epoch, ended int64
	if err := r.side.QueryRow(ctx, positionSQL).Scan(&lsn, &epoch, &ended); err != nil {
		return Position{}, err
	}
	return r.notePosition(lsn, epoch, ended), nil
}

// notePosition notes an answer of the primary, and returns its position.
func (r *replicas) notePosition(lsn, epoch, ended int64) Position {
	p := Position{Epoch: EpochID(epoch), LSN: uint64(lsn)}
	if was := r.ended.Load(); was == nil || was.epoch < p.Epoch || was.epoch == p.Epoch && was.xid < uint64(ended) {
		r.ended.Store(&endedBefore{p.Epoch, uint64(ended)}) // a lost race costs a question
	}
	for {
		was := r.now.Load()
		if !was.isBefore(p) || r.now.CompareAndSwap(was, &p) {
			return p
		}
	}
}

// positionQuery asks for a position on a connection that has just committed, and passes it on.
func (r *replicas) positionQuery(note func(Position)) preparedQuery {
	return preparedQuery{name: "kiln_position", sql: positionSQL, row: func(v [][]byte) {
		number := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[i])) }
		note(r.notePosition(number(0), number(1), number(2)))
	}}
}

// Commits notes the position behind the commits of a request.
type Commits struct {
	mu      sync.Mutex
	last    Position
	unknown bool // a commit has no position
}

type commitsKey struct{}

// WithCommits returns a context whose commits are noted.
func WithCommits(ctx context.Context) (context.Context, *Commits) {
	c := &Commits{}
	return context.WithValue(ctx, commitsKey{}, c), c
}

// Position returns a position behind all commits, false where there was none, or one without position.
func (c *Commits) Position() (Position, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.last != Position{} && !c.unknown
}

// noteCommit notes a commit with its position, the zero Position where that is not known.
func noteCommit(ctx context.Context, p Position) {
	c, _ := ctx.Value(commitsKey{}).(*Commits)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.unknown = LaterPosition(c.last, p), c.unknown || p == Position{}
}

// answerPositions asks for all that wait at once: an answer holds for everybody who came before the question.
func (r *replicas) answerPositions(ctx context.Context) {
	for {
		var all []chan<- positionAnswer
		select {
		case one := <-r.waiting:
			all = append(all, one)
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case one := <-r.waiting:
				all = append(all, one)
			default:
				more = false
			}
		}
		p, err := r.readPosition(ctx)
		for again := 0; err != nil && again < 3 && !r.isPrimaryLost() && ctx.Err() == nil; again++ { // after a promotion, connections to the old primary fail
			p, err = r.readPosition(ctx)
		}
		for _, one := range all {
			one <- positionAnswer{p, err}
		}
	}
}

// PositionNow returns a position behind everything that was committed before the call.
func (s *Store) PositionNow(ctx context.Context) (Position, error) {
	answer := make(chan positionAnswer, 1)
	select {
	case s.replicas.waiting <- answer:
	case <-ctx.Done():
		return Position{}, ctx.Err()
	}
	select {
	case a := <-answer:
		return a.p, translateError(a.err)
	case <-ctx.Done():
		return Position{}, ctx.Err()
	}
}

// watchPrimary notes where the primary's log is, and whether it answers.
func (r *replicas) watchPrimary(ctx context.Context, s *Store, first chan<- struct{}) {
	for failed := 0; ; {
		p, err := r.readPosition(ctx)
		if ctx.Err() != nil {
			if first != nil {
				close(first)
			}
			return
		}
		now := time.Now()
		r.mu.Lock()
		if err == nil {
			failed, r.lastSeen = 0, now
			if n := len(r.places); n == 0 || r.places[n-1].lsn != p.LSN {
				r.places = append(r.places, logPlace{now, p.LSN})
			}
			if keep := int(time.Hour / watchEvery); len(r.places) > keep {
				r.places = slices.Delete(r.places, 0, len(r.places)-keep)
			}
		} else {
			failed++
		}
		r.mu.Unlock()
		if was, is := r.lost.Load(), err != nil; was != is {
			r.lost.Store(is)
			if is {
				s.log.Error("the primary does not answer", slog.Any("error", err))
			} else {
				s.log.Info("the primary answers again")
			}
		}
		if first != nil {
			close(first)
			first = nil
		}
		if !SleepFor(ctx, watchEvery) {
			return
		}
	}
}

// lagOf returns how long ago the primary was first seen behind a place, 0 where it was not.
func (r *replicas) lagOf(lsn uint64, lastReplay time.Time) (lag time.Duration, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.written().LSN
	if lsn >= now {
		return 0, 0
	}
	i, _ := slices.BinarySearchFunc(r.places, lsn+1, func(p logPlace, l uint64) int { return cmp.Compare(p.lsn, l) })
	if i == len(r.places) {
		return 0, int64(now - lsn)
	}
	lag = time.Since(r.places[i].at)
	if i == 0 && !lastReplay.IsZero() { // it was behind before this server looked
		lag = max(lag, time.Since(lastReplay))
	}
	return lag, int64(now - lsn)
}
