package table

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/store"
	"kiln/server/view"
)

// Limits of a round.
const (
	// lockTimeout bounds how long a round or a swap waits for a lock of a table. Other readers wait behind a swap.
	lockTimeout = 100 * time.Millisecond
	// idleTimeout ends the transaction of a server that is gone and whose connection is not closed.
	idleTimeout = 30 * time.Second
	refsAtOnce  = 500 // resources that are read together
)

// inSnapshot runs fn in a transaction with one snapshot. lock, if not empty, locks tables before the snapshot is taken.
func (s *Service) inSnapshot(ctx context.Context, lock string, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		first := fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d; SET LOCAL lock_timeout = %d", idleTimeout.Milliseconds(), lockTimeout.Milliseconds())
		if lock != "" {
			first += "; " + lock
		}
		if _, err := tx.Exec(ctx, first); err != nil {
			return err
		}
		return fn(tx)
	})
}

// round brings tables of one resource type to the state of now, without those on which another server works.
func (s *Service) round(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return s.inSnapshot(ctx, "", func(tx pgx.Tx) error {
		_, err := s.catchUp(ctx, tx, ids)
		return err
	})
}

// lockPositions locks the generations on which no other server works, and groups them by their snapshots.
const lockPositions = `WITH locked AS MATERIALIZED (
		SELECT i.id FROM unnest($1::bigint[]) AS i(id) WHERE pg_try_advisory_xact_lock(hashtextextended('view generation ' || i.id, 0)))
	SELECT array_agg(g.id ORDER BY g.id) FROM locked l JOIN view_generation g ON g.id = l.id
	WHERE g.state IN ('built', 'shown')
	GROUP BY g.epoch, g.seen::text`

// unseen are the changes of transactions that the snapshot of a generation does not see.
const unseen = `SELECT c.rids, c.refs, c.methods FROM change c, seen s WHERE c.epoch = s.epoch AND c.xid >= pg_snapshot_xmin(s.seen) AND NOT pg_visible_in_snapshot(c.xid, s.seen)
	UNION ALL SELECT c.rids, c.refs, c.methods FROM change c, seen s WHERE c.epoch > s.epoch`

const withSeen = "WITH seen AS (SELECT g.epoch, g.seen FROM view_generation g WHERE g.id = $1)"

// catchUp brings tables of one resource type to the state of the snapshot of a transaction. It returns the generations
// that are there: those on which another server works are left out.
func (s *Service) catchUp(ctx context.Context, tx pgx.Tx, ids []int64) (current []int64, err error) {
	rows, err := tx.Query(ctx, lockPositions, ids)
	if err != nil {
		return nil, err
	}
	positions, err := pgx.CollectRows(rows, pgx.RowTo[[]int64])
	if err != nil {
		return nil, err
	}
	var behind []int64
	for _, same := range positions {
		current = append(current, same...)
		var news bool
		if err := tx.QueryRow(ctx, withSeen+" SELECT EXISTS ("+unseen+")", same[0]).Scan(&news); err != nil {
			return nil, err
		}
		if news {
			behind = append(behind, same...)
		}
	}
	if len(behind) == 0 {
		return current, nil
	}
	tables, err := s.openTables(ctx, tx, behind)
	if err != nil || len(tables) == 0 {
		return current, err
	}
	changed := make(map[int64][]*tableRound)
	var order []int64
	for _, same := range positions {
		of := slices.DeleteFunc(slices.Clone(tables), func(t *tableRound) bool { return !slices.Contains(same, t.id) })
		if len(of) == 0 {
			continue
		}
		rows, err := tx.Query(ctx, withSeen+", l AS ("+unseen+`)
			SELECT u.ref FROM l CROSS JOIN LATERAL unnest(l.rids, l.refs) AS u(rid, ref)
			WHERE l.methods <> 'V' AND u.rid >> 48 = (SELECT t.typ FROM resource_type t WHERE t.name = $2)
			GROUP BY u.ref ORDER BY max(u.rid)`, same[0], tables[0].view.Resource)
		if err != nil {
			return nil, err
		}
		refs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return nil, err
		}
		for _, ref := range refs {
			if before := changed[ref]; before == nil {
				changed[ref] = of
				order = append(order, ref)
			} else {
				changed[ref] = slices.Concat(before, of)
			}
		}
	}
	if err := s.replaceRows(ctx, tx, tables, order, changed); err != nil {
		return nil, err
	}
	return current, storePositions(ctx, tx, tables, len(changed) == 0)
}

// tableRound is the part of a table in a round.
type tableRound struct {
	*generation
	view           *view.View
	evaluator      *view.Evaluator
	batch          batch
	rows, problems int64 // added by the round; negative if it has removed more
}

// openTables returns the tables of some generations.
func (s *Service) openTables(ctx context.Context, tx pgx.Tx, ids []int64) ([]*tableRound, error) {
	list, err := readGenerations(ctx, tx, "g.id = ANY ($1)", ids)
	if err != nil {
		return nil, err
	}
	tables := make([]*tableRound, len(list))
	for i, g := range list {
		v, err := g.view()
		if err != nil {
			return nil, err
		}
		tables[i] = &tableRound{generation: g, view: v, evaluator: v.NewEvaluator(ctx, s.bases(g), s.Now())}
	}
	return tables, nil
}

// replaceRows replaces the rows of changed resources, by reference, each in its tables. New rows are stored in the given
// order, in which they were written: a reader finds them side by side.
func (s *Service) replaceRows(ctx context.Context, tx pgx.Tx, tables []*tableRound, order []int64, changed map[int64][]*tableRound) error {
	flush := func() error {
		for _, t := range tables {
			if err := t.flush(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	}
	for refs := range slices.Chunk(order, refsAtOnce) {
		err := s.Store.CurrentOf(ctx, tx, tables[0].view.Resource, refs, func(r *store.Stored) error {
			return s.evaluateChanged(ctx, r, changed[r.Ref])
		})
		bytes := 0
		for _, t := range tables {
			bytes += len(t.batch.data)
		}
		if err == nil && bytes > chunkBytes {
			err = flush()
		}
		if err != nil {
			return err
		}
	}
	return flush()
}

// evaluateChanged adds the rows of a resource to the batches of its tables.
func (s *Service) evaluateChanged(ctx context.Context, r *store.Stored, tables []*tableRound) error {
	if r.Method == fhir.DELETE {
		for _, t := range tables {
			if r.ID == "" {
				t.batch.unnamed = append(t.batch.unnamed, r.Ref)
			} else {
				t.batch.replaced = append(t.batch.replaced, r.ID)
			}
		}
		return nil
	}
	decoded, err := s.decode(ctx, &r.Version)
	if err != nil {
		return err
	}
	isNew := r.Method == fhir.POST && r.VersionID == 1 // its id was never given before
	for _, t := range tables {
		if !isNew {
			t.batch.replaced = append(t.batch.replaced, r.ID)
		}
		if err := evaluateInto(&t.batch.chunk, t.evaluator, decoded); err != nil {
			return err
		}
	}
	return nil
}

// storePositions stores that tables show the state of the snapshot of a transaction.
func storePositions(ctx context.Context, tx pgx.Tx, tables []*tableRound, unchanged bool) error {
	if unchanged {
		// A position that is lost with the database's last moments is found again.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil {
			return err
		}
	}
	var ids, rows, problems []int64
	var readers []string
	for _, t := range tables {
		ids, rows, problems, readers = append(ids, t.id), append(rows, t.rows), append(problems, t.problems), append(readers, t.reader())
	}
	if _, err := tx.Exec(ctx, `UPDATE view_generation g SET epoch = r.epoch, seen = pg_current_snapshot(), rows = g.rows + d.rows, problems = g.problems + d.problems
		FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d(id, rows, problems), search_registry r WHERE g.id = d.id`, ids, rows, problems); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE change_reader r SET epoch = g.epoch, xid = pg_snapshot_xmin(g.seen), rid = 0, version = 0
		FROM view_generation g, unnest($1::bigint[], $2::text[]) AS d(id, name) WHERE g.id = d.id AND r.name = d.name`, ids, readers)
	return err
}

// batch is the new rows of changed resources.
type batch struct {
	chunk
	replaced []string // ids of the resources that can have rows already
	unnamed  []int64  // references of removed resources whose ids nobody knows any more
}

// flush stores the batch of a table.
func (t *tableRound) flush(ctx context.Context, tx pgx.Tx) error {
	b := &t.batch
	if len(b.unnamed) > 0 {
		if err := t.findIDs(ctx, tx); err != nil {
			return err
		}
	}
	if len(b.replaced) > 0 {
		gone, err := tx.Exec(ctx, "DELETE FROM "+t.relation()+" WHERE "+ID+" = ANY ($1::text[])", b.replaced)
		if err != nil {
			return err
		}
		fewer, err := tx.Exec(ctx, "DELETE FROM view_problem WHERE generation = $1 AND id = ANY ($2::text[])", t.id, b.replaced)
		if err != nil {
			return err
		}
		t.rows, t.problems = t.rows-gone.RowsAffected(), t.problems-fewer.RowsAffected()
	}
	if err := b.copyInto(ctx, tx, t.generation); err != nil {
		return err
	}
	t.rows, t.problems = t.rows+b.chunk.rows, t.problems+int64(len(b.chunk.problems))
	t.batch = batch{}
	return nil
}

// findIDs finds the ids of resources that were removed with their history, among those in the table.
func (t *tableRound) findIDs(ctx context.Context, tx pgx.Tx) error {
	wanted := make(map[int64]bool)
	for _, ref := range t.batch.unnamed {
		wanted[ref] = true
	}
	rows, err := tx.Query(ctx, "SELECT "+ID+" FROM "+t.relation()+" UNION SELECT id FROM view_problem WHERE generation = $1", t.id)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if wanted[int64(fhir.ValueReference(t.view.Resource, id))] {
			t.batch.replaced = append(t.batch.replaced, id)
		}
	}
	return rows.Err()
}
