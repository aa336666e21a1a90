package search

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kiln/server/outcome"
)

// render writes a filter so that reading it gives the same again.
func render(n filterNode) string {
	switch n := n.(type) {
	case *filterNot:
		return "not (" + render(n.of) + ")"
	case *filterLogic:
		return "(" + render(n.left) + ") " + n.op + " (" + render(n.right) + ")"
	case *filterComparison:
		var path []string
		for _, step := range n.path {
			text := step.name
			if step.where != nil {
				text += "[" + render(step.where) + "]"
			}
			path = append(path, text)
		}
		value, _ := json.Marshal(n.value)
		return strings.Join(path, ".") + " " + n.op + " " + string(value)
	}
	return ""
}

// search_filter.html: the grammar, and its notes.
func TestFilterSyntax(t *testing.T) {
	for _, tt := range []struct{ name, filter, want string }{
		{"a comparison", `birthdate ge 2014-10-10`, `birthdate ge "2014-10-10"`},
		{"a JSON string", `name co "a \"b\" ) \u00e9"`, `name co "a \"b\" ) é"`},
		{"from left to right, neither binds tighter", `a eq 1 or b eq 2 and c eq 3`, `((a eq "1") or (b eq "2")) and (c eq "3")`},
		{"parentheses", `a eq 1 or (b eq 2 and c eq 3)`, `(a eq "1") or ((b eq "2") and (c eq "3"))`},
		{"not", `not(a eq 1)and not (b eq 2)`, `(not (a eq "1")) and (not (b eq "2"))`},
		{"a value ends at a parenthesis", `(code eq http://loinc.org|1-2)`, `code eq "http://loinc.org|1-2"`},
		{"paths and brackets", `a[b eq 1 or c eq 2].d.e pr true`, `a[(b eq "1") or (c eq "2")].d.e pr "true"`},
		{"white space of any kind", "\ta  eq\n1 ", `a eq "1"`},
		{"names that are words of the grammar", `not eq 1 and or eq 2`, `(not eq "1") and (or eq "2")`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := parseFilter(tt.filter)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, render(n)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A filter has bounds, and is told which.
func TestFilterBounds(t *testing.T) {
	for _, tt := range []struct{ name, filter, says string }{
		{"length", `gender eq "` + strings.Repeat("x", 20_000) + `"`, "16384"},
		{"depth of parentheses", strings.Repeat("(", 5000) + "gender eq male" + strings.Repeat(")", 5000), "32"},
		{"depth of brackets", strings.Repeat("link[", 60) + "gender eq male" + strings.Repeat("].link", 60), "32"},
		{"comparisons", strings.TrimSuffix(strings.Repeat("gender eq male or ", 300), " or "), "200"},
		{"hops", strings.Repeat("link.", 20) + "gender eq male", "hops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(testRegistry, "Patient", url.Values{"_filter": {tt.filter}}, testOptions)
			var e *outcome.Error
			if !errors.As(err, &e) || e.HTTPStatus() != 400 || e.Issues[0].Code != outcome.CodeTooCostly || !strings.Contains(e.Error(), tt.says) {
				t.Errorf("got %v, want too-costly that says %s", err, tt.says)
			}
		})
	}
}

// FuzzFilter reads any text without harm. A filter that was printed reads the same again, and the position of
// a mistake is inside the text.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		`name co "pet"`, `not (a eq 1) and b[c eq 2].d pr true or (e ne "\\")`, `a.b eq c]`, `((((`, `_has:Observation:patient:code eq x`, `a eq "é`, "a\u2003eq\u20031",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseFilter(text)
		if err != nil {
			if err.column < 1 || err.column > utf8.RuneCountInString(text)+1 || err.what == "" {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := parseFilter(render(n))
		if err != nil {
			if err.costly {
				return // more parentheses than there were
			}
			t.Fatalf("%q: written as %q: %v", text, render(n), err)
		}
		same := cmp.AllowUnexported(filterLogic{}, filterNot{}, filterComparison{}, filterStep{})
		if diff := cmp.Diff(n, again, same, cmpopts.IgnoreFields(filterComparison{}, "text")); diff != "" && utf8.ValidString(text) {
			t.Fatalf("%q: %s", text, diff)
		}
		_, failure := Parse(testRegistry, "Observation", url.Values{"_filter": {text}}, testOptions)
		var e *outcome.Error
		if failure != nil && (!errors.As(failure, &e) || e.HTTPStatus() >= 500 && e.HTTPStatus() != 501) {
			t.Fatalf("%q: %v", text, failure)
		}
	})
}
