package webhook

import (
	"net/http"
	"strconv"
	"time"
)

// Policy is when a delivery that failed is tried again.
type Policy struct {
	MaxAttempts int             // in all
	Backoff     []time.Duration // before each further attempt; the last one repeats
}

// NextAttempt is the time before the next attempt, and false after the last one. attempts counts
// from 1, and last is the result of the latest attempt. The time is the backoff, or the
// receiver's Retry-After if that is longer.
func (p Policy) NextAttempt(attempts int, last Result) (time.Duration, bool) {
	if attempts >= p.MaxAttempts {
		return 0, false
	}
	if len(p.Backoff) == 0 {
		return last.RetryAfter, true
	}
	return max(p.Backoff[min(attempts, len(p.Backoff))-1], last.RetryAfter), true
}

// maxRetryAfter bounds the Retry-After of a receiver.
const maxRetryAfter = 24 * time.Hour

// parseRetryAfter reads the header Retry-After: seconds or a date. RFC 9110 §10.2.3.
func parseRetryAfter(text string, now time.Time) time.Duration {
	if text == "" {
		return 0
	}
	if n, err := strconv.Atoi(text); err == nil {
		return min(max(0, time.Duration(min(n, 1<<30))*time.Second), maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}
