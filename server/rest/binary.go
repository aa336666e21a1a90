package rest

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"mime"
	"net/http"
	"strings"

	"kiln/server/interaction"
)

// A Binary is read and written as its content, unless FHIR's JSON is asked for or sent.
// Spec: https://hl7.org/fhir/R4/binary.html#rest.

// wantsContent reports whether a read of a Binary is answered with its content, which has
// the type contentType. The client asks for the resource by a format of FHIR, by _format,
// _summary or _elements, or by a type of JSON or XML that the content does not have. XML
// beside a range that the content is in asks for the content: browsers accept XML.
func wantsContent(r *http.Request, contentType string) bool {
	values, err := parseQuery(r)
	if err != nil || values.Has("_format") || values.Has("_summary") || values.Has("_elements") {
		return false
	}
	held, _, _ := mime.ParseMediaType(contentType) // a type that cannot be read is none of these
	namesOther, namesContent := false, false
	for item := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		typ, params, err := mime.ParseMediaType(item)
		if err != nil || params["q"] == "0" {
			continue
		}
		major, _, _ := strings.Cut(held, "/")
		switch {
		case strings.HasPrefix(typ, "application/fhir+"):
			return false
		case typ == held, typ == "*/*", typ == major+"/*":
			namesContent = true
		case typ == "application/json", typ == "text/json":
			return false
		case typ == "application/xml", typ == "text/xml":
			namesOther = true
		}
	}
	return namesContent || !namesOther
}

// writeContent answers with b, the content of a Binary, or with the error of reading it. The
// header keeps a browser from running the content as a page of this origin.
func (c *call) writeContent(r *http.Request, resp interaction.Response, b interaction.Content, err error) {
	header := c.Header()
	v := &resp.Version
	header["Etag"] = []string{interaction.ETag(v.VersionID)}
	header["Last-Modified"] = []string{v.LastUpdated.UTC().Format(http.TimeFormat)}
	header["Vary"] = append(header["Vary"], "Accept")
	if resp.Status == http.StatusNotModified {
		c.WriteHeader(resp.Status)
		return
	}
	if err != nil {
		c.writeError(r, err)
		return
	}
	if b.SecurityContext != "" {
		header["X-Security-Context"] = []string{b.SecurityContext}
	}
	header["Content-Security-Policy"] = []string{"sandbox"}
	header["Content-Location"] = []string{c.baseURL(r) + "/" + interaction.Location(*v)}
	c.SendContent(r, http.StatusOK, b.Type, b.Data)
}

// binaryBody returns the Binary of a create or update under id, "" for a new one. The body
// is the Binary where it has no Content-Type, or a type of FHIR and the form of a Binary.
// Any other body is content.
func (c *call) binaryBody(r *http.Request, id string) ([]byte, error) {
	contentType := r.Header.Get("Content-Type")
	typ, _, err := mime.ParseMediaType(contentType)
	if contentType == "" {
		return c.resourceBody(r)
	}
	if err != nil {
		return nil, unsupportedType(contentType)
	}
	content, err := c.body(r)
	if err != nil {
		return nil, err
	}
	switch typ {
	case "application/fhir+json", "application/json", "text/json":
		if isBinaryJSON(content) {
			return content, checkJSON(r)
		}
	case "application/fhir+xml", "application/xml", "text/xml":
		if isBinaryXML(content) {
			return nil, unsupportedType(contentType)
		}
	}
	return interaction.Binary(id, interaction.Content{Type: contentType, SecurityContext: r.Header.Get("X-Security-Context"), Data: content}), nil
}

// isBinaryJSON reports whether a text begins as the JSON of a Binary does: as an object
// whose resourceType is Binary. The text need not be well-formed to its end.
func isBinaryJSON(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return false
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return false
		}
		if name == "resourceType" {
			return string(value) == `"Binary"`
		}
	}
	return false
}

// fhirNamespace is the namespace of FHIR's XML. Spec: https://hl7.org/fhir/R4/xml.html.
const fhirNamespace = "http://hl7.org/fhir"

// isBinaryXML reports whether the root of an XML document is a Binary of FHIR.
func isBinaryXML(text []byte) bool {
	d := xml.NewDecoder(bytes.NewReader(text))
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil } // the root is ASCII
	for {
		t, err := d.Token()
		if err != nil {
			return false
		}
		if root, ok := t.(xml.StartElement); ok {
			return root.Name == xml.Name{Space: fhirNamespace, Local: "Binary"}
		}
	}
}
