package ucum

import (
	"math/big"
	"testing"
)

func TestEveryDefinitionParses(t *testing.T) {
	for code := range table() {
		if _, ok := lookup(code); !ok {
			t.Errorf("%s is defined by something unknown", code)
		}
	}
}

func TestConvert(t *testing.T) {
	tests := []struct {
		value, from, to, want string
	}{
		{"4", "g", "mg", "4000"},
		{"1", "[in_i]", "cm", "2.54"},
		{"1", "[lb_av]", "g", "453.59237"},
		{"5.4", "mmol/L", "umol/dL", "540"},
		{"120", "mm[Hg]", "kPa", "15.99864"},
		{"1", "wk", "d", "7"},
		{"1", "a", "d", "365.25"},
		{"37", "Cel", "K", "310.15"},
		{"98.6", "[degF]", "Cel", "37"},
		{"7.2", "10*3/uL", "10*9/L", "7.2"},
		{"7.2", "10^3/uL", "10*9/L", "7.2"},
		{"2", "m2", "cm2", "20000"},
		{"1", "kg.m/s2", "N", "1"},
		{"1", "kg.m.s-2", "N", "1"},
		{"50", "%", "1", "0.5"},
		{"3", "{score}", "1", "3"},
		{"3", "mg{creat}/dL", "g/L", "0.03"},
		{"1", "/min", "/s", "1/60"},
		{"1", "m[iU]/mL", "[IU]/L", "1"},
		{"1", "mL/min/{1.73_m2}", "mL/min", "1"},
		{"1", "m/(s.s)", "m/s2", "1"},
		{"1", "h", "min", "60"},
		{"1", "meq/L", "mmol/L", "1"},
		{"1", "mosm/kg", "mmol/kg", "1"},
		{"1", "cd", "cd", "1"},
		{"1", "Pa", "N/m2", "1"},
		{"1", "[lbf_av]/[in_i]2", "[psi]", "1"},
	}
	for _, tt := range tests {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			from, err := Parse(tt.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := Parse(tt.to)
			if err != nil {
				t.Fatal(err)
			}
			value, _ := new(big.Rat).SetString(tt.value)
			got, err := from.Convert(value, to)
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := new(big.Rat).SetString(tt.want); got.Cmp(want) != 0 {
				t.Errorf("%s %s = %s %s, want %s", tt.value, tt.from, got.RatString(), tt.to, tt.want)
			}
		})
	}
}

func TestIncomparable(t *testing.T) {
	for _, pair := range [][2]string{{"g", "m"}, {"[iU]", "g"}, {"[iU]", "[arb'U]"}, {"m", "m2"}, {"pH", "1"}} {
		a, err := Parse(pair[0])
		if err != nil {
			t.Fatal(err)
		}
		b, err := Parse(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		if a.Comparable(b) {
			t.Errorf("%s and %s are comparable", pair[0], pair[1])
		}
		if _, err := a.Convert(big.NewRat(1, 1), b); err == nil {
			t.Errorf("%s converts to %s", pair[0], pair[1])
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, code := range []string{"", "lbs", "mg/", "m(", "(m", "mg//dL", "k[in_i]", "{x", "m-", "0", "m99", "Cel.m", "mm Hg", "]", "))", "m2m"} {
		if _, err := Parse(code); err == nil {
			t.Errorf("%q is accepted", code)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"mg/dL", "10*3/uL", "mm[Hg]", "{a}", "m-2.(kg/s)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := Parse(s)
		if err == nil && !u.Comparable(u) {
			t.Errorf("%q does not compare with itself", s)
		}
	})
}
