package match

import (
	"slices"
	"strconv"
)

// Set writes a SELECT of the rid of every match of c, each once. Terms and chains give a base, every ordered
// clause gives a list of its own, and the intersection of all lists matches. Each list is materialised:
// the planner cannot estimate the lengths, and is left with hashing as the only join.
func (w *Writer) Set(c *Conjunction, types []int16) {
	var ordered []int // clauses that make lists
	base := -1        // clause that makes the base; -1 is terms and ids
	for i := range c.Preds {
		switch p := &c.Preds[i]; {
		case p.ByTerms() && (base < 0 || c.Preds[base].ByRefs()), p.ByRefs() && base < 0:
			base = i
		case p.BySurrogates() && !p.HasUpdated():
			ordered = append(ordered, i)
		}
	}
	noTerms := len(c.All)+len(c.Any) == 0 && !c.ByID
	if base < 0 && noTerms && len(ordered) > 0 {
		base, ordered = ordered[0], ordered[1:]
	}
	if len(ordered) == 0 {
		w.base(c, types, base, nil)
		return
	}
	n := w.Next()
	w.Write("WITH b", n, " AS MATERIALIZED (")
	w.base(c, types, base, ordered)
	w.Write(")")
	for i, at := range ordered {
		w.Write(", o", n, "_", strconv.Itoa(i+1), " AS MATERIALIZED (")
		w.Find(c.Preds[at].Any, types)
		w.Write(")")
	}
	w.Write(" SELECT b.rid FROM b", n, " b")
	and := &Conditions{W: w, Lead: " WHERE "}
	for i := range ordered {
		and.Next()
		w.Write("b.rid IN (SELECT rid FROM o", n, "_", strconv.Itoa(i+1), ")")
	}
}

// base writes a SELECT of the rids that clause base finds (-1: terms and ids) and
// that pass every other clause but those in lists.
func (w *Writer) base(c *Conjunction, types []int16, base int, lists []int) {
	rest := Conjunction{All: c.All, Any: c.Any, None: c.None, IDs: c.IDs, ByID: c.ByID, Never: c.Never}
	for i := range c.Preds {
		if i != base && !slices.Contains(lists, i) {
			rest.Preds = append(rest.Preds, c.Preds[i])
		}
	}
	if base >= 0 && c.Preds[base].BySurrogates() && rest.Empty() {
		if c.Preds[base].Single() {
			w.Write("SELECT o.rid FROM (")
		} else {
			w.Write("SELECT DISTINCT o.rid FROM (")
		}
		w.Find(c.Preds[base].Any, types)
		w.Write(") o")
		return
	}
	r := "r" + w.Next()
	if base >= 0 && c.Preds[base].ByTerms() {
		w.Write("SELECT DISTINCT ", r, ".rid FROM ")
	} else {
		w.Write("SELECT ", r, ".rid FROM ")
	}
	w.rows(r, c, types, base, &rest)
}

// rows writes a FROM item and its conditions that make r the rows of resource
// which clause base of c finds and which pass rest. Along a chain a row may come
// more than once.
func (w *Writer) rows(r string, c *Conjunction, types []int16, base int, rest *Conjunction) {
	if base < 0 {
		w.Write("resource ", r)
		and := &Conditions{W: w, Lead: " WHERE "}
		w.Found(r, rest, types, and)
		for i := range rest.Preds {
			and.Next()
			w.Not(&rest.Preds[i])
			w.Test(r, rest.Preds[i].Any)
		}
		return
	}
	p := &c.Preds[base]
	h := "h" + w.Next()
	and := &Conditions{W: w, Any: true}
	switch {
	case p.ByTerms():
		// One look-up for each term and not one for all: an OR of many terms costs
		// GIN their number times the number of rows found.
		w.Write("(SELECT DISTINCT term FROM (")
		w.FindTerms(p.Any, 0)
		w.Write(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".terms @> ")
		w.TermAnd(h+".term", rest.All)
		some := *rest
		some.All = nil
		w.Tests(r, &some, and, -1)
	case p.ByRefs():
		has := p.Only().(Has)
		w.Write("(SELECT DISTINCT ref FROM (")
		has.FindRefs(w, 0)
		w.Write(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".ref = ", h, ".ref")
		w.OfType(r, types, and)
		w.Tests(r, rest, and, -1)
	default:
		w.Write("(SELECT DISTINCT rid FROM (")
		w.Find(p.Any, types)
		w.Write(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".rid = ", h, ".rid")
		w.Tests(r, rest, and, -1)
	}
	w.Write(" OFFSET 0) ", r)
}

// Matching writes a FROM item and its conditions that make r the rows of
// resource which match c.
func (w *Writer) Matching(r string, c *Conjunction, types []int16) {
	ordered, chains := 0, 0
	for i := range c.Preds {
		switch p := &c.Preds[i]; {
		case p.ByTerms(), p.ByRefs():
			chains++
		case p.BySurrogates() && !p.HasUpdated():
			ordered++
		}
	}
	if ordered+chains == 0 {
		w.rows(r, c, types, -1, c)
		return
	}
	q := "q" + w.Next()
	w.Write("(")
	w.Set(c, types)
	w.Write(") ", q, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".rid = ", q, ".rid OFFSET 0) ", r)
}

// Find writes a SELECT of the rid of every resource for which one of the matches
// holds; a rid may come twice.
func (w *Writer) Find(any []Match, types []int16) {
	for i, m := range any {
		if i > 0 {
			w.Write(" UNION ALL ")
		}
		m.find(w, types)
	}
}

// findAlone is Match.find for a match that is asked like a clause of its own.
func (w *Writer) findAlone(m Match, types []int16) {
	c := Conjoin([]Clause{{Any: []Match{m}}})
	w.Write("SELECT rid FROM (")
	w.Set(&c, types)
	w.Write(") v")
}

// Found writes the conditions of c on r that indexes of resource answer: terms and
// ids; and the type where neither says it.
func (w *Writer) Found(r string, c *Conjunction, types []int16, and *Conditions) {
	if c.Never {
		and.Next()
		w.Write("false")
	}
	if c.ByID {
		and.Next()
		w.Write(r, ".ref = ANY (")
		w.Terms(c.IDs)
		w.Write(")")
		w.Tests(r, &Conjunction{All: c.All, Any: c.Any}, and, -1)
	} else {
		if len(c.All) > 0 {
			and.Next()
			w.Write(r, ".terms @> ")
			w.Terms(c.All)
		}
		for _, any := range c.Any {
			and.Next()
			w.Write(r, ".terms && ")
			w.Terms(any)
		}
		updated := slices.ContainsFunc(c.Preds, func(p Predicate) bool { return p.HasUpdated() })
		switch {
		case len(c.All)+len(c.Any) > 0:
		case updated:
			and.Next()
			w.EveryType(r, types)
		case len(types) > 0:
			and.Next()
			w.Typed(r, types)
		}
	}
	w.Tests(r, &Conjunction{None: c.None}, and, -1)
}

// FindTerms writes a SELECT of the terms that any of the matches asks for.
func (w *Writer) FindTerms(any []Match, limit int) {
	if limit > 0 {
		w.Write("SELECT term FROM (")
	}
	for i, m := range any {
		if i > 0 {
			w.Write(" UNION ALL ")
		}
		m.(byTerms).findTerms(w)
	}
	if limit > 0 {
		w.Write(") AS u LIMIT ", strconv.Itoa(limit))
	}
}
