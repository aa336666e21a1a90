package fill

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// rowsBetweenPauses is the number of rows that are read without a pause.
const rowsBetweenPauses = 10_000

// snapshot is the read-only transaction in which one item is read.
type snapshot struct {
	Config
	tx pgx.Tx
	// found receives the item. A method that cannot read the item removes found.State, and then no item is added.
	found *cache.Found
	pause func()
}

// giveUp ends the reading of an item that the cache cannot store.
func (s *snapshot) giveUp() { s.found.State = "" }

// readUnits reads all units of quantities, by id.
func (s *snapshot) readUnits(ctx context.Context) (map[int64]*match.Unit, error) {
	rows, err := s.tx.Query(ctx, `SELECT id, system, code, unit FROM quantity_unit`)
	if err != nil {
		return nil, err
	}
	units := make(map[int64]*match.Unit)
	var id int64
	var system, code, unit string
	_, err = pgx.ForEachRow(rows, []any{&id, &system, &code, &unit}, func() error {
		u := match.NewUnit(id, system, code, unit)
		units[id] = &u
		return nil
	})
	return units, err
}
