package conformance

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// Authorization, Scopes: a hidden resource is absent, and takes as long: requests for
// hidden and absent ids alternate, and their medians differ by no more than the medians of
// two absent ids. Noise passes with time: one round of several must succeed.
func TestTimingOfHiddenAndAbsent(t *testing.T) {
	h := guardedHandlers(t)[true]
	all := patientApp("a", "patient/*.cruds").token()
	dated := patientApp("a", "patient/*.cruds?_lastUpdated=gt2000").token()
	for _, tt := range []struct{ name, token, method, path string }{
		{"read", all, "GET", "/fhir/Observation/%s"},
		{"read under a condition on more than terms", dated, "GET", "/fhir/Observation/%s"},
		{"vread", all, "GET", "/fhir/Observation/%s/_history/1"},
		{"history", all, "GET", "/fhir/Observation/%s/_history"},
		{"search", all, "GET", "/fhir/Observation?_id=%s"},
		{"search by reference", all, "GET", "/fhir/Observation?derived-from=Observation/%s"},
		{"delete", all, "DELETE", "/fhir/Observation/%s"},
	} {
		ask := func(id string) time.Duration {
			path := fmt.Sprintf(tt.path, id)
			at, err := url.ParseRequestURI(path)
			if err != nil {
				t.Fatal(err)
			}
			w := &response{header: make(http.Header)}
			r := &http.Request{Method: tt.method, URL: at, RequestURI: path, Host: "127.0.0.1", RemoteAddr: "127.0.0.1:1", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
				Header: http.Header{"Authorization": {tt.token}}, Body: http.NoBody}
			start := time.Now()
			h.ServeHTTP(w, r)
			took := time.Since(start)
			if strings.Contains(w.body.String(), "secret-b") {
				t.Fatalf("%s tells: %s", path, w.body.String())
			}
			return took
		}
		var seen []string
		holds := false
		for round := 0; round < 6 && !holds; round++ {
			hidden, absent, other := medians(150, func() time.Duration { return ask("obs-b") }, func() time.Duration { return ask("obs-x") }, func() time.Duration { return ask("obs-y") })
			noise := (absent - other).Abs()
			holds = (hidden - absent).Abs() <= 2*noise+absent/7+unseen
			seen = append(seen, fmt.Sprintf("hidden %s, absent %s and %s", hidden, absent, other))
		}
		if !holds {
			t.Errorf("%s: %s", tt.name, strings.Join(seen, "; "))
		}
		t.Logf("%s: %s", tt.name, seen[len(seen)-1])
	}
}

// unseen is a difference that the way of a request over a network hides: its own time
// varies by more.
const unseen = 50 * time.Microsecond

// medians calls three functions in turn, n times, and returns the median of each.
func medians(n int, calls ...func() time.Duration) (a, b, c time.Duration) {
	took := make([][]time.Duration, len(calls))
	for i := range n {
		for j := range calls {
			k := (i + j) % len(calls) // nobody is always the first
			took[k] = append(took[k], calls[k]())
		}
	}
	for _, list := range took {
		slices.Sort(list)
	}
	return took[0][n/2], took[1][n/2], took[2][n/2]
}
