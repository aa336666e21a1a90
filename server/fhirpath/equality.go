package fhirpath

import (
	"strings"
	"unicode/utf8"

	"kiln/server/fhir"
)

// equal compares two items by =. unknown means empty: dates of different
// precision, units that cannot be compared.
// Spec: https://hl7.org/fhirpath/N1/#equality.
func equal(a, b Value) tri {
	nodes := a.kind == NodeKind && b.kind == NodeKind
	if nodes && a.node.Same(b.node) {
		return yes
	}
	if nodes && !haveSystemValues(a.node, b.node) {
		return triOf(equalNodes(a.node, b.node))
	}
	if s, ok := a.stringText(); ok {
		if t, ok := b.stringText(); ok {
			return triOf(s == t)
		}
	}
	x, okx := a.system()
	y, oky := b.system()
	switch {
	case okx && oky:
		return equalSystem(x, y)
	case nodes:
		return triOf(equalNodes(a.node, b.node))
	}
	return no
}

// haveSystemValues reports whether two places are compared as values of System types: two
// primitives or two quantities.
func haveSystemValues(a, b fhir.Node) bool {
	if a.T.Kind.Primitive() && b.T.Kind.Primitive() {
		return true
	}
	return systemKind(a.T) == QuantityKind && systemKind(b.T) == QuantityKind
}

// equalSystem compares two values of System types by =.
func equalSystem(x, y Value) tri {
	switch {
	case x.numeric() && y.numeric():
		return triOf(compareNumbers(x, y) == 0)
	case x.kind == QuantityKind && (y.kind == QuantityKind || y.numeric()),
		y.kind == QuantityKind && x.numeric():
		order, known := compareQuantities(asQuantity(x), asQuantity(y))
		if known == incomparable {
			return no
		}
		if known == undecided {
			return unknown
		}
		return triOf(order == 0)
	case x.dated() && y.dated(), x.kind == TimeKind && y.kind == TimeKind:
		order, known := compareTemporal(x, y)
		if order != 0 {
			return no
		}
		if !known {
			return unknown
		}
		return yes
	case x.kind != y.kind:
		return no
	case x.kind == BooleanKind:
		return triOf(x.n == y.n)
	case x.kind == TypeInfoKind:
		return triOf(x.n == y.n && x.text == y.text)
	}
	return triOf(x.text == y.text)
}

func (v Value) numeric() bool { return v.kind == IntegerKind || v.kind == DecimalKind }
func (v Value) dated() bool   { return v.kind == DateKind || v.kind == DateTimeKind }

// equalNodes compares two places by type, value and everything below.
func equalNodes(a, b fhir.Node) bool {
	if a.Same(b) {
		return true
	}
	if a.T.Kind.Primitive() && b.T.Kind.Primitive() {
		if a.Text() != b.Text() {
			x, okx := (Value{node: a}).system()
			y, oky := (Value{node: b}).system()
			if !okx || !oky || x.kind == StringKind || equal(x, y) != yes {
				return false
			}
		}
		if a.Extra() == nil && b.Extra() == nil {
			return true
		}
		return equalChildren(a.AppendChildren(nil), b.AppendChildren(nil))
	}
	if a.T != b.T {
		return false
	}
	var left, right []fhir.Node
	for i := range a.T.Fields {
		f := &a.T.Fields[i]
		left, right = a.AppendField(left[:0], f), b.AppendField(right[:0], f)
		if !equalChildren(left, right) {
			return false
		}
	}
	return true
}

func equalChildren(left, right []fhir.Node) bool {
	if len(left) != len(right) {
		return false
	}
	for i := range left {
		if !equalNodes(left[i], right[i]) {
			return false
		}
	}
	return true
}

// equivalent compares two items by ~, which always has an answer.
// Spec: https://hl7.org/fhirpath/N1/#equivalence.
func (m *machine) equivalent(a, b Value) bool {
	if a.kind == NodeKind && b.kind == NodeKind && a.node.Same(b.node) {
		return true
	}
	x, okx := a.system()
	y, oky := b.system()
	if !okx || !oky {
		if a.kind == NodeKind && b.kind == NodeKind {
			return m.equivalentNodes(a.node, b.node)
		}
		return false
	}
	switch {
	case x.numeric() && y.numeric():
		return equivalentNumbers(x, y)
	case x.kind == StringKind && y.kind == StringKind:
		return normal(x.text) == normal(y.text)
	case x.kind == QuantityKind && (y.kind == QuantityKind || y.numeric()),
		y.kind == QuantityKind && x.numeric():
		return equivalentQuantities(asQuantity(x), asQuantity(y))
	case x.dated() && y.dated(), x.kind == TimeKind && y.kind == TimeKind:
		order, known := compareTemporal(x, y)
		return known && order == 0
	}
	return equal(x, y) == yes
}

// equivalentNumbers compares at the precision of the less precise of both.
func equivalentNumbers(x, y Value) bool {
	scale := min(x.reducedScale(), y.reducedScale())
	x, okx := round(x, scale, halfUp)
	y, oky := round(y, scale, halfUp)
	return okx && oky && compareNumbers(x, y) == 0
}

// normal folds case, and makes every white space character a blank.
// Spec: https://hl7.org/fhirpath/N1/#equivalent, #whitespace.
func normal(s string) string {
	return strings.NewReplacer("\t", " ", "\n", " ", "\r", " ").Replace(strings.ToLower(s))
}

func (m *machine) equivalentNodes(a, b fhir.Node) bool {
	if a.T != b.T {
		return false
	}
	if a.T.Kind.Primitive() {
		return equalNodes(a, b)
	}
	for i := range a.T.Fields {
		f := &a.T.Fields[i]
		if f.Name == "id" && a.T.Kind != fhir.ResourceKind {
			continue
		}
		var left, right []Value
		for _, n := range a.AppendField(nil, f) {
			left = append(left, Value{node: n})
		}
		for _, n := range b.AppendField(nil, f) {
			right = append(right, Value{node: n})
		}
		if ok, _ := m.equivalentLists(left, right, 0); !ok {
			return false
		}
	}
	return true
}

// equivalentLists compares two collections without regard to order.
func (m *machine) equivalentLists(left, right []Value, at int) (bool, error) {
	if len(left) != len(right) {
		return false, nil
	}
	used := make([]bool, len(right))
outer:
	for i := range left {
		if err := m.spend(1+len(right)-i, at); err != nil {
			return false, err
		}
		for j := range right {
			if !used[j] && m.equivalent(left[i], right[j]) {
				used[j] = true
				continue outer
			}
		}
		return false, nil
	}
	return true, nil
}

// hash is equal for items that may be equal by =. Numbers, dates and quantities
// of one kind share one hash, since different forms of them can be equal.
func (v Value) hash() uint64 {
	h := uint64(14695981039346656037)
	if s, ok := v.stringText(); ok {
		return hashText(h, s)
	}
	if v.kind == NodeKind {
		if v.node.T.Kind.Primitive() {
			return hashPrimitive(h, v.node)
		}
		if systemKind(v.node.T) == QuantityKind {
			return 3
		}
		return hashNode(h, v.node)
	}
	switch v.kind {
	case BooleanKind:
		return hashText(h, v.lexical())
	case IntegerKind:
		return uint64(v.n)*1099511628211 ^ h
	case DecimalKind:
		if i, ok := wholeNumber(v); ok && compareNumbers(v, Value{kind: IntegerKind, n: i}) == 0 {
			return uint64(i)*1099511628211 ^ h
		}
		return 5
	case QuantityKind:
		return 3
	case TypeInfoKind:
		return 4
	}
	return 6 // temporal
}

func hashPrimitive(h uint64, n fhir.Node) uint64 {
	if s, ok := (Value{node: n}).system(); ok {
		return s.hash()
	}
	return h
}

func hashNode(h uint64, n fhir.Node) uint64 {
	h = hashText(h, n.T.Name)
	var buf [8]fhir.Node
	for i := range n.T.Fields {
		for _, c := range n.AppendField(buf[:0], &n.T.Fields[i]) {
			h *= 1099511628211
			if c.T.Kind.Primitive() {
				if s, ok := (Value{node: c}).stringText(); ok {
					h = hashText(h, s)
				}
				continue
			}
			h = hashNode(h, c)
		}
	}
	return h
}

func hashText(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// set finds equal items among many.
type set struct {
	items []Value
	index map[uint64][]int32 // made when items are many
}

// setSize is from how many items on hashing pays.
const setSize = 12

// find returns the first item equal to v.
func (s *set) find(m *machine, v Value, at int) (int, error) {
	if s.index == nil {
		for i := range s.items {
			if equal(s.items[i], v) == yes {
				return i, nil
			}
		}
		return -1, m.spend(1+len(s.items)/4, at)
	}
	h := v.hash()
	for _, i := range s.index[h] {
		if equal(s.items[i], v) == yes {
			return int(i), nil
		}
	}
	return -1, m.spend(1+len(s.index[h])/4, at)
}

// insert adds v and returns whether it was new.
func (s *set) insert(m *machine, v Value, at int) (bool, error) {
	i, err := s.find(m, v, at)
	if err != nil || i >= 0 {
		return false, err
	}
	s.items = append(s.items, v)
	switch {
	case s.index != nil:
		h := v.hash()
		s.index[h] = append(s.index[h], int32(len(s.items)-1))
	case len(s.items) > setSize:
		s.rehash()
	}
	return true, nil
}

func (s *set) rehash() {
	s.index = make(map[uint64][]int32, 2*len(s.items))
	for i := range s.items {
		h := s.items[i].hash()
		s.index[h] = append(s.index[h], int32(i))
	}
}

// setOf returns a set of items, which may hold equal ones.
func setOf(items []Value) *set {
	s := &set{items: items}
	if len(items) > setSize {
		s.rehash()
	}
	return s
}

// distinct removes items that equal an earlier item from the stack, from base on.
func (m *machine) distinct(base, at int) error {
	n := len(m.stack) - base
	if n < 2 {
		return nil
	}
	// The kept items stand at the front of the region and are the set.
	s := set{items: m.stack[base : base : base+n]}
	for i := base; i < base+n; i++ {
		if _, err := s.insert(m, m.stack[i], at); err != nil {
			return err
		}
	}
	m.stack = m.stack[:base+len(s.items)]
	return nil
}

// clip shortens text for messages.
func clip(s string) string {
	if len(s) <= 40 {
		return s
	}
	n := 40
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
