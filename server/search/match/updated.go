package match

import "time"

// Updated holds for a resource whose last update stands to [Low, High) as Op
// says; microseconds.
type Updated struct {
	Op        Prefix
	Low, High int64
}

// test compares an instant.
func (m Updated) test(w *Writer, r string) {
	at := func(micros int64) {
		w.Bind(time.UnixMicro(micros).UTC())
		w.Write("::timestamptz")
	}
	col := r + ".last_updated"
	switch m.Op {
	case EQ, AP:
		w.Write("(", col, " >= ")
		at(m.Low)
		w.Write(" AND ", col, " < ")
		at(m.High)
		w.Write(")")
	case NE:
		w.Write("(", col, " < ")
		at(m.Low)
		w.Write(" OR ", col, " >= ")
		at(m.High)
		w.Write(")")
	case LT, EB:
		w.Write(col, " < ")
		at(m.Low)
	case LE:
		w.Write(col, " < ")
		at(m.High)
	case GT, SA:
		w.Write(col, " >= ")
		at(m.High)
	case GE:
		w.Write(col, " >= ")
		at(m.Low)
	}
}

func (m Updated) single() bool { return true }

func (m Updated) wide() bool { return true }

func (m Updated) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m Updated) byRows() bool { return true }

func (m Updated) holds(r *Resource) Answer {
	at := r.LastUpdated.UnixMicro()
	switch m.Op {
	case NE:
		return of(at < m.Low || at >= m.High)
	case LT, EB:
		return of(at < m.Low)
	case LE:
		return of(at < m.High)
	case GT, SA:
		return of(at >= m.High)
	case GE:
		return of(at >= m.Low)
	}
	return of(at >= m.Low && at < m.High)
}

func (m Updated) describe() string { return "" }
