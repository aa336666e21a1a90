package strategy

import (
	"cmp"
	"context"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"kiln/server/search"
	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
)

// readAtOnce is the number of rows that are read without a rest.
const readAtOnce = 10_000

// setMemberBytes is the approximate size of one member of a set in bytes.
const setMemberBytes = 2

// readSet reads the members of a set; it is left without a state where there are too
// many.
func (s *Searcher) readSet(ctx context.Context, tx pgx.Tx, f finding, out *cache.Found, rest func()) error {
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return err
	}
	env := &match.Env{Limit: s.memory.limit, Type: func(string) (int16, bool) { return f.typ, true }, Parts: parts}
	if match.NeedUnits(f.clauses) {
		units, err := readUnits(ctx, tx)
		if err != nil {
			return err
		}
		for _, u := range units {
			env.Units = append(env.Units, *u)
		}
	}
	p := plan.Compile(&search.Query{Type: f.name, Types: []string{f.name}, Clauses: f.clauses}, env)
	if p.Empty {
		return nil
	}
	st := p.Members()
	most := int(s.cache.Most() / setMemberBytes)
	if f.few {
		most = min(most, maxFew)
		st = st.AtMost(maxFew + 1)
	}
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		v := rows.RawValues()[0]
		if len(v) != 8 {
			return errNotBinary
		}
		out.RIDs = append(out.RIDs, rawInt8(v))
		if len(out.RIDs) > most {
			s.cache.Refuse(f.set)
			out.State = ""
			return nil
		}
		if len(out.RIDs)%readAtOnce == 0 {
			rest()
		}
	}
	return rows.Err()
}

// mostCommon is the largest number of terms of a type that are cached together. Each occurs at least commonFrom times
// among plan.SampleTerms, and in commonIn of each 65,536 resources of all types, the size of a container of a set. A
// rarer term would need more memory for containers than for members, and candidates find it soon.
const (
	mostCommon = 4096
	commonFrom = 16
	commonIn   = 8
)

// readTerms reads which resources of a type have the terms that are common there.
func (s *Searcher) readTerms(ctx context.Context, tx pgx.Tx, typ int16, out *cache.Found, rest func()) error {
	common, err := s.commonTerms(ctx, tx, typ)
	if err != nil {
		return err
	}
	terms := cache.NewTerms(common)
	st := plan.AllTerms(typ)
	all, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer all.Close()
	var has []int64
	for n := 1; all.Next(); n++ {
		v := all.RawValues()
		if len(v[0]) != 8 {
			return errNotBinary
		}
		has = append(has[:0], cache.Every)
		if err := eachInt8(v[1], func(term int64) { has = append(has, term) }); err != nil {
			return err
		}
		if !terms.Add(rawInt8(v[0]), has) {
			out.State = ""
			return nil
		}
		if n%readAtOnce == 0 {
			rest()
		}
	}
	out.Terms = terms
	return all.Err()
}

// rareTerm is how many resources have a term at most that is read by itself.
const rareTerm = 20_000

// readSomeTerms reads which resources of a type have each of some terms. Of those that are not known
// to be common, those that too many have are left out.
func (s *Searcher) readSomeTerms(ctx context.Context, tx pgx.Tx, f finding, out *cache.Found, rest func()) error {
	out.Terms = cache.NewSomeTerms(f.some)
	most := rareTerm + 1
	if f.again {
		most = math.MaxInt32
	}
	for _, term := range f.some {
		st := plan.WithTerm(f.typ, term, most)
		rows, err := tx.Query(ctx, st.SQL, st.Args...)
		if err != nil {
			return err
		}
		n := 0
		for ; rows.Next(); n++ {
			if v := rows.RawValues(); len(v[0]) != 8 {
				rows.Close()
				return errNotBinary
			} else if !out.Terms.Add(rawInt8(v[0]), []int64{term}) {
				rows.Close()
				out.State = ""
				return nil
			}
			if n%readAtOnce == readAtOnce-1 {
				rest()
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if n == most {
			s.cache.Common(f.typ, term)
			out.Terms.Drop(term)
		}
	}
	return nil
}

// commonTerms reads the common terms of a type. Terms of one list are grouped, according to a sample.
func (s *Searcher) commonTerms(ctx context.Context, tx pgx.Tx, typ int16) (together [][]int64, err error) {
	type seen struct {
		times int
		where uint64 // a hash of the resources that have it
	}
	terms := make(map[int64]seen)
	st := plan.SampleTerms(typ)
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sampled := uint64(0)
	for rows.Next() {
		sampled++
		err := eachInt8(rows.RawValues()[0], func(term int64) {
			s := terms[term]
			terms[term] = seen{times: s.times + 1, where: (s.where ^ sampled) * fnvPrime}
		})
		if err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	sizes, err := typeSizes(ctx, tx)
	if err != nil {
		return nil, err
	}
	from := commonFrom
	if of := sizes[typ]; of > 0 {
		var all int64
		for _, n := range sizes {
			all += n
		}
		from = max(from, int(all*commonIn>>16*int64(sampled)/of))
	}
	common := slices.Collect(maps.Keys(terms))
	common = slices.DeleteFunc(common, func(term int64) bool { return terms[term].times < from })
	slices.SortFunc(common, func(a, b int64) int {
		return cmp.Or(cmp.Compare(terms[b].times, terms[a].times), cmp.Compare(terms[a].where, terms[b].where), cmp.Compare(a, b))
	})
	common = common[:min(mostCommon, len(common))]
	for _, term := range common {
		if last := len(together) - 1; last >= 0 && terms[together[last][0]] == terms[term] {
			together[last] = append(together[last], term)
		} else {
			together = append(together, []int64{term})
		}
	}
	return together, nil
}

// fnvPrime is the prime of FNV-1a with 64 bits.
const fnvPrime = 1099511628211

// eachInt8 calls f for each element of a bigint[] of one dimension without nulls, in
// PostgreSQL's binary format: dimensions, flags and type, then length and lower bound, then
// each element behind its size.
func eachInt8(array []byte, f func(int64)) error {
	if len(array) == 12 && binary.BigEndian.Uint32(array) == 0 {
		return nil // empty
	}
	if len(array) < 20 || binary.BigEndian.Uint32(array) != 1 || len(array) != 20+12*int(binary.BigEndian.Uint32(array[12:])) {
		return errNotBinary
	}
	for b := array[20:]; len(b) > 0; b = b[12:] {
		f(rawInt8(b[4:12]))
	}
	return nil
}

// readColumn reads the entries of a column; it is left without a state where there are
// too many, or ranges of numbers.
func (s *Searcher) readColumn(ctx context.Context, tx pgx.Tx, key cache.ColumnKey, out *cache.Found, rest func()) error {
	most := s.cache.Most()
	if out.Ahead {
		most = min(most, s.cache.AheadLeft())
	}
	var units map[int64]*match.Unit
	if key.Kind == cache.Quantities {
		var err error
		if units, err = readUnits(ctx, tx); err != nil {
			return err
		}
	}
	parts, err := s.store.Parts(ctx)
	if err != nil {
		return err
	}
	out.Column = cache.NewColumn(key, units)
	st := plan.Column(key, &match.Env{Parts: parts})
	rows, err := tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for n := 1; rows.Next(); n++ {
		v := rows.RawValues()
		for _, i := range []int{0, 2, 3, 5} {
			if len(v[i]) != 8 {
				return errNotBinary
			}
		}
		e := cache.Entry{RID: rawInt8(v[0]), Low: rawInt8(v[2]), High: rawInt8(v[3]), Number: string(v[4]), Unit: rawInt8(v[5])}
		full := n%readAtOnce == 0 && out.Column.Bytes() > most
		if full || v[1][0] != 0 || int16(e.RID>>48) != key.Type || !out.Column.Add(e) {
			if !full || !out.Ahead { // there may be room when it is asked for
				s.cache.Refuse(key)
			}
			out.State = ""
			return nil
		}
		if n%readAtOnce == 0 {
			rest()
		}
	}
	return rows.Err()
}

// readUnits reads all units in use.
func readUnits(ctx context.Context, tx pgx.Tx) (map[int64]*match.Unit, error) {
	rows, err := tx.Query(ctx, `SELECT id, system, code, unit FROM quantity_unit`)
	if err != nil {
		return nil, err
	}
	units := make(map[int64]*match.Unit)
	var id int64
	var system, code, unit string
	_, err = pgx.ForEachRow(rows, []any{&id, &system, &code, &unit}, func() error {
		u := match.NewUnit(id, system, code, unit)
		units[id] = &u
		return nil
	})
	return units, err
}
