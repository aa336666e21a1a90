package strategy

import (
	"context"

	"kiln/server/fhir"
	"kiln/server/search/plan"
	"kiln/server/search/recent"
	"kiln/server/search/session"

	"github.com/jackc/pgx/v5/pgtype"
)

// sortAndReadPage sorts all matches and reads the page, in one snapshot.
func (x *execution) sortAndReadPage(ctx context.Context) (p *session.Page, o *recent.Order, err error) {
	err = x.session.RunInSnapshot(ctx, func(ctx context.Context) error {
		o = &recent.Order{Used: x.env.Now()}
		if err := x.session.Conn().QueryRow(ctx, "SELECT "+plan.Now).Scan(&o.Snapshot); err != nil {
			return err
		}
		if o.Order, err = x.sortMatches(ctx); err != nil {
			return err
		}
		p, err = x.readPageOfOrder(ctx, o.Order)
		return err
	})
	return p, o, err
}

// sortMatches reads all matches and sorts them. It keeps one body in memory at a time.
func (x *execution) sortMatches(ctx context.Context) (*plan.Order, error) {
	if x.plan.SortsInMemory() && x.store.Resources() == nil {
		return nil, errNoResources
	}
	st := x.plan.SelectUnsorted()
	x.session.NoteStatement("all matches, to be sorted", st)
	rows, err := x.session.Conn().Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	o := x.plan.NewOrder()
	k := x.newSortKeys()
	for rows.Next() {
		if err := rows.Scan(k.columns...); err != nil {
			return nil, err
		}
		if err := k.readBody(x.store); err != nil {
			return nil, err
		}
		o.AddMatch(k.rid, k.keys)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if o.Len() > x.plan.MaxOrder() { // some were added since they were counted
		return nil, x.plan.TooManyToSort(int64(o.Len()))
	}
	o.FinishOrder()
	return o, nil
}

// sortKeys are the sort keys of one match. Some are columns of plan.Plan.SelectUnsorted, the others are read from the body.
type sortKeys struct {
	columns []any // destinations of the columns of a row
	rid     int64
	keys    []*string          // in the order of `_sort`, nil for no value
	body    pgtype.DriverBytes // valid until the next row; nil if the resource has no value for the sorters

	sorters  []*fhir.Sorter
	ofSorter []int    // the index in keys of each sorter's key
	texts    []string // the texts that keys of sorters point to
}

// newSortKeys returns the sort keys of the matches, to be filled row by row.
func (x *execution) newSortKeys() *sortKeys {
	k := &sortKeys{sorters: x.plan.NewSorters(), keys: make([]*string, len(x.q.Sort)), texts: make([]string, len(x.q.Sort))}
	k.columns = []any{&k.rid}
	for i := range x.q.Sort {
		if x.q.Sort[i].InMemory() {
			k.ofSorter = append(k.ofSorter, i)
		} else {
			k.columns = append(k.columns, &k.keys[i])
		}
	}
	k.columns = append(k.columns, &k.body)
	return k
}

// readBody sets the keys that are read from the body.
func (k *sortKeys) readBody(store Store) error {
	for _, i := range k.ofSorter {
		k.keys[i] = nil
	}
	if k.body == nil {
		return nil
	}
	if err := readSortValues(store, k.body, k.sorters); err != nil {
		return err
	}
	for j, s := range k.sorters {
		if v, ok := s.Value(); ok {
			i := k.ofSorter[j]
			k.texts[i] = v
			k.keys[i] = &k.texts[i]
		}
	}
	return nil
}

// readSortValues passes the sort values of a stored resource to the sorters.
func readSortValues(store Store, body []byte, sorters []*fhir.Sorter) error {
	json, err := store.DecodeBody(body)
	if err != nil {
		return err
	}
	r, err := store.Resources().Decode(json)
	if err != nil {
		return err
	}
	for _, s := range sorters {
		s.Reset()
	}
	return store.Resources().Sort(r, sorters)
}
