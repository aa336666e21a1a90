package fill

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// servingStore counts the connections that others take.
type servingStore struct {
	Store
	acquired atomic.Int64
}

func (s *servingStore) Acquired() int64 { return s.acquired.Load() }

// Reading ahead pauses while requests are served, but not for ever, and not if a search waits for it.
func TestReadingAheadPauses(t *testing.T) {
	t.Parallel()
	const worked = 25 * time.Millisecond
	for _, tt := range []struct {
		name        string
		every       time.Duration // others take a connection so often
		until       time.Duration // for so long
		awaited     time.Duration // a search waits from then on; 0 for none
		least, most time.Duration // of the pause
	}{
		{"nobody is served", time.Hour, time.Hour, 0, 0, 0},
		{"the server works for itself", 40 * time.Millisecond, time.Hour, 0, 0, 0},
		{"others are served", time.Millisecond, time.Hour, 0, aheadPause * worked, aheadPause*worked + checkEvery},
		{"others were served", time.Millisecond, 100 * time.Millisecond, 0, 75 * time.Millisecond, 75*time.Millisecond + 2*checkEvery},
		{"a search waits", time.Millisecond, time.Hour, time.Nanosecond, 0, 0},
		{"a search waits later", time.Millisecond, time.Hour, 100 * time.Millisecond, 75 * time.Millisecond, 75*time.Millisecond + 2*checkEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &servingStore{}
			p := &pacer{store: store, queue: newQueue()}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begin := time.Now()
			go func() {
				for ctx.Err() == nil && time.Since(begin) < tt.until {
					sleep(ctx, tt.every)
					store.acquired.Add(1)
				}
			}()
			if tt.awaited > 0 {
				time.AfterFunc(tt.awaited, func() {
					p.queue.mu.Lock()
					defer p.queue.mu.Unlock()
					p.queue.ahead = map[any]bool{"a column": true}
				})
			}
			pause := p.newPauses(true)
			time.Sleep(worked) // of the bubble's clock: the test does not wait
			from := time.Now()
			pause(ctx)
			if paused := time.Since(from); paused < tt.least || paused > tt.most {
				t.Errorf("%s: paused for %s, want %s to %s", tt.name, paused, tt.least, tt.most)
			}
		})
	}
}
