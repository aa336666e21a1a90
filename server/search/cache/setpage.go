package cache

// Page is the part of the matches that a page has, in Order or, where that is nil, in the order of
// surrogates.
type Page struct {
	Order     *ColumnOrder
	Backwards bool // the last before Beyond, that one first
	Bounded   bool // Beyond is set
	Beyond    Place
	Offset    int
	Limit     int
}
