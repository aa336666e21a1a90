package search

import (
	"fmt"
	"strings"
)

// Describe says in words what a query asks for.
func (q *Query) Describe() string {
	var b strings.Builder
	if len(q.Types) == 0 {
		b.WriteString("resources of every type")
	} else {
		b.WriteString(strings.Join(q.Types, ", "))
	}
	for i, c := range q.Clauses {
		if i == 0 {
			b.WriteString(" where ")
		} else {
			b.WriteString(" and ")
		}
		c.describe(&b)
	}
	for i, k := range q.Sort {
		if i == 0 {
			b.WriteString("; by ")
		} else {
			b.WriteString(", then by ")
		}
		b.WriteString(k.Code)
		if k.Descending {
			b.WriteString(" descending")
		}
	}
	fmt.Fprintf(&b, "; %d on a page", q.Count)
	return b.String()
}

func (c *Clause) describe(b *strings.Builder) {
	b.WriteString(c.Name)
	if c.Not {
		b.WriteString(" has none of ")
	} else {
		b.WriteString(" is ")
	}
	b.WriteString(c.Value)
	if len(c.Any) != 1 {
		return
	}
	m := c.Any[0]
	if coded, ok := m.(Coded); ok {
		m = coded.Any
	}
	switch m := m.(type) {
	case Chain:
		fmt.Fprintf(b, " (refers to a %s where ", strings.ReplaceAll(m.Target, "|", " or "))
		describeAll(b, m.Clauses)
		b.WriteString(")")
	case Has:
		fmt.Fprintf(b, " (a %s refers to it where ", m.Source)
		describeAll(b, m.Clauses)
		b.WriteString(")")
	case Dates:
		fmt.Fprintf(b, " (%s [%s, %s))", m.Op, instant(m.Low), instant(m.High))
	case Numbers:
		fmt.Fprintf(b, " (%s)", m.describe())
	case Quantities:
		fmt.Fprintf(b, " (%s in %s)", m.Numbers.describe(), orAny(m.Code))
	}
}

func (m *Numbers) describe() string {
	switch m.Op {
	case EQ, NE, AP:
		return fmt.Sprintf("%s [%s, %s)", m.Op, m.Low, m.High)
	}
	return fmt.Sprintf("%s %s", m.Op, m.Value)
}

func describeAll(b *strings.Builder, clauses []Clause) {
	for i := range clauses {
		if i > 0 {
			b.WriteString(" and ")
		}
		clauses[i].describe(b)
	}
}

func orAny(unit string) string {
	if unit == "" {
		return "any unit"
	}
	return unit
}
