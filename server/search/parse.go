package search

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search/match"
)

// Limits of one request. Beyond them it is refused, by the limit's name.
const (
	maxParameters = 200     // parameters, repetitions counted
	maxText       = 4 << 20 // bytes of all names and values
	maxValues     = 10_000  // values between commas, all parameters together
	maxOrdered    = 64      // values between commas of one parameter that compares or looks into texts
	maxComparison = 512     // such values, all parameters together
	maxChains     = 20_000  // types that chains lead to, of every hop and all parameters together
	maxTerms      = 500_000 // values of one parameter, times the types that each may be about
	maxDepth      = 8       // hops of a chain, `_has` within `_has`
)

// Options are the settings of a server that a query depends on. The zero value
// works.
type Options struct {
	DefaultCount int // matches on a page where the request has no `_count`; 0 means 20
	MaxCount     int // a larger `_count` is clamped; 0 means 1,000
	// Lenient is `Prefer: handling=lenient`: unknown parameters are left out and
	// told of in Query.Ignored.
	Lenient bool
	// Guard is for criteria that guard a write: a parameter without a value, which a
	// search ignores, would let the write do more than was meant, and is refused.
	Guard bool
	// Explain allows `_explain`.
	Explain bool
	// BaseURLs are the server's own, without a trailing slash: an absolute
	// reference below one is a local one.
	BaseURLs []string
	Now      time.Time // for the prefix ap; zero means the present
	// Expand answers the terminology modifiers; nil refuses them as disabled.
	Expand func(Expansion) (Codes, error)
}

// parser carries what all steps of one Parse need.
type parser struct {
	reg     *Registry
	opt     Options
	values  int // so far, for maxValues
	ordered int // so far, for maxComparison
	chains  int // targets of chains so far, for maxChains
	notices []outcome.Issue
}

// commonNames are the parameters of every resource type that are no entries of
// the index.
var commonNames = []string{"_id", "_lastUpdated", "_list", "_has", "_filter", "_text", "_content"}

// resultNames are the names of resultParameters.
var resultNames = []string{
	"_count", "_offset", "_cursor", "_sort", "_include", "_revinclude", "_summary", "_elements",
	"_total", "_explain", "_format", "_pretty",
}

// unknownParameter is the error of a parameter that its type does not have: the
// one that Lenient forgives and that an untyped chain tries the next type after.
type unknownParameter struct{ outcome *outcome.Error }

func (e unknownParameter) Error() string { return e.outcome.Error() }
func (e unknownParameter) Unwrap() error { return e.outcome }

// Parse reads the parameters of a search on typ, "" for a system search. The returned query can be applied as
// a whole. Parse fails with an *outcome.Error of status 400 that names the parameter, the expected and the
// received value (501, 503 or 404 if a terminology modifier cannot be answered).
// Spec: https://hl7.org/fhir/R4/search.html.
func Parse(reg *Registry, typ string, values url.Values, opt Options) (*Query, error) {
	if opt.DefaultCount == 0 {
		opt.DefaultCount = 20
	}
	if opt.MaxCount == 0 {
		opt.MaxCount = 1000
	}
	if opt.Now.IsZero() {
		opt.Now = time.Now()
	}
	if reg.unavailable != nil {
		return nil, reg.unavailable
	}
	p := &parser{reg: reg, opt: opt}
	q := &Query{Type: typ, Count: min(opt.DefaultCount, opt.MaxCount), applied: make(url.Values, len(values))}

	// 1. The types searched.
	if typ != "" {
		if !reg.Has(typ) {
			return nil, reg.typeError(typ)
		}
		q.Types = []string{typ}
	} else if err := p.types(q, values["_type"]); err != nil {
		return nil, err
	}

	// 2. Every parameter, in the order of their names: the shape of the statement
	// does not depend on the order in the URL.
	n, size := 0, 0
	for name, list := range values {
		n += len(list)
		for _, v := range list {
			size += len(name) + len(v)
		}
	}
	if n > maxParameters {
		return nil, outcome.New(outcome.CodeTooCostly, "%d parameters: at most %d are accepted", n, maxParameters)
	}
	if size > maxText { // a form has room for more, and the links of the answer repeat it
		return nil, outcome.New(outcome.CodeTooCostly, "parameters of %d bytes: at most %d are accepted", size, maxText)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := p.parameter(q, name, values[name]); err != nil {
			var unknown unknownParameter
			if errors.As(err, &unknown) {
				if opt.Lenient {
					issue := unknown.outcome.Issues[0]
					issue.Severity = outcome.Warning
					issue.Diagnostics += "; ignored"
					q.Ignored = append(q.Ignored, issue)
					continue
				}
				return nil, unknown.outcome
			}
			return nil, err
		}
	}
	if q.Summary != SummaryNone && len(q.Elements) > 0 {
		return nil, outcome.Invalid("_summary and _elements cannot be combined")
	}
	if q.Summary == SummaryCount {
		q.Count = 0
	}
	if q.Count == 0 && q.Total == TotalNone {
		// The count is all that is asked for, and _total is a hint.
		// Spec: https://hl7.org/fhir/R4/search.html#total.
		q.Total = TotalAccurate
		q.applied.Del("_total")
	}
	if (q.Summary == SummaryText || q.Count == 0) && len(q.Includes)+len(q.RevIncludes) > 0 {
		if q.Summary == SummaryText {
			return nil, outcome.Invalid("_summary=text cannot be combined with _include or _revinclude")
		}
		q.Includes, q.RevIncludes = nil, nil
	}
	q.Notices = p.notices
	return q, nil
}

// types reads `_type` of a system search.
func (p *parser) types(q *Query, values []string) error {
	for _, v := range values {
		if v == "" && !p.opt.Guard {
			continue
		}
		for _, t := range splitEscaped(v, ',', 0) {
			if !p.reg.Has(t) {
				return p.reg.typeError(t)
			}
			q.Types = append(q.Types, t)
		}
	}
	slices.Sort(q.Types)
	q.Types = slices.Compact(q.Types)
	return nil
}

// parameter reads all repetitions of one parameter and adds them to q.
func (p *parser) parameter(q *Query, name string, values []string) error {
	if !p.opt.Guard {
		// A parameter without a value asks for nothing.
		if values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" }); len(values) == 0 {
			return p.known(q.Types, name)
		}
	}
	if name == "_contained" && len(values) == 1 && values[0] == "false" {
		q.applied[name] = values // the applied limit
		return nil
	}
	code, modifier, _ := strings.Cut(name, ":")
	if slices.Contains(resultNames, code) {
		return p.readResult(q, givenResult{name, code, modifier, values})
	}
	if name == "_type" && q.Type == "" {
		q.applied[name] = values
		return nil
	}
	for _, v := range values {
		c, err := p.clause(q.Types, name, v, 0)
		if err != nil {
			return err
		}
		q.Clauses = append(q.Clauses, c)
	}
	q.applied[name] = values
	return nil
}

// known refuses a name that is no parameter, chained or not, of the types searched.
func (p *parser) known(types []string, name string) error {
	head, _, _ := strings.Cut(name, ".")
	code, _, _ := strings.Cut(head, ":")
	if slices.Contains(resultNames, code) || slices.Contains(commonNames, code) || code == "_type" {
		return nil
	}
	_, err := p.lookupParameter(types, name, code)
	return err
}

// clause reads one parameter with its value, for resources of any of types (nil
// is every type). depth counts hops.
func (p *parser) clause(types []string, name, value string, depth int) (match.Clause, error) {
	if depth > maxDepth {
		return match.Clause{}, outcome.New(outcome.CodeTooCostly, "parameter %s: more than %d hops", outcome.Clip(name), maxDepth)
	}
	c := match.Clause{Name: name, Value: value}
	if value == "" {
		return c, outcome.Invalid("parameter %s has no value", outcome.Clip(name))
	}
	if name != "_filter" && badEscape(value) { // a filter has strings of its own
		return c, badValue(name, value, "a backslash stands before , | $ or another backslash only")
	}
	if name == "_has" || strings.HasPrefix(name, "_has:") {
		return p.has(types, name, value, depth)
	}
	head, rest, chained := strings.Cut(name, ".")
	code, modifier, modified := strings.Cut(head, ":")
	if modified && modifier == "" {
		return c, outcome.Invalid("parameter %s: there is no modifier after the colon", outcome.Clip(name))
	}
	if !chained {
		switch code {
		case "_id":
			return p.id(types, c, modifier)
		case "_lastUpdated":
			return p.updated(c, modifier)
		case "_list":
			return p.list(types, c, modifier)
		case "_filter":
			return p.filter(types, c, modifier, depth)
		case "_text", "_content":
			return p.fullText(c, code, modifier, depth)
		}
	}
	param, err := p.lookupParameter(types, name, code)
	if err != nil {
		return c, err
	}
	if chained {
		return p.chained(param, c, modifier, rest, depth)
	}
	if modifier == "missing" {
		return p.missing(param, c)
	}
	return p.plain(param, c, modifier)
}

// plain reads the values between the commas of a parameter that is an entry of
// the index.
func (p *parser) plain(param *fhir.Parameter, c match.Clause, modifier string) (match.Clause, error) {
	values, err := p.splitValues(param.Type, c)
	if err != nil {
		return c, err
	}
	if modifier == "not" && param.Type == fhir.SearchToken || modifier == "not-in" {
		c.Not = true
	}
	var terms match.Terms
	for _, v := range values {
		if v == "" {
			return c, badValue(c.Name, c.Value, "a value between two commas is empty")
		}
		matches, err := p.value(param, c.Name, modifier, v)
		if err != nil {
			return c, err
		}
		for _, m := range matches {
			if t, ok := m.(match.Terms); ok {
				terms.Values = append(terms.Values, t.Values...)
				continue
			}
			c.Any = append(c.Any, m)
		}
		if err := p.checkBounds(c, len(values), len(terms.Values)); err != nil {
			return c, err
		}
	}
	if len(terms.Values) > 0 || len(c.Any) == 0 {
		slices.Sort(terms.Values)
		terms.Values = slices.Compact(terms.Values)
		c.Any = append(c.Any, terms)
	}
	return c, nil
}

// checkBounds refuses a clause whose alternatives are more than one statement bears:
// values that are compared one by one, or terms.
func (p *parser) checkBounds(c match.Clause, values, terms int) error {
	if terms > maxTerms {
		return outcome.New(outcome.CodeTooCostly, "parameter %s: %d values, each about every type that it may be of, are too many; name the types (Type/id, _type) or fewer values",
			outcome.Clip(c.Name), values)
	}
	if len(c.Any) > maxOrdered && values > maxOrdered {
		return outcome.New(outcome.CodeTooCostly, "parameter %s: %d values came, at most %d are accepted where each is looked up by itself", outcome.Clip(c.Name), values, maxOrdered)
	}
	return nil
}

// splitValues cuts a value at its commas and keeps count of the values.
func (p *parser) splitValues(t fhir.SearchType, c match.Clause) ([]string, error) {
	values := splitEscaped(c.Value, ',', 0)
	p.values += len(values)
	if p.values > maxValues {
		return nil, outcome.New(outcome.CodeTooCostly, "parameter %s: at most %d values are accepted in one search", outcome.Clip(c.Name), maxValues)
	}
	if isOrdered(t) || t == fhir.SearchComposite {
		if len(values) > maxOrdered {
			return nil, outcome.New(outcome.CodeTooCostly, "parameter %s: %d values came, at most %d are accepted for a parameter of type %s",
				outcome.Clip(c.Name), len(values), maxOrdered, t)
		}
		if p.ordered += len(values); p.ordered > maxComparison {
			return nil, outcome.New(outcome.CodeTooCostly, "parameter %s: with it the search has %d dates, numbers, quantities and strings; at most %d are accepted",
				outcome.Clip(c.Name), p.ordered, maxComparison)
		}
	}
	return values, nil
}

// value reads one value; v still has its escapes.
func (p *parser) value(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	switch param.Type {
	case fhir.SearchToken:
		return p.token(param, name, modifier, v)
	case fhir.SearchReference:
		return p.reference(param, name, modifier, v)
	case fhir.SearchString:
		return p.text(param, name, modifier, v)
	case fhir.SearchDate:
		return p.date(param, name, modifier, v)
	case fhir.SearchNumber:
		return p.number(param, name, modifier, v)
	case fhir.SearchQuantity:
		return p.quantity(param, name, modifier, v)
	case fhir.SearchURI:
		return p.uri(param, name, modifier, v)
	case fhir.SearchComposite:
		return p.composite(param, name, modifier, v)
	case fhir.SearchSpecial:
		return p.near(param, name, modifier, v) // the only one that unsupported lets pass
	}
	return nil, outcome.Invalid("parameter %s: parameters of type %s are not supported", outcome.Clip(name), param.Type)
}

// lookupParameter finds parameter code for resources of any of types: of several, with the
// keys of all.
func (p *parser) lookupParameter(types []string, name, code string) (*fhir.Parameter, error) {
	if why, ok := fhir.RefusedParameters[code]; ok {
		return nil, outcome.RefusedParameter("parameter %s is not supported: %s", outcome.Clip(name), why)
	}
	if code == "_text" || code == "_content" { // p.clause has read it where it is a parameter
		return nil, outcome.RefusedParameter("parameter %s: %s has no values of its own, it is a parameter only", outcome.Clip(name), code)
	}
	if len(types) == 1 {
		param, ok := p.reg.Lookup(types[0], code)
		if !ok {
			return nil, p.unknown(types[0], name, code)
		}
		return param, p.usable(param, name)
	}
	if len(types) == 0 {
		types = p.reg.Types()
	}
	var all fhir.Parameter
	for i, t := range types {
		param, ok := p.reg.Lookup(t, code)
		if !ok {
			return nil, p.unknown("", name, code)
		}
		if err := p.usable(param, name); err != nil {
			return nil, err
		}
		if i == 0 {
			all = *param
			all.Keys, all.Words, all.Targets = slices.Clone(param.Keys), slices.Clone(param.Words), slices.Clone(param.Targets)
			continue
		}
		if param.Type != all.Type {
			return nil, outcome.Invalid("parameter %s: it is of type %s for %s and of type %s for %s", outcome.Clip(name), all.Type, all.Base, param.Type, t)
		}
		all.Keys = append(all.Keys, param.Keys...)
		all.Words = append(all.Words, param.Words...)
		all.Composites = append(slices.Clone(all.Composites), param.Composites...)
		if len(all.Targets) > 0 && len(param.Targets) > 0 {
			all.Targets = append(all.Targets, param.Targets...)
		} else {
			all.Targets = nil
		}
		all.Single = all.Single && param.Single
	}
	slices.Sort(all.Keys)
	all.Keys = slices.Compact(all.Keys)
	slices.Sort(all.Words)
	all.Words = slices.Compact(all.Words)
	slices.Sort(all.Targets)
	all.Targets = slices.Compact(all.Targets)
	return &all, nil
}

func (p *parser) usable(param *fhir.Parameter, name string) error {
	if why := unsupportedReason(param); why != "" {
		return outcome.RefusedParameter("parameter %s is not supported: %s", outcome.Clip(name), why)
	}
	p.addNotice(param)
	return nil
}

func (p *parser) unknown(typ, name, code string) error {
	where := typ
	if where == "" {
		where = "every type searched"
	}
	names := slices.Concat(p.reg.codesOf(typ), resultNames)
	return unknownParameter{outcome.RefusedParameter("unknown search parameter %q for %s%s", outcome.Clip(name), where, outcome.DidYouMean(code, names))}
}

// missing reads `:missing`: true, no entry; false, some entry.
// Spec: https://hl7.org/fhir/R4/search.html#modifiers.
func (p *parser) missing(param *fhir.Parameter, c match.Clause) (match.Clause, error) {
	switch c.Value {
	case "true":
		c.Not = true
	case "false":
	default:
		return c, badValue(c.Name, c.Value, `expected "true" or "false"`)
	}
	c.Any = presenceMatches(param)
	return c, nil
}

// presenceMatches holds for a resource that has any entry of a parameter.
func presenceMatches(param *fhir.Parameter) []match.Match {
	if targets := narrowedTo(param); targets != nil {
		var values []fhir.Value
		for _, t := range targets {
			values = append(values, fhir.ValueTarget(t))
		}
		return []match.Match{match.TermsOf(param.Keys, values...)}
	}
	if param.Type != fhir.SearchComposite {
		return []match.Match{match.TermsOf(param.Keys, fhir.ValuePresent())}
	}
	var any []match.Match
	for _, branch := range param.Composites {
		if branch.Key != 0 {
			any = append(any, match.TermsOf([]fhir.Key{branch.Key}, fhir.ValuePresent()))
			continue
		}
		var all match.All
		for _, part := range branch.Parts {
			all.Clauses = append(all.Clauses, match.Clause{Name: part.Code, Any: []match.Match{match.TermsOf(part.Keys, fhir.ValuePresent())}})
		}
		any = append(any, all)
	}
	return any
}

// narrowedTo are the types that the references of a parameter must point at to
// count: `patient` is `subject` where that is a Patient, and shares its entries.
// nil is every type.
func narrowedTo(param *fhir.Parameter) []string {
	if param.Type != fhir.SearchReference || len(param.Targets) == 0 {
		return nil
	}
	// The first entry of a Bundle is a Composition where that is a document.
	if strings.Contains(param.Expression, "resolve()") || isEmbedded(param) {
		return param.Targets
	}
	return nil
}
