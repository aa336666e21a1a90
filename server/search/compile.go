package search

import (
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/ucum"

	"github.com/cockroachdb/apd/v3"
)

// Env is what a statement depends on beside the query. It serves one search.
type Env struct {
	// Type returns the number of a resource type, false for one that has never
	// been stored.
	Type func(typ string) (int16, bool)
	// Systems returns the systems in which a code has rows of a joint composite, by
	// fhir.CompositeKey of the code.
	Systems func(code fhir.Key) []string
	// Units are the units in use, needed when Query.NeedsUnits.
	Units     []Unit
	converted map[*apd.Decimal]unitRanges // by the value of a quantity

	// Limit bounds what a driver may find, 0 means DefaultLimit: a search that
	// stays below is answered from its candidates.
	Limit int
}

// Unit is a unit that a stored quantity has.
type Unit struct {
	ID                 int64
	System, Code, Unit string
	measure            *ucum.Unit // nil where it is not UCUM's
}

// NewUnit makes a Unit.
func NewUnit(id int64, system, code, unit string) Unit {
	u := Unit{ID: id, System: system, Code: code, Unit: unit}
	if system == ucumSystem {
		u.measure = measure(code)
	}
	return u
}

// Statement is SQL with the values of its parameters.
type Statement struct {
	SQL  string
	Args []any
}

// Beside puts the expressions of another statement before the columns of every
// row of st, and gives one row of nulls where st has none. The rows of st keep their
// order: there is one row to join them with.
func (st Statement) Beside(more Statement) Statement {
	return Statement{
		SQL:  "SELECT v.*, s.* FROM (SELECT " + shiftParams(more.SQL, len(st.Args)) + ") v LEFT JOIN (" + st.SQL + ") s ON true",
		Args: append(st.Args[:len(st.Args):len(st.Args)], more.Args...),
	}
}

// Then is the value of st, which has one column, as an expression before those of
// another statement.
func (st Statement) Then(more Statement) Statement {
	return Statement{
		SQL:  "(" + st.SQL + "), " + shiftParams(more.SQL, len(st.Args)),
		Args: append(st.Args[:len(st.Args):len(st.Args)], more.Args...),
	}
}

// shiftParams adds n to the number of every parameter.
func shiftParams(sql string, n int) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(sql, "$")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		end := 0
		for end < len(after) && after[end] >= '0' && after[end] <= '9' {
			end++
		}
		number, err := strconv.Atoi(after[:end])
		if err != nil {
			panic("a dollar sign that is no parameter: " + sql)
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(number + n))
		sql = after[end:]
	}
}

// Plan is a compiled query: the statements that answer it. It is made for one
// page and not changed.
type Plan struct {
	q       *Query
	clauses []Clause // q.Clauses without Coded
	env     *Env
	where   conj
	types   []int16 // numbers of q.Types; nil is every type

	// Empty says that nothing can match and nothing needs to be asked.
	Empty bool
	// Limit is the number of rows that a driver must stay below.
	Limit int
	// Drivers are the ways to find candidates, in the order to try them.
	Drivers []Driver
}

// Driver is one way to find candidates: by terms or ids, by a chain, or by one
// ordered parameter.
type Driver struct {
	Name string // for explanations
	pred int    // index of the clause in conj.preds; -1 is terms and ids
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

// Compile makes the plan of a query.
func Compile(q *Query, env *Env) *Plan {
	p := &Plan{q: q, env: env, Limit: env.Limit}
	if p.Limit == 0 {
		p.Limit = DefaultLimit
	}
	for _, t := range q.Types {
		if n, ok := env.Type(t); ok {
			p.types = append(p.types, n)
		}
	}
	p.clauses = env.resolve(q.Clauses)
	p.where = conjoin(p.clauses)
	if len(q.Types) > 0 && len(p.types) == 0 || p.where.never {
		p.Empty = true
		return p
	}
	p.drivers()
	if len(p.where.preds) == 1 && len(q.Sort) == 0 && p.Surrogates() {
		p.Limit *= entriesForProbe
	}
	return p
}

// entriesForProbe is how many more rows a driver may find where none of them needs
// a test.
const entriesForProbe = 5

// Env is what the plan was compiled with.
func (p *Plan) Env() *Env { return p.env }

// maxAny is the number of terms up to which one OR is asked of the index: GIN
// spends their number times the rows found. More are looked up one by one, like
// those of a chain.
const maxAny = 64

// ProbeCost is about how much dearer than usual it is to test one resource.
func (p *Plan) ProbeCost() int64 {
	cost := int64(1)
	for i := range p.where.preds {
		for _, m := range p.where.preds[i].any {
			if t, ok := m.(Terms); ok {
				cost += int64(len(t.Values) / 50)
			}
		}
	}
	return cost
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
			case len(m.Values) > maxAny:
				c.preds = append(c.preds, pred{clause.Any, false})
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
		p.Drivers = []Driver{{Name: "ids", pred: -1}}
		return
	}
	for i := range c.preds {
		if c.preds[i].isChain() || c.preds[i].isHas() {
			p.Drivers = append(p.Drivers, Driver{Name: "chain", pred: i})
		}
	}
	if len(c.all)+len(c.any) > 0 {
		p.Drivers = append(p.Drivers, Driver{Name: "terms", pred: -1})
	}
	// Ordered parameters, those that ask for a point before those that ask for a
	// half of the axis.
	for _, wide := range []bool{false, true} {
		for i := range c.preds {
			if c.preds[i].isOrdered() && c.preds[i].wide() == wide {
				p.Drivers = append(p.Drivers, Driver{Name: "ordered", pred: i})
			}
		}
	}
}

// Every positive clause can drive: alone by an ordered table, by the terms of a
// chain, or by the union of what its values find.

// isChain reports whether every value is found by terms that a sub-select gives.
func (p *pred) isChain() bool { return !p.not && chainsOnly(p.any) }

// isHas reports whether the clause is `_has`.
func (p *pred) isHas() bool {
	_, ok := p.only().(Has)
	return ok
}

// isOrdered reports whether the clause drives by surrogates.
func (p *pred) isOrdered() bool { return !p.not && !p.isChain() && !p.isHas() && !p.isTypes() }

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

// DefaultLimit keeps the work on candidates within a few milliseconds.
const DefaultLimit = 2001

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
	w.anyKey(keys)
}

func (w *writer) anyKey(keys []fhir.Key) {
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

// hasUpdated reports whether the clause is `_lastUpdated`.
func (p *pred) hasUpdated() bool {
	return slices.ContainsFunc(p.any, func(m Match) bool { _, ok := m.(Updated); return ok })
}

// everyType writes the types even where they are all, because the index of
// last_updated begins with them. A type may have been stored a moment ago by
// another server, so all of them are read.
func (w *writer) everyType(r string, types []int16) {
	w.s(r, ".typ = ANY (")
	if len(types) == 0 {
		w.s("ARRAY(SELECT typ FROM resource_type))")
		return
	}
	w.p(types)
	w.s("::smallint[])")
}

// found writes the conditions of c on r that indexes of resource answer: terms and
// ids; and the type where neither says it.
func (w *writer) found(r string, c *conj, types []int16, and *conditions) {
	if c.never {
		and.next()
		w.s("false")
	}
	if c.byID {
		and.next()
		w.s(r, ".ref = ANY (")
		w.terms(c.ids)
		w.s(")")
		w.probing(r, &conj{all: c.all, any: c.any}, and, -1)
	} else {
		if len(c.all) > 0 {
			and.next()
			w.s(r, ".terms @> ")
			w.terms(c.all)
		}
		for _, any := range c.any {
			and.next()
			w.s(r, ".terms && ")
			w.terms(any)
		}
		updated := slices.ContainsFunc(c.preds, func(p pred) bool { return p.hasUpdated() })
		switch {
		case len(c.all)+len(c.any) > 0:
		case updated:
			and.next()
			w.everyType(r, types)
		case len(types) > 0:
			and.next()
			w.typed(r, types)
		}
	}
	w.probing(r, &conj{none: c.none}, and, -1)
}

// conditions joins what is written after each next with AND; before the first
// stands lead.
type conditions struct {
	w    *writer
	lead string
	any  bool // something was written
}

func (c *conditions) next() {
	if c.any {
		c.w.s(" AND ")
	} else {
		c.w.s(c.lead)
	}
	c.any = true
}

// chainsOnly reports whether every match is found by terms that a sub-select
// gives, so that all make one array.
func chainsOnly(any []Match) bool {
	for _, m := range any {
		switch m.(type) {
		case Chain, Texts, Expanded, Terms:
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
		case Expanded:
			w.expandedTerms(&m)
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

// probing writes the conditions of c on a row r that is already known. skip is
// the index of a clause that needs no test, or -1.
func (w *writer) probing(r string, c *conj, and *conditions, skip int) {
	if c.byID {
		and.next()
		w.s("(", r, ".ref = ANY (")
		w.terms(c.ids)
		w.s(")) IS TRUE")
	}
	if len(c.all) > 0 {
		and.next()
		w.s("(", r, ".terms @> ")
		w.terms(c.all)
		w.s(") IS TRUE")
	}
	for _, any := range c.any {
		and.next()
		w.s("(", r, ".terms && ")
		w.terms(any)
		w.s(") IS TRUE")
	}
	if len(c.none) > 0 {
		and.next()
		w.s("NOT (", r, ".terms && ")
		w.terms(c.none)
		w.s(")")
	}
	for i := range c.preds {
		if i == skip {
			continue
		}
		and.next()
		w.not(&c.preds[i])
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
		case OfTypes:
			w.probeTypes(r, &m)
		case Updated:
			w.updated(r, &m)
		case Dates:
			w.probeDates(r, m.Keys, []Dates{m})
		case dateRange:
			w.probeDates(r, m.Keys, m.bounds)
		case Numbers:
			w.probeNumbers(r, &m)
		case NumberPair:
			w.probePair(r, &m)
		case Quantities:
			w.probeQuantities(r, &m)
		case Strings:
			w.probeStrings(r, &m)
		case Texts:
			w.s("(", r, ".terms && ARRAY(")
			w.textTerms(&m)
			w.s(")) IS TRUE")
		case Expanded:
			w.probeExpanded(r, &m)
		case Chain:
			w.probeChain(r, &m)
		case Has:
			w.probeHas(r, &m)
		case All:
			c := conjoin(m.Clauses)
			w.s("(")
			and := &conditions{w: w}
			if c.never {
				and.next()
				w.s("false")
			}
			w.probing(r, &c, and, -1)
			if !and.any {
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

// resolve returns clauses with what stands for every Coded in its place.
func (e *Env) resolve(clauses []Clause) []Clause {
	if !contain(clauses, func(m Match) bool { _, ok := m.(Coded); return ok }) {
		return clauses
	}
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = slices.Clone(out[i].Any)
		for j, m := range out[i].Any {
			switch m := m.(type) {
			case Coded:
				out[i].Any[j] = e.keyed(m)
			case Chain:
				m.Clauses = e.resolve(m.Clauses)
				out[i].Any[j] = m
			case Has:
				m.Clauses = e.resolve(m.Clauses)
				out[i].Any[j] = m
			case All:
				out[i].Any[j] = All{e.resolve(m.Clauses)}
			}
		}
	}
	return out
}

// keyed is what m.Any says of the rows of the code in each of its systems.
func (e *Env) keyed(m Coded) Match {
	keys := []fhir.Key{}
	for _, system := range e.Systems(fhir.CompositeKey(m.Key, fhir.ValueCode(m.Code))) {
		keys = append(keys, fhir.CompositeKey(m.Key, fhir.ValueCoding(system, m.Code)))
	}
	switch any := m.Any.(type) {
	case Dates:
		any.Keys, any.Single = keys, any.Single && len(keys) == 1
		return any
	case Numbers:
		any.Keys, any.Single = keys, any.Single && len(keys) == 1
		return any
	case Quantities:
		any.Keys, any.Single = keys, any.Single && len(keys) == 1
		return any
	}
	return m.Any
}

// contain reports whether is holds for a match of clauses, at any depth.
func contain(clauses []Clause, is func(Match) bool) bool {
	return slices.ContainsFunc(clauses, func(c Clause) bool {
		return slices.ContainsFunc(c.Any, func(m Match) bool {
			switch m := m.(type) {
			case Chain:
				return contain(m.Clauses, is)
			case Has:
				return contain(m.Clauses, is)
			case All:
				return contain(m.Clauses, is)
			case Coded:
				return is(m) || is(m.Any)
			}
			return is(m)
		})
	})
}

// NeedsUnits reports whether Compile needs Env.Units.
func (q *Query) NeedsUnits() bool {
	return contain(q.Clauses, func(m Match) bool {
		q, ok := m.(Quantities)
		return ok && !q.anyUnit()
	})
}
