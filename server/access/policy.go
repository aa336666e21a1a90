package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"kiln/server/outcome"
	"kiln/server/smart"
)

// Policy takes away from what scopes give, or, under auth.policy.default_deny, leaves
// it. Of those in force that match, the one with the lowest priority number decides;
// of two with the same number, the one that comes first by name.
// Contract: docs/contract.md, Authorization, Policies, federation, audit.
type Policy struct {
	Name     string `json:"name"`
	Active   bool   `json:"active"`
	Priority int    `json:"priority"`
	// DryRun decides nothing: refusals of the policy are only logged and counted.
	DryRun  bool    `json:"dryRun"`
	Matcher Matcher `json:"matcher"`
	Effect  string  `json:"effect"` // allow or deny
	// Condition is a search, "Observation?category=laboratory": the policy matches what
	// it finds. It may hold {user.fhirUser}, {patient} and {client}. "" is everything.
	Condition string `json:"condition,omitempty"`
	Message   string `json:"message,omitempty"` // shown to callers who are denied

	denied *atomic.Int64 // by a dry run
}

// Matcher selects the principals and requests of a policy. An empty list matches
// everything; of several lists each must match.
type Matcher struct {
	Clients       []string `json:"clients,omitempty"`
	Roles         []string `json:"roles,omitempty"`
	Users         []string `json:"users,omitempty"`
	ResourceTypes []string `json:"resourceTypes,omitempty"`
	// Interactions are the interactions of a capability statement, by the letter of the
	// scope that they need: CheckPolicy wants all of a letter or none.
	Interactions []string `json:"interactions,omitempty"`
	SourceIPs    []string `json:"sourceIps,omitempty"` // addresses and networks
}

// policyPermissions are the letters that interactions need.
var policyPermissions = map[string]smart.Permissions{
	"read": smart.Read, "vread": smart.Read, "history-instance": smart.Read, "history": smart.Read | smart.Search,
	"search": smart.Search, "search-type": smart.Search, "search-system": smart.Search, "history-type": smart.Search, "history-system": smart.Search,
	"create": smart.Create, "update": smart.Update, "patch": smart.Update, "delete": smart.Delete,
}

// interactionGroups are the interactions that are decided on together, as they need the
// same letter. The first name is the whole group, and so is FHIR's code for a search.
var interactionGroups = [][]string{
	{"create"}, {"read", "vread", "history-instance"}, {"update", "patch"}, {"delete"},
	{"search", "search-type", "search-system", "history-type", "history-system"},
}

// ParsePolicy reads a policy as it is stored, now or before CheckPolicy refused it. It fails with invalid where it could not be decided on.
// An absent active is true.
func (d *Decider) ParsePolicy(ctx context.Context, document []byte) (*Policy, error) {
	p := Policy{Active: true, denied: new(atomic.Int64)}
	in := json.NewDecoder(bytes.NewReader(document))
	in.DisallowUnknownFields()
	if err := in.Decode(&p); err != nil {
		return nil, outcome.Invalid("the policy cannot be read: %s", outcome.JSONProblem(err))
	}
	if p.Name == "" || len(p.Name) > 200 {
		return nil, outcome.Invalid("a policy needs a name of up to 200 bytes").At("name")
	}
	if p.Effect != "allow" && p.Effect != "deny" {
		return nil, outcome.Invalid("effect is %q: expected allow or deny", p.Effect).At("effect")
	}
	reg := d.Registry()
	for _, t := range p.Matcher.ResourceTypes {
		if !reg.Has(t) {
			return nil, outcome.Invalid("resourceTypes has %q, which is no resource type%s", t, reg.NearestType(t)).At("matcher.resourceTypes")
		}
	}
	for _, i := range p.Matcher.Interactions {
		if policyPermissions[i] == 0 {
			return nil, outcome.Invalid("interactions has %q: expected create, read, update, delete or search", i).At("matcher.interactions")
		}
	}
	for _, text := range p.Matcher.SourceIPs {
		if _, err := network(text); err != nil {
			return nil, outcome.Invalid("sourceIps has %q: expected an address such as 10.0.0.1 or a network such as 10.0.0.0/8", text).At("matcher.sourceIps")
		}
	}
	if p.Condition != "" {
		if typ, _, _ := strings.Cut(p.Condition, "?"); len(p.Matcher.ResourceTypes) > 0 && reg.Has(typ) && !slices.Contains(p.Matcher.ResourceTypes, typ) {
			return nil, outcome.Invalid("the condition is about %s, which resourceTypes leaves out: the policy would never match", typ).At("condition")
		}
		// Any value can replace a placeholder here: only the parameters are checked. A
		// reference accepts some types of users and not others.
		var failure error
		for _, user := range []string{"Practitioner", "Patient", "RelatedPerson", "Person"} {
			_, err := d.policyCondition(ctx, p.Condition, strings.NewReplacer("{user.fhirUser}", user+"%2F1", "{patient}", "1", "{client}", "c"))
			if failure = err; err == nil {
				break
			}
		}
		if failure != nil {
			return nil, outcome.Invalid("condition %q: %v", p.Condition, failure).At("condition")
		}
	}
	return &p, nil
}

// CheckPolicy fails with invalid if p would decide otherwise than it says, or decide
// nothing. Parts that before, nil for none, already had stay as they are.
func (d *Decider) CheckPolicy(p, before *Policy) error {
	if before == nil {
		before = &Policy{}
	}
	if !reflect.DeepEqual(p.Matcher, before.Matcher) {
		if err := p.Matcher.check(); err != nil {
			return err
		}
	}
	if p.Condition != before.Condition {
		left := strings.NewReplacer("{user.fhirUser}", "", "{patient}", "", "{client}", "").Replace(p.Condition)
		if i := strings.IndexAny(left, "{}"); i >= 0 {
			unknown := left[i:]
			if end := strings.IndexByte(unknown, '}'); end >= 0 {
				unknown = unknown[:end+1]
			}
			return outcome.Invalid("condition has %s: expected {user.fhirUser}, {patient} or {client}; a brace that is meant as such is %%7B or %%7D", unknown).At("condition")
		}
	}
	return nil
}

func (m *Matcher) check() error {
	for name, list := range map[string][]string{"clients": m.Clients, "roles": m.Roles, "users": m.Users} {
		if slices.Contains(list, "") {
			return outcome.Invalid("%s has an empty name, which matches no caller", name).At("matcher." + name)
		}
	}
	for _, text := range m.SourceIPs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4In6() && p.Bits() < mappedBits {
			return outcome.Invalid("sourceIps has %q, which no IPv4 address is in: expected a network such as %s/8", text, p.Addr().Unmap()).At("matcher.sourceIps")
		}
	}
	return wholeGroups(m.Interactions)
}

// wholeGroups fails where names are some of a group of interactions and not all.
func wholeGroups(names []string) error {
	whole := func(group []string) bool {
		return slices.Contains(names, group[0]) || group[0] == "search" && slices.Contains(names, "search-type")
	}
	for _, group := range interactionGroups {
		for _, name := range names {
			if (name == "history" && (group[0] == "read" || group[0] == "search") || slices.Contains(group, name)) && !whole(group) {
				return outcome.Invalid("interactions has %q, which is not decided on by itself: expected %q, which goes for %s",
					name, group[0], strings.Join(group[1:], ", ")).At("matcher.interactions")
			}
		}
	}
	return nil
}

// mappedBits is the length of the prefix of an IPv4 address that is written as IPv6.
const mappedBits = 96

// network reads an address or a network; one of IPv4 is that, however it is written.
func network(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= mappedBits {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
		}
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), err
}

// policyCondition reads "Type?search" with placeholders replaced.
func (d *Decider) policyCondition(ctx context.Context, text string, replace *strings.Replacer) (Condition, error) {
	typ, query, ok := strings.Cut(text, "?")
	if !ok || !d.Registry().Has(typ) {
		return nothing, fmt.Errorf("expected a resource type, a question mark and a search")
	}
	return d.search(ctx, typ, replace.Replace(query))
}

// Policies are policies in force, in the order in which they decide. They are not
// changed.
type Policies struct {
	List        []*Policy
	DefaultDeny func() bool // whether what no policy decides is denied
}

// NewPolicies sorts policies.
func NewPolicies(list []*Policy, defaultDeny func() bool) *Policies {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return &Policies{list, defaultDeny}
}

// matches reports whether the policy applies to a principal's permission on typ.
func (m *Matcher) matches(r *Rights, permission smart.Permissions, typ string) bool {
	in := func(list []string, values ...string) bool {
		return len(list) == 0 || slices.ContainsFunc(values, func(v string) bool { return v != "" && slices.Contains(list, v) })
	}
	if !in(m.Clients, r.ClientID) || !in(m.Users, r.User()) || !in(m.Roles, r.Roles...) || !in(m.ResourceTypes, typ) {
		return false
	}
	if len(m.Interactions) > 0 && !slices.ContainsFunc(m.Interactions, func(i string) bool { return policyPermissions[i]&permission != 0 }) {
		return false
	}
	if len(m.SourceIPs) == 0 {
		return true
	}
	return slices.ContainsFunc(m.SourceIPs, func(text string) bool {
		p, err := network(text)
		return err == nil && p.Contains(r.address.Unmap().WithZone(""))
	})
}

// DryRun is the effect that a policy under dry run would have.
type DryRun struct {
	Policy *Policy
	Condition
}

// Count counts one denial and returns how many there were.
func (d DryRun) Count() int64 { return d.Policy.denied.Add(1) }

// Denied is how often a dry run of the policy would have denied on this server since
// the policy was changed last.
func (p *Policy) Denied() int64 { return p.denied.Load() }

// applyPolicies narrows a by the policies. The list is folded from its end: a resource that
// a policy does not match is left to the next policies.
func (r *Rights) applyPolicies(a *answer, permission smart.Permissions, typ string) {
	if r.d.Policies == nil {
		return
	}
	if r.policies == nil {
		if r.policies, a.err = r.d.Policies(r.ctx); a.err != nil {
			a.Condition = nothing
			return
		}
	}
	type step struct {
		*Policy
		c Condition
	}
	var steps []step
	before := nothing // what earlier policies decide
	for _, p := range r.policies.List {
		if !p.Active || !p.Matcher.matches(r, permission, typ) {
			continue
		}
		if r.Issuer != "" && p.Effect == "allow" && len(p.Matcher.Users) > 0 {
			continue // somebody elsewhere has the name of a user here: it gives nothing
		}
		c, about := r.condition(p, typ)
		if !about {
			continue
		}
		if p.DryRun {
			if p.Effect == "deny" {
				if c = c.and(before.not()); !c.none {
					a.dry = append(a.dry, DryRun{p, c})
				}
			}
			continue
		}
		steps = append(steps, step{p, c})
		if before = before.or(c); c.Whole() {
			break
		}
	}
	left := Condition{none: r.policies.DefaultDeny != nil && r.policies.DefaultDeny()}
	if left.none {
		a.message = "no policy of this server allows this (auth.policy.default_deny)"
	}
	for _, s := range slices.Backward(steps) {
		if s.Effect == "allow" {
			left = s.c.or(left)
		} else {
			left = s.c.not().and(left)
			if a.message = s.Message; a.message == "" {
				a.message = "the policy " + s.Name + " of this server does not allow this"
			}
		}
		a.policies = append(a.policies, s.Effect+" by "+s.Name)
	}
	slices.Reverse(a.policies)
	a.Condition = a.Condition.and(left)
	a.denied = a.none
}

// condition is what of typ a policy matches; about is false for nothing. A condition
// that cannot be read for this principal, or whose index is still being built, matches
// nothing where it would allow, and everything of its type where it would deny.
func (r *Rights) condition(p *Policy, typ string) (c Condition, about bool) {
	if p.Condition == "" {
		return Condition{}, true
	}
	if of, _, _ := strings.Cut(p.Condition, "?"); of != typ {
		return nothing, false
	}
	missing := false
	var pairs []string
	for _, v := range [][2]string{{"{user.fhirUser}", r.FHIRUser}, {"{patient}", r.Patient}, {"{client}", r.ClientID}} {
		missing = missing || v[1] == "" && strings.Contains(p.Condition, v[0])
		pairs = append(pairs, v[0], url.QueryEscape(searchEscape.Replace(v[1])))
	}
	var err error
	if !missing {
		c, err = r.d.policyCondition(r.ctx, p.Condition, strings.NewReplacer(pairs...))
	}
	if missing || err != nil || !r.whole(c) {
		return Condition{}, p.Effect == "deny"
	}
	return c, true
}

// searchEscape writes a text as one value of a search parameter.
// Spec: https://hl7.org/fhir/R4/search.html#escaping.
var searchEscape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `$`, `\$`, `|`, `\|`)

// DryRuns are what policies under dry run would take from what permission reaches of
// typ, without those that DryRunsOfType has returned to this request.
func (r *Rights) DryRuns(permission smart.Permissions, typ string) []DryRun {
	dry := r.answer(permission, typ).dry
	if len(dry) == 0 {
		return nil
	}
	r.mu.Lock()
	told := r.told[question{permission, typ}]
	r.mu.Unlock()
	if !told {
		return dry
	}
	return slices.DeleteFunc(slices.Clone(dry), func(d DryRun) bool { return d.Whole() })
}

// DryRunsOfType are the policies that would deny the whole type: each would have refused
// the request once.
func (r *Rights) DryRunsOfType(permission smart.Permissions, typ string) []DryRun {
	dry := r.answer(permission, typ).dry
	if len(dry) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = make(map[question]bool)
	}
	r.told[question{permission, typ}] = true
	return slices.DeleteFunc(slices.Clone(dry), func(d DryRun) bool { return !d.Whole() })
}
