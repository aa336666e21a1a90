package searchparam

import (
	"errors"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/store"
)

// stored is a SearchParameter resource, read.
type stored struct {
	id         string
	version    int
	definition search.Definition
	retired    bool
	custom     *search.Custom // nil where it is a compiled one, retired, or err is set
	err        error
}

// versionsByKey are those that need not be read again.
func (at *snapshot) versionsByKey() map[int64]int {
	out := make(map[int64]int, len(at.stored))
	for rid, sp := range at.stored {
		out[rid] = sp.version
	}
	return out
}

// readParameters compiles the new entries of list, and takes the others from at.
func (s *Service) readParameters(at *snapshot, list []store.StoredParameter) map[int64]*stored {
	out := make(map[int64]*stored, len(list))
	var fresh []*stored
	for _, r := range list {
		if sp := at.stored[r.RID]; sp != nil && sp.version == r.VersionID {
			out[r.RID] = sp
			continue
		}
		sp := &stored{id: r.ID, version: r.VersionID}
		resource, err := fhir.Decode(s.Model, r.Body)
		p, ok := resource.(*r4.SearchParameter)
		if err == nil && !ok {
			err = errors.New("it is no SearchParameter")
		}
		if sp.err = err; err == nil {
			sp.definition, sp.retired = definitionOf(p), p.Status.Text == "retired"
		}
		out[r.RID] = sp
		fresh = append(fresh, sp)
	}
	// The parts of a composite may have been added, changed or removed.
	was, is := definitionLookup(at.stored), definitionLookup(out)
	for rid, sp := range out {
		if at.stored[rid] == sp && slices.ContainsFunc(sp.definition.Components, func(c search.Component) bool {
			x, had := was(c.Definition)
			y, has := is(c.Definition)
			return had != has || x.Code != y.Code || x.Type != y.Type
		}) {
			again := *sp
			again.err, again.custom = nil, nil
			out[rid] = &again
			fresh = append(fresh, &again)
		}
	}
	c := search.Compiler{Base: s.Base, Other: is}
	for _, sp := range fresh {
		if sp.err != nil || sp.retired {
			continue
		}
		sp.custom, sp.err = s.compile(&c, sp.definition)
	}
	return out
}

// definitionLookup finds definitions by URL.
func definitionLookup(list map[int64]*stored) func(url string) (search.Definition, bool) {
	return func(canonical string) (search.Definition, bool) {
		url, _, _ := strings.Cut(canonical, "|")
		for _, sp := range list {
			if sp.definition.URL != "" && sp.definition.URL == url {
				return sp.definition, true
			}
		}
		return search.Definition{}, false
	}
}

// compile compiles a definition; nil is one of a compiled parameter, which stays
// as it is.
func (s *Service) compile(c *search.Compiler, d search.Definition) (*search.Custom, error) {
	custom, err := c.Compile(d)
	if err != nil {
		if s.compiled(d) {
			return nil, nil
		}
		return nil, err
	}
	custom.Parameters = slices.DeleteFunc(custom.Parameters, func(p fhir.Parameter) bool {
		own, ok := s.Base.Lookup(p.Base, p.Code)
		same := ok && own.URL == p.URL && own.Type == p.Type && (own.Expression == p.Expression || p.Unsupported != "")
		if same {
			custom.Drop(p.Base)
		}
		return same
	})
	if len(custom.Parameters) == 0 {
		return nil, nil
	}
	return custom, nil
}

// compiled reports whether d names a parameter that the server was compiled with.
func (s *Service) compiled(d search.Definition) bool {
	for _, typ := range s.Base.Types() {
		if p, ok := s.Base.Lookup(typ, d.Code); ok && p.URL == d.URL && p.Type == d.Type {
			return true
		}
	}
	return false
}

// definitionOf returns the search parameter that a SearchParameter resource defines.
func definitionOf(p *r4.SearchParameter) search.Definition {
	d := search.Definition{
		URL: p.URL.Text, Code: p.Code.Text, Type: fhir.SearchType(p.Type_.Text),
		Expression: p.Expression.Text, Description: p.Description.Text,
	}
	for i := range p.Base {
		d.Base = append(d.Base, p.Base[i].Text)
	}
	for i := range p.Target {
		d.Targets = append(d.Targets, p.Target[i].Text)
	}
	for i := range p.Component {
		d.Components = append(d.Components, search.Component{Definition: p.Component[i].Definition.Text, Expression: p.Component[i].Expression.Text})
	}
	return d
}

// customParameters are the parameters in force, by id of their resource.
func (at *snapshot) customParameters() []*search.Custom {
	var list []*stored
	for _, sp := range at.stored {
		if sp.custom != nil {
			list = append(list, sp)
		}
	}
	slices.SortFunc(list, func(a, b *stored) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	out := make([]*search.Custom, len(list))
	for i, sp := range list {
		out[i] = sp.custom
	}
	return out
}
