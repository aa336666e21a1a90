package fill

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// changesAtOnce is the number of changed resources that are read in one round trip.
const changesAtOnce = 500

// target is a cache or an item to which changed resources are applied, some at a time: cache.CatchUp, *cache.Found.
type target interface {
	NewStored(rids []int64) *cache.Stored
	ApplyStored(s *cache.Stored) bool
	MoveToState(now string) bool
}

// changeList is the list of resources that have changed since a state.
type changeList struct {
	rids  []int64
	state string // the present state
}

// readChangeList reads which resources of some types have changed since a state. ok is false if that is unknown, or if
// more than most resources have changed.
func readChangeList(ctx context.Context, tx pgx.Tx, since string, types []int16, most int) (l changeList, ok bool, err error) {
	st := plan.SelectChangedSince(since, types, most)
	err = tx.QueryRow(ctx, st.SQL, st.Args...).Scan(&ok, &l.rids, &l.state)
	return l, ok && len(l.rids) <= most, err
}

// applyAllChanges reads the resources of a type that have changed since a state, and applies them. It returns their number, or
// below 0 if the target cannot follow them or they are more than cache.MaxCatchUp.
func applyAllChanges(ctx context.Context, conn *pgxpool.Conn, since string, typ int16, to target) (n int, err error) {
	err = pgx.BeginTxFunc(ctx, conn, readOnlySnapshot, func(tx pgx.Tx) error {
		n = -1
		l, ok, err := readChangeList(ctx, tx, since, []int16{typ}, cache.MaxCatchUp)
		if err != nil || !ok {
			return err
		}
		for rids := range slices.Chunk(l.rids, changesAtOnce) {
			if ok, err := applyChanges(ctx, tx, rids, to); err != nil || !ok {
				return err
			}
		}
		if to.MoveToState(l.state) {
			n = len(l.rids)
		}
		return nil
	})
	return n, err
}

// readOnlySnapshot are the options of a transaction that reads one snapshot.
var readOnlySnapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// applyChanges reads some resources and applies them. It returns false if the target cannot follow them. The resources are
// read as columns in one round trip: the function changed_resources returns JSON, which takes both sides several
// times as long.
func applyChanges(ctx context.Context, tx pgx.Tx, rids []int64, to target) (bool, error) {
	stored := to.NewStored(rids)
	resources, dates, numbers, quantities, strings := plan.SelectStored(rids)
	var batch pgx.Batch
	queue := func(st match.Statement) *pgx.QueuedQuery { return batch.Queue(st.SQL, st.Args...) }
	queue(resources).Query(func(rows pgx.Rows) error {
		var rid, updated int64
		var id string
		var version int
		var terms, targets []int64
		_, err := pgx.ForEachRow(rows, []any{&rid, &id, &version, &updated, &terms, &targets}, func() error {
			stored.AddResource(rid, id, version, updated, terms, targets)
			return nil
		})
		return err
	})
	var of, keys, low, high []int64
	var from, until, system, code, unit, text []string
	entries := func(st match.Statement, add func(i int), columns ...any) {
		queue(st).QueryRow(func(row pgx.Row) error {
			if err := row.Scan(append([]any{&of, &keys}, columns...)...); err != nil {
				return err
			}
			for i := range of {
				add(i)
			}
			return nil
		})
	}
	entries(dates, func(i int) { stored.AddDate(of[i], keys[i], low[i], high[i]) }, &low, &high)
	entries(numbers, func(i int) { stored.AddNumber(of[i], keys[i], from[i], until[i]) }, &from, &until)
	entries(quantities, func(i int) {
		stored.AddQuantity(of[i], keys[i], from[i], until[i], system[i], code[i], unit[i])
	}, &from, &until, &system, &code, &unit)
	entries(strings, func(i int) { stored.AddString(of[i], keys[i], text[i]) }, &text)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return true, err
	}
	return to.ApplyStored(stored), nil
}
