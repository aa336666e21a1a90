package plan

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kiln/server/outcome"
	"kiln/server/search"
)

func TestLimits(t *testing.T) {
	many := func(n int, format string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(parts, ",")
	}
	parameters := func(n int) url.Values {
		v := url.Values{}
		for i := range n {
			v.Add("code", fmt.Sprint(i))
		}
		return v
	}
	tests := []struct {
		name   string
		values url.Values
		want   string // part of the refusal, "" for none
	}{
		{"10,000 codes", url.Values{"code": {many(10_000, "c%d")}}, ""},
		{"10,001 codes", url.Values{"code": {many(10_001, "c%d")}}, "at most 10000 values"},
		{"64 dates", url.Values{"date": {many(64, "20%02d-01")}}, ""},
		{"65 dates", url.Values{"date": {many(65, "20%02d-01")}}, "at most 64"},
		{"200 parameters", parameters(200), ""},
		{"201 parameters", parameters(201), "at most 200"},
		{"8 hops", url.Values{strings.Repeat("has-member:Observation.", 8) + "code": {"1"}}, ""},
		{"9 hops", url.Values{strings.Repeat("has-member:Observation.", 9) + "code": {"1"}}, "more than 8 hops"},
		{"9 sort keys", url.Values{"_sort": {"date,value-quantity,value-string,value-date,_id,_lastUpdated,-date,-_id,combo-value-quantity"}}, "at most 8 keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, err := search.Parse(testRegistry, "Observation", tt.values, testOptions)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if p := Compile(q, testEnv); len(p.CountMatches().SQL) == 0 {
					t.Error("no statement")
				}
				return
			}
			o, ok := outcome.From(err)
			if !ok || !strings.Contains(err.Error(), tt.want) || o.HTTPStatus() != 400 {
				t.Errorf("got %v, want a 400 with %q", err, tt.want)
			}
		})
	}
}

// A statement's text must depend on the shape of a query only, or PostgreSQL
// plans it anew for each value.
func TestTextDependsOnShapeOnly(t *testing.T) {
	pairs := [][2]string{
		{"Observation?code=a", "Observation?code=b|c"},
		{"Observation?code=a,b", "Observation?code=c,d,e"},
		{"Observation?date=ge2010", "Observation?date=ge2011-12-13T14:15:16Z"},
		{"Observation?value-quantity=gt5", "Observation?value-quantity=gt-7.25"},
		{"Observation?value-quantity=gt5|http://unitsofmeasure.org|g", "Observation?value-quantity=gt5|http://unitsofmeasure.org|mmol/L"},
		{"Patient?name=a", "Patient?name=bcd"},
		{"Observation?subject:Patient.name=a", "Observation?subject:Patient.name=Müller"},
		{"Patient?_count=10&_offset=5&name=a", "Patient?_count=20&_offset=7&name=b"},
		{"Patient?_lastUpdated=gt2020", "Patient?_lastUpdated=gt2021-01"},
	}
	for _, pair := range pairs {
		var texts [2]string
		for i, line := range pair {
			typ, query, _ := strings.Cut(line, "?")
			values, err := url.ParseQuery(query)
			if err != nil {
				t.Fatal(err)
			}
			q, err := search.Parse(testRegistry, typ, values, testOptions)
			if err != nil {
				t.Fatal(err)
			}
			p := Compile(q, testEnv)
			texts[i] = p.CountMatches().SQL
			for d := range p.Drivers {
				st, err := p.SelectCandidates(d)
				if err != nil {
					t.Fatal(err)
				}
				texts[i] += st.SQL
			}
			st, _, err := p.SelectWalk(0, 0, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			texts[i] += st.SQL
		}
		if diff := cmp.Diff(texts[0], texts[1]); diff != "" {
			t.Errorf("%s and %s:\n%s", pair[0], pair[1], diff)
		}
	}
}

// FuzzParse looks for panics, and for searches that parse but do not compile.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"Patient?name=eve", "Observation?code-value-quantity=8302-2$gt150", "Observation?subject:Patient.name=a,b&_sort=-date", "Patient?_has:Observation:patient:code=1",
		"Observation?_include=Observation:*&_revinclude:iterate=*", `ValueSet?url:below=http://a/b`, "?_type=Patient&_id=1", "Observation?value-quantity=ap1e3||mg", "Patient?_cursor=eyJyIjoxfQ",
	} {
		f.Add(s)
	}
	options := testOptions
	options.Now = time.Unix(0, 0)
	f.Fuzz(func(t *testing.T, line string) {
		typ, query, _ := strings.Cut(line, "?")
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := search.Parse(testRegistry, typ, values, options)
		if err != nil {
			if o, ok := outcome.From(err); !ok || o.HTTPStatus() >= 500 && o.HTTPStatus() != 501 {
				t.Fatalf("%s: %v", line, err)
			}
			return
		}
		p := Compile(q, testEnv)
		if p.Empty {
			return
		}
		p.CountMatches()
		for i := range p.Drivers {
			if _, err := p.SelectCandidates(i); err != nil {
				if _, ok := outcome.From(err); !ok {
					t.Fatalf("%s: %v", line, err)
				}
			}
		}
		p.SelectIncludes([]int64{1}, nil, false, 1)
	})
}
