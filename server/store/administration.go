package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// Signal is something that every server looks at a few times a second: a version
// that is not the one it knows says that there is something to do.
type Signal struct {
	Version int64
	Detail  string
}

// The signals.
const (
	SignalSettings = "settings" // settings were changed
	SignalCaches   = "caches"   // caches are to be emptied; Detail names them, "" is all
)

// Signals are all signals by name.
func (s *Store) Signals(ctx context.Context) (map[string]Signal, error) {
	rows, err := db.New(s.side).Signals(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make(map[string]Signal, len(rows))
	for _, r := range rows {
		out[r.Name] = Signal{r.Version, r.Detail}
	}
	return out, nil
}

// RaiseSignal makes every server look.
func (s *Store) RaiseSignal(ctx context.Context, name, detail string) error {
	_, err := db.New(s.pool).RaiseSignal(ctx, db.RaiseSignalParams{Name: name, Detail: detail})
	return translateError(err)
}

// Setting is a value that an administrator has set at run time.
type Setting struct {
	Name  string // its key
	Value json.RawMessage
	// Percentage of the clients, and Clients by name, that a flag is on for; nil and
	// none is all.
	Percentage *int32
	Clients    []string
	Changed    time.Time
	ChangedBy  string
}

// Settings are all settings, by name.
func (s *Store) Settings(ctx context.Context) ([]Setting, error) {
	rows, err := db.New(s.side).Settings(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]Setting, len(rows))
	for i, r := range rows {
		out[i] = Setting{r.Name, r.Value, r.Percentage, r.Clients, r.Changed, r.ChangedBy}
	}
	return out, nil
}

// ReadSettings reads the settings of a database that no Store is open on; none where it
// is not one of this service yet.
func ReadSettings(ctx context.Context, url string) ([]Setting, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('setting') IS NOT NULL").Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := db.New(conn).Settings(ctx)
	out := make([]Setting, len(rows))
	for i, r := range rows {
		out[i] = Setting{r.Name, r.Value, r.Percentage, r.Clients, r.Changed, r.ChangedBy}
	}
	return out, err
}

// PutSetting keeps a setting and tells every server.
func (s *Store) PutSetting(ctx context.Context, v Setting) error {
	return s.signalled(ctx, SignalSettings, func(q *db.Queries) error {
		return q.PutSetting(ctx, db.PutSettingParams{Name: v.Name, Value: v.Value, Percentage: v.Percentage, Clients: v.Clients, Changed: v.Changed, ChangedBy: v.ChangedBy})
	})
}

// DeleteSetting takes a setting back, tells every server, and reports whether there
// was one.
func (s *Store) DeleteSetting(ctx context.Context, name string) (existed bool, err error) {
	err = s.signalled(ctx, SignalSettings, func(q *db.Queries) error {
		n, err := q.DeleteSetting(ctx, name)
		existed = n > 0
		return err
	})
	return existed, err
}

func (s *Store) signalled(ctx context.Context, name string, do func(q *db.Queries) error) error {
	err := s.runTransaction(ctx, func(tx pgx.Tx) error {
		q := db.New(tx)
		if err := do(q); err != nil {
			return err
		}
		_, err := q.RaiseSignal(ctx, db.RaiseSignalParams{Name: name})
		return err
	})
	var lost *lostCommitError
	if errors.As(err, &lost) {
		return errUnknownCommit.With(err)
	}
	return translateError(err)
}

// Instance is a server that works on the database.
type Instance struct {
	ID          string    `json:"id"`
	Address     string    `json:"address"`
	Version     string    `json:"version"`
	Started     time.Time `json:"started"`
	Seen        time.Time `json:"seen"`
	Load        float64   `json:"load"` // requests a second
	Connections int       `json:"connections"`
	Streams     int       `json:"streams"`
}

// SeeInstance says that a server is there.
func (s *Store) SeeInstance(ctx context.Context, i Instance) error {
	return translateError(db.New(s.side).SeeServer(ctx, db.SeeServerParams{ID: i.ID, Address: i.Address, Version: i.Version, Started: i.Started, Seen: i.Seen,
		Load: i.Load, Connections: int32(i.Connections), Streams: int32(i.Streams)}))
}

// ForgetInstance says that a server has ended, and so have those that were not seen
// since before.
func (s *Store) ForgetInstance(ctx context.Context, id string, before time.Time) error {
	q := db.New(s.side)
	if err := q.ForgetServer(ctx, id); err != nil {
		return translateError(err)
	}
	return translateError(q.ForgetServers(ctx, before))
}

// Instances are the servers that were seen since a time, the oldest first.
func (s *Store) Instances(ctx context.Context, since time.Time) ([]Instance, error) {
	rows, err := db.New(s.pool).Servers(ctx, since)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]Instance, len(rows))
	for i, r := range rows {
		out[i] = Instance{r.ID, r.Address, r.Version, r.Started.UTC(), r.Seen.UTC(), r.Load, int(r.Connections), int(r.Streams)}
	}
	return out, nil
}

// Rate is how many requests a client has made in a window that starts at Starts;
// after Expires, both in Unix seconds, nobody needs it.
type Rate struct{ Client, Starts, Expires, Count int64 }

// AddRates adds the counts of one server and returns the sums over all servers.
func (s *Store) AddRates(ctx context.Context, added []Rate) ([]Rate, error) {
	var p db.AddRatesParams
	for _, r := range added {
		p.Clients, p.Starts = append(p.Clients, r.Client), append(p.Starts, r.Starts)
		p.Expires, p.Counts = append(p.Expires, r.Expires), append(p.Counts, r.Count)
	}
	rows, err := db.New(s.side).AddRates(ctx, p)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]Rate, len(rows))
	for i, r := range rows {
		out[i] = Rate{Client: r.Client, Starts: r.Starts, Count: r.Count}
	}
	return out, nil
}

// Rates are the windows of some clients.
func (s *Store) Rates(ctx context.Context, clients []int64) ([]Rate, error) {
	rows, err := db.New(s.side).Rates(ctx, clients)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]Rate, len(rows))
	for i, r := range rows {
		out[i] = Rate{Client: r.Client, Starts: r.Starts, Count: r.Count}
	}
	return out, nil
}

// DropRates forgets windows that are over.
func (s *Store) DropRates(ctx context.Context, now time.Time) error {
	return translateError(db.New(s.side).DropRates(ctx, now.Unix()))
}

// TableStatistics is what PostgreSQL knows of a table. Times that never were are
// nil.
type TableStatistics struct {
	Name       string            `json:"name"`
	Rows       int64             `json:"rows"`
	Bytes      int64             `json:"bytes"`
	IndexBytes int64             `json:"index_bytes"`
	DeadRows   int64             `json:"dead_rows"`
	Vacuum     *time.Time        `json:"last_vacuum"`
	AutoVacuum *time.Time        `json:"last_autovacuum"`
	Analyze    *time.Time        `json:"last_analyze"`
	AutoAnalyz *time.Time        `json:"last_autoanalyze"`
	Indexes    []IndexStatistics `json:"indexes"`
}

// IndexStatistics is what PostgreSQL knows of an index.
type IndexStatistics struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Uses  int64  `json:"uses"`
}

// DatabaseStatistics is the state of the database.
type DatabaseStatistics struct {
	Version            string             `json:"version"`
	Bytes              int64              `json:"bytes"`
	CacheHitRatio      float64            `json:"cache_hit_ratio"`
	WALBytes           *int64             `json:"wal_bytes"` // written since its statistics were reset
	OldestTransaction  float64            `json:"oldest_transaction_seconds"`
	Connections        int                `json:"connections"`
	MaxConnections     int                `json:"max_connections"`
	ReplicationLag     []ReplicationLag   `json:"replication_lag"`
	SchemaVersion      int64              `json:"schema_version"`
	Extensions         map[string]string  `json:"extensions"`
	Tables             []TableStatistics  `json:"tables"`
	InRecovery         bool               `json:"in_recovery"`
	Deadlocks          int64              `json:"deadlocks"`
	TransactionsDone   int64              `json:"transactions_committed"`
	TransactionsUndone int64              `json:"transactions_rolled_back"`
	Epoch              EpochStatistics    `json:"epoch"`
	Readers            []ReaderStatistics `json:"readers"`
}

// ReplicationLag is how far a replica is behind.
type ReplicationLag struct {
	Name    string  `json:"name"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// Statistics asks PostgreSQL about the database. (sqlc does not know its system
// views.)
func (s *Store) Statistics(ctx context.Context) (DatabaseStatistics, error) {
	var d DatabaseStatistics
	err := s.side.QueryRow(ctx, `
		SELECT current_setting('server_version'), pg_database_size(current_database()),
			coalesce(d.blks_hit::float8 / nullif(d.blks_hit + d.blks_read, 0), 1),
			(SELECT w.wal_bytes::bigint FROM pg_stat_wal w),
			coalesce((SELECT extract(epoch FROM clock_timestamp() - min(a.xact_start)) FROM pg_stat_activity a WHERE a.datname = current_database()), 0)::float8,
			(SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend'), current_setting('max_connections')::integer,
			pg_is_in_recovery(), d.deadlocks, d.xact_commit, d.xact_rollback,
			(SELECT max(g.version_id) FROM goose_db_version g)
		FROM pg_stat_database d
		WHERE d.datname = current_database()`).
		Scan(&d.Version, &d.Bytes, &d.CacheHitRatio, &d.WALBytes, &d.OldestTransaction, &d.Connections, &d.MaxConnections, &d.InRecovery,
			&d.Deadlocks, &d.TransactionsDone, &d.TransactionsUndone, &d.SchemaVersion)
	if err != nil {
		return d, translateError(fmt.Errorf("database statistics: %w", err))
	}
	if d.Epoch, d.Readers, err = s.epochStatistics(ctx); err != nil {
		return d, err
	}
	d.ReplicationLag = []ReplicationLag{}
	d.Extensions = make(map[string]string)
	rows, err := s.side.Query(ctx, `SELECT e.extname, e.extversion FROM pg_extension e`)
	if err == nil {
		var name, version string
		_, err = pgx.ForEachRow(rows, []any{&name, &version}, func() error { d.Extensions[name] = version; return nil })
	}
	if err != nil {
		return d, translateError(fmt.Errorf("extensions: %w", err))
	}
	if !d.InRecovery {
		rows, err = s.side.Query(ctx, `
			SELECT coalesce(nullif(r.application_name, ''), r.client_addr::text, 'replica'),
				coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn), 0)::bigint, coalesce(extract(epoch FROM r.replay_lag), 0)::float8
			FROM pg_stat_replication r`)
		if err == nil {
			var l ReplicationLag
			_, err = pgx.ForEachRow(rows, []any{&l.Name, &l.Bytes, &l.Seconds}, func() error { d.ReplicationLag = append(d.ReplicationLag, l); return nil })
		}
		if err != nil {
			return d, translateError(fmt.Errorf("replication: %w", err))
		}
	}
	rows, err = s.side.Query(ctx, `
		SELECT t.relname::text, greatest(c.reltuples, t.n_live_tup)::bigint, pg_table_size(t.relid), pg_indexes_size(t.relid), t.n_dead_tup,
			t.last_vacuum, t.last_autovacuum, t.last_analyze, t.last_autoanalyze
		FROM pg_stat_user_tables t
		JOIN pg_class c ON c.oid = t.relid
		WHERE t.schemaname = current_schema()
		ORDER BY pg_total_relation_size(t.relid) DESC`)
	if err == nil {
		var t TableStatistics
		_, err = pgx.ForEachRow(rows, []any{&t.Name, &t.Rows, &t.Bytes, &t.IndexBytes, &t.DeadRows, &t.Vacuum, &t.AutoVacuum, &t.Analyze, &t.AutoAnalyz}, func() error {
			t.Indexes = []IndexStatistics{}
			d.Tables = append(d.Tables, t)
			return nil
		})
	}
	if err != nil {
		return d, translateError(fmt.Errorf("tables: %w", err))
	}
	at := make(map[string]*TableStatistics, len(d.Tables))
	for i := range d.Tables {
		at[d.Tables[i].Name] = &d.Tables[i]
	}
	rows, err = s.side.Query(ctx, `
		SELECT i.relname::text, i.indexrelname::text, pg_relation_size(i.indexrelid), i.idx_scan
		FROM pg_stat_user_indexes i
		WHERE i.schemaname = current_schema()
		ORDER BY pg_relation_size(i.indexrelid) DESC`)
	if err == nil {
		var table string
		var x IndexStatistics
		_, err = pgx.ForEachRow(rows, []any{&table, &x.Name, &x.Bytes, &x.Uses}, func() error {
			if t := at[table]; t != nil {
				t.Indexes = append(t.Indexes, x)
			}
			return nil
		})
	}
	return d, translateError(err)
}
