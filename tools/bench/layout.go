package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"kiln/server/fhir"
)

// layout is one way to store resources and their index. The typed rows (dates,
// numbers, quantities, strings), the history and the change log are the same in
// all of them.
type layout struct {
	name  string
	about string
	// ddl changes the schema of the tree.
	ddl []string
	// terms is where equality terms are kept.
	terms termPlace
	// pack returns the stored form of a body; nil stores it unchanged.
	pack func(dictionaries map[string][]byte) func(kind string, body []byte) []byte
}

type termPlace int

const (
	inArray  termPlace = iota // resource.terms, GIN
	inRows                    // index_term (term, rid)
	inNarrow                  // resource_term (rid, terms), GIN
)

var layouts = []layout{
	{name: "array", about: "the schema of the tree: resource.terms with a GIN index, bodies s2 with one dictionary", pack: packAll},
	{name: "rows", about: "a row for each term in index_term, primary key (term, rid)", terms: inRows, pack: packAll, ddl: []string{
		`DROP INDEX resource_terms`, `ALTER TABLE resource DROP COLUMN terms`,
		`CREATE TABLE index_term (term bigint NOT NULL, rid bigint NOT NULL, PRIMARY KEY (term, rid))`,
	}},
	{name: "narrow", about: "terms and their GIN index in a table of their own", terms: inNarrow, pack: packAll, ddl: []string{
		`DROP INDEX resource_terms`, `ALTER TABLE resource DROP COLUMN terms`,
		`CREATE TABLE resource_term (rid bigint PRIMARY KEY, terms bigint[] NOT NULL)`,
		`CREATE INDEX resource_terms ON resource_term USING gin (terms)`,
	}},
	{name: "plain bodies", about: "array, bodies as text, compressed by PostgreSQL from 2 kB on"},
	{name: "s2 by type", about: "array, a dictionary for each type", pack: packS2},
	{name: "zstd by type", about: "array, bodies zstd with a dictionary for each type", pack: packZstd},
	{name: "no pending list", about: "array, GIN with fastupdate = off", pack: packAll, ddl: []string{
		`ALTER INDEX resource_terms SET (fastupdate = off)`, `ALTER INDEX index_string_contains SET (fastupdate = off)`,
	}},
	{name: "pending list 16 MB", about: "array, gin_pending_list_limit = 16 MB", pack: packAll, ddl: []string{
		`ALTER INDEX resource_terms SET (gin_pending_list_limit = 16384)`,
	}},
	{name: "no rid indexes", about: "array, typed rows found for deletion by their values instead of by rid", pack: packAll, ddl: []string{
		`DROP INDEX index_date_rid`, `DROP INDEX index_number_rid`, `DROP INDEX index_quantity_rid`, `DROP INDEX index_string_rid`,
	}},
	{name: "no WAL compression", about: "array, wal_compression = off", pack: packAll, ddl: []string{
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_compression = off', current_database()); END $$`,
	}},
}

// packAll packs every type with the server's one dictionary.
func packAll(map[string][]byte) func(string, []byte) []byte { return packBody }

func packS2(dictionaries map[string][]byte) func(string, []byte) []byte {
	made := map[string]*s2.Dict{}
	for kind, d := range dictionaries {
		if dict := s2.MakeDict(d, nil); dict != nil {
			made[kind] = dict
		}
	}
	return func(kind string, body []byte) []byte {
		if d := made[kind]; d != nil {
			return d.Encode(nil, body)
		}
		return s2.Encode(nil, body)
	}
}

func packZstd(dictionaries map[string][]byte) func(string, []byte) []byte {
	made := map[string]*zstd.Encoder{}
	for kind, d := range dictionaries {
		// The options are constants: they are accepted.
		made[kind], _ = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderDictRaw(1, d),
			zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	}
	return func(kind string, body []byte) []byte { return made[kind].EncodeAll(body, nil) }
}

// dictionarySize is how much sample text a dictionary holds: what s2 can refer to.
const dictionarySize = 60 << 10

// dictionariesOf makes a dictionary for each type from the first resources, as in a server that begins to be filled.
func dictionariesOf(corpus []transaction) map[string][]byte {
	samples := map[string][][]byte{}
	for _, t := range corpus[:max(1, len(corpus)/20)] {
		for _, r := range t {
			samples[r.kind] = append(samples[r.kind], r.body)
		}
	}
	for _, t := range corpus { // types that come late
		for _, r := range t {
			if samples[r.kind] == nil {
				samples[r.kind] = [][]byte{r.body}
			}
		}
	}
	out := map[string][]byte{}
	for kind, list := range samples {
		var d []byte
		step := max(1, len(list)/64)
		for i := 0; i < len(list) && len(d) < dictionarySize; i += step {
			d = append(d, list[i]...)
		}
		out[kind] = d[:min(len(d), dictionarySize)]
	}
	return out
}

// LayoutResult is the result of a layout with a corpus.
type LayoutResult struct {
	Layout    string             `json:"layout"`
	About     string             `json:"about"`
	Resources int                `json:"resources"`
	Terms     float64            `json:"terms_per_resource"`
	Singles   float64            `json:"single_creates_per_second"`
	Import    float64            `json:"imported_per_second"`
	PgCPU     float64            `json:"postgres_cpu_us_per_resource"`
	WAL       float64            `json:"wal_bytes_per_resource"`
	Disk      float64            `json:"disk_bytes_per_resource"`
	Body      float64            `json:"stored_body_bytes"`
	Parts     map[string]float64 `json:"disk_parts"`
	// Searches are median microseconds by kind of search.
	Searches map[string]float64 `json:"searches_us"`
}

func layoutCommand(s *settings) *cobra.Command {
	var only []string
	var singles int
	c := &cobra.Command{
		Use:   "layout",
		Short: "Compare ways to store the index, on a corpus",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			corpus, _, err := rowsOf(ctx, Corpus{Path: s.corpus, Limit: s.corpusLimit})
			if err != nil {
				return err
			}
			cluster, err := StartCluster(ctx, serverSettings())
			if err != nil {
				return err
			}
			defer cluster.Stop()
			var results []LayoutResult
			for _, l := range layouts {
				if len(only) > 0 && !slices.Contains(only, l.name) {
					continue
				}
				fmt.Fprintln(c.ErrOrStderr(), l.name)
				r, err := l.measure(ctx, cluster, corpus, singles, s.seed)
				if err != nil {
					return fmt.Errorf("layout %q: %w", l.name, err)
				}
				results = append(results, r)
				if err := writeLayouts(c.OutOrStdout(), results); err != nil {
					return err
				}
			}
			return s.writeJSON(c.OutOrStdout(), results)
		},
	}
	c.Flags().StringArrayVar(&only, "only", nil, "name of a layout, may be repeated; all when left out")
	c.Flags().IntVar(&singles, "singles", 20000, "resources created one by one")
	return c
}

// measure loads the corpus into a database of its own: the last resources one by
// one, after all others in bundles.
func (l layout) measure(ctx context.Context, cluster *Cluster, corpus []transaction, singles int, seed uint64) (LayoutResult, error) {
	r := LayoutResult{Layout: l.name, About: l.about, Parts: map[string]float64{}, Searches: map[string]float64{}}
	url, err := cluster.CreateDatabase(ctx, "layout")
	if err != nil {
		return r, err
	}
	if err := migrate(ctx, url, l.ddl); err != nil {
		return r, err
	}
	pool, err := openPool(ctx, url, 40)
	if err != nil {
		return r, err
	}
	defer pool.Close()

	pack := func(_ string, body []byte) []byte { return body }
	if l.pack != nil {
		pack = l.pack(dictionariesOf(corpus))
	}
	var bulk []transaction
	var rest []*row
	for i := len(corpus) - 1; i >= 0; i-- {
		if len(rest) < singles && len(corpus) > 1 {
			rest = append(rest, corpus[i]...)
		} else {
			bulk = append(bulk, corpus[i])
		}
	}
	slices.Reverse(bulk)
	if len(rest) > singles {
		bulk, rest = append(bulk, rest[singles:]), rest[:singles]
	}

	w := Watched{Postmaster: cluster.Postmaster}
	if _, err := pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return r, err
	}
	before, err := readVolume(ctx, pool)
	if err != nil {
		return r, err
	}
	var taken, imported, terms, bytes atomic.Int64
	m, err := drive(ctx, Load{Clients: 4}, w, nil, func(ctx context.Context, _ *Worker) error {
		i := int(taken.Add(1)) - 1
		if i >= len(bulk) {
			return io.EOF
		}
		imported.Add(int64(len(bulk[i])))
		for _, row := range bulk[i] {
			terms.Add(int64(len(row.x.Terms)))
		}
		return l.copyRows(ctx, pool, bulk[i], pack, &bytes)
	})
	if err != nil {
		return r, err
	}
	n := float64(imported.Load())
	r.Import = n / m.Elapsed.Seconds()
	r.PgCPU = m.Usage["postgres"].CPU / n * 1e6
	r.Terms = float64(terms.Load()) / n
	r.Body = float64(bytes.Load()) / n
	// What waits in pending lists is part of the bill.
	if _, err := pool.Exec(ctx, "VACUUM (ANALYZE)"); err != nil {
		return r, err
	}
	after, err := readVolume(ctx, pool)
	if err != nil {
		return r, err
	}
	since := after.Since(before)
	r.WAL, r.Disk = float64(since.WAL)/n, float64(since.Disk)/n
	for name, size := range since.Indexes {
		r.Parts["· "+name] = float64(size) / n
	}
	for name, size := range since.Tables {
		r.Parts[name] = float64(size) / n
	}

	taken.Store(0)
	m, err = drive(ctx, Load{Clients: 32}, w, nil, func(ctx context.Context, _ *Worker) error {
		i := int(taken.Add(1)) - 1
		if i >= len(rest) {
			return io.EOF
		}
		return l.insertRow(ctx, pool, rest[i], pack(rest[i].kind, rest[i].body))
	})
	if err != nil {
		return r, err
	}
	r.Singles = float64(len(rest)) / m.Elapsed.Seconds()
	r.Resources = int(n) + len(rest)
	if _, err := pool.Exec(ctx, "VACUUM (ANALYZE)"); err != nil {
		return r, err
	}
	return r, l.search(ctx, pool, corpus, seed, r.Searches)
}

// copyRows stores a bundle in one transaction, a COPY for each table.
func (l layout) copyRows(ctx context.Context, pool *pgxpool.Pool, t transaction, pack func(string, []byte) []byte, bytes *atomic.Int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var resources, terms, dates, numbers, quantities, texts [][]any
		now := time.Now()
		for _, r := range t {
			body := pack(r.kind, r.body)
			bytes.Add(int64(len(body)))
			resource := []any{r.rid, r.ref, now, int32(1), r.typ, int16(r.ref & 255), "C", r.id, r.x.Targets, body}
			switch l.terms {
			case inArray:
				resource = append(resource, r.x.Terms)
			case inNarrow:
				terms = append(terms, []any{r.rid, r.x.Terms})
			case inRows:
				for _, term := range r.x.Terms {
					terms = append(terms, []any{term, r.rid})
				}
			}
			resources = append(resources, resource)
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
		columns := []string{"rid", "ref", "last_updated", "version", "typ", "shard", "method", "id", "targets", "body"}
		if l.terms == inArray {
			columns = append(columns, "terms")
		}
		for _, c := range []struct {
			table   string
			columns []string
			rows    [][]any
		}{
			{"resource", columns, resources},
			{map[termPlace]string{inRows: "index_term", inNarrow: "resource_term"}[l.terms],
				map[termPlace][]string{inRows: {"term", "rid"}, inNarrow: {"rid", "terms"}}[l.terms], terms},
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
func (l layout) insertRow(ctx context.Context, pool *pgxpool.Pool, r *row, body []byte) error {
	var b pgx.Batch
	l.queueInsert(&b, r, body, time.Now())
	queueChange(&b, transaction{r}, 1, 'C')
	return sendBatch(ctx, pool, &b)
}

func (l layout) queueInsert(b *pgx.Batch, r *row, body []byte, now time.Time) {
	shard := int16(r.ref & 255)
	if l.terms == inArray {
		b.Queue(`INSERT INTO resource (rid, ref, last_updated, version, typ, shard, method, id, targets, body, terms)
			VALUES ($1, $2, $3, 1, $4, $5, 'C', $6, $7, $8, $9)`, r.rid, r.ref, now, r.typ, shard, r.id, r.x.Targets, body, r.x.Terms)
	} else {
		b.Queue(`INSERT INTO resource (rid, ref, last_updated, version, typ, shard, method, id, targets, body)
			VALUES ($1, $2, $3, 1, $4, $5, 'C', $6, $7, $8)`, r.rid, r.ref, now, r.typ, shard, r.id, r.x.Targets, body)
	}
	switch l.terms {
	case inRows:
		b.Queue(`INSERT INTO index_term (term, rid) SELECT unnest($1::bigint[]), $2::bigint`, r.x.Terms, r.rid)
	case inNarrow:
		b.Queue(`INSERT INTO resource_term (rid, terms) VALUES ($1, $2)`, r.rid, r.x.Terms)
	}
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

// search measures searches for terms of different frequency, from one
// connection: 200 of each kind, with a total and a page of 20 bodies.
func (l layout) search(ctx context.Context, pool *pgxpool.Pool, corpus []transaction, seed uint64, out map[string]float64) error {
	frequency := map[int64]int{}
	var observations []*row
	for _, t := range corpus {
		for _, r := range t {
			for _, term := range r.x.Terms {
				frequency[term]++
			}
			if r.kind == "Observation" {
				observations = append(observations, r)
			}
		}
	}
	if len(observations) == 0 {
		return fmt.Errorf("the corpus has no observations to search for")
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, set := range []string{"enable_seqscan = off", "plan_cache_mode = force_generic_plan", "jit = off"} {
		if _, err := conn.Exec(ctx, "SET "+set); err != nil {
			return err
		}
	}
	r := rand.New(rand.NewPCG(seed, 2))
	// of returns a random observation's term that occurs in [least, most)
	// resources.
	of := func(o *row, least, most int) (int64, bool) {
		var found []int64
		for _, term := range o.x.Terms {
			if n := frequency[term]; n >= least && n < most {
				found = append(found, term)
			}
		}
		if len(found) == 0 {
			return 0, false
		}
		return pick(r, found), true
	}
	common := max(len(observations)/5, 1)
	kinds := []struct {
		name string
		args func(o *row) ([]int64, bool)
		n    int
		deep bool
	}{
		{"rare term", func(o *row) ([]int64, bool) { a, ok := of(o, 1, 50); return []int64{a}, ok }, 200, false},
		{"medium term", func(o *row) ([]int64, bool) { a, ok := of(o, 50, 2000); return []int64{a}, ok }, 200, false},
		{"common term", func(o *row) ([]int64, bool) { a, ok := of(o, common, 1<<40); return []int64{a}, ok }, 20, false},
		{"medium and common", func(o *row) ([]int64, bool) {
			a, ok1 := of(o, 50, 2000)
			b, ok2 := of(o, common, 1<<40)
			return []int64{a, b}, ok1 && ok2 && a != b
		}, 200, false},
		{"two of 2,000 to 20,000", func(o *row) ([]int64, bool) {
			a, ok1 := of(o, 2000, 20000)
			b, ok2 := of(o, 2000, 20000)
			return []int64{a, b}, ok1 && ok2 && a != b
		}, 50, false},
		{"deep page, common", func(o *row) ([]int64, bool) { a, ok := of(o, common, 1<<40); return []int64{a}, ok }, 50, true},
	}
	for _, k := range kinds {
		var pages, counts []float64
		for range 100 * k.n {
			if len(pages) == k.n {
				break
			}
			o := pick(r, observations)
			terms, ok := k.args(o)
			if !ok {
				continue
			}
			after := o.rid &^ (1<<48 - 1) // the beginning of the type
			if k.deep {
				after = o.rid
			}
			begin := time.Now()
			if err := l.page(ctx, conn.Conn(), terms, after, k.name); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			pages = append(pages, float64(time.Since(begin))/1e3)
			if k.deep {
				continue
			}
			begin = time.Now()
			if _, err := l.count(ctx, conn.Conn(), terms); err != nil {
				return fmt.Errorf("count %s: %w", k.name, err)
			}
			counts = append(counts, float64(time.Since(begin))/1e3)
		}
		if len(pages) > 0 {
			out["page: "+k.name] = figureOf(pages).Median
		}
		if len(counts) > 0 {
			out["count: "+k.name] = figureOf(counts).Median
		}
	}
	return nil
}

// matching is the condition that a rid has all terms.
func (l layout) matching(terms []int64) (from, where string, args []any) {
	switch l.terms {
	case inRows:
		from = "index_term t0"
		var conditions []string
		for i, term := range terms {
			args = append(args, term)
			if i > 0 {
				from += fmt.Sprintf(" JOIN index_term t%d ON t%d.rid = t0.rid AND t%d.term = $%d", i, i, i, i+1)
			}
		}
		conditions = append(conditions, "t0.term = $1")
		return from, strings.Join(conditions, " AND "), args
	case inNarrow:
		return "resource_term t0", "t0.terms @> $1::bigint[]", []any{terms}
	}
	return "resource t0", "t0.terms @> $1::bigint[]", []any{terms}
}

func (l layout) count(ctx context.Context, conn *pgx.Conn, terms []int64) (n int64, err error) {
	from, where, args := l.matching(terms)
	err = conn.QueryRow(ctx, "SELECT count(*) FROM "+from+" WHERE "+where, args...).Scan(&n)
	return n, err
}

// page reads the first 20 matches after a rid with their bodies. Few matches are
// found by the index and sorted; of a common term the order is walked, as the
// server decides.
func (l layout) page(ctx context.Context, conn *pgx.Conn, terms []int64, after int64, kind string) error {
	from, where, args := l.matching(terms)
	args = append(args, after)
	cursor := fmt.Sprintf("t0.rid > $%d", len(args))
	walk := strings.Contains(kind, "common") && !strings.Contains(kind, "medium") || strings.HasPrefix(kind, "two")
	var sql string
	switch {
	case l.terms == inRows:
		sql = fmt.Sprintf("SELECT r.rid, r.body FROM (SELECT t0.rid FROM %s WHERE %s AND %s ORDER BY t0.rid LIMIT 20) m JOIN resource r ON r.rid = m.rid ORDER BY r.rid", from, where, cursor)
	case walk && l.terms == inNarrow:
		sql = fmt.Sprintf("SELECT r.rid, r.body FROM (SELECT t0.rid FROM %s WHERE %s AND %s AND t0.terms IS NOT NULL ORDER BY t0.rid LIMIT 20) m JOIN resource r ON r.rid = m.rid ORDER BY r.rid", from, where, cursor)
	case walk:
		sql = fmt.Sprintf("SELECT t0.rid, t0.body FROM %s WHERE %s AND %s ORDER BY t0.rid LIMIT 20", from, where, cursor)
	case l.terms == inNarrow:
		sql = fmt.Sprintf("SELECT r.rid, r.body FROM (SELECT c.rid FROM (SELECT t0.rid FROM %s WHERE %s LIMIT 2001) c WHERE c.rid > $2 ORDER BY c.rid LIMIT 20) m JOIN resource r ON r.rid = m.rid ORDER BY r.rid", from, where)
	default:
		sql = fmt.Sprintf("SELECT r.rid, r.body FROM (SELECT c.rid FROM (SELECT t0.rid FROM %s WHERE %s LIMIT 2001) c WHERE c.rid > $2 ORDER BY c.rid LIMIT 20) m JOIN resource r ON r.rid = m.rid ORDER BY r.rid", from, where)
	}
	if walk && l.terms != inRows {
		// The term is common: the order decides, the terms are a filter.
		if _, err := conn.Exec(ctx, "SET enable_bitmapscan = off"); err != nil {
			return err
		}
		defer func() { _, _ = conn.Exec(ctx, "SET enable_bitmapscan = on") }()
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var rid int64
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&rid, &body}, func() error { return nil })
	return err
}

// writeLayouts prints the results side by side, a column for each layout.
func writeLayouts(out io.Writer, results []LayoutResult) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	line := func(name string, value func(r LayoutResult) string) {
		fmt.Fprintf(w, "| %s\t", name)
		for _, r := range results {
			fmt.Fprintf(w, "| %s\t", value(r))
		}
		fmt.Fprintln(w, "|")
	}
	line("", func(r LayoutResult) string { return r.Layout })
	line("---", func(LayoutResult) string { return "---" })
	line("resources", func(r LayoutResult) string { return number(float64(r.Resources)) })
	line("terms per resource", func(r LayoutResult) string { return number(r.Terms) })
	line("single creates/s, 32 clients", func(r LayoutResult) string { return number(r.Singles) })
	line("import res/s, 4 clients", func(r LayoutResult) string { return number(r.Import) })
	line("PostgreSQL CPU us/res", func(r LayoutResult) string { return number(r.PgCPU) })
	line("WAL bytes/res", func(r LayoutResult) string { return number(r.WAL) })
	line("disk bytes/res", func(r LayoutResult) string { return number(r.Disk) })
	line("stored body bytes", func(r LayoutResult) string { return number(r.Body) })
	searches, parts := map[string]bool{}, map[string]float64{}
	for _, r := range results {
		for k := range r.Searches {
			searches[k] = true
		}
		for k, v := range r.Parts {
			parts[k] = max(parts[k], v)
		}
	}
	for _, k := range sortedKeys(searches) {
		line(k+", us", func(r LayoutResult) string { return dash(r.Searches[k]) })
	}
	names := slices.SortedFunc(maps.Keys(parts), func(a, b string) int { return cmp.Compare(parts[b], parts[a]) })
	for _, k := range names {
		if parts[k] >= 1 {
			line(k+", bytes/res", func(r LayoutResult) string { return dash(r.Parts[k]) })
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s\n", b.String())
	return err
}
