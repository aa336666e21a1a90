package table

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/outcome"
)

// swap shows a table that is built: one transaction brings it to the state of now, drops the old one and renames it. A
// long reader of the old table makes it fail with 55P03; it is tried again.
func (s *Service) swap(ctx context.Context, id int64) error {
	list, err := readGenerations(ctx, s.pool(), "g.name = (SELECT o.name FROM view_generation o WHERE o.id = $1)", id)
	if err != nil {
		return err
	}
	var old, next *generation
	for _, g := range list {
		switch {
		case g.id == id && g.state == built:
			next = g
		case g.state == shown:
			old = g
		}
	}
	if next == nil {
		return nil
	}
	lock := ""
	if old != nil { // before the snapshot, so that no round of the old table is later than it
		waits, err := s.readersWait(ctx, next)
		if err != nil || waits {
			return err
		}
		lock = "LOCK TABLE " + old.relation() + " IN ACCESS EXCLUSIVE MODE"
	}
	err = s.inSnapshot(ctx, lock, func(tx pgx.Tx) error {
		current, err := s.catchUp(ctx, tx, []int64{id})
		if err != nil || len(current) == 0 {
			return err
		}
		var waiting bool // no other server has shown it
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM view_generation g WHERE g.id = $1 AND g.state = 'built')", id).Scan(&waiting); err != nil || !waiting {
			return err
		}
		if old != nil {
			if err := copyGrants(ctx, tx, old, next); err != nil {
				return err
			}
			if err := dropGeneration(ctx, tx, old); err != nil {
				return dependency(err, old.name)
			}
		}
		if _, err := tx.Exec(ctx, "ALTER TABLE "+next.relation()+" RENAME TO "+pgx.Identifier{next.name}.Sanitize()); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE view_generation SET state = 'shown', reason = '' WHERE id = $1", id)
		return err
	})
	if err == nil {
		s.Wake() // its type has another follower
	}
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeConflict {
		_, err = s.pool().Exec(ctx, "UPDATE view_generation SET reason = $2 WHERE id = $1 AND reason <> $2", id, e.Error())
	}
	return err
}

// readersWait reports whether a transaction has an older snapshot than the new table: it would find the table empty.
func (s *Service) readersWait(ctx context.Context, next *generation) (bool, error) {
	var waits bool
	err := s.pool().QueryRow(ctx, `SELECT EXISTS (
		SELECT FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL
			AND age(a.backend_xmin) > (SELECT age(g.filled::xid) FROM view_generation g WHERE g.id = $1))`, next.id).Scan(&waits)
	return waits, err
}
