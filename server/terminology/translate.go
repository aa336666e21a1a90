package terminology

import (
	"context"
	"slices"
	"strings"

	"kiln/server/outcome"
	"kiln/server/parameters"
)

// TranslateParams are the inputs of $translate.
type TranslateParams struct {
	URL, Version string   // of the concept map; "" tries every one that fits
	Map          []byte   // the concept map itself, JSON, instead of URL
	Coding       []Coding // to be translated; one is enough
	// Source and Target are canonicals of value sets, TargetSystem is a code
	// system: maps and matches must be of these, where they are set.
	Source, Target, TargetSystem string
	Reverse                      bool // from target to source
}

// Translation is a concept in another system.
type Translation struct {
	Equivalence string // https://hl7.org/fhir/R4/valueset-concept-map-equivalence.html
	Concept     Coding
	Source      string // canonical of the concept map
	Product     []mapProduct
}

// TranslateResult is the answer to $translate.
type TranslateResult struct {
	Result  bool // there is a match that is not unmatched or disjoint
	Message string
	Match   []Translation
}

// Translate returns the matches of a concept in a concept map, in its order. It
// fails with not-found where the map is not known.
// Spec: https://hl7.org/fhir/R4/conceptmap-operation-translate.html.
func (s *Service) Translate(ctx context.Context, p TranslateParams) (TranslateResult, error) {
	if err := s.enabled(); err != nil {
		return TranslateResult{}, err
	}
	if len(p.Coding) == 0 || p.Coding[0].Code == "" {
		return TranslateResult{}, outcome.New(outcome.CodeRequired, "$translate needs code with system, coding or codeableConcept")
	}
	sn, err := s.now(ctx)
	if err != nil {
		return TranslateResult{}, err
	}
	maps, err := sn.conceptMaps(ctx, &p)
	if err != nil {
		return TranslateResult{}, err
	}
	var r TranslateResult
	for _, m := range maps {
		for _, c := range p.Coding {
			match, err := sn.translate(ctx, m, c, &p, 0)
			if err != nil {
				return TranslateResult{}, err
			}
			r.Match = append(r.Match, match...)
		}
	}
	for _, m := range r.Match {
		r.Result = r.Result || m.Equivalence != "unmatched" && m.Equivalence != "disjoint"
	}
	if !r.Result {
		r.Message = "no concept map that fits has a match"
		if p.URL != "" || p.Map != nil {
			r.Message = "the concept map has no match"
		}
	}
	return r, nil
}

// conceptMaps returns the maps that p asks for.
func (sn *snapshot) conceptMaps(ctx context.Context, p *TranslateParams) ([]*conceptMap, error) {
	if p.Map != nil {
		m, err := parseConceptMap(p.Map)
		if err != nil {
			return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "the concept map cannot be read").Because(err)
		}
		return []*conceptMap{m}, nil
	}
	if p.URL != "" {
		c := parseCanonical(p.URL)
		if p.Version != "" {
			c.version = p.Version
		}
		m, err := sn.conceptMap(ctx, c)
		if err == nil && m == nil {
			err = notFound(typeConceptMap, c)
		}
		return []*conceptMap{m}, err
	}
	var maps []*conceptMap
	if sn.config.Resources != nil && p.Coding[0].System != "" {
		list, err := sn.config.Resources.ConceptMaps(ctx, p.Coding[0].System, p.Reverse)
		if err != nil {
			return nil, err
		}
		for _, v := range list {
			if m, err := parseConceptMap(v.Body); err == nil && m.fits(p) {
				maps = append(maps, m)
			}
		}
	}
	lib, err := sn.packages()
	if err != nil {
		return nil, err
	}
	for _, e := range lib.Entries(typeConceptMap) {
		m, err := sn.conceptMap(ctx, canonical{e.URL, ""})
		if err != nil {
			return nil, err
		}
		if m != nil && m.fits(p) {
			maps = append(maps, m)
		}
	}
	return maps, nil
}

// fits reports whether the map is between what p asks for.
func (m *conceptMap) fits(p *TranslateParams) bool {
	same := func(want string, have ...string) bool {
		return want == "" || slices.ContainsFunc(have, func(h string) bool { return parseCanonical(h).url == parseCanonical(want).url })
	}
	from, to := []string{m.SourceURI, m.SourceCanonical}, []string{m.TargetURI, m.TargetCanonical}
	if p.Reverse {
		from, to = to, from
	}
	return same(p.Source, from...) && same(p.Target, to...)
}

const maxOtherMaps = 8

// translate returns the matches of one coding in one map.
func (sn *snapshot) translate(ctx context.Context, m *conceptMap, c Coding, p *TranslateParams, depth int) ([]Translation, error) {
	var out []Translation
	add := func(t Translation) {
		if p.TargetSystem == "" || t.Concept.System == p.TargetSystem {
			t.Source = m.URL
			out = append(out, t)
		}
	}
	for i := range m.Group {
		group := &m.Group[i]
		from, to := group.Source, group.Target
		if p.Reverse {
			from, to = to, from
		}
		if c.System != "" && from != "" && c.System != from {
			continue
		}
		found := false
		for _, e := range group.Element {
			if !p.Reverse && e.Code != c.Code {
				continue
			}
			for _, t := range e.Target {
				switch {
				case p.Reverse && t.Code == c.Code:
					add(Translation{Equivalence: converse(t.Equivalence), Concept: Coding{System: to, Version: group.SourceVersion, Code: e.Code, Display: e.Display}})
				case !p.Reverse:
					found = true
					add(Translation{Equivalence: t.Equivalence, Product: t.Product,
						Concept: Coding{System: to, Version: group.TargetVersion, Code: t.Code, Display: t.Display}})
				}
			}
		}
		if found || p.Reverse || group.Unmapped == nil {
			continue
		}
		switch u := group.Unmapped; u.Mode {
		case "provided":
			add(Translation{Equivalence: "equal", Concept: Coding{System: to, Code: c.Code}})
		case "fixed":
			add(Translation{Equivalence: "inexact", Concept: Coding{System: to, Code: u.Code, Display: u.Display}})
		case "other-map":
			if depth >= maxOtherMaps {
				return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "ConceptMap %s: its unmapped codes lead from map to map without end", m.URL)
			}
			other, err := sn.conceptMap(ctx, parseCanonical(u.URL))
			if err != nil {
				return nil, err
			}
			if other == nil {
				return nil, notFound(typeConceptMap, parseCanonical(u.URL))
			}
			more, err := sn.translate(ctx, other, c, p, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
	}
	return out, nil
}

// converse is an equivalence seen from the other side.
func converse(equivalence string) string {
	switch equivalence {
	case "wider":
		return "narrower"
	case "narrower":
		return "wider"
	case "subsumes":
		return "specializes"
	case "specializes":
		return "subsumes"
	}
	return equivalence
}

// JSON returns the result as Parameters.
func (r TranslateResult) JSON() ([]byte, error) {
	list := []parameters.Parameter{parameters.Boolean("result", r.Result)}
	if r.Message != "" {
		list = append(list, parameters.String("message", r.Message))
	}
	for _, m := range r.Match {
		out := parameters.Parameter{Name: "match", Part: []parameters.Parameter{parameters.Code("equivalence", m.Equivalence)}}
		if m.Concept.Code != "" {
			out.Part = append(out.Part, parameters.Datatype("concept", "Coding", &m.Concept))
		}
		for _, q := range m.Product {
			out.Part = append(out.Part, parameters.Parameter{Name: "product", Part: []parameters.Parameter{
				parameters.URI("element", q.Property),
				parameters.Datatype("concept", "Coding", &Coding{System: q.System, Code: q.Value, Display: q.Display})}})
		}
		if m.Source != "" {
			out.Part = append(out.Part, parameters.URI("source", strings.TrimSpace(m.Source)))
		}
		list = append(list, out)
	}
	return parameters.Write(list)
}
