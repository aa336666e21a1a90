package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"kiln/server/search"
)

// histogram is a search.Histogram and the snapshot that it holds in.
type histogram struct {
	g        *search.Histogram // nil while there is none
	snapshot string
	at       time.Time // of the last use
	tried    time.Time // when it was asked for or built last
	building bool
}

// A histogram costs a few counts to make. It is made when a parameter is compared
// for the second time within histogramWanted, and not more often than that: where
// others keep writing, counting is cheaper than making it again and again.
const (
	histogramWanted = 5 * time.Second
	maxHistograms   = 256
)

// countByHistogram counts a search that is one comparison; false where it is
// another kind of search, or there is no histogram that still holds.
func (x *searching) countByHistogram(ctx context.Context, n *int64) (bool, error) {
	if x.private {
		return false, nil
	}
	h := x.plan.HalfAxis()
	if h == nil {
		return false, nil
	}
	name := h.Name()
	g, snapshot := x.s.searches.histogram(name, x.s.now())
	if g == nil {
		if !x.s.searches.wantsHistogram(name, x.s.now()) {
			return false, nil
		}
		var err error
		if g, snapshot, err = x.buildHistogram(ctx, h); err != nil || g == nil {
			x.s.searches.keepHistogram(name, nil, "", x.s.now())
			return false, err
		}
	}
	st, base := h.Count(x.plan.Env(), g)
	check := x.plan.Unchanged(snapshot)
	st = st.With(check)
	var unchanged bool
	if err := x.one(ctx, "count by histogram", st, n, &unchanged, &snapshot); err != nil {
		return false, err
	}
	if !unchanged {
		x.s.searches.keepHistogram(name, nil, "", x.s.now())
		return false, nil
	}
	x.s.searches.keepHistogram(name, g, snapshot, x.s.now())
	*n += base
	return true, nil
}

func (x *searching) buildHistogram(ctx context.Context, h *search.HalfAxis) (*search.Histogram, string, error) {
	st := h.Build(x.plan.Env())
	x.note("histogram", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	var g search.Histogram
	var snapshot string
	for rows.Next() {
		var unit, below, n int64
		var low string
		if err := rows.Scan(&unit, &low, &below, &n, &snapshot); err != nil {
			return nil, "", err
		}
		g.Add(unit, low, below, n)
	}
	if err := rows.Err(); err != nil || snapshot == "" {
		return nil, "", err
	}
	return &g, snapshot, nil
}

func (m *searches) histogram(name string, now time.Time) (*search.Histogram, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[name]
	if h == nil || h.g == nil || now.Sub(h.at) > rememberedFor {
		return nil, ""
	}
	return h.g, h.snapshot
}

// wantsHistogram reports whether the caller should make it now: one at a time.
func (m *searches) wantsHistogram(name string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.histograms == nil || len(m.histograms) >= maxHistograms {
		m.histograms = make(map[string]*histogram)
	}
	h := m.histograms[name]
	if h == nil {
		m.histograms[name] = &histogram{tried: now.Add(-histogramWanted)}
		return false
	}
	if h.building || now.Sub(h.tried) < histogramWanted {
		return false
	}
	h.building, h.tried = true, now
	return true
}

func (m *searches) keepHistogram(name string, g *search.Histogram, snapshot string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[name]
	if h == nil {
		return
	}
	h.g, h.snapshot, h.at, h.building = g, snapshot, now, false
}

// column is a search.Column and the snapshot that it holds in.
type column struct {
	c        *search.Column // nil while there is none
	snapshot string
	at       time.Time
	tried    time.Time
	building bool
}

// maxCells bounds the columns that are kept, by their entries: about 40 MB.
const maxCells = 400_000

// byColumn answers a search for terms and one comparison from memory; nil where
// there is no column that still holds. A column
// is made, like a histogram, when it is wanted for the second time.
func (x *searching) byColumn(ctx context.Context, j *search.Joint) (*pageRows, error) {
	if x.private {
		return nil, nil
	}
	key := keyOf(j.Build())
	c, snapshot := x.s.searches.column(key, x.s.now())
	if c == nil {
		if !x.s.searches.wantsColumn(key, x.s.now()) {
			return nil, nil
		}
		var err error
		if c, snapshot, err = x.buildColumn(ctx, j); err != nil || c == nil {
			x.s.searches.keepColumn(key, nil, "", x.s.now())
			return nil, err
		}
	}
	rids := j.Matches(c)
	of, err := x.plan.PageOf(rids)
	if err != nil {
		return nil, err
	}
	// The rows and the proof that nothing has changed come from one snapshot.
	st := x.plan.Rows(of).Beside(x.plan.Unchanged(snapshot))
	p, unchanged, now, err := x.rowsIfUnchanged(ctx, st)
	if err != nil {
		return nil, err
	}
	if !unchanged || len(p.rows) != len(of) {
		x.s.searches.keepColumn(key, nil, "", x.s.now())
		return nil, nil
	}
	x.s.searches.keepColumn(key, c, now, x.s.now())
	slices.SortFunc(p.rows, func(a, b match) int { return cmp.Compare(slices.Index(of, a.rid), slices.Index(of, b.rid)) })
	p.total = int64(len(rids))
	return p, nil
}

// buildColumn returns nil where there are too many entries, or ranges.
func (x *searching) buildColumn(ctx context.Context, j *search.Joint) (*search.Column, string, error) {
	st := j.Build()
	x.note("column", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	c := &search.Column{}
	var snapshot string
	for rows.Next() {
		var unit, rid int64
		var low string
		var high *string
		if err := rows.Scan(&unit, &low, &high, &rid, &snapshot); err != nil {
			return nil, "", err
		}
		if !c.Add(j, unit, low, high, rid) {
			return nil, "", nil
		}
	}
	if err := rows.Err(); err != nil || snapshot == "" || c.Ranges || c.Len() > search.MaxColumn {
		return nil, "", err
	}
	c.Finish()
	return c, snapshot, nil
}

func (m *searches) column(k totalKey, now time.Time) (*search.Column, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	if c == nil || c.c == nil || now.Sub(c.at) > rememberedFor {
		return nil, ""
	}
	return c.c, c.snapshot
}

func (m *searches) wantsColumn(k totalKey, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.columns == nil || len(m.columns) >= rememberedSearches || m.cells > maxCells {
		m.columns, m.cells = make(map[totalKey]*column), 0
	}
	c := m.columns[k]
	if c == nil {
		m.columns[k] = &column{tried: now.Add(-histogramWanted)}
		return false
	}
	if c.building || now.Sub(c.tried) < histogramWanted {
		return false
	}
	c.building, c.tried = true, now
	return true
}

func (m *searches) keepColumn(k totalKey, of *search.Column, snapshot string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.columns[k]
	if c == nil {
		return
	}
	if c.c != nil {
		m.cells -= c.c.Len()
	}
	if of != nil {
		m.cells += of.Len()
	}
	c.c, c.snapshot, c.at, c.building = of, snapshot, now, false
}
