package fill

import (
	"context"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/pgvalue"
	"kiln/server/search/plan"
)

// readColumn reads the entries of a column. It gives up if there are too many, or if the column cannot store one of
// them, such as a range of numbers.
func (s *snapshot) readColumn(ctx context.Context, key cache.ColumnKey) error {
	most := s.Cache.MaxItemBytes()
	if s.found.Ahead {
		most = min(most, s.Cache.AheadBytesLeft())
	}
	var units map[int64]*match.Unit
	if key.Kind == cache.Quantities {
		var err error
		if units, err = s.readUnits(ctx); err != nil {
			return err
		}
	}
	parts, err := s.Store.Parts(ctx)
	if err != nil {
		return err
	}
	column := cache.NewColumn(key, units)
	s.found.Column = column
	st := plan.SelectColumn(key, &match.Env{Parts: parts})
	rows, err := s.tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 1; rows.Next(); n++ {
		e, ranged, err := readEntry(rows.RawValues())
		if err != nil {
			return err
		}
		full := n%rowsBetweenPauses == 0 && column.Bytes() > most
		if full || ranged || int16(e.RID>>48) != key.Type || !column.AddEntry(e) {
			if !full || !s.found.Ahead { // the cache may have room when a search requests the column
				s.Cache.RefuseItem(key)
			}
			s.giveUp()
			return nil
		}
		if n%rowsBetweenPauses == 0 {
			s.pause()
		}
	}
	return rows.Err()
}

// readEntry reads a row of plan.SelectColumn. ranged reports that the entry is a range of numbers.
func readEntry(v [][]byte) (e cache.Entry, ranged bool, err error) {
	for _, i := range [...]int{0, 2, 3, 5} {
		if len(v[i]) != 8 {
			return e, false, pgvalue.ErrFormat
		}
	}
	e = cache.Entry{RID: pgvalue.ReadInt8(v[0]), Low: pgvalue.ReadInt8(v[2]), High: pgvalue.ReadInt8(v[3]), Number: string(v[4]), Unit: pgvalue.ReadInt8(v[5])}
	return e, v[1][0] != 0, nil
}
