package fill

import (
	"context"

	"kiln/server/search"
	"kiln/server/search/match"
	"kiln/server/search/pgvalue"
	"kiln/server/search/plan"
)

const (
	// memberBytes is the approximate size of one member of a set in bytes.
	memberBytes = 2
	// maxFew is the largest number of members that a search waits for. They are read in some milliseconds.
	maxFew = 5_000
)

// readSet reads the members of a set. It gives up if there are too many.
func (s *snapshot) readSet(ctx context.Context, i item) error {
	p, err := s.compileSet(ctx, i)
	if err != nil || p.Empty {
		return err
	}
	st := p.SelectMembers()
	most := int(s.Cache.MaxItemBytes() / memberBytes)
	if i.few {
		most = min(most, maxFew)
		st = st.AtMost(maxFew + 1)
	}
	rows, err := s.tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		v := rows.RawValues()[0]
		if len(v) != 8 {
			return pgvalue.ErrFormat
		}
		s.found.RIDs = append(s.found.RIDs, pgvalue.ReadInt8(v))
		if len(s.found.RIDs) > most {
			s.Cache.RefuseItem(i.set)
			s.giveUp()
			return nil
		}
		if len(s.found.RIDs)%rowsBetweenPauses == 0 {
			s.pause()
		}
	}
	return rows.Err()
}

// compileSet returns the plan that finds the members of a set.
func (s *snapshot) compileSet(ctx context.Context, i item) (*plan.Plan, error) {
	parts, err := s.Store.Parts(ctx)
	if err != nil {
		return nil, err
	}
	env := &match.Env{Limit: s.Limit, Type: func(string) (int16, bool) { return i.typ, true }, Parts: parts}
	if match.NeedUnits(i.clauses) {
		units, err := s.readUnits(ctx)
		if err != nil {
			return nil, err
		}
		for _, u := range units {
			env.Units = append(env.Units, *u)
		}
	}
	return plan.Compile(&search.Query{Type: i.typeName, Types: []string{i.typeName}, Clauses: i.clauses}, env), nil
}
