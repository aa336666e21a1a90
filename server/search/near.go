package search

import (
	"math/big"
	"strconv"

	"kiln/server/fhir"
	"kiln/server/search/match"
	"kiln/server/ucum"
)

// nearby is how far a place may be that is near, in metres, where nobody says.
const nearby = 50_000

// near reads `latitude|longitude|distance|unit`: places within a distance on the
// surface of the earth. Without a unit the distance is in kilometres, without a
// distance it is nearby; units are UCUM's lengths, and mi.
// Spec: https://hl7.org/fhir/R4/location.html#search.
func (p *parser) near(param *fhir.Parameter, name, modifier, v string) ([]match.Match, error) {
	if modifier != "" {
		return nil, badModifier(name, modifier, "special", "missing")
	}
	const expected = "expected latitude|longitude, latitude|longitude|distance or latitude|longitude|distance|unit, in degrees and a unit of length such as km"
	parts := splitEscaped(v, '|', 0)
	for i := range parts {
		parts[i] = unescapeValue(parts[i])
	}
	if len(parts) < 2 || len(parts) > 4 {
		return nil, badValue(name, v, expected)
	}
	m := match.Near{Keys: param.Keys, Metres: nearby}
	var ok1, ok2 bool
	m.Latitude, ok1 = degrees(parts[0], 90)
	m.Longitude, ok2 = degrees(parts[1], 180)
	if !ok1 || !ok2 {
		return nil, badValue(name, v, expected)
	}
	if len(parts) > 2 && parts[2] != "" {
		unit := "km"
		if len(parts) == 4 && parts[3] != "" {
			unit = parts[3]
		}
		var ok bool
		if m.Metres, ok = metres(parts[2], unit); !ok {
			return nil, badValue(name, v, expected)
		}
	}
	return []match.Match{m}, nil
}

// degrees reads an angle between -most and most.
func degrees(text string, most float64) (float64, bool) {
	if _, err := fhir.ParseDecimal(text); err != nil {
		return 0, false
	}
	d, err := strconv.ParseFloat(text, 64)
	return d, err == nil && d >= -most && d <= most
}

// metres reads a distance, 0 or more.
func metres(text, unit string) (float64, bool) {
	if _, err := fhir.ParseDecimal(text); err != nil {
		return 0, false
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok || n.Sign() < 0 {
		return 0, false
	}
	if unit == "mi" {
		unit = "[mi_i]"
	}
	from, err := ucum.Parse(unit)
	if err != nil {
		return 0, false
	}
	to, err := ucum.Parse("m")
	if err != nil || !from.Comparable(to) {
		return 0, false
	}
	m, err := from.Convert(n, to)
	if err != nil {
		return 0, false
	}
	f, _ := m.Float64()
	return f, true
}
