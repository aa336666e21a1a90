package store

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ReplicaConfig describes the standbys that serve reads.
type ReplicaConfig struct {
	URLs           []string      // one PostgreSQL each
	Wait           time.Duration // longest wait of a read for its position
	MaxLag         time.Duration // a standby further behind serves nobody
	MaxConns       int           // for each standby; 0: as the primary
	WithoutPrimary time.Duration // how long reads continue without a primary
}

// ReplicaState says whether a standby serves reads, and why not.
type ReplicaState string

// The states of a standby. Streaming alone serves.
const (
	Streaming     ReplicaState = "streaming"
	Lagging       ReplicaState = "lagging"     // further behind than ReplicaConfig.MaxLag
	Unreachable   ReplicaState = "unreachable" // it does not answer
	IsPrimary     ReplicaState = "primary"     // not in recovery
	Foreign       ReplicaState = "foreign"     // another database, or not the primary's epoch
	OtherSchema   ReplicaState = "schema"      // another schema version
	SeveralBehind ReplicaState = "several"     // the URL reaches different PostgreSQLs
)

// Reasons why a read went to the primary, or to another replica.
const (
	fellForPosition = "position"
	fellForConflict = "conflict"
	fellForLost     = "lost"
	fellForState    = "state"
)

// ReplicaStatistics is a standby as administrators see it.
type ReplicaStatistics struct {
	Name       string       `json:"name"`
	Host       string       `json:"host"`
	State      ReplicaState `json:"state"`
	Reason     string       `json:"reason"`
	LagBytes   int64        `json:"lag_bytes"`
	LagSeconds float64      `json:"lag_seconds"`
	Reads      int64        `json:"reads"`
	Fallbacks  int64        `json:"fallbacks"`
}

// The intervals of the watch.
const (
	watchEvery   = 500 * time.Millisecond
	watchTimeout = time.Second
	severalFor   = 30 * time.Second // after the last time that different PostgreSQLs answered
)

// replica is one standby.
type replica struct {
	name, host string
	url        string
	store      *Store
	pool       *pgxpool.Pool
	probe      *pgxpool.Pool                // for signs of life and places of the replay, which must not wait behind reads
	shared     reader                       // reads of one statement by id
	parts      atomic.Pointer[standbyParts] // that were seen last
	places     chan struct{}                // has an element for each snapshot with a connection: shared reads find one as well
	silent     atomic.Bool                  // it gave no sign of life, and none since

	mu      sync.Mutex
	state   ReplicaState
	reason  string
	started string // of its postmaster: two PostgreSQLs behind one URL differ
	epoch   EpochID
	lag     time.Duration
	bytes   int64
	several time.Time // when different PostgreSQLs answered last
	// question is under way; nil for none.
	question *replayQuestion

	replayed  atomic.Uint64 // known, of started
	reads     atomic.Int64
	fallbacks atomic.Int64
}

// replicas are the standbys of a Store, and the positions of its primary. Searches and reads on a standby
// see one snapshot, without the search cache: it has its own dictionaries, parts and type numbers. The search
// parameters of this server are used only where the standby's row of search_registry equals the last one that was read
// from the primary; else the primary answers. So does it where a search has written the set of codes that it needs.
type replicas struct {
	config  ReplicaConfig
	list    []*replica
	next    atomic.Uint32
	side    *pgxpool.Pool // one connection to the primary, for positions
	now     atomic.Pointer[Position]
	waiting chan chan<- positionAnswer
	left    sync.Map // EpochID to uint64: where a former epoch was left
	ended   atomic.Pointer[endedBefore]

	mu        sync.Mutex
	places    []logPlace // of the primary, ascending, for lags
	lastSeen  time.Time  // when the primary answered last
	lost      atomic.Bool
	parameter atomic.Pointer[ParametersState]

	primaryReads atomic.Int64
	fell         sync.Map // reason to *atomic.Int64
	Waited       func(time.Duration)

	stop context.CancelFunc
	done sync.WaitGroup
}

// HasReplicas reports whether reads can be served by standbys. Without, nothing about positions is asked.
func (s *Store) HasReplicas() bool { return len(s.replicas.list) > 0 }

// OnPositionWait makes the Store tell f how long a read has waited for its position on a standby.
func (s *Store) OnPositionWait(f func(time.Duration)) { s.replicas.Waited = f }

// openReplicas begins to watch the standbys. None need be up.
func (s *Store) openReplicas(ctx context.Context, c Config, maxConns int, statementTimeout time.Duration) error {
	r := &s.replicas
	r.config = c.Replicas
	if len(r.config.URLs) == 0 {
		return nil
	}
	r.now.Store(&Position{})
	r.lastSeen = time.Now()
	r.waiting = make(chan chan<- positionAnswer, 1024)
	var err error
	if r.side, err = s.open(ctx, c.URL, 2, settings(watchTimeout*2)); err != nil {
		return err
	}
	for i, url := range r.config.URLs {
		rep := &replica{name: "replica-" + strconv.Itoa(i+1), url: url, store: s, state: Unreachable, reason: "it was not asked yet"}
		conns := cmp.Or(r.config.MaxConns, maxConns)
		rep.places = make(chan struct{}, max(1, conns-readWorkers(conns)))
		if rep.pool, err = rep.open(ctx, conns, settings(statementTimeout)); err != nil {
			return err
		}
		if rep.probe, err = rep.open(ctx, 2, settings(watchTimeout)); err != nil {
			return err
		}
		rep.parts.Store(&standbyParts{parts: partsOf(nil)})
		rep.shared.replica = rep
		rep.shared.start(s, readWorkers(conns))
		r.list = append(r.list, rep)
	}
	run, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.done.Go(func() { r.answerPositions(run) })
	first := make(chan struct{})
	r.done.Go(func() {
		r.watchPrimary(run, s, first)
	})
	<-first
	for _, rep := range r.list {
		looked := make(chan struct{})
		r.done.Go(func() { rep.watch(run, looked) })
		<-looked
	}
	return nil
}

func (r *replicas) close() {
	if r.stop == nil {
		return
	}
	r.stop()
	r.done.Wait()
	for _, rep := range r.list {
		rep.shared.stop()
		rep.pool.Close()
		rep.probe.Close()
	}
	r.side.Close()
}

func (r *replicas) written() Position {
	if p := r.now.Load(); p != nil {
		return *p
	}
	return Position{}
}

func (r *replicas) isPrimaryLost() bool { return r.lost.Load() }

// IsPrimaryLost reports that the primary does not answer. Without replicas nobody asks, and it is false.
func (s *Store) IsPrimaryLost() bool { return s.replicas.isPrimaryLost() }

// ReadsContinue reports whether standbys serve reads while the primary is lost.
func (s *Store) ReadsContinue() bool {
	r := &s.replicas
	if !r.isPrimaryLost() || !r.mayServe() {
		return false
	}
	return slices.ContainsFunc(r.list, func(rep *replica) bool { return rep.serves() })
}

// seenLast returns when the primary answered last.
func (r *replicas) seenLast() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastSeen
}

// mayServe reports whether the primary answers, or has answered recently enough.
func (r *replicas) mayServe() bool {
	if !r.isPrimaryLost() {
		return true
	}
	return TimeSince(r.seenLast()) < r.config.WithoutPrimary
}

// NotePrimaryRead counts a read that the primary has answered.
func (s *Store) NotePrimaryRead() { s.replicas.primaryReads.Add(1) }

// RoutingStatistics counts reads by source, and fallbacks by reason.
type RoutingStatistics struct{ Reads, Fallbacks map[string]int64 }

// RoutingStatistics returns the counts since the start.
func (s *Store) RoutingStatistics() RoutingStatistics {
	out := RoutingStatistics{Reads: map[string]int64{"primary": s.replicas.primaryReads.Load()}, Fallbacks: make(map[string]int64)}
	for _, rep := range s.replicas.list {
		out.Reads[rep.name] = rep.reads.Load()
	}
	for _, reason := range []string{fellForPosition, fellForConflict, fellForLost, fellForState} {
		out.Fallbacks[reason] = 0
		if n, ok := s.replicas.fell.Load(reason); ok {
			out.Fallbacks[reason] = n.(*atomic.Int64).Load()
		}
	}
	return out
}

// ReplicaStatistics returns the standbys, in the order of the configuration; never nil.
func (s *Store) ReplicaStatistics() []ReplicaStatistics {
	out := make([]ReplicaStatistics, 0, len(s.replicas.list))
	for _, rep := range s.replicas.list {
		rep.mu.Lock()
		out = append(out, ReplicaStatistics{Name: rep.name, Host: rep.host, State: rep.state, Reason: rep.reason, LagBytes: rep.bytes,
			LagSeconds: math.Round(rep.lag.Seconds()*1000) / 1000, Reads: rep.reads.Load(), Fallbacks: rep.fallbacks.Load()})
		rep.mu.Unlock()
	}
	return out
}
