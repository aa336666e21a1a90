package store

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// KeepAuditPending keeps groups of events that are still to be made AuditEvents, durable
// on return.
func (s *Store) KeepAuditPending(ctx context.Context, groups [][]byte) error {
	return translateError(db.New(s.side).InsertAuditPending(ctx, groups))
}

// AuditKept is how much was ever kept to be made AuditEvents, by all servers.
type AuditKept struct {
	Groups   int64 // by KeepAuditPending
	OfWrites int64 // rows of events that were committed with writes
}

// AuditKept reads how much was ever kept.
func (s *Store) AuditKept(ctx context.Context) (AuditKept, error) {
	kept, err := db.New(s.side).AuditKept(ctx)
	return AuditKept(kept), translateError(err)
}

// WriteAuditPending takes a group of those that KeepAuditPending has kept, of any server,
// and stores what write makes of it, in one transaction. found is false where there is
// none that no other server has taken.
func (s *Store) WriteAuditPending(ctx context.Context, write func(group []byte) []*Write) (found bool, err error) {
	err = s.InTx(ctx, func(t *Tx) error {
		group, err := db.New(t.tx).TakeAuditPending(ctx)
		if errors.Is(err, pgx.ErrNoRows) {
			found = false
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		if ws := write(group); len(ws) > 0 {
			return t.Write(ctx, ws)
		}
		return nil
	})
	return found, err
}

// auditKey is the context key of the function that makes the events of a write.
type auditKey struct{}

// Audited is a write that is told of.
type Audited struct {
	*Write
	JSON []byte // the resource written, nil for a deletion
	// Nothing says that there was nothing to delete, or nothing that the request can
	// know of.
	Nothing bool
}

// WithAudit returns a context in which the events that make returns for the writes of a
// transaction are committed with them: an event is there exactly when the writes are that
// it tells of. WriteAuditOfWrites makes AuditEvents of them. make is called again when a
// transaction is run again.
func WithAudit(ctx context.Context, make func(ws []Audited) ([]byte, error)) context.Context {
	return context.WithValue(ctx, auditKey{}, make)
}

// eventsOf returns the events of writes, nil if there are none. JSON returns the text of a
// write; the version that an entry deletes is known once the entry is resolved.
func eventsOf(ctx context.Context, ws []*Write, entries []entry, json func(i int) []byte) ([]byte, error) {
	make, ok := ctx.Value(auditKey{}).(func(ws []Audited) ([]byte, error))
	if !ok {
		return nil, nil
	}
	told := []Audited(nil)
	for i, w := range ws {
		told = append(told, Audited{w, json(i), w.Method == fhir.DELETE && entries[i].action == nothing})
	}
	return make(told)
}

// KeepAudit keeps groups of events with the transaction, as WithAudit does.
func (t *Tx) KeepAudit(ctx context.Context, groups [][]byte) error {
	return translateError(db.New(t.tx).InsertAuditOfWrites(ctx, groups))
}

// takenAudit is how many rows of audit_of_write are made AuditEvents in one transaction. It
// is short: readers of the change log wait until it ends.
const takenAudit = 64

// WriteAuditOfWrites takes events that were committed with writes of any server, and
// stores what write makes of each row of them, in one transaction. found is false where
// there are none that no other server has taken.
func (s *Store) WriteAuditOfWrites(ctx context.Context, write func(events []byte) []*Write) (found bool, err error) {
	last, err := db.New(s.side).LastAuditOfWrites(ctx)
	if err != nil || last == 0 {
		return false, translateError(err)
	}
	return s.writeAudit(ctx, write, func(q *db.Queries) ([]db.AuditOfWrite, error) { return q.TakeAuditOfWrites(ctx, takenAudit) })
}

// SettleAuditOfWrites is WriteAuditOfWrites for all events that were committed before the
// call. It also waits for events that other servers are writing. Later events do not delay
// it.
func (s *Store) SettleAuditOfWrites(ctx context.Context, write func(events []byte) []*Write) error {
	last, err := db.New(s.side).LastAuditOfWrites(ctx)
	for found := last > 0; found && err == nil; {
		found, err = s.writeAudit(ctx, write, func(q *db.Queries) ([]db.AuditOfWrite, error) {
			return q.AwaitAuditOfWrites(ctx, db.AwaitAuditOfWritesParams{Last: last, Count: takenAudit})
		})
	}
	return translateError(err)
}

// writeAudit stores what write makes of rows that take takes, in one transaction.
func (s *Store) writeAudit(ctx context.Context, write func(events []byte) []*Write, take func(q *db.Queries) ([]db.AuditOfWrite, error)) (found bool, err error) {
	err = s.InTx(ctx, func(t *Tx) error {
		rows, err := take(db.New(t.tx))
		if err != nil {
			return err
		}
		found = len(rows) > 0
		slices.SortFunc(rows, func(a, b db.AuditOfWrite) int { return cmp.Compare(a.ID, b.ID) })
		var ws []*Write
		for _, r := range rows {
			ws = append(ws, write(r.Events)...)
		}
		if len(ws) == 0 {
			return nil
		}
		return t.Write(ctx, ws)
	})
	return found, err
}

// LastContent is the last version of a resource that is deleted which had content, 0 for
// one that never existed.
func (s *Store) LastContent(ctx context.Context, typ, id string) (int, error) {
	ref, shard := refAndShard(typ, id)
	h, err := db.New(s.side).LastHistory(ctx, db.LastHistoryParams{Ref: ref, Shard: shard})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, translateError(err)
	case h.Method == fhir.DELETE:
		return int(h.Version) - 1, nil
	}
	return int(h.Version), nil
}

// AuditWaiting counts the groups of events, of reads and of writes, that are not AuditEvents
// yet.
func (s *Store) AuditWaiting(ctx context.Context) (reads, writes int64, err error) {
	r, err := db.New(s.side).AuditWaiting(ctx)
	return r.Groups, r.OfWrites, translateError(err)
}
