package search

import (
	"slices"
	"strconv"

	"kiln/server/fhir"
)

// Env is what a statement depends on beside the query.
type Env struct {
	// Type returns the number of a resource type, false for one that has never
	// been stored.
	Type func(typ string) (int16, bool)
	// Units are the units in use, needed when Query.NeedsUnits.
	Units []Unit
}

// Unit is a unit that a stored quantity has.
type Unit struct {
	ID                 int64
	System, Code, Unit string
}

// Statement is SQL with the values of its parameters.
type Statement struct {
	SQL  string
	Args []any
}

// Plan is a compiled query: the statements that answer it. It is made for one
// page and not changed.
type Plan struct {
	q     *Query
	env   *Env
	where conj
	types []int16 // numbers of q.Types; nil is every type

	// Empty says that nothing can match and nothing needs to be asked.
	Empty bool
	// Drivers are the ways to find candidates, in the order to try them.
	Drivers []Driver
}

// Driver is one way to find candidates: by terms, references and ids together, or
// by one ordered parameter.
type Driver struct {
	Name string // for explanations
	// pred is the index in conj.preds of the ordered parameter; -1 drives by
	// what resource_terms and resource_ref can find.
	pred int
	// probeChains makes chains probe instead of drive.
	probeChains bool
}

// conj is a conjunction of clauses, sorted by how they are asked.
type conj struct {
	all   []int64   // has every term
	any   [][]int64 // has one of each
	none  []int64   // has none
	ids   []int64   // ref is one of these, when byID
	byID  bool
	preds []pred
	never bool
}

// pred is a clause that is neither terms nor ids.
type pred struct {
	any []Match
	not bool
}

// form returns the only match of a positive clause, nil otherwise.
func (p *pred) only() Match {
	if p.not || len(p.any) != 1 {
		return nil
	}
	return p.any[0]
}

// ordered reports whether the clause can drive from an ordered table.
func (p *pred) ordered() bool {
	if p.not {
		return false
	}
	for _, m := range p.any {
		switch m.(type) {
		case Dates, Numbers, Quantities, Strings:
		default:
			return false
		}
	}
	return true
}

// Compile makes the plan of a query.
func Compile(q *Query, env *Env) *Plan {
	p := &Plan{q: q, env: env}
	for _, t := range q.Types {
		if n, ok := env.Type(t); ok {
			p.types = append(p.types, n)
		}
	}
	p.where = conjoin(q.Clauses)
	if len(q.Types) > 0 && len(p.types) == 0 || p.where.never {
		p.Empty = true
		return p
	}
	p.drivers()
	return p
}

// conjoin sorts clauses by how they are asked.
func conjoin(clauses []Clause) conj {
	var c conj
	c.add(clauses)
	slices.Sort(c.all)
	c.all = slices.Compact(c.all)
	slices.Sort(c.none)
	c.none = slices.Compact(c.none)
	return c
}

func (c *conj) add(clauses []Clause) {
	for i := range clauses {
		clause := &clauses[i]
		if len(clause.Any) != 1 {
			c.preds = append(c.preds, pred{clause.Any, clause.Not})
			continue
		}
		switch m := clause.Any[0].(type) {
		case Terms:
			switch {
			case clause.Not:
				c.none = append(c.none, m.Values...)
			case len(m.Values) == 0:
				c.never = true
			case len(m.Values) == 1:
				c.all = append(c.all, m.Values[0])
			default:
				c.any = append(c.any, m.Values)
			}
		case IDs:
			if clause.Not {
				c.preds = append(c.preds, pred{clause.Any, true})
				continue
			}
			if c.byID {
				c.ids = slices.DeleteFunc(c.ids, func(ref int64) bool { return !slices.Contains(m.Refs, ref) })
			} else {
				c.ids, c.byID = slices.Clone(m.Refs), true
			}
			c.never = c.never || len(c.ids) == 0
		case All:
			if clause.Not {
				c.preds = append(c.preds, pred{clause.Any, true})
				continue
			}
			c.add(m.Clauses)
		case Dates:
			if clause.Not || !c.narrowDates(m) {
				c.preds = append(c.preds, pred{clause.Any, clause.Not})
			}
		default:
			c.preds = append(c.preds, pred{clause.Any, clause.Not})
		}
	}
}

// narrowDates joins a lower and an upper bound on the same element, which has at
// most one entry: `date=ge2020&date=lt2021` is one range of the index.
func (c *conj) narrowDates(m Dates) bool {
	if !m.Single || len(m.Keys) != 1 {
		return false
	}
	for i := range c.preds {
		if o, ok := c.preds[i].only().(Dates); ok && o.Single && len(o.Keys) == 1 && o.Keys[0] == m.Keys[0] {
			c.preds[i].any = []Match{dateRange{Keys: m.Keys, bounds: []Dates{o, m}}}
			return true
		}
		if o, ok := c.preds[i].only().(dateRange); ok && o.Keys[0] == m.Keys[0] {
			o.bounds = append(slices.Clone(o.bounds), m)
			c.preds[i].any = []Match{o}
			return true
		}
	}
	return false
}

// dateRange is several Dates about the one entry of an element.
type dateRange struct {
	Keys   []fhir.Key
	bounds []Dates
}

func (dateRange) match() {}

// drivers decides how candidates are found.
func (p *Plan) drivers() {
	c := &p.where
	if c.byID {
		p.Drivers = []Driver{{Name: "ids", pred: -1, probeChains: true}}
		return
	}
	chains := 0
	for i := range c.preds {
		switch c.preds[i].only().(type) {
		case Chain, Has, Texts:
			chains++
		}
	}
	terms := len(c.all) + len(c.any)
	if chains > 0 {
		p.Drivers = append(p.Drivers, Driver{Name: "terms and chains", pred: -1})
	}
	if terms > 0 {
		p.Drivers = append(p.Drivers, Driver{Name: "terms", pred: -1, probeChains: true})
	}
	// Ordered parameters, those that ask for a point before those that ask for a
	// half of the axis.
	for _, wide := range []bool{false, true} {
		for i := range c.preds {
			if c.preds[i].drives() && c.preds[i].wide() == wide {
				p.Drivers = append(p.Drivers, Driver{Name: "ordered", pred: i, probeChains: true})
			}
		}
	}
}

func (p *pred) drives() bool {
	if p.not {
		return false
	}
	for _, m := range p.any {
		switch m.(type) {
		case Dates, dateRange, Numbers, Quantities, Strings, Updated:
		default:
			return false
		}
	}
	return true
}

func (p *pred) wide() bool {
	for _, m := range p.any {
		switch m := m.(type) {
		case Dates:
			if m.Op != EQ && m.Op != AP {
				return true
			}
		case dateRange:
			return len(m.bounds) < 2
		case Numbers:
			if m.Op != EQ && m.Op != AP {
				return true
			}
		case Quantities:
			if m.Op != EQ && m.Op != AP {
				return true
			}
		case Updated:
			return true
		}
	}
	return false
}

// Limit bounds what one driver may find: a search that stays below is answered
// from its candidates.
const Limit = 2001

// writer builds one statement.
type writer struct {
	env   *Env
	b     []byte
	args  []any
	alias int
}

func (w *writer) s(parts ...string) {
	for _, s := range parts {
		w.b = append(w.b, s...)
	}
}

// p writes a parameter.
func (w *writer) p(v any) {
	w.args = append(w.args, v)
	w.b = append(w.b, '$')
	w.b = strconv.AppendInt(w.b, int64(len(w.args)), 10)
}

// param writes a parameter into a string, for use in several places.
func (w *writer) param(v any) string {
	w.args = append(w.args, v)
	return "$" + strconv.Itoa(len(w.args))
}

func (w *writer) terms(t []int64) {
	w.p(t)
	w.s("::bigint[]")
}

func (w *writer) next() string {
	w.alias++
	return strconv.Itoa(w.alias)
}

func (w *writer) statement() Statement { return Statement{string(w.b), w.args} }

// keys writes `x.key = $1`, or ANY of several.
func (w *writer) keys(x string, keys []fhir.Key) {
	w.s(x, ".key = ")
	if len(keys) == 1 {
		w.p(int64(keys[0]))
		w.s("::bigint")
		return
	}
	w.s("ANY (")
	w.terms(int64s(keys))
	w.s(")")
}

func int64s(keys []fhir.Key) []int64 {
	out := make([]int64, len(keys))
	for i, k := range keys {
		out[i] = int64(k)
	}
	return out
}

// ridRange writes the range of surrogates of a type.
func (w *writer) ridRange(r string, typ int16) {
	w.s(r, ".rid >= ")
	w.p(int64(typ) << 48)
	w.s("::bigint AND ", r, ".rid < ")
	w.p((int64(typ) + 1) << 48)
	w.s("::bigint")
}

// typed writes the restriction to types where no term implies it. nil is every
// type.
func (w *writer) typed(r string, types []int16) bool {
	switch len(types) {
	case 0:
		return false
	case 1:
		w.ridRange(r, types[0])
	default:
		w.s(r, ".typ = ANY (")
		w.p(types)
		w.s("::smallint[])")
	}
	return true
}

// impliesType reports whether the conjunction has something that only resources
// of the types searched can have: keys belong to a type.
func (c *conj) impliesType() bool {
	if c.byID || len(c.all)+len(c.any) > 0 {
		return true
	}
	for i := range c.preds {
		if p := &c.preds[i]; !p.not && !p.hasUpdated() {
			return true
		}
	}
	return false
}

func (p *pred) hasUpdated() bool {
	return slices.ContainsFunc(p.any, func(m Match) bool {
		switch m.(type) {
		case Updated, IDs, Has:
			return true
		}
		return false
	})
}

// driving writes the conditions of c on r so that indexes find the rows.
// Ordered clauses become `rid IN (…)`, chains `terms && ARRAY(…)`.
func (w *writer) driving(r string, c *conj, types []int16) {
	and := w.conditions()
	if c.never {
		and()
		w.s("false")
		return
	}
	if c.byID {
		and()
		w.s(r, ".ref = ANY (")
		w.terms(c.ids)
		w.s(")")
	}
	if len(c.all) > 0 {
		and()
		w.s(r, ".terms @> ")
		w.terms(c.all)
	}
	for _, any := range c.any {
		and()
		w.s(r, ".terms && ")
		w.terms(any)
	}
	if !c.impliesType() || c.byID && len(types) > 0 {
		if len(types) > 0 {
			and()
			w.typed(r, types)
		}
	}
	if len(c.none) > 0 {
		and()
		w.s("NOT (", r, ".terms && ")
		w.terms(c.none)
		w.s(")")
	}
	for i := range c.preds {
		and()
		w.drivingPred(r, &c.preds[i])
	}
	if and() { // nothing at all was asked
		w.s("true")
	}
}

// conditions returns a function that writes AND before all but the first use; it
// reports whether this was the first.
func (w *writer) conditions() func() bool {
	first := true
	return func() bool {
		if first {
			first = false
			return true
		}
		w.s(" AND ")
		return false
	}
}

func (w *writer) drivingPred(r string, p *pred) {
	if p.not {
		w.s("NOT ")
		w.probe(r, p.any)
		return
	}
	if p.drives() && !p.hasUpdated() {
		w.s(r, ".rid IN (")
		w.rids(p.any)
		w.s(")")
		return
	}
	switch m := p.only().(type) {
	case Chain:
		w.s(r, ".terms && ARRAY(")
		w.chainTerms(&m, 0)
		w.s(")")
		return
	case Has:
		w.s(r, ".ref IN (")
		w.hasRefs(&m, 0)
		w.s(")")
		return
	}
	if chainsOnly(p.any) && !p.not {
		w.s(r, ".terms && ARRAY(")
		w.allChainTerms(p.any, 0)
		w.s(")")
		return
	}
	w.probe(r, p.any)
}

// chainsOnly reports whether every match is found by terms that a sub-select
// gives, so that all make one array.
func chainsOnly(any []Match) bool {
	for _, m := range any {
		switch m.(type) {
		case Chain, Texts, Terms:
		default:
			return false
		}
	}
	return len(any) > 0
}

// allChainTerms writes a SELECT of the terms that any of the matches asks for.
func (w *writer) allChainTerms(any []Match, limit int) {
	if limit > 0 {
		w.s("SELECT term FROM (")
	}
	for i, m := range any {
		if i > 0 {
			w.s(" UNION ALL ")
		}
		switch m := m.(type) {
		case Chain:
			w.chainTerms(&m, 0)
		case Texts:
			w.textTerms(&m)
		case Terms:
			w.s("SELECT unnest(")
			w.terms(m.Values)
			w.s(") AS term")
		}
	}
	if limit > 0 {
		w.s(") AS u LIMIT ", strconv.Itoa(limit))
	}
}

// rids writes a SELECT of the rid of every row that one of the ordered matches
// finds; a rid may come twice.
func (w *writer) rids(any []Match) {
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
		case Quantities:
			w.quantityRIDs(&m)
		case Strings:
			w.stringRIDs(&m)
		}
	}
}

// probing writes the conditions of c on a row r that is already known. skip is
// the index of a clause that needs no test, or -1. It reports whether it wrote
// anything.
func (w *writer) probing(r string, c *conj, and func() bool, skip int, skipTerms bool) {
	if !skipTerms {
		if c.byID {
			and()
			w.s("(", r, ".ref = ANY (")
			w.terms(c.ids)
			w.s(")) IS TRUE")
		}
		if len(c.all) > 0 {
			and()
			w.s("(", r, ".terms @> ")
			w.terms(c.all)
			w.s(") IS TRUE")
		}
		for _, any := range c.any {
			and()
			w.s("(", r, ".terms && ")
			w.terms(any)
			w.s(") IS TRUE")
		}
		if len(c.none) > 0 {
			and()
			w.s("NOT (", r, ".terms && ")
			w.terms(c.none)
			w.s(")")
		}
	}
	for i := range c.preds {
		if i == skip {
			continue
		}
		and()
		if c.preds[i].not {
			w.s("NOT ")
		}
		w.probe(r, c.preds[i].any)
	}
}

// probe writes one disjunction as a test of row r. `IS TRUE` keeps the planner
// from using an index for what is meant as a test, `OFFSET 0` from turning the
// test into a join.
func (w *writer) probe(r string, any []Match) {
	w.s("(")
	for i, m := range any {
		if i > 0 {
			w.s(" OR ")
		}
		switch m := m.(type) {
		case Terms:
			w.s("(", r, ".terms && ")
			w.terms(m.Values)
			w.s(") IS TRUE")
		case IDs:
			w.s("(", r, ".ref = ANY (")
			w.terms(m.Refs)
			w.s(")) IS TRUE")
		case Updated:
			w.updated(r, &m)
		case Dates:
			w.probeDates(r, m.Keys, []Dates{m})
		case dateRange:
			w.probeDates(r, m.Keys, m.bounds)
		case Numbers:
			w.probeNumbers(r, &m)
		case Quantities:
			w.probeQuantities(r, &m)
		case Strings:
			w.probeStrings(r, &m)
		case Texts:
			w.s("(", r, ".terms && ARRAY(")
			w.textTerms(&m)
			w.s(")) IS TRUE")
		case Chain:
			w.probeChain(r, &m)
		case Has:
			w.probeHas(r, &m)
		case All:
			c := conjoin(m.Clauses)
			w.s("(")
			and := w.conditions()
			if c.never {
				and()
				w.s("false")
			}
			w.probing(r, &c, and, -1, false)
			if and() {
				w.s("true")
			}
			w.s(")")
		}
	}
	if len(any) == 0 {
		w.s("false")
	}
	w.s(")")
}

// NeedsUnits reports whether Compile needs Env.Units.
func (q *Query) NeedsUnits() bool { return needUnits(q.Clauses) }

func needUnits(clauses []Clause) bool {
	for _, c := range clauses {
		for _, m := range c.Any {
			switch m := m.(type) {
			case Quantities:
				if m.System != "" || m.Code != "" {
					return true
				}
			case Chain:
				if needUnits(m.Clauses) {
					return true
				}
			case Has:
				if needUnits(m.Clauses) {
					return true
				}
			case All:
				if needUnits(m.Clauses) {
					return true
				}
			}
		}
	}
	return false
}
