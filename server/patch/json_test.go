package patch

import (
	"strings"
	"testing"
)

// Spec: RFC 6901 §4: an index has no leading zeros.
func TestReadJSONRefusesLeadingZeros(t *testing.T) {
	for _, tt := range []struct {
		patch string
		want  string // "" is accepted
	}{
		{`[{"op":"replace","path":"/name/00/family","value":"x"}]`, "/name/00/family has leading zeros"},
		{`[{"op":"remove","path":"/name/01"}]`, "/name/01 has leading zeros"},
		{`[{"op":"move","from":"/name/02","path":"/name/0"}]`, "/name/02 has leading zeros"},
		{`[{"op":"replace","path":"/name/0/family","value":"x"}]`, ""},
		{`[{"op":"add","path":"/name/10","value":{}}]`, ""},
		{`[{"op":"test","path":"/0a","value":1}]`, ""},
	} {
		_, err := ReadJSON([]byte(tt.patch))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.patch, got, tt.want)
		}
	}
}

// Numbers of a test are compared by their value, RFC 6902 §4.6; what no operation
// touches keeps its digits all the same.
func TestJSONTestsNumbersByValue(t *testing.T) {
	const resource = `{"a":1.10,"b":[100,{"c":-0.0,"d":12e-1}],"s":"1.10","big":1e999999999999,"n":null,"x~/y":2}`
	for _, tt := range []struct {
		patch, want string // want "" is a test that fails
	}{
		{`[{"op":"test","path":"/a","value":1.1}]`, resource},
		{`[{"op":"test","path":"/a","value":11e-1}]`, resource},
		{`[{"op":"test","path":"/a","value":1.100}]`, resource},
		{`[{"op":"test","path":"/a","value":1.11}]`, ""},
		{`[{"op":"test","path":"/a","value":"1.1"}]`, ""},
		{`[{"op":"test","path":"/s","value":"1.1"}]`, ""},
		{`[{"op":"test","path":"/b","value":[1e2,{"d":1.2,"c":0}]}]`, resource},
		{`[{"op":"test","path":"/b","value":[1e2,{"d":1.2,"c":0,"e":1}]}]`, ""},
		{`[{"op":"test","path":"/b/0","value":10}]`, ""},
		{`[{"op":"test","path":"/b/2","value":1.0}]`, ""},
		{`[{"op":"test","path":"/b/x","value":1.0}]`, ""},
		{`[{"op":"test","path":"/big","value":1e999999999999}]`, resource},
		{`[{"op":"test","path":"/x~0~1y","value":2.0}]`, resource},
		{`[{"op":"replace","path":"/s","value":1.50},{"op":"test","path":"/s","value":1.5},{"op":"remove","path":"/b"},{"op":"test","path":"/a","value":1.1},{"op":"test","path":"/n","value":null},{"op":"remove","path":"/big"}]`,
			`{"a":1.10,"s":1.50,"n":null,"x~/y":2}`},
		{`[{"op":"test","path":"/a","value":1.1},{"op":"remove","path":"/none"}]`, ""},
		{"[" + strings.Repeat(`{"op":"test","path":"/a","value":1.1},{"op":"replace","path":"/s","value":2},`, 3) + `{"op":"test","path":"/s","value":2.0}]`,
			strings.Replace(resource, `"1.10"`, "2", 1)},
		{"[" + strings.Repeat(`{"op":"test","path":"/a","value":1.1},{"op":"replace","path":"/s","value":2},`, 300) + `{"op":"test","path":"/s","value":2.0}]`, ""},
	} {
		p, err := ReadJSON([]byte(tt.patch))
		if err != nil {
			t.Fatalf("%s: %v", tt.patch, err)
		}
		got, err := p.Apply([]byte(resource))
		if tt.want == "" {
			if err == nil {
				t.Errorf("%.200s: no error, %s", tt.patch, got)
			}
			continue
		}
		if err != nil || string(got) != tt.want {
			t.Errorf("%.200s:\n got %s, %v\nwant %s", tt.patch, got, err, tt.want)
		}
	}
	p, err := ReadJSON([]byte(`[{"op":"remove","path":"/b/-"}]`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = p.Apply([]byte(resource)); err == nil || strings.Contains(err.Error(), "strconv") {
		t.Errorf("the error says %v", err)
	}
}
