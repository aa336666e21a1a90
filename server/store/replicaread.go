package store

import (
	"cmp"
	"context"
	"errors"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// ReplicaReader are the reads of one snapshot of a standby.
type ReplicaReader struct {
	snapshot *snapshot
}

// errUsePrimary is the error of a read that a standby cannot answer exactly.
var errUsePrimary = errors.New("store: the primary has to answer")

// ErrUsePrimary returns the error by which a read says that the primary has to answer.
func ErrUsePrimary() error { return errUsePrimary }

// Read is Store.Read in the snapshot. Reads of one statement that wait at the same time share a query.
func (t *ReplicaReader) Read(ctx context.Context, typ, id string) (fhir.Version, error) {
	n := t.snapshot
	if !n.mayBeAlone() {
		return readVersion(ctx, n, typ, id)
	}
	ref, _ := refAndShard(typ, id)
	q, err := n.rep.shared.ask(ctx, readRequest{ref: ref, started: n.started})
	if err != nil {
		return fhir.Version{}, err
	}
	if q.id == "" { // a second statement says why
		return fhir.Version{}, n.beginAgain()
	}
	if n.taken, n.at = true, q.at; q.id != id {
		return fhir.Version{}, outcome.NotFound(typ, id)
	}
	q.version.ResourceType, q.version.ID = typ, id
	return q.version, nil
}

// VRead is Store.VRead in the snapshot.
func (t *ReplicaReader) VRead(ctx context.Context, typ, id string, versionID int) (fhir.Version, error) {
	return vread(ctx, aloneConn{t.snapshot}, typ, id, versionID)
}

// History is Store.History in the snapshot.
func (t *ReplicaReader) History(ctx context.Context, q HistoryQuery) (HistoryPage, error) {
	return t.snapshot.rep.store.history(ctx, db.New(t.snapshot), q)
}

// Search is Store.Search in the snapshot. Its plan is made for the parts that the standby had before. If the snapshot
// has others, the read begins again.
func (t *ReplicaReader) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	n, s := t.snapshot, t.snapshot.rep.store
	if err := n.beginSearch(); err != nil {
		return nil, err
	}
	r, err := s.searcher.SearchOn(ctx, n, q, replicaSearchable{searchable{s}, n})
	return r, translateError(err)
}

// replicaSearchable is the standby as searches see it.
type replicaSearchable struct {
	searchable
	n *snapshot
}

// Parts returns the parts of the snapshot, which are assumed until it is taken.
func (v replicaSearchable) Parts(context.Context) (*match.Parts, error) { return v.n.parts.parts, nil }

// TypeNumber asks the snapshot for a type that this server has not seen.
func (v replicaSearchable) TypeNumber(ctx context.Context, typ string) (int16, bool, error) {
	if n, ok := v.KnownType(typ); ok {
		return n, true, nil
	}
	rows, err := db.New(v.n).ResourceTypes(ctx)
	for _, r := range rows {
		if r.Name == typ {
			return r.Typ, true, nil
		}
	}
	return 0, false, err
}

// mostRepeats is how often a read begins again: for the first search on a standby that has other parts than assumed, and to
// read in a transaction.
const mostRepeats = 3

// read runs a read in one snapshot, for which first is the beginning, and returns a position behind everything that it shows.
func (rep *replica) read(outer context.Context, first snapshot, read func(context.Context, *ReplicaReader) error) (at Position, err error) {
	ctx, end := rep.keepAlive(outer)
	defer end()
	for range mostRepeats {
		n := first
		promoted := false
		answer := func() error {
			defer n.end()
			answer := read(ctx, &ReplicaReader{&n})
			if !n.taken && !n.again && (answer == nil || isAnswer(outer, answer)) {
				answer = cmp.Or(n.takeAlone(ctx), answer)
			}
			promoted = n.conn != nil && isPromoted(n.conn.Conn().PgConn())
			return answer
		}()
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errReplicaHangs):
			return at, cause
		case n.again:
			first.alone, first.began = false, time.Now()
			continue
		case answer != nil && !isAnswer(outer, answer):
			return at, answer
		case promoted:
			return at, errUsePrimary
		}
		rep.noteReplayed(n.at.LSN, n.started) // every later snapshot of it shows at least this
		return n.at, answer
	}
	return at, errUsePrimary
}
