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
