package cache

import (
	"iter"
	"slices"
	"sort"
)

// A list is ordered and changed in place: chunks of some hundred elements, none empty,
// so that an insertion moves one chunk.
type list[E any] struct {
	compare func(a, b E) int
	chunks  [][]E
	n       int
}

const (
	chunkFilled = 512 // elements of a chunk of a new list
	chunkFull   = 1024
)

// newList takes elements in any order, and keeps the slice.
func newList[E any](compare func(a, b E) int, elements []E) list[E] {
	l := list[E]{compare: compare, n: len(elements)}
	if !slices.IsSortedFunc(elements, compare) {
		slices.SortFunc(elements, compare)
	}
	for len(elements) > 0 {
		k := min(chunkFilled, len(elements))
		l.chunks = append(l.chunks, append(make([]E, 0, k+k/8), elements[:k]...))
		elements = elements[k:]
	}
	return l
}

// seek is the place of the first element that is not before; before holds for a part
// of the list at its start.
func (l *list[E]) seek(before func(E) bool) (chunk, at int) {
	chunk = sort.Search(len(l.chunks), func(i int) bool { c := l.chunks[i]; return !before(c[len(c)-1]) })
	if chunk == len(l.chunks) {
		return chunk, 0
	}
	c := l.chunks[chunk]
	return chunk, sort.Search(len(c), func(i int) bool { return !before(c[i]) })
}

// from gives the elements from the first that is not before.
func (l *list[E]) from(before func(E) bool) iter.Seq[E] {
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

// find returns the element that compares as equal.
func (l *list[E]) find(e E) (E, bool) {
	chunk, at := l.seek(func(o E) bool { return l.compare(o, e) < 0 })
	if chunk == len(l.chunks) || l.compare(l.chunks[chunk][at], e) != 0 {
		var none E
		return none, false
	}
	return l.chunks[chunk][at], true
}

// insert adds an element.
func (l *list[E]) insert(e E) {
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
	if len(c) < chunkFull {
		l.chunks[chunk] = c
		return
	}
	half := len(c) / 2
	l.chunks[chunk] = slices.Clip(c[:half])
	l.chunks = slices.Insert(l.chunks, chunk+1, slices.Clone(c[half:]))
}

// remove takes away the element that compares as equal; false where there is none.
func (l *list[E]) remove(e E) bool {
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
