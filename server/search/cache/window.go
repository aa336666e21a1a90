package cache

import (
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/search/match"
)

// A window is a comparison with an entry [low, high): it holds for all short entries with a low end in [sure, sureEnd),
// and for none with one outside of [from, to). Between, and for long entries, test decides. not negates the result.
type window struct {
	from, to      int64
	sure, sureEnd int64
	test          func(low, high int64) bool
	not           bool
}

const (
	lowest  = math.MinInt64
	highest = math.MaxInt64
)

// minus is a - b within the range of int64.
func minus(a, b int64) int64 {
	if b > 0 && a < lowest+b {
		return lowest
	}
	return a - b
}

// dateWindow is the window of a comparison of dates, where short entries are at most
// widest long.
// Spec: https://hl7.org/fhir/R4/search.html#prefix.
func dateWindow(m match.Dates, widest int64) window {
	w := window{from: lowest, to: highest, test: m.Includes}
	low, high := m.Low, m.High
	switch m.Op {
	case match.EQ:
		w.from, w.to, w.sure, w.sureEnd = low, high, low, minus(high, widest)
	case match.NE:
		eq := m
		eq.Op = match.EQ
		w = dateWindow(eq, widest)
		w.not = true
	case match.LT:
		w.to, w.sure, w.sureEnd = low, lowest, low
	case match.LE:
		w.to, w.sure, w.sureEnd = max(low, high), lowest, max(low, minus(high, widest))
	case match.GT:
		w.from, w.sure, w.sureEnd = minus(high, widest), high+1, highest
	case match.GE:
		w.from, w.sure, w.sureEnd = min(low, minus(high, widest)), low, highest
	case match.SA:
		w.from, w.sure, w.sureEnd = high, high, highest
	case match.EB:
		w.to, w.sure, w.sureEnd = low+1, lowest, minus(low, widest)
	case match.AP:
		w.from, w.to, w.sure, w.sureEnd = minus(low, widest), high, low+1, high
	}
	return w
}

// numberWindow is the window of a comparison of numbers.
// Spec: https://hl7.org/fhir/R4/search.html#number.
func numberWindow(m *match.Numbers) window {
	from, to, not := point{whole: lowest}, point{whole: highest}, false
	switch m.Op {
	case match.LT, match.EB:
		to = atLeast(m.Value)
	case match.LE:
		to = above(m.Value)
	case match.GT, match.SA:
		from = above(m.Value)
	case match.GE:
		from = atLeast(m.Value)
	case match.AP:
		from, to = atLeast(m.Low), above(m.High)
	default:
		from, to, not = atLeast(m.Low), atLeast(m.High), m.Op == match.NE
	}
	w := window{from: from.whole, to: to.whole, sure: from.whole, sureEnd: to.whole, not: not}
	if from.rest > 0 {
		w.sure++
	}
	if to.rest > 0 {
		w.to++
	}
	w.test = func(whole, rest int64) bool {
		at := point{whole, rest}
		return !at.before(from) && at.before(to)
	}
	return w
}

// every is the window of entries that are in each of several.
func every(ws []window) window {
	if len(ws) == 1 {
		return ws[0]
	}
	w := window{from: lowest, to: highest, sure: lowest, sureEnd: highest}
	for _, o := range ws {
		if o.not {
			w.sureEnd = lowest
			continue
		}
		w.from, w.to = max(w.from, o.from), min(w.to, o.to)
		w.sure, w.sureEnd = max(w.sure, o.sure), min(w.sureEnd, o.sureEnd)
	}
	w.test = func(low, high int64) bool {
		return !slices.ContainsFunc(ws, func(o window) bool { return !o.holds(low, high) })
	}
	return w
}

// holds judges one entry.
func (w *window) holds(low, high int64) bool { return w.test(low, high) != w.not }

// A point is an exact number in two halves: whole millionths, and the rest of a
// millionth in parts of 10^18. Numbers of 24 decimals have one, up to some 10^12.
type point struct{ whole, rest int64 }

func (p point) before(o point) bool {
	return p.whole < o.whole || p.whole == o.whole && p.rest < o.rest
}

// The decimals of a whole number, and of a rest.
const (
	wholeDecimals = 6
	restDecimals  = 18
)

var oneRest = new(big.Int).Exp(big.NewInt(10), big.NewInt(restDecimals), nil)

// maxWhole bounds the numbers of a column, so that every operand beyond them can be
// told from them.
const maxWhole = math.MaxInt64 / 2

// pointOf is the point of a number; false where it has none.
func pointOf(d *apd.Decimal) (point, bool) {
	q, rest := quotient(d)
	if q == nil || rest.Sign() != 0 {
		return point{}, false
	}
	p := halves(q)
	return p, p.whole >= -maxWhole && p.whole <= maxWhole
}

// parsePoint is the point of a decimal as PostgreSQL writes it; false where it has none.
func parsePoint(text string) (point, bool) {
	if p, ok := parsePlain(text); ok {
		return p, true
	}
	d, _, err := apd.NewFromString(text)
	if err != nil {
		return point{}, false
	}
	return pointOf(d)
}

// wholeDigits is how many digits before the point parsePlain reads: with wholeDecimals
// more they fit into an int64, below maxWhole.
const wholeDigits = 12

// parsePlain is parsePoint of digits alone, few before the decimal point and no more
// behind it than a point has.
func parsePlain(text string) (p point, ok bool) {
	digits, negative := strings.CutPrefix(text, "-")
	whole, decimals, _ := strings.Cut(digits, ".")
	if whole == "" || len(whole) > wholeDigits || len(decimals) > wholeDecimals+restDecimals {
		return point{}, false
	}
	read := func(n int64, digits string, width int) int64 {
		for i := range width {
			n *= 10
			if i < len(digits) {
				c := digits[i]
				ok = ok && c >= '0' && c <= '9'
				n += int64(c - '0')
			}
		}
		return n
	}
	ok = true
	p.whole = read(read(0, whole, len(whole)), decimals[:min(wholeDecimals, len(decimals))], wholeDecimals)
	p.rest = read(0, decimals[min(wholeDecimals, len(decimals)):], restDecimals)
	if negative { // the rest is never negative
		if p.whole = -p.whole; p.rest > 0 {
			p.whole, p.rest = p.whole-1, oneRest.Int64()-p.rest
		}
	}
	return p, ok
}

// halves makes a point of a number of 24 decimals.
func halves(q *big.Int) point {
	rest := new(big.Int)
	q.DivMod(q, oneRest, rest) // Euclidean: the rest is never negative
	switch {
	case q.IsInt64():
		return point{q.Int64(), rest.Int64()}
	case q.Sign() < 0:
		return point{whole: lowest}
	}
	return point{whole: highest}
}

// atLeast is the least point that is not below d, above the least that is above it.
func atLeast(d *apd.Decimal) point { return bound(d, false) }
func above(d *apd.Decimal) point   { return bound(d, true) }

func bound(d *apd.Decimal, strict bool) point {
	q, rest := quotient(d)
	switch {
	case q == nil && d.Negative:
		return point{whole: lowest}
	case q == nil:
		return point{whole: highest}
	case rest.Sign() != 0 || strict:
		q.Add(q, big.NewInt(1))
	}
	return halves(q)
}

// quotient returns the largest number of 24 decimals not above d, as a whole number of these, and the rest; nil if d is
// not finite or beyond every number of a column.
func quotient(d *apd.Decimal) (q, rest *big.Int) {
	if d.Form != apd.Finite {
		return nil, nil
	}
	q, rest = new(big.Int).SetBytes(d.Coeff.Bytes()), new(big.Int)
	if d.IsZero() {
		return q, rest
	}
	exp := int64(d.Exponent) + wholeDecimals + restDecimals
	if d.NumDigits()+exp > 40 {
		return nil, nil
	}
	if d.Negative {
		q.Neg(q)
	}
	switch {
	case exp >= 0:
		q.Mul(q, new(big.Int).Exp(big.NewInt(10), big.NewInt(exp), nil))
	case exp < -5000: // far below every step: 0, with something left
		if d.Negative {
			return big.NewInt(-1), big.NewInt(1)
		}
		return big.NewInt(0), big.NewInt(1)
	default:
		q.DivMod(q, new(big.Int).Exp(big.NewInt(10), big.NewInt(-exp), nil), rest)
	}
	return q, rest
}
