// Package bitmap stores sets of resource numbers, and combines them: Union, Intersection, and Intersection with a second
// list for the difference. It knows nothing of resources and searches.
//
//	bitmap.go  Set, compressed by blocks, for sets that are kept
//	dense.go   Dense, one bit for each number, for results that are collected in any order
//
// A Set of three blocks:
//
//	blocks  high  kind    n       from
//	        0     bits    51,200  0      1,024 words of words
//	        1     list    37      0      37 elements of listed: the lower halves of the numbers, in order
//	        2     full    65,536         nothing is stored
//	listed  [0x00f3 0x0107 …]            the lists of all blocks, in the order of the blocks
//	words   [0x9d3f… …]                  the bits of all blocks, in any order
//
// A block is a list of up to 4,096 numbers, above that bits. Bits become a list again at 2,048 numbers, so that a set that
// changes around the limit is not converted each time.
package bitmap
