package interaction

import (
	"bytes"
	"net/url"
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// subsetted is the tag of a resource that is not whole.
// Spec: https://hl7.org/fhir/R4/search.html#elements.
const subsetted = `{"system":"http://terminology.hl7.org/CodeSystem/v3-ObservationValue","code":"SUBSETTED","display":"subsetted"}`

// Subset applies _summary and _elements to the answer of a read.
// Spec: https://hl7.org/fhir/R4/http.html#summary.
func (s *Service) Subset(r Response, values url.Values) (Response, error) {
	if r.Version.Body == nil {
		return r, nil
	}
	elements, err := s.Registry().Elements([]string{r.Version.ResourceType}, values["_elements"])
	if err != nil {
		return r, err
	}
	summary := search.Summary(values.Get("_summary"))
	switch summary {
	case "false":
		summary = search.SummaryNone
	case search.SummaryNone, search.SummaryTrue, search.SummaryText, search.SummaryData:
	case search.SummaryCount:
		return r, outcome.Invalid("_summary=count counts the matches of a search; this is a read")
	default:
		return r, outcome.Invalid("_summary is %q: expected true, text, data or false", clip(string(summary)))
	}
	if summary != search.SummaryNone && len(elements) > 0 {
		return r, outcome.Invalid("_summary and _elements cannot be combined")
	}
	r.Version = s.reducer(summary, elements)(r.Version)
	return r, nil
}

// reducer returns what cuts a version down to a summary or to some elements.
// Mandatory and modifier elements, id and meta always stay. It works on the
// stored text, whose top-level elements it copies or leaves out.
func (s *Service) reducer(summary search.Summary, elements []string) func(fhir.Version) fhir.Version {
	var keep func(f *fhir.Field) bool
	switch {
	case len(elements) > 0:
		keep = func(f *fhir.Field) bool { return f.Min > 0 || f.Modifier || slices.Contains(elements, f.Name) }
	case summary == search.SummaryTrue:
		keep = func(f *fhir.Field) bool { return f.Summary || f.Min > 0 }
	case summary == search.SummaryText:
		keep = func(f *fhir.Field) bool { return f.Name == "text" || f.Min > 0 }
	case summary == search.SummaryData:
		keep = func(f *fhir.Field) bool { return f.Name != "text" }
	default:
		return func(v fhir.Version) fhir.Version { return v }
	}
	return func(v fhir.Version) fhir.Version {
		if r := s.Model.Resources[v.ResourceType]; r != nil && v.Body != nil {
			v.Body = reduce(r.Type(), v.Body, keep)
		}
		return v
	}
}

// reduce copies the properties of body whose fields are to be kept.
func reduce(t *fhir.Type, body []byte, keep func(f *fhir.Field) bool) []byte {
	out := make([]byte, 0, len(body))
	out = append(out, '{')
	marked := false
	for name, value := range members(body) {
		switch name {
		case "resourceType", "id":
		case "meta":
			value, marked = tagged(value), true
		default:
			if f := t.FieldOf(name); f == nil || !keep(f) {
				continue
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, name...)
		out = append(out, `":`...)
		out = append(out, value...)
	}
	if !marked { // a resource made for the answer
		out = append(out, `,"meta":{"tag":[`+subsetted+`]}`...)
	}
	return append(out, '}')
}

// tagged adds the tag SUBSETTED to a meta.
func tagged(meta []byte) []byte {
	for name, value := range members(meta) {
		if name == "tag" && len(value) > 2 {
			// value is a part of meta: cut it open before its last bracket. An equal
			// list may stand elsewhere in meta, so its place is reckoned from the end.
			i := cap(meta) - cap(value) + len(value) - 1
			return slices.Concat(meta[:i], []byte(","+subsetted), meta[i:])
		}
	}
	return slices.Concat(meta[:len(meta)-1], []byte(`,"tag":[`+subsetted+`]}`))
}

// members yields the properties of a stored JSON object: compact, well formed,
// without escapes in names.
func members(object []byte) func(yield func(name string, value []byte) bool) {
	return func(yield func(string, []byte) bool) {
		for i := 1; i < len(object) && object[i] == '"'; i++ {
			nameEnd := i + 1 + bytes.IndexByte(object[i+1:], '"')
			from := nameEnd + 2 // the quote and the colon
			to := from
			for depth := 0; to < len(object); to++ {
				switch object[to] {
				case '"':
					for to++; object[to] != '"'; to++ {
						if object[to] == '\\' {
							to++
						}
					}
					continue
				case '{', '[':
					depth++
					continue
				case '}', ']':
					if depth--; depth >= 0 {
						continue
					}
				case ',':
					if depth > 0 {
						continue
					}
				default:
					continue
				}
				break
			}
			if !yield(string(object[i+1:nameEnd]), object[from:to]) {
				return
			}
			i = to
		}
	}
}
