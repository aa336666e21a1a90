package operation

import (
	"context"
	"net/http"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// metaNeeds are the rights of $meta: it reads one resource, or finds all of a type.
func metaNeeds(p Request) []access.Interaction {
	if p.ID == "" {
		return []access.Interaction{access.Search}
	}
	return []access.Interaction{access.Read}
}

// metaOperation is $meta: the profiles, tags and security labels of a resource; of a type
// those that any resource of it has, of the system any at all.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta.html.
func (s *Set) metaOperation() Operation {
	return Operation{Definition: core + "Resource-meta", Needs: metaNeeds, Run: func(ctx context.Context, p Request, _ *Inputs) (interaction.Response, error) {
		if p.ID == "" {
			return s.metaInUse(ctx, p.From, p.ResourceType)
		}
		answer, err := s.ReadFrom(ctx, p.From, interaction.ReadParams{ResourceType: p.ResourceType, ID: p.ID})
		if err != nil {
			return interaction.Response{}, err
		}
		return s.metaOf(answer.Version)
	}}
}

// metaAdd is $meta-add: it adds profiles, tags and security labels to a resource, as
// a new version; those it has already stay single.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta-add.html.
func (s *Set) metaAdd() Operation {
	return s.metaChange("Resource-meta-add", func(to, by *r4.Meta) {
		for _, profile := range by.Profile {
			if at(to.Profile, func(c *fhir.Canonical) bool { return c.Text == profile.Text }) < 0 {
				to.Profile = append(to.Profile, profile)
			}
		}
		to.Tag = addCodings(to.Tag, by.Tag)
		to.Security = addCodings(to.Security, by.Security)
	})
}

// metaDelete is $meta-delete: it takes profiles, tags and security labels away from
// a resource, as a new version. Codings are the same when system and code are.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta-delete.html.
func (s *Set) metaDelete() Operation {
	return s.metaChange("Resource-meta-delete", func(to, by *r4.Meta) {
		for _, profile := range by.Profile {
			if i := at(to.Profile, func(c *fhir.Canonical) bool { return c.Text == profile.Text }); i >= 0 {
				to.Profile = append(to.Profile[:i], to.Profile[i+1:]...)
			}
		}
		to.Tag = deleteCodings(to.Tag, by.Tag)
		to.Security = deleteCodings(to.Security, by.Security)
	})
}

func (s *Set) metaChange(definition string, change func(to, by *r4.Meta)) Operation {
	return Operation{Definition: core + definition, Writes: true, Needs: onType(access.Read, access.Update), Run: func(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
		e, err := in.Element("meta")
		if err != nil {
			return interaction.Response{}, err
		}
		by, ok := e.(*r4.Meta)
		if !ok {
			return interaction.Response{}, outcome.Invalid("%s: parameter meta is no Meta", p.Name)
		}
		v, err := s.Modify(ctx, p.ResourceType, p.ID, func(r fhir.Resource) { change(metaAt(r), by) })
		if err != nil {
			return interaction.Response{}, err
		}
		if readable, err := s.Readable(ctx, v); err != nil || !readable {
			return interaction.Response{Status: http.StatusOK, Body: fhir.Encode(nil, new(r4.Parameters))}, err
		}
		return s.metaOf(v)
	}}
}

// metaOf is the answer to every $meta operation.
func (s *Set) metaOf(v fhir.Version) (interaction.Response, error) {
	r, err := fhir.Decode(s.Model, v.Body)
	if err != nil {
		return interaction.Response{}, err
	}
	return metaParameters(metaAt(r)), nil
}

func metaParameters(m *r4.Meta) interaction.Response {
	out := &r4.Parameters{Parameter: []r4.ParametersParameter{{Value: m}}}
	out.Parameter[0].Name.Text = "return"
	return interaction.Response{Status: http.StatusOK, Body: fhir.Encode(nil, out)}
}

// metaAt returns the meta of a stored resource, which always has one.
func metaAt(r fhir.Resource) *r4.Meta {
	for _, n := range fhir.NodeOf(r).AppendChild(nil, "meta") {
		if m, ok := n.Element().(*r4.Meta); ok {
			return m
		}
	}
	return new(r4.Meta)
}

func at[T any](list []T, is func(*T) bool) int {
	for i := range list {
		if is(&list[i]) {
			return i
		}
	}
	return -1
}

func sameCoding(a *r4.Coding) func(*r4.Coding) bool {
	return func(b *r4.Coding) bool { return a.System.Text == b.System.Text && a.Code.Text == b.Code.Text }
}

func addCodings(to, by []r4.Coding) []r4.Coding {
	for i := range by {
		if at(to, sameCoding(&by[i])) < 0 {
			to = append(to, by[i])
		}
	}
	return to
}

func deleteCodings(to, by []r4.Coding) []r4.Coding {
	for i := range by {
		if n := at(to, sameCoding(&by[i])); n >= 0 {
			to = append(to[:n], to[n+1:]...)
		}
	}
	return to
}
