package ratelimit

import (
	"net/http"
	"strconv"
)

// write writes the headers of a limited answer.
func (v verdict) write(h http.Header) {
	h["X-Ratelimit-Limit"] = []string{strconv.Itoa(v.limit)}
	h["X-Ratelimit-Remaining"] = []string{strconv.Itoa(v.remaining)}
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(v.reset, 10)}
	if !v.allowed {
		h["Retry-After"] = []string{strconv.FormatInt(v.wait, 10)}
	}
}
