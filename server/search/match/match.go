// Package match owns the conditions of a search. There is one file for each kind of
// match. It writes SQL that finds the rows, writes SQL that tests one row, judges a
// resource in memory, and describes the match in words:
//
//	Terms      terms.go       hashed values: token, reference, uri, :exact, :missing
//	IDs        ids.go         _id
//	Updated    updated.go     _lastUpdated
//	Dates      dates.go       a date or period; DateRange, several bounds on one
//	Numbers    numbers.go     a number; NumberPair (numberpair.go), two that stand together
//	Quantities quantities.go  a number with a unit
//	Strings    strings.go     folded text, its start or any part
//	Texts      texts.go       display texts and uris, by the distinct texts there are
//	FullText   fulltext.go    words of the narrative, or of the whole resource
//	Expanded   expanded.go    the codes of a large value set
//	Chain      chain.go       a condition on a target of the resource
//	Has        has.go         a condition on a resource that refers to the resource
//	Named      named.go       references by canonical URL, in both directions
//	Hierarchy  hierarchy.go   a reference, :above and :below along partOf
//	Near       near.go        a position within a distance
//	Coded      coded.go       a code, in whatever system, with a value
//	Contained  contained.go   a condition on a contained resource
//	All        all.go         several clauses at once
//	OfTypes    oftypes.go     a resource type
//
// Clauses are ANDed in a Conjunction; find.go writes it as a SELECT and test.go as a
// condition. Resource and Clause.Holds (holds.go) judge one resource without a
// database. Packages plan and strategy decide which statement is run.
//
// # Rows found, and rows tested
//
// Every clause can be asked in two ways. To find rows, through an index:
//
//	Terms       r.terms @> $1            GIN resource_terms; clauses ANDed in one scan,
//	            r.terms && $1            values ORed up to 64
//	Dates, …    rid from index_date      b-tree (key, low, high, rid), (key, unit, low, rid), …
//	Coded       the same, under the key of a composite with a code in its system
//	Texts       terms of the distinct texts of token_text, then as a chain
//	Chain       SELECT t.ref # key FROM the targets, then one look-up
//	            r.terms @> ARRAY[term] for each
//	Named       the same with the names among the terms of the others
//	Has         SELECT u FROM the sources, unnest(targets) u, then r.ref = u
//
// And to test a row that is already known, through index_*_rid or resource_ref.
// PostgreSQL's planner, whose estimates of array terms are guesses, is left no choice
// between the two: tests are written so that no index fits them (IS TRUE, OFFSET 0,
// key + 0), and lists that are intersected are made as a whole first, which leaves
// hashing as the only way to join them. Sequential scans are switched off.
package match

import (
	"reflect"
	"slices"
	"strings"

	"kiln/server/fhir"
)

// Clause is one parameter of a query: the resource must have one of Any, or, when
// Not is set, none of them.
type Clause struct {
	Name  string // parameter as written, with modifier and chain
	Value string // as written
	Any   []Match
	Not   bool
}

// Match is one condition on the index of a resource.
type Match interface {
	// find writes a SELECT of the rid of every matching resource of types (nil is every
	// type). A rid may occur twice.
	find(w *Writer, types []int16)
	// test writes the condition on row r of resource. `IS TRUE` keeps the planner from
	// using an index for the test, `OFFSET 0` from turning the test into a join.
	test(w *Writer, r string)
	// holds judges a resource in memory.
	holds(r *Resource) Answer
	// describe returns the match in words, "" if the parameter as written is enough.
	describe() string
}

// What only some kinds are.
type (
	// ranged has rows in an ordered table, so that the surrogate alone tells.
	ranged interface {
		Match
		ranged()
		single() bool // find gives no rid twice
		wide() bool   // it asks for more than a point or a closed range
	}
	// byTerms is found by terms that a sub-select gives.
	byTerms interface {
		Match
		// findTerms writes that SELECT, of one column, term.
		findTerms(w *Writer)
	}
	// byRows is judged by the rows of the resource itself, so that holds says of a
	// Resource that was read back from them what SQL says.
	byRows interface{ byRows() bool }
	// tested has no index: rows that others find are tested.
	tested interface{ tested() bool }
	// joining has a place of its own in a Conjunction; false where it has none there.
	joining interface {
		join(c *Conjunction, not bool) bool
	}
	// containable also applies to a contained resource at the end of a path (fhir.ContainedMask), by other
	// keys of the containing resource. within returns nil if it does not apply.
	containable interface {
		within(way []fhir.Key) Match
	}
	// resolving is replaced by a match made from data of the database, nil for none.
	resolving interface {
		resolve(e *Env) Match
	}
	// open can be undecided by the index entries of a resource: holds returns Unknown.
	open interface{ open() }
	// comparing compares the entries of an ordered table (comparison.go).
	comparing interface{ comparison() Comparison }
	// dated is about one date entry.
	dated interface{ bounds() []Dates }
	// numbered is about numbers, with a unit or without.
	numbered interface {
		numbersIn(u *Unit) (Numbers, bool)
	}
	// restricting asks about other resources, of which some are hidden (Restrict).
	restricting interface {
		restrict(readable func(types []string) []Clause) Match
	}
	// termTested is decided by the terms and the ref of the resource alone (TermTestOf).
	termTested interface {
		termTest(ref int64) (terms []int64, holds, ok bool)
	}
	// relating has conditions on other resources along references (RelatedTo).
	relating interface{ related(r *Resource) Related }
	// linking has conditions on the targets of one reference (LinkOf).
	linking interface{ link() (Link, bool) }
	// merging belongs to one resource type, as the keys of its values do. It can be combined with
	// matches of other types, and one can replace several of its kind.
	merging interface {
		merge(same []Match) Match
	}
	// nesting is made of clauses, about other resources where elsewhere is true.
	nesting interface {
		nested() (clauses []Clause, elsewhere bool)
	}
)

// Prefix is a comparison. Spec: https://hl7.org/fhir/R4/search.html#prefix.
type Prefix uint8

// The prefixes, eq being the default.
const (
	EQ Prefix = iota
	NE
	LT
	LE
	GT
	GE
	SA
	EB
	AP
)

var prefixNames = [...]string{"eq", "ne", "lt", "le", "gt", "ge", "sa", "eb", "ap"}

// String returns the two letters of the prefix.
func (p Prefix) String() string { return prefixNames[p] }

// CutPrefix cuts a prefix off a value. Only two letters before a digit, a sign or a
// point are one; false where the letters are none.
func CutPrefix(s string) (Prefix, string, bool) {
	if len(s) < 2 || s[0] < 'a' || s[0] > 'z' {
		return EQ, s, true
	}
	for p, name := range prefixNames {
		if strings.HasPrefix(s, name) {
			return Prefix(p), s[2:], true
		}
	}
	return EQ, s, false
}

// wide reports whether the comparison asks for more than a point.
func (p Prefix) wide() bool { return p != EQ && p != AP }

// TextOp is how texts are compared.
type TextOp uint8

// The comparisons of Strings and Texts.
const (
	StartsWith TextOp = iota
	Contains
	URIBelow // Text itself, or Text and further path steps or a version
	EndsWith
	Whole // equal
	Other // not equal
)

// Describe returns the clauses in words.
func Describe(clauses []Clause) string {
	var b strings.Builder
	for i, c := range clauses {
		if i > 0 {
			b.WriteString(" and ")
		}
		b.WriteString(c.Name)
		if c.Not {
			b.WriteString(" has none of ")
		} else {
			b.WriteString(" is ")
		}
		b.WriteString(c.Value)
		if len(c.Any) == 1 {
			if words := c.Any[0].describe(); words != "" {
				b.WriteString(" (" + words + ")")
			}
		}
	}
	return b.String()
}

// Contain reports whether is holds for a match of clauses, at any depth.
func Contain(clauses []Clause, is func(Match) bool) bool {
	return slices.ContainsFunc(clauses, func(c Clause) bool {
		return slices.ContainsFunc(c.Any, func(m Match) bool {
			if is(m) {
				return true
			}
			n, ok := m.(nesting)
			if !ok {
				return false
			}
			inner, _ := n.nested()
			return Contain(inner, is)
		})
	})
}

// Inner are the clauses that a match puts together about the resource itself; nil for one
// that is not made of clauses, or asks them of other resources.
func Inner(m Match) []Clause {
	n, ok := m.(nesting)
	if !ok {
		return nil
	}
	inner, elsewhere := n.nested()
	if elsewhere {
		return nil
	}
	return inner
}

// Related are the other resources that a match depends on: the Targets or, if By is set, the
// resources that refer to the judged resource.
type Related struct {
	Types   []string   // their resource types
	Clauses []Clause   // hold for one of them
	Targets []int64    // refs that the resource has
	By      []fhir.Key // of the references to the resource
}

// RelatedTo are the other resources that m asks about, for r; false where m is about r itself,
// or about what no reference leads to.
func RelatedTo(m Match, r *Resource) (Related, bool) {
	k, ok := m.(relating)
	if !ok {
		return Related{}, false
	}
	return k.related(r), true
}

// Link is one reference between the resource and others of one type, for one of which Clauses hold.
type Link struct {
	Types   []string // that the others may have
	Keys    []fhir.Key
	Back    bool // the others refer to the resource
	Clauses []Clause
}

// LinkOf is the reference that m follows; false for the kinds that follow none, or more than that.
func LinkOf(m Match) (Link, bool) {
	if l, ok := m.(linking); ok {
		return l.link()
	}
	return Link{}, false
}

// Open reports whether Holds may say Unknown of clauses.
func Open(clauses []Clause) bool {
	return Contain(clauses, func(m Match) bool {
		_, ok := m.(open)
		return ok
	})
}

// ByRows reports whether clauses are judged by the terms, dates, numbers, quantities and
// strings of a resource, its id and its last update alone: Hold needs no database for a
// Resource that was read back from the index, and leaves nothing to ask.
func ByRows(clauses []Clause) bool {
	return !slices.ContainsFunc(clauses, func(c Clause) bool {
		return slices.ContainsFunc(c.Any, func(m Match) bool {
			b, ok := m.(byRows)
			return !ok || !b.byRows()
		})
	})
}

// OfOneType reports whether each of any can only hold for resources of the type that it
// was made for, whichever types are searched.
func OfOneType(any []Match) bool {
	return !slices.ContainsFunc(any, func(m Match) bool { _, ok := m.(merging); return !ok })
}

// Merge replaces several alternatives of a kind by one, if that kind can express all of them.
func Merge(any []Match) []Match {
	var out []Match
	same := make(map[reflect.Type][]Match)
	for _, m := range any {
		if _, ok := m.(merging); !ok {
			out = append(out, m)
			continue
		}
		same[reflect.TypeOf(m)] = append(same[reflect.TypeOf(m)], m)
	}
	for _, m := range any {
		kind := reflect.TypeOf(m)
		if list := same[kind]; list != nil {
			out = append(out, list[0].(merging).merge(list))
			delete(same, kind)
		}
	}
	return out
}

// NeedUnits reports whether finding what clauses ask for needs Env.Units.
func NeedUnits(clauses []Clause) bool {
	return Contain(clauses, func(m Match) bool {
		q, ok := m.(Quantities)
		return ok && !q.AnyUnit()
	})
}

// Resolve replaces every match that depends on the database by one made from its data.
func (e *Env) Resolve(clauses []Clause) []Clause {
	depends := func(m Match) bool {
		switch m.(type) {
		case Coded, Contained:
			return true
		}
		return false
	}
	if !Contain(clauses, depends) {
		return clauses
	}
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = nil
		for _, m := range clauses[i].Any {
			if r, ok := m.(resolving); ok {
				m = r.resolve(e)
			}
			if m != nil {
				out[i].Any = append(out[i].Any, m)
			}
		}
		if out[i].Any == nil {
			out[i].Any = []Match{Terms{}} // of no resource
		}
	}
	return out
}

// Restrict makes clauses ignore hidden resources: conditions on other resources apply to readable
// ones only. readable returns the access condition on a resource of types, nil for every type.
func Restrict(clauses []Clause, readable func(types []string) []Clause) []Clause {
	out := slices.Clone(clauses)
	for i := range out {
		out[i].Any = slices.Clone(out[i].Any)
		for j, m := range out[i].Any {
			if r, ok := m.(restricting); ok {
				out[i].Any[j] = r.restrict(readable)
			}
		}
	}
	return out
}

// ReachesOut reports whether any of the matches depends on other resources.
func ReachesOut(any []Match) bool {
	return slices.ContainsFunc(any, func(m Match) bool {
		n, ok := m.(nesting)
		if !ok {
			return false
		}
		inner, elsewhere := n.nested()
		return elsewhere || slices.ContainsFunc(inner, func(c Clause) bool { return ReachesOut(c.Any) })
	})
}
