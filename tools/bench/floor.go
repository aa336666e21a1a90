package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/s2"
	"github.com/spf13/cobra"

	"kiln/gen/index"
	"kiln/queries"
	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Floor moves a workload's rows with pgx alone: no HTTP, no FHIR. What reads uses
// the server's own data; what writes uses a database beside it.
type Floor struct {
	// Data is the database that the server has filled.
	Data *pgxpool.Pool
	// Empty is a database with the same schema and nothing in it.
	Empty   *pgxpool.Pool
	Watched Watched
	Samples *Samples
	Corpus  []transaction
	Types   *rowTypes

	pack    func(kind string, body []byte) []byte
	numbers map[string]int16 // of resource types, in Data
	parts   map[string]int   // match.Parts of resource types, in Data
}

// floorPart is the floor of one workload.
type floorPart struct {
	workload string
	about    string
	finite   bool
	op       func(f *Floor) Op
}

var floorParts = []floorPart{
	{"import", "a transaction for each bundle, a COPY for each table", true, (*Floor).importing},
	{"read", "SELECT of one row by its key", false, (*Floor).reading},
	{"crud", "one transaction for each insert, update and delete with index rows, history and change log; SELECT by key", false, (*Floor).cycling},
	{"tx2", "the rows of two resources in one pipelined transaction", false, (*Floor).pairing},
	{"search", "count and first page by the best index, values as in the search workload", false, (*Floor).searching},
	{"live", "reads, pipelined writes and searches, in the parts of the live workload", false, (*Floor).living},
	{"page-all", "bodies of every row in the order of the key, 1,000 at a time", true, (*Floor).paging},
}

// Run measures one part. It wants as many connections as clients.
func (f *Floor) Run(ctx context.Context, p floorPart, l Load) (*Measured, error) {
	if p.finite {
		l.Duration, l.WarmUp = 0, 0
	}
	if f.pack == nil {
		f.pack = packBody
	}
	m, err := drive(ctx, l, f.Watched, nil, p.op(f))
	if err != nil {
		return nil, fmt.Errorf("floor of %s: %w", p.workload, err)
	}
	return m, nil
}

// bodyDictionary is the server's compression dictionary of bodies.
var bodyDictionary = s2.MakeDictManual(queries.BodyDictionary, 0)

// packBody is the form in which the server stores a body: the number of the
// dictionary and a block.
func packBody(_ string, body []byte) []byte {
	out := make([]byte, 1+s2.MaxEncodedLen(len(body)))
	out[0] = 1
	return out[:1+len(bodyDictionary.Encode(out[1:], body))]
}

// unpackBody is the JSON of a stored body: the bytes that a client would get.
func unpackBody(stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] == '{' {
		return stored, nil
	}
	return bodyDictionary.Decode(nil, stored[1:])
}

// timed records one unit of work; an error ends the run, because nothing may go
// wrong below a server.
func timed(w *Worker, category string, f func() error) error {
	begin := w.start()
	err := f()
	w.record(category, time.Since(begin), "")
	return err
}

func (f *Floor) importing() Op {
	var taken, bytes atomic.Int64
	order := slices.Clone(f.Corpus)
	slices.SortStableFunc(order, func(a, b transaction) int { return len(b) - len(a) })
	return func(ctx context.Context, w *Worker) error {
		i := int(taken.Add(1)) - 1
		if i >= len(order) {
			return io.EOF
		}
		w.Moved(len(order[i]))
		return timed(w, "bundle", func() error { return copyRows(ctx, f.Empty, order[i], f.pack, &bytes) })
	}
}

const selectBody = `SELECT r.id, r.version, r.last_updated, r.method, r.body FROM resource r WHERE r.ref = $1 AND r.shard = $2`

func readBody(ctx context.Context, db *pgxpool.Pool, ref int64) error {
	var id string
	var version int32
	var updated time.Time
	var method byte
	var body []byte
	if err := db.QueryRow(ctx, selectBody, ref, int16(ref&255)).Scan(&id, &version, &updated, &method, &body); err != nil {
		return err
	}
	_, err := unpackBody(body)
	return err
}

func (f *Floor) reading() Op {
	var refs []int64
	for _, r := range f.Samples.References {
		typ, id, _ := strings.Cut(r, "/")
		refs = append(refs, int64(fhir.ValueReference(typ, id)))
	}
	return func(ctx context.Context, w *Worker) error {
		w.Moved(1)
		return timed(w, "read", func() error { return readBody(ctx, f.Data, pick(w.Rand, refs)) })
	}
}

// template is the row of one of the resources that the write workloads create.
func (f *Floor) template(kind, json string) (*row, error) {
	w := &Worker{Rand: rand.New(rand.NewPCG(1, 1))}
	references := map[string]string{}
	for _, t := range cycleTypes {
		references[t.typ] = t.typ + "/00000000-0000-7000-8000-000000000000"
	}
	r := &row{kind: kind, id: "00000000-0000-7000-8000-000000000000"}
	if err := r.fill(fill(json, w, references)); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	r.body = f.pack(kind, r.body)
	return r, nil
}

// another is r under an id of its own.
func (f *Floor) another(r *row) *row {
	n := *r
	n.typ, n.rid = f.Types.number(r.kind)
	n.id = fhir.NewID()
	n.ref = int64(fhir.ValueReference(n.kind, n.id))
	return &n
}

func (f *Floor) pairing() Op {
	patient, err1 := f.template("Patient", patientJSON)
	observation, err2 := f.template("Observation", observationJSON)
	return func(ctx context.Context, w *Worker) error {
		if err1 != nil || err2 != nil {
			return fmt.Errorf("%w, %w", err1, err2)
		}
		w.Moved(2)
		return timed(w, "transaction", func() error {
			var b pgx.Batch
			both := transaction{f.another(patient), f.another(observation)}
			for _, r := range both {
				queueInsert(&b, r, r.body, time.Now())
			}
			queueChange(&b, both, 1, 'C')
			return sendBatch(ctx, f.Empty, &b)
		})
	}
}

func (f *Floor) cycling() Op {
	templates := make([]*row, len(cycleTypes))
	var failed error
	for i, t := range cycleTypes {
		r, err := f.template(t.typ, t.json)
		if err != nil {
			failed = err
		}
		templates[i] = r
	}
	return func(ctx context.Context, w *Worker) error {
		if failed != nil {
			return failed
		}
		rows := make([]*row, len(templates))
		for i, t := range templates {
			rows[i] = f.another(t)
			if err := timed(w, "create", func() error { return insertRow(ctx, f.Empty, rows[i], rows[i].body) }); err != nil {
				return err
			}
		}
		for _, step := range []struct {
			name string
			f    func(r *row) error
		}{
			{"read", func(r *row) error { return readBody(ctx, f.Empty, r.ref) }},
			{"update", func(r *row) error { return f.update(ctx, r) }},
			{"delete", func(r *row) error { return f.remove(ctx, r) }},
		} {
			for _, r := range rows {
				if err := timed(w, step.name, func() error { return step.f(r) }); err != nil {
					return fmt.Errorf("%s: %w", step.name, err)
				}
			}
		}
		w.Moved(len(rows))
		return nil
	}
}

const moveToHistory = `INSERT INTO resource_history (rid, ref, last_updated, version, typ, shard, method, id, body)
	SELECT r.rid, r.ref, r.last_updated, r.version, r.typ, r.shard, r.method, r.id, r.body FROM resource r WHERE r.ref = $1 AND r.shard = $2`

// unindex queues the deletion of a row's typed index rows.
func unindex(b *pgx.Batch, r *row) {
	for table, n := range map[string]int{
		"index_date": len(r.x.Dates), "index_number": len(r.x.Numbers), "index_quantity": len(r.x.Quantities), "index_string": len(r.x.Strings),
	} {
		if n > 0 {
			b.Queue(`DELETE FROM `+table+` WHERE rid = $1`, r.rid)
		}
	}
}

func (f *Floor) update(ctx context.Context, r *row) error {
	var b pgx.Batch
	shard := int16(r.ref & 255)
	b.Queue(moveToHistory, r.ref, shard)
	b.Queue(`UPDATE resource SET last_updated = $3, version = version + 1, method = 'U', terms = $4, targets = $5, body = $6 WHERE ref = $1 AND shard = $2`,
		r.ref, shard, time.Now(), r.x.Terms, r.x.Targets, r.body)
	unindex(&b, r)
	queueTyped(&b, r)
	queueChange(&b, transaction{r}, 2, 'U')
	return sendBatch(ctx, f.Empty, &b)
}

func (f *Floor) remove(ctx context.Context, r *row) error {
	var b pgx.Batch
	shard := int16(r.ref & 255)
	b.Queue(moveToHistory, r.ref, shard)
	b.Queue(`DELETE FROM resource WHERE ref = $1 AND shard = $2`, r.ref, shard)
	b.Queue(`INSERT INTO resource_history (rid, ref, last_updated, version, typ, shard, method, id) VALUES ($1, $2, $3, 3, $4, $5, 'D', $6)`,
		r.rid, r.ref, time.Now(), r.typ, shard, r.id)
	unindex(&b, r)
	queueChange(&b, transaction{r}, 3, 'D')
	return sendBatch(ctx, f.Empty, &b)
}

// readTypes reads the numbers of the resource types, and their parts.
func (f *Floor) readTypes() error {
	rows, err := f.Data.Query(context.Background(), `SELECT t.name, t.typ, coalesce(n.announced >> 20, 1) FROM resource_type t LEFT JOIN rid_next n ON n.typ = t.typ`)
	if err != nil {
		return err
	}
	f.numbers, f.parts = map[string]int16{}, map[string]int{}
	var name string
	var n int16
	var parts int
	_, err = pgx.ForEachRow(rows, []any{&name, &n, &parts}, func() error { f.numbers[name], f.parts[name] = n, parts; return nil })
	return err
}

func (f *Floor) paging() Op {
	failed := f.readTypes()
	types := slices.Sorted(maps.Values(f.numbers))
	var taken atomic.Int64
	return func(ctx context.Context, w *Worker) error {
		if failed != nil {
			return failed
		}
		i := int(taken.Add(1)) - 1
		if i >= len(types) {
			return io.EOF
		}
		after, end := int64(types[i])<<48, (int64(types[i])+1)<<48
		for {
			n := 0
			err := timed(w, "page", func() error {
				rows, err := f.Data.Query(ctx, `SELECT r.rid, r.body FROM resource r WHERE r.rid > $1 AND r.rid < $2 ORDER BY r.rid LIMIT 1000`, after, end)
				if err != nil {
					return err
				}
				var body []byte
				_, err = pgx.ForEachRow(rows, []any{&after, &body}, func() error {
					n++
					_, err := unpackBody(body)
					return err
				})
				return err
			})
			w.Moved(n)
			if err != nil || n < 1000 {
				return err
			}
		}
	}
}

// living is 45% reads, 15% transactions of two rows and 40% searches.
func (f *Floor) living() Op {
	read, write, search := f.reading(), f.pairing(), f.searching()
	return func(ctx context.Context, w *Worker) error {
		switch draw := w.Rand.IntN(100); {
		case draw < 45:
			return read(ctx, w)
		case draw < 60:
			return write(ctx, w)
		}
		return search(ctx, w)
	}
}

func (f *Floor) searching() Op {
	failed := f.readTypes()
	return func(ctx context.Context, w *Worker) error {
		if failed != nil {
			return failed
		}
		category, path := pick(w.Rand, searchCategories).query(f.Samples, w.Rand)
		q, err := floorQuery(path, f.parts)
		if err != nil {
			return err
		}
		return timed(w, category, func() error {
			var total int64
			if err := f.Data.QueryRow(ctx, `SELECT count(*) FROM `+q.from+` WHERE `+q.where, q.args...).Scan(&total); err != nil {
				return fmt.Errorf("count %s: %w", path, err)
			}
			return f.page(ctx, q, total)
		})
	}
}

// common is the number of matches from which walking the order until a page is
// full costs less than sorting them.
const common = 5000

// page reads the first 20 matches. Left alone, the planner walks the primary key
// for rare matches too.
func (f *Floor) page(ctx context.Context, q condition, total int64) error {
	sql := `WITH m AS MATERIALIZED (SELECT x.rid FROM ` + q.from + ` WHERE ` + q.where + `)
		SELECT r.id, r.version, r.last_updated, r.body FROM (SELECT m.rid FROM m ORDER BY m.rid LIMIT 20) p JOIN resource r ON r.rid = p.rid ORDER BY r.rid`
	args := q.args
	switch {
	case total == 0:
		return nil
	case total < common:
	case q.from == "resource x":
		sql = fmt.Sprintf(`SELECT x.id, x.version, x.last_updated, x.body FROM resource x WHERE x.rid > $%d AND %s ORDER BY x.rid LIMIT 20`, len(args)+1, q.where)
		args = append(slices.Clip(args), int64(f.typ(q.typ))<<48)
	default:
		sql = fmt.Sprintf(`SELECT r.id, r.version, r.last_updated, r.body FROM resource r
			WHERE r.rid > $%d AND EXISTS (SELECT FROM %s WHERE x.rid = r.rid AND %s OFFSET 0) ORDER BY r.rid LIMIT 20`, len(args)+1, q.from, q.where)
		args = append(slices.Clip(args), int64(f.typ(q.typ))<<48)
	}
	rows, err := f.Data.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var id string
	var version int32
	var updated time.Time
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &version, &updated, &body}, func() error {
		_, err := unpackBody(body)
		return err
	})
	return err
}

// typ is the number of a resource type in the server's database.
func (f *Floor) typ(name string) int16 {
	if f.numbers == nil {
		return 0
	}
	return f.numbers[name]
}

// condition is a search as PostgreSQL could be asked it: x is the table with the
// matches' rid.
type condition struct {
	typ         string
	from, where string
	args        []any
}

// floorQuery translates a path of the search workload. It knows the parameters
// and prefixes that workload uses, and takes the nearest simple condition: what
// counts is that as many rows are touched.
func floorQuery(path string, parts map[string]int) (condition, error) {
	typ, query, _ := strings.Cut(path, "?")
	c, err := floorCondition(typ, query, &match.Parts{Of: map[int16]int{0: parts[typ]}})
	c.typ = typ
	return c, err
}

func floorCondition(typ, query string, parts *match.Parts) (condition, error) {
	name, rest, _ := strings.Cut(query, "=")
	value, _, _ := strings.Cut(rest, "&")
	value, err := url.QueryUnescape(value)
	if err != nil {
		return condition{}, err
	}
	code, modifier, _ := strings.Cut(name, ":")
	p, ok := parameterOf(typ, code)
	if !ok {
		return condition{}, fmt.Errorf("%s has no search parameter %s", typ, code)
	}
	key := func() int64 { return int64(p.Keys[0]) }
	// stored asks for the rows of a key in a table that has parts, by parameter n.
	stored := func(n int, key fhir.Key) (string, any) {
		keys := parts.Stored([]fhir.Key{key}, nil)
		if len(keys) == 1 {
			return fmt.Sprintf("x.key = $%d AND ", n), int64(key)
		}
		all := make([]int64, len(keys))
		for i, k := range keys {
			all[i] = int64(k)
		}
		return fmt.Sprintf("x.key = ANY ($%d) AND ", n), all
	}
	switch p.Type {
	case fhir.SearchString:
		folded := fhir.JoinText(value)
		if modifier == "contains" {
			return condition{typ, "index_string x", "x.key = $1 AND x.text LIKE $2 AND NOT x.word", []any{key(), "%" + folded + "%"}}, nil
		}
		return condition{typ, "index_string x", "x.key = $1 AND left(x.text, 128) >= $2 AND left(x.text, 128) < $3", []any{key(), folded, folded + "\U0010FFFF"}}, nil
	case fhir.SearchDate:
		prefix, date := value[:2], value[2:]
		low, high, err := fhir.ParseDate(date)
		if err != nil {
			return condition{}, err
		}
		where := map[string]string{
			"eq": "x.low >= $2 AND x.low < $3", "ne": "(x.low < $2 OR x.low >= $3)", "lt": "x.low < $2", "le": "x.low < $3",
			"gt": "x.low >= $3", "ge": "x.low >= $2", "sa": "x.low >= $3", "eb": "x.low < $2", "ap": "x.low >= $2 AND x.low < $3",
		}[prefix]
		if prefix == "ap" {
			d := (time.Now().UnixMicro() - low) / 10
			low, high = low-d, high+d
		}
		is, keys := stored(1, p.Keys[0])
		c := condition{typ, "index_date x", is + where, []any{keys, low, high}}
		if !strings.Contains(where, "$3") {
			c.args = c.args[:2]
		}
		if !strings.Contains(where, "$2") {
			c.where = strings.ReplaceAll(c.where, "$3", "$2")
			c.args = []any{keys, high}
		}
		return c, nil
	case fhir.SearchQuantity:
		fields := strings.Split(value, "|")
		where, args, err := numberRange("x.low", fields[0], 4)
		if err != nil {
			return condition{}, err
		}
		is, keys := stored(1, p.Keys[0])
		return condition{typ, "index_quantity x", is + "x.unit = ANY (ARRAY(SELECT u.id FROM quantity_unit u WHERE u.system = $2 AND u.code = $3)) AND " + where,
			append([]any{keys, fields[1], fields[2]}, args...)}, nil
	case fhir.SearchComposite:
		token, number, _ := strings.Cut(value, "$")
		part := p.Composites[0].Parts
		where, args, err := numberRange("x.low", number, 3)
		if err != nil {
			return condition{}, err
		}
		is, keys := stored(2, part[1].Keys[0])
		return condition{typ, "resource t JOIN index_quantity x ON x.rid = t.rid", "t.terms @> $1::bigint[] AND " + is + where,
			append([]any{[]int64{int64(part[0].Keys[0].Term(tokenValue(token)))}, keys}, args...)}, nil
	case fhir.SearchReference:
		target, id, ok := strings.Cut(value, "/")
		if !ok {
			target, id = "Patient", value
		}
		return condition{typ, "resource x", "x.terms @> $1::bigint[]", []any{[]int64{int64(p.Keys[0].Term(fhir.ValueReference(target, id)))}}}, nil
	default:
		return condition{typ, "resource x", "x.terms @> $1::bigint[]", []any{[]int64{int64(p.Keys[0].Term(tokenValue(value)))}}}, nil
	}
}

func tokenValue(value string) fhir.Value {
	if system, code, ok := strings.Cut(value, "|"); ok {
		return fhir.ValueCoding(system, code)
	}
	return fhir.ValueCode(value)
}

// numberRange is the condition that a prefixed number sets on a column.
func numberRange(column, number string, arg int) (string, []any, error) {
	for prefix, op := range map[string]string{"gt": ">", "ge": ">=", "lt": "<", "le": "<="} {
		if rest, ok := strings.CutPrefix(number, prefix); ok {
			return fmt.Sprintf("%s %s $%d::text::numeric", column, op, arg), []any{rest}, nil
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return "", nil, err
	}
	_, decimals, _ := strings.Cut(number, ".")
	half := 0.5 * math.Pow10(-len(decimals))
	return fmt.Sprintf("%s >= $%d::text::numeric AND %s < $%d::text::numeric", column, arg, column, arg+1),
		[]any{strconv.FormatFloat(v-half, 'f', -1, 64), strconv.FormatFloat(v+half, 'f', -1, 64)}, nil
}

func parameterOf(typ, code string) (*fhir.Parameter, bool) {
	i := slices.IndexFunc(index.Parameters, func(p fhir.Parameter) bool { return p.Base == typ && p.Code == code })
	if i < 0 {
		return nil, false
	}
	return &index.Parameters[i], true
}

// openFloor connects to the server's database and makes one beside it.
func (t *target) openFloor(ctx context.Context, c Corpus) (*Floor, func(), error) {
	if t.db == nil {
		return nil, nil, fmt.Errorf("the floor needs --database-url")
	}
	const name = "kiln_bench_floor"
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name} {
		if _, err := t.db.Exec(ctx, sql); err != nil {
			return nil, nil, fmt.Errorf("make a database for the floor: %w", err)
		}
	}
	config, err := pgx.ParseConfig(t.url)
	if err != nil {
		return nil, nil, err
	}
	emptyURL := fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", config.Host, config.Port, config.User, name)
	if config.Password != "" {
		emptyURL += " password=" + config.Password
	}
	if err := migrate(ctx, emptyURL); err != nil {
		return nil, nil, err
	}
	f := &Floor{Watched: Watched{Postmaster: t.bench.Watched.Postmaster}}
	if f.Empty, err = openPool(ctx, emptyURL, 64); err != nil {
		return nil, nil, err
	}
	if f.Data, err = openFloorPool(ctx, t.url, 64); err != nil {
		return nil, nil, err
	}
	done := func() {
		f.Empty.Close()
		f.Data.Close()
		_, _ = t.db.Exec(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") // only tidies up
	}
	if f.Corpus, f.Types, err = rowsOf(ctx, c); err != nil {
		done()
		return nil, nil, err
	}
	return f, done, nil
}

// openFloorPool is openPool with the plans that fixed statements have once they
// have run a few times, and without those for a schema of few rows.
func openFloorPool(ctx context.Context, url string, n int) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	c.MaxConns = int32(n)
	c.ConnConfig.RuntimeParams["jit"] = "off"
	c.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	return pgxpool.NewWithConfig(ctx, c)
}

func floorCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "floor",
		Short: "Measure PostgreSQL alone with the rows of the workloads",
		Long:  "Measure PostgreSQL alone with the rows of the workloads. The server at --url (or the one that is started and filled) gives data and samples.",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			if s.url == "" {
				if _, err := t.measure(c.Context(), importWorkload, Load{Clients: 4}, 1); err != nil {
					return err
				}
				if err := t.settle(c.Context(), c.ErrOrStderr()); err != nil {
					return err
				}
			}
			f, done, err := t.openFloor(c.Context(), t.bench.Corpus)
			if err != nil {
				return err
			}
			defer done()
			if f.Samples, err = t.bench.Samples(c.Context()); err != nil {
				return err
			}
			var results []Result
			for _, p := range floorParts {
				fmt.Fprintf(c.ErrOrStderr(), "floor of %s\n", p.workload)
				w := Workload{Name: p.workload, Finite: p.finite}
				l := Load{Clients: defaultClients(w), Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
				var runs []*Measured
				for range max(s.runs, 1) {
					m, err := f.Run(c.Context(), p, l)
					if err != nil {
						return err
					}
					runs = append(runs, m)
					if p.workload == "import" {
						break // the rows are there
					}
				}
				results = append(results, summarise("floor "+p.workload, l, runs))
			}
			return s.report(c.OutOrStdout(), results)
		},
	}
}
