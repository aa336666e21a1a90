package strategy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// column is a plan.Values or a list of matches, and the snapshot that it holds in.
type column struct {
	c        *plan.Values
	rids     []int64
	snapshot string // "" while there is neither
	at       time.Time
	tried    time.Time
	building bool
	refused  bool // there are too many entries, or ranges
}

// maxCells bounds the columns that are kept, by their entries: about 24 MB.
const maxCells = 1_000_000

// byColumn answers a search for terms and one comparison from memory; nil where
// there is no column that still holds. A column is made, like a histogram, when it
// is wanted for the second time, where build allows it.
func (x *searching) byColumn(ctx context.Context, j *plan.Comparison, build bool) (*pageRows, error) {
	if x.private() {
		return nil, nil
	}
	key := keyOf(j.Build())
	var c *plan.Values
	var snapshot string
	if known, ok := x.s.memory.column(key, x.s.now()); ok {
		c, snapshot = known.c, known.snapshot
	} else {
		if !build || !x.s.memory.wantsColumn(key, x.s.now()) {
			return nil, nil
		}
		var err error
		if c, snapshot, err = x.buildColumn(ctx, j); err != nil || c == nil {
			x.s.memory.keepColumn(key, column{refused: err == nil}, x.s.now())
			return nil, err
		}
	}
	total, of, err := j.Page(c)
	if err != nil {
		return nil, err
	}
	p, now, err := x.rowsOf(ctx, of, snapshot)
	if err != nil || p == nil {
		x.s.memory.keepColumn(key, column{}, x.s.now())
		return nil, err
	}
	x.s.memory.keepColumn(key, column{c: c, snapshot: now}, x.s.now())
	p.total = int64(total)
	return p, nil
}

// rowsOf fetches the page whose resources memory tells, in the order of surrogates,
// backwards where they are, and the proof that nothing has changed since snapshot, in
// one; nil where something has.
func (x *searching) rowsOf(ctx context.Context, rids []int64, snapshot string) (p *pageRows, now string, err error) {
	st := x.plan.RowsUnchanged(rids, snapshot)
	x.note("rows from memory", st)
	var unchanged bool
	p, err = x.rows(ctx, st, &unchanged, &now)
	if err != nil || !unchanged || !plan.SameIndex(snapshot, now) || len(p.rows) != len(rids) {
		return nil, "", err
	}
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Compare(a.rid, b.rid) })
	if len(rids) > 1 && rids[0] > rids[1] {
		slices.Reverse(p.rows)
	}
	return p, now, nil
}

// listFrom is the number of matches from which it pays to remember which they are:
// for the next page, and for requests of the same search.
const listFrom = 100

// list is the statement that lists the matches of a search, and what they are
// remembered by.
type list struct {
	st  match.Statement
	key totalKey
}

// list returns false for a search whose matches are not remembered.
func (x *searching) list() (list, bool) {
	if joint := x.plan.Comparison(); joint != nil && joint.Alone() {
		return list{}, false // a column is better
	}
	st, ok := x.plan.List()
	if !ok || x.private() {
		return list{}, false
	}
	return list{st, keyOf(st)}, true
}

// byList answers a search whose matches are remembered; nil where they are not, or
// do not hold any more.
func (x *searching) byList(ctx context.Context, key totalKey) (*pageRows, error) {
	c, ok := x.s.memory.column(key, x.s.now())
	if !ok {
		return nil, nil
	}
	of, err := x.plan.PageOf(c.rids)
	if err != nil {
		return nil, err
	}
	p, now, err := x.rowsOf(ctx, of, c.snapshot)
	if err != nil || p == nil {
		x.s.memory.keepColumn(key, column{}, x.s.now())
		return nil, err
	}
	c.snapshot = now
	x.s.memory.keepColumn(key, c, x.s.now())
	p.total = int64(len(c.rids))
	return p, nil
}

// learnList remembers the matches of a search when it is asked for the second time.
func (x *searching) learnList(ctx context.Context, l list) error {
	if !x.s.memory.wantsColumn(l.key, x.s.now()) {
		return nil
	}
	c := column{}
	defer func() { x.s.memory.keepColumn(l.key, c, x.s.now()) }()
	x.note("list", l.st)
	var rids []int64
	var snapshot string
	if err := x.conn.QueryRow(ctx, l.st.SQL, l.st.Args...).Scan(&rids, &snapshot); err != nil || len(rids) == 0 || !plan.Lasting(snapshot) || len(rids) > plan.MaxList {
		return err
	}
	slices.Sort(rids)
	c.rids, c.snapshot = rids, snapshot
	return nil
}

// buildColumn returns nil where there are too many entries, or ranges.
func (x *searching) buildColumn(ctx context.Context, j *plan.Comparison) (*plan.Values, string, error) {
	if _, err := x.becomeDear(ctx); err != nil {
		return nil, "", err
	}
	st := j.Build()
	x.note("column", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	c := &plan.Values{}
	var snapshot string
	for rows.Next() {
		var unit int64
		var lows string
		var highs *string
		var ranges bool
		var rids []int64
		if err := rows.Scan(&unit, &lows, &highs, &ranges, &rids, &snapshot); err != nil {
			return nil, "", err
		}
		if !c.Add(unit, lows, highs, ranges, rids) {
			return nil, "", nil
		}
	}
	if err := rows.Err(); err != nil || !plan.Lasting(snapshot) || c.Len() > plan.MaxValues {
		return nil, "", err
	}
	return c, snapshot, nil
}

func (c *column) len() int {
	if c.c != nil {
		return c.c.Len()
	}
	return len(c.rids)
}

func (m *memory) column(k totalKey, now time.Time) (column, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	if c == nil || c.snapshot == "" || now.Sub(c.at) > rememberedFor {
		return column{}, false
	}
	return *c, true
}

// refused reports whether the column of a search cannot be made.
func (m *memory) refused(k totalKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	return c != nil && c.refused
}

func (m *memory) wantsColumn(k totalKey, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	if c == nil {
		m.makeRoom()
		m.columns[k] = &column{tried: now.Add(-histogramWanted)}
		return false
	}
	if c.building || now.Sub(c.tried) < histogramWanted {
		return false
	}
	c.building, c.refused, c.tried = true, false, now
	return true
}

// makeRoom forgets some columns, whichever, where there are too many.
func (m *memory) makeRoom() {
	if m.columns == nil {
		m.columns = make(map[totalKey]*column)
	}
	if len(m.columns) < rememberedSearches && m.cells <= maxCells {
		return
	}
	for k, c := range m.columns {
		if len(m.columns) < rememberedSearches*3/4 && m.cells <= maxCells*3/4 {
			break
		}
		m.cells -= c.len()
		delete(m.columns, k)
	}
}

func (m *memory) keepColumn(k totalKey, of column, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	if c == nil {
		return
	}
	m.cells += of.len() - c.len()
	of.tried, of.at = c.tried, now
	*c = of
}
