package web

import (
	"net/http"
	"testing"
)

func TestWantsGzip(t *testing.T) {
	for header, want := range map[string]bool{"": false, "gzip": true, "gzip, deflate, br": true, "br": false, "gzip;q=0": false, "gzip;q=0.5": true, "*": true, "*;q=0": false,
		"GZIP": true, "x-gzip": true, "gzip;q=0, *": false, "*;q=0, gzip": true} {
		r := &http.Request{Header: http.Header{}}
		if header != "" {
			r.Header.Set("Accept-Encoding", header)
		}
		if got := WantsGzip(r); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
