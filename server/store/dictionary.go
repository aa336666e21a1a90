package store

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// known is a bounded set of dictionary rows that are known to be committed. It
// forgets the older half when it is full, which costs a statement that adds
// nothing.
type known struct {
	mu         sync.Mutex
	young, old map[int64]struct{}
}

const knownHalf = 1 << 16

func (k *known) has(id int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.young[id]; ok {
		return true
	}
	_, ok := k.old[id]
	if ok {
		k.put(id)
	}
	return ok
}

func (k *known) add(ids ...int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		k.put(id)
	}
}

func (k *known) put(id int64) {
	if len(k.young) >= knownHalf {
		k.old, k.young = k.young, nil
	}
	if k.young == nil {
		k.young = make(map[int64]struct{})
	}
	k.young[id] = struct{}{}
}

type textRow struct {
	key, value int64
	text       string
}

type unitRow struct {
	id                 int64
	system, code, unit string
}

// learnIndexTexts commits the dictionary rows that the indexes need, before anything uses
// them and in a transaction of its own: no write waits for another one's row,
// and a row that outlives a failed write does no harm.
func (s *Store) learnIndexTexts(ctx context.Context, indexes ...*fhir.Index) error {
	m := s.memory.Load()
	var texts []textRow
	var units []unitRow
	for _, x := range indexes {
		if x == nil {
			continue
		}
		for _, e := range x.Texts {
			value := fhir.ValueText(e.Text)
			if !m.texts.has(e.Key.Term(value)) {
				texts = append(texts, textRow{int64(e.Key), int64(value), e.Text})
			}
		}
		for _, e := range x.Quantities {
			id := fhir.UnitID(e.System, e.Code, e.Unit)
			if !m.units.has(id) {
				units = append(units, unitRow{id, e.System, e.Code, e.Unit})
			}
		}
	}
	if len(texts) > 0 {
		if err := s.learnTexts(ctx, m, texts); err != nil {
			return translateError(err)
		}
	}
	if len(units) > 0 {
		if err := s.learnUnits(ctx, m, units); err != nil {
			return translateError(err)
		}
	}
	return nil
}

// Rows go in by ascending key, so that two servers with the same news do not
// wait for each other in a circle.

func (s *Store) learnTexts(ctx context.Context, m *memory, rows []textRow) error {
	slices.SortFunc(rows, func(a, b textRow) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.value, b.value))
	})
	rows = slices.CompactFunc(rows, func(a, b textRow) bool { return a.key == b.key && a.value == b.value })
	var p db.AddTextsParams
	terms := make([]int64, len(rows))
	for i, r := range rows {
		p.Keys = append(p.Keys, r.key)
		p.Values = append(p.Values, r.value)
		p.Texts = append(p.Texts, r.text)
		terms[i] = r.key ^ r.value
	}
	if err := db.New(s.side).AddTexts(ctx, p); err != nil {
		return err
	}
	m.texts.add(terms...)
	return nil
}

func (s *Store) learnUnits(ctx context.Context, m *memory, rows []unitRow) error {
	slices.SortFunc(rows, func(a, b unitRow) int { return cmp.Compare(a.id, b.id) })
	rows = slices.CompactFunc(rows, func(a, b unitRow) bool { return a.id == b.id })
	var p db.AddUnitsParams
	for _, r := range rows {
		p.Ids = append(p.Ids, r.id)
		p.Systems = append(p.Systems, r.system)
		p.Codes = append(p.Codes, r.code)
		p.Units = append(p.Units, r.unit)
	}
	if err := db.New(s.side).AddUnits(ctx, p); err != nil {
		return err
	}
	m.units.add(p.Ids...)
	return nil
}
