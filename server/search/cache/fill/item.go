package fill

import (
	"fmt"
	"time"

	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// item is one item to read into the cache: a column, all common terms of a type, some terms, or else the set of the
// resources for which clauses hold.
type item struct {
	typ       int16
	typeName  string
	column    *cache.ColumnKey
	allTerms  bool
	someTerms []int64
	set       cache.Key
	clauses   []match.Clause // of the set

	expensive bool // an expensive search needs it
	few       bool // read the set only if it has at most maxFew members
	evicted   bool // the cache had the terms, so they are common

	ahead       bool // read ahead: no search has requested it
	soon        bool // read ahead even if the database is not idle
	coded       bool // a column of the values of one code
	largerTypes int  // number of types with more resources; counted for items that are read ahead

	queued time.Time
}

// someTermsKey is the key of some terms of a type.
type someTermsKey struct {
	typ   int16
	terms string
}

// key returns the key of the item in the cache.
func (i *item) key() any {
	switch {
	case i.column != nil:
		return *i.column
	case i.allTerms:
		return cache.TypeKey(i.typ)
	case i.someTerms != nil:
		return someTermsKey{i.typ, fmt.Sprint(i.someTerms)}
	}
	return i.set
}
