package oauth

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/maypok86/otter/v2/stats"

	"kiln/server/telemetry"
)

// tokenCache has the tokens that were verified of late. It is safe for concurrent use.
type tokenCache struct {
	all *otter.Cache[string, *verified]
	// late are those that were asked for last: no account is kept of them, and a look at one takes a
	// fraction of one at all. Others take its place when all are cleared.
	late atomic.Pointer[lateTokens]
	hits atomic.Uint64 // of late
	seed maphash.Seed
	// cleared counts the calls of clear.
	cleared atomic.Uint64
}

// lateTokens are each at the place that its hash gives.
type lateTokens [256]atomic.Pointer[lateToken]

type lateToken struct {
	hash  uint64
	token string
	*verified
}

// maxCached is how many verified tokens are kept. Each is kept as it came: to find it by a
// digest takes longer than all else that is asked of it.
const maxCached = 25_000

// cachedFor is how long a token is not verified again.
const cachedFor = 10 * time.Minute

// bytesOfToken is about the size of a verified token with its principal.
const bytesOfToken = 1600

func newTokenCache() (*tokenCache, error) {
	all, err := otter.New(&otter.Options[string, *verified]{
		MaximumSize: maxCached, StatsRecorder: stats.NewCounter(), ExpiryCalculator: otter.ExpiryWriting[string, *verified](cachedFor),
	})
	c := &tokenCache{all: all, seed: maphash.MakeSeed()}
	c.late.Store(new(lateTokens))
	return c, err
}

// get returns a verified token; false for one that must be verified.
func (c *tokenCache) get(token string, now time.Time) (*verified, bool) {
	hash := maphash.String(c.seed, token)
	late := c.late.Load()
	at := &late[hash%uint64(len(late))]
	if l := at.Load(); l != nil && l.hash == hash && l.token == token && now.Before(l.until) {
		c.hits.Add(1)
		return l.verified, true
	}
	e, ok := c.all.GetEntry(token)
	if ok {
		at.Store(&lateToken{hash, e.Key, e.Value})
	}
	return e.Value, ok
}

// set keeps a token whose verification began when cleared was since. A token that was verified by what has been
// cleared since then is not kept.
func (c *tokenCache) set(token string, v *verified, now time.Time, since uint64) {
	v.until = now.Add(cachedFor)
	if c.cleared.Load() != since {
		return
	}
	c.all.Set(strings.Clone(token), v)
	if c.cleared.Load() != since {
		c.all.Invalidate(token)
		c.late.Store(new(lateTokens))
	}
}

// clear forgets all tokens.
func (c *tokenCache) clear() {
	c.cleared.Add(1)
	c.all.InvalidateAll()
	c.late.Store(new(lateTokens))
}

// CacheState returns the state of this server's cache of verified tokens.
func (s *Server) CacheState() telemetry.CacheState {
	n := s.cache.all.EstimatedSize()
	c := s.cache.all.Stats()
	return telemetry.CacheState{Hits: c.Hits + s.cache.hits.Load(), Misses: c.Misses, Evictions: c.Evictions, Size: n, Capacity: s.cache.all.GetMaximum(), Bytes: uint64(n * bytesOfToken)}
}

// ClearCache forgets the verified tokens, and which owners of tokens have access.
func (s *Server) ClearCache() {
	s.cache.clear()
	s.standing.InvalidateAll()
}
