package store

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errReplicaHangs is the cause of the end of a read on a standby that gives no sign of life.
var errReplicaHangs = errors.New("store: the replica does not answer")

// leastPatience is how long a standby may be silent where ReplicaConfig.Wait is shorter.
const leastPatience = 20 * time.Millisecond

// patience is how long a standby may be silent while a request waits for it: longer where nobody else could answer.
func (r *replicas) patience() time.Duration {
	if r.isPrimaryLost() {
		return max(r.config.Wait, watchTimeout)
	}
	return max(r.config.Wait, leastPatience)
}

// keepAlive returns a context that ends when the standby gives no sign of life within patience. A long
// statement goes on while another connection is answered.
func (rep *replica) keepAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	half := rep.store.replicas.patience() / 2
	var again *time.Timer
	var mu sync.Mutex
	mu.Lock()
	again = time.AfterFunc(half, func() {
		sign, end := context.WithTimeout(ctx, half)
		defer end()
		if err := rep.askReplayed(sign); err != nil && ctx.Err() == nil {
			cancel(errReplicaHangs)
			rep.avoidWhileSilent()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			again.Reset(half)
		}
	})
	mu.Unlock()
	return ctx, func() {
		cancel(context.Canceled)
		mu.Lock()
		defer mu.Unlock()
		again.Stop()
	}
}

// avoidWhileSilent keeps requests from a standby until it gives a sign of life, or the watch has judged it: others need not
// wait for it as well.
func (rep *replica) avoidWhileSilent() {
	if !rep.silent.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer rep.silent.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), watchTimeout)
		defer cancel()
		for rep.askReplayed(ctx) != nil && SleepFor(ctx, leastPatience) {
		}
	}()
}

// replayQuestion is a question about the place of the replay, which all who wait share.
type replayQuestion struct {
	asked time.Time
	done  chan struct{}
	err   error // once done is closed
}

// askReplayed asks where the replay is, by a question that begins after the call. It is a sign of life.
func (rep *replica) askReplayed(ctx context.Context) error {
	began := time.Now()
	for {
		rep.mu.Lock()
		q := rep.question
		if q == nil {
			q = &replayQuestion{asked: time.Now(), done: make(chan struct{})}
			rep.question = q
			go rep.answer(q, rep.started)
		}
		rep.mu.Unlock()
		select {
		case <-q.done:
			if !q.asked.Before(began) {
				return q.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer asks the standby. Nobody who goes away ends the question.
func (rep *replica) answer(q *replayQuestion, started string) {
	ctx, cancel := context.WithTimeout(context.Background(), rep.store.replicas.patience())
	defer cancel()
	var lsn int64
	q.err = rep.probe.QueryRow(ctx, "SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0)").Scan(&lsn)
	if q.err == nil {
		rep.noteReplayed(uint64(lsn), started)
	}
	rep.mu.Lock()
	rep.question = nil
	rep.mu.Unlock()
	close(q.done)
}
