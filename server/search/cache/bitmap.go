package cache

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
)

// A bitmap is the numbers of some resources, each once. They are kept in blocks of 65,536 as a roaring bitmap
// keeps them, but all blocks of a kind behind each other: thousands of sets among millions of resources
// would else be hundreds of thousands of objects, at each of which the collector looks many times a second while others
// write.
type bitmap struct {
	n      int           // of all
	blocks []bitmapBlock // in order, none without numbers
	listed []uint16      // of the blocks that list their numbers, in the order of the blocks
	words  []uint64      // of those that have a bit for each number, in any order
}

// A bitmapBlock is numbers with the same high half. With all of them it takes nothing.
type bitmapBlock struct {
	high uint16
	kind blockKind
	n    int32  // of its numbers
	from uint32 // where it begins in listed or, in blocks of blockWords, in words
}

type blockKind uint8

const (
	listedBlock blockKind = iota
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

// block is where the block of a high half is, or would be.
func (s *bitmap) block(high uint16) (i int, there bool) {
	if i := int(high); i < len(s.blocks) && s.blocks[i].high == high { // most often none is missing
		return i, true
	}
	if last := len(s.blocks) - 1; last >= 0 && s.blocks[last].high <= high {
		if s.blocks[last].high == high {
			return last, true
		}
		return last + 1, false
	}
	return slices.BinarySearchFunc(s.blocks, high, func(b bitmapBlock, high uint16) int { return cmp.Compare(b.high, high) })
}

// listOf is the numbers that a block lists.
func (s *bitmap) listOf(b *bitmapBlock) []uint16 { return s.listed[b.from : b.from+uint32(b.n)] }

// bitsOf is the words of a block.
func (s *bitmap) bitsOf(b *bitmapBlock) []uint64 {
	return s.words[int(b.from)*blockWords : int(b.from+1)*blockWords]
}

func (s *bitmap) has(n uint32) bool {
	i, there := s.block(uint16(n >> 16))
	return there && s.hasLow(&s.blocks[i], uint16(n))
}

// hasLow reports whether a block has the number with a low half.
func (s *bitmap) hasLow(b *bitmapBlock, low uint16) bool {
	switch b.kind {
	case listedBlock:
		_, there := slices.BinarySearch(s.listOf(b), low)
		return there
	case bitsBlock:
		return s.words[int(b.from)*blockWords+int(low>>6)]&(1<<(low&63)) != 0
	}
	return true
}

func (s *bitmap) add(n uint32) {
	high, low := uint16(n>>16), uint16(n)
	i, there := s.block(high)
	if !there {
		s.blocks = slices.Insert(roomFor(s.blocks, 1), i, bitmapBlock{high: high, from: s.listedFrom(i)})
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

func (s *bitmap) remove(n uint32) {
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

// listedFrom is where the list of the i-th block begins, or would.
func (s *bitmap) listedFrom(i int) uint32 {
	for ; i < len(s.blocks); i++ {
		if b := &s.blocks[i]; b.kind == listedBlock {
			return b.from
		}
	}
	return uint32(len(s.listed))
}

// shift moves where the lists behind a block begin.
func (s *bitmap) shift(block, by int) {
	for i := block + 1; i < len(s.blocks); i++ {
		if b := &s.blocks[i]; b.kind == listedBlock {
			b.from = uint32(int(b.from) + by)
		}
	}
}

// become makes a block one of another kind: of bits one of any, full one with all numbers, listed one of bits.
func (s *bitmap) become(i int, kind blockKind) {
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

// discard takes the words of a block away, in whose place come the last ones.
func (s *bitmap) discard(from uint32) {
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

// roomFor is a slice with room for n elements more: a sixteenth is left beside, since many sets grow a little.
func roomFor[E any](some []E, n int) []E {
	if len(some)+n <= cap(some) {
		return some
	}
	out := make([]E, len(some), len(some)+n+(len(some)+n)/16)
	copy(out, some)
	return out
}

// addBits sets the bits of a block's numbers.
func (s *bitmap) addBits(b *bitmapBlock, into []uint64) {
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

// listOfBits are the places of the bits that are set.
func listOfBits(words []uint64) []uint16 {
	return appendBits(make([]uint16, 0, mostListed), words)
}

func appendBits(out []uint16, words []uint64) []uint16 {
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			out = append(out, uint16(i<<6+bits.TrailingZeros64(w)))
		}
	}
	return out
}

// countBits is how many bits are set.
func countBits(words []uint64) (n int) {
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return n
}

// put puts a block behind all others, of the n numbers whose bits are set: at most blockWords words.
func (s *bitmap) put(high uint16, words []uint64, n int) {
	b := bitmapBlock{high: high, n: int32(n)}
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

// putList puts a block behind all others, of numbers in order: mostListed at most.
func (s *bitmap) putList(high uint16, list []uint16) {
	if len(list) == 0 {
		return
	}
	s.blocks = append(s.blocks, bitmapBlock{high: high, n: int32(len(list)), from: uint32(len(s.listed))})
	s.listed, s.n = append(s.listed, list...), s.n+len(list)
}

// putBlock puts a block of other numbers behind all.
func (s *bitmap) putBlock(of *bitmap, b *bitmapBlock) {
	switch b.kind {
	case listedBlock:
		s.putList(b.high, of.listOf(b))
		return
	case bitsBlock:
		s.blocks = append(s.blocks, bitmapBlock{high: b.high, kind: bitsBlock, n: b.n, from: uint32(len(s.words) / blockWords)})
		s.words = append(s.words, of.bitsOf(b)...)
	default:
		s.blocks = append(s.blocks, *b)
	}
	s.n += int(b.n)
}

// clone is a copy in as little memory as it takes.
func (s *bitmap) clone() *bitmap {
	return &bitmap{n: s.n, blocks: slices.Clip(slices.Clone(s.blocks)), listed: slices.Clip(slices.Clone(s.listed)), words: slices.Clip(slices.Clone(s.words))}
}

// bytes returns the approximate size of the bitmap in bytes.
func (s *bitmap) bytes() int64 {
	return int64(cap(s.blocks))*bitmapBlockBytes + 2*int64(cap(s.listed)) + 8*int64(cap(s.words))
}

const bitmapBlockBytes = 12

// all gives the numbers in order, from one on.
func (s *bitmap) all(from uint32) iter.Seq[uint32] {
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

// backwards gives the numbers up to one, the last of them first.
func (s *bitmap) backwards(until uint32) iter.Seq[uint32] {
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

// word is a word of a block that does not list its numbers.
func (s *bitmap) word(b *bitmapBlock, i int) uint64 {
	if b.kind == fullBlock {
		return ^uint64(0)
	}
	return s.words[int(b.from)*blockWords+i]
}

// rank is how many numbers are at most n.
func (s *bitmap) rank(n uint32) (rank int) {
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

// at is the i-th number, of those that there are.
func (s *bitmap) at(i int) uint32 {
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

// union is the numbers that some sets have.
func union(sets []*bitmap) *bitmap {
	out := new(bitmap)
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

// intersection is the numbers that each of some sets has, at least one set, and none of others.
func intersection(sets, others []*bitmap) *bitmap {
	sets = slices.Clone(sets)
	slices.SortFunc(sets, func(a, b *bitmap) int { return cmp.Compare(a.n, b.n) })
	out := &bitmap{words: make([]uint64, 0, len(sets[0].words))}
	var list []uint16
	var words [blockWords]uint64
	in, not := make([]bitmapBlock, len(sets)), make([]bitmapBlock, len(others))
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
			not[j] = bitmapBlock{}
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

// takeBits clears the bits of a block's numbers.
func (s *bitmap) takeBits(b *bitmapBlock, from []uint64) {
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

// keep replaces a block of s by the numbers of list that b contains, or lacks if there is false.
func (s *bitmap) keep(b *bitmapBlock, list []uint16, there bool) []uint16 {
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

// lowerBound is the place of the first of a list that is not below low, which is near its begin most often.
func lowerBound(list []uint16, low uint16) int {
	step := 1
	for step < len(list) && list[step] < low {
		step *= 2
	}
	at, _ := slices.BinarySearch(list[step/2:min(step+1, len(list))], low)
	return step/2 + at
}

// dense are numbers as one bit each, of which a million in no order take some milliseconds:
// sorting them takes a hundred.
type dense []uint64

func (d *dense) add(n uint32) {
	word := int(n >> 6)
	if word >= len(*d) {
		d.grow(word + 1)
	}
	(*d)[word] |= 1 << (n & 63)
}

func (d *dense) has(n uint32) bool {
	word := int(n >> 6)
	return word < len(*d) && (*d)[word]&(1<<(n&63)) != 0
}

// set fills d with the numbers of some.
func (d *dense) set(some *bitmap) {
	*d = (*d)[:0]
	if last := len(some.blocks) - 1; last >= 0 {
		d.grow((int(some.blocks[last].high) + 1) * blockWords)
	}
	for i := range some.blocks {
		b := &some.blocks[i]
		some.addBits(b, (*d)[int(b.high)*blockWords:(int(b.high)+1)*blockWords])
	}
}

// among is the numbers of d that a bitmap has.
func (d *dense) among(some *bitmap) *bitmap {
	out := &bitmap{words: make([]uint64, 0, len(some.words))}
	var list []uint16
	var words [blockWords]uint64
	for i := range some.blocks {
		b := &some.blocks[i]
		from := min(int(b.high)*blockWords, len(*d))
		of := (*d)[from:min(from+blockWords, len(*d))]
		if b.kind == listedBlock {
			list = list[:0]
			for _, low := range some.listOf(b) {
				if word := int(low >> 6); word < len(of) && of[word]&(1<<(low&63)) != 0 {
					list = append(list, low)
				}
			}
			out.putList(b.high, list)
			continue
		}
		n := 0
		for j, w := range of {
			words[j] = w & some.word(b, j)
			n += bits.OnesCount64(words[j])
		}
		out.put(b.high, words[:len(of)], n)
	}
	return out
}

// bitmap has the numbers of d.
func (d *dense) bitmap() *bitmap {
	counts := make([]int, 0, len(*d)/blockWords+1)
	listed, words := 0, 0
	for block := range slices.Chunk(*d, blockWords) {
		n := countBits(block)
		counts = append(counts, n)
		if n <= mostListed {
			listed += n
		} else {
			words += blockWords
		}
	}
	out := &bitmap{listed: make([]uint16, 0, listed), words: make([]uint64, 0, words)}
	high := 0
	for block := range slices.Chunk(*d, blockWords) {
		out.put(uint16(high), block, counts[high])
		high++
	}
	return out
}

func (d *dense) remove(n uint32) {
	if word := int(n >> 6); word < len(*d) {
		(*d)[word] &^= 1 << (n & 63)
	}
}

// union adds the numbers of other, which begins after base words.
func (d *dense) union(base int, other dense) {
	d.grow(base + len(other))
	to := (*d)[base:]
	for i, w := range other {
		to[i] |= w
	}
}

// grow makes room for so many words.
func (d *dense) grow(words int) {
	if was := len(*d); words > was {
		*d = slices.Grow(*d, words-was)[:words]
		clear((*d)[was:])
	}
}
