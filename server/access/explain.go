package access

import (
	"net/url"
	"strings"

	"kiln/oauth/smart"
	"kiln/server/outcome"
)

// Decision is one answer of access.
type Decision struct {
	Interaction  string `json:"interaction"`
	ResourceType string `json:"resourceType,omitempty"`
	// Decision is allow, deny, or conditional: allow what Condition says.
	Decision string `json:"decision"`
	// Condition is what must hold of a resource, in FHIR's words.
	Condition string `json:"condition,omitempty"`
	// By are the scopes that give and the policies that decide, in their order.
	By     []string `json:"by,omitempty"`
	Reason string   `json:"reason,omitempty"` // of a denial
	// Scope is the scope that would do, where one is lacking.
	Scope string `json:"scope,omitempty"`
}

// Explain says what r may do: with a method and a path of FHIR, whether such a request
// may go on, else what each scope gives. It changes nothing, and asks nobody but for the
// patients of a RelatedPerson and the policies in force.
func (r *Rights) Explain(method, path string) ([]Decision, error) {
	if method != "" || path != "" {
		return r.explainRequest(strings.ToUpper(method), path)
	}
	out := []Decision{}
	names := map[smart.Permissions]string{smart.Create: "create", smart.Read: "read", smart.Update: "update", smart.Delete: "delete", smart.Search: "search"}
	type question struct {
		permission smart.Permissions
		typ        string
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
					out = append(out, r.explain(names[p], p, t))
				}
			}
		}
	}
	return out, nil
}

// explainRequest finds the interaction of a request.
func (r *Rights) explainRequest(method, path string) ([]Decision, error) {
	u, err := url.Parse(path)
	if err != nil {
		return nil, outcome.Invalid("path %q is no URL", path)
	}
	parts := strings.Split(strings.Trim(strings.TrimPrefix(u.Path, "/fhir"), "/"), "/")
	typ := parts[0]
	last := parts[len(parts)-1]
	switch {
	case typ == "admin" || typ == "metrics" || last == "$reindex" || last == "$install-package" || last == "$packages":
		return []Decision{r.explainAdmin(method + " " + path)}, nil
	case strings.HasPrefix(last, "$") && last != "$everything" && !strings.HasPrefix(last, "$meta"):
		return []Decision{{Interaction: "operation " + last, ResourceType: resourceType(r, typ), Decision: "allow", Reason: "any valid token may ask"}}, nil
	case typ == "" || typ == "_history":
		var out []Decision
		types := r.d.Registry().Types()
		if list := u.Query().Get("_type"); list != "" {
			types = strings.Split(list, ",")
		}
		for _, t := range types {
			if d := r.explain("search", smart.Search, t); r.d.Registry().Has(t) && (d.Decision != "deny" || len(types) < 20) {
				out = append(out, d)
			}
		}
		return out, nil
	case resourceType(r, typ) == "":
		return nil, outcome.NotSupported("there is no resource type %q in FHIR R4%s", typ, r.d.Registry().NearestType(typ))
	}
	if len(parts) > 2 && resourceType(r, parts[2]) != "" {
		return []Decision{r.explain("search", smart.Search, parts[2])}, nil
	}
	instance := len(parts) > 1 && !strings.HasPrefix(parts[1], "_") && !strings.HasPrefix(parts[1], "$")
	switch {
	case last == "$everything":
		return []Decision{r.explain("read", smart.Read, typ), r.explain("search", smart.Search, typ)}, nil
	case last == "$meta-add" || last == "$meta-delete":
		return []Decision{r.explain("read", smart.Read, typ), r.explain("update", smart.Update, typ)}, nil
	case method == "DELETE":
		return r.conditional(u, instance, r.explain("delete", smart.Delete, typ)), nil
	case method == "PUT":
		return r.conditional(u, instance, r.explain("update", smart.Update, typ), r.explain("create", smart.Create, typ)), nil
	case method == "PATCH":
		return r.conditional(u, instance, r.explain("patch", smart.Update, typ)), nil
	case method == "POST" && len(parts) == 1:
		return []Decision{r.explain("create", smart.Create, typ)}, nil
	case method == "POST" && last == "_search", (method == "GET" || method == "HEAD") && !instance:
		return []Decision{r.explain("search", smart.Search, typ)}, nil
	case method == "GET" || method == "HEAD":
		return []Decision{r.explain("read", smart.Read, typ)}, nil
	}
	return nil, outcome.NotSupported("%s %s is no interaction", method, path)
}

// conditional adds the search of a conditional interaction.
func (r *Rights) conditional(u *url.URL, instance bool, list ...Decision) []Decision {
	if !instance && u.RawQuery != "" {
		list = append(list, r.explain("search", smart.Search, list[0].ResourceType))
	}
	return list
}

func resourceType(r *Rights, name string) string {
	if r.d.Registry().Has(name) {
		return name
	}
	return ""
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
	case a.none && a.granted:
		d.Decision, d.Reason = "deny", "no resource of this type is within reach of the token"
	case a.none:
		d.Decision, d.Scope = "deny", r.lacking(permission, typ)
		d.Reason = "the scope " + d.Scope + " is lacking"
	case a.Whole():
		d.Decision = "allow"
	default:
		d.Decision, d.Condition = "conditional", a.String()
	}
	return d
}
