package rest

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"kiln/server/outcome"
)

// The content types of answers.
const (
	fhirJSON  = "application/fhir+json; charset=utf-8"
	plainJSON = "application/json; charset=utf-8"
)

// Format is the content type that a request asks the answer to have. It fails with
// not-supported, 406.
func Format(r *http.Request) (string, error) { return format(r, formatOf(r)) }

// format decides the content type of the answer: by _format if it is given, else by Accept.
// Types other than JSON are not-supported, 406.
// Spec: https://hl7.org/fhir/R4/http.html#mime-type.
func format(r *http.Request, formatParam string) (string, error) {
	switch formatParam {
	case "":
		return accept(r.Header["Accept"])
	case "json", "application/fhir+json", "application/fhir json": // a plus sign in a URL is a space
		return fhirJSON, nil
	case "application/json", "text/json":
		return plainJSON, nil
	}
	if typ, params, err := mime.ParseMediaType(formatParam); err == nil {
		if out, _, ok := offer(typ, params); ok {
			return out, nil
		}
	}
	return fhirJSON, notAcceptable("_format=" + outcome.Clip(formatParam))
}

// accept picks the content type that the client likes best.
func accept(headers []string) (string, error) {
	if len(headers) == 0 {
		return fhirJSON, nil
	}
	if len(headers) == 1 {
		switch headers[0] {
		case "", "*/*", "application/fhir+json":
			return fhirJSON, nil
		case "application/json":
			return plainJSON, nil
		}
	}
	type liked struct {
		contentType string
		q           float64
		specific    bool
	}
	var ranges []liked
	named := make(map[string]bool)
	for item := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		typ, params, err := mime.ParseMediaType(item)
		if err != nil {
			continue
		}
		out, specific, ok := offer(typ, params)
		if !ok {
			continue
		}
		q := 1.0
		if text := params["q"]; text != "" {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				continue
			}
		}
		ranges = append(ranges, liked{out, q, specific})
		named[out] = named[out] || specific
	}
	// A range says nothing of a type that is named, RFC 9110 section 12.5.1.
	unnamed := fhirJSON
	switch {
	case !named[fhirJSON]:
	case !named[plainJSON]:
		unnamed = plainJSON
	default:
		unnamed = ""
	}
	best, bestQ, bestSpecific := "", 0.0, false
	for _, r := range ranges {
		if !r.specific {
			r.contentType = unnamed
		}
		if r.contentType == "" {
			continue
		}
		if r.q > bestQ || r.q == bestQ && r.q > 0 && r.specific && !bestSpecific {
			best, bestQ, bestSpecific = r.contentType, r.q, r.specific
		}
	}
	if best == "" {
		return fhirJSON, notAcceptable("Accept: " + outcome.Clip(strings.Join(headers, ", ")))
	}
	return best, nil
}

// offer says which of our types satisfies a media range, and whether the range
// names it.
func offer(typ string, params map[string]string) (out string, specific, ok bool) {
	if v := params["fhirversion"]; v != "" && v != "4.0" && v != "4.0.1" {
		return "", false, false
	}
	switch typ {
	case "application/fhir+json":
		return fhirJSON, true, true
	case "application/json", "text/json":
		return plainJSON, true, true
	case "*/*", "application/*", "text/*":
		return fhirJSON, false, typ != "text/*"
	}
	return "", false, false
}

func notAcceptable(what string) error {
	return outcome.NotAcceptable("%s asks for a format that is not served; application/fhir+json and application/json are", what)
}
