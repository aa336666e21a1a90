package match

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"kiln/server/fhir"
)

// Near holds for a resource with a position within Metres of a place, along the
// surface of the earth taken as a sphere. A position is a row of index_number: its
// low end is the latitude, its high end the longitude (fhir.Index.Position).
type Near struct {
	Keys                []fhir.Key
	Latitude, Longitude float64 // degrees
	Metres              float64
}

const earthRadius = 6_371_008.8 // metres, the mean

func (m Near) ranged() {}

func (m Near) single() bool { return true }

func (m Near) wide() bool { return false }

func (m Near) find(w *Writer, _ []int16) {
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_number ", x, " WHERE ")
	w.Keys(x, m.Keys)
	m.condition(w, x)
}

func (m Near) test(w *Writer, r string) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_number ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.TestKeys(x, m.Keys)
	m.condition(w, x)
	w.Write(" OFFSET 0)")
}

// condition writes the band of latitudes, which the index has in order, and the
// distance.
func (m Near) condition(w *Writer, x string) {
	number := func(f float64) string { return w.Param(strconv.FormatFloat(f, 'f', -1, 64)) + "::text" }
	band := m.Metres/earthRadius*180/math.Pi + 1e-6
	w.Write(" AND ", x, ".low >= ", number(m.Latitude-band), "::numeric AND ", x, ".low <= ", number(m.Latitude+band), "::numeric")
	lat, lon := number(m.Latitude)+"::float8", number(m.Longitude)+"::float8"
	w.Write(" AND 2 * 6371008.8 * asin(least(1, sqrt(power(sind((", x, ".low::float8 - ", lat, ") / 2), 2) + cosd(", lat, ") * cosd(", x, ".low::float8) * power(sind((coalesce(",
		x, ".high, ", x, ".low)::float8 - ", lon, ") / 2), 2)))) <= ", number(m.Metres), "::float8")
}

func (m Near) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Numbers, func(e fhir.NumberEntry) bool {
		lat, err1 := strconv.ParseFloat(e.Low, 64)
		lon, err2 := strconv.ParseFloat(e.High, 64)
		return slices.Contains(m.Keys, e.Key) && err1 == nil && err2 == nil && m.distance(lat, lon) <= m.Metres
	}))
}

// distance is the distance, in metres, between m's place and another one, by the
// haversine formula.
func (m *Near) distance(lat, lon float64) float64 {
	rad := func(d float64) float64 { return d * math.Pi / 180 }
	a := math.Pow(math.Sin(rad(lat-m.Latitude)/2), 2) +
		math.Cos(rad(m.Latitude))*math.Cos(rad(lat))*math.Pow(math.Sin(rad(lon-m.Longitude)/2), 2)
	return 2 * earthRadius * math.Asin(min(1, math.Sqrt(a)))
}

func (m Near) describe() string {
	return fmt.Sprintf("within %g m of %g, %g", m.Metres, m.Latitude, m.Longitude)
}

func (m Near) within(way []fhir.Key) Match {
	m.Keys = withinKeys(m.Keys, way)
	return m
}
