package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/search/match"
)

// numberCells are numbers in ascending order, each with the surrogate of the
// resource that it is of: 24 bytes for each, exact.
type numberCells struct {
	scale int // digits behind the point
	cells []numberCell
}

// numberCell is a number times ten to the power of the scale.
type numberCell struct {
	value int128
	rid   int64
}

// maxDigits is the number of decimal digits that every int128 has room for.
const maxDigits = 37

// int128 is a whole number in two's complement.
type int128 struct {
	high int64
	low  uint64
}

var (
	minInt128 = int128{math.MinInt64, 0}
	maxInt128 = int128{math.MaxInt64, math.MaxUint64}
)

func (a int128) compare(b int128) int {
	if c := cmp.Compare(a.high, b.high); c != 0 {
		return c
	}
	return cmp.Compare(a.low, b.low)
}

func (a int128) minus(b int128) int128 {
	low, borrow := bits.Sub64(a.low, b.low, 0)
	high, _ := bits.Sub64(uint64(a.high), uint64(b.high), borrow)
	return int128{int64(high), low}
}

// appendDigit is ten times a and a digit; a is positive.
func (a int128) appendDigit(digit byte) int128 {
	high, low := bits.Mul64(a.low, 10)
	low, carry := bits.Add64(low, uint64(digit), 0)
	return int128{int64(high + uint64(a.high)*10 + carry), low}
}

// newNumberCells reads numbers with commas between, as PostgreSQL writes them; ok is
// false where one is not finite or has more digits than fit.
func newNumberCells(text string, rids []int64) (d *numberCells, ok bool) {
	d = &numberCells{cells: make([]numberCell, len(rids))}
	for rest, more := text, true; more; {
		var number string
		number, rest, more = strings.Cut(rest, ",")
		if at := strings.IndexByte(number, '.'); at >= 0 {
			d.scale = max(d.scale, len(number)-at-1)
		}
	}
	for i, rid := range rids {
		var number string
		number, text, _ = strings.Cut(text, ",")
		value, exact, ok := d.floorText(number)
		if !ok || !exact {
			return nil, false
		}
		d.cells[i] = numberCell{value, rid}
	}
	byValue := func(a, b numberCell) int { return a.value.compare(b.value) }
	if !slices.IsSortedFunc(d.cells, byValue) {
		slices.SortFunc(d.cells, byValue)
	}
	return d, true
}

// floorText is floor for the text of a number without an exponent; ok is false where
// it is no such text or does not fit.
func (d *numberCells) floorText(s string) (n int128, exact, ok bool) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	if whole == "" || len(whole)+d.scale > maxDigits {
		return n, false, false
	}
	exact = true
	for i := range len(whole) + max(d.scale, len(fraction)) {
		digit := byte('0')
		if i < len(whole) {
			digit = whole[i]
		} else if i-len(whole) < len(fraction) {
			digit = fraction[i-len(whole)]
		}
		switch {
		case digit < '0' || digit > '9':
			return n, false, false
		case i < len(whole)+d.scale:
			n = n.appendDigit(digit - '0')
		case digit != '0':
			exact = false
		}
	}
	if negative {
		n = int128{}.minus(n)
		if !exact {
			n = n.minus(int128{low: 1})
		}
	}
	return n, exact, true
}

// floor is the largest whole number that is not above v at the scale, and whether
// that is v itself; for what lies beyond every cell it is a number beyond them.
func (d *numberCells) floor(v *apd.Decimal) (n int128, exact bool) {
	digits := v.NumDigits() + int64(v.Exponent) // before the point
	switch {
	case v.IsZero():
		return int128{}, true
	case v.Form == apd.Finite && digits+int64(d.scale) <= 0: // between two numbers
		n, exact = int128{}, false
		if v.Negative {
			n = n.minus(int128{low: 1})
		}
		return n, exact
	case v.Form == apd.Finite && digits+int64(d.scale) <= maxDigits:
		if n, exact, ok := d.floorText(v.Text('f')); ok {
			return n, exact
		}
	}
	if v.Negative {
		return minInt128, false
	}
	return maxInt128, false
}

// at is the index of the first cell that is not below v, or, after, above v.
func (d *numberCells) at(v *apd.Decimal, after bool) int {
	n, exact := d.floor(v)
	if exact && !after {
		n = n.minus(int128{low: 1})
	}
	i, _ := slices.BinarySearchFunc(d.cells, n, func(c numberCell, n int128) int {
		if c.value.compare(n) <= 0 {
			return -1
		}
		return 1
	})
	return i
}

// match adds the surrogates of the numbers for which the comparison holds: they lie
// together, or, with ne, around those that do not. nil has no numbers.
func (d *numberCells) match(o *outermost, m *match.Numbers) {
	if d == nil {
		return
	}
	from, to := 0, len(d.cells)
	switch m.Op {
	case match.EQ, match.NE:
		from, to = d.at(m.Low, false), d.at(m.High, false)
	case match.AP:
		from, to = d.at(m.Low, false), d.at(m.High, true)
	case match.LT, match.EB:
		to = d.at(m.Value, false)
	case match.LE:
		to = d.at(m.Value, true)
	case match.GT, match.SA:
		from = d.at(m.Value, true)
	case match.GE:
		from = d.at(m.Value, false)
	}
	if m.Op != match.NE {
		o.addAll(d.cells[min(from, to):to])
		return
	}
	o.addAll(d.cells[:from])
	o.addAll(d.cells[max(from, to):])
}

func (o *outermost) addAll(cells []numberCell) {
	for i := range cells {
		o.add(cells[i].rid)
	}
}
