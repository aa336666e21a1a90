package match

import (
	"time"

	"kiln/server/fhir"
)

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

// UpdatedKey is the key of the last update where it is compared as the only date of a resource.
// No row of the index has it: resource.last_updated is the value.
var UpdatedKey = fhir.KeyOf(fhir.SearchSpecial, "Resource.meta.lastUpdated")

var updatedKeys = []fhir.Key{UpdatedKey}

// UpdatedEntry is a last update, in microseconds, as a date entry.
func UpdatedEntry(at int64) fhir.DateEntry {
	return fhir.DateEntry{Key: UpdatedKey, Low: at, High: at + 1}
}

func (m Updated) comparison() Comparison { return Comparison{DateTable, updatedKeys, true} }

func (m Updated) bounds() []Dates {
	return []Dates{{Keys: updatedKeys, Single: true, Op: m.Op, Low: m.Low, High: m.High}}
}

func (m Updated) describe() string { return "" }
