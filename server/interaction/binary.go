package interaction

import (
	"encoding/base64"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// Content is the content of a Binary. Spec: https://hl7.org/fhir/R4/binary.html.
type Content struct {
	Type            string // MIME type
	SecurityContext string // reference to the resource whose access rules count; may be ""
	Data            []byte
}

// Content reads a stored Binary.
func (s *Service) Content(v fhir.Version) (Content, error) {
	r, err := fhir.Decode(s.Model, v.Body)
	if err != nil {
		return Content{}, err
	}
	b, ok := r.(*r4.Binary)
	if !ok {
		return Content{}, outcome.Invalid("%s/%s is no Binary", v.ResourceType, v.ID)
	}
	out := Content{Type: b.ContentType.Text}
	if b.SecurityContext != nil {
		out.SecurityContext = b.SecurityContext.Reference.Text
	}
	out.Data, err = base64.StdEncoding.DecodeString(strings.Map(dropSpace, b.Data.Text))
	if err != nil {
		return Content{}, outcome.Invalid("Binary/%s has data that is no base64; it can be read as application/fhir+json", v.ID).Because(err)
	}
	return out, nil
}

// Binary is the resource that holds c, as JSON; id is "" for a new one.
func Binary(id string, c Content) []byte {
	b := new(r4.Binary)
	b.ID.Text = id
	b.ContentType.Text = c.Type
	if c.SecurityContext != "" {
		b.SecurityContext = new(r4.Reference)
		b.SecurityContext.Reference.Text = c.SecurityContext
	}
	b.Data.Text = base64.StdEncoding.EncodeToString(c.Data)
	return fhir.Encode(nil, b)
}
