package matching

import (
	"strings"
	"time"
)

// InstantFormat is the format of timestamps.
const InstantFormat = "2006-01-02T15:04:05.000000Z07:00"

// FormatInstant returns the text of an instant in messages.
func FormatInstant(t time.Time) string { return t.UTC().Format(InstantFormat) }

// ParseInstant reads a dateTime of FHIR; a date is its first instant in UTC.
func ParseInstant(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	// A + in a query string is a blank.
	return time.Parse(time.RFC3339Nano, strings.Replace(text, " ", "+", 1))
}
