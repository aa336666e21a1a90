package fhir

import "testing"

// Spec: https://hl7.org/fhir/R4/search.html#number, whose examples come first.
func TestSignificantRange(t *testing.T) {
	tests := []struct{ text, wantLow, wantHigh string }{
		{"100", "99.5", "100.5"},
		{"100.00", "99.995", "100.005"},
		{"1e2", "95", "105"},
		{"1.0e2", "95", "105"},
		{"0.8", "0.75", "0.85"},
		{"0.80", "0.795", "0.805"},
		{"-5.4", "-5.45", "-5.35"},
		{"+5", "4.5", "5.5"},
		{"0", "-0.5", "0.5"},
		{"5.40e-3", "0.005395", "0.005405"},
		{"007", "6.5", "7.5"},
	}
	for _, tt := range tests {
		low, high, err := SignificantRange(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if l, h := low.Text('f'), high.Text('f'); l != tt.wantLow || h != tt.wantHigh {
			t.Errorf("%s is [%s, %s), want [%s, %s)", tt.text, l, h, tt.wantLow, tt.wantHigh)
		}
	}
}

func TestParseDecimalRefuses(t *testing.T) {
	for _, text := range []string{"", "-", ".5", "5.", "1e", "e5", "NaN", "Infinity", "0x10", "1_000", "1,5", "1e9999", "1e-9999", "1e99999999999", " 1", "١"} {
		if d, err := ParseDecimal(text); err == nil {
			t.Errorf("%q is accepted as %s", text, d)
		}
	}
}

func FuzzSignificantRange(f *testing.F) {
	f.Add("5.40")
	f.Add("-1e-7")
	f.Fuzz(func(t *testing.T, text string) {
		low, high, err := SignificantRange(text)
		if err != nil {
			return
		}
		d, err := ParseDecimal(text)
		if err != nil || low.Cmp(d) >= 0 || high.Cmp(d) <= 0 {
			t.Fatalf("%q: %v is not within [%s, %s), %v", text, d, low, high, err)
		}
	})
}
