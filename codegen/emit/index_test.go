package emit_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/definitions/examples"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
)

func decode(t testing.TB, body string) fhir.Resource {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(body))
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	return r
}

func extract(r fhir.Resource) *fhir.Index {
	x := new(fhir.Index)
	index.Extract(x, r)
	x.Finish()
	return x
}

func parameter(t *testing.T, base, code string) fhir.Parameter {
	t.Helper()
	for _, p := range index.Parameters {
		if p.Base == base && p.Code == code {
			return p
		}
	}
	t.Fatalf("%s has no parameter %s", base, code)
	return fhir.Parameter{}
}

// has reports whether one of the parameter's keys has the value.
func has(x *fhir.Index, p fhir.Parameter, v fhir.Value) bool {
	for _, k := range p.Keys {
		if _, ok := slices.BinarySearch(x.Terms, k.Term(v)); ok {
			return true
		}
	}
	return false
}

const patient = `{"resourceType":"Patient","id":"p1","meta":{"tag":[{"system":"http://t","code":"x"}]},"active":true,
"identifier":[{"type":{"coding":[{"system":"http://v2","code":"MR"}]},"system":"urn:mrn","value":"12345"}],
"name":[{"family":"Chalmers","given":["Peter","James"]}],"gender":"male","birthDate":"1974-12-25","deceasedBoolean":false,
"telecom":[{"system":"phone","value":"555","use":"work"},{"system":"email","value":"p@e.org"}],
"managingOrganization":{"reference":"Organization/o1"},"generalPractitioner":[{"reference":"Practitioner/dr1"}]}`

const bloodPressure = `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"85354-9"}]},
"subject":{"reference":"Patient/p1"},"effectiveDateTime":"2012-09-17",
"component":[{"code":{"coding":[{"system":"http://loinc.org","code":"8480-6"}]},"valueQuantity":{"value":107,"unit":"mmHg","system":"http://unitsofmeasure.org","code":"mm[Hg]"}},
{"code":{"coding":[{"system":"http://loinc.org","code":"8462-4"}]},"valueQuantity":{"value":60,"unit":"mmHg","system":"http://unitsofmeasure.org","code":"mm[Hg]"}}]}`

func TestExtractEquality(t *testing.T) {
	for _, c := range []struct {
		name, body, base, code string
		value                  fhir.Value
		want                   bool
	}{
		{"an identifier has system and value", patient, "Patient", "identifier", fhir.ValueCoding("urn:mrn", "12345"), true},
		{"an identifier is found by its type", patient, "Patient", "identifier", fhir.ValueOfType("http://v2", "MR", "12345"), true},
		{"a code is indexed", patient, "Patient", "gender", fhir.ValueCode("male"), true},
		{"and not once more with the system of its binding", patient, "Patient", "gender", fhir.ValueCoding("http://hl7.org/fhir/administrative-gender", "male"), false},
		{"a boolean is a code", patient, "Patient", "active", fhir.ValueCode("true"), true},
		{"deceased is false where it says so", patient, "Patient", "deceased", fhir.ValueCode("false"), true},
		{"deceased is not true where it is false", patient, "Patient", "deceased", fhir.ValueCode("true"), false},
		{"deceased is false where it is absent", `{"resourceType":"Patient"}`, "Patient", "deceased", fhir.ValueCode("false"), true},
		{"deceased is true with a time of death", `{"resourceType":"Patient","deceasedDateTime":"2020"}`, "Patient", "deceased", fhir.ValueCode("true"), true},
		{"email is the telecom of that system", patient, "Patient", "email", fhir.ValueCode("p@e.org"), true},
		{"a phone is no email", patient, "Patient", "email", fhir.ValueCode("555"), false},
		{"telecom is every contact point", patient, "Patient", "telecom", fhir.ValueCode("555"), true},
		{"a tag is indexed for the type", patient, "Patient", "_tag", fhir.ValueCoding("http://t", "x"), true},
		{"a reference is local", patient, "Patient", "organization", fhir.ValueReference("Organization", "o1"), true},
		{"an absent code leaves nothing", `{"resourceType":"Patient"}`, "Patient", "gender", fhir.ValuePresent(), false},
		{"patient shares the entries of subject", bloodPressure, "Observation", "patient", fhir.ValueReference("Patient", "p1"), true},
		{"combo-code reads the code", bloodPressure, "Observation", "combo-code", fhir.ValueCoding("http://loinc.org", "85354-9"), true},
		{"combo-code reads the components", bloodPressure, "Observation", "combo-code", fhir.ValueCoding("http://loinc.org", "8480-6"), true},
		{"code does not read the components", bloodPressure, "Observation", "code", fhir.ValueCoding("http://loinc.org", "8480-6"), false},
		{"a canonical matches without its version", `{"resourceType":"QuestionnaireResponse","status":"completed","questionnaire":"http://q|1"}`,
			"QuestionnaireResponse", "questionnaire", fhir.ValueURI("http://q"), true},
		{"a profile matches without its version", `{"resourceType":"Patient","meta":{"profile":["http://p|1"]}}`, "Patient", "_profile", fhir.ValueURI("http://p"), true},
		{"a profile matches with its version", `{"resourceType":"Patient","meta":{"profile":["http://p|1"]}}`, "Patient", "_profile", fhir.ValueURI("http://p|1"), true},
		{"a uri keeps what looks like a version", `{"resourceType":"Patient","meta":{"source":"http://p|1"}}`, "Patient", "_source", fhir.ValueURI("http://p"), false},
		{"an extension is indexed by its value", `{"resourceType":"DiagnosticReport","status":"final","code":{"text":"x"},"extension":[
			{"url":"http://hl7.org/fhir/StructureDefinition/DiagnosticReport-geneticsAssessedCondition","valueReference":{"reference":"Condition/c"}},
			{"url":"http://other","valueReference":{"reference":"Condition/d"}}]}`,
			"DiagnosticReport", "assessed-condition", fhir.ValueReference("Condition", "c"), true},
		{"another extension is not", `{"resourceType":"DiagnosticReport","status":"final","code":{"text":"x"},"extension":[
			{"url":"http://other","valueReference":{"reference":"Condition/d"}}]}`,
			"DiagnosticReport", "assessed-condition", fhir.ValueReference("Condition", "d"), false},
		{"a document is found by its composition", `{"resourceType":"Bundle","type":"document","entry":[{"resource":{"resourceType":"Composition","id":"c9","status":"final","type":{"text":"x"},"date":"2020","author":[{"display":"x"}],"title":"x"}}]}`,
			"Bundle", "composition", fhir.ValueReference("Composition", "c9"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := extract(decode(t, c.body))
			if got := has(x, parameter(t, c.base, c.code), c.value); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestExtractOrdered(t *testing.T) {
	x := extract(decode(t, patient))
	// A name is read from its parts, and nothing of it is there twice.
	texts := func(code string) (out []string) {
		for _, s := range x.Strings {
			if slices.Contains(parameter(t, "Patient", code).Keys, s.Key) {
				out = append(out, s.Text)
			}
		}
		return out
	}
	for _, c := range []struct {
		code string
		want []string
	}{
		{"name", []string{"chalmers", "peter", "james"}},
		{"phonetic", []string{"chalmers", "peter", "james"}},
		{"family", []string{"chalmers"}},
		{"given", []string{"peter", "james"}},
	} {
		if got := texts(c.code); !slices.Equal(got, c.want) {
			t.Errorf("%s is %q, want %q", c.code, got, c.want)
		}
	}
	low, high, _ := fhir.ParseDate("1974-12-25")
	if want := (fhir.DateEntry{Key: parameter(t, "Patient", "birthdate").Keys[0], Low: low, High: high}); !slices.Contains(x.Dates, want) {
		t.Errorf("dates are %v, want %v among them", x.Dates, want)
	}

	x = extract(decode(t, bloodPressure))
	var values []string
	for _, q := range x.Quantities {
		if q.Key == parameter(t, "Observation", "component-value-quantity").Keys[0] {
			values = append(values, q.Low+" "+q.Code)
		}
	}
	if want := []string{"107 mm[Hg]", "60 mm[Hg]"}; !slices.Equal(values, want) {
		t.Errorf("component-value-quantity is %q, want %q", values, want)
	}
	x = extract(decode(t, `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueSampledData":{
		"origin":{"value":10,"system":"http://u","code":"mV"},"period":1,"factor":0.5,"dimensions":1,"data":"4 E -2"}}`))
	sampled := fhir.QuantityEntry{Key: parameter(t, "Observation", "value-quantity").Keys[1], Low: "9.0", High: "12.0", System: "http://u", Code: "mV"}
	if !slices.Contains(x.Quantities, sampled) {
		t.Errorf("value-quantity of samples is %v, want %v", x.Quantities, sampled)
	}

	x = extract(decode(t, bloodPressure))
	// Systolic 107 and diastolic 60, not the other way round.
	composite := parameter(t, "Observation", "component-code-value-quantity").Composites[0].Key
	for _, c := range []struct {
		code, value string
		want        bool
	}{{"8480-6", "107", true}, {"8462-4", "60", true}, {"8480-6", "60", false}, {"8462-4", "107", false}} {
		k := fhir.CompositeKey(composite, fhir.ValueCoding("http://loinc.org", c.code))
		got := slices.ContainsFunc(x.Quantities, func(q fhir.QuantityEntry) bool { return q.Key == k && q.Low == c.value })
		if got != c.want {
			t.Errorf("component-code-value-quantity %s with %s: %v, want %v", c.code, c.value, got, c.want)
		}
	}
}

// TestExtractCompartments looks for a resource in each compartment by the parameters that define it.
func TestExtractCompartments(t *testing.T) {
	for _, c := range []struct {
		name, body, compartment, id string
		want                        bool
	}{
		{"a patient is in its practitioner's", patient, "Practitioner", "dr1", true},
		{"an observation is in its subject's", bloodPressure, "Patient", "p1", true},
		{"a subject of another type gives none", strings.Replace(bloodPressure, "Patient/p1", "Device/p1", 1), "Patient", "p1", false},
		{"a device that is the subject gives one", strings.Replace(bloodPressure, "Patient/p1", "Device/p1", 1), "Device", "p1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := decode(t, c.body)
			terms, got := extract(r).Terms, false
			for _, def := range index.Compartments {
				for _, p := range index.Parameters {
					if def.Code != c.compartment || p.Base != r.Type().Name || !slices.Contains(def.By[p.Base], p.Code) {
						continue
					}
					for _, k := range p.Keys {
						_, found := slices.BinarySearch(terms, k.Term(fhir.ValueReference(c.compartment, c.id)))
						got = got || found
					}
				}
			}
			if got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestExtractExamples runs the extractors over every example, which must leave
// entries: each resource type has a parameter that its examples answer.
func TestExtractExamples(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	known := map[fhir.Key]string{}
	for _, p := range index.Parameters {
		for _, k := range p.Keys {
			known[k] = p.Base + "?" + p.Code
		}
		for _, c := range p.Composites {
			known[c.Key] = p.Base + "?" + p.Code
			for _, part := range c.Parts {
				for _, k := range part.Keys {
					known[k] = p.Base + "?" + p.Code
				}
			}
		}
	}
	if len(all) < 700 {
		t.Fatalf("there are only %d examples", len(all))
	}
	seen := map[fhir.Key]bool{}
	empty := map[string]int{}
	for _, b := range all {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			continue // the codec's tests list the faulty ones
		}
		x := extract(r)
		if len(x.Terms) == 0 {
			empty[r.Type().Name]++
		}
		for k := range known {
			if _, ok := slices.BinarySearch(x.Terms, k.Term(fhir.ValuePresent())); ok {
				seen[k] = true
			}
		}
	}
	// These have no parameters of their own except for values that the examples lack.
	want := map[string]int{
		"Binary": 1, "BiologicallyDerivedProduct": 1, "CatalogEntry": 1, "DetectedIssue": 2, "MedicinalProductContraindication": 1,
		"MedicinalProductIndication": 1, "MedicinalProductIngredient": 1, "MedicinalProductInteraction": 1,
		"MedicinalProductManufactured": 1, "MedicinalProductUndesirableEffect": 1, "ObservationDefinition": 1,
		"OperationOutcome": 6, "SubstanceSpecification": 1, "VerificationResult": 1,
	}
	if diff := cmp.Diff(want, empty); diff != "" {
		t.Errorf("examples without any term, by type (-want +got):\n%s", diff)
	}
	if len(seen) < 900 {
		t.Errorf("the examples answer %d of %d keys; want 900 or more", len(seen), len(known))
	}
	t.Logf("the examples answer %d of %d keys", len(seen), len(known))
}

func BenchmarkExtract(b *testing.B) {
	r := decode(b, bloodPressure)
	x := new(fhir.Index)
	b.ReportAllocs()
	for b.Loop() {
		x.Reset()
		index.Extract(x, r)
		x.Finish()
	}
}
