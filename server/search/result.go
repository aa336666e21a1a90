package search

import (
	"slices"
	"strconv"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// A resultParameter is a parameter that shapes the result.
type resultParameter struct {
	repeated bool // it may be given more than once
	modified bool // it takes a modifier
	// relinked says that the links of the answer do not repeat the value of the client.
	relinked bool
	// read adds the parameter to the query; nil does nothing.
	read func(p *parser, q *Query, r givenResult) error
}

// A givenResult is a result parameter of a request.
type givenResult struct {
	name, code, modifier string
	values               []string // at least one
}

func (r givenResult) last() string { return r.values[len(r.values)-1] }

// resultParameters are all parameters that shape the result. The format of the answer is no part of the query.
// Spec: https://hl7.org/fhir/R4/search.html#return.
var resultParameters = map[string]resultParameter{
	"_count":      {relinked: true, read: (*parser).readCount},
	"_offset":     {relinked: true, read: (*parser).readOffset},
	"_cursor":     {relinked: true, read: (*parser).readCursor},
	"_sort":       {read: func(p *parser, q *Query, r givenResult) error { return p.sort(q, r.last()) }},
	"_include":    {repeated: true, modified: true, read: (*parser).readIncludes},
	"_revinclude": {repeated: true, modified: true, read: (*parser).readIncludes},
	"_summary":    {read: (*parser).readSummary},
	"_elements":   {repeated: true, read: (*parser).readElements},
	"_total":      {read: (*parser).readTotal},
	"_explain":    {read: (*parser).readExplain},
	"_format":     {},
	"_pretty":     {},
}

// readResult reads a parameter that shapes the result.
func (p *parser) readResult(q *Query, r givenResult) error {
	is := resultParameters[r.code]
	if r.modifier != "" && !is.modified {
		return outcome.Invalid("parameter %s: %s takes no modifier", outcome.Clip(r.name), r.code)
	}
	if len(r.values) > 1 && !is.repeated {
		return outcome.Invalid("parameter %s: it can be given once only", r.code)
	}
	if is.read != nil {
		if err := is.read(p, q, r); err != nil {
			return err
		}
	}
	if !is.relinked {
		q.applied[r.name] = r.values
	}
	return nil
}

// readCount limits the page. The links of the answer repeat the limit in force.
func (p *parser) readCount(q *Query, r givenResult) error {
	n, err := r.wholeNumber()
	if err != nil {
		return err
	}
	q.Count = min(n, p.opt.MaxCount)
	if q.Asked = 0; n > q.Count {
		q.Asked = n
	}
	q.applied.Set(r.name, strconv.Itoa(q.Count))
	return nil
}

func (p *parser) readOffset(q *Query, r givenResult) (err error) {
	q.Offset, err = r.wholeNumber()
	return err
}

// wholeNumber returns the value as a number, 0 or more.
func (r givenResult) wholeNumber() (int, error) {
	n, err := strconv.Atoi(r.last())
	if err != nil || n < 0 {
		return 0, badValue(r.name, r.last(), "expected a whole number, 0 or more")
	}
	return n, nil
}

func (p *parser) readCursor(q *Query, r givenResult) error {
	c, err := parseCursor(r.last())
	if err != nil {
		return badValue(r.name, r.last(), "it is no cursor of this server; follow the links of a search result")
	}
	q.Cursor = c
	return nil
}

func (p *parser) readIncludes(q *Query, r givenResult) error {
	if r.modifier != "" && r.modifier != "iterate" && r.modifier != "recurse" {
		return outcome.Invalid("parameter %s: modifier %q is not known, expected :iterate", outcome.Clip(r.name), outcome.Clip(r.modifier))
	}
	reverse, list := r.code == "_revinclude", &q.Includes
	if reverse {
		list = &q.RevIncludes
	}
	for _, v := range r.values {
		in, err := p.include(q, r.name, v, reverse, r.modifier != "")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(*list, in.same) {
			*list = append(*list, in)
		}
	}
	return nil
}

func (p *parser) readSummary(q *Query, r givenResult) error {
	switch r.last() {
	case "true", "text", "data", "count":
		q.Summary = Summary(r.last())
	case "false":
	default:
		return badValue(r.name, r.last(), "expected true, text, data, count or false")
	}
	return nil
}

func (p *parser) readElements(q *Query, r givenResult) (err error) {
	q.Elements, err = p.reg.Elements(q.Types, r.values)
	return err
}

func (p *parser) readTotal(q *Query, r givenResult) error {
	switch r.last() {
	case "none", "estimate":
		q.Total = TotalMode(r.last())
	case "accurate":
	default:
		return badValue(r.name, r.last(), "expected none, estimate or accurate")
	}
	return nil
}

func (p *parser) readExplain(q *Query, r givenResult) error {
	switch r.last() {
	case "true":
		if !p.opt.Explain {
			return outcome.RefusedParameter("parameter _explain is not enabled on this server")
		}
		q.Explain = true
	case "false":
	default:
		return badValue(r.name, r.last(), `expected "true" or "false"`)
	}
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
	if err := p.splitInclude(&in, name, value); err != nil {
		return in, err
	}
	// The matches, of a _revinclude the targets, have to be of the types searched, unless included resources are followed.
	searched := q.Types
	if iterate {
		searched = nil
	}
	if !reverse && len(searched) > 0 && !slices.Contains(searched, in.Source) {
		return in, badValue(name, value, "the search returns "+strings.Join(searched, ", ")+"; references of included resources are followed with _include:iterate")
	}
	if in.Param == "*" {
		p.everyReference(&in, in.Source)
		return in, nil
	}
	param, err := p.includeParameter(&in, name, value)
	if err != nil {
		return in, err
	}
	isTarget := func(typ string) bool { return slices.Contains(param.Targets, typ) }
	if reverse && len(searched) > 0 && len(param.Targets) > 0 && !slices.ContainsFunc(searched, isTarget) {
		return in, badValue(name, value, in.Param+" refers to "+strings.Join(param.Targets, ", ")+", not to "+strings.Join(searched, ", "))
	}
	p.addNotice(param)
	if in.Target == "" && len(param.Targets) == 1 {
		in.Target = param.Targets[0] // patient shares its entries with subject
	}
	in.Keys = param.Keys
	p.canonicals(&in, param)
	return in, nil
}

// splitInclude reads the types and the parameter code of an include, and checks the types.
func (p *parser) splitInclude(in *Include, name, value string) error {
	parts := strings.Split(value, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return badValue(name, value, "expected Type:parameter, Type:parameter:Target or *")
	}
	in.Source, in.Param = parts[0], parts[1]
	if !p.reg.Has(in.Source) {
		return p.reg.typeError(in.Source)
	}
	if len(parts) == 3 {
		in.Target = parts[2]
		if !p.reg.Has(in.Target) {
			return p.reg.typeError(in.Target)
		}
	}
	return nil
}

// includeParameter finds the reference parameter of an include, and checks that it refers to the target.
func (p *parser) includeParameter(in *Include, name, value string) (*fhir.Parameter, error) {
	param, ok := p.reg.Lookup(in.Source, in.Param)
	if !ok || param.Type != fhir.SearchReference || unsupportedReason(param) != "" {
		return nil, badValue(name, value, in.Source+" has no reference parameter "+strconv.Quote(outcome.Clip(in.Param))+outcome.DidYouMean(in.Param, p.referenceCodes(in.Source)))
	}
	if in.Target != "" && len(param.Targets) > 0 && !slices.Contains(param.Targets, in.Target) {
		return nil, badValue(name, value, in.Param+" refers to "+strings.Join(param.Targets, ", "))
	}
	return param, nil
}

// referenceCodes returns the codes of the reference parameters of a type.
func (p *parser) referenceCodes(typ string) (codes []string) {
	for _, param := range p.reg.Parameters(typ) {
		if param.Type == fhir.SearchReference {
			codes = append(codes, param.Code)
		}
	}
	return codes
}
