package match

import "slices"

// Conjunction is clauses of which all must hold, sorted by how they are asked.
type Conjunction struct {
	All   []int64   // has every term
	Any   [][]int64 // has one of each
	None  []int64   // has none
	IDs   []int64   // ref is one of these, when ByID
	ByID  bool
	Preds []Predicate
	Never bool // nothing can match
}

// Predicate is a clause that is neither terms nor ids. Every positive one can drive:
// alone by an ordered table, by the terms of a chain, or by the union of what its
// values find.
type Predicate struct {
	Any []Match
	Not bool
}

// Conjoin sorts clauses by how they are asked.
func Conjoin(clauses []Clause) Conjunction {
	var c Conjunction
	c.add(clauses)
	slices.Sort(c.All)
	c.All = slices.Compact(c.All)
	slices.Sort(c.None)
	c.None = slices.Compact(c.None)
	return c
}

func (c *Conjunction) add(clauses []Clause) {
	for _, clause := range clauses {
		if len(clause.Any) == 1 {
			if m, ok := clause.Any[0].(joining); ok && m.join(c, clause.Not) {
				continue
			}
		}
		c.Preds = append(c.Preds, Predicate{clause.Any, clause.Not})
	}
}

// Empty reports whether there is no condition.
func (c *Conjunction) Empty() bool {
	return len(c.All)+len(c.Any)+len(c.None)+len(c.Preds) == 0 && !c.ByID && !c.Never
}

// OnlyRanged reports whether every clause can be tested with the surrogate alone.
func (c *Conjunction) OnlyRanged() bool {
	if len(c.All)+len(c.Any)+len(c.None) > 0 || c.ByID {
		return false
	}
	for i := range c.Preds {
		for _, m := range c.Preds[i].Any {
			if _, ok := m.(ranged); !ok {
				return false
			}
		}
	}
	return true
}

// Only returns the only match of a positive clause, nil otherwise.
func (p *Predicate) Only() Match {
	if p.Not || len(p.Any) != 1 {
		return nil
	}
	return p.Any[0]
}

// ByTerms reports whether every value is found by terms that a sub-select gives, so
// that all make one array.
func (p *Predicate) ByTerms() bool {
	for _, m := range p.Any {
		if _, ok := m.(byTerms); !ok {
			return false
		}
	}
	return !p.Not && len(p.Any) > 0
}

// ByRefs reports whether the clause is `_has`.
func (p *Predicate) ByRefs() bool {
	_, ok := p.Only().(Has)
	return ok
}

// BySurrogates reports whether the clause drives by surrogates.
func (p *Predicate) BySurrogates() bool {
	return !p.Not && !p.ByTerms() && !p.ByRefs() && !p.onlyTested()
}

// onlyTested reports whether the clause is tested, and finds no candidates.
func (p *Predicate) onlyTested() bool {
	for _, m := range p.Any {
		if t, ok := m.(tested); !ok || !t.tested() {
			return false
		}
	}
	return len(p.Any) > 0
}

// HasUpdated reports whether the clause is `_lastUpdated`, or has it as a part.
func (p *Predicate) HasUpdated() bool {
	return slices.ContainsFunc(p.Any, func(m Match) bool { _, ok := m.(Updated); return ok })
}

// Wide reports whether the clause asks for more than a point or a closed range.
func (p *Predicate) Wide() bool {
	return slices.ContainsFunc(p.Any, func(m Match) bool {
		o, ok := m.(interface{ wide() bool })
		return ok && o.wide()
	})
}

// Single reports whether finding the clause gives no rid twice.
func (p *Predicate) Single() bool {
	if len(p.Any) != 1 {
		return false
	}
	m, ok := p.Any[0].(interface{ single() bool })
	return ok && m.single()
}
