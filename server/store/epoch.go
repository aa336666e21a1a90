package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// An EpochID identifies an epoch: one unbroken line of the database's history. It is the
// number, shifted left by 32 bits, and a mark that keeps two epochs of the same number apart.
// IDs ascend with the number. 0 is before all epochs.
type EpochID int64

// Number returns the number of the epoch. The first one is 1.
func (e EpochID) Number() int { return int(e >> 32) }

// FirstEpoch is the epoch of a new database.
const FirstEpoch EpochID = 1 << 32

// Epoch describes one epoch.
type Epoch struct {
	ID               EpochID
	Cause            string // created, promotion, copy or manual
	Since            time.Time
	SystemIdentifier int64
	DatabaseOID      int64
	Timeline         int
}

// Epochs lists the epochs of the database, the first one first.
func (s *Store) Epochs(ctx context.Context) ([]Epoch, error) {
	return readEpochs(ctx, db.New(s.pool))
}

// ReadEpochs lists the epochs of a migrated database, the first one first.
func ReadEpochs(ctx context.Context, url string) (list []Epoch, err error) {
	err = withConn(ctx, url, func(conn *pgx.Conn) error {
		list, err = readEpochs(ctx, db.New(conn))
		return err
	})
	return list, err
}

func readEpochs(ctx context.Context, q *db.Queries) ([]Epoch, error) {
	rows, err := q.Epochs(ctx)
	list := make([]Epoch, len(rows))
	for i, r := range rows {
		list[i] = Epoch{ID: EpochID(r.Epoch), Cause: r.Cause, Since: r.Since.UTC(), SystemIdentifier: r.SystemIdentifier, DatabaseOID: r.DatabaseOid, Timeline: int(r.Timeline)}
	}
	return list, translateError(err)
}

// StartEpoch stores a new epoch with the cause manual, and returns it. Servers notice it within
// seconds.
func StartEpoch(ctx context.Context, url string) (Epoch, error) { return noteEpoch(ctx, url, "manual") }

// NoteEpoch returns the last epoch of a migrated database. It first stores a new one where the
// database is on another line of history.
func NoteEpoch(ctx context.Context, url string) (Epoch, error) { return noteEpoch(ctx, url, "") }

func noteEpoch(ctx context.Context, url, forced string) (last Epoch, err error) {
	err = withConn(ctx, url, func(conn *pgx.Conn) error {
		q := db.New(conn)
		if _, err := q.NoteEpoch(ctx, forced); err != nil {
			return fmt.Errorf("store the epoch: %w", err)
		}
		list, err := readEpochs(ctx, q)
		if err == nil {
			last = list[len(list)-1]
		}
		return err
	})
	return last, err
}

func withConn(ctx context.Context, url string, use func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer closeQuietly(conn)
	return use(conn)
}

// memory is this server's cache of database state. It belongs to one epoch: a new epoch
// begins with an empty one. The search cache is not in it. The state of a search names its
// epoch, and SQL compares that (plan.Now).
type memory struct {
	epoch     EpochID
	epochs    []Epoch // all, the present one last
	rids      surrogates
	types     typeTable
	announced announcedParts
	texts     known // terms of token_text that are committed
	units     known // ids of quantity_unit that are committed
}

func newMemory(epochs []Epoch) *memory {
	m := &memory{epoch: epochs[len(epochs)-1].ID, epochs: epochs}
	m.types.current.Store(&types{})
	return m
}

// isFormer reports whether the database was in an epoch before the present one.
func (m *memory) isFormer(id EpochID) bool {
	return id != m.epoch && slices.ContainsFunc(m.epochs, func(e Epoch) bool { return e.ID == id })
}

// epochs owns the memory of a Store.
type epochs struct {
	mu       sync.Mutex // held while the memory is replaced
	watchers []func()
}

// errOldPrimary is the error of a connection to a PostgreSQL that lacks the present epoch.
var errOldPrimary = unavailableError("this PostgreSQL is of a former epoch: another one has taken over")

// Keys of the CustomData of a connection: the epoch of its PostgreSQL, and a mark of a connection
// that was made to a standby.
const (
	epochKey   = "epoch"
	standbyKey = "standby"
)

// admitConnection compares the line of a new connection with the last stored epoch, and stores a
// new epoch where they differ. No other statement runs on the connection before.
func (s *Store) admitConnection(ctx context.Context, conn *pgx.Conn) error {
	if err := checkVersion(conn.PgConn().ParameterStatus("server_version")); err != nil {
		return err
	}
	var backend int32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil { // a pooler invents that of the connection
		return err
	}
	conn.PgConn().CustomData()[backendKey] = backend
	q := db.New(conn)
	if conn.PgConn().ParameterStatus("in_hot_standby") == "on" {
		conn.PgConn().CustomData()[standbyKey] = true
		last, err := q.LastEpoch(ctx)
		if err != nil {
			return err
		}
		conn.PgConn().CustomData()[epochKey] = EpochID(last)
		return s.meetEpoch(ctx, conn, EpochID(last))
	}
	last, err := q.NoteEpoch(ctx, "")
	if err != nil {
		return fmt.Errorf("compare the epoch: %w", err)
	}
	conn.PgConn().CustomData()[epochKey] = EpochID(last)
	return s.meetEpoch(ctx, conn, EpochID(last))
}

// ofPresentEpoch reports whether a connection may be used: its PostgreSQL is of the present
// epoch, and is not a standby that was promoted after the connection was made. So a caller
// that first loads the memory and then takes a connection reads nothing older than that
// memory.
func (s *Store) ofPresentEpoch(ctx context.Context, conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	if data[standbyKey] != nil {
		var standby bool
		if err := conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil || !standby {
			return false
		}
	}
	return data[epochKey] == s.Epoch()
}

// meetEpoch replaces the memory where the last epoch of the database is not the one of the memory.
func (s *Store) meetEpoch(ctx context.Context, conn querier, last EpochID) error {
	if m := s.memory.Load(); m != nil && m.epoch == last {
		return nil
	}
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	before := s.memory.Load()
	if before != nil && before.epoch == last {
		return nil
	}
	if before != nil && before.isFormer(last) {
		return errOldPrimary
	}
	list, err := readEpochs(ctx, db.New(conn))
	if err != nil {
		return err
	}
	m := newMemory(list)
	if before != nil && s.HasReplicas() {
		s.noteLeft(ctx, conn, list, s.replicas.seenLast())
	}
	s.memory.Store(m)
	if before == nil {
		return nil
	}
	e := list[len(list)-1]
	s.log.Warn("the database has begun a new epoch: this server empties its caches", "epoch", e.ID.Number(), "cause", e.Cause)
	if s.searcher != nil {
		s.searcher.ForgetTotals()
		s.searcher.ForgetQueries()
	}
	// Connections to the PostgreSQL before end when they are given back.
	go s.pool.Reset()
	go s.side.Reset()
	for _, told := range s.epochs.watchers {
		go told()
	}
	return nil
}

// OnEpoch makes the Store call f, on a goroutine of its own, after each change of the epoch, when its own memory is
// replaced. A write that was prepared by what f forgets does not commit: note_epoch raises the counters that writes
// compare.
func (s *Store) OnEpoch(f func()) {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	s.epochs.watchers = append(s.epochs.watchers, f)
}

// Epoch returns the number of the present epoch.
func (s *Store) Epoch() EpochID { return s.memory.Load().epoch }

// EpochsOf returns the epoch in which each of some versions was written. The time of a version says
// so, and near the beginning of an epoch, where clocks may differ, the change log.
func (s *Store) EpochsOf(ctx context.Context, versions []fhir.Version) ([]EpochID, error) {
	m := s.memory.Load()
	epochs := make([]EpochID, len(versions))
	near := make(map[EpochID][]int)
	for i, v := range versions {
		epochs[i] = m.epochs[0].ID
		for _, e := range m.epochs[1:] {
			if !v.LastUpdated.Before(e.Since) {
				epochs[i] = e.ID
			}
			if d := v.LastUpdated.Sub(e.Since); d > -clockSlack && d < clockSlack {
				near[e.ID] = append(near[e.ID], i)
			}
		}
	}
	for i, e := range m.epochs {
		if len(near[e.ID]) == 0 {
			continue
		}
		p := db.ChangesAmongParams{Epoch: int64(e.ID), Before: e.Since.Add(2 * clockSlack)}
		for _, n := range near[e.ID] {
			p.Refs = append(p.Refs, int64(fhir.ValueReference(versions[n].ResourceType, versions[n].ID)))
		}
		rows, err := db.New(s.pool).ChangesAmong(ctx, p)
		if err != nil {
			return nil, translateError(err)
		}
		inLog := make(map[VersionKey]bool, len(rows))
		for _, r := range rows {
			inLog[VersionKey{r.Ref, int(r.Version)}] = true
		}
		for j, n := range near[e.ID] {
			switch has := inLog[VersionKey{p.Refs[j], versions[n].VersionID}]; {
			case has:
				epochs[n] = e.ID
			case epochs[n] == e.ID:
				epochs[n] = m.epochs[i-1].ID
			}
		}
	}
	return epochs, nil
}

// inOneEpoch runs a read again when the epoch has changed meanwhile: the numbers of resource types
// that it used may mean something else.
func (s *Store) inOneEpoch(read func() error) error {
	for {
		before := s.memory.Load()
		if err := read(); before == s.memory.Load() {
			return err
		}
	}
}

// EpochStatistics is an epoch as administrators see it.
type EpochStatistics struct {
	Number           int       `json:"number"`
	Cause            string    `json:"cause"`
	Since            time.Time `json:"since"`
	SystemIdentifier string    `json:"system_identifier"` // 64 bits: more than a number of JSON is sure to keep
	DatabaseOID      int64     `json:"database_oid"`
	Timeline         int       `json:"timeline"`
}

// Statistics returns the epoch as administrators see it.
func (e Epoch) Statistics() EpochStatistics {
	return EpochStatistics{Number: e.ID.Number(), Cause: e.Cause, Since: e.Since, SystemIdentifier: strconv.FormatUint(uint64(e.SystemIdentifier), 10),
		DatabaseOID: e.DatabaseOID, Timeline: e.Timeline}
}

// ReaderStatistics is a named reader as administrators see it.
type ReaderStatistics struct {
	Name   string  `json:"name"`
	Epoch  int     `json:"epoch"`
	Behind float64 `json:"behind_seconds"`
	Ahead  bool    `json:"ahead"`
}

func (s *Store) epochStatistics(ctx context.Context) (e EpochStatistics, readers []ReaderStatistics, err error) {
	list, err := s.Epochs(ctx)
	if err != nil {
		return e, nil, err
	}
	states, err := s.Readers(ctx)
	readers = make([]ReaderStatistics, len(states))
	for i, r := range states {
		readers[i] = ReaderStatistics{Name: r.Name, Epoch: r.Position.Epoch.Number(), Behind: r.Behind.Seconds(), Ahead: r.Ahead}
	}
	return list[len(list)-1].Statistics(), readers, err
}

// ReadersAhead lists the named readers of a migrated database whose position lies behind the end of
// its history.
func ReadersAhead(ctx context.Context, url string) (names []string, err error) {
	err = withConn(ctx, url, func(conn *pgx.Conn) error {
		rows, err := db.New(conn).Readers(ctx)
		for _, r := range rows {
			if r.Ahead {
				names = append(names, r.Name)
			}
		}
		return err
	})
	return names, err
}
