package terminology

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/parameters"
)

// ExpandParams are the inputs of $expand. One of URL and ValueSet is set.
type ExpandParams struct {
	URL      string // canonical, with or without version
	Version  string // valueSetVersion
	ValueSet *ValueSet
	Filter   string // words that must be in code, display or designation
	// Count is how many codes the page has, nil is all of them; Offset is how many
	// come before it.
	Count               *int
	Offset              int
	ActiveOnly          bool
	IncludeDesignations bool
	IncludeDefinition   bool // the definition of the value set in the answer
	ExcludeNested       bool // no contains within contains
	DisplayLanguage     string
}

// Expand returns a ValueSet with the codes of a value set, as JSON. A whole expansion is nested like its code system; a
// page, or a filtered expansion, is flat. The order is the order of the definition, the same each time. It
// fails with not-found if the value set, or a code system that it needs, is unknown, and with too-costly above
// 250,000 codes. Spec: https://hl7.org/fhir/R4/valueset-operation-expand.html.
func (s *Service) Expand(ctx context.Context, p ExpandParams) ([]byte, error) {
	if err := s.enabled(); err != nil {
		return nil, err
	}
	if p.Count != nil && *p.Count < 0 || p.Offset < 0 {
		return nil, outcome.Invalid("count and offset cannot be negative")
	}
	sn, err := s.now(ctx)
	if err != nil {
		return nil, err
	}

	// 1. The value set and all of its codes.
	vs, x, asked, err := sn.expand(ctx, &p)
	if err != nil {
		return nil, err
	}

	// 2. Those that are asked for.
	total := len(x.entries)
	entries := x.entries
	flat := p.ExcludeNested || p.Filter != "" || p.Count != nil || p.Offset > 0
	if !x.page {
		if !asked && (p.ActiveOnly || p.Filter != "") {
			x = narrow(x, &p)
			entries, total = x.entries, len(x.entries)
		}
		entries = entries[min(p.Offset, total):]
		if p.Count != nil {
			entries = entries[:min(*p.Count, len(entries))]
		}
	}

	// 3. The answer.
	out := &Expansion{
		Identifier: "urn:uuid:" + uuid.NewString(),
		Timestamp:  s.config.Now().UTC().Format(time.RFC3339),
		Parameter:  p.expansionParameters(x),
	}
	if x.page {
		total = x.total
	}
	if x.unclosed {
		yes := true
		out.Extension = []Extension{{URL: unclosedURL, ValueBoolean: &yes}}
	} else if total >= 0 {
		out.Total = &total
	}
	if p.Count != nil || p.Offset > 0 {
		out.Offset = &p.Offset
	}
	if flat {
		out.Contains = make([]Contained, len(entries))
		for i := range entries {
			out.Contains[i] = p.contained(&entries[i])
		}
	} else {
		out.Contains = p.nested(entries)
	}
	answer := struct {
		ResourceType string `json:"resourceType"`
		ValueSet
	}{"ValueSet", *vs}
	if !p.IncludeDefinition {
		answer.Compose = nil
	}
	if answer.Status == "" {
		answer.Status = "active"
	}
	answer.Expansion = out
	return json.Marshal(answer)
}

// expand finds the value set and its codes. asked says that the server was asked:
// it has applied the filter, and where there is a count, that and the offset.
func (sn *snapshot) expand(ctx context.Context, p *ExpandParams) (vs *ValueSet, x *expansion, asked bool, err error) {
	e := sn.evaluate(false)
	if p.ValueSet != nil {
		if p.ValueSet.URL != "" {
			e.path = []string{(canonical{p.ValueSet.URL, ""}).String()}
		}
		x, err = e.valueSetOf(ctx, p.ValueSet)
		return p.ValueSet, x, false, err
	}
	c := parseCanonical(p.URL)
	if c.url == "" {
		return nil, nil, false, outcome.New(outcome.CodeRequired, "$expand needs url or valueSet")
	}
	if p.Version != "" {
		c.version = p.Version
	}
	if vs, err = sn.valueSet(ctx, c); err != nil {
		return nil, nil, false, err
	}
	if vs != nil {
		x, err = e.canonical(ctx, c)
		return vs, x, false, err
	}
	if sn.server() == nil {
		return nil, nil, false, notFoundValueSet(c)
	}
	q := question{URL: c.String(), Filter: p.Filter, Count: p.Count, ActiveOnly: p.ActiveOnly,
		IncludeDesignations: p.IncludeDesignations, DisplayLanguage: p.DisplayLanguage}
	if p.Count != nil {
		q.Offset = p.Offset
	}
	vs = &ValueSet{URL: c.url, Version: c.version, Status: "active"}
	x, err = sn.server().expand(ctx, q)
	if err != nil {
		if notKnown(err) {
			err = notFoundValueSet(c).Because(err)
		}
		return nil, nil, false, err
	}
	return vs, x, true, nil
}

// expansionParameters are the inputs and sources that the expansion names.
// Spec: https://hl7.org/fhir/R4/valueset-definitions.html#ValueSet.expansion.parameter.
func (p *ExpandParams) expansionParameters(x *expansion) []parameters.Parameter {
	var list []parameters.Parameter
	if p.Filter != "" {
		list = append(list, parameters.String("filter", p.Filter))
	}
	if p.Count != nil {
		list = append(list, parameters.Integer("count", *p.Count))
	}
	if p.Offset > 0 {
		list = append(list, parameters.Integer("offset", p.Offset))
	}
	for _, b := range []struct {
		name string
		on   bool
	}{{"activeOnly", p.ActiveOnly}, {"includeDesignations", p.IncludeDesignations}, {"excludeNested", p.ExcludeNested}} {
		if b.on {
			list = append(list, parameters.Boolean(b.name, true))
		}
	}
	if p.DisplayLanguage != "" {
		list = append(list, parameters.Code("displayLanguage", p.DisplayLanguage))
	}
	for _, c := range x.systems {
		if c.url != "" && c.version != "" {
			list = append(list, parameters.URI("version", c.String()))
		}
	}
	for _, c := range x.supplements {
		list = append(list, parameters.URI("used-supplement", c.String()))
	}
	for _, w := range x.warnings {
		list = append(list, parameters.String("warning", w))
	}
	return list
}

// contained is an entry as it is written.
func (p *ExpandParams) contained(e *entry) Contained {
	c := Contained{System: e.system, Version: e.version, Code: e.code, Display: e.displayIn(p.DisplayLanguage), Abstract: e.abstract, Inactive: e.inactive}
	if p.IncludeDesignations {
		c.Designation = e.designation
	}
	return c
}

// displayIn returns the designation in a language, else the display.
func (e *entry) displayIn(language string) string {
	return displayIn(e.display, e.designation, language)
}

func displayIn(display string, designation []Designation, language string) string {
	if language == "" {
		return display
	}
	best := display
	for _, d := range designation {
		if strings.EqualFold(d.Language, language) {
			return d.Value
		}
		if base, _, _ := strings.Cut(d.Language, "-"); best == display && strings.EqualFold(base, language) {
			best = d.Value
		}
	}
	return best
}

// nested writes entries within their parents.
func (p *ExpandParams) nested(entries []entry) []Contained {
	children := make([][]int32, len(entries)+1)
	for i := range entries {
		at := entries[i].parent + 1
		children[at] = append(children[at], int32(i))
	}
	var write func(list []int32) []Contained
	write = func(list []int32) []Contained {
		if len(list) == 0 {
			return nil
		}
		out := make([]Contained, len(list))
		for i, at := range list {
			out[i] = p.contained(&entries[at])
			out[i].Contains = write(children[at+1])
		}
		return out
	}
	return write(children[0])
}

// narrow leaves the entries that are active, where that is asked for, and have
// every word of the filter.
func narrow(x *expansion, p *ExpandParams) *expansion {
	words := strings.Fields(fhir.FoldText(p.Filter))
	out := &expansion{systems: x.systems, supplements: x.supplements, warnings: x.warnings, unclosed: x.unclosed}
	b := builder{expansion: out, seen: make(codeVersions)}
	// No error is possible: the remaining codes are not more than before.
	_ = b.add(x, func(e *entry) bool {
		return !(p.ActiveOnly && e.inactive) && !slices.ContainsFunc(words, func(w string) bool { return !e.has(w) })
	})
	return out
}

func (e *entry) has(word string) bool {
	if strings.Contains(fhir.FoldText(e.display), word) || strings.Contains(fhir.FoldText(e.code), word) {
		return true
	}
	return slices.ContainsFunc(e.designation, func(d Designation) bool { return strings.Contains(fhir.FoldText(d.Value), word) })
}

// ParseCount reads a count or offset.
func ParseCount(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, outcome.Invalid("%s is %q: expected a whole number from 0", name, outcome.Clip(text))
	}
	return n, nil
}
