package store

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/strategy"
	"kiln/server/telemetry"
)

// Config says where the data is. Only URL is needed.
type Config struct {
	URL string // of the database, as pgx reads it
	// MaxConns bounds the connections of this server; 0 means 4 for each CPU, at
	// least 8. Fewer than 4 are 4. Three more serve dictionaries, surrogates and the flush of new terms.
	MaxConns int
	// StatementTimeout ends a statement that takes longer, in PostgreSQL; 0 means
	// two minutes, negative none.
	StatementTimeout time.Duration
	// Timeout is the longest that anyone waits for a database that does not answer
	// any more; 0 means ten seconds.
	Timeout time.Duration
	// KeepChanges is the age at which rows of the change log are deleted; 0 means 30 days.
	// Rows that a named reader of the feed has not passed are kept up to three times as
	// long.
	KeepChanges time.Duration
	// SearchMemory is the bytes that searches remember at most; 0 means
	// strategy.DefaultMemory, below 0 nothing.
	SearchMemory int64
	// SearchCandidates is how many rows the first condition of a search may find before the search counts and walks; 0 is
	// the default of plan.Compile.
	SearchCandidates int
	// ReportCacheBytes, if not nil, is called with the size of the search cache, after each change by
	// much, from one goroutine.
	ReportCacheBytes func(bytes int64)
	Replicas         ReplicaConfig    // without URLs the primary serves all reads
	Logger           *slog.Logger     // nil discards
	Now              func() time.Time // nil means time.Now
}

// Store is one server's way to the data. It is safe for concurrent use; any
// number of Stores, in any number of processes, may work on one database.
type Store struct {
	hooks   atomic.Pointer[map[string]Hook] // by resource type; the map is never changed
	indexer atomic.Pointer[Indexer]         // nil until IndexBy

	liveness *liveness
	timeout  time.Duration // Config.Timeout
	hosts    hostWatch
	pool     *pgxpool.Pool
	// side serves what must not wait for a transaction of the main pool, and what
	// such a transaction may ask for while it is open: surrogates, resource types
	// and dictionaries.
	side *pgxpool.Pool
	// transactions has an element for each InTx that is open.
	transactions chan struct{}

	log *slog.Logger
	now func() time.Time
	// latestMoment is the latest moment of an export that this server knows of, in microseconds
	// since 1970.
	latestMoment atomic.Int64

	memory atomic.Pointer[memory] // of the present epoch; nil before the first connection
	epochs epochs
	queue  queue
	reads  reader
	flush  flusher
	trim   changeTrimmer
	feed   atomic.Pointer[Feed] // nil until NewFeed

	searcher *strategy.Searcher
	replicas replicas
}

// querier are the methods that a pool, a connection and a transaction share.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Open connects to a migrated database.
func Open(ctx context.Context, c Config) (*Store, error) {
	s := &Store{log: c.Logger, now: c.Now}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	maxConns := c.MaxConns
	if maxConns == 0 {
		maxConns = max(8, 4*runtime.NumCPU())
	}
	workers := min(4, max(2, maxConns/4))
	maxConns = max(maxConns, workers+2)
	timeout := c.StatementTimeout
	if timeout == 0 {
		timeout = 2 * time.Minute
	}
	var err error
	s.timeout = cmp.Or(c.Timeout, 10*time.Second)
	if s.liveness, err = newLiveness(c.URL, s.timeout, s.log); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if s.pool, err = s.open(ctx, c.URL, maxConns, settings(timeout)); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	// A surrogate or a dictionary row matters only when a later commit uses it,
	// and that commit's flush covers it: these need not wait for the disk.
	if s.side, err = s.open(ctx, c.URL, 3, settings(timeout)+"SET synchronous_commit = off;"); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := s.loadTypes(ctx); err != nil {
		s.side.Close()
		s.pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	s.liveness.start()
	s.hosts.start(s, c.URL)
	s.flush.start(s)
	s.searcher = strategy.New(strategy.Config{Store: searchable{s}, MaxConns: maxConns, Now: s.now, Limit: c.SearchCandidates, MemoryBytes: c.SearchMemory, ReportBytes: c.ReportCacheBytes})
	// The queue's workers hold connections as well.
	s.transactions = make(chan struct{}, maxConns-workers-1)
	s.reads.start(s, readWorkers(maxConns))
	keep := c.KeepChanges
	if keep == 0 {
		keep = 30 * 24 * time.Hour
	}
	s.trim.start(s, keep)
	s.queue.start(s, workers)
	if err := s.openReplicas(ctx, c, maxConns, timeout); err != nil {
		s.Close()
		return nil, fmt.Errorf("open the replicas: %w", err)
	}
	return s, nil
}

// settings are the SQL that every connection begins with. Plans are made once for each
// statement and connection: their shape is decided in Go, and neither planning again nor
// compiling pays for statements of a few milliseconds. Sequential scans remain for
// statements without a usable index. A set of matches that does not fit into work_mem (56
// bytes a page; 29 MB for 500,000) keeps pages instead of rows: all rows of a page are then
// read and their terms compared, which costs many times as much. PostgreSQL ends a server's
// transaction that is idle for 10 s: readers of the change log on every server wait for it.
func settings(timeout time.Duration) string {
	return fmt.Sprintf(`SET default_transaction_isolation = 'read committed';
		SET plan_cache_mode = force_generic_plan;
		SET jit = off;
		SET enable_seqscan = off;
		SELECT set_config('work_mem', '64MB', false) WHERE pg_size_bytes(current_setting('work_mem')) < 64 << 20;
		SET idle_in_transaction_session_timeout = '10s';
		SET statement_timeout = %d;`, max(0, timeout.Milliseconds()))
}

func (s *Store) open(ctx context.Context, url string, maxConns int, settings string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c.MaxConns = int32(maxConns)
	c.MaxConnIdleTime = 5 * time.Minute
	c.MaxConnLifetime = time.Hour
	c.MaxConnLifetimeJitter = 10 * time.Minute
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	// A cancelled request cancels its statement in PostgreSQL.
	c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &cancelHandler{pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 2 * time.Second}}
	}
	c.ConnConfig.Tracer = telemetry.Statements{}
	s.Watch(c)
	c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return conn.PgConn().CustomData()[cancelled] == nil && s.ofPresentEpoch(ctx, conn), nil
	}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := s.admitConnection(ctx, conn); err != nil {
			return err
		}
		_, err := conn.PgConn().Exec(ctx, settings).ReadAll()
		return err
	}
	return pgxpool.NewWithConfig(ctx, c)
}

// Watch makes what waits for a connection of a pool, which need not be the store's, fail
// within Timeout when the database hangs. The connections of the pool are of the present epoch.
func (s *Store) Watch(c *pgxpool.Config) {
	s.useHosts(c.ConnConfig)
	c.ConnConfig.OnNotice = noteNotice
	s.liveness.watch(&c.ConnConfig.Config, false)
	c.BeforeConnect = s.liveness.admitConnection
	c.AfterConnect = s.admitConnection
	c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) { return s.ofPresentEpoch(ctx, conn), nil }
}

// cancelHandler cancels statements, and marks their connections, which the pool does not
// lend again: PostgreSQL may hear of the cancellation when the statement has ended, and
// would cancel the next one, which is somebody else's.
type cancelHandler struct {
	pgconn.CancelRequestContextWatcherHandler
}

// cancelled is the key of the mark in the connection's CustomData.
const cancelled = "cancelled"

// HandleUnwatchAfterCancel is called by the user of the connection.
func (h *cancelHandler) HandleUnwatchAfterCancel() {
	h.Conn.CustomData()[cancelled] = true
	h.CancelRequestContextWatcherHandler.HandleUnwatchAfterCancel()
}

// checkVersion refuses PostgreSQL before 14, which has no infinite numerics.
func checkVersion(version string) error { // "15.18 (Debian 15.18-0+deb12u1)", "18beta1"
	digits := strings.TrimLeft(version, "0123456789")
	major, err := strconv.Atoi(version[:len(version)-len(digits)])
	if err == nil && major < 14 {
		return fmt.Errorf("the database is PostgreSQL %s; 14 or newer is needed", version)
	}
	return nil
}

// Close waits for writes that have begun and closes the connections. Writes that
// come later fail.
func (s *Store) Close() {
	s.replicas.close()
	s.searcher.Close()
	s.queue.stop()
	s.reads.stop()
	s.flush.stop()
	s.trim.stop()
	s.liveness.stop()
	s.hosts.stop()
	s.hosts.done.Wait()
	s.pool.Close()
	s.side.Close()
}

// Ping asks the database for a sign of life.
func (s *Store) Ping(ctx context.Context) error { return translateError(s.pool.Ping(ctx)) }

// Pool is for parts that keep tables of their own in the database.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }
