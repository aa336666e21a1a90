package view_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/view"
)

// compile compiles the view whose elements behind resourceType are text.
func compile(t *testing.T, text string) (*view.View, error) {
	t.Helper()
	r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"ViewDefinition",`+text+`}`))
	if err != nil {
		t.Fatal(err)
	}
	return view.Compile(r4.Model, r.(*r4.ViewDefinition))
}

// column is a view of Observation with one column.
func column(text string) string {
	return `"resource":"Observation","select":[{"column":[{"name":"a",` + text + `}]}]`
}

func TestFaultsNameTheElement(t *testing.T) {
	t.Parallel()
	id := `{"name":"id","path":"id"}`
	for _, tt := range []struct{ name, view, at, says string }{
		{"no resource", `"select":[{"column":[` + id + `]}]`, "ViewDefinition.resource", "missing"},
		{"an unknown resource type", `"resource":"Patiant","select":[{"column":[` + id + `]}]`, "ViewDefinition.resource", "Patient"},
		{"a syntax error", column(`"path":"@@"`), "select[0].column[0].path", "syntax"},
		{"an unknown function", column(`"path":"frist()"`), "select[0].column[0].path", "no function"},
		{"an unknown element", column(`"path":"satus"`), "select[0].column[0].path", "status"},
		{"an unknown type", column(`"path":"value.ofType(Quantitty)"`), "select[0].column[0].path", "no type"},
		{"an unknown variable", column(`"path":"%limit"`), "select[0].column[0].path", "%limit"},
		{"resolve()", column(`"path":"subject.resolve().id"`), "select[0].column[0].path", "resolve()"},
		{"memberOf() in a where", `"resource":"Observation","select":[{"column":[` + id + `]}],"where":[{"path":"code.memberOf('x')"}]`, "where[0].path", "memberOf()"},
		{"a where that is no Boolean", `"resource":"Observation","select":[{"column":[` + id + `]}],"where":[{"path":"true"},{"path":"code.text"}]`, "where[1].path", "Boolean"},
		{"forEach and repeat", `"resource":"Observation","select":[{"forEach":"category","repeat":["component"],"column":[` + id + `]}]`, "select[0]", "one of"},
		{"a column's name", `"resource":"Observation","select":[{"column":[{"name":"1a","path":"id"}]}]`, "select[0].column[0].name", "letter"},
		{"a name twice", `"resource":"Observation","select":[{"column":[` + id + `]},{"select":[{"column":[` + id + `]}]}]`, "select[1].select[0].column[0].name", "two columns"},
		{"an unknown column type", column(`"path":"id","type":"text"`), "select[0].column[0].type", "no type"},
		{"another type than the path's", column(`"path":"status","type":"integer"`), "select[0].column[0].type", "integer"},
		{"no type of a complex path", column(`"path":"code"`), "select[0].column[0].type", "declares"},
		{"branches with other names", `"resource":"Patient","select":[{"unionAll":[{"column":[` + id + `]},{"column":[{"name":"b","path":"id"}]}]}]`, "unionAll[1]", "same columns"},
		{"branches with other types", `"resource":"Patient","select":[{"unionAll":[{"column":[{"name":"b","path":"active"}]},{"column":[{"name":"b","path":"id"}]}]}]`, "unionAll[1]", "boolean"},
		{"branches of which one is a collection", `"resource":"Patient","select":[{"unionAll":[{"column":[{"name":"b","path":"id","collection":true}]},{"column":[{"name":"b","path":"id"}]}]}]`, "unionAll[1]", "collection"},
		{"a constant without value", `"resource":"Patient","constant":[{"name":"c"}],"select":[{"column":[` + id + `]}]`, "constant[0].value", "exactly one"},
		{"a constant twice", `"resource":"Patient","constant":[{"name":"c","valueCode":"a"},{"name":"c","valueCode":"b"}],"select":[{"column":[` + id + `]}]`, "constant[1].name", "two constants"},
		{"a reserved constant", `"resource":"Patient","constant":[{"name":"rowIndex","valueCode":"a"}],"select":[{"column":[` + id + `]}]`, "constant[0].name", "another name"},
		{"another version of FHIR", `"resource":"Patient","fhirVersion":["5.0.0"],"select":[{"column":[` + id + `]}]`, "fhirVersion", "4.0"},
		{"an unknown ansi/type", column(`"path":"id","tag":[{"name":"ansi/type","value":"TEXT"}]`), "select[0].column[0].tag[0]", "ansi/type"},
		{"a DECIMAL that is too long", column(`"path":"value.ofType(Quantity).value","tag":[{"name":"ansi/type","value":"DECIMAL(39,2)"}]`), "tag[0]", "38"},
		{"a shareable view without types", `"meta":{"profile":["http://hl7.org/fhir/uv/sql-on-fhir/StructureDefinition/ShareableViewDefinition"]},"url":"http://x/v","name":"v","fhirVersion":["4.0.1"],` + column(`"path":"id"`), "column[0].type", "Shareable"},
		{"a shareable view with another function", `"meta":{"profile":["https://sql-on-fhir.org/ig/StructureDefinition/ShareableViewDefinition"]},"url":"http://x/v","name":"v","fhirVersion":["4.0.1"],` + column(`"path":"code.text.upper()","type":"string"`), "column[0].path", "upper()"},
		{"a tabular view with a collection", `"meta":{"profile":["https://sql-on-fhir.org/ig/StructureDefinition/TabularViewDefinition"]},` + column(`"path":"code.coding.code","type":"code","collection":true`), "column[0].collection", "Tabular"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := compile(t, tt.view)
			e, ok := outcome.From(err)
			if !ok || !outcome.IsUnprocessable(err) {
				t.Fatalf("got %v, want 422", err)
			}
			for _, i := range e.Issues {
				if i.Code != outcome.CodeInvalid {
					t.Errorf("the code is %s, want invalid", i.Code)
				}
				if strings.HasSuffix(i.Expression, tt.at) && strings.Contains(i.Diagnostics, tt.says) {
					return
				}
			}
			t.Errorf("no issue at %s that says %q: %v", tt.at, tt.says, e.Issues)
		})
	}
}

func TestColumnTypes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, column, typ string }{
		{"of the path", `"path":"effective.ofType(dateTime)"`, "dateTime"},
		{"a decimal takes whole numbers", `"path":"referenceRange.count()","type":"decimal"`, "decimal"},
		{"a dateTime takes instants", `"path":"issued","type":"dateTime"`, "dateTime"},
		{"text is text", `"path":"status","type":"string"`, "string"},
		{"a string takes every primitive", `"path":"value.ofType(Quantity).value","type":"string"`, "string"},
		{"a choice is known at run time", `"path":"value","type":"Quantity"`, "Quantity"},
		{"with the URL of the type", `"path":"status","type":"http://hl7.org/fhir/StructureDefinition/code"`, "code"},
		{"text where inference fails", `"path":"extension.value"`, "string"},
		{"an element of a resource", `"path":"component.first()","type":"BackboneElement"`, "BackboneElement"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v, err := compile(t, column(tt.column))
			if err != nil {
				t.Fatal(err)
			}
			if v.Columns[0].Type != tt.typ {
				t.Errorf("the type is %s, want %s", v.Columns[0].Type, tt.typ)
			}
		})
	}
}

// Rows of crossed lists are made one by one: emit ends 10^9 of them.
func TestEmitEndsCrossedLists(t *testing.T) {
	t.Parallel()
	part := func(name string) string {
		return `{"forEach":"identifier","column":[{"name":"` + name + `","path":"value"}]}`
	}
	v, err := compile(t, `"resource":"Patient","select":[`+part("a")+`,`+part("b")+`,`+part("c")+`]`)
	if err != nil {
		t.Fatal(err)
	}
	many := strings.Repeat(`{"value":"x"},`, 1000)
	r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Patient","id":"p","identifier":[`+many[:len(many)-1]+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	err = v.NewEvaluator(context.Background(), nil, time.Now()).Eval(r, func(view.Row) error {
		if rows++; rows == 2500 {
			return view.ErrStop
		}
		return nil
	})
	if err != view.ErrStop || rows != 2500 {
		t.Errorf("got %v after %d rows, want ErrStop after 2500", err, rows)
	}
}

func TestFaultsOfValues(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, column, resource, says string }{
		{"several values", `"path":"code.coding.code"`, `"code":{"coding":[{"code":"a"},{"code":"b"}]}`, "2 values"},
		{"another type", `"path":"value","type":"Quantity"`, `"valueString":"x"`, "Quantity"},
		{"a failing path", `"path":"code.coding.code.single()"`, `"code":{"coding":[{"code":"a"},{"code":"b"}]}`, "single"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v, err := compile(t, column(tt.column))
			if err != nil {
				t.Fatal(err)
			}
			r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Observation","id":"o",`+tt.resource+`}`))
			if err != nil {
				t.Fatal(err)
			}
			err = v.NewEvaluator(context.Background(), nil, time.Now()).Eval(r, func(view.Row) error { return nil })
			e, ok := err.(*view.Error)
			if !ok || e.Resource != "Observation/o" || e.Column != "a" || !strings.Contains(e.Reason, tt.says) {
				t.Errorf("got %v, want the resource, the column and %q", err, tt.says)
			}
		})
	}
}

func TestReferenceKeys(t *testing.T) {
	t.Parallel()
	v, err := compile(t, column(`"path":"subject.getReferenceKey(Patient)"`))
	if err != nil {
		t.Fatal(err)
	}
	for reference, want := range map[string]string{
		"Patient/1": "1", "Patient/1/_history/2": "1", "http://here/fhir/Patient/1": "1", "http://there/fhir/Patient/1": "", "Group/1": "", "#p": "", "urn:uuid:1": "", "Patient?x=1": "",
	} {
		r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Observation","id":"o","subject":{"reference":"`+reference+`"}}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		err = v.NewEvaluator(context.Background(), []string{"http://here/fhir"}, time.Now()).Eval(r, func(row view.Row) error {
			if row[0].Set {
				got = row[0].Value.String()
			}
			return nil
		})
		if err != nil || got != want {
			t.Errorf("%s has the key %q (%v), want %q", reference, got, err, want)
		}
	}
}

// A where is asked of the index where it fixes an indexed element to a value.
func TestCandidates(t *testing.T) {
	t.Parallel()
	var own []*fhir.Parameter
	for i := range index.Parameters {
		if p := &index.Parameters[i]; p.Base == "Observation" {
			own = append(own, p)
		}
	}
	table := view.NewIndexTable(r4.Model, "Observation", own)
	code := fhir.KeyOf(fhir.SearchToken, "Observation.code")
	for where, want := range map[string]int64{
		"code.coding.exists(system = %s and code = %c)":                                   code.Term(fhir.ValueCoding("http://loinc.org", "8302-2")),
		"code.coding.where(code = '8302-2' and system = %loinc).exists()":                 code.Term(fhir.ValueCoding("http://loinc.org", "8302-2")),
		"status = 'final' and code.coding.exists(system = %s and code = %c)":              code.Term(fhir.ValueCoding("http://loinc.org", "8302-2")),
		"code.exists(coding.exists(system = %s and code = %c))":                           code.Term(fhir.ValueCoding("http://loinc.org", "8302-2")),
		"code.coding.exists(code = 'a') and code.coding.exists(system = 'b')":             code.Term(fhir.ValueCode("a")),
		"code.coding.code = 'a' and code.coding.system = 'b'":                             code.Term(fhir.ValueCode("a")),
		"Observation.status = 'final'":                                                    fhir.KeyOf(fhir.SearchToken, "Observation.status").Term(fhir.ValueCode("final")),
		"subject.reference = 'Patient/1'":                                                 fhir.KeyOf(fhir.SearchReference, "Observation.subject").Term(fhir.ValueReference("Patient", "1")),
		"'Patient/1' = $this.subject.reference":                                           fhir.KeyOf(fhir.SearchReference, "Observation.subject").Term(fhir.ValueReference("Patient", "1")),
		"value.ofType(CodeableConcept).coding.exists(code = 'x')":                         fhir.KeyOf(fhir.SearchToken, "Observation.value.ofType(CodeableConcept)").Term(fhir.ValueCode("x")),
		"code.exists(coding.exists(code = 'a') and coding.exists(system = 'b'))":          code.Term(fhir.ValueCode("a")),
		"code.exists(coding.code = 'a' and coding.system = 'b')":                          code.Term(fhir.ValueCode("a")),
		"status = 'final' or status = 'amended'":                                          0,
		"(status = 'final').not()":                                                        0,
		"subject.reference = 'http://there/Patient/1'":                                    0,
		"subject.reference = 'Patient/1/_history/1'":                                      0,
		"code.coding.exists(display = 'x')":                                               0,
		"code.coding.code.first() = 'x'":                                                  0,
		"code.coding.all(code = 'x')":                                                     0,
		"effective.ofType(dateTime) = @2020-01-01":                                        0,
		"status != 'final'":                                                               0,
		"code.coding.exists(code = 'x' or system = 'y')":                                  0,
		"component.where(code.coding.exists(code = 'x')).value.ofType(Quantity).exists()": 0,
	} {
		v, err := compile(t, `"resource":"Observation","constant":[{"name":"s","valueUri":"http://loinc.org"},{"name":"c","valueCode":"8302-2"}],"select":[{"column":[{"name":"id","path":"id"}]}],"where":[{"path":"`+where+`"}]`)
		if err != nil {
			t.Error(err)
			continue
		}
		got, ok := table.Candidates(v, &v.Wheres[0])
		if ok != (want != 0) || ok && got.Term != want {
			t.Errorf("%s: got %d, %t, want %d", where, got.Term, ok, want)
		}
	}
}
