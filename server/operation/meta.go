package operation

import (
	"context"
	"net/http"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
)

// MetaParams are the inputs of $meta, $meta-add and $meta-delete.
type MetaParams struct {
	ResourceType, ID string
	// Body is a Parameters resource with a parameter meta; unused by $meta.
	Body []byte
}

// Meta returns the profiles, tags and security labels of a resource; without ID
// those that any resource of the type has, without ResourceType any at all.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta.html.
func (s *Set) Meta(ctx context.Context, p MetaParams) (interaction.Response, error) {
	return s.meta(ctx, s.Store, p)
}

func (s *Set) meta(ctx context.Context, from interaction.Reader, p MetaParams) (interaction.Response, error) {
	if p.ID == "" {
		return s.metaInUse(ctx, from, p.ResourceType)
	}
	answer, err := s.ReadFrom(ctx, from, interaction.ReadParams{ResourceType: p.ResourceType, ID: p.ID})
	if err != nil {
		return interaction.Response{}, err
	}
	return s.metaOf(answer.Version)
}

// MetaAdd adds the profiles, tags and security labels of Body to a resource, as
// a new version; those it has already stay single.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta-add.html.
func (s *Set) MetaAdd(ctx context.Context, p MetaParams) (interaction.Response, error) {
	return s.changeMeta(ctx, p, func(to, by *r4.Meta) {
		for _, profile := range by.Profile {
			if at(to.Profile, func(c *fhir.Canonical) bool { return c.Text == profile.Text }) < 0 {
				to.Profile = append(to.Profile, profile)
			}
		}
		to.Tag = addCodings(to.Tag, by.Tag)
		to.Security = addCodings(to.Security, by.Security)
	})
}

// MetaDelete takes the profiles, tags and security labels of Body away from a
// resource, as a new version. Codings are the same when system and code are.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta-delete.html.
func (s *Set) MetaDelete(ctx context.Context, p MetaParams) (interaction.Response, error) {
	return s.changeMeta(ctx, p, func(to, by *r4.Meta) {
		for _, profile := range by.Profile {
			if i := at(to.Profile, func(c *fhir.Canonical) bool { return c.Text == profile.Text }); i >= 0 {
				to.Profile = append(to.Profile[:i], to.Profile[i+1:]...)
			}
		}
		to.Tag = deleteCodings(to.Tag, by.Tag)
		to.Security = deleteCodings(to.Security, by.Security)
	})
}

func (s *Set) changeMeta(ctx context.Context, p MetaParams, change func(to, by *r4.Meta)) (interaction.Response, error) {
	if err := s.May(ctx, access.Update, p.ResourceType, p.ID); err != nil {
		return interaction.Response{}, err
	}
	by, err := s.metaParameter(p.Body)
	if err != nil {
		return interaction.Response{}, err
	}
	if !fhir.ValidID(p.ID) {
		return interaction.Response{}, outcome.NotFound(p.ResourceType, clip(p.ID))
	}
	w := &store.Write{Method: fhir.PUT, ResourceType: p.ResourceType, ID: p.ID, MustExist: true}
	w.Modify = func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		r, err := fhir.Decode(s.Model, current.Body)
		if err != nil {
			return nil, nil, err
		}
		change(metaAt(r), by)
		// Written anew and read again: body and index are of the same text.
		text := fhir.Encode(make([]byte, 0, len(current.Body)+256), r)
		if r, err = fhir.Decode(s.Model, text); err != nil {
			return nil, nil, err
		}
		body, err := fhir.Splice(text, nil)
		if err != nil {
			return nil, nil, err
		}
		x, err := s.Parameters.Index(current.ID, r)
		return body, x, err
	}
	if err := s.Store.Write(ctx, w); err != nil {
		return interaction.Response{}, err
	}
	return s.metaOf(w.Result)
}

// metaParameter reads the parameter meta of a Parameters resource.
func (s *Set) metaParameter(body []byte) (*r4.Meta, error) {
	r, err := s.Decode("Parameters", body)
	if err != nil {
		return nil, err
	}
	for _, p := range r.(*r4.Parameters).Parameter {
		if m, ok := p.Value.(*r4.Meta); ok && p.Name.Text == "meta" {
			return m, nil
		}
	}
	return nil, outcome.New(outcome.CodeRequired, "the Parameters have no parameter meta with a valueMeta").At("Parameters.parameter")
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
