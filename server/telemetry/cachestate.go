package telemetry

// CacheState is the size of a cache of this server and its hits and misses.
type CacheState struct {
	Hits, Misses, Evictions uint64
	Size                    int    // entries
	Capacity                uint64 // entries, or bytes for a cache limited by bytes
	Bytes                   uint64 // roughly
}
