package plan

import (
	"strconv"

	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// SelectSampleTerms reads samplesAtOnce adjacent resources at each of samplePlaces places of a type; of a small type one resource
// in samplePart.
const (
	samplesAtOnce = 500
	samplePlaces  = 80
	samplePart    = 4
)

// SelectSampleTerms returns the statement that reads the terms of some resources of a type, evenly spread, as arrays.
func SelectSampleTerms(typ int16) match.Statement {
	w := newWriter(nil)
	end := func(order string) {
		w.Write("(SELECT r.rid FROM resource r WHERE ")
		w.Typed("r", []int16{typ})
		w.Write(" ORDER BY r.rid ", order, " LIMIT 1)")
	}
	w.Write("WITH b AS MATERIALIZED (SELECT ")
	end("")
	w.Write(" AS low, ")
	end("DESC")
	w.Write(" AS high), s AS MATERIALIZED (SELECT b.low, b.high, greatest(1, (b.high - b.low) / ", strconv.Itoa(samplePlaces), ") AS step FROM b)",
		" SELECT t.terms FROM s CROSS JOIN generate_series(s.low, s.high, s.step) AS g(at) CROSS JOIN LATERAL (SELECT r.terms FROM resource r WHERE r.rid >= g.at",
		" AND r.rid < g.at + least(s.step, greatest(", strconv.Itoa(samplesAtOnce), ", s.step / ", strconv.Itoa(samplePart), ")) ORDER BY r.rid LIMIT ", strconv.Itoa(samplesAtOnce), ") t")
	return w.Statement()
}

// SelectAllTerms returns the statement that reads rid and terms of every resource of a type.
func SelectAllTerms(typ int16) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT r.rid, r.terms FROM resource r WHERE ")
	w.Typed("r", []int16{typ})
	return w.Statement()
}

// SelectWithTerm returns the statement that reads the rids of at most so many resources of a type that have a term. The type is tested: a range of rids would be read from its index, all of the type's.
func SelectWithTerm(typ int16, term int64, most int) match.Statement {
	w := newWriter(nil)
	w.Write("SELECT r.rid FROM resource r WHERE ")
	if term == cache.Every { // its index has all there are
		w.Typed("r", []int16{typ})
	} else {
		w.Write("r.terms && ")
		w.Terms([]int64{term})
		w.Write(" AND r.typ + 0 = ")
		w.Bind(typ)
		w.Write("::smallint")
	}
	w.Write(" LIMIT ", strconv.Itoa(most))
	return w.Statement()
}
