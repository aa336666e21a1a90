package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/gen/db"
	"kiln/queries"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/telemetry"
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
	probe      *pgxpool.Pool // for signs of life and places of the replay, which must not wait behind reads

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

// place is a place of the primary's log at a time.
type logPlace struct {
	at  time.Time
	lsn uint64
}

// replicas are the standbys of a Store, and the positions of its primary. Searches and reads on a standby
// run in one REPEATABLE READ transaction, without the search cache: dictionaries, parts and type numbers are read in its
// snapshot. The search parameters of this server are used only where the standby's row of search_registry equals
// the last one that was read from the primary; else the primary answers. So does it where a search has written the set
// of codes that it needs.
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

// endedBefore says that the primary has ended all transactions below a number.
type endedBefore struct {
	epoch EpochID
	xid   uint64
}

type positionAnswer struct {
	p   Position
	err error
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
		if rep.pool, err = rep.open(ctx, cmp.Or(r.config.MaxConns, maxConns), settings(statementTimeout)); err != nil {
			return err
		}
		if rep.probe, err = rep.open(ctx, 2, settings(watchTimeout)); err != nil {
			return err
		}
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

// positionSQL reads the place up to which commits are on disk. Where commits do not wait for the disk it is the place of
// the last record, which the WAL writer writes within 200 ms.
const positionSQL = `SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN pg_current_wal_insert_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn,
	(SELECT g.epoch FROM search_registry g), pg_snapshot_xmin(pg_current_snapshot())::text::bigint`

// readPosition asks the primary.
func (r *replicas) readPosition(ctx context.Context) (Position, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	var lsn, epoch, ended int64
	if err := r.side.QueryRow(ctx, "SELECT x.p::bigint, x.e, x.n FROM ("+positionSQL+") AS x (p, e, n)").Scan(&lsn, &epoch, &ended); err != nil {
		return Position{}, err
	}
	p := Position{Epoch: EpochID(epoch), LSN: uint64(lsn)}
	if was := r.ended.Load(); was == nil || was.epoch < p.Epoch || was.epoch == p.Epoch && was.xid < uint64(ended) {
		r.ended.Store(&endedBefore{p.Epoch, uint64(ended)}) // a lost race costs a question
	}
	for {
		was := r.now.Load()
		if !was.isBefore(p) || r.now.CompareAndSwap(was, &p) {
			return p, nil
		}
	}
}

// answerPositions asks for all that wait at once: an answer holds for everybody who came before the question.
func (r *replicas) answerPositions(ctx context.Context) {
	for {
		var all []chan<- positionAnswer
		select {
		case one := <-r.waiting:
			all = append(all, one)
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case one := <-r.waiting:
				all = append(all, one)
			default:
				more = false
			}
		}
		p, err := r.readPosition(ctx)
		for again := 0; err != nil && again < 3 && !r.isPrimaryLost() && ctx.Err() == nil; again++ { // after a promotion, connections to the old primary fail
			p, err = r.readPosition(ctx)
		}
		for _, one := range all {
			one <- positionAnswer{p, err}
		}
	}
}

// PositionNow returns a position behind everything that was committed before the call.
func (s *Store) PositionNow(ctx context.Context) (Position, error) {
	answer := make(chan positionAnswer, 1)
	select {
	case s.replicas.waiting <- answer:
	case <-ctx.Done():
		return Position{}, ctx.Err()
	}
	select {
	case a := <-answer:
		return a.p, translateError(a.err)
	case <-ctx.Done():
		return Position{}, ctx.Err()
	}
}

// watchPrimary notes where the primary's log is, and whether it answers.
func (r *replicas) watchPrimary(ctx context.Context, s *Store, first chan<- struct{}) {
	for failed := 0; ; {
		p, err := r.readPosition(ctx)
		if ctx.Err() != nil {
			if first != nil {
				close(first)
			}
			return
		}
		now := time.Now()
		r.mu.Lock()
		if err == nil {
			failed, r.lastSeen = 0, now
			if n := len(r.places); n == 0 || r.places[n-1].lsn != p.LSN {
				r.places = append(r.places, logPlace{now, p.LSN})
			}
			if keep := int(time.Hour / watchEvery); len(r.places) > keep {
				r.places = slices.Delete(r.places, 0, len(r.places)-keep)
			}
		} else {
			failed++
		}
		r.mu.Unlock()
		if was, is := r.lost.Load(), err != nil; was != is {
			r.lost.Store(is)
			if is {
				s.log.Error("the primary does not answer", slog.Any("error", err))
			} else {
				s.log.Info("the primary answers again")
			}
		}
		if first != nil {
			close(first)
			first = nil
		}
		if !SleepFor(ctx, watchEvery) {
			return
		}
	}
}

// lagOf returns how long ago the primary was first seen behind a place, 0 where it was not.
func (r *replicas) lagOf(lsn uint64, lastReplay time.Time) (lag time.Duration, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.written().LSN
	if lsn >= now {
		return 0, 0
	}
	i, _ := slices.BinarySearchFunc(r.places, lsn+1, func(p logPlace, l uint64) int { return cmp.Compare(p.lsn, l) })
	if i == len(r.places) {
		return 0, int64(now - lsn)
	}
	lag = time.Since(r.places[i].at)
	if i == 0 && !lastReplay.IsZero() { // it was behind before this server looked
		lag = max(lag, time.Since(lastReplay))
	}
	return lag, int64(now - lsn)
}

// open makes the pool. Its connections are of the PostgreSQL that the watch asks, and of no other behind the same address.
func (rep *replica) open(ctx context.Context, maxConns int, settings string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(rep.url)
	if err != nil {
		return nil, err
	}
	rep.host = net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
	c.MaxConns = int32(maxConns)
	c.MaxConnIdleTime, c.MaxConnLifetime, c.MaxConnLifetimeJitter = 5*time.Minute, time.Hour, 10*time.Minute
	c.ConnConfig.ConnectTimeout = cmp.Or(c.ConnConfig.ConnectTimeout, watchTimeout)
	c.ConnConfig.Tracer = telemetry.Statements{}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		var started string
		var recovers bool
		if err := conn.QueryRow(ctx, "SELECT pg_postmaster_start_time()::text, pg_is_in_recovery()").Scan(&started, &recovers); err != nil {
			return err
		}
		rep.mu.Lock()
		same := started == rep.started
		rep.mu.Unlock()
		if !same || !recovers {
			return fmt.Errorf("%s: another PostgreSQL answers", rep.name)
		}
		_, err := conn.PgConn().Exec(ctx, settings+"SET default_transaction_read_only = on;").ReadAll()
		return err
	}
	c.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return !isPromoted(conn.PgConn()), nil }
	return pgxpool.NewWithConfig(ctx, c)
}

// isPromoted reports whether a connection that was made to a standby is one to a primary now. PostgreSQL reports it with the
// end of each statement.
func isPromoted(conn *pgconn.PgConn) bool { return conn.ParameterStatus("in_hot_standby") != "on" }

// serves reports whether reads may go to the standby.
func (rep *replica) serves() bool {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	return rep.state == Streaming && rep.epoch == rep.store.Epoch()
}

// seen is the answer of a standby to the watch.
type seenReplica struct {
	started    string
	recovers   bool
	system     int64
	database   int64
	epoch      EpochID
	schema     int64
	replayed   uint64
	lastReplay time.Time
}

func askReplica(ctx context.Context, conn *pgx.Conn) (a seenReplica, err error) {
	var last *time.Time
	var epoch, replayed int64
	var migrated bool
	err = conn.QueryRow(ctx, `SELECT pg_postmaster_start_time()::text, pg_is_in_recovery(), (SELECT c.system_identifier FROM pg_control_system() c),
		(SELECT d.oid::bigint FROM pg_database d WHERE d.datname = current_database()),
		coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0), pg_last_xact_replay_timestamp(),
		to_regclass('search_registry') IS NOT NULL AND to_regclass('goose_db_version') IS NOT NULL`).
		Scan(&a.started, &a.recovers, &a.system, &a.database, &replayed, &last, &migrated)
	if err != nil || !migrated {
		return a, err
	}
	a.replayed = uint64(replayed)
	if last != nil {
		a.lastReplay = *last
	}
	err = conn.QueryRow(ctx, "SELECT g.epoch, (SELECT max(v.version_id) FROM goose_db_version v WHERE v.is_applied) FROM search_registry g").Scan(&epoch, &a.schema)
	a.epoch = EpochID(epoch)
	return a, err
}

// watch looks at the standby until ctx ends: on a connection that it keeps, and on a new one each time, which may
// reach another PostgreSQL.
func (rep *replica) watch(ctx context.Context, looked chan<- struct{}) {
	var kept *pgx.Conn
	defer func() {
		if kept != nil {
			closeQuietly(kept)
		}
	}()
	for n := 0; ; n++ {
		kept = rep.look(ctx, kept, n%2 == 1)
		if looked != nil {
			close(looked)
			looked = nil
		}
		if !SleepFor(ctx, watchEvery) {
			return
		}
	}
}

// look asks the standby once, and returns the connection to keep.
func (rep *replica) look(ctx context.Context, kept *pgx.Conn, afresh bool) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	var a seenReplica
	var err error
	if kept == nil {
		kept, err = pgx.Connect(ctx, rep.url)
	}
	if err == nil {
		if a, err = askReplica(ctx, kept); err != nil {
			closeQuietly(kept)
			kept = nil
		}
	}
	var other string
	if err == nil && afresh {
		if conn, e := pgx.Connect(ctx, rep.url); e == nil {
			_ = conn.QueryRow(ctx, "SELECT pg_postmaster_start_time()::text").Scan(&other)
			closeQuietly(conn)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return kept
	}
	rep.judge(a, other, err)
	return kept
}

// judge sets the state.
func (rep *replica) judge(a seenReplica, other string, err error) {
	s := rep.store
	rep.mu.Lock()
	before, restarted := rep.state, false
	state, reason := Streaming, ""
	e := s.memory.Load().epochs
	last := e[len(e)-1]
	if err == nil && a.started != rep.started {
		restarted = rep.started != ""
		rep.started = a.started
		rep.replayed.Store(0)
	}
	if other != "" && other != rep.started {
		rep.several = time.Now()
	}
	rep.lag, rep.bytes = s.replicas.lagOf(a.replayed, a.lastReplay)
	switch {
	case err != nil:
		state, reason = Unreachable, reasonOf(err)
		rep.lag, rep.bytes = 0, 0
	case TimeSince(rep.several) < severalFor:
		state, reason = SeveralBehind, "different PostgreSQLs answer at this address"
	case !a.recovers:
		state, reason = IsPrimary, "it is not in recovery"
		rep.lag, rep.bytes = 0, 0
	case a.system != last.SystemIdentifier || a.database != last.DatabaseOID:
		state, reason = Foreign, "it is another database than the primary's"
	case a.schema != queries.Latest():
		state, reason = OtherSchema, fmt.Sprintf("its schema has version %d, this build needs %d", a.schema, queries.Latest())
	case a.epoch != last.ID:
		state, reason = Foreign, "it is not of the primary's epoch"
	case rep.lag > s.replicas.config.MaxLag:
		state, reason = Lagging, fmt.Sprintf("it is %s behind", rep.lag.Round(time.Second))
	}
	rep.state, rep.reason, rep.epoch = state, reason, a.epoch
	rep.mu.Unlock()
	if err == nil {
		rep.noteReplayed(a.replayed, a.started)
	}
	if restarted || state != Streaming && before == Streaming {
		go rep.pool.Reset()
		go rep.probe.Reset()
	}
	if state != before {
		level := slog.LevelWarn
		if state == Streaming || state == IsPrimary {
			level = slog.LevelInfo
		}
		s.log.Log(context.Background(), level, "a replica has another state", "replica", rep.name, "state", string(state), "reason", reason)
	}
}

func reasonOf(err error) string {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return pg.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	}
	return "it cannot be reached"
}

// noteReplayed raises the place that the standby is known to have replayed.
func (rep *replica) noteReplayed(lsn uint64, started string) {
	rep.mu.Lock()
	defer rep.mu.Unlock()
	if rep.started == started && lsn > rep.replayed.Load() {
		rep.replayed.Store(lsn)
	}
}

// replayQuestion is a question about the place of the replay, which all who wait share.
type replayQuestion struct {
	asked time.Time
	done  chan struct{}
	err   error // once done is closed
}

// askReplayed asks where the replay is, by a question that begins after the call. It is a sign of life.
func (rep *replica) askReplayed(ctx context.Context) error {
	began := time.Now()
	for {
		rep.mu.Lock()
		q := rep.question
		if q == nil {
			q = &replayQuestion{asked: time.Now(), done: make(chan struct{})}
			rep.question = q
			go rep.answer(q, rep.started)
		}
		rep.mu.Unlock()
		select {
		case <-q.done:
			if !q.asked.Before(began) {
				return q.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer asks the standby. Nobody who goes away ends the question.
func (rep *replica) answer(q *replayQuestion, started string) {
	ctx, cancel := context.WithTimeout(context.Background(), rep.store.replicas.patience())
	defer cancel()
	var lsn int64
	q.err = rep.probe.QueryRow(ctx, "SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0)").Scan(&lsn)
	if q.err == nil {
		rep.noteReplayed(uint64(lsn), started)
	}
	rep.mu.Lock()
	rep.question = nil
	rep.mu.Unlock()
	close(q.done)
}

// ReplicaReader are the reads of one snapshot of a standby.
type ReplicaReader struct {
	Tx
	parts *match.Parts // nil until a search asks
}

// errUsePrimary is the error of a read that a standby cannot answer exactly.
var errUsePrimary = errors.New("store: the primary has to answer")

// ErrUsePrimary returns the error by which a read says that the primary has to answer.
func ErrUsePrimary() error { return errUsePrimary }

// Search is Store.Search in the snapshot.
func (t *ReplicaReader) Search(ctx context.Context, q *search.Query) (*SearchResult, error) {
	s := t.store
	if t.parts == nil {
		r, err := db.New(t.tx).ParametersState(ctx)
		if err != nil {
			return nil, translateError(err)
		}
		known := s.replicas.parameter.Load()
		is := ParametersState{Version: r.Version, Progress: r.Progress, Definitions: r.Definitions, Fingerprint: r.Fingerprint, Epoch: EpochID(r.Epoch)}
		if known == nil || *known != is {
			return nil, errUsePrimary
		}
		t.parts = partsOf(r.MoreParts)
	}
	r, err := s.searcher.SearchOn(ctx, t.tx, q, replicaSearchable{searchable{s}, t})
	return r, translateError(err)
}

// replicaSearchable is the standby as searches see it.
type replicaSearchable struct {
	searchable
	t *ReplicaReader
}

func (v replicaSearchable) Parts(context.Context) (*match.Parts, error) { return v.t.parts, nil }

// TypeNumber asks the snapshot for a type that this server has not seen.
func (v replicaSearchable) TypeNumber(ctx context.Context, typ string) (int16, bool, error) {
	if n, ok := v.KnownType(typ); ok {
		return n, true, nil
	}
	rows, err := db.New(v.t.tx).ResourceTypes(ctx)
	for _, r := range rows {
		if r.Name == typ {
			return r.Typ, true, nil
		}
	}
	return 0, false, err
}

// Served says where an answer came from.
type Served struct {
	Source   string   // primary, or replica-N
	Position Position // behind everything that the answer shows; the zero Position where nobody could tell
}

// ReadOnReplica runs read on a standby that has replayed a position. ok is false where none can answer: the
// primary has to. It waits at most ReplicaConfig.Wait for the position. read may be called more than once: while the
// primary is lost, a read that a standby has failed is repeated on the others.
func (s *Store) ReadOnReplica(ctx context.Context, need Position, read func(context.Context, *ReplicaReader) error) (served Served, ok bool, err error) {
	r := &s.replicas
	epoch := s.Epoch()
	place := need.LSN
	if need.Epoch != epoch { // the caller knows that the present epoch contains it
		place = 0
	}
	var failed []*replica
	for {
		if !r.mayServe() {
			return served, false, nil
		}
		began := time.Now()
		rep, reason := r.choose(ctx, place, failed)
		if rep == nil {
			r.noteFallback(reason)
			return served, false, nil
		}
		at, err := rep.read(ctx, began, read)
		if err == nil || isAnswer(ctx, err) {
			if s.Epoch() == epoch && at.LSN != 0 {
				rep.reads.Add(1)
				at.Epoch = epoch
				return Served{rep.name, at}, true, err
			}
			reason = fellForState
		} else if reason = fellForLost; errors.Is(err, errUsePrimary) {
			reason = fellForState
		} else if isConflict(err) {
			reason = fellForConflict
		}
		rep.fallbacks.Add(1)
		r.noteFallback(reason)
		failed = append(failed, rep)
		if !r.isPrimaryLost() || ctx.Err() != nil {
			return served, false, nil
		}
	}
}

// isAnswer reports whether the error of a read is the client's to know: another PostgreSQL would give it too.
func isAnswer(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	var pg *pgconn.PgError
	return outcome.Theirs(err) && !errors.As(err, &pg) || errors.Is(err, context.DeadlineExceeded) && !pgconn.Timeout(err)
}

// isConflict reports whether replay has cancelled a statement.
func isConflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

func (r *replicas) noteFallback(reason string) {
	n, _ := r.fell.LoadOrStore(reason, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// choose returns a standby that has replayed a place, in turn, or nil and the reason. It waits for the first that has it,
// but for none that has failed.
func (r *replicas) choose(ctx context.Context, place uint64, failed []*replica) (*replica, string) {
	var list []*replica
	first := int(r.next.Add(1))
	for i := range r.list {
		if rep := r.list[(first+i)%len(r.list)]; rep.serves() && !slices.Contains(failed, rep) {
			list = append(list, rep)
		}
	}
	if len(list) == 0 {
		return nil, fellForState
	}
	has := func() *replica {
		for _, rep := range list {
			if rep.replayed.Load() >= place && rep.serves() {
				return rep
			}
		}
		return nil
	}
	if rep := has(); rep != nil {
		return rep, ""
	}
	began := time.Now()
	if r.Waited != nil {
		defer func() { r.Waited(time.Since(began)) }()
	}
	wait, cancel := context.WithTimeout(ctx, r.config.Wait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 8*time.Millisecond) {
		answered := make(chan struct{}, len(list)) // all are asked at once: one of them may hang
		for _, rep := range list {
			go func() {
				_ = rep.askReplayed(wait)
				answered <- struct{}{}
			}()
		}
		for range list {
			<-answered
			if rep := has(); rep != nil {
				return rep, ""
			}
		}
		if !SleepFor(wait, pause) { // nothing tells of a replay
			return nil, fellForPosition
		}
	}
}

// errReplicaHangs is the cause of the end of a read on a standby that gives no sign of life.
var errReplicaHangs = errors.New("store: the replica does not answer")

// leastPatience is how long a standby may be silent where ReplicaConfig.Wait is shorter.
const leastPatience = 20 * time.Millisecond

// patience is how long a standby may be silent while a request waits for it: longer where nobody else could answer.
func (r *replicas) patience() time.Duration {
	if r.isPrimaryLost() {
		return max(r.config.Wait, watchTimeout)
	}
	return max(r.config.Wait, leastPatience)
}

// keepAlive returns a context that ends when the standby gives no sign of life within patience. A long
// statement goes on while another connection is answered.
func (rep *replica) keepAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	half := rep.store.replicas.patience() / 2
	var again *time.Timer
	var mu sync.Mutex
	mu.Lock()
	again = time.AfterFunc(half, func() {
		sign, end := context.WithTimeout(ctx, half)
		defer end()
		if err := rep.askReplayed(sign); err != nil && ctx.Err() == nil {
			cancel(errReplicaHangs)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			again.Reset(half)
		}
	})
	mu.Unlock()
	return ctx, func() {
		cancel(context.Canceled)
		mu.Lock()
		defer mu.Unlock()
		again.Stop()
	}
}

// read runs a read in one snapshot. The place lies behind everything that the snapshot shows: the commit that is
// being replayed can be visible before pg_last_wal_replay_lsn() counts it, and then WAL behind that place has been received.
func (rep *replica) read(outer context.Context, began time.Time, read func(context.Context, *ReplicaReader) error) (at Position, err error) {
	rep.mu.Lock()
	started := rep.started
	rep.mu.Unlock()
	ctx, end := rep.keepAlive(outer)
	defer end()
	begin, cancel := context.WithDeadline(ctx, began.Add(rep.store.replicas.patience()))
	conn, err := rep.pool.Acquire(begin)
	if err != nil {
		cancel()
		return at, fmt.Errorf("%w: %s: %w", errUsePrimary, rep.name, err)
	}
	defer conn.Release()
	tx, err := conn.BeginTx(begin, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	cancel()
	if err != nil {
		return at, fmt.Errorf("begin on %s: %w", rep.name, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	t := &ReplicaReader{Tx: Tx{store: rep.store, tx: tx}}
	answer := read(ctx, t)
	if cause := context.Cause(ctx); errors.Is(cause, errReplicaHangs) {
		return at, cause
	}
	if answer != nil && !isAnswer(outer, answer) {
		return at, answer
	}
	var replayed, received, seen int64
	err = tx.QueryRow(ctx, `SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0), coalesce((pg_last_wal_receive_lsn() - '0/0'::pg_lsn)::bigint, 0),
		pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&replayed, &received, &seen)
	switch {
	case err != nil:
		return at, err
	case isPromoted(conn.Conn().PgConn()):
		return at, errUsePrimary
	}
	at = Position{LSN: uint64(replayed), Seen: uint64(seen)}
	if received > replayed {
		at.LSN++
	}
	at.LSN = max(at.LSN, 1)
	rep.noteReplayed(at.LSN, started) // every later snapshot of it shows at least this
	return at, answer
}

// AwaitOnPrimary waits until the primary shows everything that a standby has shown: a read that goes from one to the
// other does not go back in time. It fails with transient.
func (s *Store) AwaitOnPrimary(ctx context.Context, need Position) error {
	r := &s.replicas
	epoch := s.Epoch()
	shows := func() bool {
		ended := r.ended.Load()
		return need.Seen == 0 || need.Epoch != epoch || ended != nil && ended.epoch == epoch && ended.xid >= need.Seen
	}
	if shows() {
		return nil
	}
	if _, err := s.PositionNow(ctx); err != nil {
		return err
	}
	if shows() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var waited []string // transactions of the primary that the standby may have shown
	first := true
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		running, err := readRunning(ctx, r.side, need.Seen)
		if err != nil {
			return translateError(err)
		}
		if first {
			first, waited = false, r.committedOnReplica(ctx, need.LSN, running)
		} else {
			waited = slices.DeleteFunc(waited, func(x string) bool { return !slices.Contains(running, x) })
		}
		switch {
		case len(waited) == 0 || s.Epoch() != epoch:
			return nil
		case !SleepFor(ctx, pause):
			return unavailableError("the primary does not show a commit yet that a replica has shown")
		}
	}
}

// readRunning lists the running transactions of the primary below a number, in its snapshot and beyond. It leaves out
// transactions that wait for their client or for a lock: these have not begun to commit, and no standby can have shown them.
func readRunning(ctx context.Context, conn querier, below uint64) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT x::text FROM (SELECT pg_current_snapshot() AS now) s,
			LATERAL (SELECT pg_snapshot_xip(s.now) AS x
				UNION ALL SELECT later::text::xid8 FROM generate_series(pg_snapshot_xmax(s.now)::text::bigint, least($1 - 1, pg_snapshot_xmax(s.now)::text::bigint + 10000)) later) running
		WHERE x < $1::bigint::text::xid8 AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.backend_xid = x::xid AND (a.state LIKE 'idle in transaction%' OR a.wait_event_type = 'Lock'))`, int64(below))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// committedOnReplica filters the primary's running transactions: a standby behind a place has committed the returned ones. Without
// such a standby it returns all.
func (r *replicas) committedOnReplica(ctx context.Context, place uint64, running []string) []string {
	if len(running) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.patience())
	defer cancel()
	for _, rep := range r.list {
		if !rep.serves() || rep.replayed.Load() < place && (rep.askReplayed(ctx) != nil || rep.replayed.Load() < place) {
			continue
		}
		var committed []string
		rows, err := rep.probe.Query(ctx, "SELECT x FROM unnest($1::text[]) x WHERE pg_xact_status(x::xid8) = 'committed'", running)
		if err == nil {
			committed, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		var pg *pgconn.PgError
		switch {
		case err == nil:
			return committed
		case errors.As(err, &pg) && pg.Code == "22023" && len(running) > 1: // some are in its future
			return slices.DeleteFunc(running, func(x string) bool { return len(r.committedOnReplica(ctx, place, []string{x})) == 0 })
		case errors.As(err, &pg) && pg.Code == "22023":
			return nil
		}
	}
	return running
}

// ReadFact is Read of a resource that decides on access: from the primary, and from a standby while reads continue
// without one.
func (s *Store) ReadFact(ctx context.Context, typ, id string) (v fhir.Version, err error) {
	if s.ReadsContinue() {
		_, ok, err := s.ReadOnReplica(ctx, Position{}, func(ctx context.Context, t *ReplicaReader) (err error) {
			v, err = t.Read(ctx, typ, id)
			return err
		})
		if ok {
			return v, err
		}
	}
	return s.Read(ctx, typ, id)
}

// SearchFact is ReadFact for a search.
func (s *Store) SearchFact(ctx context.Context, q *search.Query) (found *SearchResult, err error) {
	if s.ReadsContinue() {
		_, ok, err := s.ReadOnReplica(ctx, Position{}, func(ctx context.Context, t *ReplicaReader) (err error) {
			found, err = t.Search(ctx, q)
			return err
		})
		if ok {
			return found, err
		}
	}
	return s.Search(ctx, q)
}

// FactPool returns the connections to the standby that has replayed most while reads continue without a primary, else nil.
func (s *Store) FactPool() *pgxpool.Pool {
	if !s.ReadsContinue() {
		return nil
	}
	var best *replica
	for _, rep := range s.replicas.list {
		if rep.serves() && (best == nil || rep.replayed.Load() > best.replayed.Load()) {
			best = rep
		}
	}
	if best == nil {
		return nil
	}
	return best.pool
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
