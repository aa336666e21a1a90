package live

import (
	"sync"
	"sync/atomic"

	"kiln/server/notify/matching"
	"kiln/server/store"
)

// lane passes events on to some of the listeners: those whose criteria the index entries of an
// event decide, or those that need the database, for which the others do not wait.
type lane struct {
	matcher *matching.Matcher

	mu       sync.Mutex           // taken before the mutex of the hub
	position store.ChangePosition // of the last change that was passed on
	// passed is position for callers that do not wait for mu, which is held during queries.
	passed atomic.Pointer[store.ChangePosition]
	// epoch is the one in which the criteria were last read anew as a whole.
	epoch store.EpochID
	// parameters is the least version of the search parameters that criteria may be read with:
	// a change of them was passed on.
	parameters int64
}

// passOn notes that all changes up to p were passed on; mu is held.
func (l *lane) passOn(p store.ChangePosition) {
	l.position = p
	l.passed.Store(&p)
}
