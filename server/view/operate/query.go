package operate

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/server/bulk"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/rest"
	"kiln/server/view"
	"kiln/server/view/format"
	"kiln/server/view/table"
)

// SQLSettings are about SQL queries.
type SQLSettings struct {
	URL     string // of the login that queries run as; "" runs none
	Timeout time.Duration
	MaxRows int64
}

// library is a SQLQuery Library, as far as a run needs it.
type library struct {
	URL, Name string
	Meta      struct{ Profile []string }
	Type      struct{ Coding []struct{ Code string } }
	Content   []struct{ ContentType, Data string }
	Related   []struct{ Type, Label, Resource string } `json:"relatedArtifact"`
	Parameter []struct{ Name, Use, Type string }
}

// query is a SQLQuery that is ready to run.
type query struct {
	sql   string // one SELECT, with $1, $2, …
	args  []any
	types []string // of the resources of its tables
	names []string // of the tables
	plain bool     // it calls only harmless functions, and names no table but its own
}

func resourceTypeOf(body []byte) string {
	var head struct{ ResourceType string }
	_ = json.Unmarshal(body, &head) // the reader of the resource reports a fault
	return head.ResourceType
}

func queryFault(format string, args ...any) error {
	return outcome.UnprocessableContent(outcome.CodeInvalid, format, args...)
}

// runQuery answers with the rows of a SQLQuery Library. The query runs as a login of PostgreSQL that may read tables of
// views and nothing else: SQL can run further texts as SQL, and take any role that its login has.
func (s *Service) runQuery(ctx context.Context, a *answer, r *http.Request, k rest.KickOff, q *runRequest, body []byte) error {
	settings := s.Settings()
	if settings.SQL.URL == "" {
		return outcome.RefusedParameter("%s is a Library: SQL queries need views.sql.database_url", q.parameter).At(q.parameter)
	}
	for name, given := range map[string]bool{"patient": len(q.patients) > 0, "group": len(q.groups) > 0, "_since": !q.since.IsZero(), "resource": q.inline} {
		if given {
			return outcome.Invalid("%s does not go with an SQL query", name).At(name)
		}
	}
	in, err := fhir.Read(s.Model, body)
	if err != nil {
		return err
	}
	if len(in.Issues) > 0 {
		return outcome.Unprocessable(in.Issues)
	}
	var l library
	if err := json.Unmarshal(body, &l); err != nil {
		return queryFault("the Library cannot be read: %v", err)
	}
	ready, err := s.prepareQuery(ctx, &l, q.values)
	if err != nil {
		return err
	}
	for _, typ := range ready.types {
		if err := s.checkWhole(ctx, typ); err != nil {
			return err
		}
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if k.Note != nil {
		k.Note([]byte("query=" + url.QueryEscape(cmp.Or(l.URL, l.Name, "inline"))))
	}
	ctx, cancel := context.WithTimeout(ctx, settings.SQL.Timeout+time.Second)
	defer cancel()
	defer context.AfterFunc(r.Context(), cancel)()
	err = s.sendQuery(ctx, a, q, ready, settings.SQL)
	var e *pgconn.PgError
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case errors.As(err, &e) && e.Code == "57014", errors.Is(err, context.DeadlineExceeded):
		return outcome.UnprocessableContent(outcome.CodeTooCostly, "the query takes longer than views.sql.timeout")
	case errors.As(err, &e):
		return queryFault("PostgreSQL: %s", e.Message)
	}
	return err
}

// checkWhole fails with forbidden, 403, where the token may not read and search all resources of a type.
func (s *Service) checkWhole(ctx context.Context, typ string) error {
	if err := s.checkRights(ctx, typ); err != nil {
		return err
	}
	reading, err := s.Bulk.NewReading(ctx, bulk.ReadingSpec{ResourceType: typ}, s.Now())
	if err != nil {
		return err
	}
	if !reading.Whole() {
		return outcome.New(outcome.CodeForbidden, "an SQL query reads all rows of its tables, and the token may not read every %s", typ)
	}
	return nil
}

// prepareQuery finds the SQL, the tables and the values of a query.
func (s *Service) prepareQuery(ctx context.Context, l *library, values json.RawMessage) (*query, error) {
	for _, c := range l.Type.Coding {
		if c.Code == "sql-view" {
			return nil, queryFault("SQLView is not served: expected a SQLQuery")
		}
	}
	if slices.ContainsFunc(l.Meta.Profile, func(p string) bool { return strings.HasSuffix(strings.SplitN(p, "|", 2)[0], "/SQLView") }) {
		return nil, queryFault("SQLView is not served: expected a SQLQuery")
	}
	text := ""
	for _, dialect := range []bool{true, false} {
		for _, c := range l.Content {
			typ := strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(c.ContentType, " ", ""), `"`, ""))
			if text == "" && (dialect && typ == "application/sql;dialect=postgresql" || !dialect && typ == "application/sql") {
				data, err := base64.StdEncoding.DecodeString(c.Data)
				if err != nil {
					return nil, queryFault("content.data is no base64")
				}
				text = string(data)
			}
		}
	}
	if strings.TrimSpace(text) == "" {
		return nil, queryFault("content has no SQL: expected application/sql, or application/sql;dialect=postgresql")
	}
	arguments, err := queryValues(l, values)
	if err != nil {
		return nil, err
	}
	out := &query{}
	list, err := table.List(ctx, s.Store.Pool())
	if err != nil {
		return nil, err
	}
	var with []string
	for _, d := range l.Related {
		if d.Type != "depends-on" {
			continue
		}
		name, typ, err := s.tableOf(ctx, list, d.Resource)
		if err != nil {
			return nil, err
		}
		if !labelPattern.MatchString(d.Label) || strings.EqualFold(d.Label, "view") {
			return nil, queryFault("the label %q of %s is no name of a table", outcome.Clip(d.Label), outcome.Clip(d.Resource))
		}
		out.types, out.names = append(out.types, typ), append(out.names, name)
		with = append(with, pgx.Identifier{strings.ToLower(d.Label)}.Sanitize()+" AS NOT MATERIALIZED (SELECT * FROM "+pgx.Identifier{"view", name}.Sanitize()+")")
	}
	scanned := scanSQL(text, arguments)
	out.args, out.plain = scanned.args, scanned.plain
	if len(with) > 0 {
		out.sql = "WITH " + strings.Join(with, ", ") + " "
	}
	// A subquery is one SELECT.
	out.sql += "SELECT %s FROM (" + strings.ReplaceAll(scanned.sql, "%", "%%") + "\n) AS q%s"
	if !out.plain {
		// It may read every table of its login, by a text that it runs.
		for _, t := range list {
			typ, err := s.resourceOfTable(ctx, t)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(out.types, typ) {
				out.types = append(out.types, typ)
			}
		}
	}
	return out, nil
}

// tableOf returns the table of a view, by its canonical URL, and the type of its resources.
func (s *Service) tableOf(ctx context.Context, list []*table.Table, canonical string) (name, typ string, err error) {
	address, version, _ := strings.Cut(canonical, "|")
	for _, t := range list {
		if t.CurrentTo == nil { // not built
			continue
		}
		v, err := s.storedViewOf(ctx, t)
		if err != nil {
			return "", "", err
		}
		if v.URL == address && (version == "" || v.Version == version) {
			return t.Name, v.Resource, nil
		}
	}
	return "", "", queryFault("the view %s has no table", outcome.Clip(canonical))
}

func (s *Service) resourceOfTable(ctx context.Context, t *table.Table) (string, error) {
	v, err := s.storedViewOf(ctx, t)
	if err != nil {
		return "", err
	}
	return v.Resource, nil
}

func (s *Service) storedViewOf(ctx context.Context, t *table.Table) (v struct{ URL, Version, Resource string }, err error) {
	body, err := table.Definition(ctx, s.Store.Pool(), t.Name)
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	return v, err
}

// argument is a value of a parameter of a query, and its type in SQL.
type argument struct {
	value   *string // nil for NULL
	sqlType string
}

// queryValues reads the values of a query's parameters.
func queryValues(l *library, values json.RawMessage) (map[string]argument, error) {
	out := make(map[string]argument)
	types := make(map[string]string)
	for _, p := range l.Parameter {
		if p.Use == "out" {
			continue
		}
		types[p.Name] = p.Type
		out[p.Name] = argument{sqlType: cmp.Or(map[string]string{"boolean": "boolean", "integer": "integer", "positiveInt": "integer", "unsignedInt": "integer",
			"decimal": "numeric", "instant": "timestamptz", "base64Binary": "bytea"}[p.Type], "text")}
	}
	if values == nil {
		return out, nil
	}
	list, err := parameters.Read(values)
	if err != nil {
		return nil, outcome.Invalid("parameters cannot be read: %v", err).At("parameters")
	}
	for i := range list {
		p := &list[i]
		known, ok := out[p.Name]
		if !ok {
			return nil, outcome.Invalid("the query has no parameter %s", outcome.Clip(p.Name)).At("parameters")
		}
		text, err := textOf(p)
		if err != nil {
			return nil, err
		}
		given := strings.ToLower(p.Type)
		textual := func(typ string) bool {
			return slices.Contains([]string{"string", "code", "id", "markdown", "uri", "url", "canonical", "oid", "uuid"}, typ)
		}
		declared := strings.ToLower(types[p.Name])
		if given != declared && (!textual(given) || !textual(declared)) {
			return nil, outcome.Invalid("the parameter %s is a %s: expected value%s", outcome.Clip(p.Name), p.Type, strings.ToUpper(types[p.Name][:min(1, len(types[p.Name]))])+types[p.Name][min(1, len(types[p.Name])):]).At("parameters")
		}
		if known.value != nil {
			return nil, outcome.Invalid("the parameter %s is given more than once", outcome.Clip(p.Name)).At("parameters")
		}
		known.value = &text
		out[p.Name] = known
	}
	return out, nil
}

// sendQuery runs a query and writes its rows. The connection is used once: a query can change its session.
func (s *Service) sendQuery(ctx context.Context, a *answer, q *runRequest, ready *query, settings SQLSettings) error {
	config, err := pgx.ParseConfig(settings.URL)
	if err != nil {
		return fmt.Errorf("views.sql.database_url: %w", err)
	}
	config.RuntimeParams["search_path"] = "pg_catalog"
	config.RuntimeParams["default_transaction_read_only"] = "on"
	config.RuntimeParams["statement_timeout"] = fmt.Sprint(settings.Timeout.Milliseconds())
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["standard_conforming_strings"] = "on"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect as the login of views.sql.database_url: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var strong bool
	if err := conn.QueryRow(ctx, "SELECT r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'MEMBER') FROM pg_roles r, pg_namespace n WHERE r.rolname = current_user AND n.nspname = 'view'").Scan(&strong); err != nil {
		return err
	}
	if strong {
		return outcome.RefusedParameter("%s is a Library: the login of views.sql.database_url has too many rights; it needs a role that kiln view grant accepts", q.parameter).At(q.parameter)
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	described, err := conn.Prepare(ctx, "kiln_query", fmt.Sprintf(ready.sql, "*", ""))
	if err != nil {
		return err
	}
	columns, selected, names := queryColumns(described.Fields)
	most := settings.MaxRows
	limit := most + 1
	if q.limit >= 0 && int64(q.limit) < limit {
		limit = int64(q.limit)
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(ready.sql, strings.Join(selected, ", "), "("+strings.Join(names, ", ")+")")+fmt.Sprintf(" LIMIT %d", limit), ready.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	w := a.form.Open(a, columns, format.Options{NoHeader: !q.header})
	row, cells, into := make(view.Row, len(columns)), make([]*string, len(columns)), make([]any, len(columns))
	for i := range cells {
		into[i] = &cells[i]
	}
	for n := int64(1); rows.Next(); n++ {
		if n > most {
			return outcome.UnprocessableContent(outcome.CodeTooCostly, "the query has more rows than views.sql.max_rows, %d", most)
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		for i, text := range cells {
			row[i] = view.Cell{}
			if text != nil {
				row[i] = view.Cell{Set: true, Value: fhirpath.String(*text)}
			}
		}
		if err := w.Write(row); err != nil {
			return format.AsViewError(err, "query")
		}
		s.rows.Inc()
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return w.Close()
}

// queryColumns are the columns of a query, an expression for the text of each, and names for them in SQL.
func queryColumns(fields []pgconn.FieldDescription) (columns []view.Column, selected, names []string) {
	for i, f := range fields {
		name := fmt.Sprintf("c%d", i)
		c := view.Column{Name: f.Name, Type: "string"}
		text := name + "::text"
		switch f.DataTypeOID {
		case pgtype.BoolOID:
			c.Kind, text = view.Boolean, "CASE "+name+" WHEN true THEN 'true' WHEN false THEN 'false' END"
		case pgtype.Int2OID, pgtype.Int4OID:
			c.Kind = view.Integer
		case pgtype.Int8OID:
			c.Kind, c.SQL = view.Integer, &view.SQLType{Name: "BIGINT"}
		case pgtype.NumericOID:
			c.Kind = view.Decimal
		case pgtype.Float4OID, pgtype.Float8OID:
			c.Kind, c.SQL = view.Decimal, &view.SQLType{Name: "DOUBLE PRECISION"}
		case pgtype.TimestamptzOID:
			c.Kind, text = view.Instant, "to_char("+name+` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
		case pgtype.ByteaOID:
			c.Kind, text = view.Base64, "translate(encode("+name+", 'base64'), E'\\n', '')"
		case pgtype.TextOID, pgtype.VarcharOID, pgtype.BPCharOID, pgtype.NameOID, pgtype.DateOID, pgtype.TimeOID, pgtype.TimestampOID, pgtype.UUIDOID, pgtype.UnknownOID, pgtype.IntervalOID:
		default: // JSON and arrays are JSON; the text of Parquet
			c.Kind, c.SQL, text = view.Decimal, &view.SQLType{Name: "CHARACTER VARYING"}, "to_json("+name+")::text"
		}
		columns, selected, names = append(columns, c), append(selected, text), append(names, name)
	}
	return columns, selected, names
}
