package conformance

import "testing"

// search.html#date and #prefix. The server's time zone for values without one is
// UTC.
func TestSearchDate(t *testing.T) {
	s := start(t)
	observation := func(id, effective string) string {
		return `{"resourceType":"Observation","id":"` + id + `","status":"final","code":{"text":"x"}` + effective + `}`
	}
	s.load(
		observation("y2012", `,"effectiveDateTime":"2012"`),
		observation("m2013-01", `,"effectiveDateTime":"2013-01"`),
		observation("d2013-01-14", `,"effectiveDateTime":"2013-01-14"`),
		observation("t00", `,"effectiveDateTime":"2013-01-14T00:00:00Z"`),
		observation("t10", `,"effectiveDateTime":"2013-01-14T10:00:00Z"`),
		observation("t10half", `,"effectiveDateTime":"2013-01-14T10:00:00.500Z"`),
		observation("zone", `,"effectiveDateTime":"2013-01-14T23:30:00-05:00"`), // the 15th in UTC
		observation("from21jan", `,"effectivePeriod":{"start":"2013-01-21"}`),
		observation("to21jan", `,"effectivePeriod":{"end":"2013-01-21"}`),
		observation("from15mar", `,"effectivePeriod":{"start":"2013-03-15"}`),
		observation("april", `,"effectivePeriod":{"start":"2013-04-01","end":"2013-04-30"}`),
		observation("timing", `,"effectiveTiming":{"event":["2013-06-01","2013-06-10"]}`),
		observation("bounds", `,"effectiveTiming":{"repeat":{"boundsPeriod":{"start":"2013-07-01","end":"2013-07-31"},"frequency":1,"period":1,"periodUnit":"d"}}`),
		observation("instant", `,"effectiveInstant":"2013-08-01T12:00:00.123Z"`),
		observation("none", ``),
		`{"resourceType":"ServiceRequest","id":"both","status":"active","intent":"order","subject":{"display":"x"},"occurrenceTiming":{"event":["2013-09-02T08:00:00Z","2013-09-10"],"repeat":{"boundsPeriod":{"start":"2013-09-01","end":"2013-09-05"}}}}`,
		`{"resourceType":"ServiceRequest","id":"open","status":"active","intent":"order","subject":{"display":"x"},"occurrenceTiming":{"event":["2013-09-02"],"repeat":{"boundsPeriod":{"start":"2013-09-03"}}}}`,
		`{"resourceType":"Patient","id":"leap","birthDate":"2000-02-29"}`,
		`{"resourceType":"Patient","id":"year","birthDate":"2000"}`,
		`{"resourceType":"Patient","id":"old","birthDate":"1899-12-31"}`,
	)
	s.searches(t, "Observation", []searchCase{
		{"#prefix: eq, the range asked for holds the whole of the target", "date=2013-01-14", "d2013-01-14 t00 t10 t10half"},
		{"#prefix: eq", "date=eq2013-01-14", "d2013-01-14 t00 t10 t10half"},
		{"#prefix: eq of a month", "date=2013-01", "d2013-01-14 m2013-01 t00 t10 t10half zone"},
		{"#prefix: eq of a year does not hold what is open", "date=2013", "april bounds d2013-01-14 instant m2013-01 t00 t10 t10half timing zone"},
		{"#date: a second is all of its fractions", "date=2013-01-14T10:00:00Z", "t10 t10half"},
		{"#date: a minute is all of its seconds", "date=2013-01-14T10:00Z", "t10 t10half"},
		{"#date: a fraction", "date=2013-01-14T10:00:00.500Z", "t10half"},
		{"#date: another time zone", "date=2013-01-14T11:00:00+01:00", "t10 t10half"},
		{"#date: a value without a time zone", "date=2013-01-14T10:00:00", "t10 t10half"},
		{"#date: a period", "date=2013-04", "april"},
		{"#date: a period is not within a part of it", "date=2013-04-10", ""},
		{"#date: a Timing by its outer limits", "date=2013-06", "timing"},
		{"#date: a Timing by its outer limits", "date=2013-06-01", ""},
		{"#date: a Timing by its bounds", "date=2013-07", "bounds"},
		{"#date: an instant", "date=2013-08-01T12:00:00Z", "instant"},
		{"#prefix: ne", "date=ne2013-01", "april bounds from15mar from21jan instant timing to21jan y2012"},
		{"#prefix: lt, what lies below intersects the target", "date=lt2013-01-14T10:00:00Z", "d2013-01-14 m2013-01 t00 to21jan y2012"},
		{"#prefix: gt, what lies above intersects the target", "date=gt2013-01-14T10:00:00Z", "april bounds d2013-01-14 from15mar from21jan instant m2013-01 timing to21jan zone"},
		{"#prefix: ge2013-03-14, 'from 21 January' is included", "date=ge2013-03-14", "april bounds from15mar from21jan instant timing"},
		{"#prefix: le2013-03-14, 'from 21 January' is included", "date=le2013-03-14", "d2013-01-14 from21jan m2013-01 t00 t10 t10half to21jan y2012 zone"},
		{"#prefix: ge of a day holds that day", "date=ge2013-01-14&date=lt2013-01-15", "d2013-01-14 m2013-01 t00 t10 t10half to21jan"},
		{"#prefix: sa2013-03-14, 'from 15 March' is included, 'from 21 January' not", "date=sa2013-03-14", "april bounds from15mar instant timing"},
		{"#prefix: eb2013-03-14, 'from 15 March' is not included", "date=eb2013-03-14", "d2013-01-14 m2013-01 t00 t10 t10half to21jan y2012 zone"},
		{"#prefix: eb of a day in a month", "date=eb2013-01-14", "y2012"},
		{"#prefix: sa of a year", "date=sa2012", "april bounds d2013-01-14 from15mar from21jan instant m2013-01 t00 t10 t10half timing zone"},
		{"contract: a range by ge and lt", "date=ge2013-04-01&date=lt2013-07-01", "april from15mar from21jan timing"},
		{"#combining: comma is OR", "date=2012,2013-04", "april y2012"},
		{"#modifiers: :missing=true", "date:missing=true", "none"},
		{"#modifiers: :missing=false", "date:missing=false&date=le2013-01-31", "d2013-01-14 from21jan m2013-01 t00 t10 t10half to21jan y2012 zone"},
		{"#date: not a date", "date=yesterday", "400 date yesterday"},
		{"#date: not a month", "date=2013-13", "400 date 2013-13"},
		{"#date: not a day", "date=2013-02-29", "400 date 2013-02-29"},
		{"#date: an hour alone", "date=2013-01-14T10", "400 date"},
		{"#prefix: unknown", "date=xx2013", "400 date xx2013"},
		{"#prefix: a prefix alone", "date=ge", "400 date ge"},
		{"#modifiers: of another type", "date:exact=2013", "400 date:exact :exact date"},
	})
	// A Timing with events and bounds is one range, and one match.
	s.searches(t, "ServiceRequest", []searchCase{
		{"#date: a Timing by its outer limits", "occurrence=2013-09", "both"},
		{"#date: a Timing by its outer limits", "occurrence=gt2013-08", "both open"},
		{"#date: a Timing by its outer limits", "occurrence=gt2013-09-06&_sort=-occurrence", "both open"},
		{"#date: a Timing by its outer limits", "occurrence=lt2013-09-02", "both"},
		{"#date: a Timing by its outer limits", "occurrence=ne2012", "both open"},
		{"#date: a Timing by its outer limits", "occurrence=gt2013-10", "open"},
	})
	s.searches(t, "Patient", []searchCase{
		{"#date: a leap day", "birthdate=2000-02-29", "leap"},
		{"#date: a year holds its days and itself", "birthdate=2000", "leap year"},
		{"#prefix: lt of a day in the year", "birthdate=lt2000-02-01", "old year"},
		{"#prefix: le of the last day of the year before 1900", "birthdate=le1899-12-31", "old"},
		{"#prefix: ap is near the value", "birthdate=ap2000-02-29", "leap year"},
		{"#prefix: ap is not far from it", "birthdate=ap1850", ""},
	})
	t.Run("eq and ne share out all that has a date (#prefix)", func(t *testing.T) {
		s := s.in(t)
		for _, at := range []string{"2013-01-14T10:00:00.250Z", "2013-05-05", "1999"} {
			all := map[string]bool{}
			for _, prefix := range []string{"eq", "ne"} {
				for _, id := range s.get("/Observation?_count=200&date=" + prefix + at).want(200).matches() {
					if all[id] {
						t.Errorf("%s is both eq and ne %s", id, at)
					}
					all[id] = true
				}
			}
			if len(all) != 14 {
				t.Errorf("eq and ne of %s find %d, want every resource with a date, 14", at, len(all))
			}
		}
	})
}
