package cache

import (
	"cmp"
	"slices"
	"time"

	"kiln/server/search/cache/bitmap"
	"kiln/server/search/match"
)

// Comparison is a comparison that a column answers.
type Comparison struct {
	Column ColumnKey
	Match  match.Match
}

// JoinDateRanges joins the comparisons with the same date column: `_lastUpdated=ge…` and `_lastUpdated=lt…` are one range
// of the column.
func JoinDateRanges(list []Comparison) []Comparison {
	out := list[:0:0]
	for _, c := range list {
		i := slices.IndexFunc(out, func(o Comparison) bool { return o.Column == c.Column && c.Column.Kind == Dates })
		if i < 0 {
			out = append(out, c)
			continue
		}
		bounds := append(slices.Clone(match.DateBoundsOf(out[i].Match)), match.DateBoundsOf(c.Match)...)
		out[i].Match = match.DateRange{Keys: c.Column.List(), Bounds: bounds}
	}
	return out
}

// Question is a search of one type: by clauses, or by Links and further clauses.
type Question struct {
	Type    int16
	Name    string         // of the type
	Clauses []match.Clause // without Links
	Whole   Key            // of Clauses
	Columns []Comparison   // those that are comparisons
	Others  []match.Clause // the others
	Rest    Key            // of Others, where there are some
	Terms   *Terms         // the conditions of Others; nil if they contain more than terms
	Links   []Link
	Beside  *Question // what must hold beside Links, without a page; nil where nothing does
	Page    Page      // Limit 0 asks for the total
	// Exactly asks for the total in the very state that changes are read in: it stands
	// beside rows that the same statement has found.
	Exactly bool
}

// Answer is the result of a question in a state.
type Answer struct {
	Total int64
	RIDs  []int64
	// Places are the places of RIDs, if the page has an Order.
	Places   []Place
	Position // from where the changes are read that settle the answer

	question   *Question
	generation int
	version    int
	stepped    int         // Memory.stepped
	members    *bitmap.Set // nil where they are remembered
	found      [][]int64   // the refs that each link has found
}

// FindAnswer answers a question in the state of the cache; false if it cannot.
func (m *Memory) FindAnswer(q *Question) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked, m.unasked = m.now(), false
	if m.state == nil || m.lags {
		return Answer{}, false
	}
	if m.asked.Sub(m.at) > followedFor {
		m.forget()
		return Answer{}, false
	}
	a, ok := m.answer(q)
	if ok {
		m.hits++
		a.Position = m.position()
	}
	return a, ok
}

// RenewAnswer returns an answer in the present state of the cache; false if FindAnswer must be called again.
func (m *Memory) RenewAnswer(a Answer) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil || m.lags || m.generation != a.generation {
		return Answer{}, false
	}
	if m.version(a.question) != a.version {
		var ok bool
		if a, ok = m.again(&a); !ok {
			return Answer{}, false
		}
	}
	a.Position = m.position()
	return a, true
}

func (m *Memory) answer(q *Question) (Answer, bool) {
	members, found, own, ok := m.members(q)
	if !ok {
		return Answer{}, false
	}
	return m.answerOf(q, members, found, own)
}

// again answers the question of a, of the present generation. Later changes are applied to a's own members, if it has
// any.
func (m *Memory) again(a *Answer) (Answer, bool) {
	gone := m.stepped - len(m.steps)
	if a.members == nil || a.stepped < gone {
		return m.answer(a.question)
	}
	for _, step := range m.steps[a.stepped-gone:] {
		for rid, r := range step.changed {
			n, ok := number(rid)
			typ := int16(rid >> 48)
			if a.question.asksOthers(typ) || typ == a.question.Type && (!ok || !a.apply(n, r)) {
				return m.answer(a.question)
			}
		}
	}
	return m.answerOf(a.question, a.members, a.found, true)
}

// apply applies the present resource to the members; false if the cache cannot decide.
func (a *Answer) apply(n uint32, r *match.Resource) bool {
	q := a.question
	if len(q.Links) == 0 {
		s := set{clauses: q.Clauses, members: a.members}
		return s.apply(n, r)
	}
	if r == nil || !q.linkedTo(a.found, r) {
		a.members.Remove(n)
		return true
	}
	s := set{members: a.members}
	if q.Beside != nil {
		s.clauses = q.Beside.Clauses
	}
	return s.apply(n, r)
}

// answerOf returns the answer with the resources of members; nil members mean those of the question's one comparison. Own
// members belong to no cached set.
func (m *Memory) answerOf(q *Question, members *bitmap.Set, found [][]int64, own bool) (Answer, bool) {
	a := Answer{question: q, generation: m.generation, version: m.version(q), stepped: m.stepped, found: found}
	ordered := q.Page.Order != nil && q.Page.Limit > 0
	if ordered && members == nil {
		members, own = m.matches(m.compared(q.Columns[0])), true
	}
	if own {
		a.members = members
	}
	var ns []uint32
	switch {
	case ordered:
		order := m.use(m.columns[q.Page.Order.Column])
		if order == nil {
			return Answer{}, false
		}
		a.Total, a.Places = int64(members.Len()), order.column.pageInOrder(members, &q.Page)
		for _, at := range a.Places {
			ns = append(ns, at.N)
		}
	case members != nil:
		a.Total, ns = int64(members.Len()), pageOf(members, q.Page)
	default:
		var total int
		total, ns = pageOfColumn(m.compared(q.Columns[0]), q.Page)
		a.Total = int64(total)
	}
	for _, n := range ns {
		a.RIDs = append(a.RIDs, int64(q.Type)<<48|int64(n))
	}
	return a, true
}

// members returns the matching resources; nil if they are those of one comparison alone, whose column yields the page
// without testing each. The result may be a cached set, which must not be changed, unless own is true. found are the
// results of links. ok is false if the cache cannot decide.
func (m *Memory) members(q *Question) (members *bitmap.Set, found [][]int64, own, ok bool) {
	if len(q.Links) > 0 {
		members, found, ok = m.linked(q)
		return members, found, true, ok
	}
	if s := m.use(m.sets[q.Whole]); s != nil {
		return s.set.members, nil, false, true
	}
	if len(q.Columns) == 0 {
		members, own = m.byTerms(q)
		return members, nil, own, members != nil
	}
	for _, c := range q.Columns {
		if m.use(m.columns[c.Column]) == nil {
			return nil, nil, false, false
		}
	}
	var rest *bitmap.Set
	if len(q.Others) > 0 {
		if s := m.use(m.sets[q.Rest]); s != nil {
			rest = s.set.members
		} else if rest, _ = m.byTerms(q); rest == nil {
			return nil, nil, false, false
		}
	}
	if rest == nil && len(q.Columns) == 1 {
		return nil, nil, false, true
	}
	parts := make([][]compared, len(q.Columns))
	for i, c := range q.Columns {
		parts[i] = m.compared(c)
	}
	return m.intersection(q, rest, parts), nil, true, true
}

// compared is a comparison with a column that is remembered.
func (m *Memory) compared(c Comparison) []compared {
	return m.columns[c.Column].column.compare(c.Match)
}

// expensiveIntersection is the number of tests from which on an intersection is cached. Following some hundred changes takes as
// long as computing a cheaper one again.
const expensiveIntersection = 20_000

// intersection returns the resources of rest, nil for all, for which all comparisons hold. An expensive one that a search has
// asked for before is cached as a set.
func (m *Memory) intersection(q *Question, rest *bitmap.Set, parts [][]compared) *bitmap.Set {
	reach := func(part []compared) (n int) {
		for i := range part {
			n += part[i].reach()
		}
		return n
	}
	slices.SortFunc(parts, func(a, b []compared) int { return cmp.Compare(reach(a), reach(b)) })
	begin := time.Now()
	looks := 0
	out := rest
	for _, part := range parts {
		n := reach(part)
		if out != nil && out.Len() < n/looksForEntry {
			looks += out.Len()
			out = among(out, part)
			continue
		}
		looks += n
		if d := m.denseMatches(part); out != nil {
			out = d.Intersection(out)
		} else {
			out = d.Set()
		}
	}
	if looks >= expensiveIntersection {
		m.keepExpensive(q, out, time.Since(begin))
	}
	return out
}

// among is the resources of a set for which a comparison holds.
func among(set *bitmap.Set, part []compared) *bitmap.Set {
	out := new(bitmap.Set)
	for n := range set.All(0) {
		if slices.ContainsFunc(part, func(c compared) bool { return c.has(n) }) {
			out.Add(n)
		}
	}
	return out
}

// matches is the resources for which a comparison holds.
func (m *Memory) matches(part []compared) *bitmap.Set { return m.denseMatches(part).Set() }

// denseMatches is matches until the next of them.
func (m *Memory) denseMatches(part []compared) *bitmap.Dense {
	d := &m.dense[0]
	*d = (*d)[:0]
	for i := range part {
		m.section(&part[i])
		part[i].collect(d, &m.dense[1])
	}
	return d
}

// section makes the sections that a part of a column should have, where there is room for them or something is less
// useful than the column.
func (m *Memory) section(c *compared) {
	of, now := m.columns[c.column.key], m.now()
	if of == nil || of.column != c.column || now.Sub(c.crowded) < crowdedFor {
		return
	}
	bytes := c.newSectionsBytes()
	if bytes == 0 {
		return
	}
	if !m.makeRoom(bytes, of.score(now)) {
		c.crowded = now
		return
	}
	m.bytes -= c.sectionsBytes()
	c.setSections()
	m.bytes += c.sectionsBytes()
}

// crowdedFor is how long no sections are made where there was no room for them.
const crowdedFor = 10 * time.Second

// keepExpensive caches the members of a question that a search has asked for before.
func (m *Memory) keepExpensive(q *Question, members *bitmap.Set, cost time.Duration) {
	if !m.wants(q.Whole, false) {
		return
	}
	members = members.Clone()
	s := &item{set: &set{clauses: q.Clauses, members: members}, typ: q.Type, cost: cost, alone: cost, found: members.Len(), used: m.now(), uses: 1}
	if m.makeRoom(s.bytes(), s.score(m.now())) {
		m.keep(keyed{s, q.Whole})
	}
	delete(m.wanted, q.Whole)
}
