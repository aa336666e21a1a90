package fhir

import "testing"

func TestSampledBounds(t *testing.T) {
	for _, c := range []struct {
		name, origin, factor, lower, upper, data string
		wantLow, wantHigh                        string
	}{
		{"the bounds of the data", "0", "", "", "", "3 -1 2.50", "-1", "3"},
		{"times factor plus origin", "2048", "1.612", "", "", "-10 0 10", "2031.880", "2064.120"},
		{"a negative factor turns them round", "0", "-1", "", "", "1 2", "-2", "-1"},
		{"limits stand for L and U", "0", "", "-5", "7", "L 0 U", "-5", "7"},
		{"an error is no value", "1", "", "", "", "E 4 E", "5", "5"},
		{"no value at all", "1", "", "", "", "E E", "", ""},
		{"no data", "1", "", "", "", "", "", ""},
		{"no origin", "", "", "", "", "1", "", ""},
		{"what is no decimal is left out", "0", "", "", "", "NaN Inf 0x1 2", "2", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			low, high := SampledBounds(c.origin, c.factor, c.lower, c.upper, c.data)
			if low != c.wantLow || high != c.wantHigh {
				t.Errorf("got %q to %q, want %q to %q", low, high, c.wantLow, c.wantHigh)
			}
		})
	}
}
