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

// Subset applies _summary and _elements to an answer that is one resource.
// Spec: https://hl7.org/fhir/R4/http.html#summary.
func (s *Service) Subset(r Response, values url.Values) (Response, error) {
	if r.Version.Body == nil {
		return r, nil
	}
	cut, summary, err := s.Subsets([]string{r.Version.ResourceType}, values)
	if err != nil {
		return r, err
	}
	if summary == search.SummaryCount {
		return r, outcome.Invalid("_summary=count counts the matches of a search; this is about one resource")
	}
	r.Version = cut(r.Version)
	return r, nil
}

// Subsets reads _summary and _elements for resources of some types, none for all: what
// cuts a version down to them, and the summary.
func (s *Service) Subsets(types []string, values url.Values) (func(fhir.Version) fhir.Version, search.Summary, error) {
	var given []string
	for _, v := range values["_elements"] {
		if v != "" {
			given = append(given, v)
		}
	}
	elements, err := s.Parameters.Current().Elements(types, given)
	if err != nil {
		return nil, "", err
	}
	summary := search.Summary(values.Get("_summary"))
	switch summary {
	case "false":
		summary = search.SummaryNone
	case search.SummaryNone, search.SummaryTrue, search.SummaryText, search.SummaryData, search.SummaryCount:
	default:
		return nil, "", outcome.Invalid("_summary is %q: expected true, text, data, count or false", outcome.Clip(string(summary)))
	}
	if summary != search.SummaryNone && len(elements) > 0 {
		return nil, "", outcome.Invalid("_summary and _elements cannot be combined")
	}
	return s.newReducer(summary, elements), summary, nil
}

// newReducer returns a function that cuts a version down to a summary or to some elements.
// Mandatory and modifier elements, id and meta always stay. It works on the stored text,
// whose top-level elements it copies or leaves out.
func (s *Service) newReducer(summary search.Summary, elements []string) func(fhir.Version) fhir.Version {
	if len(elements) == 0 && (summary == search.SummaryNone || summary == search.SummaryCount) {
		return func(v fhir.Version) fhir.Version { return v }
	}
	var keep func(f *fhir.Field) bool
	left := func(f *fhir.Field, _ string, value []byte) []byte {
		if keep(f) {
			return value
		}
		return nil
	}
	switch {
	case len(elements) > 0:
		keep = func(f *fhir.Field) bool { return f.Min > 0 || f.Modifier || slices.Contains(elements, f.Name) }
	case summary == search.SummaryTrue:
		left = summarizer{s.Model}.keptPart
	case summary == search.SummaryText:
		keep = func(f *fhir.Field) bool { return f.Name == "text" || f.Min > 0 }
	case summary == search.SummaryData:
		keep = func(f *fhir.Field) bool { return f.Name != "text" }
	}
	return func(v fhir.Version) fhir.Version {
		if r := s.Model.Resources[v.ResourceType]; r != nil && v.Body != nil {
			v.Body = reduceBody(r.Type(), v.Body, left)
		}
		return v
	}
}

// reduceBody copies the result of left for each property of body, nil for nothing.
func reduceBody(t *fhir.Type, body []byte, left func(f *fhir.Field, name string, value []byte) []byte) []byte {
	out := make([]byte, 0, len(body))
	out = append(out, '{')
	marked := false
	for name, value := range EachMember(body) {
		switch name {
		case "resourceType", "id":
		case "meta":
			value, marked = tagged(value), true
		default:
			f := t.FieldOf(name)
			if f == nil {
				continue
			}
			if value = left(f, name, value); value == nil {
				continue
			}
		}
		out = appendMember(out, name, value)
	}
	if !marked { // a resource made for the answer
		out = append(out, `,"meta":{"tag":[`+subsetted+`]}`...)
	}
	return append(out, '}')
}

// tagged adds the tag SUBSETTED to a meta.
func tagged(meta []byte) []byte {
	if bytes.Contains(meta, []byte(subsetted)) {
		return meta
	}
	for name, value := range EachMember(meta) {
		if name == "tag" && len(value) > 2 {
			// value is a part of meta: cut it open before its last bracket. An equal
			// list may stand elsewhere in meta, so its place is reckoned from the end.
			i := cap(meta) - cap(value) + len(value) - 1
			return slices.Concat(meta[:i], []byte(","+subsetted), meta[i:])
		}
	}
	return slices.Concat(meta[:len(meta)-1], []byte(`,"tag":[`+subsetted+`]}`))
}

// EachMember yields the properties of a stored JSON object: compact, well formed,
// without escapes in names.
func EachMember(object []byte) func(yield func(name string, value []byte) bool) {
	return func(yield func(string, []byte) bool) {
		for i := 1; i < len(object) && object[i] == '"'; i++ {
			nameEnd := i + 1 + bytes.IndexByte(object[i+1:], '"')
			from := nameEnd + 2 // the quote and the colon
			to := valueEnd(object, from)
			if !yield(string(object[i+1:nameEnd]), object[from:to]) {
				return
			}
			i = to
		}
	}
}

// eachItem yields the elements of a stored JSON array.
func eachItem(array []byte) func(yield func(value []byte) bool) {
	return func(yield func([]byte) bool) {
		for from := 1; from < len(array)-1; {
			to := valueEnd(array, from)
			if !yield(array[from:to]) {
				return
			}
			from = to + 1
		}
	}
}

// valueEnd is the end of the JSON value that begins at from: the position of the next comma
// or closing bracket of its parent.
func valueEnd(text []byte, from int) int {
	depth := 0
	for i := from; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text)
}

// appendMember appends a property to an object that is not closed.
func appendMember(out []byte, name string, value []byte) []byte {
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	out = append(out, '"')
	out = append(out, name...)
	out = append(out, `":`...)
	return append(out, value...)
}
