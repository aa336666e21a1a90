package strategy

import (
	"context"

	"kiln/server/search/plan"
	"kiln/server/search/recent"
	"kiln/server/search/session"
)

// orderKey returns the key of the matches in their order, the same for every page.
func (x *execution) orderKey() recent.Key {
	st := x.plan.SelectUnsorted()
	st.SQL += " -- " + x.plan.OrderName()
	return recent.KeyOf(st)
}

// readPageOfRecentOrder reads the page along the order of a recent search; nil if there is none that is still valid.
func (x *execution) readPageOfRecentOrder(ctx context.Context, key recent.Key) (*session.Page, error) {
	found := x.env.orders.FindOrder(key, x.env.Now())
	if found == nil {
		return nil, nil
	}
	rids, keys, err := x.plan.FindPage(found.Order)
	if err != nil {
		return nil, err
	}
	p, now, err := x.readUnchangedRows(ctx, rids, found.Snapshot)
	if err != nil || p == nil {
		x.env.removeOrder(key)
		return nil, err
	}
	x.env.storeOrder(key, &recent.Order{Order: found.Order, Snapshot: now, Used: x.env.Now()})
	return arrangeRows(p, found.Order, rids, keys), nil
}

// readUnchangedRows reads resources with a statement that also verifies that nothing has changed since a snapshot; nil if
// something has. now is the snapshot of the statement.
func (x *execution) readUnchangedRows(ctx context.Context, rids []int64, snapshot string) (p *session.Page, now string, err error) {
	var unchanged bool
	p, err = x.session.ReadPage(ctx, "rows from memory", x.plan.SelectRowsIfUnchanged(rids, snapshot), &unchanged, &now)
	if err != nil || !unchanged || !plan.HasSameIndex(snapshot, now) || len(p.Rows) != len(rids) {
		return nil, "", err
	}
	return p, now, nil
}

// readPageOfOrder reads the page of a new order.
func (x *execution) readPageOfOrder(ctx context.Context, o *plan.Order) (*session.Page, error) {
	rids, keys, err := x.plan.FindPage(o)
	if err != nil {
		return nil, err
	}
	p, err := x.session.ReadPage(ctx, "rows of the page", x.plan.SelectRows(rids))
	if err != nil {
		return nil, err
	}
	return arrangeRows(p, o, rids, keys), nil
}

// arrangeRows puts the rows of a page into the order of surrogates, with their sort keys.
func arrangeRows(p *session.Page, o *plan.Order, rids []int64, keys [][]*string) *session.Page {
	found := make(map[int64]session.Row, len(p.Rows))
	for _, r := range p.Rows {
		found[r.RID] = r
	}
	p.Rows = p.Rows[:0]
	for i, rid := range rids {
		if r, ok := found[rid]; ok {
			r.Keys = keys[i]
			p.Rows = append(p.Rows, r)
		}
	}
	p.Total = int64(o.Len())
	return p
}
