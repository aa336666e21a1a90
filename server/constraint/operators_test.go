package constraint

import (
	"context"
	"errors"
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

func code(s string) fhir.Code { return fhir.Code{Primitive: fhir.Primitive{Text: s}} }

func codings(codes ...string) []r4.Coding {
	out := make([]r4.Coding, len(codes))
	for i, c := range codes {
		out[i].Code = code(c)
	}
	return out
}

func TestLists(t *testing.T) {
	is := func(want string) func(*r4.Coding) bool { return func(c *r4.Coding) bool { return c.Code.Text == want } }
	list := codings("a", "b")
	for name, got := range map[string]bool{
		"an item":                  Some(list, is("b")),
		"the first":                Some(First(list), is("a")),
		"the rest":                 Some(Tail(list), is("b")),
		"not the rest":             !Some(Tail(list), is("a")),
		"not the first":            !Some(First(list), is("b")),
		"nothing in nothing":       !Some(First([]r4.Coding(nil)), is("a")) && !Some(Tail([]r4.Coding(nil)), is("a")),
		"a type":                   Is[*r4.Coding](&list[0]) && !Is[*r4.Period](&list[0]) && !Is[*r4.Period](nil),
		"a type and a condition":   As(fhir.Element(&list[0]), is("a")) && !As(fhir.Element(&list[0]), is("b")),
		"a path":                   Has(&r4.CodeableConcept{Coding: list}, "coding", "code"),
		"a path that ends":         !Has(&r4.CodeableConcept{Coding: list}, "coding", "system"),
		"a text":                   Text(&r4.CodeableConcept{Coding: list[:1]}, "coding", "code") == "a",
		"no text of several items": Text(&r4.CodeableConcept{Coding: list}, "coding", "code") == "",
		"no text of nothing":       Text(nil, "coding", "code") == "",
	} {
		if !got {
			t.Error(name)
		}
	}
}

// A date known to the month is neither before nor after one of its days.
func TestOrderInThreeValues(t *testing.T) {
	date := func(s string) *fhir.DateTime { return &fhir.DateTime{Primitive: fhir.Primitive{Text: s}} }
	for _, c := range []struct {
		a, op, b          string
		certain, possible bool
	}{
		{"2020", "<=", "2021", true, true},
		{"2021", "<=", "2020", false, false},
		{"2020-05", "<=", "2020-05-10", false, true},
		{"2020-05", ">", "2020-05-10", false, true},
		{"2020", ">=", "2020", true, true},
		{"", "<", "2020", false, true},
	} {
		if got := Certain(date(c.a), c.op, date(c.b)); got != c.certain {
			t.Errorf("certainly %s %s %s: %v", c.a, c.op, c.b, got)
		}
		if got := Possible(date(c.a), c.op, date(c.b)); got != c.possible {
			t.Errorf("possibly %s %s %s: %v", c.a, c.op, c.b, got)
		}
	}
	n := &fhir.Decimal{Primitive: fhir.Primitive{Text: "0.50"}}
	if !CertainNumber(n, ">", 0) || PossibleNumber(n, ">", 1) {
		t.Error("0.50 is not between 0 and 1")
	}
}

func TestDistinct(t *testing.T) {
	distinct := func(list []r4.Coding) bool {
		return Distinct(&Context{}, func(seen *Seen) bool {
			return Some(list, func(c *r4.Coding) bool { return seen.Again(&c.Code) })
		})
	}
	if !distinct(codings("a", "b", "c")) || distinct(codings("a", "b", "a")) || !distinct(nil) {
		t.Error("distinct items are told apart wrongly")
	}
}

// What compares every item of a list with every item of another one gives up, and
// says so.
func TestShareIsBounded(t *testing.T) {
	var c Context
	if !Share(&c, codings("a", "b"), codings("x", "b")) || Share(&c, codings("a"), codings("b")) || c.Err != nil {
		t.Errorf("shared items are found wrongly, %v", c.Err)
	}
	many, others := make([]r4.Coding, 4000), make([]r4.Coding, 4000)
	for i := range many {
		many[i].Code, others[i].Code = code(strings.Repeat("a", 1+i%50)), code("b")
	}
	c.Reset()
	if Share(&c, many, others) || c.Err == nil {
		t.Errorf("16 million comparisons: error %v", c.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Reset()
	c.Context = ctx
	if Share(&c, many, others); !errors.Is(c.Err, context.Canceled) {
		t.Errorf("a cancelled request: error %v", c.Err)
	}
	c.Reset()
	if c.Err != nil {
		t.Error("Reset leaves the error")
	}
}
