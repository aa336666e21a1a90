package strategy

import (
	"cmp"
	"sync/atomic"
	"time"

	"kiln/server/search/admission"
	"kiln/server/search/cache"
	"kiln/server/search/cache/fill"
	"kiln/server/search/recent"
)

// Config is the configuration of a Searcher.
type Config struct {
	Store Store
	// MaxConns is the number of connections of the store's pool.
	MaxConns int
	Now      func() time.Time // nil means time.Now
	// Limit is the number of rows that a driver may find, 0 for the default of plan.Compile.
	Limit int
	// Walk is the number of resources that a walk tests at most if its page may be far away, 0 for the default.
	Walk int
	// MemoryBytes limits the caches; 0 means DefaultMemory, below 0 no cache.
	MemoryBytes int64
	// ChangeTakes, StepTakes, Stepped and ReportBytes are fields of fill.Config.
	ChangeTakes time.Duration
	StepTakes   time.Duration
	Stepped     func(gaveWay bool)
	ReportBytes func(bytes int64)
}

// DefaultMemory is the default limit of the caches in bytes.
const DefaultMemory = 256 << 20

// ordersPart is the part of the memory that orders may use.
const ordersPart = 4

// environment contains the caches and limits that all searches of a Searcher share.
type environment struct {
	Config // without zero values, except for Limit

	admission *admission.Admission
	cache     *cache.Memory
	filler    *fill.Filler

	memoryBytes atomic.Int64 // limit of cache and orders
	orders      recent.Orders
	totals      recent.Totals
	overflows   recent.Overflows
	texts       recent.TextCache
	units       recent.UnitCache
}

// newEnvironment returns an environment with empty caches.
func newEnvironment(c Config) *environment {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Walk = cmp.Or(c.Walk, defaultWalk)
	e := &environment{Config: c, admission: admission.New(c.MaxConns), cache: cache.New(0, c.Now)}
	e.filler = fill.New(fill.Config{
		Store: c.Store, Cache: e.cache, Admission: e.admission, Now: c.Now, Limit: c.Limit,
		ChangeTakes: c.ChangeTakes, StepTakes: c.StepTakes, Stepped: c.Stepped, ReportBytes: c.ReportBytes,
	})
	e.setMemory(c.MemoryBytes)
	return e
}

// setMemory changes the limit of the caches.
func (e *environment) setMemory(bytes int64) {
	bytes = max(0, cmp.Or(bytes, DefaultMemory))
	e.memoryBytes.Store(bytes)
	e.orders.SetLimit(int(bytes / ordersPart))
	e.shareMemory()
}

// shareMemory gives the cache the memory that orders do not use.
func (e *environment) shareMemory() {
	_, bytes := e.orders.Size()
	e.cache.SetLimit(e.memoryBytes.Load() - int64(bytes))
}

// storeOrder stores an order for later searches.
func (e *environment) storeOrder(k recent.Key, o *recent.Order) {
	e.orders.StoreOrder(k, o)
	e.shareMemory()
}

// removeOrder removes an order that is no longer valid.
func (e *environment) removeOrder(k recent.Key) {
	e.orders.RemoveOrder(k)
	e.shareMemory()
}

// The limits of a walk.
const (
	// maxWalkTests is the number of resources that a walk may test for a page. If it would test more, fetching all
	// matches is cheaper.
	maxWalkTests = 10_000
	// defaultWalk is the default of Config.Walk. If the number of rows of a page is known, a walk ends after so many tests, and all
	// matches are fetched. They may be adjacent, such as the matches of one patient, and far from the beginning of the walk.
	defaultWalk = 2 * maxWalkTests
)
