package access

import (
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
	// Status is the HTTP status that the request would get, as far as the rights and the existence of
	// the resource decide; 0 where they do not. Answer is its reason. A hidden resource answers as an
	// absent one: Allowed is false and Status is 404.
	Status int    `json:"status,omitempty"`
	Answer string `json:"answer,omitempty"`
}

// Explain returns the explanation of a request that all decisions of list must allow.
func Explain(list ...Decision) Explanation {
	return ExplainAs(!slices.ContainsFunc(list, func(d Decision) bool { return d.Decision == "deny" }), list)
}

// ExplainAs returns the explanation of a request with the given result.
func ExplainAs(allowed bool, list []Decision) Explanation {
	return Explanation{Allowed: &allowed, Decisions: list}
}

// ExplainScopes describes the result of each scope.
func (r *Rights) ExplainScopes() Explanation {
	out := []Decision{}
	if r.Admin {
		out = append(out, r.ExplainAdmin("administration"))
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
					out = append(out, r.ExplainType(permissionNames[p], p, t))
				}
			}
		}
	}
	return Explanation{Decisions: out}
}

// ExplainAnyType explains a request about all types, which is denied where the token has the permission on none.
func (r *Rights) ExplainAnyType(interaction string, permission smart.Permissions) (Decision, error) {
	err := r.MayAny(permission)
	if outcome.Is(err, outcome.CodeForbidden) {
		scope := r.anyType(permission)
		return Decision{Interaction: interaction, Decision: "deny", Scope: scope, Reason: "the scope " + scope + " is lacking"}, nil
	}
	return Decision{Interaction: interaction, Decision: "allow"}, err
}

// permissionNames are the interactions that letters of scopes are named after.
var permissionNames = map[smart.Permissions]string{
	smart.Create: "create", smart.Read: "read", smart.Update: "update", smart.Delete: "delete", smart.Search: "search",
}

// PermissionName returns the interaction that a letter of scopes is named after.
func PermissionName(p smart.Permissions) string { return permissionNames[p] }

// ExplainMetrics explains a request for the metrics of the server.
func (r *Rights) ExplainMetrics(what string) Decision {
	switch {
	case r.Scopes.Has("metrics"):
		return Decision{Interaction: what, Decision: "allow", By: []string{"metrics"}}
	case r.Admin:
		return r.ExplainAdmin(what)
	}
	return Decision{Interaction: what, Decision: "deny", Scope: "metrics", Reason: "the scope metrics is lacking"}
}

// ExplainAdmin explains a request of administration.
func (r *Rights) ExplainAdmin(what string) Decision {
	if r.Admin {
		return Decision{Interaction: what, Decision: "allow", By: []string{"admin"}}
	}
	return Decision{Interaction: what, Decision: "deny", Scope: "admin", Reason: "the scope admin is lacking"}
}

// ExplainType explains an interaction with resources of a type.
func (r *Rights) ExplainType(interaction string, permission smart.Permissions, typ string) Decision {
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
