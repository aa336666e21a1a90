package remembered

import (
	"math"
	"math/big"
	"slices"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/search/match"
)

// A window is what a comparison asks of an entry [low, high): it holds for all short
// entries with a low end in [sure, sureEnd), and for none with one outside of [from, to).
// Between, and of long entries, test decides. not turns the whole into its opposite.
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

// numberWindow is the window of a comparison of points, kept as whole numbers at a
// scale.
func numberWindow(m *match.Numbers, scale int32) window {
	w := window{from: lowest, to: highest}
	switch m.Op {
	case match.LT, match.EB:
		w.to = atLeast(m.Value, scale)
	case match.LE:
		w.to = above(m.Value, scale)
	case match.GT, match.SA:
		w.from = above(m.Value, scale)
	case match.GE:
		w.from = atLeast(m.Value, scale)
	case match.AP:
		w.from, w.to = atLeast(m.Low, scale), above(m.High, scale)
	default:
		w.from, w.to = atLeast(m.Low, scale), atLeast(m.High, scale)
		w.not = m.Op == match.NE
	}
	w.sure, w.sureEnd = w.from, w.to
	from, to := w.from, w.to
	w.test = func(low, _ int64) bool { return low >= from && low < to }
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

// maxScaled bounds the numbers of a column, so that every operand beyond them can be
// told from them.
const maxScaled = math.MaxInt64 / 2

// scaled is a number times ten to the power of scale; false where that is no whole
// number, or too large.
func scaled(d *apd.Decimal, scale int32) (int64, bool) {
	q, rest := quotient(d, scale)
	if q == nil || rest.Sign() != 0 || !q.IsInt64() {
		return 0, false
	}
	n := q.Int64()
	return n, n >= -maxScaled && n <= maxScaled
}

// atLeast is the least whole number that is not below d at a scale, above the least
// that is above it.
func atLeast(d *apd.Decimal, scale int32) int64 { return bound(d, scale, false) }
func above(d *apd.Decimal, scale int32) int64   { return bound(d, scale, true) }

func bound(d *apd.Decimal, scale int32, strict bool) int64 {
	q, rest := quotient(d, scale)
	switch {
	case q == nil && d.Negative:
		return lowest
	case q == nil:
		return highest
	case rest.Sign() != 0 || strict:
		q.Add(q, big.NewInt(1))
	}
	switch {
	case q.IsInt64():
		return q.Int64()
	case q.Sign() < 0:
		return lowest
	}
	return highest
}

// quotient is the largest whole number that is not above d at a scale, and what is
// left; nil where d is not finite or beyond every number of a column.
func quotient(d *apd.Decimal, scale int32) (q, rest *big.Int) {
	if d.Form != apd.Finite {
		return nil, nil
	}
	q, rest = new(big.Int).SetBytes(d.Coeff.Bytes()), new(big.Int)
	if d.IsZero() {
		return q, rest
	}
	exp := int64(d.Exponent) + int64(scale)
	if d.NumDigits()+exp > 30 {
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
