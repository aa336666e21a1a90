package packed

import (
	"iter"
	"slices"
	"sort"
)

// A List is an ordered list. It consists of chunks of some hundred elements, none of them empty, so that an insertion
// moves the elements of one chunk.
type List[E any] struct {
	compare func(a, b E) int
	chunks  [][]E
	n       int
}

const (
	listFilled = 512 // elements of a chunk of a new list
	listFull   = 1024
)

// NewList returns a list of elements, which may be in any order. It reuses the slice.
func NewList[E any](compare func(a, b E) int, elements []E) List[E] {
	l := List[E]{compare: compare, n: len(elements)}
	if !slices.IsSortedFunc(elements, compare) {
		slices.SortFunc(elements, compare)
	}
	for len(elements) > 0 {
		k := min(listFilled, len(elements))
		l.chunks = append(l.chunks, append(make([]E, 0, k+k/8), elements[:k]...))
		elements = elements[k:]
	}
	return l
}

// Len returns the number of elements.
func (l *List[E]) Len() int { return l.n }

// seek returns the place of the first element that is not before a point. before holds for the elements up to that
// point.
func (l *List[E]) seek(before func(E) bool) (chunk, at int) {
	chunk = sort.Search(len(l.chunks), func(i int) bool { c := l.chunks[i]; return !before(c[len(c)-1]) })
	if chunk == len(l.chunks) {
		return chunk, 0
	}
	c := l.chunks[chunk]
	return chunk, sort.Search(len(c), func(i int) bool { return !before(c[i]) })
}

// From yields the elements from the first that is not before a point: see seek.
func (l *List[E]) From(before func(E) bool) iter.Seq[E] {
	return func(yield func(E) bool) {
		chunk, at := l.seek(before)
		for ; chunk < len(l.chunks); chunk, at = chunk+1, 0 {
			for _, e := range l.chunks[chunk][at:] {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Find returns the element that compares as equal.
func (l *List[E]) Find(e E) (E, bool) {
	chunk, at := l.seek(func(o E) bool { return l.compare(o, e) < 0 })
	if chunk == len(l.chunks) || l.compare(l.chunks[chunk][at], e) != 0 {
		var none E
		return none, false
	}
	return l.chunks[chunk][at], true
}

// Insert adds an element.
func (l *List[E]) Insert(e E) {
	l.n++
	if len(l.chunks) == 0 {
		l.chunks = [][]E{{e}}
		return
	}
	chunk, at := l.seek(func(o E) bool { return l.compare(o, e) < 0 })
	if chunk == len(l.chunks) {
		chunk--
		at = len(l.chunks[chunk])
	}
	c := slices.Insert(l.chunks[chunk], at, e)
	if len(c) < listFull {
		l.chunks[chunk] = c
		return
	}
	half := len(c) / 2
	l.chunks[chunk] = slices.Clip(c[:half])
	l.chunks = slices.Insert(l.chunks, chunk+1, slices.Clone(c[half:]))
}

// Remove removes the element that compares as equal. It returns false if there is none.
func (l *List[E]) Remove(e E) bool {
	chunk, at := l.seek(func(o E) bool { return l.compare(o, e) < 0 })
	if chunk == len(l.chunks) || l.compare(l.chunks[chunk][at], e) != 0 {
		return false
	}
	l.n--
	c := slices.Delete(l.chunks[chunk], at, at+1)
	if l.chunks[chunk] = c; len(c) == 0 {
		l.chunks = slices.Delete(l.chunks, chunk, chunk+1)
	}
	return true
}
