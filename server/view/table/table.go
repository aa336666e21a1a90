package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/view"
)

// Database is a connection or a pool.
type Database interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// The states of a table.
const (
	Building   = "building"
	Current    = "current"
	Rebuilding = "rebuilding"
	Failed     = "failed"
)

// The states that only generations have.
const (
	built = "built"
	shown = "shown"
)

// Table is a view that is kept as a table.
type Table struct {
	Name      string     `json:"name"`
	Table     string     `json:"table"` // with its schema
	View      string     `json:"view"`  // "ViewDefinition/x"
	VersionID string     `json:"versionId"`
	State     string     `json:"state"`
	Reason    string     `json:"reason"` // of failed, and of a swap that is delayed
	Rows      int64      `json:"rows"`
	Bytes     int64      `json:"bytes"`     // with indexes
	CurrentTo *time.Time `json:"currentTo"` // every commit before it is in the table; null before the first build ends
	Problems  int64      `json:"problems"`  // resources without rows, because of an error
	Columns   []Column   `json:"columns"`
	Indexes   [][]string `json:"indexes"`
}

// Column is a column of a table.
type Column struct {
	Name    string `json:"name"`
	Type    string `json:"type"` // of FHIR
	SQLType string `json:"sqlType"`
}

// Problem is a resource without rows.
type Problem struct {
	Resource string `json:"resource"` // "Patient/1"
	Column   string `json:"column"`
	Reason   string `json:"reason"`
}

// generation is one version of a view that is or becomes a table.
type generation struct {
	id                int64
	name, state, base string
	version           int
	definition        []byte
	job               string
	indexes           [][]string
}

// relation is the name of the table, ready for SQL.
func (g *generation) relation() string { return pgx.Identifier{"view", g.table()}.Sanitize() }

func (g *generation) table() string {
	if g.state == shown {
		return g.name
	}
	return fmt.Sprintf("_build_%d", g.id)
}

// reader is the name of the generation's reader of the change log.
func (g *generation) reader() string { return fmt.Sprintf("view %s %d", g.name, g.id) }

// resourceType is the type of the resources that the table has rows of.
func (g *generation) resourceType() string {
	var definition struct {
		Resource string `json:"resource"`
	}
	_ = json.Unmarshal(g.definition, &definition) // stored by this server
	return definition.Resource
}

func (g *generation) view() (*view.View, error) { return compileView(g.definition) }

// compileView compiles the JSON of a ViewDefinition.
func compileView(body []byte) (*view.View, error) {
	r, err := fhir.Decode(r4.Model, body)
	if err != nil {
		return nil, err
	}
	d, ok := r.(*r4.ViewDefinition)
	if !ok {
		return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "expected a ViewDefinition, found %s", r.Type().Name)
	}
	return view.Compile(r4.Model, d)
}

// maxName is the length of a name in PostgreSQL, in bytes.
const maxName = 63

// systemColumns are names that no column of a table can have.
var systemColumns = []string{"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"}

// checkView fails with invalid, 422, for a view that cannot be a table with some indexes.
func checkView(v *view.View, indexes [][]string) error {
	fault := func(at, format string, args ...any) error {
		return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...), Expression: at}})
	}
	switch {
	case v.Name == "":
		return fault("ViewDefinition.name", "the view has no name, which is the name of its table")
	case len(v.Name) > maxName:
		return fault("ViewDefinition.name", "the name of a table has at most %d bytes", maxName)
	case v.Clock:
		return fault("ViewDefinition", "a path uses now(), today() or timeOfDay(): the rows of the table would change without a write")
	case v.Resource == "AuditEvent":
		return fault("ViewDefinition.resource", "AuditEvents are not in the change log, which tables follow")
	}
	seen := make(map[string]bool)
	for i := range v.Columns {
		c := &v.Columns[i]
		name := columnName(c)
		switch {
		case seen[name]:
			return fault(c.Expression, "two columns have the name %s, but for case", name)
		case len(name) > maxName:
			return fault(c.Expression, "the name of a column has at most %d bytes", maxName)
		case slices.Contains(systemColumns, name):
			return fault(c.Expression, "PostgreSQL has a column %s of its own in every table", name)
		}
		seen[name] = true
	}
	for _, list := range indexes {
		if len(list) == 0 {
			return fault("indexes", "an index has at least one column")
		}
		for _, name := range list {
			if name != ID && !seen[name] {
				return fault("indexes", "the view has no column %s", outcome.Clip(name))
			}
		}
	}
	return nil
}

// storedView reads the current version of a ViewDefinition.
func storedView(ctx context.Context, db Database, id string) (body []byte, version int, err error) {
	ref := int64(fhir.ValueReference("ViewDefinition", id))
	var text string
	err = db.QueryRow(ctx, "SELECT resource_body(r.body), r.version FROM resource r WHERE r.ref = $1 AND r.shard = $2 AND r.id = $3", ref, int16(ref&255), id).Scan(&text, &version)
	return []byte(text), version, err
}

// lockView serialises the changes of a view and of its table.
func lockView(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('view ' || $1::text, 0))", id)
	return err
}

// Create makes a table of a view: a server builds it soon. reference is ViewDefinition/id. It fails with invalid,
// 400, for another reference; with not-found, 404, for an absent view; with 422 for a view that cannot be a table; and
// with conflict, 409, where the name is in use.
func Create(ctx context.Context, db Database, reference, base string, indexes [][]string) (*Table, error) {
	id, ok := strings.CutPrefix(strings.TrimPrefix(reference, base+"/"), "ViewDefinition/")
	if !ok || !fhir.ValidID(id) {
		return nil, outcome.Invalid("view is %q: expected ViewDefinition/id", outcome.Clip(reference)).At("view")
	}
	lower := make([][]string, 0, len(indexes))
	for _, list := range indexes {
		one := make([]string, len(list))
		for i := range list {
			one[i] = strings.ToLower(list[i])
		}
		lower = append(lower, one)
	}
	name := ""
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := lockView(ctx, tx, id); err != nil {
			return err
		}
		body, version, err := storedView(ctx, tx, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return outcome.NotFound("ViewDefinition", id).At("view")
		}
		if err != nil {
			return err
		}
		v, err := compileView(body)
		if err != nil {
			return err
		}
		if err := checkView(v, lower); err != nil {
			return err
		}
		name = strings.ToLower(v.Name)
		text, err := json.Marshal(lower)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO view_table (name, view, base, indexes) SELECT $1, $2, $3, $4::jsonb
			WHERE to_regclass(format('view.%I', $1::text)) IS NULL ON CONFLICT DO NOTHING`, name, id, base, string(text))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return outcome.Conflict("the name view.%s is in use", name)
		}
		_, err = addGeneration(ctx, tx, name, version, body)
		return err
	})
	if err != nil {
		return nil, err
	}
	return Get(ctx, db, name)
}

// addGeneration adds a generation with its empty table, and its reader of the change log. The table follows from here on.
func addGeneration(ctx context.Context, tx pgx.Tx, name string, version int, definition []byte) (*generation, error) {
	g := &generation{name: name, version: version, definition: definition, state: Building}
	if err := tx.QueryRow(ctx, "INSERT INTO view_generation (name, version, definition) VALUES ($1, $2, $3) RETURNING id", name, version, string(definition)).Scan(&g.id); err != nil {
		return nil, err
	}
	v, err := g.view()
	if err != nil {
		return nil, err
	}
	columns := []string{pgx.Identifier{ID}.Sanitize() + " text COLLATE \"C\""}
	for i := range v.Columns {
		columns = append(columns, pgx.Identifier{columnName(&v.Columns[i])}.Sanitize()+" "+sqlType(&v.Columns[i]))
	}
	if _, err := tx.Exec(ctx, "CREATE TABLE "+g.relation()+" ("+strings.Join(columns, ", ")+")"); err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO change_reader (name, epoch, xid, rid, version) SELECT $2, g.epoch, pg_snapshot_xmin(g.seen), 0, 0 FROM view_generation g WHERE g.id = $1", g.id, g.reader())
	return g, err
}

// dropGeneration removes a generation with its table and its reader.
func dropGeneration(ctx context.Context, tx pgx.Tx, g *generation) error {
	if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+g.relation()); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "DELETE FROM view_generation WHERE id = $1", g.id); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "DELETE FROM change_reader WHERE name = $1", g.reader())
	return err
}

const selectGenerations = `SELECT g.id, g.name, g.state, g.version, g.definition, g.job, t.base, t.indexes::text
FROM view_generation g JOIN view_table t ON t.name = g.name`

func readGenerations(ctx context.Context, db Database, where string, args ...any) ([]*generation, error) {
	rows, err := db.Query(ctx, selectGenerations+" WHERE "+where+" ORDER BY g.id", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*generation, error) {
		g := &generation{}
		var definition, indexes string
		if err := row.Scan(&g.id, &g.name, &g.state, &g.version, &definition, &g.job, &g.base, &indexes); err != nil {
			return nil, err
		}
		g.definition = []byte(definition)
		return g, json.Unmarshal([]byte(indexes), &g.indexes)
	})
}

// Drop removes a table. It fails with not-found, 404, where there is none.
func Drop(ctx context.Context, db Database, name string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM view_table WHERE name = $1 FOR UPDATE", name); err != nil {
			return err
		}
		list, err := readGenerations(ctx, tx, "g.name = $1", name)
		if err != nil {
			return err
		}
		for _, g := range list {
			if err := dropGeneration(ctx, tx, g); err != nil {
				return dependency(err, name)
			}
		}
		tag, err := tx.Exec(ctx, "DELETE FROM view_table WHERE name = $1", name)
		if err == nil && tag.RowsAffected() == 0 {
			err = noTable(name)
		}
		return err
	})
}

// dependency is the error of a table that other objects of the database depend on.
func dependency(err error, name string) error {
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == "2BP01" {
		return outcome.Conflict("other objects of the database depend on view.%s: %s", name, e.Detail)
	}
	return err
}

func noTable(name string) error {
	return outcome.New(outcome.CodeNotFound, "there is no table view.%s", outcome.Clip(name))
}

const selectTables = `SELECT t.name, t.view, t.indexes::text, f.state, f.current_to, f.rows, coalesce(s.version, n.version, 0), coalesce(s.problems, n.problems, 0),
	coalesce(s.definition, n.definition, ''), coalesce(n.reason, ''),
	coalesce(pg_total_relation_size(to_regclass(format('view.%I', CASE WHEN s.id IS NULL THEN '_build_' || n.id ELSE t.name END))), 0)
FROM view_table t
JOIN view._table f ON f.name = t.name
LEFT JOIN view_generation s ON s.name = t.name AND s.state = 'shown'
LEFT JOIN LATERAL (SELECT * FROM view_generation g WHERE g.name = t.name AND g.state <> 'shown' ORDER BY g.id DESC LIMIT 1) n ON true`

func readTables(ctx context.Context, db Database, where string, args ...any) ([]*Table, error) {
	rows, err := db.Query(ctx, selectTables+" WHERE "+where+" ORDER BY t.name", args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Table, error) {
		t := &Table{Columns: []Column{}}
		var id, indexes, definition string
		var version int
		if err := row.Scan(&t.Name, &id, &indexes, &t.State, &t.CurrentTo, &t.Rows, &version, &t.Problems, &definition, &t.Reason, &t.Bytes); err != nil {
			return nil, err
		}
		t.Table, t.View, t.VersionID = "view."+t.Name, "ViewDefinition/"+id, strconv.Itoa(version)
		if t.CurrentTo != nil {
			*t.CurrentTo = t.CurrentTo.UTC()
		}
		if err := json.Unmarshal([]byte(indexes), &t.Indexes); err != nil {
			return nil, err
		}
		v, err := compileView([]byte(definition))
		if err != nil {
			return nil, err
		}
		for i := range v.Columns {
			t.Columns = append(t.Columns, Column{columnName(&v.Columns[i]), v.Columns[i].Type, sqlType(&v.Columns[i])})
		}
		return t, nil
	})
}

// List returns all tables, by name.
func List(ctx context.Context, db Database) ([]*Table, error) { return readTables(ctx, db, "true") }

// Get returns a table. It fails with not-found, 404, where there is none.
func Get(ctx context.Context, db Database, name string) (*Table, error) {
	list, err := readTables(ctx, db, "t.name = $1", name)
	if err == nil && len(list) == 0 {
		err = noTable(name)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Problems returns the resources without rows, by id.
func Problems(ctx context.Context, db Database, name string) ([]Problem, error) {
	list, err := readGenerations(ctx, db, "g.name = $1", name)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, noTable(name)
	}
	g := list[0] // the one that is shown is the oldest
	v, err := g.view()
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, "SELECT id, column_name, reason FROM view_problem WHERE generation = $1 ORDER BY id", g.id)
	if err != nil {
		return nil, err
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Problem, error) {
		var p Problem
		err := row.Scan(&p.Resource, &p.Column, &p.Reason)
		p.Resource = v.Resource + "/" + p.Resource
		return p, err
	})
	if out == nil {
		out = []Problem{}
	}
	return out, err
}

// Definition returns the JSON of the ViewDefinition whose rows a table has.
func Definition(ctx context.Context, db Database, name string) ([]byte, error) {
	list, err := readGenerations(ctx, db, "g.name = $1", name)
	if err == nil && len(list) == 0 {
		err = noTable(name)
	}
	if err != nil {
		return nil, err
	}
	return list[0].definition, nil // the one that is shown is the oldest
}
