package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// changeTrimmer deletes old changes every hour. Any number of servers may do so.
type changeTrimmer struct {
	keep atomic.Int64 // time.Duration
	quit chan struct{}
	done sync.WaitGroup
}

// unreadFactor is how many times as long as all others a change is kept that a named
// reader has not passed.
const unreadFactor = 3

func (t *changeTrimmer) start(s *Store, keep time.Duration) {
	t.keep.Store(int64(keep))
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
			now, keep := s.now(), time.Duration(t.keep.Load())
			if _, err := s.TrimChanges(ctx, now.Add(-keep), now.Add(-unreadFactor*keep)); err != nil {
				s.log.Warn("delete old changes", "error", err)
			}
			cancel()
		}
	})
}

// KeepChanges sets how long the change log goes back, from the next trimming on.
func (s *Store) KeepChanges(d time.Duration) { s.trim.keep.Store(int64(d)) }

func (t *changeTrimmer) stop() {
	close(t.quit)
	t.done.Wait()
}
