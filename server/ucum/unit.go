package ucum

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Unit is a parsed unit. It is immutable.
type Unit struct {
	// factor is how many base units one of this unit has; offset is added after
	// the factor (temperatures), nil for nearly all.
	factor, offset *big.Rat
	dimension      string // canonical product of base units: "g.m-3"
	powers         []power
}

type power struct {
	base string
	n    int
}

// Limits of the parser.
const (
	maxCode     = 200 // bytes
	maxExponent = 60
	maxDepth    = 20
)

// cache keeps parsed codes. Real data use a few hundred; it stops growing at
// maxCached.
var cache = struct {
	sync.RWMutex
	units map[string]Unit
}{units: map[string]Unit{}}

const maxCached = 2000

// Parse reads a unit: "mg/dL", "10*3/uL", "mm[Hg]", "1", "{score}". The error names the
// unknown part.
func Parse(code string) (Unit, error) {
	cache.RLock()
	u, ok := cache.units[code]
	cache.RUnlock()
	if ok {
		return u, nil
	}
	if len(code) > maxCode {
		return Unit{}, fmt.Errorf("unit is longer than %d characters", maxCode)
	}
	p := parser{code: code}
	u, err := p.parse()
	if err != nil {
		return Unit{}, err
	}
	cache.Lock()
	if len(cache.units) < maxCached {
		cache.units[strings.Clone(code)] = u
	}
	cache.Unlock()
	return u, nil
}

// Comparable reports whether both units measure the same dimension.
func (u Unit) Comparable(v Unit) bool { return u.dimension == v.dimension }

// Dimension is the unit's product of base units in canonical order, "1" for a
// plain number: the same text for units that convert to each other.
func (u Unit) Dimension() string {
	if u.dimension == "" {
		return "1"
	}
	return u.dimension
}

// Step is the size of one of the unit in base units, without the offset of a temperature.
func (u Unit) Step() *big.Rat { return new(big.Rat).Set(u.factor) }

// Base returns value, measured in u, in base units (Dimension).
func (u Unit) Base(value *big.Rat) *big.Rat {
	r := new(big.Rat).Mul(value, u.factor)
	if u.offset != nil {
		r.Add(r, u.offset)
	}
	return r
}

// Convert returns value, measured in u, measured in to. It fails where the
// dimensions differ.
func (u Unit) Convert(value *big.Rat, to Unit) (*big.Rat, error) {
	if !u.Comparable(to) {
		return nil, fmt.Errorf("units measure different things: %s and %s", u.Dimension(), to.Dimension())
	}
	r := u.Base(value)
	if to.offset != nil {
		r.Sub(r, to.offset)
	}
	return r.Quo(r, to.factor), nil
}

// one is the unit of plain numbers.
func one() Unit { return Unit{factor: big.NewRat(1, 1)} }

func combine(u, v Unit, sign int) (Unit, error) {
	if u.offset != nil || v.offset != nil {
		if u.offset != nil && v.offset != nil || len(u.powers)*len(v.powers) > 0 || sign < 0 && v.offset != nil {
			return Unit{}, fmt.Errorf("a temperature scale with an offset cannot be part of a product")
		}
	}
	w := Unit{factor: new(big.Rat), offset: u.offset}
	if v.offset != nil {
		w.offset = v.offset
	}
	if sign > 0 {
		w.factor.Mul(u.factor, v.factor)
	} else {
		w.factor.Quo(u.factor, v.factor)
	}
	w.powers = slices.Clone(u.powers)
	for _, p := range v.powers {
		i := slices.IndexFunc(w.powers, func(q power) bool { return q.base == p.base })
		if i < 0 {
			w.powers = append(w.powers, power{p.base, sign * p.n})
			continue
		}
		w.powers[i].n += sign * p.n
	}
	w.powers = slices.DeleteFunc(w.powers, func(p power) bool { return p.n == 0 })
	for _, p := range w.powers {
		if p.n > maxExponent || p.n < -maxExponent {
			return Unit{}, fmt.Errorf("exponent is out of range")
		}
	}
	if n := w.factor.Num().BitLen() + w.factor.Denom().BitLen(); n > 4000 {
		return Unit{}, fmt.Errorf("factor is out of range")
	}
	slices.SortFunc(w.powers, func(a, b power) int { return strings.Compare(a.base, b.base) })
	w.dimension = dimensionOf(w.powers)
	return w, nil
}

func dimensionOf(powers []power) string {
	var b strings.Builder
	for i, p := range powers {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(p.base)
		if p.n != 1 {
			b.WriteString(strconv.Itoa(p.n))
		}
	}
	return b.String()
}

func raise(u Unit, n int) (Unit, error) {
	if n > maxExponent || n < -maxExponent {
		return Unit{}, fmt.Errorf("exponent %d is out of range", n)
	}
	out, sign := one(), 1
	if n < 0 {
		sign, n = -1, -n
	}
	for range n {
		var err error
		if out, err = combine(out, u, sign); err != nil {
			return Unit{}, err
		}
	}
	return out, nil
}

// parser reads the grammar of UCUM §2.2.
type parser struct {
	code  string
	pos   int
	depth int
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("unit %q: %s", p.code, fmt.Sprintf(format, args...))
}

func (p *parser) parse() (Unit, error) {
	if p.code == "" {
		return Unit{}, fmt.Errorf("unit is empty")
	}
	u, err := p.term()
	if err != nil {
		return Unit{}, err
	}
	if p.pos != len(p.code) {
		return Unit{}, p.fail("unexpected %q", p.code[p.pos:])
	}
	return u, nil
}

func (p *parser) at() byte {
	if p.pos < len(p.code) {
		return p.code[p.pos]
	}
	return 0
}

func (p *parser) term() (Unit, error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		return Unit{}, p.fail("nested too deep")
	}
	u, sign := one(), 1
	if p.at() == '/' {
		p.pos++
		sign = -1
	}
	for {
		c, err := p.component()
		if err != nil {
			return Unit{}, err
		}
		if u, err = combine(u, c, sign); err != nil {
			return Unit{}, p.fail("%v", err)
		}
		switch p.at() {
		case '.':
			sign = 1
		case '/':
			sign = -1
		default:
			return u, nil
		}
		p.pos++
	}
}

func (p *parser) component() (Unit, error) {
	switch c := p.at(); {
	case c == '(':
		p.pos++
		u, err := p.term()
		if err != nil {
			return Unit{}, err
		}
		if p.at() != ')' {
			return Unit{}, p.fail("')' is missing")
		}
		p.pos++
		return u, nil
	case c == '{':
		return one(), p.annotation()
	case c == 0:
		return Unit{}, p.fail("a unit is missing at the end")
	}
	if n, ok := p.number(); ok {
		if n == 0 {
			return Unit{}, p.fail("a factor of 0")
		}
		u := Unit{factor: big.NewRat(n, 1)}
		return u, p.annotation()
	}
	u, err := p.simple()
	if err != nil {
		return Unit{}, err
	}
	return u, p.annotation()
}

// number reads digits that are not the start of 10* or 10^.
func (p *parser) number() (int64, bool) {
	end := p.pos
	for end < len(p.code) && p.code[end] >= '0' && p.code[end] <= '9' {
		end++
	}
	if end == p.pos || end < len(p.code) && (p.code[end] == '*' || p.code[end] == '^') {
		return 0, false
	}
	n, err := strconv.ParseInt(p.code[p.pos:end], 10, 64)
	if err != nil {
		return 0, false
	}
	p.pos = end
	return n, true
}

func (p *parser) annotation() error {
	if p.at() != '{' {
		return nil
	}
	end := strings.IndexByte(p.code[p.pos:], '}')
	if end < 0 {
		return p.fail("'}' is missing")
	}
	p.pos += end + 1
	return nil
}

// simple reads a unit atom with its prefix and exponent.
func (p *parser) simple() (Unit, error) {
	start := p.pos
	if strings.HasPrefix(p.code[p.pos:], "10*") || strings.HasPrefix(p.code[p.pos:], "10^") {
		p.pos += 3
	} else {
		bracket := 0
		for p.pos < len(p.code) {
			c := p.code[p.pos]
			if c == '[' {
				bracket++
			}
			if bracket == 0 && (strings.IndexByte("./(){}+-", c) >= 0 || c >= '0' && c <= '9') {
				break
			}
			if c == ']' {
				bracket--
			}
			p.pos++
		}
		// m[H2O] and B[10.nV] keep the part in brackets; m2 ends before the digit.
	}
	atom := p.code[start:p.pos]
	if atom == "" {
		return Unit{}, p.fail("unexpected %q", p.code[p.pos:])
	}
	u, ok := lookup(atom)
	if !ok {
		return Unit{}, p.fail("%q is not a unit this server knows", atom)
	}
	sign := 1
	if c := p.at(); c == '+' || c == '-' {
		if c == '-' {
			sign = -1
		}
		p.pos++
		if d := p.at(); d < '0' || d > '9' {
			return Unit{}, p.fail("an exponent is missing")
		}
	}
	if d := p.at(); d >= '0' && d <= '9' {
		end := p.pos
		for end < len(p.code) && p.code[end] >= '0' && p.code[end] <= '9' {
			end++
		}
		n, err := strconv.Atoi(p.code[p.pos:end])
		if err != nil {
			return Unit{}, p.fail("exponent is out of range")
		}
		p.pos = end
		if u, err = raise(u, sign*n); err != nil {
			return Unit{}, p.fail("%v", err)
		}
	}
	return u, nil
}
