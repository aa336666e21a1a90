package strategy

import (
	"context"
	"time"

	"kiln/server/search/plan"
)

// histogram is a plan.Histogram and the snapshot that it holds in.
type histogram struct {
	g        *plan.Histogram // nil while there is none
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

// byHistogram is what a histogram knows of the total of h; nil where there is none
// that may still hold.
func (x *searching) byHistogram(ctx context.Context, h *plan.OpenRange) (*remembered, error) {
	name := h.Name()
	g, snapshot := x.s.memory.histogram(name, x.s.now())
	if g == nil {
		if joint := x.plan.Comparison(); joint != nil && joint.Alone() && x.q.Count > 0 && !x.s.memory.refused(keyOf(joint.Build())) {
			return nil, nil // a column is better, and made sooner
		}
		if !x.s.memory.wantsHistogram(name, x.s.now()) {
			return nil, nil
		}
		var err error
		if g, snapshot, err = x.buildHistogram(ctx, h); err != nil || g == nil {
			x.s.memory.keepHistogram(name, nil, "", x.s.now())
			return nil, err
		}
		x.s.memory.keepHistogram(name, g, snapshot, x.s.now())
	}
	st, base := h.Count(x.plan.Env(), g)
	return &remembered{
		about: base, exact: st.Then(x.plan.Unchanged(snapshot)), base: base, state: snapshot,
		keep: func(_ int64, snapshot string) {
			x.s.memory.keepHistogram(name, g, snapshot, x.s.now())
		},
		forget: func() { x.s.memory.keepHistogram(name, nil, "", x.s.now()) },
	}, nil
}

func (x *searching) buildHistogram(ctx context.Context, h *plan.OpenRange) (*plan.Histogram, string, error) {
	if _, err := x.becomeDear(ctx); err != nil {
		return nil, "", err
	}
	st := h.Build(x.plan.Env())
	x.note("histogram", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	var g plan.Histogram
	var snapshot string
	for rows.Next() {
		var unit, below, n int64
		var low string
		if err := rows.Scan(&unit, &low, &below, &n, &snapshot); err != nil {
			return nil, "", err
		}
		g.Add(unit, low, below, n)
	}
	if err := rows.Err(); err != nil || !plan.Lasting(snapshot) {
		return nil, "", err
	}
	return &g, snapshot, nil
}

func (m *memory) histogram(name string, now time.Time) (*plan.Histogram, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[name]
	if h == nil || h.g == nil || now.Sub(h.at) > rememberedFor {
		return nil, ""
	}
	return h.g, h.snapshot
}

// wantsHistogram reports whether the caller should make it now: one at a time.
func (m *memory) wantsHistogram(name string, now time.Time) bool {
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

func (m *memory) keepHistogram(name string, g *plan.Histogram, snapshot string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[name]
	if h == nil {
		return
	}
	h.g, h.snapshot, h.at, h.building = g, snapshot, now, false
}
