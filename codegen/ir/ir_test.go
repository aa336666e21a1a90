package ir

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"kiln/codegen/definition"
	"kiln/server/fhirpath"
)

// model is the model of definitions/, read once.
var model = sync.OnceValues(func() (*Model, error) {
	set, err := definition.Load(os.DirFS("../../definitions"))
	if err != nil {
		return nil, err
	}
	return Build(set)
})

func TestGoName(t *testing.T) {
	for in, want := range map[string]string{
		"birthDate": "BirthDate", "fullUrl": "FullURL", "id": "ID", "linkId": "LinkID", "valueUri": "ValueURI", "referenceSeqId": "ReferenceSeqID",
		"udiCarrier": "UDICarrier", "sha1": "SHA1", "http-get": "HTTPGet",
	} {
		if got := GoName(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
	if got := GoName("Patient", "contact"); got != "PatientContact" {
		t.Errorf("several names are joined to %s", got)
	}
}

func TestFields(t *testing.T) {
	m, err := model()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		typ, field string
		holds      func(f *Field) bool
		want       string
	}{
		{"Patient", "birthDate", func(f *Field) bool { return f.Type.Name == "date" && f.Type.Primitive && !f.Repeats() }, "one date"},
		{"Patient", "name", func(f *Field) bool { return f.Type.Name == "HumanName" && f.Repeats() }, "several HumanNames"},
		{"Patient", "deceased", func(f *Field) bool { return f.Choice() && !f.Open && len(f.Choices) == 2 }, "a choice of two types"},
		{"Patient", "contact", func(f *Field) bool { return f.Type.Name == "Patient.contact" }, "a backbone element"},
		{"Patient", "gender", func(f *Field) bool {
			return f.Binding.Strength == "required" && f.Binding.System == "http://hl7.org/fhir/administrative-gender"
		}, "a required binding with its code system"},
		{"Patient", "managingOrganization", func(f *Field) bool { return slices.Equal(f.Targets, []string{"Organization"}) }, "a reference to Organization"},
		{"Patient", "contained", func(f *Field) bool { return f.AnyResource && f.Repeats() }, "resources of any type"},
		{"Observation", "status", func(f *Field) bool { return f.Min == 1 && f.Modifier && f.Summary }, "required, a modifier, in the summary"},
		{"Observation.component", "value", func(f *Field) bool { return f.Choice() }, "a choice"},
		{"Questionnaire.item", "item", func(f *Field) bool { return f.Type.Name == "Questionnaire.item" }, "a backbone element inside of itself"},
		{"Extension", "value", func(f *Field) bool { return f.Open }, "a choice of every datatype"},
	} {
		typ := m.Lookup(c.typ)
		if typ == nil && c.typ == "Extension" {
			continue // server/fhir defines it
		}
		if typ == nil || typ.Field(c.field) == nil || !c.holds(typ.Field(c.field)) {
			t.Errorf("%s.%s is not %s", c.typ, c.field, c.want)
		}
	}
	if m.Lookup("Nothing") != nil || m.Lookup("Patient").Field("nothing") != nil {
		t.Error("what does not exist is found")
	}
}

// The compiled form of a search expression, by its canonical text, or the reason for leaving it to the engine.
func TestPaths(t *testing.T) {
	m, err := model()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		root, expression string
		want             string
		repeats          bool
	}{
		{"Patient", "Patient.name.family", "Patient.name.family", true},
		{"Patient", "Patient.birthDate", "Patient.birthDate", false},
		{"Patient", "Patient.telecom.where(system='email')", "Patient.telecom.where(system='email')", true},
		{"Patient", "Patient.deceased.exists() and Patient.deceased != false", "Patient.deceased.exists() and Patient.deceased != false", false},
		{"Observation", "(Observation.value as CodeableConcept)", "Observation.value.ofType(CodeableConcept)", false},
		{"Observation", "Observation.value as Quantity", "Observation.value.ofType(Quantity)", false},
		{"Bundle", "Bundle.entry[0].resource", "Bundle.entry[0].resource", false},
		{"Patient", "Patient.extension('urn:x').value", "Patient.extension('urn:x').value", true},
		{"Observation", "Observation.subject.where(resolve() is Patient)", "Observation.subject", false},
		{"Patient", "Patient.name.given.first()", "error", false},
		{"Patient", "Patient.nothing", "error", false},
		{"Patient", "Patient.name.family.substring(1)", "error", false},
	} {
		e, err := fhirpath.Parse(c.expression)
		if err != nil {
			t.Fatal(err)
		}
		root := m.Lookup(c.root)
		compiler := &compiler{model: m, root: root}
		paths, err := compiler.compile(e.Root, []Path{{At: Ref{Name: root.Name, Go: root.Go}}})
		if c.want == "error" {
			if err == nil {
				t.Errorf("%s is compiled", c.expression)
			}
			continue
		}
		if err != nil || len(paths) != 1 {
			t.Errorf("%s gives %d paths, %v", c.expression, len(paths), err)
			continue
		}
		if got := paths[0].text(c.root); got != c.want || paths[0].Repeats() != c.repeats {
			t.Errorf("%s is %s, repeats %v", c.expression, got, paths[0].Repeats())
		}
	}
}

// Every branch is compiled, or listed with the reason.
func TestSearches(t *testing.T) {
	m, err := model()
	if err != nil {
		t.Fatal(err)
	}
	compiled := 0
	for _, s := range m.Searches {
		compiled += len(s.Branches)
	}
	if compiled < 1500 || len(m.Interpreted) > compiled/20 {
		t.Errorf("%d branches are compiled, %d interpreted", compiled, len(m.Interpreted))
	}
	for _, r := range slices.Concat(m.Interpreted, m.Omitted) {
		if r.Reason == "" {
			t.Errorf("%s %s of %s has no reason", r.Type, r.Code, r.Base)
		}
	}
}

func TestConditions(t *testing.T) {
	x, y := &HasText{X: TextValue{}}, &TextIs{X: TextValue{}, In: []string{"a"}}
	for _, c := range []struct {
		name      string
		got, want Condition
	}{
		{"a double negation", not(not(x)), x},
		{"a negated constant", not(Constant(true)), Constant(false)},
		{"nothing to hold", all(), Constant(true)},
		{"one condition", all(Constant(true), x), x},
		{"one that never holds", all(x, Constant(false)), Constant(false)},
		{"no alternative", anyOf(), Constant(false)},
		{"one alternative", anyOf(Constant(false), y), y},
		{"one that always holds", anyOf(y, Constant(true)), Constant(true)},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %#v, want %#v", c.name, c.got, c.want)
		}
	}
	if list, ok := all(x, All{y, x}).(All); !ok || len(list) != 3 {
		t.Error("conjunctions inside of conjunctions are not joined")
	}
}

// Build fails on definitions that it cannot represent; the messages are golden (codegen/testdata).
func TestInvariantsCompile(t *testing.T) {
	m, err := model()
	if err != nil {
		t.Fatal(err)
	}
	compiled, interpreted := 0, []string{}
	for _, typ := range m.Invariants {
		for _, i := range typ.Own {
			if i.Condition != nil {
				compiled++
			} else {
				interpreted = append(interpreted, i.Key)
			}
		}
	}
	if compiled < 100 || len(interpreted) > 40 {
		t.Errorf("%d invariants are compiled; interpreted: %s", compiled, strings.Join(interpreted, ", "))
	}
}
