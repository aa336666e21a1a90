package rest

import (
	"net/http"
	"strconv"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// BundleJSON is b as JSON, with URLs below base.
func BundleJSON(base string, b *interaction.Bundle) []byte { return appendBundle(nil, base, b) }

// appendBundle appends b as JSON. Resources are copied as they are stored; base
// makes the URLs absolute.
// Spec: https://hl7.org/fhir/R4/bundle.html.
func appendBundle(dst []byte, base string, b *interaction.Bundle) []byte {
	dst = append(dst, `{"resourceType":"Bundle","type":"`...)
	dst = append(dst, b.Type...)
	dst = append(dst, '"')
	if b.Total >= 0 {
		dst = append(dst, `,"total":`...)
		dst = strconv.AppendInt(dst, int64(b.Total), 10)
	}
	for i, l := range b.Links {
		dst = append(dst, opener(i, `,"link":[`)...)
		dst = append(dst, `{"relation":"`...)
		dst = append(dst, l.Relation...)
		dst = append(dst, `","url":`...)
		dst = appendURL(dst, base, l.URL)
		dst = append(dst, '}')
	}
	dst = closer(dst, len(b.Links))
	for i := range b.Entries {
		dst = append(dst, opener(i, `,"entry":[`)...)
		dst = appendEntry(dst, base, &b.Entries[i])
	}
	dst = closer(dst, len(b.Entries))
	return append(dst, '}')
}

// opener is the text before element i of an array.
func opener(i int, first string) string {
	if i == 0 {
		return first
	}
	return ","
}

func closer(dst []byte, n int) []byte {
	if n > 0 {
		dst = append(dst, ']')
	}
	return dst
}

func appendURL(dst []byte, base, relative string) []byte {
	return fhir.AppendString(dst, base, "/", relative)
}

func appendEntry(dst []byte, base string, e *interaction.Entry) []byte {
	dst = append(dst, '{')
	start := len(dst)
	next := func(name string) {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = append(dst, name...)
		dst = append(dst, `":`...)
	}
	v := &e.Version
	if v.ResourceType != "" && v.ID != "" && e.Nested == nil {
		next("fullUrl")
		dst = fhir.AppendString(dst, base, "/", v.ResourceType, "/", v.ID)
	} else if e.FullURL != "" {
		next("fullUrl")
		dst = fhir.AppendString(dst, e.FullURL)
	}
	switch {
	case e.Nested != nil:
		next("resource")
		dst = appendBundle(dst, base, e.Nested)
	case e.Body != nil:
		next("resource")
		dst = append(dst, e.Body...)
	case !e.NoResource && v.Body != nil:
		next("resource")
		dst = append(dst, v.Body...)
	}
	if e.Mode != "" {
		next("search")
		dst = append(dst, `{"mode":"`...)
		dst = append(dst, e.Mode...)
		dst = append(dst, `"}`...)
	}
	if e.Request.Method != "" {
		next("request")
		dst = append(dst, `{"method":"`...)
		dst = append(dst, e.Request.Method...)
		dst = append(dst, `","url":`...)
		dst = fhir.AppendString(dst, e.Request.URL)
		dst = append(dst, '}')
	}
	if a := e.Answer; a != nil {
		next("response")
		dst = append(dst, `{"status":"`...)
		dst = strconv.AppendInt(dst, int64(a.Status), 10)
		if text := http.StatusText(a.Status); text != "" {
			dst = append(dst, ' ')
			dst = append(dst, text...)
		}
		dst = append(dst, '"')
		if a.Located && v.VersionID > 0 {
			dst = append(dst, `,"location":`...)
			dst = fhir.AppendString(dst, interaction.Location(*v))
			dst = append(dst, `,"etag":`...)
			dst = fhir.AppendString(dst, interaction.ETag(v.VersionID))
			dst = append(dst, `,"lastModified":"`...)
			dst = fhir.AppendInstant(dst, v.LastUpdated)
			dst = append(dst, '"')
		}
		if len(a.Issues) > 0 {
			dst = append(dst, `,"outcome":`...)
			dst = append(dst, outcome.JSON(a.Issues)...)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
