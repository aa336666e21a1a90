package bitmap

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// A Set is a set of resource numbers. The zero Set is empty. It is stored in blocks of 65,536 numbers, as in a
// roaring bitmap, but the contents of all blocks are two slices. Thousands of sets with slices for each block would
// be hundreds of thousands of objects, and the garbage collector would visit each of them.
type Set struct {
	n      int      // of all
	blocks []block  // in order, none without numbers
	listed []uint16 // of the blocks that list their numbers, in the order of the blocks
	words  []uint64 // of those that have a bit for each number, in any order
}

// A block contains the numbers with the same high half. A full block has no contents.
type block struct {
	high uint16
	kind kind
	n    int32  // of its numbers
	from uint32 // where it begins in listed or, in blocks of blockWords, in words
}

// A kind is the form of a block.
type kind uint8

const (
	listedBlock kind = iota
	bitsBlock
	fullBlock
)

// A block has blockSize numbers at most, as bits blockWords words. It lists up to mostListed of them, which take as much,
// and one of bits lists its numbers again when few are left.
const (
	blockSize   = 1 << 16
	blockWords  = blockSize / 64
	mostListed  = blockSize / 16
	listedAgain = mostListed / 2
)

// block returns the index of the block of a high half, or the index at which it would be inserted.
func (s *Set) block(high uint16) (i int, there bool) {
	if i := int(high); i < len(s.blocks) && s.blocks[i].high == high { // most often none is missing
		return i, true
	}
	if last := len(s.blocks) - 1; last >= 0 && s.blocks[last].high <= high {
		if s.blocks[last].high == high {
			return last, true
		}
		return last + 1, false
	}
	return slices.BinarySearchFunc(s.blocks, high, func(b block, high uint16) int { return cmp.Compare(b.high, high) })
}

// listOf returns the list of a block, in order.
func (s *Set) listOf(b *block) []uint16 { return s.listed[b.from : b.from+uint32(b.n)] }

// bitsOf returns the words of a block.
func (s *Set) bitsOf(b *block) []uint64 {
	return s.words[int(b.from)*blockWords : int(b.from+1)*blockWords]
}

// Contains reports whether n is in the set.
func (s *Set) Contains(n uint32) bool {
	i, there := s.block(uint16(n >> 16))
	return there && s.hasLow(&s.blocks[i], uint16(n))
}

// hasLow reports whether a block contains the number with a low half.
func (s *Set) hasLow(b *block, low uint16) bool {
	switch b.kind {
	case listedBlock:
		_, there := slices.BinarySearch(s.listOf(b), low)
		return there
	case bitsBlock:
		return s.words[int(b.from)*blockWords+int(low>>6)]&(1<<(low&63)) != 0
	}
	return true
}

// Add adds n.
func (s *Set) Add(n uint32) {
	high, low := uint16(n>>16), uint16(n)
	i, there := s.block(high)
	if !there {
		s.blocks = slices.Insert(roomFor(s.blocks, 1), i, block{high: high, from: s.listedFrom(i)})
	}
	b := &s.blocks[i]
	switch b.kind {
	case fullBlock:
		return
	case bitsBlock:
		word, bit := &s.bitsOf(b)[low>>6], uint64(1)<<(low&63)
		if *word&bit != 0 {
			return
		}
		*word |= bit
	default:
		list := s.listOf(b)
		at := len(list)
		if at > 0 && list[at-1] >= low { // most come behind all others
			var there bool
			if at, there = slices.BinarySearch(list, low); there {
				return
			}
		}
		if b.n == mostListed {
			s.become(i, bitsBlock)
			s.bitsOf(b)[low>>6] |= 1 << (low & 63)
			break
		}
		s.listed = slices.Insert(roomFor(s.listed, 1), int(b.from)+at, low)
		s.shift(i, 1)
	}
	s.n++
	if b.n++; b.n == blockSize {
		s.become(i, fullBlock)
	}
}

// Remove removes n.
func (s *Set) Remove(n uint32) {
	low := uint16(n)
	i, there := s.block(uint16(n >> 16))
	if !there || !s.hasLow(&s.blocks[i], low) {
		return
	}
	b := &s.blocks[i]
	if b.kind == fullBlock {
		s.become(i, bitsBlock)
	}
	s.n--
	if b.kind == bitsBlock {
		s.bitsOf(b)[low>>6] &^= 1 << (low & 63)
		if b.n--; b.n == listedAgain {
			s.become(i, listedBlock)
		}
		return
	}
	at, _ := slices.BinarySearch(s.listOf(b), low)
	s.listed = slices.Delete(s.listed, int(b.from)+at, int(b.from)+at+1)
	s.shift(i, -1)
	if b.n--; b.n == 0 {
		s.blocks = slices.Delete(s.blocks, i, i+1)
	}
}

// listedFrom returns the beginning of the first list at or after the i-th block.
func (s *Set) listedFrom(i int) uint32 {
	for ; i < len(s.blocks); i++ {
		if b := &s.blocks[i]; b.kind == listedBlock {
			return b.from
		}
	}
	return uint32(len(s.listed))
}

// shift moves the beginnings of the lists after a block.
func (s *Set) shift(block, by int) {
	for i := block + 1; i < len(s.blocks); i++ {
		if b := &s.blocks[i]; b.kind == listedBlock {
			b.from = uint32(int(b.from) + by)
		}
	}
}

// become changes the form of a block: bits from any form, full from bits of all numbers, a list from bits.
func (s *Set) become(i int, kind kind) {
	b := &s.blocks[i]
	was := *b
	b.kind = kind
	switch kind {
	case bitsBlock:
		b.from = uint32(len(s.words) / blockWords)
		s.words = roomFor(s.words, blockWords)[:len(s.words)+blockWords]
		into := s.bitsOf(b)
		clear(into)
		s.addBits(&was, into)
		if was.kind == listedBlock {
			s.listed = slices.Delete(s.listed, int(was.from), int(was.from)+int(was.n))
			s.shift(i, -int(was.n))
		}
	case listedBlock:
		b.from = s.listedFrom(i + 1)
		s.listed = slices.Insert(roomFor(s.listed, int(b.n)), int(b.from), listOfBits(s.bitsOf(&was))...)
		s.shift(i, int(b.n))
		s.discard(was.from)
	default:
		s.discard(was.from)
	}
}

// discard removes the words of a block. The last words of the set move to their place.
func (s *Set) discard(from uint32) {
	last := uint32(len(s.words)/blockWords) - 1
	if from != last {
		copy(s.words[int(from)*blockWords:], s.words[int(last)*blockWords:])
		for i := range s.blocks {
			if b := &s.blocks[i]; b.kind == bitsBlock && b.from == last {
				b.from = from
			}
		}
	}
	s.words = s.words[:int(last)*blockWords]
}

// roomFor returns a slice with room for n more elements. It allocates a sixteenth more, because many sets grow a
// little.
func roomFor[E any](some []E, n int) []E {
	if len(some)+n <= cap(some) {
		return some
	}
	out := make([]E, len(some), len(some)+n+(len(some)+n)/16)
	copy(out, some)
	return out
}

// addBits sets the bits of the numbers of a block.
func (s *Set) addBits(b *block, into []uint64) {
	switch b.kind {
	case listedBlock:
		for _, low := range s.listOf(b) {
			into[low>>6] |= 1 << (low & 63)
		}
	case bitsBlock:
		for i, w := range s.bitsOf(b) {
			into[i] |= w
		}
	default:
		for i := range into {
			into[i] = ^uint64(0)
		}
	}
}

// listOfBits returns the positions of the set bits.
func listOfBits(words []uint64) []uint16 {
	return appendBits(make([]uint16, 0, mostListed), words)
}

// appendBits appends the positions of the set bits.
func appendBits(out []uint16, words []uint64) []uint16 {
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			out = append(out, uint16(i<<6+bits.TrailingZeros64(w)))
		}
	}
	return out
}

// countBits returns the number of set bits.
func countBits(words []uint64) (n int) {
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

// put appends a block with the n numbers whose bits are set in words, of which there are at most blockWords.
func (s *Set) put(high uint16, words []uint64, n int) {
	b := block{high: high, n: int32(n)}
	switch {
	case n == 0:
		return
	case n == blockSize:
		b.kind = fullBlock
	case n <= mostListed:
		b.from = uint32(len(s.listed))
		s.listed = appendBits(s.listed, words)
	default:
		b.kind, b.from = bitsBlock, uint32(len(s.words)/blockWords)
		s.words = append(s.words, words...)
		s.words = append(s.words, make([]uint64, blockWords-len(words))...)
	}
	s.blocks, s.n = append(s.blocks, b), s.n+n
}

// putList appends a block with at most mostListed numbers, which are in order.
func (s *Set) putList(high uint16, list []uint16) {
	if len(list) == 0 {
		return
	}
	s.blocks = append(s.blocks, block{high: high, n: int32(len(list)), from: uint32(len(s.listed))})
	s.listed, s.n = append(s.listed, list...), s.n+len(list)
}

// putBlock appends a copy of a block of another set.
func (s *Set) putBlock(of *Set, b *block) {
	switch b.kind {
	case listedBlock:
		s.putList(b.high, of.listOf(b))
		return
	case bitsBlock:
		s.blocks = append(s.blocks, block{high: b.high, kind: bitsBlock, n: b.n, from: uint32(len(s.words) / blockWords)})
		s.words = append(s.words, of.bitsOf(b)...)
	default:
		s.blocks = append(s.blocks, *b)
	}
	s.n += int(b.n)
}

// Len returns the number of elements.
func (s *Set) Len() int { return s.n }

// Clone returns a copy without spare memory.
func (s *Set) Clone() *Set {
	return &Set{n: s.n, blocks: slices.Clip(slices.Clone(s.blocks)), listed: slices.Clip(slices.Clone(s.listed)), words: slices.Clip(slices.Clone(s.words))}
}

// Bytes returns the approximate size in bytes.
func (s *Set) Bytes() int64 {
	return int64(cap(s.blocks))*bitmapBlockBytes + 2*int64(cap(s.listed)) + 8*int64(cap(s.words))
}

const bitmapBlockBytes = 12

// All yields the numbers in ascending order, beginning with the first that is at least from.
func (s *Set) All(from uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		i, _ := s.block(uint16(from >> 16))
		for ; i < len(s.blocks); i++ {
			b := &s.blocks[i]
			first, page := uint16(0), uint32(b.high)<<16
			if page < from {
				first = uint16(from)
			}
			if b.kind == listedBlock {
				list := s.listOf(b)
				at, _ := slices.BinarySearch(list, first)
				for _, low := range list[at:] {
					if !yield(page + uint32(low)) {
						return
					}
				}
				continue
			}
			for j := int(first >> 6); j < blockWords; j++ {
				w := s.word(b, j)
				if j == int(first>>6) {
					w &^= 1<<(first&63) - 1
				}
				for ; w != 0; w &= w - 1 {
					if !yield(page + uint32(j<<6+bits.TrailingZeros64(w))) {
						return
					}
				}
			}
		}
	}
}

// Backward yields the numbers in descending order, beginning with the last that is at most until.
func (s *Set) Backward(until uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		i, there := s.block(uint16(until >> 16))
		if !there {
			i--
		}
		for ; i >= 0; i-- {
			b := &s.blocks[i]
			last, page := uint16(blockSize-1), uint32(b.high)<<16
			if page+blockSize-1 > until {
				last = uint16(until)
			}
			if b.kind == listedBlock {
				list := s.listOf(b)
				at, there := slices.BinarySearch(list, last)
				if there {
					at++
				}
				for at--; at >= 0; at-- {
					if !yield(page + uint32(list[at])) {
						return
					}
				}
				continue
			}
			for j := int(last >> 6); j >= 0; j-- {
				w := s.word(b, j)
				if j == int(last>>6) {
					w &= 1<<(last&63)<<1 - 1
				}
				for w != 0 {
					bit := bits.Len64(w) - 1
					w &^= 1 << bit
					if !yield(page + uint32(j<<6+bit)) {
						return
					}
				}
			}
		}
	}
}

// word returns a word of a block that is not a list.
func (s *Set) word(b *block, i int) uint64 {
	if b.kind == fullBlock {
		return ^uint64(0)
	}
	return s.words[int(b.from)*blockWords+i]
}

// Rank returns the count of numbers that are at most n.
func (s *Set) Rank(n uint32) (rank int) {
	high, low := uint16(n>>16), uint16(n)
	for i := range s.blocks {
		b := &s.blocks[i]
		if b.high < high {
			rank += int(b.n)
			continue
		}
		if b.high > high {
			break
		}
		if b.kind == listedBlock {
			at, there := slices.BinarySearch(s.listOf(b), low)
			if rank += at; there {
				rank++
			}
			break
		}
		for j := range int(low >> 6) {
			rank += bits.OnesCount64(s.word(b, j))
		}
		rank += bits.OnesCount64(s.word(b, int(low>>6)) & (1<<(low&63)<<1 - 1))
		break
	}
	return rank
}

// Select returns the i-th number, from 0. i has to be below Len.
func (s *Set) Select(i int) uint32 {
	for j := range s.blocks {
		b := &s.blocks[j]
		if i >= int(b.n) {
			i -= int(b.n)
			continue
		}
		page := uint32(b.high) << 16
		if b.kind == listedBlock {
			return page + uint32(s.listOf(b)[i])
		}
		for k := range blockWords {
			w := s.word(b, k)
			if n := bits.OnesCount64(w); i >= n {
				i -= n
				continue
			}
			for ; i > 0; i-- {
				w &= w - 1
			}
			return page + uint32(k<<6+bits.TrailingZeros64(w))
		}
	}
	return 0
}

// Union returns the numbers that are in at least one of the sets.
func Union(sets []*Set) *Set {
	out := new(Set)
	next := make([]int, len(sets))
	var words [blockWords]uint64
	for {
		const none = blockSize
		high, with, alone := none, 0, 0
		for i, s := range sets {
			if next[i] == len(s.blocks) {
				continue
			}
			switch h := int(s.blocks[next[i]].high); {
			case h < high:
				high, with, alone = h, 1, i
			case h == high:
				with++
			}
		}
		if high == none {
			return out
		}
		if with == 1 {
			out.putBlock(sets[alone], &sets[alone].blocks[next[alone]])
			next[alone]++
			continue
		}
		clear(words[:])
		for i, s := range sets {
			if next[i] < len(s.blocks) && int(s.blocks[next[i]].high) == high {
				s.addBits(&s.blocks[next[i]], words[:])
				next[i]++
			}
		}
		out.put(uint16(high), words[:], countBits(words[:]))
	}
}

// Intersection returns the numbers that are in each of the sets, of which there is at least one, and in none of
// without. So the difference of a and b is Intersection([]*Set{a}, []*Set{b}).
func Intersection(sets, others []*Set) *Set {
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b *Set) int { return cmp.Compare(a.n, b.n) })
	out := &Set{words: make([]uint64, 0, len(sets[0].words))}
	var list []uint16
	var words [blockWords]uint64
	in, not := make([]block, len(sets)), make([]block, len(others))
each:
	for i := range sets[0].blocks {
		in[0] = sets[0].blocks[i]
		first := 0 // the set with fewest numbers here
		for j, s := range sets[1:] {
			at, there := s.block(in[0].high)
			if !there {
				continue each
			}
			if in[j+1] = s.blocks[at]; in[j+1].n < in[first].n {
				first = j + 1
			}
		}
		for j, s := range others {
			not[j] = block{}
			if at, there := s.block(in[0].high); there {
				not[j] = s.blocks[at]
			}
		}
		if in[first].kind == listedBlock {
			list = append(list[:0], sets[first].listOf(&in[first])...)
			for j, s := range sets {
				if j != first {
					list = s.keep(&in[j], list, true)
				}
			}
			for j, s := range others {
				list = s.keep(&not[j], list, false)
			}
			out.putList(in[0].high, list)
			continue
		}
		clear(words[:])
		sets[first].addBits(&in[first], words[:])
		for j, s := range sets {
			if j != first && in[j].kind == bitsBlock { // none lists its numbers, and one that is full says nothing
				for k, w := range s.bitsOf(&in[j]) {
					words[k] &= w
				}
			}
		}
		for j, s := range others {
			s.takeBits(&not[j], words[:])
		}
		out.put(in[0].high, words[:], countBits(words[:]))
	}
	return out
}

// takeBits clears the bits of the numbers of a block.
func (s *Set) takeBits(b *block, from []uint64) {
	switch {
	case b.n == 0:
	case b.kind == listedBlock:
		for _, low := range s.listOf(b) {
			from[low>>6] &^= 1 << (low & 63)
		}
	case b.kind == bitsBlock:
		for i, w := range s.bitsOf(b) {
			from[i] &^= w
		}
	default:
		clear(from)
	}
}

// keep keeps the numbers of list that a block of s contains or, if there is false, those that it lacks. It reuses the
// memory of list.
func (s *Set) keep(b *block, list []uint16, there bool) []uint16 {
	out := list[:0]
	if b.n == 0 {
		if there {
			return out
		}
		return list
	}
	if b.kind != listedBlock {
		for _, low := range list {
			if s.hasLow(b, low) == there {
				out = append(out, low)
			}
		}
		return out
	}
	other := s.listOf(b)
	for _, low := range list {
		other = other[lowerBound(other, low):]
		if (len(other) > 0 && other[0] == low) == there {
			out = append(out, low)
		}
	}
	return out
}

// lowerBound returns the index of the first number that is at least low. It searches from the beginning, where the
// number usually is.
func lowerBound(list []uint16, low uint16) int {
	step := 1
	for step < len(list) && list[step] < low {
		step *= 2
	}
	at, _ := slices.BinarySearch(list[step/2:min(step+1, len(list))], low)
	return step/2 + at
}
