package rest

import (
	"net/http"
	"strings"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/web"
)

// writeAnswer writes a response, or the error in its place.
func (c *call) writeAnswer(r *http.Request, p prefer, resp interaction.Response, err error) {
	if err != nil {
		c.writeError(r, err)
		return
	}
	var formatParam string
	pretty := false
	if q := c.values; q != nil || strings.Contains(r.URL.RawQuery, "_") {
		if q == nil {
			q, _ = parseQuery(r) // what cannot be read asks for no format
		}
		formatParam = q.Get("_format")
		pretty = q.Get("_pretty") == "true"
	}
	contentType, err := format(r, formatParam)
	if err != nil {
		c.writeError(r, err)
		return
	}
	header := c.Header()
	v := &resp.Version
	if v.ResourceType != "" && v.VersionID > 0 {
		header["Etag"] = []string{interaction.ETag(v.VersionID)}
		header["Last-Modified"] = []string{v.LastUpdated.UTC().Format(http.TimeFormat)}
		if resp.Status == http.StatusCreated || resp.Written {
			header["Location"] = []string{c.baseURL(r) + "/" + interaction.Location(*v)}
		}
	}
	switch {
	case resp.Status == http.StatusNoContent || resp.Status == http.StatusNotModified:
		c.WriteHeader(resp.Status)
	case resp.Bundle != nil:
		buf := web.TakeBuffer()
		*buf = append(appendBundle((*buf)[:0], c.baseURL(r), resp.Bundle), '\n')
		resp.Release()
		c.Send(r, resp.Status, contentType, *buf, pretty)
		web.GiveBuffer(buf)
	case resp.Written && (p.ret == interaction.ReturnMinimal || v.Body == nil && p.ret != interaction.ReturnOutcome):
		header["Content-Length"] = []string{"0"}
		c.WriteHeader(resp.Status)
	case resp.Written && p.ret == interaction.ReturnOutcome:
		c.Send(r, resp.Status, contentType, outcome.JSON(append(interaction.WriteIssues(resp), resp.Issues...)), pretty)
	case resp.Tagged:
		c.sendTagged(r, contentType, resp.Body, pretty)
	case resp.Body != nil && resp.ContentType != "":
		c.Send(r, resp.Status, resp.ContentType, resp.Body, pretty)
	case resp.Body != nil:
		c.Send(r, resp.Status, contentType, resp.Body, pretty)
	case v.ResourceType != "" && v.VersionID == 0 && resp.Status == http.StatusOK && !resp.Written: // a definition that the server is built with
		c.sendTagged(r, contentType, v.Body, pretty)
	default:
		if v.VersionID > 0 {
			header["Content-Location"] = []string{c.baseURL(r) + "/" + interaction.Location(*v)}
		}
		c.Send(r, resp.Status, contentType, v.Body, pretty)
	}
}

// sendTagged answers with a resource without a version, or with 304 where the client has it.
func (c *call) sendTagged(r *http.Request, contentType string, body []byte, pretty bool) {
	form := contentType
	if pretty {
		form += "; pretty"
	}
	if web.TagContent(c, r, body, form) {
		c.WriteHeader(http.StatusNotModified)
		return
	}
	c.Send(r, http.StatusOK, contentType, body, pretty)
}
