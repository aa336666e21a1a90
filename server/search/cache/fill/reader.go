package fill

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/cache"
	"kiln/server/search/plan"
)

const (
	// readTimeout limits the time in which an item is read.
	readTimeout = 10 * time.Minute
	// maxAttempts limits how often an item is added, if other searches change the cache meanwhile.
	maxAttempts = 10
	// An item is added when fewer than fewChanges changed resources remain to be applied.
	fewChanges = cache.MaxChanges / 4
)

// reader reads items and adds them to the cache.
type reader struct {
	Config
	pacer *pacer
}

// readItem reads an item and adds it to the cache. It enters no queue of searches: the expensive searches there need the
// item.
func (r *reader) readItem(ctx context.Context, i item) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	conn, err := r.Store.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	found, err := r.readSnapshot(ctx, conn, i)
	if err != nil || !plan.IsLasting(found.State) || !found.MakeItems(r.Now()) {
		return err
	}
	if ok, err := catchUpItem(ctx, conn, found); !ok || err != nil {
		return err
	}
	return r.addItem(ctx, conn, i, found)
}

// readSnapshot reads an item in one snapshot. The result has no state if the item cannot be cached.
func (r *reader) readSnapshot(ctx context.Context, conn *pgxpool.Conn, i item) (*cache.Found, error) {
	found := &cache.Found{Type: i.typ, Name: i.typeName, Set: i.set, Clauses: i.clauses, Ahead: i.ahead, Behind: i.largerTypes}
	begin := time.Now()
	var paused time.Duration
	err := pgx.BeginTxFunc(ctx, conn, readOnlySnapshot, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT "+plan.Now).Scan(&found.State); err != nil || !plan.IsLasting(found.State) {
			return err
		}
		if i.ahead { // a sort cannot pause: it takes one process then, not all
			if _, err := tx.Exec(ctx, "SET LOCAL max_parallel_workers_per_gather = 0"); err != nil {
				return err
			}
		}
		pauses := r.pacer.newPauses(i.ahead && !i.soon)
		s := &snapshot{Config: r.Config, tx: tx, found: found, pause: func() { paused = pauses(ctx) }}
		switch {
		case i.column != nil:
			return s.readColumn(ctx, *i.column)
		case i.allTerms:
			return s.readTerms(ctx, i.typ)
		case i.someTerms != nil:
			return s.readSomeTerms(ctx, i)
		}
		return s.readSet(ctx, i)
	})
	found.Cost = time.Since(begin) - paused
	return found, err
}

// catchUpItem applies the changes since the snapshot of an item, until few are left or they do not become fewer. It returns
// false if the item cannot follow them.
func catchUpItem(ctx context.Context, conn *pgxpool.Conn, found *cache.Found) (bool, error) {
	for last := math.MaxInt; ; {
		n, err := applyAllChanges(ctx, conn, found.State, found.Type, found)
		if err != nil || n < 0 {
			return false, err
		}
		if n < fewChanges || n > last/10*9 {
			return true, nil
		}
		last = n
	}
}

// addItem adds an item to the cache, with the changes that both still lack.
func (r *reader) addItem(ctx context.Context, conn *pgxpool.Conn, i item, found *cache.Found) error {
	for range maxAttempts {
		since, ok := r.Cache.FindAddPosition(found.State, i.typ, i.typeName)
		if !ok {
			return nil
		}
		st := plan.SelectChanges(since)
		var row plan.ChangesRow
		if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(row.Columns()...); err != nil {
			return err
		}
		kept, again := r.Cache.AddFound(found, row.Changes(since))
		if again && !kept {
			continue
		}
		if !kept && i.column != nil && !i.ahead {
			r.Cache.RefuseItem(*i.column)
		}
		return nil
	}
	return nil
}
