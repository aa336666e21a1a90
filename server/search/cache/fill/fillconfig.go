package fill

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/match"
)

// Store is the database from which items are read.
type Store interface {
	// Acquire takes a connection from the pool. The caller releases it.
	Acquire(ctx context.Context) (*pgxpool.Conn, error)
	// Acquired returns the number of connections that were taken from the pool so far, by any caller.
	Acquired() int64
	// KnownType returns the number of a resource type; false if this server has not seen the type.
	KnownType(typ string) (int16, bool)
	// Parts returns the parts of index_date and index_quantity that a statement has to read.
	Parts(ctx context.Context) (*match.Parts, error)
	// Registry returns the search parameters in force; nil if the store has none.
	Registry() *search.Registry
}

// Admission limits the running searches.
type Admission interface {
	// IsBusy reports whether a short search would have to wait.
	IsBusy() bool
}

// Conn is a connection or a transaction.
type Conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Config is the configuration of a Filler.
type Config struct {
	Store     Store
	Cache     *cache.Memory
	Admission Admission
	Now       func() time.Time
	// Limit is match.Env.Limit.
	Limit int
	// ChangeTakes is the approximate time in which one changed resource is applied, 0 for the default. A cache
	// that lags catches up if that is faster than reading everything again.
	ChangeTakes time.Duration
	// StepTakes is the approximate time between two checks of a catch-up whether to give way to writers, 0 for the
	// default. Stepped, if not nil, is called after each check with its outcome.
	StepTakes time.Duration
	Stepped   func(gaveWay bool)
	// ReportBytes, if not nil, is called with the size of the cache after each change of some megabytes, from one goroutine.
	ReportBytes func(bytes int64)
}

const (
	// defaultChangeTakes was measured with cold pages. It is a third of that if nothing is read from the disk.
	defaultChangeTakes = 50 * time.Microsecond
	// defaultStepTakes is the time of one transaction.
	defaultStepTakes = time.Second
)

// withDefaults returns the configuration with the defaults in place of zero values.
func (c Config) withDefaults() Config {
	c.ChangeTakes = cmp.Or(c.ChangeTakes, defaultChangeTakes)
	c.StepTakes = cmp.Or(c.StepTakes, defaultStepTakes)
	return c
}
