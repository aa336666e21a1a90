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

// Every search must read each part of index_date and index_quantity (match.StoredKey) from
// the part's first resource on, and a server learns of new parts only by polling. So a part
// is announced first, and its surrogates are given out partsWait later. A statement uses a
// list of parts that is at most knownFor old when it begins. Only durations are compared,
// as with search parameters (searchparam.MaxAge). The list is read in the same statement as
// the search parameters, and sooner on a server that searches.
const (
	knownFor  = 5 * time.Second
	partsWait = 20 * time.Second
)

// announcedAhead is the number of surrogates to announce beyond those already given out, so
// that no write waits: half a part at first, then as many as exist, up to four parts.
// Reading an empty part costs a search a few microseconds.
func announcedAhead(next int64) int64 {
	return max(match.PartSize/2, min(next, 4*match.PartSize))
}

// announcedParts is this server's list of announced parts.
type announcedParts struct{ at atomic.Pointer[partsAt] }

// partsAt are the parts as they were when somebody asked, or since.
type partsAt struct {
	parts *match.Parts
	asked time.Time
}

// storeParts stores a list that was read.
func (k *announcedParts) storeParts(asked time.Time, more []int64) {
	parts := partsOf(more)
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

// partsOf reads a list of the database: the type and the number of its parts in one number.
func partsOf(more []int64) *match.Parts {
	parts := &match.Parts{Of: make(map[int16]int, len(more))}
	for _, m := range more {
		parts.Of[int16(m>>48)] = int(m & (1<<48 - 1))
	}
	return parts
}

// currentParts are the parts that a search has to ask which begins now.
func (s *Store) currentParts(ctx context.Context) (*match.Parts, error) {
	at := s.memory.Load().announced.at.Load()
	if at == nil || TimeSince(at.asked) > knownFor {
		if _, err := s.ParametersState(ctx); err != nil {
			return nil, err
		}
		at = s.memory.Load().announced.at.Load()
	}
	return at.parts, nil
}

// TimeSince is the time since t: the longer one of two measures, for the clock that never goes back
// stands still while a machine is suspended.
func TimeSince(t time.Time) time.Duration {
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
