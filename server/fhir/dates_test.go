package fhir

import (
	"testing"
	"time"
)

func TestParseDate(t *testing.T) {
	tests := []struct {
		name, text string
		wantLow    string
		wantWidth  time.Duration
	}{
		{"a year", "2013", "2013-01-01T00:00:00Z", 365 * 24 * time.Hour},
		{"a leap year", "2012", "2012-01-01T00:00:00Z", 366 * 24 * time.Hour},
		{"a month", "2013-02", "2013-02-01T00:00:00Z", 28 * 24 * time.Hour},
		{"the last month of a year", "2013-12", "2013-12-01T00:00:00Z", 31 * 24 * time.Hour},
		{"a day", "2012-02-29", "2012-02-29T00:00:00Z", 24 * time.Hour},
		{"a minute without zone is UTC", "2013-01-14T10:00", "2013-01-14T10:00:00Z", time.Minute},
		{"a minute with zone", "2013-01-14T10:00Z", "2013-01-14T10:00:00Z", time.Minute},
		{"a second east of UTC", "2013-01-14T00:30:00+05:30", "2013-01-13T19:00:00Z", time.Second},
		{"a second west of UTC", "2013-12-31T23:00:00-08:00", "2014-01-01T07:00:00Z", time.Second},
		{"milliseconds", "2013-01-14T10:00:00.123Z", "2013-01-14T10:00:00.123Z", time.Millisecond},
		{"one digit of a fraction", "2013-01-14T10:00:00.5Z", "2013-01-14T10:00:00.5Z", 100 * time.Millisecond},
		{"digits below a microsecond are cut", "2013-01-14T10:00:00.123456789Z", "2013-01-14T10:00:00.123456Z", time.Microsecond},
		{"a leap second comes after second 59", "2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z", time.Second},
		{"a leap second with a fraction, elsewhere", "2017-01-01T08:59:60.5+09:00", "2017-01-01T00:00:00.5Z", 100 * time.Millisecond},
		{"before 1970", "1880-06-01", "1880-06-01T00:00:00Z", 24 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			low, high, err := ParseDate(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := time.UnixMicro(low).UTC().Format(time.RFC3339Nano); got != tt.wantLow {
				t.Errorf("low is %s, want %s", got, tt.wantLow)
			}
			if got := time.Duration(high-low) * time.Microsecond; got != tt.wantWidth {
				t.Errorf("width is %s, want %s", got, tt.wantWidth)
			}
		})
	}
}

func TestParseDateRefuses(t *testing.T) {
	for _, text := range []string{
		"", "2", "20133", "2013-", "2013-1", "2013-13", "2013-00", "2013-02-30", "2013-02-00", "2013-02-1", "2013-02-01T", "2013-02-01T10",
		"2013-02-01T24:00", "2013-02-01T10:60", "2013-02-01T10:00:61Z", "2013-02-01T10:00:00.Z", "2013-02-01T10:00:00+5", "2013-02-01T10:00:00+15:00",
		"2013-02-01T10:00:00ZZ", "2013-02-01 10:00:00Z", "0000", "20a3", "２０１３", "2013-02-01T10:00:00+05:60",
	} {
		if low, high, err := ParseDate(text); err == nil {
			t.Errorf("%q is accepted as [%d, %d)", text, low, high)
		}
	}
}

// FuzzParseDate compares with the standard library where both read the text.
func FuzzParseDate(f *testing.F) {
	for _, s := range []string{"2013", "2013-02", "2013-02-28", "2013-02-28T10:00:00+05:30", "2013-02-28T10:00:00.123Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		low, high, err := ParseDate(text)
		if err != nil {
			return
		}
		if low >= high {
			t.Fatalf("%q is the empty range [%d, %d)", text, low, high)
		}
		if want, err := time.Parse("2006-01-02T15:04:05Z07:00", text); err == nil && want.UnixMicro() != low {
			t.Fatalf("%q begins at %d, want %d", text, low, want.UnixMicro())
		}
	})
}
