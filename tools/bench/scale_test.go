package main

import (
	"slices"
	"testing"
	"time"
)

// A copy has the UUIDs of the corpus changed, the same one everywhere, and all else as it is.
func TestCopyBundle(t *testing.T) {
	const in = `{"id":"00000000-1111-2222-3333-4444000000ff","a-b":"Patient/00000000-1111-2222-3333-4444000000ff","date":"2020-01-01T00:00:00-05:00","x":"urn:uuid:ABCDEF00-1111-2222-3333-444400000000-"}`
	const want = `{"id":"00000000-1111-2222-3333-4444020100ff","a-b":"Patient/00000000-1111-2222-3333-4444020100ff","date":"2020-01-01T00:00:00-05:00","x":"urn:uuid:ABCDEF00-1111-2222-3333-444400000000-"}`
	if got := string(copyBundle([]byte(in), 0x0102)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := string(copyBundle([]byte(in), 0)); got != in {
		t.Errorf("copy 0 is %s", got)
	}
}

// A goal is missed by a measurement, by the goals of the size.
func TestScaleGoals(t *testing.T) {
	at := func(resources int, rate, ms float64) scaled {
		m := scaled{resources: resources, of: map[string]Result{}, started: 400 * time.Millisecond, beside: []Goal{{Workload: "read", Ratio: rate / 4000}}}
		figure := func(v float64) Figure { return Figure{Median: v, Min: v, Max: v} }
		for _, name := range []string{"read", "crud", "import", "live", "broad"} {
			m.of[name] = Result{Workload: name, Rate: figure(rate), Resources: figure(rate), Memory: map[string]int64{"server": 300e6},
				Categories: []Category{{Name: "token", Latency: Latency{P50: figure(ms / 10), P99: figure(ms), Max: figure(ms)}}, {Name: "string", Latency: Latency{P99: figure(ms / 4)}}, {Name: "create", Latency: Latency{Max: figure(1000)}}}}
		}
		m.of["first"] = Result{Workload: "first", Categories: []Category{{Name: "chained", Latency: Latency{Max: figure(2 * ms)}}, {Name: "_has", Latency: Latency{Max: figure(4 * ms)}}}}
		return m
	}
	for name, c := range map[string]struct {
		of   scaled
		want []string
	}{
		"small":                {at(200_000, 4000, 29), []string{"broad searches never asked before: the longest (_has)", "server memory", "start"}},
		"2 million":            {at(2_100_000, 3500, 61), []string{"broad searches, one client, 50 writes/s: p50 of the slowest kind", "  the longest", "broad searches never asked before: the longest (_has)", "start", "read"}},
		"20 million":           {at(20_100_000, 3300, 80), nil},
		"20 million, too slow": {at(20_100_000, 1400, 250), []string{"live mix at 20,100,000 resources", "  p99 of searches for one patient or a name (string)", "  p99 of broad searches (token)", "broad searches, one client, 50 writes/s: p50 of the slowest kind", "  the longest", "broad searches never asked before: the longest (_has)", "read"}},
	} {
		var missed []string
		for _, g := range c.of.goals() {
			if g.Missed != "" {
				missed = append(missed, g.Workload)
			}
		}
		if !slices.Equal(missed, c.want) {
			t.Errorf("%s: missed %q, want %q", name, missed, c.want)
		}
	}
}
