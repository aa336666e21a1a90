package fill

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"kiln/server/search/cache"
	"kiln/server/search/pgvalue"
	"kiln/server/search/plan"
)

// The common terms of a type.
const (
	// maxCommonTerms is the largest number of terms of a type that are cached together.
	maxCommonTerms = 4096
	// A common term occurs at least commonFrom times among the resources of plan.SelectSampleTerms, and in commonIn of each 65,536
	// resources of all types, which are one container of a set. A rarer term would need more memory for containers
	// than for members, and candidates find its resources soon.
	commonFrom = 16
	commonIn   = 8
	// rareTermFrom is the number of resources from which on a term is common. Rarer terms are read one by one.
	rareTermFrom = 20_000
)

// readTerms reads the resources of each common term of a type.
func (s *snapshot) readTerms(ctx context.Context, typ int16) error {
	common, err := s.findCommonTerms(ctx, typ)
	if err != nil {
		return err
	}
	terms := cache.NewTerms(common)
	st := plan.SelectAllTerms(typ)
	rows, err := s.tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var of []int64 // the terms of one resource
	for n := 1; rows.Next(); n++ {
		v := rows.RawValues()
		if len(v[0]) != 8 {
			return pgvalue.ErrFormat
		}
		of = append(of[:0], cache.Every)
		if err := pgvalue.EachInt8(v[1], func(term int64) { of = append(of, term) }); err != nil {
			return err
		}
		if !terms.AddResource(pgvalue.ReadInt8(v[0]), of) {
			s.giveUp()
			return nil
		}
		if n%rowsBetweenPauses == 0 {
			s.pause()
		}
	}
	s.found.Terms = terms
	return rows.Err()
}

// readSomeTerms reads the resources of each of some terms. It leaves out terms that turn out to be common, unless they
// are known to be.
func (s *snapshot) readSomeTerms(ctx context.Context, i item) error {
	s.found.Terms = cache.NewSomeTerms(i.someTerms)
	most := rareTermFrom + 1
	if i.evicted {
		most = math.MaxInt32
	}
	for _, term := range i.someTerms {
		n, err := s.readTerm(ctx, i.typ, term, most)
		if err != nil || s.found.State == "" {
			return err
		}
		if n == most {
			s.Cache.NoteCommonTerm(i.typ, term)
			s.found.Terms.DropTerm(term)
		}
	}
	return nil
}

// readTerm reads at most so many resources of a term, and returns their number.
func (s *snapshot) readTerm(ctx context.Context, typ int16, term int64, most int) (n int, err error) {
	st := plan.SelectWithTerm(typ, term, most)
	rows, err := s.tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for ; rows.Next(); n++ {
		v := rows.RawValues()
		if len(v[0]) != 8 {
			return n, pgvalue.ErrFormat
		}
		if !s.found.Terms.AddResource(pgvalue.ReadInt8(v[0]), []int64{term}) {
			s.giveUp()
			return n, nil
		}
		if n%rowsBetweenPauses == rowsBetweenPauses-1 {
			s.pause()
		}
	}
	return n, rows.Err()
}

// occurrences describes a term in a sample of resources.
type occurrences struct {
	count     int
	resources uint64 // a hash of the resources
}

// findCommonTerms finds the common terms of a type. Terms that occur in the same resources of a sample form one group.
func (s *snapshot) findCommonTerms(ctx context.Context, typ int16) (groups [][]int64, err error) {
	terms, sampled, err := s.sampleTerms(ctx, typ)
	if err != nil {
		return nil, err
	}
	sizes, err := ReadTypeSizes(ctx, s.tx)
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
	common = slices.DeleteFunc(common, func(term int64) bool { return terms[term].count < from })
	slices.SortFunc(common, func(a, b int64) int {
		return cmp.Or(cmp.Compare(terms[b].count, terms[a].count), cmp.Compare(terms[a].resources, terms[b].resources), cmp.Compare(a, b))
	})
	common = common[:min(maxCommonTerms, len(common))]
	for _, term := range common {
		if last := len(groups) - 1; last >= 0 && terms[groups[last][0]] == terms[term] {
			groups[last] = append(groups[last], term)
		} else {
			groups = append(groups, []int64{term})
		}
	}
	return groups, nil
}

// sampleTerms counts the terms of a sample of a type's resources, and returns the size of the sample.
func (s *snapshot) sampleTerms(ctx context.Context, typ int16) (terms map[int64]occurrences, sampled uint64, err error) {
	terms = make(map[int64]occurrences)
	st := plan.SelectSampleTerms(typ)
	rows, err := s.tx.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		sampled++
		err := pgvalue.EachInt8(rows.RawValues()[0], func(term int64) {
			o := terms[term]
			terms[term] = occurrences{o.count + 1, (o.resources ^ sampled) * fnvPrime}
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return terms, sampled, rows.Err()
}

// fnvPrime is the prime of FNV-1a with 64 bits.
const fnvPrime = 1099511628211
