package fhir

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestCollect(t *testing.T) {
	const k = Key(0x1234)
	names := func(name string) Value { return Value(k^NamingKey(k)) ^ ValueName(name) }
	tests := []struct {
		name    string
		collect func(x *Index)
		want    []Value // under k, beside ValuePresent
		rest    Index
	}{
		{"a code", func(x *Index) { x.Code(k, "Final") }, []Value{ValueCode("final")}, Index{}},
		{"a coding", func(x *Index) { x.Coding(k, "http://loinc.org", "8302-2", "Body Height") },
			[]Value{ValueCode("8302-2"), ValueCoding("http://loinc.org", "8302-2"), ValueSystem("http://loinc.org"), ValueText("bodyheight")},
			Index{Texts: []TextEntry{{k, "bodyheight"}}}},
		{"a coding without system", func(x *Index) { x.Coding(k, "", "x", "") }, []Value{ValueCode("x"), ValueCoding("", "x")}, Index{}},
		{"an identifier by its type", func(x *Index) { x.OfType(k, "http://v2", "MR", "12") },
			[]Value{ValueOfType("http://v2", "MR", "12"), ValueOfType("http://v2", "MR", "")}, Index{}},
		{"a contact point", func(x *Index) { x.ContactPoint(k, "phone", "home", "555") },
			[]Value{ValueCode("555"), ValueCoding("phone", "555"), ValueCoding("home", "555")}, Index{}},
		{"a literal reference", func(x *Index) { x.Reference(k, "Patient/1/_history/3", "") },
			[]Value{ValueReference("Patient", "1"), ValueTarget("Patient")}, Index{Targets: []int64{int64(ValueReference("Patient", "1"))}}},
		{"an absolute reference to this server", func(x *Index) {
			x.BaseURLs = []string{"http://here/fhir"}
			x.Reference(k, "http://here/fhir/Patient/1", "")
		}, []Value{ValueReference("Patient", "1"), ValueTarget("Patient")}, Index{Targets: []int64{int64(ValueReference("Patient", "1"))}}},
		{"a reference elsewhere", func(x *Index) { x.Reference(k, "http://there/Patient/1/_history/2", "") },
			[]Value{ValueURI("http://there/Patient/1/_history/2"), ValueURI("http://there/Patient/1"), ValueTarget("Patient"),
				ValueOfTarget("Patient", ValueURI("http://there/Patient/1/_history/2")), ValueOfTarget("Patient", ValueURI("http://there/Patient/1"))}, Index{}},
		{"a contained reference is only present", func(x *Index) { x.Reference(k, "#p", "") }, nil, Index{}},
		{"a logical reference", func(x *Index) { x.LogicalReference(k, "Group", "http://mrn", "12") },
			[]Value{ValueIdentifier("http://mrn", "12"), ValueIdentifier(AnySystem, "12"), ValueIdentifier("http://mrn", ""), ValueTarget("Group"),
				ValueOfTarget("Group", ValueIdentifier("http://mrn", "12")), ValueOfTarget("Group", ValueIdentifier(AnySystem, "12")),
				ValueOfTarget("Group", ValueIdentifier("http://mrn", ""))}, Index{}},
		{"a canonical with version", func(x *Index) { x.Canonical(k, "http://q/1|2.0") },
			[]Value{ValueURI("http://q/1|2.0"), ValueURI("http://q/1"), names("http://q/1|2.0")}, Index{Texts: []TextEntry{{k, "http://q/1"}, {k, "http://q/1|2.0"}}}},
		{"what a canonical names", func(x *Index) { x.Canonical(k, "http://q/1#part") },
			[]Value{ValueURI("http://q/1#part"), ValueURI("http://q/1"), names("http://q/1")}, Index{Texts: []TextEntry{{k, "http://q/1"}}}},
		{"a string", func(x *Index) { x.String(k, "Müller") }, []Value{ValueExact("Müller")}, Index{Strings: []StringEntry{{k, "muller", false, false}}}},
		{"a string of several words", func(x *Index) { x.String(k, "Carreño Quinones, Mary-Ann 5.5") }, []Value{ValueExact("Carreño Quinones, Mary-Ann 5.5")},
			Index{Strings: []StringEntry{{k, "carrenoquinonesmaryann5.5", false, false}}}},
		{"the words of a name", func(x *Index) { x.Name(k, "Carreño Quinones, Mary-Ann 5.5") }, []Value{ValueExact("Carreño Quinones, Mary-Ann 5.5")},
			Index{Strings: []StringEntry{{k, "carrenoquinonesmaryann5.5", false, false}, {WordKey(k), "quinonesmaryann5.5", true, false},
				{WordKey(k), "maryann5.5", true, false}, {WordKey(k), "ann5.5", true, false}, {WordKey(k), "5.5", true, false}}}},
		{"a name that is one word", func(x *Index) { x.Name(k, "'Eve'") }, []Value{ValueExact("'Eve'")}, Index{Strings: []StringEntry{{k, "eve", false, false}}}},
		{"a string with signs", func(x *Index) { x.String(k, "+++ -") }, []Value{ValueExact("+++ -")}, Index{Strings: []StringEntry{{k, "+++", false, false}}}},
		{"a string of punctuation", func(x *Index) { x.String(k, "-- -") }, []Value{ValueExact("-- -")}, Index{Strings: []StringEntry{{k, "-- -", false, false}}}},
		{"a name of punctuation", func(x *Index) { x.Name(k, "-") }, []Value{ValueExact("-")}, Index{Strings: []StringEntry{{k, "-", false, false}}}},
		{"a date", func(x *Index) { x.Date(k, "1970") }, nil, Index{Dates: []DateEntry{{k, 0, 365 * 86400e6}}}},
		{"a period without end", func(x *Index) { x.Period(k, "1970-01-02", "") }, nil, Index{Dates: []DateEntry{{k, 86400e6, OpenHigh}}}},
		{"a quantity", func(x *Index) { x.Quantity(k, "5.40", "", "http://unitsofmeasure.org", "g", "gram") }, nil,
			Index{Quantities: []QuantityEntry{{k, "5.40", "5.40", "http://unitsofmeasure.org", "g", "gram"}}}},
		{"a quantity below a value", func(x *Index) { x.Quantity(k, "5", "<", "", "", "") }, nil,
			Index{Quantities: []QuantityEntry{{k, "", "4.999999999999", "", "", ""}}}},
		{"a quantity of at least a value", func(x *Index) { x.Quantity(k, "5", ">=", "", "", "") }, nil, Index{Quantities: []QuantityEntry{{Key: k, Low: "5"}}}},
		{"the same twice", func(x *Index) { x.Number(k, "1"); x.Number(k, "1") }, nil, Index{Numbers: []NumberEntry{{k, "1", "1"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var x Index
			tt.collect(&x)
			x.Finish()
			want := []int64{k.Term(ValuePresent())}
			for _, v := range tt.want {
				want = append(want, k.Term(v))
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, x.Terms); diff != "" {
				t.Errorf("terms:\n%s", diff)
			}
			if diff := cmp.Diff(tt.rest, x, cmpopts.IgnoreFields(Index{}, "Terms", "BaseURLs"), cmpopts.IgnoreUnexported(Index{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("other entries:\n%s", diff)
			}
		})
	}
}

func TestCollectNothing(t *testing.T) {
	var x Index
	x.Code(1, "")
	x.Coding(1, "", "", "")
	x.Identifier(1, "", "")
	x.OfType(1, "s", "c", "")
	x.ContactPoint(1, "phone", "", "")
	x.Reference(1, "", "")
	x.LogicalReference(1, "", "", "")
	x.Canonical(1, "")
	x.URI(1, "")
	x.String(1, "")
	x.Date(1, "")
	x.Date(1, "yesterday")
	x.Period(1, "", "")
	x.Number(1, "")
	x.Number(1, "1e9999")
	x.Quantity(1, "", "", "s", "c", "u")
	x.CodeOf(1, "http://s", "")
	x.Open(1, 2)
	x.Code(0, "only one part")
	x.Close()
	x.Finish()
	if n := len(x.Terms) + len(x.Targets) + len(x.Dates) + len(x.Numbers) + len(x.Quantities) + len(x.Strings) + len(x.Texts); n != 0 {
		t.Errorf("%d entries, want none: %+v", n, x)
	}
}

func TestCollectComposites(t *testing.T) {
	const k = Key(7)
	var x Index
	for _, c := range []struct{ code, value string }{{"a", "1"}, {"b", "2"}} {
		x.Open(k, 2)
		x.Coding(0, "s", c.code, "A display that is no part of a composite")
		x.Next()
		x.Quantity(0, c.value, "", "u", "g", "gram")
		x.Close()
	}
	x.Open(k, 2)
	x.Code(0, "c")
	x.Next()
	x.Code(0, "d")
	x.Close()
	x.Finish()
	wantTerms := []int64{k.Term(ValuePresent()), k.Term(ValuePair(ValueCode("c"), ValueCode("d")))}
	slices.Sort(wantTerms)
	if diff := cmp.Diff(wantTerms, x.Terms); diff != "" {
		t.Errorf("terms:\n%s", diff)
	}
	var want []QuantityEntry
	for _, c := range []struct{ code, value string }{{"a", "1"}, {"b", "2"}} {
		for _, v := range []Value{ValueCode(c.code), ValueCoding("s", c.code)} {
			want = append(want, QuantityEntry{CompositeKey(k, v), c.value, c.value, "u", "g", "gram"})
		}
	}
	if diff := cmp.Diff(want, x.Quantities); diff != "" {
		t.Errorf("quantities:\n%s", diff)
	}
}

func TestLocalReference(t *testing.T) {
	bases := []string{"http://here/fhir", "https://here"}
	tests := []struct {
		reference, wantType, wantID string
	}{
		{"Patient/1", "Patient", "1"},
		{"Patient/1/_history/2", "Patient", "1"},
		{"http://here/fhir/Patient/a.b-C", "Patient", "a.b-C"},
		{"https://here/Patient/1/_history/2", "Patient", "1"},
		{"http://there/fhir/Patient/1", "", ""},
		{"http://here/fhirPatient/1", "", ""},
		{"Patient", "", ""},
		{"Patient/", "", ""},
		{"patient/1", "", ""},
		{"Patient/a b", "", ""},
		{"Patient/1/extra", "", ""},
		{"urn:uuid:1", "", ""},
		{"#p", "", ""},
	}
	for _, tt := range tests {
		typ, id, ok := LocalReference(tt.reference, bases)
		if ok != (tt.wantType != "") || ok && (typ != tt.wantType || id != tt.wantID) {
			t.Errorf("%s is %q %q %v, want %q %q", tt.reference, typ, id, ok, tt.wantType, tt.wantID)
		}
	}
}
