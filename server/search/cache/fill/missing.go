package fill

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/fhir"
	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

const (
	// sharedFrom is the mean number of resources with the same last update from which on a column of last updates is small.
	// Resources that were written together share it.
	sharedFrom = 10
	// linksFrom is the smallest number of resources of a type for each resource that they refer to, if the references are read
	// ahead. For fewer the database looks up each.
	linksFrom = 6
)

// listMissing returns the items that broad searches need and the cache lacks, in the order in which they are read:
//
//  1. common terms and columns of each type, the largest types first: a small cache lacks the rest
//  2. the column of last updates of the largest type, if it is small
//  3. type by type: the columns of each common code; references to resources of other types, and the items of these
//  4. the other columns of last updates, which few searches need
//
// Columns of codes need the terms of the type. While the cache lacks these, the list ends before the columns.
func (a *aheadReader) listMissing(ctx context.Context, generation int) ([]item, error) {
	if a.Store.Registry() == nil || a.Cache.AheadBytesLeft() <= 0 {
		return nil, nil
	}
	conn, err := a.Store.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	l, err := a.newMissingList(ctx, conn, generation)
	if err != nil {
		return nil, err
	}
	for _, typ := range l.large {
		l.addType(typ)
	}
	var shared float64
	st := plan.SelectPerInstant()
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&shared); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	late := l.large
	if len(late) > 0 && shared >= sharedFrom {
		l.addColumn(late[0], plan.UpdatedColumn(late[0]))
		late = late[1:]
	}
	for _, typ := range l.large {
		if l.isMissing(item{typ: typ, allTerms: true}) {
			return l.items, nil
		}
		if last, tried := a.coded[typ]; !tried || last != generation {
			if err := a.addCodedColumns(ctx, conn, l, typ); err != nil {
				return nil, err
			}
			a.coded[typ] = generation
		}
		l.addReferences(typ)
	}
	for _, typ := range late {
		l.addColumn(typ, plan.UpdatedColumn(typ))
	}
	return l.items, nil
}

// missingList is a list of items to read ahead.
type missingList struct {
	names      map[int16]string // of the types
	sizes      map[int16]int64  // numbers of resources
	from       int64            // the number of resources from which on a type is large
	large      []int16          // the large types, the largest first
	parameters func(typ string) []*fhir.Parameter
	isMissing  func(item) bool
	items      []item
}

// newMissingList returns an empty list for the types that the server knows.
func (a *aheadReader) newMissingList(ctx context.Context, conn *pgxpool.Conn, generation int) (*missingList, error) {
	registry := a.Store.Registry()
	l := &missingList{names: make(map[int16]string), from: a.from, parameters: registry.Parameters, isMissing: func(i item) bool {
		last, tried := a.tried[i.key()]
		return !a.Cache.HasItem(i.key()) && (!tried || last != generation)
	}}
	var types []int16
	for _, name := range registry.Types() {
		if typ, ok := a.Store.KnownType(name); ok && cache.FollowsType(name) {
			types, l.names[typ] = append(types, typ), name
		}
	}
	var err error
	if l.sizes, err = ReadTypeSizes(ctx, conn); err != nil {
		return nil, err
	}
	unseen := slices.DeleteFunc(slices.Clone(types), func(typ int16) bool { return !l.isSmall(typ) })
	spans, err := readSizes(ctx, conn, plan.SelectTypeSpans(unseen))
	if err != nil {
		return nil, err
	}
	maps.Copy(l.sizes, spans)
	l.large = slices.DeleteFunc(types, l.isSmall)
	slices.SortFunc(l.large, func(a, b int16) int { return cmp.Compare(l.sizes[b], l.sizes[a]) })
	return l, nil
}

// addCodedColumns adds the columns of each common code of a type.
func (a *aheadReader) addCodedColumns(ctx context.Context, conn *pgxpool.Conn, l *missingList, typ int16) error {
	columns, err := a.selectWithEntries(ctx, conn, plan.ListCodedColumns(typ, l.parameters(l.names[typ]), a.Cache.ListCommonTerms(typ)))
	if err != nil {
		return err
	}
	for _, key := range columns {
		l.addItem(typ, item{column: &key, coded: true})
	}
	return nil
}

// selectWithEntries returns the columns of one type that have entries.
func (a *aheadReader) selectWithEntries(ctx context.Context, conn Conn, columns []cache.ColumnKey) ([]cache.ColumnKey, error) {
	if len(columns) == 0 {
		return nil, nil
	}
	parts, err := a.Store.Parts(ctx)
	if err != nil {
		return nil, err
	}
	var out []cache.ColumnKey
	for _, kind := range []cache.Kind{cache.Dates, cache.Numbers, cache.Quantities} {
		of := slices.DeleteFunc(slices.Clone(columns), func(c cache.ColumnKey) bool { return c.Kind != kind })
		if len(of) == 0 {
			continue
		}
		st := plan.SelectFilledColumns(of, &match.Env{Parts: parts})
		rows, err := conn.Query(ctx, st.SQL, st.Args...)
		if err != nil {
			return nil, err
		}
		var at int
		if _, err := pgx.ForEachRow(rows, []any{&at}, func() error {
			out = append(out, of[at])
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// isSmall reports whether a type has too few resources to be read ahead for its own searches.
func (l *missingList) isSmall(typ int16) bool { return l.sizes[typ] < l.from }

// addItem adds an item of a type, unless the cache or the list has it.
func (l *missingList) addItem(typ int16, i item) {
	i.typ, i.typeName, i.ahead, i.soon = typ, l.names[typ], true, l.sizes[typ] <= l.from*soonPart
	i.largerTypes = max(0, slices.Index(l.large, typ))
	listed := func(o item) bool { return o.key() == i.key() }
	if l.isMissing(i) && !slices.ContainsFunc(l.items, listed) {
		l.items = append(l.items, i)
	}
}

// addColumn adds a column of a type.
func (l *missingList) addColumn(typ int16, key cache.ColumnKey) { l.addItem(typ, item{column: &key}) }

// addType adds the common terms of a type, and each column of values.
func (l *missingList) addType(typ int16) {
	l.addItem(typ, item{allTerms: true})
	for _, c := range plan.ListColumns(typ, l.parameters(l.names[typ])) {
		l.addColumn(typ, c)
	}
}

// addReferences adds the references of a type to resources of other types, with the items that searches along them need. It
// adds all items of small types, which take little time and memory.
func (l *missingList) addReferences(typ int16) {
	for _, ref := range plan.ListReferences(typ, l.parameters(l.names[typ])) {
		target := l.findNumber(ref.Target)
		if size := l.sizes[target]; size == 0 || size*linksFrom > l.sizes[typ] {
			continue
		}
		l.addColumn(typ, ref.References)
		l.addColumn(target, cache.OwnRefsColumn(target))
		if l.isSmall(target) {
			l.addType(target)
		}
	}
}

// findNumber returns the number of a type, 0 for a type without resources.
func (l *missingList) findNumber(name string) int16 {
	for typ, n := range l.names {
		if n == name {
			return typ
		}
	}
	return 0
}
