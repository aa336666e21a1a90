package store

import (
	"encoding/binary"
	"math"
	"time"
)

// array is a PostgreSQL array parameter in binary form, built value by value
// without an allocation for each: the write path sends every column of a group
// of rows as one.
// Format: array_recv in PostgreSQL's src/backend/utils/adt/arrayfuncs.c.
type array struct {
	oid uint32 // of the element type
	n   int
	buf []byte // header and elements
}

// OIDs of element types, from pg_type.
const (
	oidBool        = 16
	oidBytea       = 17
	oidInt8        = 20
	oidInt4        = 23
	oidText        = 25
	oidTimestamptz = 1184
	oidNumeric     = 1700
)

const arrayHeader = 20

func (a *array) reset() {
	a.n = 0
	if a.buf == nil {
		a.buf = make([]byte, arrayHeader, 256)
	}
	a.buf = a.buf[:arrayHeader]
}

// param returns the finished parameter, valid until the next reset.
func (a *array) param() []byte {
	if a.n == 0 {
		return arrayHead(a.buf, a.oid, 0)
	}
	arrayHead(a.buf, a.oid, a.n)
	return a.buf
}

// arrayHead writes the header of an array of n elements to dst and returns it;
// an empty array is a shorter header.
func arrayHead(dst []byte, oid uint32, n int) []byte {
	binary.BigEndian.PutUint32(dst[8:], oid)
	if n == 0 {
		binary.BigEndian.PutUint32(dst[0:], 0) // dimensions
		binary.BigEndian.PutUint32(dst[4:], 0)
		return dst[:12]
	}
	binary.BigEndian.PutUint32(dst[0:], 1) // dimensions
	binary.BigEndian.PutUint32(dst[4:], 1) // may contain nulls
	binary.BigEndian.PutUint32(dst[12:], uint32(n))
	binary.BigEndian.PutUint32(dst[16:], 1) // lower bound
	return dst[:arrayHeader]
}

func (a *array) int64(v int64) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, uint64(v))
}

func (a *array) int32(v int32) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 4)
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(v))
}

// epoch is where PostgreSQL's time begins: 2000, in microseconds since 1970.
const epoch = 946684800 * 1e6

// time appends a timestamptz: microseconds since 2000.
func (a *array) time(t time.Time) { a.int64(t.UnixMicro() - epoch) }

// parseTimestamp reads a timestamptz in binary form.
func parseTimestamp(b []byte) time.Time {
	return time.UnixMicro(int64(binary.BigEndian.Uint64(b)) + epoch).UTC()
}

func (a *array) text(s string) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, uint32(len(s)))
	a.buf = append(a.buf, s...)
}

func (a *array) char(c byte) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 1)
	a.buf = append(a.buf, c)
}

func (a *array) bool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	a.char(b)
}

// body appends a bytea: JSON in the form of the column body.
func (a *array) body(json []byte) {
	a.n++
	at := len(a.buf)
	a.buf = append(a.buf, 0, 0, 0, 0)
	a.buf = appendBody(a.buf, json)
	binary.BigEndian.PutUint32(a.buf[at:], uint32(len(a.buf)-at-4))
}

func (a *array) null() {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, math.MaxUint32)
}

// numeric appends a decimal as JSON writes it. Infinity stands for a magnitude
// over the range of numeric, and digits beyond the thousandth are dropped: both
// are far outside of what anyone measures, and a search still finds them on the
// right side of any bound.
func (a *array) numeric(decimal string) {
	a.n++
	at := len(a.buf)
	a.buf = append(a.buf, 0, 0, 0, 0)
	a.buf = appendNumeric(a.buf, decimal)
	binary.BigEndian.PutUint32(a.buf[at:], uint32(len(a.buf)-at-4))
}

// infinite appends minus infinity for a negative sign, else plus infinity.
func (a *array) infinite(sign int) {
	a.n++
	a.buf = binary.BigEndian.AppendUint32(a.buf, 8)
	a.buf = appendInfinity(a.buf, sign < 0)
}

func appendInfinity(dst []byte, negative bool) []byte {
	sign := uint16(0xD000)
	if negative {
		sign = 0xF000
	}
	return appendUint16s(dst, 0, 0, sign, 0)
}

// appendNumeric appends numeric's binary form: digits in base 10,000, the weight
// of the first one, sign, and the number of decimals.
// Format: numeric_recv in PostgreSQL's src/backend/utils/adt/numeric.c.
func appendNumeric(dst []byte, decimal string) []byte {
	const maxDigits, maxPoint, minPoint = 1000, 130000, -16000
	// The value is 0.d1d2d3… × 10^point.
	var buf [64]byte
	digits := buf[:0]
	negative, point, seenPoint, i := false, 0, false, 0
	if i < len(decimal) && (decimal[i] == '-' || decimal[i] == '+') {
		negative = decimal[i] == '-'
		i++
	}
	for ; i < len(decimal); i++ {
		c := decimal[i]
		if c == '.' {
			seenPoint = true
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		if c == '0' && len(digits) == 0 {
			if seenPoint {
				point--
			}
			continue
		}
		if len(digits) < maxDigits {
			digits = append(digits, c-'0')
		}
		if !seenPoint {
			point++
		}
	}
	if i < len(decimal) { // e or E
		point += exponent(decimal[i+1:])
	}
	for len(digits) > 0 && digits[len(digits)-1] == 0 {
		digits = digits[:len(digits)-1]
	}
	switch {
	case len(digits) == 0 || point < minPoint:
		return appendUint16s(dst, 0, 0, 0, 0)
	case point > maxPoint:
		return appendInfinity(dst, negative)
	}
	// Groups of four begin at multiples of four from the decimal point.
	lead := mod4(point) // digits in the first group, 0 means 4
	if lead == 0 {
		lead = 4
	}
	weight := (point-lead)/4 + 0
	groups := 1
	if len(digits) > lead {
		groups += (len(digits) - lead + 3) / 4
	}
	sign := uint16(0)
	if negative {
		sign = 0x4000
	}
	dst = appendUint16s(dst, uint16(groups), uint16(int16(weight)), sign, uint16(max(0, len(digits)-point)))
	at := lead - 4
	for range groups {
		v := uint16(0)
		for j := at; j < at+4; j++ {
			v *= 10
			if j >= 0 && j < len(digits) {
				v += uint16(digits[j])
			}
		}
		dst = binary.BigEndian.AppendUint16(dst, v)
		at += 4
	}
	return dst
}

func mod4(n int) int { return ((n % 4) + 4) % 4 }

// exponent reads a decimal exponent, limited to what keeps sums small.
func exponent(text string) int {
	negative, n := false, 0
	for i, c := range []byte(text) {
		switch {
		case i == 0 && c == '-':
			negative = true
		case c >= '0' && c <= '9':
			n = min(n*10+int(c-'0'), 1_000_000_000)
		}
	}
	if negative {
		return -n
	}
	return n
}

func appendUint16s(dst []byte, vs ...uint16) []byte {
	for _, v := range vs {
		dst = binary.BigEndian.AppendUint16(dst, v)
	}
	return dst
}
