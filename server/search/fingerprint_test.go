package search

import (
	"testing"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
)

// A change of a type's index changes its fingerprint and the one of all types, and no other. Other changes
// change no fingerprint.
func TestFingerprints(t *testing.T) {
	of := func(change func(p *fhir.Parameter)) Fingerprints {
		params := []fhir.Parameter{
			{Code: "code", Base: "Observation", Type: fhir.SearchToken, Keys: []fhir.Key{1}},
			{Code: "status", Base: "Observation", Type: fhir.SearchToken, Keys: []fhir.Key{2}, Systems: []string{"http://s"}},
			{Code: "code-value", Base: "Observation", Type: fhir.SearchComposite, Composites: []fhir.Composite{{Coded: 3,
				Parts: []fhir.Part{{Code: "code", Type: fhir.SearchToken, Keys: []fhir.Key{1}}, {Code: "value", Type: fhir.SearchQuantity, Keys: []fhir.Key{4}}}}}},
			{Code: "subject", Base: "Observation", Type: fhir.SearchReference, Keys: []fhir.Key{5}},
			{Code: "code", Base: "Condition", Type: fhir.SearchToken, Keys: []fhir.Key{6}},
		}
		for i := range params {
			change(&params[i])
		}
		return NewRegistry(r4.Model, params, nil).Fingerprints()
	}
	on := func(code string, change func(p *fhir.Parameter)) func(p *fhir.Parameter) {
		return func(p *fhir.Parameter) {
			if p.Base == "Observation" && p.Code == code {
				change(p)
			}
		}
	}
	nothing := func(*fhir.Parameter) {}
	same := of(nothing)
	if same.All == 0 || len(same.Types) != len(r4.Model.Resources) {
		t.Fatalf("%d of %d types have a fingerprint, all together %d", len(same.Types), len(r4.Model.Resources), same.All)
	}
	for _, c := range []struct {
		name    string
		got     Fingerprints
		changed bool
	}{
		{"the same tables", of(nothing), false},
		{"another description, URL and expression", of(on("code", func(p *fhir.Parameter) { p.Description, p.URL, p.Expression = "d", "u", "e" })), false},
		{"another code and other targets", of(on("status", func(p *fhir.Parameter) { p.Code, p.Targets = "state", []string{"Group"} })), false},
		{"another key", of(on("code", func(p *fhir.Parameter) { p.Keys = []fhir.Key{7} })), true},
		{"one more key", of(on("code", func(p *fhir.Parameter) { p.Keys = []fhir.Key{1, 7} })), true},
		{"another type", of(on("code", func(p *fhir.Parameter) { p.Type = fhir.SearchString })), true},
		{"a key that has words", of(on("code", func(p *fhir.Parameter) { p.Words = []fhir.Key{1} })), true},
		{"another implicit system", of(on("status", func(p *fhir.Parameter) { p.Systems = []string{"http://t"} })), true},
		{"no coded rows", of(on("code-value", func(p *fhir.Parameter) { p.Composites[0].Coded = 0 })), true},
		{"another key of a composite", of(on("code-value", func(p *fhir.Parameter) { p.Composites[0].Key = 8 })), true},
		{"another type of a part", of(on("code-value", func(p *fhir.Parameter) { p.Composites[0].Parts[1].Type = fhir.SearchNumber })), true},
		{"references that say their type", of(on("subject", func(p *fhir.Parameter) {
			p.Targets, p.Expression = []string{"Patient"}, "Observation.subject.where(resolve() is Patient)"
		})), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if changed := c.got.Types["Observation"] != same.Types["Observation"]; changed != c.changed {
				t.Errorf("the fingerprint of Observation is another one: %v, want %v", changed, c.changed)
			}
			if changed := c.got.All != same.All; changed != c.changed {
				t.Errorf("the fingerprint of all types is another one: %v, want %v", changed, c.changed)
			}
			if c.got.Types["Condition"] != same.Types["Condition"] {
				t.Error("the fingerprint of Condition is another one")
			}
		})
	}
}

// A server is ready within half a second, of which this may take little.
func BenchmarkFingerprints(b *testing.B) {
	r := NewRegistry(r4.Model, index.Parameters, index.Compartments)
	for b.Loop() {
		r.Fingerprints()
	}
}
