package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// IndexCandidate is an index that searches might gain by.
type IndexCandidate struct {
	Table   string // one of the typed tables: index_string, index_quantity
	Columns string // the text after the table's name in CREATE INDEX
	// Extension has to be there for it; "" is none.
	Extension string
}

// Proof is the effect that an index would have.
type Proof struct {
	// Improvement is the part of the work that it saves, 0 to 1: of the planner's cost
	// with a hypothetical index, of the time taken with a real one.
	Improvement float64
	Method      string // hypothetical or sample
}

// Limits on the database's work for a proof.
const (
	proofTime   = 20 * time.Second
	proofSample = 200_000 // rows
)

// CanCreateExtension reports whether an extension is there, or could be.
func (s *Store) CanCreateExtension(ctx context.Context, name string) (bool, error) {
	var ok bool
	err := s.side.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_extension e WHERE e.extname = $1)
			OR EXISTS (SELECT FROM pg_available_extension_versions v WHERE v.name = $1
				AND (v.trusted AND has_database_privilege(current_database(), 'CREATE') OR current_setting('is_superuser') = 'on'))`, name).Scan(&ok)
	return ok, translateError(err)
}

// EnsureExtension creates an extension that is not there.
func (s *Store) EnsureExtension(ctx context.Context, name string) error {
	_, err := s.pool.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS "+pgx.Identifier{name}.Sanitize())
	return translateError(err)
}

// SampleTexts are some of the folded texts that the index has under keys.
func (s *Store) SampleTexts(ctx context.Context, keys []fhir.Key, n int) ([]string, error) {
	rows, err := s.side.Query(ctx, `
		SELECT DISTINCT t.text FROM (SELECT x.text FROM index_string x WHERE x.key = ANY ($1::bigint[]) AND length(x.text) >= 5 LIMIT 5000) t
		ORDER BY t.text LIMIT 500`, keyNumbers(keys))
	if err != nil {
		return nil, translateError(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return spread(all, n), translateError(err)
}

// SampleQuantities are some of the numbers that the index has under keys.
func (s *Store) SampleQuantities(ctx context.Context, keys []fhir.Key, n int) ([]string, error) {
	rows, err := s.side.Query(ctx, `
		SELECT t.low::text FROM (SELECT x.low FROM index_quantity x WHERE x.key = ANY ($1::bigint[]) LIMIT 5000) t
		WHERE t.low > '-Infinity'::numeric AND t.low < 'Infinity'::numeric
		ORDER BY t.low`, keyNumbers(keys))
	if err != nil {
		return nil, translateError(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return spread(all, n), translateError(err)
}

func keyNumbers(keys []fhir.Key) []int64 {
	out := make([]int64, len(keys))
	for i, k := range keys {
		out[i] = int64(k)
	}
	return out
}

// spread takes n of a list, evenly.
func spread(all []string, n int) []string {
	if len(all) <= n {
		return all
	}
	out := make([]string, n)
	for i := range out {
		out[i] = all[(2*i+1)*len(all)/(2*n)]
	}
	return out
}

// ProveIndex measures the effect of a candidate on queries, and changes nothing. With the
// extension hypopg it compares plans with a hypothetical index. Without it, and for kinds
// of index that hypopg does not know, it builds a real index on a sample of the table in a
// transaction that is rolled back. Queries run as searches do, by generic plans. An index
// that no plan would use improves nothing.
func (s *Store) ProveIndex(ctx context.Context, c IndexCandidate, queries []*search.Query) (Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	conn, err := s.ownConnection(ctx, "SET statement_timeout = '20s'; SET lock_timeout = '1s';")
	if err != nil {
		return Proof{}, translateError(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	parts, err := s.currentParts(ctx)
	if err != nil {
		return Proof{}, translateError(err)
	}
	statements := make([]match.Statement, len(queries))
	for i, q := range queries {
		statements[i] = plan.Compile(q, &match.Env{Type: searchable{s}.KnownType, Parts: parts}).CountMatches()
	}
	var hypothetical bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'hypopg')").Scan(&hypothetical); err != nil {
		return Proof{}, translateError(err)
	}
	p := prover{ctx: ctx, conn: conn, candidate: c, statements: statements}
	if hypothetical && !strings.Contains(c.Columns, "USING gin") {
		p.improvement, err = p.byPlan()
		return Proof{p.improvement, "hypothetical"}, translateError(err)
	}
	p.improvement, err = p.bySample()
	return Proof{p.improvement, "sample"}, translateError(err)
}

// prover proves one candidate on one connection.
type prover struct {
	ctx         context.Context
	conn        *pgx.Conn
	candidate   IndexCandidate
	statements  []match.Statement
	improvement float64
	prepared    int
}

// byPlan compares the planner's costs.
func (p *prover) byPlan() (float64, error) {
	before, _, err := p.explain("", "")
	if err != nil {
		return 0, err
	}
	var name string
	if err := p.conn.QueryRow(p.ctx, "SELECT indexname FROM hypopg_create_index($1)", "CREATE INDEX ON "+p.candidate.Table+" "+p.candidate.Columns).Scan(&name); err != nil {
		return 0, fmt.Errorf("hypothetical index: %w", err)
	}
	after, used, err := p.explain("", name)
	if err != nil || !used {
		return 0, err
	}
	return saved(before, after), nil
}

// proofIndex is the name of the index that is built on a sample.
const proofIndex = "proof_candidate"

// bySample compares the time that the statements take. The sample stands before the table
// itself, as temporary tables do.
func (p *prover) bySample() (float64, error) {
	tx, err := p.conn.Begin(p.ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(p.ctx)) // nothing is to stay
	if p.candidate.Extension != "" {
		if _, err := tx.Exec(p.ctx, "CREATE EXTENSION IF NOT EXISTS "+pgx.Identifier{p.candidate.Extension}.Sanitize()); err != nil {
			return 0, err
		}
	}
	table := pgx.Identifier{p.candidate.Table}.Sanitize()
	var schema string
	var pages, rows float64
	if err := tx.QueryRow(p.ctx, "SELECT current_schema(), greatest(c.relpages, 1), greatest(c.reltuples, 1) FROM pg_class c WHERE c.oid = to_regclass($1)", p.candidate.Table).Scan(&schema, &pages, &rows); err != nil {
		return 0, err
	}
	of := pgx.Identifier{schema, p.candidate.Table}.Sanitize()
	sample := ""
	if rows > proofSample {
		sample = fmt.Sprintf(" TABLESAMPLE SYSTEM (%f) REPEATABLE (1)", 100*proofSample/rows)
	}
	for _, sql := range []string{
		"SET LOCAL enable_seqscan = on",
		"CREATE TEMPORARY TABLE " + table + " (LIKE " + of + " INCLUDING INDEXES INCLUDING STORAGE) ON COMMIT DROP",
		"INSERT INTO pg_temp." + table + " SELECT * FROM " + of + sample + fmt.Sprintf(" LIMIT %d", proofSample),
		"ANALYZE pg_temp." + table,
		"SET LOCAL enable_seqscan = off",
	} {
		if _, err := tx.Exec(p.ctx, sql); err != nil {
			return 0, fmt.Errorf("sample: %w", err)
		}
	}
	before, _, err := p.explain("ANALYZE, TIMING OFF, ", "")
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec(p.ctx, "CREATE INDEX "+proofIndex+" ON pg_temp."+table+" "+p.candidate.Columns); err != nil {
		return 0, fmt.Errorf("index on a sample: %w", err)
	}
	after, used, err := p.explain("ANALYZE, TIMING OFF, ", proofIndex)
	if err != nil || !used {
		return 0, err
	}
	return saved(before, after), nil
}

func saved(before, after float64) float64 {
	if before <= 0 {
		return 0
	}
	return max(0, 1-after/before)
}

// runs is how often a statement is run on a sample: the fastest run counts.
const runs = 5

// explain sums the costs of the statements, estimated or, with ANALYZE, in milliseconds,
// and reports whether any plan uses the index.
func (p *prover) explain(options, index string) (cost float64, used bool, err error) {
	for _, st := range p.statements {
		p.prepared++
		name := fmt.Sprintf("proof_%d", p.prepared)
		if _, err := p.conn.Prepare(p.ctx, name, st.SQL); err != nil {
			return 0, false, err
		}
		// A statement that is explained by its name is planned as it is run, without
		// its values.
		marks := make([]string, len(st.Args))
		for i := range marks {
			marks[i] = fmt.Sprintf("$%d", i+1)
		}
		sql := "EXPLAIN (" + options + "FORMAT JSON) EXECUTE " + name
		if len(marks) > 0 {
			sql += "(" + strings.Join(marks, ", ") + ")"
		}
		least := math.Inf(1)
		for range runs {
			var text []byte
			if err := p.conn.QueryRow(p.ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, st.Args...)...).Scan(&text); err != nil {
				return 0, false, fmt.Errorf("explain: %w", err)
			}
			var plans []struct {
				Plan struct {
					Cost float64 `json:"Total Cost"`
				}
				Time float64 `json:"Execution Time"` // in milliseconds
			}
			if err := json.Unmarshal(text, &plans); err != nil || len(plans) == 0 {
				return 0, false, errors.Join(errors.New("a plan cannot be read"), err)
			}
			used = used || index != "" && strings.Contains(string(text), `"`+index+`"`)
			if options == "" {
				least = plans[0].Plan.Cost
				break
			}
			least = min(least, plans[0].Time)
		}
		cost += least
	}
	return cost, used, nil
}

// IndexSuggestion is an index that was proved.
type IndexSuggestion struct {
	ID           string
	ResourceType string
	Parameters   []string
	Shapes       []string // of the searches
	Name         string   // of the index
	Statement    string
	Reason       string
	Proof        Proof
	Proved       time.Time
}

// PutIndexSuggestion keeps a suggestion.
func (s *Store) PutIndexSuggestion(ctx context.Context, x IndexSuggestion) error {
	return translateError(db.New(s.side).PutIndexSuggestion(ctx, db.PutIndexSuggestionParams{ID: x.ID, ResourceType: x.ResourceType, Parameters: x.Parameters,
		Shapes: x.Shapes, Name: x.Name, Statement: x.Statement, Reason: x.Reason, Improvement: x.Proof.Improvement, Proof: x.Proof.Method, Proved: x.Proved}))
}

// DropIndexSuggestion forgets a suggestion that does not hold any more.
func (s *Store) DropIndexSuggestion(ctx context.Context, id string) error {
	return translateError(db.New(s.side).DropIndexSuggestion(ctx, id))
}

// IndexSuggestions are the suggestions that were proved.
func (s *Store) IndexSuggestions(ctx context.Context) ([]IndexSuggestion, error) {
	rows, err := db.New(s.side).IndexSuggestions(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]IndexSuggestion, len(rows))
	for i, r := range rows {
		out[i] = IndexSuggestion{r.ID, r.ResourceType, r.Parameters, r.Shapes, r.Name, r.Statement, r.Reason, Proof{r.Improvement, r.Proof}, r.Proved.UTC()}
	}
	return out, nil
}
