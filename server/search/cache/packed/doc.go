// Package packed stores many short arrays of numbers in few large allocations without pointers. The columns of the search
// cache are made of them. It knows nothing of resources and searches.
//
//	room.go       Room: slabs of bytes, from which pieces get blocks of some 160 sizes
//	piece.go      Piece: up to ten arrays of 1, 2, 4 or 8 bytes an element, in one block
//	numbers.go    Numbers: 32-bit numbers in two to four bytes each, in three arrays of a piece
//	stretches.go  Stretches: Numbers, of which consecutive ones are stored once
//	list.go       List: an ordered list of any elements, which is changed in place
//
// A room with the pieces p and q:
//
//	slab 0  [ p: array 0 | array 3 | spare ][ free block ][ q: array 0 | array 4 | array 9 | spare ]
//	slab 1  [ free, not yet a block …                                                              ]
//
// A piece is a pointer to its room and to its Block, which names the slab, the place in it, and the begin of each array. The
// owner of the data stores the Block, 32 bytes without pointers. A piece that outgrows its block moves to a larger one, and
// the old block is reused. When much of a room is free, MovePieces moves all pieces to a new one.
//
// Five numbers near each other, as Numbers:
//
//	base     4,000                     beside the piece
//	array 0  102 107 108 345 2,311     two bytes each
//	array 1                            the third bytes: none
//	array 2                            the fourth bytes: none
package packed
