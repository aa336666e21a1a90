package fhirpath

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, expr, want string
	}{
		{"a path", "Patient.name.given", "Patient.name.given"},
		{"multiplication binds before addition", "1+2*3", "1 + 2 * 3"},
		{"parentheses stay where they matter", "(1+2)*3", "(1 + 2) * 3"},
		{"operators of one level go left to right", "1-2-3-(4-5)", "1 - 2 - 3 - (4 - 5)"},
		{"a sign binds looser than a path", "-1.abs()", "-1.abs()"},
		{"a sign before parentheses", "(-1).abs()", "(-1).abs()"},
		{"is binds tighter than comparison", "1 > 2 is Boolean", "1 > 2 is Boolean"},
		{"as in front of a path", "(Observation.value as Quantity).unit", "(Observation.value as Quantity).unit"},
		{"union binds tighter than equality", "a = b | c", "a = b | c"},
		{"and before or before implies", "a or b and c implies d", "a or b and c implies d"},
		{"escaped names", "`Patient`.`a b`.`div`", "Patient.`a b`.`div`"},
		{"a keyword after a point is a name", "ValueSet.expansion.contains.as.is.in", "ValueSet.expansion.contains.as.is.in"},
		{"contains as operator and as name", "contains contains 1", "contains contains 1"},
		{"string escapes", `'\\\/\f\r\n\t\"\` + "`" + `\'\u002a'`, `'\\/\f\r\n\t"` + "`" + `\'*'`},
		{"quantities", "4 days + 10.1 'mg'", "4 days + 10.1 'mg'"},
		{"dates", "@2015 | @2015-02T | @2015-02-04T14:34:28.123+10:00 | @T14:34", "@2015 | @2015-02T | @2015-02-04T14:34:28.123+10:00 | @T14:34"},
		{"a function on a date", "@2015.is(Date)", "@2015.is(Date)"},
		{"variables", "%resource.id & %`vs-x` & %vs-administrative-gender & %\"ext-y\"", "%resource.id & %`vs-x` & %`vs-administrative-gender` & %`ext-y`"},
		{"comments", "1 // one\n + /* two */ 2", "1 + 2"},
		{"nothing", "{ }", "{}"},
		{"indexer", "name[0].given[1+1]", "name[0].given[1 + 1]"},
		{"special names", "$this.x($index, $total)", "$this.x($index, $total)"},
		{"qualified types", "x is System.Boolean and y as FHIR.`Patient`", "x is System.Boolean and y as FHIR.Patient"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Parse(tt.expr)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.String(); got != tt.want {
				t.Errorf("String() = %s, want %s", got, tt.want)
			}
			again, err := Parse(e.String())
			if err != nil || again.String() != e.String() {
				t.Errorf("canonical form does not parse to itself: %v, %v", again, err)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct {
		name, expr string
		wantPos    int
		wantReason string
	}{
		{"nothing at all", "", 0, "expected a value, a name or '(', found end of expression"},
		{"operator without right side", "2 + 2 /", 7, "expected a value, a name or '(', found end of expression"},
		{"comment without end", "2 + 2 /* not", 6, "comment is not closed with */"},
		{"string without end", "a = 'b", 4, "' is not closed"},
		{"unknown escape", `'a\x'`, 2, `\ is not followed by`},
		{"two terms", "a b", 2, "expected an operator or the end, found 'b'"},
		{"missing parenthesis", "(a", 2, "expected ')', found end of expression"},
		{"missing argument", "a(1,)", 4, "expected a value"},
		{"time with zone", "@T14:34:28Z", 10, "a time has no time zone"},
		{"odd date", "@201-1", 0, "a date is written @YYYY-MM-DD"},
		{"strange character", "a ^ b", 2, "unexpected character '^'"},
		{"unknown special name", "$that", 0, "'$that' is not $this, $index or $total"},
		{"special name inside a path", "a.$this", 2, "stands only at the start"},
		{"number and letters", "12ab", 2, "a number is followed by 'a'"},
		{"too deep", strings.Repeat("(", 300), 200, "nested deeper than 200"},
		{"too many signs", strings.Repeat("-", 300) + "1", 199, "nested deeper than 200"},
		{"too many parts", "1" + strings.Repeat("+1", 6000), 5000, "more than 5000 parts"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.expr)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if e.Phase != Syntax || e.Pos != tt.wantPos || !strings.Contains(e.Reason, tt.wantReason) {
				t.Errorf("got %s at %d: %s; want %d: %s", e.Phase, e.Pos, e.Reason, tt.wantPos, tt.wantReason)
			}
		})
	}
}

func TestErrorPosition(t *testing.T) {
	_, err := Parse("a and\n  'é' ^")
	want := "FHIRPath syntax error at line 2 column 7: unexpected character '^'"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A union inside of a path is multiplied out, over steps that look at each item by
// itself.
func TestBranchesInside(t *testing.T) {
	for source, want := range map[string]string{
		"(a | b).c":                          "a.c; b.c",
		"(a | b | c).where(d = 1).e":         "a.where(d = 1).e; b.where(d = 1).e; c.where(d = 1).e",
		"((a | b) as Quantity).value":        "(a as Quantity).value; (b as Quantity).value",
		"(a | b).first()":                    "(a | b).first()",
		"(a | b).c | d":                      "a.c; b.c; d",
		"a.where(b | c)":                     "a.where(b | c)",
		"(A.code | B.code).text":             "A.code.text; B.code.text",
		"(a | b).ofType(string).resolve().c": "a.ofType(string).resolve().c; b.ofType(string).resolve().c",
	} {
		e, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range Branches(e.Root) {
			got = append(got, b.String())
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s: got %s, want %s", source, strings.Join(got, "; "), want)
		}
	}
}

func TestBranches(t *testing.T) {
	e, err := Parse("Patient.name | (Person.name | x.where(a|b)) | Practitioner.name")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range Branches(e.Root) {
		got = append(got, b.String())
	}
	want := "Patient.name; Person.name; x.where(a | b); Practitioner.name"
	if strings.Join(got, "; ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, "; "), want)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"Patient.name.where(use = 'official').given", "1 + 2 * 3 'mg'", "@2015-02T14:30Z", "%`vs-x` | {}", "a is System.String", "-$this[0]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(e.String())
		if err != nil {
			t.Fatalf("%q has canonical form %q, which fails: %v", s, e.String(), err)
		}
		if again.String() != e.String() {
			t.Fatalf("%q: canonical form %q becomes %q", s, e.String(), again.String())
		}
	})
}
