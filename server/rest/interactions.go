package rest

import (
	"mime"
	"net/http"
	"strings"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/ratelimit"
)

// The methods of gen/handler.Interactions: each reads the parameters of its
// interaction and writes the answer.

// Read serves GET /{type}/{id}.
func (h *Handler) Read(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "read")
	if h.misplaced(c, r) {
		return
	}
	resp, err := h.Service.Read(c.ctx, interaction.ReadParams{ResourceType: typ, ID: r.PathValue("id"),
		IfNoneMatch: listHeader(r, "If-None-Match"), IfModifiedSince: modifiedSince(r)})
	c.version(r, resp, err)
}

// misplaced answers 405 where the path of an instance names something else that is
// served, though not with this method: GET /Patient/_search, DELETE /Patient/_history.
func (h *Handler) misplaced(c *call, r *http.Request) bool {
	if !isReserved(r.PathValue("id")) {
		return false
	}
	allowed := h.allowedMethods(r)
	if len(allowed) == 0 {
		return false
	}
	c.methodNotAllowed(r, allowed...)
	return true
}

// version answers a read or a vread.
func (c *call) version(r *http.Request, resp interaction.Response, err error) {
	if err == nil {
		c.read = &resp.Version
	}
	if err == nil && resp.Version.ResourceType == "Binary" {
		content, e := c.h.Service.Content(resp.Version)
		if wantsContent(r, content.Type) {
			c.writeContent(r, resp, content, e)
			return
		}
	}
	c.writeAnswer(r, prefer{}, c.subset(r, resp, &err), err)
}

// VRead serves GET /{type}/{id}/_history/{vid}.
func (h *Handler) VRead(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "vread")
	resp, err := h.Service.VRead(c.ctx, interaction.VReadParams{ResourceType: typ, ID: r.PathValue("id"), VersionID: r.PathValue("vid"),
		IfNoneMatch: listHeader(r, "If-None-Match"), IfModifiedSince: modifiedSince(r)})
	c.version(r, resp, err)
}

// Create serves POST /{type}.
func (h *Handler) Create(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "create")
	if err := interaction.NoCreateQuery(r.URL.RawQuery); err != nil {
		c.writeError(r, err)
		return
	}
	c.write(r, typ, "", func(body []byte) (interaction.Response, error) {
		return h.Service.Create(c.ctx, interaction.CreateParams{ResourceType: typ, Body: body, BaseURL: c.baseURL(r), IfNoneExist: guardOf(r, "If-None-Exist")})
	})
}

// Update serves PUT /{type}/{id}.
func (h *Handler) Update(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "update")
	if h.misplaced(c, r) {
		return
	}
	c.write(r, typ, r.PathValue("id"), func(body []byte) (interaction.Response, error) {
		return h.Service.Update(c.ctx, interaction.UpdateParams{ResourceType: typ, ID: r.PathValue("id"), Body: body, BaseURL: c.baseURL(r),
			Preconditions: preconditions(r)})
	})
}

// ConditionalUpdate serves PUT /{type}?criteria.
func (h *Handler) ConditionalUpdate(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "update")
	if r.URL.RawQuery == "" {
		c.methodNotAllowed(r, "GET", "HEAD", "POST")
		return
	}
	c.write(r, typ, "", func(body []byte) (interaction.Response, error) {
		return h.Service.Update(c.ctx, interaction.UpdateParams{ResourceType: typ, Criteria: r.URL.RawQuery, Body: body, BaseURL: c.baseURL(r),
			Preconditions: preconditions(r)})
	})
}

// Patch serves PATCH /{type}/{id}.
func (h *Handler) Patch(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "patch")
	if h.misplaced(c, r) {
		return
	}
	c.patch(r, interaction.PatchParams{ResourceType: typ, ID: r.PathValue("id")})
}

// ConditionalPatch serves PATCH /{type}?criteria.
func (h *Handler) ConditionalPatch(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "patch")
	if r.URL.RawQuery == "" {
		c.methodNotAllowed(r, "GET", "HEAD", "POST")
		return
	}
	c.patch(r, interaction.PatchParams{ResourceType: typ, Criteria: r.URL.RawQuery})
}

func (c *call) patch(r *http.Request, p interaction.PatchParams) {
	pref, err := c.asked(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	text := r.Header.Get("Content-Type")
	if p.ContentType, _, err = mime.ParseMediaType(text); err != nil {
		p.ContentType = text
	}
	p.Preconditions, p.BaseURL = preconditions(r), c.baseURL(r)
	if p.Patch, err = c.body(r); err != nil {
		c.writeError(r, err)
		return
	}
	if err := c.checkSubset(r, p.ResourceType); err != nil {
		c.writeError(r, err)
		return
	}
	resp, err := c.h.Service.Patch(c.ctx, p)
	resp = c.subset(r, resp, &err)
	c.writeAnswer(r, pref, resp, err)
}

// Delete serves DELETE /{type}/{id}.
func (h *Handler) Delete(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "delete")
	if h.misplaced(c, r) {
		return
	}
	resp, err := h.Service.Delete(c.ctx, interaction.DeleteParams{ResourceType: typ, ID: r.PathValue("id"), Preconditions: preconditions(r)})
	c.writeAnswer(r, prefer{}, resp, err)
}

// ConditionalDelete serves DELETE /{type}?criteria.
func (h *Handler) ConditionalDelete(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "delete")
	if r.URL.RawQuery == "" {
		c.methodNotAllowed(r, "GET", "HEAD", "POST")
		return
	}
	resp, err := h.Service.Delete(c.ctx, interaction.DeleteParams{ResourceType: typ, Criteria: r.URL.RawQuery, Preconditions: preconditions(r)})
	c.writeAnswer(r, prefer{}, resp, err)
}

// HistoryInstance serves GET /{type}/{id}/_history.
func (h *Handler) HistoryInstance(w http.ResponseWriter, r *http.Request, typ string) {
	start(w, "history-instance").history(r, typ, r.PathValue("id"))
}

// HistoryType serves GET /{type}/_history.
func (h *Handler) HistoryType(w http.ResponseWriter, r *http.Request, typ string) {
	start(w, "history-type").history(r, typ, "")
}

func (h *Handler) historySystem(w http.ResponseWriter, r *http.Request) {
	start(w, "history-system").history(r, "", "")
}

func (c *call) history(r *http.Request, typ, id string) {
	values, err := parseQuery(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	resp, err := c.h.Service.History(c.ctx, interaction.HistoryParams{ResourceType: typ, ID: id, Values: values})
	c.writeAnswer(r, prefer{}, resp, err)
}

// SearchType serves GET /{type}?… and POST /{type}/_search.
func (h *Handler) SearchType(w http.ResponseWriter, r *http.Request, typ string) {
	start(w, "search-type").search(r, interaction.SearchParams{ResourceType: typ})
}

// SearchCompartment serves GET /{compartment}/{id}/{type}?….
func (h *Handler) SearchCompartment(w http.ResponseWriter, r *http.Request, typ string) {
	searched := r.PathValue("type")
	c := start(w, "search-compartment")
	if searched != "*" && h.Service.Model.Resources[searched] == nil {
		c.writeError(r, h.Service.UnknownType(searched))
		return
	}
	c.search(r, interaction.SearchParams{ResourceType: searched, Compartment: typ, CompartmentID: r.PathValue("id")})
}

func (h *Handler) searchSystem(w http.ResponseWriter, r *http.Request) {
	start(w, "search-system").search(r, interaction.SearchParams{})
}

func (c *call) search(r *http.Request, p interaction.SearchParams) {
	if !c.enterLimited(r, ratelimit.Search) {
		return
	}
	pref := preferences(r)
	var err error
	if r.Method == http.MethodPost {
		p.Values, err = c.form(r)
		c.values = p.Values
	} else {
		p.Values, err = parseQuery(r)
	}
	if err != nil {
		c.writeError(r, err)
		return
	}
	p.Lenient, p.BaseURL = pref.lenient, c.baseURL(r)
	if pref.async && c.h.Background != nil {
		c.kickOff(r, KickOff{Search: p, Lenient: pref.lenient})
		return
	}
	resp, err := c.h.Service.Search(c.ctx, p)
	c.writeAnswer(r, pref, resp, err)
}

func (h *Handler) bundle(w http.ResponseWriter, r *http.Request) {
	c := start(w, "bundle")
	if !c.enterLimited(r, ratelimit.Bundle) {
		return
	}
	pref, err := c.asked(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	body, err := c.resourceBody(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	p := interaction.BundleParams{Body: body, Return: pref.ret, Lenient: pref.lenient, BaseURL: c.baseURL(r)}
	if c.recorded != nil {
		p.Told = func(d interaction.Done) {
			c.recorded.AddEntry(d.Method, d.Interaction, d.Resource, d.URL, d.Status, d.Read)
		}
	}
	resp, err := h.Service.Bundle(c.ctx, p)
	switch {
	case resp.Bundle != nil:
		c.Route = strings.TrimSuffix(resp.Bundle.Type, "-response")
	case interaction.IsTransaction(body):
		c.Route = "transaction"
	}
	c.writeAnswer(r, pref, resp, err)
}

func (h *Handler) serveMetadata(c *call, r *http.Request) {
	c.Route = "capabilities"
	values, err := parseQuery(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	resp, err := h.Service.Capabilities(c.ctx, interaction.CapabilitiesParams{Values: values, BaseURL: c.baseURL(r)})
	c.writeAnswer(r, prefer{}, resp, err)
}

// operationSystem serves $operations on the whole system.
func (h *Handler) operationSystem(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.PathValue("operation"), "$") {
		h.serveUnrouted(w, r)
		return
	}
	h.Operation(w, r, "")
}

// operationByPut serves PUT /{type}/{id}/$name, which only operations of Apps have.
func (h *Handler) operationByPut(w http.ResponseWriter, r *http.Request) {
	typ, name := r.PathValue("type"), r.PathValue("operation")
	if !strings.HasPrefix(name, "$") || h.Service.Model.Resources[typ] == nil {
		h.serveUnrouted(w, r)
		return
	}
	h.Operation(w, r, typ)
}

// Operation serves $operations on a type and on an instance.
func (h *Handler) Operation(w http.ResponseWriter, r *http.Request, typ string) {
	c := start(w, "operation")
	name, id := r.PathValue("operation"), r.PathValue("id")
	if !strings.HasPrefix(name, "$") {
		h.serveUnrouted(w, r)
		return
	}
	if c.h.Background != nil && c.h.Background.Serves(name, typ, id) {
		c.kickOff(r, KickOff{Operation: name, ResourceType: typ, ID: id, Lenient: preferences(r).lenient})
		return
	}
	if c.h.Streamed != nil && c.h.Streamed.Serves(name, typ, id) {
		k := KickOff{Operation: name, ResourceType: typ, ID: id, Base: c.baseURL(r), Lenient: preferences(r).lenient}
		if c.recorded != nil {
			k.Note = c.recorded.NoteForm
		}
		c.h.Streamed.Answer(c.ctx, c.Exchange, r, k)
		return
	}
	p := interaction.OperationParams{Name: name, ResourceType: typ, ID: id, Method: r.Method, Read: r.Method == http.MethodGet || r.Method == http.MethodHead}
	_, err := c.asked(r)
	if err == nil {
		p.Values, err = parseQuery(r)
	}
	if accepts := h.Service.OperationAccepts(name); err == nil && !p.Read && accepts != nil && r.Header.Get("Content-Type") != "" {
		p.Body, err = c.bodyOf(r, accepts)
	} else if err == nil && !p.Read {
		p.Body, err = c.resourceBody(r)
	}
	if err != nil {
		c.writeError(r, err)
		return
	}
	if name == "$everything" && c.h.Background != nil && preferences(r).async {
		c.kickOff(r, KickOff{Operation: name, ResourceType: typ, ID: id, Values: p.Values, Body: p.Body, Lenient: preferences(r).lenient})
		return
	}
	caller := interaction.Caller{RequestID: c.ID, Traceparent: r.Header.Get("Traceparent")}
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		caller.Token = strings.TrimSpace(token)
	}
	resp, err := h.Service.Operation(interaction.WithCaller(c.ctx, caller), p)
	c.writeAnswer(r, prefer{}, resp, err)
}

// start says which interaction a request is.
func start(w http.ResponseWriter, name string) *call {
	c := w.(*call)
	c.Route = name
	return c
}

// write does the common part of writes with a body, of a resource of type typ under id, and
// answers.
func (c *call) write(r *http.Request, typ, id string, do func(body []byte) (interaction.Response, error)) {
	pref, err := c.asked(r)
	if err != nil {
		c.writeError(r, err)
		return
	}
	var body []byte
	if typ == "Binary" {
		body, err = c.binaryBody(r, id)
	} else {
		body, err = c.resourceBody(r)
	}
	if err != nil {
		c.writeError(r, err)
		return
	}
	if err := c.checkSubset(r, typ); err != nil {
		c.writeError(r, err)
		return
	}
	resp, err := do(body)
	resp = c.subset(r, resp, &err)
	c.writeAnswer(r, pref, resp, err)
}

// asked reads how the client wants the answer of a write. An answer that cannot be
// given is refused before anything is written.
func (c *call) asked(r *http.Request) (prefer, error) {
	_, err := format(r, formatOf(r))
	return preferences(r), err
}

func formatOf(r *http.Request) string {
	if !strings.Contains(r.URL.RawQuery, "_format") {
		return ""
	}
	v, err := parseQuery(r)
	if err != nil {
		return ""
	}
	return v.Get("_format")
}

// checkSubset fails where _summary or _elements cannot be applied to a resource of type
// typ: a write that cannot be answered as asked is refused before anything is written.
func (c *call) checkSubset(r *http.Request, typ string) error {
	if !asksForSubset(r) {
		return nil
	}
	var err error
	c.subset(r, interaction.Response{Version: fhir.Version{ResourceType: typ, Body: []byte("{}")}}, &err)
	return err
}

func asksForSubset(r *http.Request) bool {
	return strings.Contains(r.URL.RawQuery, "_summary") || strings.Contains(r.URL.RawQuery, "_elements")
}

// subset applies _summary and _elements to a resource that was read or written.
func (c *call) subset(r *http.Request, resp interaction.Response, err *error) interaction.Response {
	if *err != nil || !asksForSubset(r) {
		return resp
	}
	values, e := parseQuery(r)
	if e == nil {
		resp, e = c.h.Service.Subset(resp, values)
	}
	*err = e
	return resp
}
