package strategy

import (
	"cmp"
	"context"
	"slices"

	"kiln/server/fhir"
	"kiln/server/search/match"
	"kiln/server/search/plan"
	"kiln/server/search/recent"

	"github.com/jackc/pgx/v5"
)

// compile plans the query with the database's type numbers, with units, and with the texts of the dictionary. With sure these
// are read from the database, else they may be the texts that an earlier search has read (execution.assumed).
func (x *execution) compile(ctx context.Context, units *recent.Units, sure bool) error {
	var failure error
	asked := false // the database, for a type that this server has not seen
	env := &match.Env{Limit: x.env.Limit, MaxOrder: x.env.orders.Limit() / recent.SortedMatchBytes, Type: func(typ string) (int16, bool) {
		if n, ok := x.store.KnownType(typ); ok || asked {
			return n, ok
		}
		asked = true
		n, ok, err := x.store.TypeNumber(ctx, typ)
		if err != nil && failure == nil {
			failure = err
		}
		return n, ok
	}}
	read := make(map[fhir.Key][]string)
	env.Texts = func(key fhir.Key) []string {
		texts, ok := read[key]
		if !ok {
			var err error
			if texts, err = x.findTexts(ctx, key, sure); err != nil && failure == nil {
				failure = err
			}
			read[key] = texts
		}
		return texts
	}
	if units != nil {
		env.Units = units.Units
	}
	var err error
	if env.Parts, err = x.store.Parts(ctx); err != nil {
		return err
	}
	if c := x.session.Connection(); c != nil {
		c.SetParts(env.Parts)
	}
	x.assumed = nil
	x.plan, x.firstDriverSet = plan.Compile(x.q, env), false
	x.question, x.questionKnown = nil, false
	return failure
}

// findTexts returns the texts of a key for a plan. Unless sure is true they may be the texts that an earlier search has read.
func (x *execution) findTexts(ctx context.Context, key fhir.Key, sure bool) ([]string, error) {
	if !sure {
		if t, ok := x.env.texts.FindTexts(key); ok {
			if x.assumed == nil {
				x.assumed = make(map[fhir.Key]recent.Texts)
			}
			x.assumed[key] = t
			return t.Texts, nil
		}
	}
	rows, err := x.session.Conn().Query(ctx, `SELECT value, text FROM token_text WHERE key = $1 ORDER BY value`, int64(key))
	if err != nil {
		return nil, err
	}
	var t recent.Texts
	var value int64
	var text string
	if _, err := pgx.ForEachRow(rows, []any{&value, &text}, func() error {
		t.Values, t.Texts = append(t.Values, value), append(t.Texts, text)
		return nil
	}); err != nil {
		return nil, err
	}
	if !x.session.IsPrivate() {
		x.env.texts.StoreTexts(key, t)
	}
	return t.Texts, nil
}

// assumedTexts returns the texts that the plan assumes.
func (x *execution) assumedTexts() (t plan.Texts) {
	for key := range x.assumed {
		t.Keys = append(t.Keys, int64(key))
	}
	slices.SortFunc(t.Keys, cmp.Compare)
	for _, key := range t.Keys {
		t.Values = append(t.Values, x.assumed[fhir.Key(key)].Values...)
	}
	return t
}

// readUnits adds the rows of quantity_unit that this server has not read. The result is as new as the search. Rows
// never change.
func (x *execution) readUnits(ctx context.Context, known *recent.Units) (*recent.Units, error) {
	rows, err := x.session.Conn().Query(ctx, `SELECT id, system, code, unit FROM quantity_unit WHERE id <> ALL ($1)`, known.IDs)
	if err != nil {
		return nil, err
	}
	more, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (match.Unit, error) {
		var id int64
		var system, code, unit string
		err := r.Scan(&id, &system, &code, &unit)
		return match.NewUnit(id, system, code, unit), err
	})
	if err != nil || len(more) == 0 {
		return known, err
	}
	now := known.WithUnits(more)
	x.env.units.StoreUnits(now)
	return now, nil
}
