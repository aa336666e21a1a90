package fhirpath_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

func observation(t testing.TB) fhir.Node {
	r, err := fhir.Decode(r4.Model, []byte(benchObservation))
	if err != nil {
		t.Fatal(err)
	}
	return fhir.NodeOf(r)
}

// HL7's suite covers the language; these cases are missing there.
func TestEval(t *testing.T) {
	tests := []struct{ name, expr, want string }{
		{"integers overflow to empty", "(2147483647 + 1).empty()", "true"},
		{"the smallest integer", "-2147483648", "-2147483648"},
		{"decimals keep their digits", "6.30", "6.30"},
		{"decimals are exact", "0.1 + 0.2 = 0.3", "true"},
		{"long decimals", "1234567890123456789012345678.5 + 0.5", "1234567890123456789012345679.0"},
		{"division", "1 / 3 * 3 ~ 1", "true"},
		{"a ceiling of something small", "0.001.ceiling()", "1"},
		{"a floor of something small", "(-0.001).floor()", "-1"},
		{"a half is rounded away from zero", "(-2.5).round()", "-3"},
		{"partial dates move in whole steps", "@2014 + 23 months", "2015"},
		{"a month has its own last day", "@2020-01-31 + 1 month", "2020-02-29"},
		{"time wraps around midnight", "@T23:30 + 1 hour", "00:30"},
		{"a date out of range is empty", "(@9999-12-31 + 1 day).empty()", "true"},
		{"seconds have fractions", "@T10:00:00.000 + 1.5 seconds", "10:00:01.500"},
		{"zones are compared by instant", "@2020-01-01T00:30:00+01:00 < @2019-12-31T23:45:00Z", "true"},
		{"a missing zone is decided where it is so in every zone", "@2020-01-03T00:00:00 > @2020-01-01T00:00:00Z", "true"},
		{"and open where it is not", "(@2020-01-01T10:00:00 > @2020-01-01T00:00:00Z).empty()", "true"},
		{"units convert in comparisons", "1 'kg' > 999 'g'", "true"},
		{"units convert in sums", "1 'kg' + 5 'g'", "1005 'g'"},
		{"a sum has the more granular unit of both", "3 'm' + 3 'cm'", "303 'cm'"},
		{"wherever that stands", "3 'cm' + 3 'm'", "303 'cm'"},
		{"a difference too", "3 'm' - 3 'cm'", "297 'cm'"},
		{"and one below zero", "3 'cm' - 3 'm'", "-297 'cm'"},
		{"months are more granular than years", "1 year + 6 months", "18 months"},
		{"of either side", "6 months - 1 year", "-6 months"},
		{"hours than days", "1 day + 2 hours", "26 hours"},
		{"calendar durations and UCUM", "1 day + 2 'h'", "26 'h'"},
		{"days and weeks", "2 weeks + 1 day", "15 day"},
		{"years and days have no sum", "(1 year + 1 day).empty()", "true"},
		{"seconds than milliseconds", "1 's' - 1 'ms'", "999 'ms'"},
		{"products of units", "1 'g/L' + 1 'mg/L'", "1001 'mg/L'"},
		{"a leap second is none of the second before", "@2016-12-31T23:59:60Z > @2016-12-31T23:59:59Z", "true"},
		{"and not equal to it", "@2016-12-31T23:59:60Z = @2016-12-31T23:59:59Z", "false"},
		{"a Time with a leap second", "@T23:59:60 > @T23:59:59", "true"},
		{"units of other dimensions give nothing", "(1 'kg' + 5 'm').empty()", "true"},
		{"a quantity of the model", "value > 16 'kg/m2'", "true"},
		{"conversion to a unit", "46.2 'kg'.toQuantity('g')", "46200 'g'"},
		{"a plain number times years", "2 * 1 year", "2 year"},
		{"an empty length is none", "'abcdef'.substring(2, {})", "cdef"},
		{"an empty start is empty", "'abcdef'.substring({}).empty()", "true"},
		{"types of several items", "component.code.type().name", "CodeableConcept,CodeableConcept"},
		{"the value of several items", "component.code.coding.code.getValue().empty()", "true"},
		{"the value of one item", "status.getValue() is System.String", "true"},
		{"a literal is no FHIR primitive", "1.hasValue() or 'a'.hasValue()", "false"},
		{"a primitive has a value", "status.hasValue()", "true"},
		{"white space characters are alike", "'a\\tb' ~ 'A b'", "true"},
		{"white space is not collapsed", "'a  b' ~ 'a b'", "false"},
		{"white space is not trimmed", "' a' ~ 'a'", "false"},
		{"surrogate pairs are one character", "'\\uD83D\\uDE00'.length()", "1"},
		{"a unit that UCUM does not have", "'4 \\'foo\\''.convertsToQuantity() or '4 \\'foo\\''.toQuantity().exists()", "false"},
		{"a unit that UCUM has", "'4 \\'mg\\''.toQuantity()", "4 'mg'"},
		{"a calendar year is no 'a'", "(1 year = 1 'a').empty() and 1 year ~ 1 'a'", "true"},
		{"type of a node", "code.type().name & '/' & code.type().namespace", "CodeableConcept/FHIR"},
		{"base type", "Observation.type().baseType", "FHIR.DomainResource"},
		{"a resource is a DomainResource", "$this is DomainResource and $this is Resource", "true"},
		{"value of a primitive", "status.value is System.String", "true"},
		{"resolve of a local type", "subject.resolve() is Patient", "true"},
		{"resolve of another type", "subject.where(resolve() is Device).exists()", "false"},
		{"union drops duplicates", "(component.code | component.code).count()", "2"},
		{"intersection", "component.code.coding.system.intersect('http://loinc.org' | 'x')", "http://loinc.org"},
		{"the index", "component.select($index)", "0,1"},
		{"nested this", "component.where($this.value.value > 100).code.coding.where($this.code = '8302-2').code", "8302-2"},
		{"an outer collection in an argument", "component.code.coding.code.subsetOf(%resource.component.code.coding.code)", "true"},
		{"aggregate", "component.value.value.aggregate($this + $total, 0)", "215.1"},
		{"text with characters of several bytes", "'Bénédicte'.substring(1, 3)", "éné"},
		{"index in characters", "'éa'.indexOf('a')", "1"},
		{"quote in an escape", `'a\'b'.length()`, "3"},
		{"lenient choice through descendants", "descendants().ofType(Quantity).value.where($this > 100)", "168.9"},
		{"html", "text.`div`.htmlChecks()", "true"},
		{"has value", "status.hasValue() and code.hasValue().not()", "true"},
		{"now is fixed", "now() = now() and now().toString()", "true"},
		{"implies with an empty side", "({} implies true)", "true"},
		{"membership of nothing", "({} in (1 | 2)).empty()", "true"},
		{"sort by two keys", "('b' | 'a' | 'c').sort(length(), -$this).join(',')", "c,b,a"},
		{"last index", "'a-b-c'.lastIndexOf('-')", "3"},
		{"negative of a path", "-component.value.value.first()", "-46.2"},
	}
	node := observation(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, input := range []*fhir.Type{node.T, nil} {
				p, err := fhirpath.Compile(tt.expr, fhirpath.Options{Model: r4.Model, Input: input})
				if err != nil {
					t.Fatal(err)
				}
				c, err := p.Eval(&fhirpath.Context{Now: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)}, node)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, v := range c {
					got = append(got, v.String())
				}
				if strings.Join(got, ",") != tt.want {
					t.Errorf("got %s, want %s", strings.Join(got, ","), tt.want)
				}
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	p, err := fhirpath.Compile("%limit + %names.count()", fhirpath.Options{Model: r4.Model, Variables: []string{"limit", "names"}})
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]fhirpath.Collection{"limit": {fhirpath.Integer(5)}, "names": {fhirpath.String("a"), fhirpath.String("b")}}
	c, err := p.Eval(&fhirpath.Context{Env: env}, observation(t))
	if err != nil || len(c) != 1 || c[0].String() != "7" {
		t.Errorf("got %v, %v; want 7", c, err)
	}
	if _, err := fhirpath.Compile("%other", fhirpath.Options{Variables: []string{"limit"}}); err == nil {
		t.Error("an unknown variable compiles")
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		name, expr string
		wantPhase  fhirpath.Phase
		wantPos    int
		wantReason string
	}{
		{"half of a surrogate pair", "'\\uD83D'", fhirpath.Syntax, 5, "half of a surrogate pair"},
		{"two high halves", "'\\uD83D\\uD83D'", fhirpath.Syntax, 5, "half of a surrogate pair"},
		{"unknown element", "code.codin", fhirpath.Semantic, 5, "FHIR.CodeableConcept has no element 'codin'; did you mean 'coding'?"},
		{"choice with its type", "valueQuantity.value", fhirpath.Semantic, 0, "has no element 'valueQuantity'; write value.ofType(Quantity)"},
		{"choice with a primitive type", "effectiveDateTime", fhirpath.Semantic, 0, "write effective.ofType(dateTime)"},
		{"unknown function", "code.exist()", fhirpath.Semantic, 5, "there is no function exist(); did you mean exists()?"},
		{"too many arguments", "code.exists(true, false)", fhirpath.Semantic, 5, "exists() takes 0 to 1 argument, found 2"},
		{"unknown type", "value is Quantitty", fhirpath.Semantic, 9, "there is no type Quantitty"},
		{"wrong root", "Patient.name", fhirpath.Semantic, 0, "the path starts at Patient, the input is FHIR.Observation"},
		{"incomparable types", "status > 5", fhirpath.Semantic, 7, "FHIR.code and System.Integer cannot be compared"},
		{"function of another type", "code.startsWith('a')", fhirpath.Semantic, 5, "startsWith() needs a String, found FHIR.CodeableConcept"},
		{"bad regular expression", "status.matches('(')", fhirpath.Semantic, 15, "is not a regular expression"},
		{"several items", "component.code.coding.code + 'x'", fhirpath.Execution, 27, "'+' needs one item, there are 2"},
		{"as on several items", "component.value.as(Quantity)", fhirpath.Execution, 16, "as needs one item, there are 2; ofType() takes several"},
		{"unknown variable", "%nothing", fhirpath.Execution, 0, "the environment has no variable %nothing"},
		{"total outside aggregate", "$total", fhirpath.Semantic, 0, "$total has a value only inside aggregate()"},
		{"no terminology", "code.memberOf('http://x')", fhirpath.Execution, 5, "needs a terminology service"},
		{"an expression without end", "repeat($this.toString() & 'a')", fhirpath.Limit, 0, "stopped after"},
		{"text that doubles", "(1|2|3|4|5|6|7|8|9|10|11|12|13|14|15|16|17|18|19|20|21|22|23|24|25|26|27|28|29|30|31|32|33|34|35|36|37|38|39|40).aggregate($total & $total, 'aaaaaaaa')", fhirpath.Limit, 0, "stopped after"},
		{"a product of products", "descendants().select(%resource.descendants().select(%resource.descendants()))", fhirpath.Limit, 0, "stopped after"},
	}
	node := observation(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := fhirpath.Compile(tt.expr, fhirpath.Options{Model: r4.Model, Input: node.T})
			if err == nil {
				_, err = p.Eval(&fhirpath.Context{MaxSteps: 200_000}, node)
			}
			var e *fhirpath.Error
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want an *Error", err)
			}
			if e.Phase != tt.wantPhase || !strings.Contains(e.Reason, tt.wantReason) {
				t.Errorf("got %v, want %s: %s", e, tt.wantPhase, tt.wantReason)
			}
			if e.Pos != tt.wantPos && e.Phase != fhirpath.Limit {
				t.Errorf("position is %d, want %d", e.Pos, tt.wantPos)
			}
		})
	}
}

func TestCancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p, err := fhirpath.Compile("descendants().select(%resource.descendants().count())", fhirpath.Options{Model: r4.Model})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Eval(&fhirpath.Context{Context: ctx}, observation(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

type resolver map[string]fhir.Resource

func (r resolver) Resolve(_ context.Context, ref string) (fhir.Resource, error) { return r[ref], nil }

func TestResolve(t *testing.T) {
	bundle, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Bundle","type":"collection","entry":[
		{"fullUrl":"urn:uuid:1","resource":{"resourceType":"Patient","id":"a","active":true}},
		{"resource":{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"subject":{"reference":"urn:uuid:1"},"device":{"reference":"Device/9"},
		 "contained":[{"resourceType":"Practitioner","id":"p"}],"performer":[{"reference":"#p"}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	node := fhir.NodeOf(bundle)
	observation := fhir.NodeOf(bundle.(*r4.Bundle).Entry[1].Resource)
	ctx := &fhirpath.Context{Resolver: resolver{"Device/9": &r4.Device{}}, RootResource: node}
	for expr, want := range map[string]string{
		"subject.resolve().active":                                 "true",
		"device.resolve() is Device and device.resolve().exists()": "true",
		"subject.where(resolve() is Patient).exists()":             "true",
	} {
		p, err := fhirpath.Compile(expr, fhirpath.Options{Model: r4.Model, Input: observation.T})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := p.Eval(ctx, observation); err != nil || len(c) != 1 || c[0].String() != want {
			t.Errorf("%s = %v, %v; want %s", expr, c, err, want)
		}
	}
	p, err := fhirpath.Compile("performer.resolve().id", fhirpath.Options{Model: r4.Model, Input: observation.T})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := p.Eval(nil, observation); err != nil || len(c) != 1 || c[0].String() != "p" {
		t.Errorf("contained: %v, %v; want p", c, err)
	}
}

// A string with extensions and without value has no characters.
func TestStringsWithoutValue(t *testing.T) {
	r, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"Patient","name":[{"_family":{"extension":[{"url":"http://x","valueCode":"y"}]},"given":["a","b"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	n := fhir.NodeOf(r)
	for expr, want := range map[string]string{
		"name.family.split(',').empty()":            "true",
		"name.family.toChars().empty()":             "true",
		"name.family.join(',').empty()":             "true",
		"(name.family | name.given).join(',')":      "a,b",
		"name.family.hasValue()":                    "false",
		"name.family.getValue().empty()":            "true",
		"name.family.type().name":                   "string",
		"(name.family | name.given).type().count()": "3",
	} {
		p, err := fhirpath.Compile(expr, fhirpath.Options{Model: r4.Model, Input: n.T})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := p.Eval(nil, n); err != nil || len(c) != 1 || c[0].String() != want {
			t.Errorf("%s = %v, %v; want %s", expr, c, err, want)
		}
	}
}

func FuzzEval(f *testing.F) {
	for _, s := range []string{
		"descendants().where($this is Quantity).value.aggregate($this + $total, 0)", "code.coding.code.replaceMatches('[0-9]', '-')",
		"1.0.power(300).ln()", "@2015-02-04T14:34:28Z + 3 days - 2 months", "1 'kg' * 3 'm' / 2 's'", "'a'.repeat($this & 'b')",
		"component.sort(-value.value).select($index | $this)", "effective.lowBoundary().toString().toDate()", "iif(status = 'final', 1, 2) in (1 | 2.0)",
		"(1 'a' ~ 1 year) xor text.htmlChecks() implies subject.resolve().empty()", "'x'.encode('hex').decode('base64').toQuantity('mg')",
	} {
		f.Add(s)
	}
	node := observation(f)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := fhirpath.Compile(s, fhirpath.Options{Model: r4.Model, CollectionAs: true})
		if err != nil {
			return
		}
		c, err := p.Eval(&fhirpath.Context{MaxSteps: 20_000}, node)
		if err != nil {
			var e *fhirpath.Error
			if !errors.As(err, &e) {
				t.Errorf("%q fails with %T", s, err)
			}
		}
		for _, v := range c {
			if v.TypeName() == "" {
				t.Errorf("%q has a result without type", s)
			}
		}
	})
}
