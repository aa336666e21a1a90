package telemetry

// CacheState is what a cache of this server holds, and how often it had what was looked
// for.
type CacheState struct {
	Hits, Misses, Evictions uint64
	Size                    int    // entries
	Capacity                uint64 // entries, or bytes where that is what bounds it
	Bytes                   uint64 // roughly
}
