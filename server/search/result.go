package search

import (
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// result reads a parameter that shapes the result.
// Spec: https://hl7.org/fhir/R4/search.html#return.
func (p *parser) result(q *Query, name, code, modifier string, values []string) error {
	if modifier != "" && code != "_include" && code != "_revinclude" {
		return outcome.Invalid("parameter %s: %s takes no modifier", outcome.Clip(name), code)
	}
	last := values[len(values)-1]
	if code != "_include" && code != "_revinclude" && code != "_elements" && len(values) > 1 {
		return outcome.Invalid("parameter %s: it can be given once only", code)
	}
	switch code {
	case "_count":
		n, err := strconv.Atoi(last)
		if err != nil || n < 0 {
			return badValue(name, last, "expected a whole number, 0 or more")
		}
		q.Count = min(n, p.opt.MaxCount)
		if q.Asked = 0; n > q.Count {
			q.Asked = n
		}
		q.applied.Set(name, strconv.Itoa(q.Count))
		return nil
	case "_offset":
		n, err := strconv.Atoi(last)
		if err != nil || n < 0 {
			return badValue(name, last, "expected a whole number, 0 or more")
		}
		q.Offset = n
		return nil
	case "_cursor":
		c, err := parseCursor(last)
		if err != nil {
			return badValue(name, last, "it is no cursor of this server; follow the links of a search result")
		}
		q.Cursor = c
		return nil
	case "_sort":
		if err := p.sort(q, last); err != nil {
			return err
		}
	case "_include", "_revinclude":
		if modifier != "" && modifier != "iterate" && modifier != "recurse" {
			return outcome.Invalid("parameter %s: modifier %q is not known, expected :iterate", outcome.Clip(name), outcome.Clip(modifier))
		}
		for _, v := range values {
			in, err := p.include(q, name, v, code == "_revinclude", modifier != "")
			if err != nil {
				return err
			}
			list := &q.Includes
			if code == "_revinclude" {
				list = &q.RevIncludes
			}
			if !slices.ContainsFunc(*list, in.same) {
				*list = append(*list, in)
			}
		}
	case "_summary":
		switch last {
		case "true", "text", "data", "count":
			q.Summary = Summary(last)
		case "false":
		default:
			return badValue(name, last, "expected true, text, data, count or false")
		}
	case "_elements":
		var err error
		if q.Elements, err = p.reg.Elements(q.Types, values); err != nil {
			return err
		}
	case "_total":
		switch last {
		case "none", "estimate":
			q.Total = TotalMode(last)
		case "accurate":
		default:
			return badValue(name, last, "expected none, estimate or accurate")
		}
	case "_explain":
		switch last {
		case "true":
			if !p.opt.Explain {
				return outcome.RefusedParameter("parameter _explain is not enabled on this server")
			}
			q.Explain = true
		case "false":
		default:
			return badValue(name, last, `expected "true" or "false"`)
		}
	}
	q.applied[name] = values
	return nil
}

// sort reads `_sort`: every parameter but those of type composite and special.
// Resources without a value come last.
// Spec: https://hl7.org/fhir/R4/search.html#sort.
func (p *parser) sort(q *Query, value string) error {
	keys := strings.Split(value, ",")
	if len(keys) > 8 {
		return outcome.New(outcome.CodeTooCostly, "parameter _sort: at most 8 keys are accepted, %d came", len(keys))
	}
	var by []SortKey
	for _, k := range keys {
		code, descending := strings.CutPrefix(k, "-")
		s := SortKey{Code: code, Descending: descending}
		switch code {
		case "_id":
			s.Type, s.Single = fhir.SearchToken, true
		case "_lastUpdated":
			s.Type, s.Single = fhir.SearchDate, true
		case "":
			return badValue("_sort", value, "expected parameter names between commas, with - before one for descending order")
		default:
			param, err := p.lookupParameter(q.Types, "_sort="+k, code)
			if err != nil {
				return err
			}
			if !isOrdered(param.Type) && !isText(param.Type) {
				return outcome.Invalid("parameter _sort: %q is of type %s, which has no order; parameters of every other type do, and _id and _lastUpdated", outcome.Clip(code), param.Type)
			}
			s.Type, s.Keys, s.Single = param.Type, param.Keys, param.Single && len(param.Keys) == 1
			if s.Targets = narrowedTo(param); isText(s.Type) {
				p.reg.byIndex(&s, q.Types)
			}
		}
		if slices.ContainsFunc(by, func(o SortKey) bool { return o.Code == code }) {
			return badValue("_sort", value, code+" is named twice")
		}
		by = append(by, s)
	}
	q.Sort = append(q.Sort, by...)
	return nil
}

// include reads `Type:parameter`, `Type:parameter:Target`, `Type:*` or `*`.
// Spec: https://hl7.org/fhir/R4/search.html#include.
func (p *parser) include(q *Query, name, value string, reverse, iterate bool) (Include, error) {
	in := Include{Iterate: iterate}
	if value == "*" {
		in.Source, in.Param = "*", "*"
		types := q.Types
		if reverse || iterate || len(types) == 0 {
			types = p.reg.Types()
		}
		for _, t := range types {
			p.everyReference(&in, t)
		}
		return in, nil
	}
	parts := strings.Split(value, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return in, badValue(name, value, "expected Type:parameter, Type:parameter:Target or *")
	}
	in.Source, in.Param = parts[0], parts[1]
	if !p.reg.Has(in.Source) {
		return in, p.reg.typeError(in.Source)
	}
	if len(parts) == 3 {
		in.Target = parts[2]
		if !p.reg.Has(in.Target) {
			return in, p.reg.typeError(in.Target)
		}
	}
	if !reverse && !iterate && len(q.Types) > 0 && !slices.Contains(q.Types, in.Source) {
		return in, badValue(name, value, "the search returns "+strings.Join(q.Types, ", ")+"; references of included resources are followed with _include:iterate")
	}
	if in.Param == "*" {
		p.everyReference(&in, in.Source)
		return in, nil
	}
	param, ok := p.reg.Lookup(in.Source, in.Param)
	if !ok || param.Type != fhir.SearchReference || unsupportedReason(param) != "" {
		var names []string
		for _, o := range p.reg.Parameters(in.Source) {
			if o.Type == fhir.SearchReference {
				names = append(names, o.Code)
			}
		}
		return in, badValue(name, value, in.Source+" has no reference parameter "+strconv.Quote(outcome.Clip(in.Param))+outcome.DidYouMean(in.Param, names))
	}
	if in.Target != "" && len(param.Targets) > 0 && !slices.Contains(param.Targets, in.Target) {
		return in, badValue(name, value, in.Param+" refers to "+strings.Join(param.Targets, ", "))
	}
	if reverse && !iterate && len(q.Types) > 0 && len(param.Targets) > 0 &&
		!slices.ContainsFunc(q.Types, func(t string) bool { return slices.Contains(param.Targets, t) }) {
		return in, badValue(name, value, in.Param+" refers to "+strings.Join(param.Targets, ", ")+", not to "+strings.Join(q.Types, ", "))
	}
	p.addNotice(param)
	if in.Target == "" && len(param.Targets) == 1 {
		in.Target = param.Targets[0] // patient shares its entries with subject
	}
	in.Keys = param.Keys
	p.canonicals(&in, param)
	return in, nil
}
