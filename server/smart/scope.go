package smart

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Context says whose data a scope is about.
type Context uint8

// The contexts of a resource scope.
const (
	Patient Context = iota + 1 // the patient of the launch context
	User                       // all that the user may see
	System                     // all that the client may see, without a user
)

var contextNames = [...]string{Patient: "patient", User: "user", System: "system"}

// String is the context as a scope writes it, "" for the zero value.
func (c Context) String() string {
	if int(c) < len(contextNames) {
		return contextNames[c]
	}
	return ""
}

// Permissions is a set of interactions.
type Permissions uint8

// The permissions, by the letters of a scope.
const (
	Create Permissions = 1 << iota
	Read
	Update
	Delete
	Search

	All = Create | Read | Update | Delete | Search
)

// letters in the order in which a scope must write them; the index is the bit.
const letters = "cruds"

// String is p as letters in their order: "rs", "cruds".
func (p Permissions) String() string {
	var b strings.Builder
	for i := range len(letters) {
		if p&(1<<i) != 0 {
			b.WriteByte(letters[i])
		}
	}
	return b.String()
}

// Scope is a resource scope: it permits interactions on one resource type, or on
// all of them.
type Scope struct {
	Context     Context
	Type        string // a resource type, or "*"
	Permissions Permissions
	// Search narrows a granular scope to the matches of a search: the query string without
	// its question mark, as it was written. "" means everything.
	Search string
}

// maxScope bounds one scope, and maxScopes the scopes of one parameter: longer
// ones are not something that an app would ask for.
const (
	maxScope  = 2048
	maxScopes = 512
)

// ParseScope reads one resource scope of version 2 (patient/Observation.rs,
// user/*.cruds, patient/Observation.rs?category=laboratory) or of version 1
// (patient/Observation.read, user/*.write, system/*.*). Letters stand once each,
// in the order c, r, u, d, s; only version 2 can be granular. It does not judge
// whether there is such a resource type.
// Spec: SMART App Launch 2.2 §3.0.2; SMART App Launch 1.0, scopes.
func ParseScope(text string) (Scope, error) {
	var s Scope
	if len(text) > maxScope {
		return s, fmt.Errorf("a scope of %d bytes is longer than %d", len(text), maxScope)
	}
	for i := range len(text) {
		if !scopeByte(text[i]) {
			return s, malformed(text, "it holds a character that a scope cannot hold")
		}
	}
	context, rest, ok := strings.Cut(text, "/")
	s.Context = Context(max(slices.Index(contextNames[:], context), 0))
	if !ok || context == "" || s.Context == 0 {
		return Scope{}, malformed(text, "expected patient/, user/ or system/")
	}
	rest, query, granular := strings.Cut(rest, "?")
	typ, permissions, ok := strings.Cut(rest, ".")
	if !ok {
		return Scope{}, malformed(text, "expected a dot and permissions after the resource type")
	}
	if typ != "*" && !typeName(typ) {
		return Scope{}, malformed(text, "expected a resource type or * after the slash")
	}
	s.Type = typ
	switch permissions {
	case "read":
		s.Permissions = Read | Search
	case "write":
		s.Permissions = Create | Update | Delete
	case "*":
		s.Permissions = All
	default:
		if s.Permissions, ok = parseLetters(permissions); !ok {
			return Scope{}, malformed(text, "expected letters of cruds, each once and in this order, or read, write, *")
		}
		if !granular {
			return s, nil
		}
		if values, err := url.ParseQuery(query); err != nil || len(values) == 0 || values.Has("") {
			return Scope{}, malformed(text, "expected search parameters after the question mark")
		}
		s.Search = query
		return s, nil
	}
	if granular {
		return Scope{}, malformed(text, "a scope of version 1 takes no search parameters")
	}
	return s, nil
}

func malformed(text, why string) error {
	if len(text) > 100 {
		text = text[:100] + "…"
	}
	return fmt.Errorf("scope %q is malformed: %s", strings.ToValidUTF8(text, "�"), why)
}

// scopeByte reports whether c may be in a scope: RFC 6749 §3.3, scope-token.
func scopeByte(c byte) bool { return c > ' ' && c < 0x7F && c != '"' && c != '\\' }

// typeName reports whether s has the form of a resource type.
func typeName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= 'A' && c <= 'Z' || i > 0 && c >= 'a' && c <= 'z') {
			return false
		}
	}
	return s != ""
}

func parseLetters(s string) (p Permissions, ok bool) {
	next := 0
	for i := range len(s) {
		at := strings.IndexByte(letters[next:], s[i])
		if at < 0 {
			return 0, false
		}
		p |= 1 << (next + at)
		next += at + 1
	}
	return p, p != 0
}

// String is s in the syntax of version 2.
func (s Scope) String() string {
	text := s.Context.String() + "/" + s.Type + "." + s.Permissions.String()
	if s.Search != "" {
		text += "?" + s.Search
	}
	return text
}

// Covers reports whether s permits all that narrower does.
func (s Scope) Covers(narrower Scope) bool {
	return s.about(narrower) && s.Permissions&narrower.Permissions == narrower.Permissions
}

// about reports whether s is about all the resources that narrower is about: the
// same context, its type or all, and no condition that narrower does not have.
func (s Scope) about(narrower Scope) bool {
	if s.Context != narrower.Context || s.Type != "*" && s.Type != narrower.Type {
		return false
	}
	if s.Search == "" || s.Search == narrower.Search {
		return true
	}
	conditions := strings.Split(narrower.Search, "&")
	for condition := range strings.SplitSeq(s.Search, "&") {
		if !slices.Contains(conditions, condition) {
			return false
		}
	}
	return true
}

// Scopes are the scopes of a scope parameter, without repetitions.
type Scopes struct {
	Resource []Scope
	// Other are the scopes that are about no resource type: openid, fhirUser,
	// profile, launch, launch/patient, launch/encounter, launch/context,
	// offline_access, online_access, admin, metrics; and well-formed ones that nobody here
	// knows, which no client can be granted.
	Other []string
}

// Known are the scopes beside the resource scopes that mean something here.
var Known = []string{
	"openid", "fhirUser", "profile", "launch", "launch/patient", "launch/encounter",
	"launch/context", "offline_access", "online_access", "admin", "metrics",
}

// WithoutUser reports whether a scope about no resource type can be granted to an API key or
// to a client that acts on its own behalf. Only administrators register clients with such a
// scope.
func WithoutUser(name string) bool {
	return name == "admin" || name == "metrics" || name == "launch/context"
}

// Parse reads a scope parameter: scopes with one space between them. It fails on
// the first that is malformed. "" is no scope at all, which is no error.
// RFC 6749 §3.3.
func Parse(list string) (Scopes, error) {
	var out Scopes
	if list == "" {
		return out, nil
	}
	n := 0
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ' ' }) {
		if n++; n > maxScopes {
			return Scopes{}, fmt.Errorf("there are more than %d scopes", maxScopes)
		}
		if otherScope(text) {
			if !slices.Contains(out.Other, text) {
				out.Other = append(out.Other, text)
			}
			continue
		}
		s, err := ParseScope(text)
		if err != nil {
			return Scopes{}, err
		}
		if !slices.Contains(out.Resource, s) {
			out.Resource = append(out.Resource, s)
		}
	}
	return out, nil
}

// otherScope reports whether text is a scope about no resource type: a plain word,
// a launch context, or the URI of somebody's extension.
func otherScope(text string) bool {
	if len(text) > maxScope {
		return false
	}
	if slices.Contains(Known, text) {
		return true
	}
	if strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://") {
		for i := range len(text) {
			if !scopeByte(text[i]) {
				return false
			}
		}
		return true
	}
	word := strings.TrimPrefix(text, "launch/")
	for i := range len(word) {
		c := word[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9' || c == '_' || c == '-')) {
			return false
		}
	}
	return word != ""
}

// Has reports whether the scope of that name, which is about no resource type, is
// among them.
func (s Scopes) Has(name string) bool { return slices.Contains(s.Other, name) }

// HasContext reports whether a resource scope of that context is among them.
func (s Scopes) HasContext(c Context) bool {
	return slices.ContainsFunc(s.Resource, func(x Scope) bool { return x.Context == c })
}

// Covers reports whether everything that the scope text permits is permitted by
// the scopes together: patient/*.r and patient/*.s cover patient/Observation.rs.
// A malformed text is not covered.
func (s Scopes) Covers(text string) bool {
	if otherScope(text) {
		return s.Has(text)
	}
	narrower, err := ParseScope(text)
	return err == nil && s.covers(narrower)
}

func (s Scopes) covers(narrower Scope) bool { return s.lacks(narrower) == 0 }

// lacks are the permissions of a scope that s does not give.
func (s Scopes) lacks(narrower Scope) Permissions {
	left := narrower.Permissions
	for _, wider := range s.Resource {
		if wider.about(narrower) {
			left &^= wider.Permissions
		}
	}
	return left
}

// Within reports whether wider covers each of s.
func (s Scopes) Within(wider Scopes) bool {
	for _, r := range s.Resource {
		if !wider.covers(r) {
			return false
		}
	}
	for _, o := range s.Other {
		if !wider.Has(o) {
			return false
		}
	}
	return true
}

// Decided returns the allowed scopes after another decision: the chosen ones, and the
// scopes of s that are covered by no scope that was asked for and refused.
func (s Scopes) Decided(asked, chosen Scopes) Scopes {
	out := Scopes{Resource: slices.Clone(chosen.Resource), Other: slices.Clone(chosen.Other)}
	for _, o := range s.Other {
		if !asked.Has(o) && !out.Has(o) {
			out.Other = append(out.Other, o)
		}
	}
	for _, before := range s.Resource {
		for _, a := range asked.Resource {
			if a.Context == before.Context && (a.Type == before.Type || a.Type == "*" || before.Type == "*") {
				before.Permissions &^= chosen.lacks(a)
			}
		}
		if before.Permissions != 0 && !chosen.covers(before) {
			out.Resource = append(out.Resource, before)
		}
	}
	return out
}

// Empty reports whether there is no scope at all.
func (s Scopes) Empty() bool { return len(s.Resource)+len(s.Other) == 0 }

// String is the scope parameter: first those about no resource type, each in the
// syntax of version 2, with one space between.
func (s Scopes) String() string {
	all := slices.Clone(s.Other)
	for _, r := range s.Resource {
		all = append(all, r.String())
	}
	return strings.Join(all, " ")
}
