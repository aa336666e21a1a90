package interaction

import (
	"context"
	"net/http"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
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
func (s *Service) Meta(ctx context.Context, p MetaParams) (Response, error) {
	return s.meta(ctx, s.Store, p)
}

func (s *Service) meta(ctx context.Context, from reader, p MetaParams) (Response, error) {
	if p.ID == "" {
		return s.metaInUse(ctx, from, p.ResourceType)
	}
	answer, err := s.read(ctx, from, ReadParams{ResourceType: p.ResourceType, ID: p.ID})
	if err != nil {
		return Response{}, err
	}
	return s.metaOf(answer.Version)
}

// MetaAdd adds the profiles, tags and security labels of Body to a resource, as
// a new version; those it has already stay single.
// Spec: https://hl7.org/fhir/R4/resource-operation-meta-add.html.
func (s *Service) MetaAdd(ctx context.Context, p MetaParams) (Response, error) {
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
func (s *Service) MetaDelete(ctx context.Context, p MetaParams) (Response, error) {
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

func (s *Service) changeMeta(ctx context.Context, p MetaParams, change func(to, by *r4.Meta)) (Response, error) {
	if err := s.may(ctx, access.Update, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	by, err := s.metaParameter(p.Body)
	if err != nil {
		return Response{}, err
	}
	if !fhir.ValidID(p.ID) {
		return Response{}, outcome.NotFound(p.ResourceType, clip(p.ID))
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
		x, err := s.index(current.ID, r)
		return body, x, err
	}
	if err := s.Store.Write(ctx, w); err != nil {
		return Response{}, err
	}
	return s.metaOf(w.Result)
}

// metaParameter reads the parameter meta of a Parameters resource.
func (s *Service) metaParameter(body []byte) (*r4.Meta, error) {
	r, err := s.decode("Parameters", body)
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
func (s *Service) metaOf(v fhir.Version) (Response, error) {
	r, err := fhir.Decode(s.Model, v.Body)
	if err != nil {
		return Response{}, err
	}
	return metaParameters(metaAt(r)), nil
}

func metaParameters(m *r4.Meta) Response {
	out := &r4.Parameters{Parameter: []r4.ParametersParameter{{Value: m}}}
	out.Parameter[0].Name.Text = "return"
	return Response{Status: http.StatusOK, Body: fhir.Encode(nil, out)}
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
