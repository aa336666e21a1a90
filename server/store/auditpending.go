package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// KeepAuditPending keeps groups of events that are still to be made AuditEvents, durable
// on return.
func (s *Store) KeepAuditPending(ctx context.Context, groups [][]byte) error {
	return translate(db.New(s.side).InsertAuditPending(ctx, groups))
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
