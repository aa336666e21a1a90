package search

import (
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// Registry knows the search parameters of every resource type. It is not changed
// once made: a new parameter makes a new Registry. Safe for concurrent use.
type Registry struct {
	model        *fhir.Model
	types        map[string]map[string]*fhir.Parameter // resource type -> code -> parameter
	sorted       map[string][]*fhir.Parameter
	names        []string // resource types, sorted
	compartments map[string]*fhir.Compartment
	compiled     map[string]map[string]*fhir.Parameter // types, without the parameters stored at run time
	narrowed     map[fhir.Key]struct{}                 // see Narrowed
	// systems are the implicit ones of keys whose entries name none.
	systems map[fhir.Key]string

	custom // the parameters stored at run time
}

// NewRegistry returns the registry of params. A later parameter replaces an
// earlier one of the same type and code.
func NewRegistry(model *fhir.Model, params []fhir.Parameter, compartments []fhir.Compartment) *Registry {
	r := &Registry{
		model:        model,
		types:        make(map[string]map[string]*fhir.Parameter),
		sorted:       make(map[string][]*fhir.Parameter),
		compartments: make(map[string]*fhir.Compartment),
		systems:      make(map[fhir.Key]string),
		narrowed:     make(map[fhir.Key]struct{}),
	}
	for typ := range model.Resources {
		r.types[typ] = make(map[string]*fhir.Parameter)
		r.names = append(r.names, typ)
	}
	slices.Sort(r.names)
	for i := range params {
		p := params[i]
		if r.types[p.Base] == nil {
			continue
		}
		// Single is about each key; here it is about all of them together.
		p.Single = p.Single && (len(p.Keys) <= 1 || oneChoice(p.Expression))
		if isNear(&p) {
			p.Keys = []fhir.Key{fhir.PositionKey}
		}
		r.types[p.Base][p.Code] = &p
		r.learnSystems(p.Keys, p.Systems)
		r.learnNarrowed(&p)
		for _, c := range p.Composites {
			for _, part := range c.Parts {
				r.learnSystems(part.Keys, slices.Repeat([]string{part.System}, len(part.Keys)))
			}
		}
	}
	for typ, byCode := range r.types {
		list := make([]*fhir.Parameter, 0, len(byCode))
		for _, p := range byCode {
			list = append(list, p)
		}
		slices.SortFunc(list, func(a, b *fhir.Parameter) int { return strings.Compare(a.Code, b.Code) })
		r.sorted[typ] = list
	}
	r.compiled = r.types
	for i := range compartments {
		r.compartments[compartments[i].Code] = &compartments[i]
	}
	return r
}

func (r *Registry) learnSystems(keys []fhir.Key, systems []string) {
	for i, system := range systems {
		if system != "" {
			r.systems[keys[i]] = system
		}
	}
}

// system is the implicit system that all of keys have, or "".
func (r *Registry) system(keys []fhir.Key) string {
	if len(keys) == 0 || slices.ContainsFunc(keys, func(k fhir.Key) bool { return r.systems[k] != r.systems[keys[0]] }) {
		return ""
	}
	return r.systems[keys[0]]
}

func (r *Registry) learnNarrowed(p *fhir.Parameter) {
	if narrowedTo(p) == nil {
		return
	}
	for _, k := range p.Keys {
		r.narrowed[k] = struct{}{}
	}
}

// Narrowed are the keys of references that a parameter shares but restricts to some types, as `patient` restricts
// `subject`: their entries contain the type (fhir.Index.Narrowed). Do not change it.
func (r *Registry) Narrowed() map[fhir.Key]struct{} { return r.narrowed }

// oneChoice reports whether the branches of an expression are types of one choice
// element, of which a resource has one at most.
func oneChoice(expression string) bool {
	element := ""
	for branch := range strings.SplitSeq(expression, "|") {
		branch = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(branch), "("), ")")
		var path string
		ok := false
		for _, as := range []string{" as ", ".as(", ".ofType("} {
			if path, _, ok = strings.Cut(branch, as); ok {
				break
			}
		}
		if !ok || strings.ContainsAny(path, "()") || element != "" && path != element || strings.Contains(branch, ").") {
			return false
		}
		element = path
	}
	return element != ""
}

// With returns a registry that has params too, in place of those with the same
// type and code.
func (r *Registry) With(params []fhir.Parameter) *Registry {
	var all []fhir.Parameter
	for _, typ := range r.names {
		for _, p := range r.sorted[typ] {
			all = append(all, *p)
		}
	}
	var compartments []fhir.Compartment
	for _, c := range r.compartments {
		compartments = append(compartments, *c)
	}
	return NewRegistry(r.model, append(all, params...), compartments)
}

// Lookup returns the parameter code of a resource type. `_id`, `_lastUpdated` and
// the other parameters that are no entries of the index are not among them.
func (r *Registry) Lookup(typ, code string) (*fhir.Parameter, bool) {
	p, ok := r.types[typ][code]
	return p, ok
}

// Compiled returns the compiled parameter code of a resource type, whether one that
// arrived at run time stands in its place or not.
func (r *Registry) Compiled(typ, code string) (*fhir.Parameter, bool) {
	p, ok := r.compiled[typ][code]
	return p, ok
}

// Parameters returns the parameters of a resource type, by code. Those with
// Unsupported set are refused when they are used.
func (r *Registry) Parameters(typ string) []*fhir.Parameter { return r.sorted[typ] }

// Compartment returns the definition of a compartment: Patient, Encounter, ….
func (r *Registry) Compartment(code string) (*fhir.Compartment, bool) {
	c, ok := r.compartments[code]
	return c, ok
}

// Has reports whether typ is a resource type.
func (r *Registry) Has(typ string) bool { return r.types[typ] != nil }

// Types returns every resource type, sorted.
func (r *Registry) Types() []string { return r.names }

// Targets returns the resource types that a reference parameter may point at:
// its own, or every type when it names none.
func (r *Registry) Targets(p *fhir.Parameter) []string {
	if len(p.Targets) == 0 {
		return r.names
	}
	return p.Targets
}

// unsupportedReason is why p cannot be searched, or "".
func unsupportedReason(p *fhir.Parameter) string {
	if p.Unsupported != "" {
		return p.Unsupported
	}
	if p.Type == fhir.SearchSpecial && !isNear(p) {
		return fhir.RefusedSpecial
	}
	for _, c := range p.Composites {
		if c.Key == 0 {
			continue
		}
		ordered, numbers := 0, 0
		for _, part := range c.Parts {
			if isOrdered(part.Type) {
				ordered++
			}
			if part.Type == fhir.SearchNumber {
				numbers++
			}
		}
		if ordered > 1 && (ordered != 2 || numbers != 2) {
			return "a composite with more than one ordered component is not supported, but for two numbers"
		}
	}
	return ""
}

// isNear reports whether p is the parameter near of Location, whose entries are those
// of fhir.Index.Position.
func isNear(p *fhir.Parameter) bool {
	return p.Type == fhir.SearchSpecial && p.Base == "Location" && p.Code == "near"
}

// Supported reports whether p can be searched, for /metadata.
func Supported(p *fhir.Parameter) bool { return unsupportedReason(p) == "" }

func isOrdered(t fhir.SearchType) bool {
	switch t {
	case fhir.SearchDate, fhir.SearchNumber, fhir.SearchQuantity, fhir.SearchString:
		return true
	}
	return false
}

// typeError says that typ is no resource type and names the nearest one.
func (r *Registry) typeError(typ string) *outcome.Error {
	return outcome.RefusedParameter("resource type %q is not known%s", outcome.Clip(typ), r.NearestType(typ))
}

// NearestType returns `, did you mean "Patient"?` for a misspelt type, or "".
func (r *Registry) NearestType(typ string) string { return outcome.DidYouMean(typ, r.names) }

// codesOf returns what may stand as a parameter name for typ.
func (r *Registry) codesOf(typ string) []string {
	list := slices.Clone(commonNames)
	if typ != "" {
		for _, p := range r.sorted[typ] {
			if unsupportedReason(p) == "" {
				list = append(list, p.Code)
			}
		}
	}
	return list
}
