package access

import (
	"net/url"
	"slices"
	"strings"

	"kiln/server/outcome"
	"kiln/server/smart"
)

// Decision is one answer of access.
type Decision struct {
	Interaction  string `json:"interaction"`
	ResourceType string `json:"resourceType,omitempty"`
	// Decision is allow, deny, or conditional: allow what Condition says.
	Decision string `json:"decision"`
	// Condition is what must hold of a resource, in FHIR's words.
	Condition string `json:"condition,omitempty"`
	// When says for which case the decision is, "" for every.
	When string `json:"when,omitempty"`
	// By are the scopes that give and the policies that decide, in their order.
	By     []string `json:"by,omitempty"`
	Reason string   `json:"reason,omitempty"` // of a denial
	// Scope is the scope that would do, where one is lacking.
	Scope string `json:"scope,omitempty"`
}

// Explanation is what access says to a request.
type Explanation struct {
	// Allowed says whether the request may go on, as far as conditions hold; nil where none
	// is asked about.
	Allowed *bool `json:"allowed,omitempty"`
	// Decisions are those that the request needs: a PUT may update and create.
	Decisions []Decision `json:"decisions"`
}

// explained is a request that all of list decide on.
func explained(list ...Decision) Explanation {
	return answered(!slices.ContainsFunc(list, func(d Decision) bool { return d.Decision == "deny" }), list)
}

func answered(allowed bool, list []Decision) Explanation { return Explanation{&allowed, list} }

// Explain describes the rights of r: with a method and a path of FHIR, whether such a
// request is allowed, else the result of each scope. It changes nothing. It reads only the
// patients of a RelatedPerson, the policies in force, and whether the target of a PUT
// exists.
func (r *Rights) Explain(method, path string) (Explanation, error) {
	if method != "" || path != "" {
		return r.explainRequest(strings.ToUpper(method), path)
	}
	out := []Decision{}
	if r.Admin {
		out = append(out, r.explainAdmin("administration"))
	}
	seen := make(map[question]bool)
	for _, scope := range r.Scopes.Resource {
		types := []string{scope.Type}
		if scope.Type == "*" {
			types = []string{"Patient", "Observation", "Practitioner"} // one of each sort
		}
		for _, t := range types {
			for p := smart.Create; p <= smart.Search; p <<= 1 {
				if q := (question{p, t}); scope.Permissions&p != 0 && r.d.Registry().Has(t) && !seen[q] {
					seen[q] = true
					out = append(out, r.explain(permissionNames[p], p, t))
				}
			}
		}
	}
	return Explanation{Decisions: out}, nil
}

// explainRequest finds the interaction of a request.
func (r *Rights) explainRequest(method, path string) (Explanation, error) {
	u, err := url.Parse(path)
	if err != nil {
		return Explanation{}, outcome.Invalid("path %q is no URL", path)
	}
	below := "/" + strings.Trim(u.Path, "/")
	if rest, ok := strings.CutPrefix(below, "/fhir"); ok && (rest == "" || rest[0] == '/') {
		below = rest
	}
	parts := strings.Split(strings.Trim(below, "/"), "/")
	typ, last := parts[0], parts[len(parts)-1]
	get := method == "GET" || method == "HEAD"
	switch {
	case typ == "admin":
		return explained(r.explainAdmin(method + " " + path)), nil
	case typ == "metrics" && len(parts) == 1 && r.Scopes.Has("metrics"):
		return explained(Decision{Interaction: method + " " + path, Decision: "allow", By: []string{"metrics"}}), nil
	case typ == "metrics" && !r.Admin:
		return explained(Decision{Interaction: method + " " + path, Decision: "deny", Scope: "metrics", Reason: "the scope metrics is lacking"}), nil
	case typ == "metrics":
		return explained(r.explainAdmin(method + " " + path)), nil
	case typ == "metadata" && len(parts) == 1 && get:
		return explained(Decision{Interaction: "capabilities", Decision: "allow", Reason: "anybody may ask"}), nil
	case strings.HasPrefix(last, "$"):
		return r.explainOperation(method, path, parts)
	case typ == "" && method == "POST":
		return explained(Decision{Interaction: "batch", Decision: "allow", Reason: "each entry is decided by itself"}), nil
	case typ == "" && get, typ == "_search" && len(parts) == 1 && method == "POST":
		return r.explainTypes("search", u.Query().Get("_type"))
	case typ == "_history" && len(parts) == 1 && get:
		return r.explainTypes("history", u.Query().Get("_type"))
	case !r.d.Registry().Has(typ):
		return Explanation{}, r.noType(typ)
	}
	if len(parts) == 3 && get || len(parts) == 4 && method == "POST" && last == "_search" { // of a compartment
		switch inside := parts[2]; {
		case inside == "*":
			return r.explainTypes("search", u.Query().Get("_type"))
		case r.d.Registry().Has(inside):
			return explained(r.explain("search", smart.Search, inside)), nil
		}
	}
	instance := len(parts) > 1 && !strings.HasPrefix(parts[1], "_")
	switch {
	case len(parts) > 2 && !(get && instance && parts[2] == "_history" && len(parts) <= 4):
	case method == "DELETE":
		return explained(r.conditional(u, instance, r.explain("delete", smart.Delete, typ))...), nil
	case method == "PUT":
		return r.explainPut(u, typ, strings.Join(parts[1:], "/"))
	case method == "PATCH":
		return explained(r.conditional(u, instance, r.explain("patch", smart.Update, typ))...), nil
	case method == "POST" && len(parts) == 1:
		return explained(r.explain("create", smart.Create, typ)), nil
	case method == "POST" && last == "_search", get && (len(parts) == 1 || parts[1] == "_history"):
		return explained(r.explain("search", smart.Search, typ)), nil
	case get && instance:
		return explained(r.explain("read", smart.Read, typ)), nil
	}
	return Explanation{}, outcome.NotSupported("%s %s is no interaction", method, path)
}

func (r *Rights) noType(typ string) error {
	return outcome.NotSupported("there is no resource type %q in FHIR R4%s", typ, r.d.Registry().NearestType(typ))
}

// explainTypes explains a search or a history of several types, of all with names "". A
// denied type among all is left out of the answer to such a request.
func (r *Rights) explainTypes(interaction, names string) (Explanation, error) {
	out := []Decision{}
	if names == "" || interaction == "history" {
		if err := r.MayAny(smart.Search); outcome.Is(err, outcome.CodeForbidden) {
			scope := r.anyType(smart.Search)
			return explained(Decision{Interaction: interaction, Decision: "deny", Scope: scope, Reason: "the scope " + scope + " is lacking"}), nil
		} else if err != nil {
			return Explanation{}, err
		}
	}
	if names == "" {
		for _, t := range r.d.Registry().Types() {
			if d := r.explain(interaction, smart.Search, t); d.Decision != "deny" {
				out = append(out, d)
			}
		}
		return answered(true, out), nil
	}
	for t := range strings.SplitSeq(names, ",") {
		if !r.d.Registry().Has(t) {
			return Explanation{}, r.noType(t)
		}
		out = append(out, r.explain(interaction, smart.Search, t))
	}
	if interaction == "history" {
		return answered(true, out), nil
	}
	return explained(out...), nil
}

// explainPut is an update, or a create where there is no such resource.
func (r *Rights) explainPut(u *url.URL, typ, id string) (Explanation, error) {
	update, create := r.explain("update", smart.Update, typ), r.explain("create", smart.Create, typ)
	update.When, create.When = "the resource exists", "the resource does not exist"
	may := []bool{update.Decision != "deny", create.Decision != "deny"}
	allowed := may[0] || may[1]
	if id != "" && r.d.Exists != nil {
		exists, err := r.d.Exists(r.ctx, typ, id)
		if err != nil {
			return Explanation{}, err
		}
		if allowed = may[1]; exists {
			allowed = may[0]
		}
	}
	list := r.conditional(u, id != "", update, create)
	return answered(allowed && list[len(list)-1].permits(id != ""), list), nil
}

// permits reports whether the search of a conditional interaction may go on; there is none
// for an instance.
func (d Decision) permits(instance bool) bool {
	return instance || d.Interaction != "search" || d.Decision != "deny"
}

// operationNeeds are the permissions that operations of the server ask for on the type.
var operationNeeds = map[string]smart.Permissions{
	"$everything": smart.Read | smart.Search, "$events": smart.Read | smart.Search, "$events-history": smart.Read | smart.Search,
	"$meta-add": smart.Read | smart.Update, "$meta-delete": smart.Read | smart.Update,
	"$status": smart.Read, "$secret": smart.Update, "$test": smart.Update,
}

// explainOperation is $x, Type/$x or Type/id/$x.
func (r *Rights) explainOperation(method, path string, parts []string) (Explanation, error) {
	name, typ := parts[len(parts)-1], ""
	if len(parts) > 3 {
		return Explanation{}, outcome.NotSupported("%s %s is no interaction", method, path)
	}
	if len(parts) > 1 {
		if typ = parts[0]; !r.d.Registry().Has(typ) {
			return Explanation{}, r.noType(typ)
		}
	}
	needs := operationNeeds[name]
	if r.d.Operation != nil {
		ofApp, known := r.d.Operation(typ, name[1:])
		if !known {
			return Explanation{}, outcome.NotSupported("there is no operation %s", strings.Join(parts, "/"))
		}
		for _, i := range ofApp {
			needs |= i.Permission()
		}
	}
	switch name {
	case "$reindex", "$install-package", "$remove-package", "$packages", "$notify":
		return explained(r.explainAdmin(method + " " + path)), nil
	case "$meta":
		needs = smart.Search
		if len(parts) == 3 {
			needs = smart.Read
		}
	case "$validate":
		if len(parts) == 3 && method == "GET" { // of stored resources
			needs = smart.Read
		}
	}
	if needs == 0 || typ == "" {
		return explained(Decision{Interaction: "operation " + name, ResourceType: typ, Decision: "allow", Reason: "any valid token may ask"}), nil
	}
	var out []Decision
	for p := smart.Create; p <= smart.Search; p <<= 1 {
		if needs&p != 0 {
			out = append(out, r.explain(permissionNames[p], p, typ))
		}
	}
	return explained(out...), nil
}

// conditional adds the search of a conditional interaction.
func (r *Rights) conditional(u *url.URL, instance bool, list ...Decision) []Decision {
	if !instance && u.RawQuery != "" {
		list = append(list, r.explain("search", smart.Search, list[0].ResourceType))
	}
	return list
}

// permissionNames are the interactions that letters of scopes are named after.
var permissionNames = map[smart.Permissions]string{
	smart.Create: "create", smart.Read: "read", smart.Update: "update", smart.Delete: "delete", smart.Search: "search",
}

func (r *Rights) explainAdmin(what string) Decision {
	if r.Admin {
		return Decision{Interaction: what, Decision: "allow", By: []string{"admin"}}
	}
	return Decision{Interaction: what, Decision: "deny", Scope: "admin", Reason: "the scope admin is lacking"}
}

func (r *Rights) explain(interaction string, permission smart.Permissions, typ string) Decision {
	d := Decision{Interaction: interaction, ResourceType: typ}
	a := r.answer(permission, typ)
	if a.why != "" {
		d.By = append(d.By, strings.Fields(a.why)...)
	}
	d.By = append(d.By, a.policies...)
	switch {
	case a.err != nil:
		d.Decision, d.Reason = "deny", "the decision could not be made"
	case a.denied:
		d.Decision, d.Reason = "deny", a.message
	case a.none && a.granted && permission == smart.Search: // an answer with nothing in it
		d.Decision, d.Condition, d.Reason = "conditional", a.String(), "no resource of this type is within reach of the token"
	case a.none && a.granted:
		d.Decision, d.Reason = "deny", "no resource of this type is within reach of the token"
	case a.none:
		d.Decision, d.Scope = "deny", r.missingScope(permission, typ)
		d.Reason = "the scope " + d.Scope + " is lacking"
	case a.Whole():
		d.Decision = "allow"
	default:
		d.Decision, d.Condition = "conditional", a.String()
	}
	return d
}
