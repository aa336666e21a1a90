package fill

import (
	"context"
	"sync"
	"time"
)

const (
	// pauseFrom is the time for which work goes on without a pause.
	pauseFrom = 500 * time.Millisecond
	// aheadPause limits the pauses of reading ahead, as a multiple of the time that it has worked: it keeps a snapshot
	// open.
	aheadPause = 9
	// checkEvery is the time between two checks whether the server still serves requests. It does if they take more than one
	// connection from the pool each servedEvery.
	checkEvery  = 20 * time.Millisecond
	servedEvery = 10 * time.Millisecond
)

// pacer pauses long work while searches run.
type pacer struct {
	store     Store
	admission Admission
	queue     *queue
	// following is locked while the change log is read, and while the database is checked for activity: following
	// is no activity.
	following sync.Mutex
}

// newPauses returns a function to be called between parts of long work. While short searches wait, it pauses as long as the
// work has taken. Reading ahead, for which nobody waits, pauses while the server serves any request. The function
// returns the total of its pauses.
func (p *pacer) newPauses(ahead bool) func(ctx context.Context) time.Duration {
	begin := time.Now()
	worked := begin
	served := p.store.Acquired()
	var paused time.Duration
	return func(ctx context.Context) time.Duration {
		from := time.Now()
		took := from.Sub(worked)
		switch {
		case ahead && !p.queue.isAheadAwaited():
			until := worked.Add((1 + aheadPause) * took)
			for since := worked; p.servesRequests(&served, since) && time.Now().Before(until) && ctx.Err() == nil && !p.queue.isAheadAwaited(); {
				since = time.Now()
				sleep(ctx, checkEvery)
			}
		case time.Since(begin) > pauseFrom && p.admission.IsBusy():
			sleep(ctx, took)
		}
		worked, served = time.Now(), p.store.Acquired()
		paused += worked.Sub(from)
		return paused
	}
}

// servesRequests reports whether the server has served requests since a time, by the number of connections that were taken
// from the pool. served was their number then; it becomes the present number.
func (p *pacer) servesRequests(served *int64, since time.Time) bool {
	before := *served
	*served = p.store.Acquired()
	return *served-before > 1+int64(time.Since(since)/servedEvery)
}

// isDatabaseIdle reports whether no server uses the database at this moment. A standby, on which nothing is cached, is
// never idle.
func (p *pacer) isDatabaseIdle(ctx context.Context) (idle bool, err error) {
	conn, err := p.store.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	p.following.Lock()
	defer p.following.Unlock()
	err = conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery() AND NOT EXISTS (SELECT FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.state = 'active' AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid())`).Scan(&idle)
	return idle, err
}

// sleep returns after a time, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
