package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/fhir"
)

// copyRows stores a bundle in one transaction, a COPY for each table.
func copyRows(ctx context.Context, pool *pgxpool.Pool, t transaction, pack func(string, []byte) []byte, bytes *atomic.Int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var resources, dates, numbers, quantities, texts [][]any
		now := time.Now()
		for _, r := range t {
			body := pack(r.kind, r.body)
			bytes.Add(int64(len(body)))
			resources = append(resources, []any{r.rid, r.ref, now, int32(1), r.typ, int16(r.ref & 255), "C", r.id, r.x.Targets, body, r.x.Terms})
			for _, d := range r.x.Dates {
				dates = append(dates, []any{int64(d.Key), d.Low, d.High, r.rid})
			}
			for _, d := range r.x.Numbers {
				numbers = append(numbers, []any{int64(d.Key), r.rid, low(d.Low), high(d.Low, d.High)})
			}
			for _, d := range r.x.Quantities {
				quantities = append(quantities, []any{int64(d.Key), r.rid, fhir.UnitID(d.System, d.Code, d.Unit), low(d.Low), high(d.Low, d.High)})
			}
			for _, d := range r.x.Strings {
				texts = append(texts, []any{int64(d.Key), r.rid, d.Text})
			}
		}
		for _, c := range []struct {
			table   string
			columns []string
			rows    [][]any
		}{
			{"resource", []string{"rid", "ref", "last_updated", "version", "typ", "shard", "method", "id", "targets", "body", "terms"}, resources},
			{"index_date", []string{"key", "low", "high", "rid"}, dates},
			{"index_number", []string{"key", "rid", "low", "high"}, numbers},
			{"index_quantity", []string{"key", "rid", "unit", "low", "high"}, quantities},
			{"index_string", []string{"key", "rid", "text"}, texts},
		} {
			if len(c.rows) == 0 {
				continue
			}
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{c.table}, c.columns, pgx.CopyFromRows(c.rows)); err != nil {
				return fmt.Errorf("copy into %s: %w", c.table, err)
			}
		}
		var b pgx.Batch
		queueChange(&b, t, 1, 'C')
		return tx.SendBatch(ctx, &b).Close()
	})
}

// queueChange adds the change log row of a transaction.
func queueChange(b *pgx.Batch, t transaction, version int32, method byte) {
	rids, refs, versions := make([]int64, len(t)), make([]int64, len(t)), make([]int32, len(t))
	for i, r := range t {
		rids[i], refs[i], versions[i] = r.rid, r.ref, version
	}
	b.Queue(`INSERT INTO change (shard, rids, refs, versions, methods) VALUES ($1, $2, $3, $4, $5)`,
		int16(refs[0]&255), rids, refs, versions, strings.Repeat(string(method), len(t)))
}

// low and high are the bounds of a number as the columns have them.
func low(s string) string {
	if s == "" {
		return "-Infinity"
	}
	return s
}

func high(low, high string) any {
	switch high {
	case low:
		return nil
	case "":
		return "Infinity"
	}
	return high
}

// insertRow stores one resource in one pipelined transaction.
func insertRow(ctx context.Context, pool *pgxpool.Pool, r *row, body []byte) error {
	var b pgx.Batch
	queueInsert(&b, r, body, time.Now())
	queueChange(&b, transaction{r}, 1, 'C')
	return sendBatch(ctx, pool, &b)
}

// queueInsert adds the rows of a resource and its index.
func queueInsert(b *pgx.Batch, r *row, body []byte, now time.Time) {
	b.Queue(`INSERT INTO resource (rid, ref, last_updated, version, typ, shard, method, id, targets, body, terms)
		VALUES ($1, $2, $3, 1, $4, $5, 'C', $6, $7, $8, $9)`, r.rid, r.ref, now, r.typ, int16(r.ref&255), r.id, r.x.Targets, body, r.x.Terms)
	queueTyped(b, r)
}

// queueTyped adds the rows of ordered values.
func queueTyped(b *pgx.Batch, r *row) {
	if n := len(r.x.Dates); n > 0 {
		key, low, high := make([]int64, n), make([]int64, n), make([]int64, n)
		for i, d := range r.x.Dates {
			key[i], low[i], high[i] = int64(d.Key), d.Low, d.High
		}
		b.Queue(`INSERT INTO index_date (key, low, high, rid) SELECT *, $4::bigint FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])`, key, low, high, r.rid)
	}
	for _, d := range r.x.Numbers {
		b.Queue(`INSERT INTO index_number (key, rid, low, high) VALUES ($1, $2, $3::text::numeric, $4::text::numeric)`, int64(d.Key), r.rid, low(d.Low), high(d.Low, d.High))
	}
	for _, d := range r.x.Quantities {
		b.Queue(`INSERT INTO index_quantity (key, rid, unit, low, high) VALUES ($1, $2, $3, $4::text::numeric, $5::text::numeric)`,
			int64(d.Key), r.rid, fhir.UnitID(d.System, d.Code, d.Unit), low(d.Low), high(d.Low, d.High))
	}
	if n := len(r.x.Strings); n > 0 {
		key, text := make([]int64, n), make([]string, n)
		for i, d := range r.x.Strings {
			key[i], text[i] = int64(d.Key), d.Text
		}
		b.Queue(`INSERT INTO index_string (key, rid, text) SELECT k, $3::bigint, t FROM unnest($1::bigint[], $2::text[]) AS u(k, t)`, key, text, r.rid)
	}
}

// sendBatch runs a batch as one implicit transaction.
func sendBatch(ctx context.Context, pool *pgxpool.Pool, b *pgx.Batch) error {
	err := pool.SendBatch(ctx, b).Close()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Errorf("%w (%s)", err, pg.Detail)
	}
	return err
}
