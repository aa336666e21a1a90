package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// flusher moves new terms from where PostgreSQL collects them into the index
// proper. Terms are collected first because sorting them in together is many
// times cheaper than one by one; but every search reads the collected ones from
// end to end, and the writer who fills the collection would have to wait while
// all of it is sorted in. So it is done here, soon and away from any request. It
// is a matter of speed only: a search finds a term in either place.
//
// It also has PostgreSQL look at tables that have grown by half: autovacuum comes
// after a minute, and until then statements are planned for tables that are nearly
// empty.
type flusher struct {
	pending atomic.Int64 // terms written since the last flush
	wake    chan struct{}
	quit    chan struct{}
	done    sync.WaitGroup
}

const (
	// flushTerms is worth a flush at once: some seven thousand resources, which
	// cost a search 1.4 ms.
	flushTerms = 200_000
	// flushPause without a write is when fewer are flushed. Flushing while a lot
	// is written repeats work: 2.8 kB of WAL for an imported resource, not 2.5.
	flushPause = 200 * time.Millisecond
	// flushRounds pauses pass at most before fewer than flushTrickle are flushed: what some hundred writes a
	// second leave behind costs the searches beside them more than sorting it in.
	flushRounds  = 3
	flushTrickle = 40_000
	// analyzeTerms is the least growth that is looked at.
	analyzeTerms = 100_000
	// termsOfResource is the mean number of terms of a resource.
	termsOfResource = 23
)

func (f *flusher) start(s *Store) {
	f.wake, f.quit = make(chan struct{}, 1), make(chan struct{})
	f.wake <- struct{}{} // events left by the server's former process
	f.done.Go(func() { f.run(s) })
}

// stop waits until a flush has ended.
func (f *flusher) stop() {
	close(f.quit)
	f.done.Wait()
}

// add notes that terms were written.
func (f *flusher) add(terms int) {
	if terms == 0 {
		return
	}
	if before := f.pending.Add(int64(terms)) - int64(terms); before == 0 || before < flushTerms && before+int64(terms) >= flushTerms {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

func (f *flusher) run(s *Store) {
	written := s.storedTerms()
	next := written + max(written/2, analyzeTerms)
	for {
		select {
		case <-f.quit:
			return
		case <-f.wake:
		}
		if !f.settle() {
			return
		}
		written += f.pending.Swap(0)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := s.side.Exec(ctx, "SELECT gin_clean_pending_list('resource_terms'), gin_clean_pending_list('index_string_contains'), gin_clean_pending_list('index_narrative_words')")
		if err != nil {
			s.log.Warn("flush new terms into the index", "error", err)
		}
		if written >= next {
			next = written + max(written/2, analyzeTerms)
			if _, err := s.side.Exec(ctx, "ANALYZE (SKIP_LOCKED) resource, index_date, index_number, index_quantity, index_string, token_text, quantity_unit"); err != nil {
				s.log.Warn("analyze grown tables", "error", err)
			}
		}
		cancel()
	}
}

// storedTerms is about how many terms there were when PostgreSQL last looked.
func (s *Store) storedTerms() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var resources float64
	if err := s.side.QueryRow(ctx, "SELECT reltuples FROM pg_class WHERE oid = 'resource'::regclass").Scan(&resources); err != nil {
		return 0
	}
	return int64(max(0, resources)) * termsOfResource
}

// settle waits until a flush is due, and returns false when there will be none.
func (f *flusher) settle() bool {
	before := f.pending.Load()
	for round := 1; before < flushTerms; round++ {
		select {
		case <-f.quit:
			return false
		case <-time.After(flushPause):
		case <-f.wake:
		}
		now := f.pending.Load()
		if now == before || round >= flushRounds && now < flushTrickle {
			return true
		}
		before = now
	}
	return true
}
