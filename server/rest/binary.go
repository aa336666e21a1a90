package rest

import (
	"mime"
	"net/http"
	"slices"
	"strings"

	"kiln/server/interaction"
)

// A Binary is read and written as what it holds, unless FHIR's JSON is asked for
// or sent. Spec: https://hl7.org/fhir/R4/binary.html#rest.

// wantsContent reports whether a read of a Binary is to be answered with its
// content: a format of FHIR must be asked for, by Accept or _format, or by
// parameters that only a resource has.
func wantsContent(r *http.Request) bool {
	values, err := query(r)
	if err != nil || values.Has("_format") || values.Has("_summary") || values.Has("_elements") {
		return false
	}
	for item := range strings.SplitSeq(strings.Join(r.Header["Accept"], ","), ",") {
		typ, params, err := mime.ParseMediaType(item)
		if err != nil || params["q"] == "0" {
			continue
		}
		if _, specific, ok := offer(typ, params); ok && specific || strings.HasPrefix(typ, "application/fhir+") {
			return false
		}
	}
	return true
}

// content answers with what a Binary holds. A browser must neither guess another
// type nor run what comes from this origin.
func (c *call) content(r *http.Request, resp interaction.Response) {
	header := c.Header()
	v := &resp.Version
	header["Etag"] = []string{interaction.ETag(v.VersionID)}
	header["Last-Modified"] = []string{v.LastUpdated.UTC().Format(http.TimeFormat)}
	header["Vary"] = append(header["Vary"], "Accept")
	if resp.Status == http.StatusNotModified {
		c.WriteHeader(resp.Status)
		return
	}
	b, err := c.h.Service.Content(*v)
	if err != nil {
		c.fail(r, err)
		return
	}
	if b.SecurityContext != "" {
		header["X-Security-Context"] = []string{b.SecurityContext}
	}
	header["X-Content-Type-Options"] = []string{"nosniff"}
	header["Content-Security-Policy"] = []string{"sandbox"}
	header["Content-Location"] = []string{c.base(r) + "/" + interaction.Location(*v)}
	c.Send(r, http.StatusOK, b.Type, b.Data, false)
}

// binaryBody is the body of a create or update of a Binary under id, "" for a new
// one: the resource where the Content-Type is FHIR's or absent, else the resource
// that holds the body. (That JSON which is no Binary could be content as well is
// left unused: it is far more often a mistake.)
func (c *call) binaryBody(r *http.Request, id string) ([]byte, error) {
	contentType := r.Header.Get("Content-Type")
	typ, _, err := mime.ParseMediaType(contentType)
	if contentType == "" || slices.Contains([]string{"application/fhir+json", "application/json", "text/json"}, typ) {
		return c.resourceBody(r)
	}
	if err != nil {
		return nil, unsupportedType(contentType)
	}
	content, err := c.body(r)
	if err != nil {
		return nil, err
	}
	return interaction.Binary(id, interaction.Content{Type: contentType, SecurityContext: r.Header.Get("X-Security-Context"), Data: content}), nil
}
