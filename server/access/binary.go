package access

import (
	"slices"
	"strings"

	"kiln/server/search/match"
	"kiln/server/smart"
)

// securityContext is the search parameter for Binary.securityContext: the resource whose
// access rules apply to the Binary.
// Spec: https://hl7.org/fhir/R4/binary-definitions.html#Binary.securityContext.
const securityContext = "security-context"

// readableContext returns the condition that a Binary has a security context that the token
// may read. A Binary whose security context is another Binary does not pass.
func (r *Rights) readableContext() (Condition, error) {
	stored := r.forStored()
	conditions := make(map[string]Condition)
	for _, t := range r.d.Registry().Types() {
		if t == "Binary" {
			continue
		}
		a := stored.answer(smart.Read, t)
		if a.err != nil {
			return nothing, a.err
		}
		if !a.none {
			conditions[t] = a.Condition
		}
	}
	return r.contextIn(conditions, "Binary with a readable securityContext"), nil
}

// writableContext returns the condition that the security context of a Binary is about one
// of the patients.
func (r *Rights) writableContext(permission smart.Permissions, patients ...string) Condition {
	conditions := make(map[string]Condition)
	for _, t := range r.d.Registry().Types() {
		if t == "Binary" {
			continue
		}
		if c, ok := r.compartments(permission, t, patients...); ok && !c.none {
			conditions[t] = c
		}
	}
	var words []string
	for _, id := range patients {
		words = append(words, "Patient/"+id)
	}
	return r.contextIn(conditions, "Binary with a securityContext in "+strings.Join(words, " or "))
}

// withoutHiddenContext takes Binaries from c whose security context the policies hide.
func (r *Rights) withoutHiddenContext(c Condition) (Condition, error) {
	if len(r.policies.List) == 0 && (r.policies.DefaultDeny == nil || !r.policies.DefaultDeny()) {
		return c, nil
	}
	stored := r.forStored()
	hidden := make(map[string]Condition)
	for _, t := range r.d.Registry().Types() {
		if t == "Binary" {
			continue
		}
		a := answer{}
		if stored.applyPolicies(&a, smart.Read, t); a.err != nil {
			return nothing, a.err
		}
		if !a.Whole() {
			hidden[t] = a.Condition.not()
		}
	}
	return c.and(r.contextIn(hidden, "Binary with a securityContext that policies hide").not()), nil
}

// contextIn returns the condition that a Binary has a security context of one of the types
// in conditions that meets the condition for its type.
func (r *Rights) contextIn(conditions map[string]Condition, words string) Condition {
	p, ok := r.d.Registry().Compiled("Binary", securityContext)
	if !ok || len(conditions) == 0 {
		return nothing
	}
	types := make([]string, 0, len(conditions))
	for t := range conditions {
		types = append(types, t)
	}
	slices.Sort(types)
	chain := match.Chain{Keys: p.Keys, Target: strings.Join(types, "|")}
	if c, ok := joinByType(types, conditions); ok {
		chain.Clauses = []match.Clause{c}
	}
	return Condition{
		clauses: []match.Clause{{Name: securityContext, Value: words, Any: []match.Match{chain}}},
		words:   words,
		notice:  r.d.Registry().CompartmentNotice("Binary"),
		related: func(m match.Related) (bool, error) {
			if r.d.Related == nil || len(m.Targets) == 0 {
				return false, nil
			}
			return r.d.Related(r.ctx, m)
		},
	}
}

// forStored returns the same rights for resources that only the stored index describes.
func (r *Rights) forStored() *Rights {
	stored := r.d.RightsOf(r.ctx, r.Principal)
	stored.address, stored.patients, stored.asked, stored.policies = r.address, r.patients, r.asked, r.policies
	return stored
}
