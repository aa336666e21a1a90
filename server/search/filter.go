package search

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// filter reads `_filter` into a clause like those of other parameters.
// Spec: https://hl7.org/fhir/R4/search_filter.html.
func (p *parser) filter(types []string, c match.Clause, modifier string, depth int) (match.Clause, error) {
	if modifier != "" {
		return c, outcome.Invalid("parameter %s: _filter takes no modifier", outcome.Clip(c.Name))
	}
	n, mistake := parseFilter(c.Value)
	if mistake != nil {
		if mistake.costly {
			return c, outcome.New(outcome.CodeTooCostly, "parameter _filter: %s", mistake)
		}
		return c, outcome.Invalid("parameter _filter: %s", mistake)
	}
	read, err := p.filtered(types, n, depth)
	if err != nil {
		var unknown unknownParameter
		if errors.As(err, &unknown) {
			return c, unknown.outcome // the filter itself is known, and not ignored
		}
		return c, err
	}
	c.Any, c.Not = read.Any, read.Not
	return c, nil
}

// filtered is the clause that a filter stands for.
func (p *parser) filtered(types []string, n filterNode, depth int) (match.Clause, error) {
	switch n := n.(type) {
	case *filterNot:
		c, err := p.filtered(types, n.of, depth)
		c.Not = !c.Not
		return c, err
	case *filterLogic:
		left, err := p.filtered(types, n.left, depth)
		if err != nil {
			return left, err
		}
		right, err := p.filtered(types, n.right, depth)
		if err != nil {
			return right, err
		}
		if n.op == "and" {
			return both(left, right), nil
		}
		return either(left, right), nil
	case *filterComparison:
		c, err := p.along(types, n, n.path, depth)
		if err != nil {
			return c, inFilter(n, err)
		}
		return c, nil
	}
	return match.Clause{}, fmt.Errorf("search: a filter of type %T", n)
}

// inFilter says where in the filter the mistake is.
func inFilter(n *filterComparison, err error) error {
	var e *outcome.Error
	if !errors.As(err, &e) || len(e.Issues) == 0 || strings.HasPrefix(e.Issues[0].Diagnostics, "_filter: ") {
		return err
	}
	e.Issues[0].Diagnostics = fmt.Sprintf("_filter: %s: %s", outcome.Clip(n.text), e.Issues[0].Diagnostics)
	return err
}

func both(left, right match.Clause) match.Clause {
	var clauses []match.Clause
	for _, c := range []match.Clause{left, right} {
		if all, ok := onlyAll(c); ok {
			clauses = append(clauses, all.Clauses...)
		} else {
			clauses = append(clauses, c)
		}
	}
	return match.Clause{Any: []match.Match{match.All{Clauses: clauses}}}
}

func either(left, right match.Clause) match.Clause {
	var any []match.Match
	for _, c := range []match.Clause{left, right} {
		if c.Not {
			any = append(any, match.All{Clauses: []match.Clause{c}})
		} else {
			any = append(any, c.Any...)
		}
	}
	return match.Clause{Any: any}
}

func onlyAll(c match.Clause) (match.All, bool) {
	if c.Not || len(c.Any) != 1 {
		return match.All{}, false
	}
	all, ok := c.Any[0].(match.All)
	return all, ok
}

// along follows the path of a comparison to its end.
func (p *parser) along(types []string, n *filterComparison, path []filterStep, depth int) (match.Clause, error) {
	c := match.Clause{Name: path[0].name, Value: n.value}
	if depth > maxDepth {
		return c, outcome.New(outcome.CodeTooCostly, "more than %d hops", maxDepth)
	}
	step, rest := path[0], path[1:]
	if reverse, ok := strings.CutPrefix(step.name, "_has:"); ok {
		parts := strings.SplitN(reverse, ":", 3)
		if len(parts) < 3 {
			return c, outcome.Invalid("expected _has:Type:reference parameter:search parameter")
		}
		inner := append([]filterStep{{name: parts[2], where: step.where}}, rest...)
		return p.fromSources(types, c, parts[0], parts[1], func() (match.Clause, error) {
			return p.along([]string{parts[0]}, n, inner, depth+1)
		})
	}
	code, modifier, modified := strings.Cut(step.name, ":")
	if len(rest) == 0 {
		if modified {
			return c, outcome.Invalid("%q is no name of a parameter: here operators replace modifiers", outcome.Clip(step.name))
		}
		return p.compare(types, c, code, n.op, depth)
	}
	param, err := p.lookupParameter(types, step.name, code)
	if err != nil {
		return c, err
	}
	return p.overTargets(param, c, modifier, rest[0].name, func(target string) (match.Clause, error) {
		sub, err := p.along([]string{target}, n, rest, depth+1)
		if err != nil || step.where == nil {
			return sub, err
		}
		where, err := p.filtered([]string{target}, step.where, depth+1)
		return both(where, sub), err
	})
}

// filterOperatorsOf are the operators that a type of parameter has.
var filterOperatorsOf = map[fhir.SearchType][]string{
	fhir.SearchString:    {"eq", "ne", "co", "sw", "ew", "pr"},
	fhir.SearchToken:     {"eq", "ne", "ss", "sb", "in", "ni", "pr"},
	fhir.SearchReference: {"eq", "ne", "re", "pr"},
	fhir.SearchURI:       {"eq", "ne", "pr"},
	fhir.SearchDate:      {"eq", "ne", "gt", "lt", "ge", "le", "ap", "sa", "eb", "po", "pr"},
	fhir.SearchNumber:    {"eq", "ne", "gt", "lt", "ge", "le", "ap", "sa", "eb", "pr"},
	fhir.SearchQuantity:  {"eq", "ne", "gt", "lt", "ge", "le", "ap", "sa", "eb", "pr"},
	fhir.SearchComposite: {"eq", "pr"},
}

func checkOperator(code, op string, t fhir.SearchType, allowed []string) error {
	if !slices.Contains(allowed, op) {
		return outcome.Invalid("operator %s does not apply to %s, which is of type %s and takes %s", op, outcome.Clip(code), t, strings.Join(allowed, ", "))
	}
	return nil
}

// compare is one comparison of a parameter that resources of types have
// themselves.
func (p *parser) compare(types []string, c match.Clause, code, op string, depth int) (match.Clause, error) {
	if p.ordered++; p.ordered > maxComparison {
		return c, outcome.New(outcome.CodeTooCostly, "with it the search has %d comparisons; at most %d are accepted", p.ordered, maxComparison)
	}
	switch code {
	case "_filter":
		return c, outcome.Invalid("_filter cannot be inside _filter: use parentheses")
	case "_id", "_list":
		if err := checkOperator(code, op, fhir.SearchToken, []string{"eq", "ne"}); err != nil {
			return c, err
		}
		// A comma is no separator here, and no part of an id.
		read, err := p.clause(types, code, strings.ReplaceAll(c.Value, ",", `\,`), depth)
		read.Not = op == "ne"
		return read, err
	case "_lastUpdated":
		if err := checkOperator(code, op, fhir.SearchDate, []string{"eq", "ne", "gt", "lt", "ge", "le", "sa", "eb", "po"}); err != nil {
			return c, err
		}
		if op == "po" {
			op = "eq" // of an instant it is the same
		}
		c.Value = op + c.Value
		return p.updated(c, "")
	}
	param, err := p.lookupParameter(types, code, code)
	if err != nil {
		return c, err
	}
	if err := checkOperator(code, op, param.Type, filterOperatorsOf[param.Type]); err != nil {
		return c, err
	}
	if c.Value == "" {
		return c, badValue(code, c.Value, "expected a value")
	}
	switch op {
	case "pr":
		switch c.Value {
		case "true":
		case "false":
			c.Not = true
		default:
			return c, badValue(code, c.Value, "expected true or false after pr")
		}
		c.Any = presenceMatches(param)
		return c, nil
	case "ni":
		c.Not = true
	case "ne":
		if isText(param.Type) {
			return p.unequal(param, c, code)
		}
	}
	c.Any, err = p.compared(param, code, op, c.Value)
	return c, err
}

// unequal holds for a resource with a value that is not equal. Where there are
// several values, the index of hashes says which there are, and not whether
// another one is.
func (p *parser) unequal(param *fhir.Parameter, c match.Clause, code string) (match.Clause, error) {
	if !param.Single || len(param.Keys) != 1 {
		return c, outcome.RefusedParameter("operator ne is not supported for %s, which can have several values: not (%s eq …) asks for resources of which none is equal", outcome.Clip(code), outcome.Clip(code))
	}
	equal, err := p.compared(param, code, "eq", c.Value)
	return both(match.Clause{Any: presenceMatches(param)}, match.Clause{Name: c.Name, Value: c.Value, Any: equal, Not: true}), err
}

// compared returns the matches of a comparison.
func (p *parser) compared(param *fhir.Parameter, code, op, value string) ([]match.Match, error) {
	switch param.Type {
	case fhir.SearchDate, fhir.SearchNumber, fhir.SearchQuantity:
		if value[0] >= 'a' && value[0] <= 'z' {
			return nil, badValue(code, value, "expected a "+string(param.Type)+"; the operator stands before it and a prefix within it has no place")
		}
	}
	switch param.Type {
	case fhir.SearchString:
		m := match.Strings{Keys: param.Keys, Single: param.Single, Text: fhir.JoinText(value), Op: map[string]match.TextOp{
			"eq": match.Whole, "ne": match.Other, "co": match.Contains, "sw": match.StartsWith, "ew": match.EndsWith}[op]}
		if m.Text == "" {
			return nil, badValue(code, value, "nothing is left of it without case, accents and white space")
		}
		return []match.Match{m}, nil
	case fhir.SearchToken:
		modifier := map[string]string{"eq": "", "in": "in", "ni": "in", "ss": "below", "sb": "above"}[op]
		return p.value(param, code, modifier, value)
	case fhir.SearchDate:
		if op == "po" { // the prefix ap without its margin
			_, low, high, err := p.dateRange(code, "eq"+value)
			return []match.Match{match.Dates{Keys: param.Keys, Single: param.Single, Op: match.AP, Low: low, High: high}}, err
		}
		return p.value(param, code, "", op+value)
	case fhir.SearchNumber, fhir.SearchQuantity:
		return p.value(param, code, "", op+value)
	}
	return p.value(param, code, "", value)
}
