package table

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// afterWrite checks the writes of views that have a table. It fails with forbidden, 403, without the right to
// administer; with conflict, 409, for a deletion; and with invalid, 422, for a version that cannot be the same table. A new
// version begins a rebuild.
func (s *Service) afterWrite(ctx context.Context, t *store.Tx, ws []*store.Write) (changed bool, err error) {
	ids := make([]string, 0, len(ws))
	for _, w := range ws {
		ids = append(ids, w.ID)
	}
	slices.Sort(ids) // the order of locks
	for _, id := range slices.Compact(ids) {
		if err := lockView(ctx, t.Conn(), id); err != nil {
			return false, err
		}
	}
	for _, w := range ws {
		rows, err := t.Conn().Query(ctx, "SELECT t.name FROM view_table t WHERE t.view = $1", w.ID)
		if err != nil {
			return false, err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return false, err
		}
		if len(names) == 0 {
			continue
		}
		changed = true
		if err := s.checkWrite(ctx, t, w, names[0]); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// checkWrite checks one write of a view with a table.
func (s *Service) checkWrite(ctx context.Context, t *store.Tx, w *store.Write, name string) error {
	if p := access.PrincipalFrom(ctx); p != nil && !p.IsOpen() && !p.Admin {
		return outcome.New(outcome.CodeForbidden, "ViewDefinition/%s is kept as the table view.%s: only administrators change it", w.ID, name)
	}
	if w.Method == fhir.DELETE {
		return outcome.Conflict("ViewDefinition/%s is kept as the table view.%s: drop the table first (DELETE /admin/views/%s)", w.ID, name, name)
	}
	body, _, err := storedView(ctx, t.Conn(), w.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	v, err := compileView(body)
	if err != nil {
		return err
	}
	list, err := readGenerations(ctx, t.Conn(), "g.name = $1", name)
	if err != nil || len(list) == 0 {
		return err
	}
	if err := checkView(v, list[0].indexes); err != nil {
		return err
	}
	if strings.ToLower(v.Name) != name {
		return outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid, Expression: "ViewDefinition.name",
			Diagnostics: "the view is kept as the table view." + name + ": its name stays until the table is dropped"}})
	}
	return replace(ctx, t.Conn(), name, w.ID)
}
