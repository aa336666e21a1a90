package cache

// number is the part of a surrogate that tells resources of a type apart; false where
// it is beyond what sets hold.
func number(rid int64) (uint32, bool) {
	n := rid & (1<<48 - 1)
	return uint32(n), n>>32 == 0
}
