package access

import (
	"context"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/smart"
)

var registry = search.NewRegistry(r4.Model, index.Parameters, index.Compartments)

// decider has R4's search parameters and the policies of JSON documents.
func decider(t testing.TB, documents ...string) *Decider {
	t.Helper()
	d := &Decider{
		Registry: func() *search.Registry { return registry },
		Options:  func(context.Context) search.Options { return search.Options{Now: time.Unix(0, 0)} },
		Patients: func(_ context.Context, id string) ([]string, error) {
			return map[string][]string{"mother": {"p1", "p2"}}[id], nil
		},
	}
	var list []*Policy
	for _, text := range documents {
		p, err := d.ParsePolicy(context.Background(), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	policies := NewPolicies(list, nil)
	d.Policies = func(context.Context) (*Policies, error) { return policies, nil }
	return d
}

func principal(t testing.TB, scope string, change func(p *Principal)) *Principal {
	t.Helper()
	scopes, err := smart.Parse(scope)
	if err != nil {
		t.Fatal(err)
	}
	p := &Principal{Subject: "jane", ClientID: "app", Scopes: scopes, Admin: scopes.Has("admin")}
	change(p)
	return p
}

func patient(id string) func(p *Principal) { return func(p *Principal) { p.Patient = id } }
func user(ref string) func(p *Principal)   { return func(p *Principal) { p.FHIRUser = ref } }
func nobody(*Principal)                    {}

// Contract, Authorization 1: one predicate, a search condition; 4: patient/, user/, system/, granular scopes,
// their union.
func TestCondition(t *testing.T) {
	const r, s, c, u = smart.Read, smart.Search, smart.Create, smart.Update
	for _, tt := range []struct {
		name, scope string
		who         func(p *Principal)
		permission  smart.Permissions
		typ, want   string
	}{
		{"a patient's compartment", "patient/*.rs", patient("1"), r, "Observation", "Patient/1/Observation"},
		{"the patient", "patient/*.rs", patient("1"), r, "Patient", "Patient/1"},
		{"a type that the compartment forgets", "patient/*.rs", patient("1"), s, "Device", "Patient/1/Device"},
		{"a task", "patient/*.rs", patient("1"), s, "Task", "Patient/1/Task"},
		{"a shared type", "patient/*.rs", patient("1"), s, "Organization", "everything"},
		{"a shared type is not written", "patient/*.cruds", patient("1"), u, "Organization", "nothing"},
		{"what may hold anybody's data", "patient/*.cruds", patient("1"), r, "Bundle", "nothing"},
		{"no patient in the token", "patient/*.rs", nobody, r, "Observation", "nothing"},
		{"another type", "patient/Condition.rs", patient("1"), r, "Observation", "nothing"},
		{"another letter", "patient/*.s", patient("1"), r, "Observation", "nothing"},
		{"a patient as user", "user/*.rs", user("Patient/2"), r, "Observation", "Patient/2/Observation"},
		{"a related person", "user/*.rs", user("RelatedPerson/mother"), r, "Observation", "Patient/p1/Observation or Patient/p2/Observation"},
		{"a related person of nobody", "user/*.rs", user("RelatedPerson/other"), r, "Observation", "nothing"},
		{"a related person has shared types", "user/*.rs", user("RelatedPerson/other"), r, "Location", "everything"},
		{"a practitioner", "user/*.rs", user("Practitioner/1"), r, "Observation", "everything"},
		{"a person", "user/*.rs", user("Person/1"), r, "Observation", "everything"},
		{"system", "system/*.cruds", nobody, c, "Bundle", "everything"},
		{"granular", "system/Observation.rs?category=laboratory", nobody, r, "Observation", "Observation?category=laboratory"},
		{"granular in a compartment", "patient/Observation.rs?category=laboratory", patient("1"), r, "Observation", "Patient/1/Observation and Observation?category=laboratory"},
		{"granular with a chain gives nothing", "system/Observation.rs?subject:Patient.name=x", nobody, r, "Observation", "nothing"},
		{"granular with an unknown parameter gives nothing", "system/Observation.rs?nonsense=x", nobody, r, "Observation", "nothing"},
		{"a union", "patient/Observation.rs user/Observation.rs", func(p *Principal) { p.Patient, p.FHIRUser = "1", "Patient/2" }, r, "Observation",
			"Patient/1/Observation or Patient/2/Observation"},
		{"a union with everything", "patient/Observation.rs system/*.rs", patient("1"), r, "Observation", "everything"},
		{"admin alone", "admin", nobody, r, "Patient", "nothing"},
		{"admin writes search parameters", "admin", nobody, c, "SearchParameter", "everything"},
		{"nobody else does", "system/*.cruds", nobody, c, "SearchParameter", "nothing"},
		{"others read them", "system/*.rs", nobody, r, "SearchParameter", "everything"},
		{"an App is for admin", "system/*.cruds", nobody, r, "App", "nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decider(t).RightsOf(context.Background(), principal(t, tt.scope, tt.who)).Condition(tt.permission, tt.typ)
			if err != nil || got.String() != tt.want {
				t.Errorf("condition %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// Contract, Authorization 5: lowest priority number first, first match decides; `dryRun`.
func TestPolicyOrder(t *testing.T) {
	const lab, mine = `"condition":"Observation?category=laboratory"`, `"condition":"Observation?subject=Patient/1"`
	for _, tt := range []struct {
		name     string
		policies []string
		want     string
	}{
		{"none", nil, "everything"},
		{"deny", []string{`{"name":"a","effect":"deny"}`}, "nothing"},
		{"not active", []string{`{"name":"a","effect":"deny","active":false}`}, "everything"},
		{"dry run", []string{`{"name":"a","effect":"deny","dryRun":true}`}, "everything"},
		{"another type", []string{`{"name":"a","effect":"deny","condition":"Patient?name=x"}`}, "everything"},
		{"deny some", []string{`{"name":"a","effect":"deny",` + lab + `}`}, "not Observation?category=laboratory"},
		{"allow some, deny the rest", []string{`{"name":"b","effect":"deny","priority":2}`, `{"name":"a","effect":"allow","priority":1,` + lab + `}`}, "Observation?category=laboratory"},
		{"deny comes first", []string{`{"name":"b","effect":"deny","priority":0}`, `{"name":"a","effect":"allow","priority":1}`}, "nothing"},
		{"by name where priorities are the same", []string{`{"name":"b","effect":"deny"}`, `{"name":"a","effect":"allow"}`}, "everything"},
		{"three", []string{`{"name":"a","effect":"deny","priority":1,` + mine + `}`, `{"name":"b","effect":"allow","priority":2,` + lab + `}`, `{"name":"c","effect":"deny","priority":3}`},
			"not Observation?subject=Patient/1 and Observation?category=laboratory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decider(t, tt.policies...).RightsOf(context.Background(), principal(t, "system/*.rs", nobody)).Condition(smart.Read, "Observation")
			if err != nil || got.String() != tt.want {
				t.Errorf("condition %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// While an index is built, as after an upgrade, a condition does not match every resource:
// a policy that denies by it, or a scope that excludes by it, would let the others through.
func TestConditionsWhoseIndexIsBeingBuilt(t *testing.T) {
	building := registry.Extended(1, nil, index.Value, func(typ, code string, _ []fhir.Key) string {
		if typ == "Observation" && code == "category" {
			return "the index is still being built"
		}
		return ""
	})
	const lab = `"condition":"Observation?category=laboratory"`
	for _, tt := range []struct {
		name, scope string
		policies    []string
		want        string
		indexed     string // of a resource whose index is at hand
	}{
		{"deny some", "system/*.rs", []string{`{"name":"a","effect":"deny",` + lab + `}`}, "nothing", "not Observation?category=laboratory"},
		{"deny some, by a filter", "system/*.rs", []string{`{"name":"a","effect":"deny","condition":"Observation?_filter=category eq laboratory"}`}, "nothing", "not Observation?_filter=category eq laboratory"},
		{"allow some, deny the rest", "system/*.rs", []string{`{"name":"a","effect":"allow",` + lab + `}`, `{"name":"b","effect":"deny"}`}, "nothing", "Observation?category=laboratory"},
		{"a granular scope", "system/Observation.rs?category:not=laboratory", nil, "nothing", "Observation?category:not=laboratory"},
		{"one scope of two", "system/Observation.rs?category=laboratory system/Observation.rs?status=final", nil, "Observation?status=final", "Observation?category=laboratory or Observation?status=final"},
		{"another parameter", "system/*.rs", []string{`{"name":"a","effect":"deny","condition":"Observation?status=final"}`}, "not Observation?status=final", "not Observation?status=final"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := decider(t, tt.policies...)
			d.Registry = func() *search.Registry { return building }
			for _, text := range tt.policies {
				if _, err := d.ParsePolicy(context.Background(), []byte(text)); err != nil {
					t.Errorf("the policy cannot be stored meanwhile: %v", err)
				}
			}
			p := principal(t, tt.scope, nobody)
			for i, ctx := range []context.Context{WithPrincipal(context.Background(), p), WithIndex(context.Background(), p)} {
				want := []string{tt.want, tt.indexed}[i]
				r, err := d.Rights(ctx)
				if err != nil {
					t.Fatal(err)
				}
				got, err := r.Condition(smart.Read, "Observation")
				if err != nil || got.String() != want {
					t.Errorf("condition %q, %v, want %q", got, err, want)
				}
			}
		})
	}
}

// A search warns of resources hidden because an index is being built, as it does for its
// own parameters.
func TestNarrowedSearchesWarnOfAnIndexBeingBuilt(t *testing.T) {
	building := registry.Extended(1, nil, index.Value, func(typ, code string, _ []fhir.Key) string {
		if typ == "Observation" && code == "" {
			return "references are still being indexed"
		}
		return ""
	})
	d := decider(t)
	d.Registry = func() *search.Registry { return building }
	for scope, want := range map[string]int{"patient/*.rs": 1, "patient/*.rs patient/Observation.rs?status=final": 1, "system/*.rs": 0} {
		q, err := search.Parse(building, "Observation", url.Values{"code": {"x"}}, search.Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := d.RightsOf(context.Background(), principal(t, scope, patient("1"))).Narrow(q, smart.Search)
		if err != nil || len(n.Notices) != want || len(q.Notices) != 0 {
			t.Errorf("%s: the search warns of %v, %v, and the one that was narrowed of %v", scope, n.Notices, err, q.Notices)
		}
	}
}

// Contract, Authorization 5: a matcher's users are users: neither a client of that name nor an API key.
func TestPolicyUsers(t *testing.T) {
	d := decider(t, `{"name":"a","effect":"deny","matcher":{"users":["doc"]}}`)
	for _, tt := range []struct {
		name   string
		who    func(p *Principal)
		denied bool
	}{
		{"a user", func(p *Principal) { p.Subject = "doc" }, true},
		{"a user who signed in to a client of that name", func(p *Principal) { p.Subject, p.ClientID, p.SessionID = "doc", "doc", "s" }, true},
		{"a client", func(p *Principal) { p.Subject, p.ClientID = "doc", "doc" }, false},
		{"an API key", func(p *Principal) { p.Subject, p.ClientID, p.APIKey = "doc", "apikey:doc", true }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := d.RightsOf(context.Background(), principal(t, "system/*.rs", tt.who)).Check(smart.Read, "Patient"); (err != nil) != tt.denied {
				t.Errorf("%v, want denied %v", err, tt.denied)
			}
		})
	}
}

// Contract, Authorization 5: a policy that was stored under weaker checks stays in force as
// it was, and its other parts can be changed.
func TestCheckPolicy(t *testing.T) {
	d := decider(t, `{"name":"a","effect":"deny","matcher":{"interactions":["vread"]},"condition":"Patient?identifier={nope}"}`)
	policies, err := d.Policies(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	old := policies.List[0]
	if err := d.CheckPolicy(old, nil); !outcome.Is(err, outcome.CodeInvalid) {
		t.Errorf("a new one: %v", err)
	}
	next := *old
	next.Active = false
	if err := d.CheckPolicy(&next, old); err != nil {
		t.Errorf("one that is not in force any more: %v", err)
	}
	next.Condition = "Patient?identifier={other}"
	if err := d.CheckPolicy(&next, old); !outcome.Is(err, outcome.CodeInvalid) {
		t.Errorf("another condition: %v", err)
	}
	if a := d.RightsOf(context.Background(), principal(t, "system/*.rs", nobody)); a.Check(smart.Read, "Patient") != nil {
		t.Error("the stored policy decides on everything")
	}
}

// Contract, Authorization 5: token explain: which scope or policy allows or denies, the condition in FHIR's
// words.
func TestExplain(t *testing.T) {
	d := decider(t, `{"name":"p","effect":"deny","condition":"Condition?code=x"}`)
	app := principal(t, "patient/Observation.rs?category=laboratory patient/Practitioner.r", patient("1"))
	everyType := principal(t, "patient/*.rs", patient("1"))
	backend := principal(t, "system/*.rs", func(p *Principal) { p.Subject = p.ClientID })
	key := principal(t, "system/Patient.rs", func(p *Principal) { p.Subject, p.ClientID, p.APIKey = "feed", "apikey:feed", true })
	for _, tt := range []struct {
		name        string
		who         *Principal
		interaction string
		permission  smart.Permissions
		typ         string
		want        Decision
	}{
		{"conditional", app, "read", smart.Read, "Observation", Decision{Interaction: "read", ResourceType: "Observation", Decision: "conditional",
			Condition: "Patient/1/Observation and Observation?category=laboratory", By: []string{"patient/Observation.rs?category=laboratory"}}},
		{"allowed", app, "read", smart.Read, "Practitioner", Decision{Interaction: "read", ResourceType: "Practitioner", Decision: "allow", By: []string{"patient/Practitioner.r"}}},
		{"lacking", app, "delete", smart.Delete, "Observation", Decision{Interaction: "delete", ResourceType: "Observation", Decision: "deny",
			Scope: "patient/Observation.d", Reason: "the scope patient/Observation.d is lacking"}},
		{"lacking of an API key", key, "search", smart.Search, "Observation", Decision{Interaction: "search", ResourceType: "Observation", Decision: "deny",
			Scope: "system/Observation.s", Reason: "the scope system/Observation.s is lacking"}},
		{"a policy", backend, "search", smart.Search, "Condition", Decision{Interaction: "search", ResourceType: "Condition", Decision: "conditional",
			Condition: "not Condition?code=x", By: []string{"system/*.rs", "deny by p"}}},
		{"a compartment", backend, "search", smart.Search, "Observation", Decision{Interaction: "search", ResourceType: "Observation", Decision: "allow", By: []string{"system/*.rs"}}},
		{"nothing in reach is found", everyType, "search", smart.Search, "Bundle", Decision{Interaction: "search", ResourceType: "Bundle", Decision: "conditional",
			Condition: "nothing", By: []string{"patient/*.rs"}, Reason: "no resource of this type is within reach of the token"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := d.RightsOf(context.Background(), tt.who).ExplainType(tt.interaction, tt.permission, tt.typ)
			if !slices.Equal(tt.want.By, got.By) {
				t.Errorf("by %q, want %q", got.By, tt.want.By)
			}
			if tt.want.By, got.By = nil, nil; !reflect.DeepEqual(tt.want, got) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
	if list := d.RightsOf(context.Background(), app).ExplainScopes(); len(list.Decisions) != 3 || list.Allowed != nil {
		t.Errorf("without a request: %+v", list)
	}
	if d := d.RightsOf(context.Background(), backend).ExplainAdmin("administration"); d.Decision != "deny" || d.Scope != "admin" {
		t.Errorf("administration: %+v", d)
	}
}

// The condition of a patient's token is found by the index of terms like any other
// search, and never by testing every resource of a type.
func TestPlansOfPatientScopedSearches(t *testing.T) {
	numbers := make(map[string]int16)
	for i, typ := range registry.Types() {
		numbers[typ] = int16(i + 1)
	}
	env := &match.Env{
		Type:  func(typ string) (int16, bool) { n, ok := numbers[typ]; return n, ok },
		Texts: func(fhir.Key) []string { return nil },
	}
	rights := decider(t).RightsOf(context.Background(), principal(t, "patient/*.rs", patient("1")))
	for query, want := range map[string]string{
		"Observation?":                                   "terms",
		"Observation?code=x":                             "terms",
		"Observation?date=gt2020":                        "terms ordered",
		"Observation?_sort=-date":                        "terms",
		"Observation?subject:Patient.name=x":             "chain terms",
		"Condition?_lastUpdated=gt2020":                  "terms ordered",
		"Device?":                                        "terms",
		"Patient?name=x":                                 "ordered ordered",
		"Patient?_id=1":                                  "ids",
		"Practitioner?name=x":                            "ordered",
		"Practitioner?_has:Observation:performer:code=x": "chain",
		"?_type=Observation,Condition":                   "terms",
		"?_type=Observation,Practitioner":                "ordered",
	} {
		typ, rest, _ := strings.Cut(query, "?")
		values, err := url.ParseQuery(rest)
		if err != nil {
			t.Fatal(err)
		}
		q, err := search.Parse(registry, typ, values, search.Options{Now: time.Unix(0, 0)})
		if err != nil {
			t.Fatal(query, err)
		}
		n, err := rights.Narrow(q, smart.Search)
		if err != nil {
			t.Fatal(query, err)
		}
		p := plan.Compile(n, env)
		var drivers []string
		for _, d := range p.Drivers {
			drivers = append(drivers, d.Name)
		}
		if got := strings.Join(drivers, " "); got != want {
			t.Errorf("%s: candidates by %q, want %q", query, got, want)
		}
		if typ == "Practitioner" && !strings.Contains(rest, "_has") && len(n.Clauses) != len(q.Clauses) {
			t.Errorf("%s: a shared type is narrowed", query)
		}
		if len(q.Clauses) > len(n.Clauses) || &q.Clauses == &n.Clauses {
			t.Errorf("%s: the query that was given is changed", query)
		}
	}
}

// Contract, Authorization 6: the rights of a token are computed once for its requests, if
// nothing but the token decides them.
func TestRightsAreRemembered(t *testing.T) {
	rights := func(d *Decider, p *Principal) *Rights {
		t.Helper()
		r, err := d.Rights(WithPrincipal(context.Background(), p))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, tt := range []struct {
		name      string
		d         *Decider
		p         *Principal
		wantKnown bool
	}{
		{"system", decider(t), principal(t, "system/*.rs", nobody), true},
		{"patient", decider(t), principal(t, "patient/*.rs", patient("1")), true},
		{"a patient as user", decider(t), principal(t, "user/*.rs", user("Patient/1")), true},
		{"a related person, whose patients change", decider(t), principal(t, "user/*.rs", user("RelatedPerson/mother")), false},
		{"a granular scope", decider(t), principal(t, "patient/Observation.rs?category=laboratory", patient("1")), false},
		{"under policies", decider(t, `{"name":"a","effect":"deny","matcher":{"sourceIps":["10.0.0.0/8"]}}`), principal(t, "system/*.rs", nobody), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first := rights(tt.d, tt.p)
			if known := rights(tt.d, tt.p) == first; known != tt.wantKnown {
				t.Errorf("the rights of the next request are the same: %v, want %v", known, tt.wantKnown)
			}
		})
	}
	p, d := principal(t, "system/*.rs", nobody), decider(t)
	ofAll := rights(d, p)
	inCompartment := map[*Principal]*Rights{}
	for _, p := range []*Principal{principal(t, "patient/*.rs", patient("1")), principal(t, "user/*.rs", user("Patient/1"))} {
		inCompartment[p] = rights(d, p)
	}
	other := search.NewRegistry(r4.Model, index.Parameters, index.Compartments)
	d.Registry = func() *search.Registry { return other }
	for p, before := range inCompartment {
		if rights(d, p) == before {
			t.Errorf("rights of %+v outlive the search parameters that compartments were read from", p)
		}
	}
	if rights(d, p) != ofAll {
		t.Error("rights that no search parameter has a part in are decided anew")
	}
	denied := false
	d.Policies = func(context.Context) (*Policies, error) { return NewPolicies(nil, func() bool { return denied }), nil }
	open := rights(d, p)
	for _, denied = range []bool{false, true, false} {
		if err := rights(d, p).Check(smart.Read, "Patient"); (err != nil) != denied {
			t.Errorf("default_deny is %v: %v", denied, err)
		}
	}
	if rights(d, p) != open {
		t.Error("the rights without policies are not taken up again")
	}
	for typ := range r4.Model.Resources {
		if _, err := open.Condition(smart.Read, typ); err != nil {
			t.Fatal(err)
		}
	}
	if len(*open.known.Load()) > maxRemembered {
		t.Errorf("%d answers are remembered", len(*open.known.Load()))
	}
}

// The cost of a request with a token that earlier requests have used.
func BenchmarkRead(b *testing.B) {
	for name, p := range map[string]*Principal{"system": principal(b, "system/*.rs", nobody), "patient": principal(b, "patient/*.rs", patient("1"))} {
		d := decider(b)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := d.Rights(WithPrincipal(b.Context(), p))
				if err != nil || r.Check(smart.Read, "Observation") != nil {
					b.Fatal(err)
				}
				c, err := r.Condition(smart.Read, "Observation")
				if _, ok := c.TermTest("Observation", "1"); err != nil || ok == c.Whole() {
					b.Fatal(err)
				}
				if len(r.DryRuns(smart.Read, "Observation")) > 0 {
					b.Fatal("a policy")
				}
			}
		})
	}
}
