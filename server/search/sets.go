package search

import "strconv"

// set writes a SELECT of the rid of every match of c, each once: however many
// there are. Terms and chains give a base; every ordered clause gives a list of
// its own, and what is in all of them matches. Each list is made as a whole, so
// that the planner, which knows nothing of how long they are, has hashing as the
// only way to join them.
func (w *writer) set(c *conj, types []int16) {
	var ordered []int // clauses that make lists
	base := -1        // clause that makes the base; -1 is terms and ids
	for i := range c.preds {
		switch p := &c.preds[i]; {
		case p.isChain() && (base < 0 || c.preds[base].isHas()), p.isHas() && base < 0:
			base = i
		case p.isOrdered() && !p.hasUpdated():
			ordered = append(ordered, i)
		}
	}
	noTerms := len(c.all)+len(c.any) == 0 && !c.byID
	if base < 0 && noTerms && len(ordered) > 0 {
		base, ordered = ordered[0], ordered[1:]
	}
	if len(ordered) == 0 {
		w.base(c, types, base, nil)
		return
	}
	n := w.next()
	w.s("WITH b", n, " AS MATERIALIZED (")
	w.base(c, types, base, ordered)
	w.s(")")
	for i, at := range ordered {
		w.s(", o", n, "_", strconv.Itoa(i+1), " AS MATERIALIZED (")
		w.rids(c.preds[at].any, types)
		w.s(")")
	}
	w.s(" SELECT b.rid FROM b", n, " b")
	and := &conditions{w: w, lead: " WHERE "}
	for i := range ordered {
		and.next()
		w.s("b.rid IN (SELECT rid FROM o", n, "_", strconv.Itoa(i+1), ")")
	}
}

// base writes a SELECT of the rids that clause base finds (-1: terms and ids) and
// that pass every other clause but those in lists.
func (w *writer) base(c *conj, types []int16, base int, lists []int) {
	rest := conj{all: c.all, any: c.any, none: c.none, ids: c.ids, byID: c.byID, never: c.never}
	for i := range c.preds {
		if i != base && !contains(lists, i) {
			rest.preds = append(rest.preds, c.preds[i])
		}
	}
	if base >= 0 && c.preds[base].isOrdered() && rest.empty() {
		if single(c.preds[base].any) {
			w.s("SELECT o.rid FROM (")
		} else {
			w.s("SELECT DISTINCT o.rid FROM (")
		}
		w.rids(c.preds[base].any, types)
		w.s(") o")
		return
	}
	r := "r" + w.next()
	if base >= 0 && c.preds[base].isChain() {
		w.s("SELECT DISTINCT ", r, ".rid FROM ")
	} else {
		w.s("SELECT ", r, ".rid FROM ")
	}
	w.rows(r, c, types, base, &rest)
}

func contains(list []int, i int) bool {
	for _, v := range list {
		if v == i {
			return true
		}
	}
	return false
}

func (c *conj) empty() bool {
	return len(c.all)+len(c.any)+len(c.none)+len(c.preds) == 0 && !c.byID && !c.never
}

// rows writes a FROM item and its conditions that make r the rows of resource
// which clause base of c finds and which pass rest. Along a chain a row may come
// more than once.
func (w *writer) rows(r string, c *conj, types []int16, base int, rest *conj) {
	if base < 0 {
		w.s("resource ", r)
		and := &conditions{w: w, lead: " WHERE "}
		w.found(r, rest, types, and)
		for i := range rest.preds {
			and.next()
			w.not(&rest.preds[i])
			w.probe(r, rest.preds[i].any)
		}
		return
	}
	p := &c.preds[base]
	h := "h" + w.next()
	and := &conditions{w: w, any: true}
	switch {
	case p.isChain():
		// One look-up for each term and not one for all: an OR of many terms costs
		// GIN their number times the number of rows found.
		w.s("(SELECT DISTINCT term FROM (")
		w.allChainTerms(p.any, 0)
		w.s(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".terms @> ")
		w.termAnd(h+".term", rest.all)
		some := *rest
		some.all = nil
		w.probing(r, &some, and, -1)
	case p.isHas():
		has := p.only().(Has)
		w.s("(SELECT DISTINCT ref FROM (")
		w.hasRefs(&has, 0)
		w.s(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".ref = ", h, ".ref")
		w.ofType(r, types, and)
		w.probing(r, rest, and, -1)
	default:
		w.s("(SELECT DISTINCT rid FROM (")
		w.rids(p.any, types)
		w.s(") u) ", h, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".rid = ", h, ".rid")
		w.probing(r, rest, and, -1)
	}
	w.s(" OFFSET 0) ", r)
}

// termAnd writes the array of one term from a column and the given ones.
func (w *writer) termAnd(term string, all []int64) {
	if len(all) == 0 {
		w.s("ARRAY[", term, "]")
		return
	}
	w.s("(ARRAY[", term, "] || ")
	w.terms(all)
	w.s(")")
}

// ofType tests the type of a row that was found by something else.
func (w *writer) ofType(r string, types []int16, and *conditions) {
	if len(types) == 0 {
		return
	}
	and.next()
	w.s(r, ".typ + 0 = ANY (")
	w.p(types)
	w.s("::smallint[])")
}

func (w *writer) not(p *pred) {
	if p.not {
		w.s("NOT ")
	}
}

// matching writes a FROM item and its conditions that make r the rows of
// resource which match c.
func (w *writer) matching(r string, c *conj, types []int16) {
	ordered, chains := 0, 0
	for i := range c.preds {
		switch p := &c.preds[i]; {
		case p.isChain(), p.isHas():
			chains++
		case p.isOrdered() && !p.hasUpdated():
			ordered++
		}
	}
	if ordered+chains == 0 {
		w.rows(r, c, types, -1, c)
		return
	}
	q := "q" + w.next()
	w.s("(")
	w.set(c, types)
	w.s(") ", q, " CROSS JOIN LATERAL (SELECT * FROM resource ", r, " WHERE ", r, ".rid = ", q, ".rid OFFSET 0) ", r)
}

// rids writes a SELECT of the rid of every resource for which one of the matches
// holds; a rid may come twice.
func (w *writer) rids(any []Match, types []int16) {
	for i, m := range any {
		if i > 0 {
			w.s(" UNION ALL ")
		}
		switch m := m.(type) {
		case Dates:
			w.dateRIDs(m.Keys, []Dates{m})
		case dateRange:
			w.dateRIDs(m.Keys, m.bounds)
		case Numbers:
			w.numberRIDs(&m)
		case NumberPair:
			w.pairRIDs(&m)
		case Quantities:
			w.quantityRIDs(&m)
		case Strings:
			w.stringRIDs(&m)
		default:
			c := conjoin([]Clause{{Any: []Match{m}}})
			w.s("SELECT rid FROM (")
			w.set(&c, types)
			w.s(") v")
		}
	}
}
