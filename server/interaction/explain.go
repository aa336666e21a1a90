package interaction

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/smart"
	"kiln/server/store"
	"kiln/server/target"
)

// Explain describes the rights of a principal: with a method and a path, whether such a request is
// allowed and what it would answer, else the result of each scope. It changes nothing. A path that is
// not served is not-supported.
func (s *Service) Explain(ctx context.Context, rights *access.Rights, method, path string) (access.Explanation, error) {
	if method == "" && path == "" {
		return rights.ExplainScopes(), nil
	}
	e := explanation{s: s, ctx: ctx, rights: rights, method: strings.ToUpper(method)}
	below := "/" + strings.TrimLeft(path, "/")
	if rest, ok := strings.CutPrefix(below, "/fhir"); ok && (rest == "" || rest[0] == '/' || rest[0] == '?') {
		below = rest
	}
	if first, _, _ := strings.Cut(strings.TrimPrefix(below, "/"), "/"); first == "admin" || first == "debug" {
		return access.Explain(rights.ExplainAdmin(e.method + " " + path)), nil
	} else if first == "metrics" {
		return access.Explain(rights.ExplainMetrics(e.method + " " + path)), nil
	}
	var err error
	if e.to, err = s.parseTarget(below, ""); err != nil {
		return access.Explanation{}, err
	}
	out, err := e.explain(path)
	if err == nil && out.Allowed != nil && out.Status == 0 && !*out.Allowed {
		out.Status, out.Answer = http.StatusForbidden, "forbidden"
	}
	return out, err
}

// explanation is a request that is explained.
type explanation struct {
	s      *Service
	ctx    context.Context
	rights *access.Rights
	method string
	to     target.Target
}

func (e *explanation) isGet() bool { return e.method == http.MethodGet || e.method == http.MethodHead }

func (e *explanation) explain(path string) (access.Explanation, error) {
	t := &e.to
	kind := t.Interaction(e.method)
	switch {
	case kind == "capabilities" && e.isGet():
		return access.Explain(access.Decision{Interaction: kind, Decision: "allow", Reason: "anybody may ask"}), nil
	case kind == "operation" && (e.isGet() || e.method == http.MethodPost || e.method == http.MethodPut):
		return e.explainOperation(path)
	case kind == "batch":
		return access.Explain(access.Decision{Interaction: kind, Decision: "allow", Reason: "each entry is decided by itself"}), nil
	case t.Search && (e.method != http.MethodPost || t.ID != "" && t.Compartment == ""): // no interaction
	default:
		if out, served, err := e.explainSearch(kind); served {
			return out, err
		}
		if out, served, err := e.explainOne(kind); served {
			return out, err
		}
	}
	return access.Explanation{}, outcome.NotSupported("%s %s is no interaction", outcome.Clip(e.method), outcome.Clip(path))
}

// explainSearch explains a search or a history of several resources. served says that the request is one.
func (e *explanation) explainSearch(kind string) (out access.Explanation, served bool, err error) {
	t, get := &e.to, e.isGet()
	switch {
	case kind == "search" && t.Compartment == "*", kind == "search-system" && (get || t.Search):
		out, err = e.explainTypes("search")
	case kind == "search":
		out = access.Explain(e.rights.ExplainType("search", smart.Search, t.Compartment))
	case kind == "history-system" && get:
		out, err = e.explainTypes("history")
	case (kind == "search-type" || kind == "history-type") && (get || t.Search):
		out = access.Explain(e.rights.ExplainType("search", smart.Search, t.Type))
	default:
		return out, false, nil
	}
	return out, true, err
}

// explainOne explains an interaction with one resource. served says that the request is one.
func (e *explanation) explainOne(kind string) (out access.Explanation, served bool, err error) {
	t, r := &e.to, e.rights
	switch {
	case (kind == "read" || kind == "vread" || kind == "history-instance") && e.isGet():
		out, err = e.explainInstance(smart.Read, r.ExplainType("read", smart.Read, t.Type))
	case t.History || t.Compartment != "" || t.Type == "":
		return out, false, nil
	case kind == "create" && t.ID == "":
		out = access.Explain(r.ExplainType("create", smart.Create, t.Type))
	case t.ID == "" && !t.HasQuery:
		return out, false, nil
	case kind == "update":
		out, err = e.explainPut()
	case kind == "patch":
		out, err = e.explainInstance(smart.Update, r.ExplainType("patch", smart.Update, t.Type))
	case kind == "delete":
		out, err = e.explainInstance(smart.Delete, r.ExplainType("delete", smart.Delete, t.Type))
	default:
		return out, false, nil
	}
	return out, true, err
}

// explainTypes explains a search or a history of several types: of _type, or of all. Such a request is
// answered without the types of all that are denied.
func (e *explanation) explainTypes(interaction string) (access.Explanation, error) {
	values, err := ParseQuery(e.to.Query)
	if err != nil {
		return access.Explanation{}, err
	}
	names, r := values.Get("_type"), e.rights
	if names == "" || interaction == "history" {
		if d, err := r.ExplainAnyType(interaction, smart.Search); err != nil || d.Decision == "deny" {
			return access.Explain(d), err
		}
	}
	list := []access.Decision{}
	if names == "" {
		for _, t := range e.s.Parameters.Current().Types() {
			if d := r.ExplainType(interaction, smart.Search, t); d.Decision != "deny" {
				list = append(list, d)
			}
		}
		return access.ExplainAs(true, list), nil
	}
	for t := range strings.SplitSeq(names, ",") {
		if e.s.Model.Resources[t] == nil {
			return access.Explanation{}, e.s.UnknownType(t)
		}
		list = append(list, r.ExplainType(interaction, smart.Search, t))
	}
	if interaction == "history" {
		return access.ExplainAs(true, list), nil
	}
	return access.Explain(list...), nil
}

// withCriteria adds the search of a conditional interaction.
func (e *explanation) withCriteria(list ...access.Decision) []access.Decision {
	if e.to.ID == "" && e.to.Query != "" {
		list = append(list, e.rights.ExplainType("search", smart.Search, e.to.Type))
	}
	return list
}

// explainPut explains an update, or a create where there is no such resource.
func (e *explanation) explainPut() (access.Explanation, error) {
	t, r := &e.to, e.rights
	update, create := r.ExplainType("update", smart.Update, t.Type), r.ExplainType("create", smart.Create, t.Type)
	update.When, create.When = "the resource exists", "the resource does not exist"
	list := e.withCriteria(update, create)
	if t.ID == "" {
		allowed := update.Decision != "deny" || create.Decision != "deny"
		return access.ExplainAs(allowed && list[len(list)-1].Decision != "deny", list), nil
	}
	last, err := e.findCurrent()
	if err != nil {
		return access.Explanation{}, err
	}
	permission := smart.Create
	if last.exists {
		permission = smart.Update
		list[1].Decision, list[1].Reason = create.Decision, create.Reason
	}
	return e.judge(permission, last, map[smart.Permissions]access.Decision{smart.Update: update, smart.Create: create}[permission].Decision != "deny", list)
}

// explainInstance explains an interaction with one resource. Without an id it is a conditional one.
func (e *explanation) explainInstance(permission smart.Permissions, d access.Decision) (access.Explanation, error) {
	list := e.withCriteria(d)
	if e.to.ID == "" || d.Decision == "deny" {
		return access.Explain(list...), nil
	}
	last, err := e.findCurrent()
	if err != nil {
		return access.Explanation{}, err
	}
	return e.judge(permission, last, true, list)
}

// current is the current version of a resource.
type current struct {
	version         fhir.Version // of a deletion the version before
	exists, deleted bool
}

// findCurrent reads the resource of the request, or its version.
func (e *explanation) findCurrent() (c current, err error) {
	t := &e.to
	if !fhir.ValidID(t.ID) {
		return c, nil
	}
	from := e.s.Store
	if n, ok := readVersionID(t.Version); ok {
		c.version, err = from.VRead(e.ctx, t.Type, t.ID, n)
	} else {
		c.version, err = from.Read(e.ctx, t.Type, t.ID)
	}
	switch {
	case outcome.Is(err, outcome.CodeDeleted):
		c.deleted = true
		page, err := from.History(e.ctx, store.HistoryQuery{ResourceType: t.Type, ID: t.ID, Count: 2, NoTotal: true})
		if err != nil {
			return c, err
		}
		for _, v := range page.Versions {
			if !v.Deleted() {
				c.version = v
			}
		}
		return c, nil
	case outcome.Theirs(err):
		return c, nil
	}
	c.exists = err == nil
	return c, err
}

// judge says what a request about one resource would answer. allowed is the decision on its type.
func (e *explanation) judge(permission smart.Permissions, c current, allowed bool, list []access.Decision) (access.Explanation, error) {
	out := access.ExplainAs(allowed, list)
	if !allowed {
		return out, nil
	}
	knows, may, err := e.reachOf(permission, c.version)
	if err != nil {
		return out, err
	}
	var v verdict
	if c.exists {
		v = e.judgeExisting(permission, knows, may)
	} else {
		v = e.judgeAbsent(permission, c.deleted, may)
	}
	out.Allowed, out.Status, out.Answer = &v.allowed, v.status, v.text
	return out, nil
}

// reachOf reports whether the token reaches a version by any right on it (knows) and by
// the right that the request needs (may). It reaches no version without a body.
func (e *explanation) reachOf(permission smart.Permissions, v fhir.Version) (knows, may bool, err error) {
	if len(v.Body) == 0 {
		return false, false, nil
	}
	asked := permission
	if permission == smart.Create {
		asked = smart.Update
	}
	any, err := e.rights.Any(asked|smart.Read|smart.Search, e.to.Type)
	if err == nil {
		knows, err = e.s.holds(any, v)
	}
	if err != nil {
		return false, false, err
	}
	condition, err := e.rights.Condition(permission, e.to.Type)
	if err == nil {
		may, err = e.s.holds(condition, v)
	}
	return knows, may, err
}

// verdict is the answer to a request, and whether the rights allow the request.
type verdict struct {
	allowed bool
	status  int
	text    string
}

const hiddenResource = "the resource is out of reach of the token, so the answer is the one for an absent resource"

// judgeExisting returns the answer to a request about a resource that exists.
func (e *explanation) judgeExisting(permission smart.Permissions, knows, may bool) verdict {
	get, remove, put := permission == smart.Read, permission == smart.Delete, e.method == http.MethodPut
	switch {
	case !may && (put || !get && knows):
		return verdict{false, http.StatusForbidden, "forbidden: the resource is out of reach of the token"}
	case may && remove:
		return verdict{true, http.StatusNoContent, "the resource is deleted"}
	case may && get:
		return verdict{true, http.StatusOK, "the resource is readable"}
	case may:
		return verdict{true, http.StatusOK, "the resource is changed, if its new version is within reach of the token too"}
	case remove:
		return verdict{false, http.StatusNoContent, "nothing is deleted: " + hiddenResource}
	}
	return verdict{false, http.StatusNotFound, "not-found: " + hiddenResource}
}

// judgeAbsent returns the answer to a request about a resource that is deleted or never
// existed. may is about the last version of a deleted one.
func (e *explanation) judgeAbsent(permission smart.Permissions, deleted, may bool) verdict {
	switch {
	case e.method == http.MethodPut:
		return verdict{true, http.StatusCreated, "the resource is created, if it is within reach of the token"}
	case permission == smart.Delete:
		return verdict{true, http.StatusNoContent, "nothing is deleted: there is no such resource"}
	case deleted && may:
		return verdict{true, http.StatusGone, "deleted"}
	case deleted:
		return verdict{false, http.StatusNotFound, "not-found: " + hiddenResource}
	}
	return verdict{true, http.StatusNotFound, "not-found: there is no such resource"}
}

// explainOperation explains $x, Type/$x or Type/id/$x by the rights that the operation needs.
func (e *explanation) explainOperation(path string) (access.Explanation, error) {
	t, r := &e.to, e.rights
	p := OperationParams{Name: t.Operation, ResourceType: t.Type, ID: t.ID, Read: e.isGet(), Method: e.method}
	var needs []access.Interaction
	known := false
	if o := e.s.operations(); o != nil {
		needs, known = o.Needs(p)
	}
	if !known && !e.s.ServesOperation(t.Type, t.Operation[1:]) { // $export and $import are no entries of a Bundle
		return access.Explanation{}, outcome.NotSupported("there is no operation %s", outcome.Clip(path))
	}
	if slices.Contains(needs, access.Admin) {
		return access.Explain(r.ExplainAdmin(e.method + " " + path)), nil
	}
	var all smart.Permissions
	for _, i := range needs {
		all |= i.Permission()
	}
	if all == 0 || t.Type == "" {
		return access.Explain(access.Decision{Interaction: "operation " + t.Operation, ResourceType: t.Type, Decision: "allow", Reason: "any valid token may ask"}), nil
	}
	var list []access.Decision
	for q := smart.Create; q <= smart.Search; q <<= 1 {
		if all&q != 0 {
			list = append(list, r.ExplainType(access.PermissionName(q), q, t.Type))
		}
	}
	out := access.Explain(list...)
	if t.ID == "" || !*out.Allowed {
		return out, nil
	}
	last, err := e.findCurrent()
	if err != nil {
		return out, err
	}
	if last.exists {
		if may, err := e.isReadable(last.version); err != nil || may {
			return out, err
		}
	}
	*out.Allowed = !last.exists
	out.Status, out.Answer = http.StatusNotFound, "not-found: there is no such resource"
	if last.exists {
		out.Answer = "not-found: " + hiddenResource
	}
	return out, nil
}

// isReadable reports whether the principal may read a version.
func (e *explanation) isReadable(v fhir.Version) (bool, error) {
	c, err := e.rights.Condition(smart.Read, v.ResourceType)
	if err != nil {
		return false, err
	}
	return e.s.holds(c, v)
}
