package table

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/fhir"
	"kiln/server/view"
)

// chunk is the rows of some resources, in the text format of COPY.
type chunk struct {
	data     []byte
	items    []chunkItem
	problems []problem
	rows     int64
	last     int64 // see Service.build
}

// chunkItem is one resource of a chunk.
type chunkItem struct {
	id         string
	begin, end int // of its rows in data
	rows       int64
}

// problem is a resource without rows, because of an error.
type problem struct{ id, column, reason string }

// evaluateInto adds the rows of a resource to a chunk, or its problem.
func evaluateInto(c *chunk, e *view.Evaluator, r fhir.Resource) error {
	id := r.Header().ID.Text
	begin, rows := len(c.data), int64(0)
	err := e.Eval(r, func(row view.Row) (err error) {
		rows++
		c.data, err = appendRow(c.data, id, e.View.Columns, row)
		if err == nil && len(c.data)-begin > maxRows {
			err = &view.Error{Resource: id, Reason: "the rows of the resource have more than 256 MB"}
		}
		return err
	})
	var fault *view.Error
	if errors.As(err, &fault) {
		c.data = c.data[:begin]
		c.problems = append(c.problems, problem{id, fault.Column, fault.Reason})
		return nil
	}
	c.items = append(c.items, chunkItem{id, begin, len(c.data), rows})
	c.rows += rows
	return err
}

// maxRows bounds the bytes of the rows of one resource.
const maxRows = 256 << 20

// maxReason bounds the text of a problem.
const maxReason = 1000

// copyInto stores the rows of a chunk. Resources that PostgreSQL cannot store become problems.
func (c *chunk) copyInto(ctx context.Context, tx pgx.Tx, g *generation) error {
	if len(c.data) > 0 {
		err := copyRows(ctx, tx, g, c.data)
		if isRowError(err) {
			err = c.copyEach(ctx, tx, g)
		}
		if err != nil {
			return err
		}
	}
	return addProblems(ctx, tx, g, c.problems)
}

// copyRows stores rows. Its error leaves the transaction as it was.
func copyRows(ctx context.Context, tx pgx.Tx, g *generation, data []byte) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(data), "COPY "+g.relation()+" FROM STDIN")
		return err
	})
}

// copyEach stores the rows of each resource by itself.
func (c *chunk) copyEach(ctx context.Context, tx pgx.Tx, g *generation) error {
	for _, i := range c.items {
		err := copyRows(ctx, tx, g, c.data[i.begin:i.end])
		var e *pgconn.PgError
		if isRowError(err) && errors.As(err, &e) {
			c.rows -= i.rows
			c.problems = append(c.problems, problem{i.id, e.ColumnName, e.Message})
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isRowError reports whether PostgreSQL has refused a row for its content: data exceptions and
// sizes beyond its limits.
func isRowError(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (strings.HasPrefix(e.Code, "22") || strings.HasPrefix(e.Code, "54"))
}

func addProblems(ctx context.Context, tx pgx.Tx, g *generation, list []problem) error {
	if len(list) == 0 {
		return nil
	}
	var ids, columns, reasons []string
	for _, p := range list {
		reason := strings.ToValidUTF8(strings.ReplaceAll(p.reason, "\x00", ""), "")
		if len(reason) > maxReason {
			reason = strings.ToValidUTF8(reason[:maxReason], "")
		}
		ids, columns, reasons = append(ids, p.id), append(columns, p.column), append(reasons, reason)
	}
	_, err := tx.Exec(ctx, "INSERT INTO view_problem (generation, id, column_name, reason) SELECT $1, unnest($2::text[]), unnest($3::text[]), unnest($4::text[]) ON CONFLICT DO NOTHING",
		g.id, ids, columns, reasons)
	return err
}
