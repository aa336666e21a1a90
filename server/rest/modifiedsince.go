package rest

import (
	"net/http"
	"time"
)

// modifiedSince reads If-Modified-Since; a date that cannot be read is no
// condition. Spec: RFC 9110 §13.1.3.
func modifiedSince(r *http.Request) time.Time {
	if v := r.Header["If-Modified-Since"]; len(v) > 0 {
		if t, err := http.ParseTime(v[0]); err == nil {
			return t
		}
	}
	return time.Time{}
}
