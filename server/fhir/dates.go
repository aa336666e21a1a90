package fhir

import (
	"fmt"
	"time"
)

// ParseDate reads a date, dateTime or instant at any precision: YYYY, YYYY-MM, YYYY-MM-DD,
// and with a time hh:mm, hh:mm:ss or a fraction of a second, followed by Z, +hh:mm, -hh:mm
// or nothing, which means UTC. It returns the half-open UTC range [low, high) of the
// instants that the text covers, in microseconds since 1970: a whole year for "2013", one
// millisecond for a time with three digits of a fraction. Digits below a microsecond are
// cut off. Second 60, a leap second, comes after second 59 and is the first of the next
// minute, as in POSIX time. The error names the expected form.
//
// Spec: https://hl7.org/fhir/R4/datatypes.html#dateTime,
// https://hl7.org/fhir/R4/search.html#date.
func ParseDate(text string) (low, high int64, err error) {
	p := dateText{s: text}
	year := p.digits(4)
	if p.end() {
		return p.span(year, 1, 1, 1, 0, 0)
	}
	p.byte('-')
	month := p.digits(2)
	if month < 1 || month > 12 {
		p.bad = true
	}
	if p.end() {
		return p.span(year, month, 1, 0, 1, 0)
	}
	p.byte('-')
	day := p.digits(2)
	if day < 1 || !p.bad && day > DaysIn(year, month) {
		p.bad = true
	}
	if p.end() {
		return p.span(year, month, day, 0, 0, 1)
	}
	p.byte('T')
	hour := p.digits(2)
	p.byte(':')
	minute := p.digits(2)
	if hour > 23 || minute > 59 {
		p.bad = true
	}
	width := int64(60 * 1e6)
	var micros int64
	if p.next(':') {
		second := p.digits(2)
		if second > 60 {
			p.bad = true
		}
		micros, width = int64(second)*1e6, 1e6
		if p.next('.') {
			start := p.i
			for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
				if width > 1 {
					width /= 10
					micros += int64(p.s[p.i]-'0') * width
				}
				p.i++
			}
			if p.i == start {
				p.bad = true
			}
		}
	}
	offset := 0 // minutes east of UTC
	switch {
	case p.end(), p.next('Z'):
	case p.i < len(p.s) && (p.s[p.i] == '+' || p.s[p.i] == '-'):
		sign := 1
		if p.s[p.i] == '-' {
			sign = -1
		}
		p.i++
		h := p.digits(2)
		p.byte(':')
		m := p.digits(2)
		if !ValidOffset(h, m) {
			p.bad = true
		}
		offset = sign * (h*60 + m)
	default:
		p.bad = true
	}
	if p.bad || !p.end() {
		return 0, 0, p.error()
	}
	t := time.Date(year, time.Month(month), day, hour, minute-offset, 0, 0, time.UTC)
	low = t.UnixMicro() + micros
	return low, low + width, nil
}

// dateText is a date being read; bad sticks.
type dateText struct {
	s   string
	i   int
	bad bool
}

func (p *dateText) digits(n int) int {
	if len(p.s)-p.i < n {
		p.bad, p.i = true, len(p.s)
		return 0
	}
	v := 0
	for range n {
		c := p.s[p.i]
		if c < '0' || c > '9' {
			p.bad = true
		}
		v = v*10 + int(c-'0')
		p.i++
	}
	return v
}

func (p *dateText) next(c byte) bool {
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *dateText) byte(c byte) {
	if !p.next(c) {
		p.bad = true
	}
}

func (p *dateText) end() bool { return p.bad || p.i == len(p.s) }

func (p *dateText) span(year, month, day, years, months, days int) (low, high int64, err error) {
	if p.bad || year == 0 {
		return 0, 0, p.error()
	}
	from := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	return from.UnixMicro(), from.AddDate(years, months, days).UnixMicro(), nil
}

func (p *dateText) error() error {
	return fmt.Errorf("%q is not a date: expected YYYY, YYYY-MM, YYYY-MM-DD or YYYY-MM-DDThh:mm:ss with a time zone", clip(p.s))
}
