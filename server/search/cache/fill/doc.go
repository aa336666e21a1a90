// Package fill reads items into the search cache (package cache), and keeps the cache up to date. It works in the background,
// on connections of its own. A search only requests the items that would have answered it.
//
//	filler.go       Filler: starts and ends the background work
//	request.go      the items that a search requests
//	itemqueue.go    the requested items, and the items that are being read
//	item.go         one item: a set, a column, or terms
//	reader.go       reads one item and adds it to the cache
//	snapshot.go     the transaction in which an item is read:
//	                readset.go, readcolumn.go, readterms.go; sizes.go, the number of resources of each type
//	ahead.go        reads items before the first search; missing.go lists them
//	cachefollow.go  applies the changes of the change log; calm.go decides when a cache that lags catches up
//	changelist.go   reads changed resources and applies them
//	pacer.go        pauses long work while searches run
//	fillconfig.go   Config, and the interface of a Store
//
// # From a miss to an item
//
//	search ──> Request ──> queue ──> reader ──> cache.Memory.AddFound
//	                                   └── reads in one snapshot, then applies the changes since then
//
// An item is read in one snapshot, at about a million rows a second. Changes that were committed meanwhile are applied in
// transactions of their own, until few are left. cache.Memory.AddFound applies these and adds the item.
//
// # Reading ahead
//
// While the database is idle, a server reads the items that broad searches of large types need. It pauses while the server
// serves requests, unless a search waits for one of the items.
package fill
