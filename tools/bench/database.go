package main

import (
	"context"
	"fmt"
	"sort"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Volume is the amount of data that PostgreSQL has written and stored.
type Volume struct {
	WAL    int64            `json:"wal_bytes"`  // written since the server's beginning
	Disk   int64            `json:"disk_bytes"` // of the database
	Tables map[string]int64 `json:"tables"`     // bytes, with their indexes and out-of-line values
	// Indexes are bytes by index name.
	Indexes map[string]int64 `json:"indexes"`
}

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readVolume reads the volume now.
func readVolume(ctx context.Context, db querier) (Volume, error) {
	v := Volume{Tables: map[string]int64{}, Indexes: map[string]int64{}}
	err := db.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, pg_database_size(current_database())`).
		Scan(&v.WAL, &v.Disk)
	if err != nil {
		return v, fmt.Errorf("read the size of the database: %w", err)
	}
	rows, err := db.Query(ctx, `
		SELECT c.relname, c.relkind = 'i',
		       CASE WHEN c.relkind = 'i' THEN pg_relation_size(c.oid) ELSE pg_total_relation_size(c.oid) END
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'i', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`)
	if err != nil {
		return v, fmt.Errorf("read the sizes of tables: %w", err)
	}
	var name string
	var index bool
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&name, &index, &size}, func() error {
		if index {
			v.Indexes[name] += size
		} else {
			v.Tables[name] += size
		}
		return nil
	})
	return v, err
}

// Since returns the amount written after before was read.
func (v Volume) Since(before Volume) Volume {
	out := Volume{WAL: v.WAL - before.WAL, Disk: v.Disk - before.Disk, Tables: map[string]int64{}, Indexes: map[string]int64{}}
	for name, size := range v.Tables {
		out.Tables[name] = size - before.Tables[name]
	}
	for name, size := range v.Indexes {
		out.Indexes[name] = size - before.Indexes[name]
	}
	return out
}

// postmasterOf returns the parent of the PostgreSQL process that serves db, 0 when
// it runs on another machine.
func postmasterOf(ctx context.Context, db querier) int {
	var pid int
	if err := db.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return 0
	}
	st, err := readStat(pid)
	if err != nil {
		return 0
	}
	return st.parent
}

// openPool connects with at most n connections.
func openPool(ctx context.Context, url string, n int) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	c.MaxConns = int32(n)
	return pgxpool.NewWithConfig(ctx, c)
}

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// Statement is the cost of one SQL statement in a workload.
type Statement struct {
	SQL    string  `json:"sql"`
	Calls  int64   `json:"calls"`
	Total  float64 `json:"total_ms"`
	Mean   float64 `json:"mean_ms"`
	Rows   float64 `json:"rows_per_call"`
	Blocks float64 `json:"blocks_per_call"` // of 8 kB, read from PostgreSQL's cache
}

// readStatements returns the n statements that took most of the time.
func readStatements(ctx context.Context, db querier, n int) ([]Statement, error) {
	rows, err := db.Query(ctx, `
		SELECT query, calls, total_exec_time, mean_exec_time, rows::float8 / calls, shared_blks_hit::float8 / calls
		FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		ORDER BY total_exec_time DESC LIMIT $1`, n)
	if err != nil {
		return nil, fmt.Errorf("read the statements: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Statement])
}
