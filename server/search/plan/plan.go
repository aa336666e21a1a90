package plan

import (
	"kiln/server/search"
	"kiln/server/search/match"
)

// Plan is a compiled query: the statements that answer it. It is made for one
// page and not changed.
type Plan struct {
	q       *search.Query
	clauses []match.Clause // q.Clauses without match.Coded
	env     *match.Env
	where   match.Conjunction
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

// Compile makes the plan of a query.
func Compile(q *search.Query, env *match.Env) *Plan {
	p := &Plan{q: q, env: env, Limit: env.Limit}
	if p.Limit == 0 {
		p.Limit = DefaultLimit
	}
	for _, t := range q.Types {
		if n, ok := env.Type(t); ok {
			p.types = append(p.types, n)
		}
	}
	p.clauses = env.Resolve(q.Clauses)
	p.where = match.Conjoin(p.clauses)
	if len(q.Types) > 0 && len(p.types) == 0 || p.where.Never {
		p.Empty = true
		return p
	}
	p.drivers()
	if len(p.where.Preds) == 1 && len(q.Sort) == 0 && p.FindsBySurrogates() {
		p.Limit *= rangedFactor
	}
	return p
}

// rangedFactor is how many more rows a driver may find where none of them needs
// a test.
const rangedFactor = 5

// ProbeCost is about how much dearer than usual it is to test one resource.
func (p *Plan) ProbeCost() int64 {
	cost := int64(1)
	for i := range p.where.Preds {
		for _, m := range p.where.Preds[i].Any {
			if t, ok := m.(match.Terms); ok {
				cost += int64(len(t.Values) / 50)
			}
		}
	}
	return cost
}

// drivers decides how candidates are found.
func (p *Plan) drivers() {
	c := &p.where
	if c.ByID {
		p.Drivers = []Driver{{Name: "ids", pred: -1}}
		return
	}
	for i := range c.Preds {
		if c.Preds[i].ByTerms() || c.Preds[i].ByRefs() {
			p.Drivers = append(p.Drivers, Driver{Name: "chain", pred: i})
		}
	}
	if len(c.All)+len(c.Any) > 0 {
		p.Drivers = append(p.Drivers, Driver{Name: "terms", pred: -1})
	}
	// Ordered parameters, those that ask for a point before those that ask for a
	// half of the axis.
	for _, wide := range []bool{false, true} {
		for i := range c.Preds {
			if c.Preds[i].BySurrogates() && c.Preds[i].Wide() == wide {
				p.Drivers = append(p.Drivers, Driver{Name: "ordered", pred: i})
			}
		}
	}
}

// HasOneDriver reports whether the rows of the driver are exactly the matches.
func (p *Plan) HasOneDriver() bool {
	c := &p.where
	terms := len(c.All)+len(c.Any)+len(c.None) > 0 || c.ByID
	return len(p.Drivers) == 1 && (len(c.Preds) == 0 || len(c.Preds) == 1 && !terms && len(p.types) <= 1)
}

// DefaultLimit keeps the work on candidates within a few milliseconds.
const DefaultLimit = 2001

// writer writes the statements of a plan.
type writer struct{ *match.Writer }

func newWriter(e *match.Env) *writer { return &writer{match.NewWriter(e)} }

// FindsBySurrogates reports whether ordered tables alone decide the matches and their order. GatherMatches then reads the
// resources of the page only.
func (p *Plan) FindsBySurrogates() bool {
	for _, k := range p.q.Sort {
		if len(k.Keys) == 0 {
			return false
		}
	}
	return len(p.where.Preds) > 0 && p.where.OnlyRanged() && p.where.Preds[0].BySurrogates()
}
