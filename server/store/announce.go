package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/search/match"
)

// Every search must ask a part of index_date and index_quantity (match.StoredKey) from the first
// resource in it on, and servers learn of parts by asking now and then. So a part is announced, and its
// surrogates are given out partsWait later; what a statement is made of is knownFor old at most when it
// begins. Only durations are compared, as with search parameters (searchparam.MaxAge), which are read
// in the same statement, and sooner where anybody searches.
const (
	knownFor  = 5 * time.Second
	partsWait = 20 * time.Second
)

// announcedAhead is how many surrogates are announced beyond those that are given out, so that nobody
// waits: half a part at first, and then as many as there are, up to four parts. To ask a part of which
// nothing is there yet takes a search some microseconds.
func announcedAhead(next int64) int64 {
	return max(match.PartSize/2, min(next, 4*match.PartSize))
}

// announcedParts is what this server knows of parts.
type announcedParts struct{ at atomic.Pointer[partsAt] }

// partsAt are the parts as they were when somebody asked, or since.
type partsAt struct {
	parts *match.Parts
	asked time.Time
}

// note keeps what was read.
func (k *announcedParts) note(asked time.Time, usual int64, more []int64) {
	parts := &match.Parts{Usual: int(usual), Of: make(map[int16]int, len(more))}
	for _, m := range more {
		parts.Of[int16(m>>48)] = int(m & (1<<48 - 1))
	}
	for {
		was := k.at.Load()
		if was != nil && was.asked.After(asked) {
			return
		}
		if was != nil && was.parts.Equal(parts) {
			parts = was.parts
		}
		if k.at.CompareAndSwap(was, &partsAt{parts, asked}) {
			return
		}
	}
}

// parts are the parts that a search has to ask which begins now.
func (s *Store) parts(ctx context.Context) (*match.Parts, error) {
	at := s.memory.Load().announced.at.Load()
	if at == nil || Since(at.asked) > knownFor {
		if _, err := s.ParametersState(ctx); err != nil {
			return nil, err
		}
		at = s.memory.Load().announced.at.Load()
	}
	return at.parts, nil
}

// Since is the time since t: the longer one of two measures, for the clock that never goes back
// stands still while a machine is suspended.
func Since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// reserveRIDs takes the next surrogates of a type, and returns the first number. It announces further
// ones in time, and waits where those that it takes are not known to every search yet.
func (s *Store) reserveRIDs(ctx context.Context, typ int16) (first int64, err error) {
	q := db.New(s.side)
	for {
		r, err := q.ReserveRIDs(ctx, db.ReserveRIDsParams{Typ: typ, Count: surrogateBlock})
		waits := errors.Is(err, pgx.ErrNoRows)
		if err != nil && !waits {
			return 0, fmt.Errorf("reserve surrogates: %w", err)
		}
		if ahead := announcedAhead(r.First + surrogateBlock); waits || r.Announced < ahead {
			if err := q.AnnounceParts(ctx, db.AnnouncePartsParams{Typ: typ, Ahead: ahead, AfterSeconds: partsWait.Seconds()}); err != nil {
				return 0, fmt.Errorf("announce surrogates: %w", err)
			}
		}
		if !waits {
			return r.First, nil
		}
		select {
		case <-time.After(partsWait / 100):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
