package strategy

import (
	"context"
	"sync"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// keptOrder is a plan.Order and the snapshot that it holds in.
type keptOrder struct {
	o        *plan.Order
	snapshot string
	at       time.Time // of the last use
}

// orders are the orders that a server remembers: pages after the first are a look
// into memory.
type orders struct {
	mu    sync.Mutex
	kept  map[totalKey]*keptOrder
	bytes int
	limit int // of bytes
}

// bytesOfOrdered is the size in bytes of one match in an order of a few keys, including the memory for sorting.
const bytesOfOrdered = 24

// maxBytes is the bytes that orders may take.
func (m *orders) maxBytes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.limit
}

// takenBytes is the bytes that orders take now.
func (m *orders) takenBytes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// setLimit changes the bytes that orders may take, and forgets them where they take more.
func (m *orders) setLimit(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit = bytes; m.bytes > bytes {
		m.kept, m.bytes = nil, 0
	}
}

func (m *orders) findOrder(k totalKey, now time.Time) *keptOrder {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.kept[k]
	if o == nil || now.Sub(o.at) > rememberedFor {
		return nil
	}
	return o
}

func (m *orders) keepOrder(k totalKey, o *keptOrder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.kept[k]; old != nil {
		m.bytes -= old.o.Bytes()
		delete(m.kept, k)
	}
	if o == nil || o.o.Bytes() > m.limit || !plan.Lasting(o.snapshot) {
		return
	}
	for other, old := range m.kept {
		if m.bytes+o.o.Bytes() > m.limit || o.at.Sub(old.at) > rememberedFor {
			m.bytes -= old.o.Bytes()
			delete(m.kept, other)
		}
	}
	if m.kept == nil {
		m.kept = make(map[totalKey]*keptOrder)
	}
	m.kept[k] = o
	m.bytes += o.o.Bytes()
}

// byOrder answers a search that is sorted by a token, a reference or a uri: all
// matches are read and sorted here, and the page is fetched. It returns nil for one that
// an index has the order of, where sorting here is of no use or matches are too many.
func (x *searching) byOrder(ctx context.Context) (*pageRows, error) {
	indexed := !x.plan.InMemory()
	if indexed && (x.isPrivate() || !x.usesCache()) {
		return nil, nil
	}
	total, err := x.totalToSort(ctx)
	if err != nil {
		return nil, err
	}
	if indexed && (total <= int64(x.plan.Limit) || total > int64(x.plan.MaxOrder())) {
		return nil, nil
	}
	if total > int64(x.plan.MaxOrder()) {
		return nil, x.plan.TooManyToSort(total)
	}
	if x.isPrivate() {
		o, err := x.sort(ctx)
		if err != nil {
			return nil, err
		}
		return x.pageIn(ctx, o)
	}
	if total <= int64(x.plan.Limit)/2 || !x.usesCache() { // a few milliseconds: not worth remembering
		p, _, err := x.sortAtOnce(ctx)
		return p, err
	}
	key := x.orderKey()
	if p, err := x.byKeptOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	// Reading many resources takes a processor for a second. Only a few searches do so at a time, and one that waited,
	// without a connection, may find the result of another.
	x.connection.release()
	end, err := x.s.admission.AdmitSort(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if p, err := x.byKeptOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	p, o, err := x.sortAtOnce(ctx)
	if err != nil {
		return nil, err
	}
	x.s.keepOrder(key, o)
	return p, nil
}

// totalToSort is how many matches there are to be sorted, counted only where memory does
// not have them: too many are refused at once.
func (x *searching) totalToSort(ctx context.Context) (int64, error) {
	known, err := x.bySetOrTotal()
	if err != nil {
		return 0, err
	}
	return x.computeTotal(ctx, known)
}

func (x *searching) orderKey() totalKey {
	st := x.plan.Unsorted()
	st.SQL += " -- " + x.plan.OrderName()
	return keyOf(st)
}

// sortedPage answers a search for many matches in an order that the database has, but no
// index: by gathering them, or, from the second page on, along an order that is kept.
func (x *searching) sortedPage(ctx context.Context) (*pageRows, error) {
	if x.isPrivate() || x.inSnapshot {
		return x.gatherPage(ctx)
	}
	key := x.orderKey()
	if p, err := x.byKeptOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	if !x.usesCache() {
		return x.gatherPage(ctx)
	}
	if p, _, err := x.becomeDearUnlessFound(ctx); p != nil || err != nil {
		return p, err
	}
	// Somebody else may have sorted meanwhile.
	if p, err := x.byKeptOrder(ctx, key); p != nil || err != nil {
		return p, err
	}
	if !x.s.cache.Wants(key, false) {
		return x.gatherPage(ctx)
	}
	total, err := x.totalToSort(ctx)
	if err != nil {
		return nil, err
	}
	if total > int64(x.plan.MaxOrder()) {
		return x.gatherPage(ctx)
	}
	p, o, err := x.sortAtOnce(ctx)
	if err != nil {
		return nil, err
	}
	x.s.keepOrder(key, o)
	return p, nil
}

// byKeptOrder returns nil where there is no order that still holds.
func (x *searching) byKeptOrder(ctx context.Context, key totalKey) (*pageRows, error) {
	kept := x.s.memory.orders.findOrder(key, x.s.now())
	if kept == nil {
		return nil, nil
	}
	rids, keys, err := x.plan.PageIn(kept.o)
	if err != nil {
		return nil, err
	}
	p, now, err := x.rowsOf(ctx, rids, kept.snapshot)
	if err != nil || p == nil {
		x.s.keepOrder(key, nil)
		return nil, err
	}
	x.s.keepOrder(key, &keptOrder{kept.o, now, x.s.now()})
	return arrange(p, kept.o, rids, keys), nil
}

// sortAtOnce sorts all matches and fetches the page in one snapshot.
func (x *searching) sortAtOnce(ctx context.Context) (p *pageRows, o *keptOrder, err error) {
	conn, err := x.connection.getConnection(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		inside := *x
		inside.conn = tx
		o = &keptOrder{at: x.s.now()}
		if err := tx.QueryRow(ctx, "SELECT "+plan.Now).Scan(&o.snapshot); err != nil {
			return err
		}
		if o.o, err = inside.sort(ctx); err != nil {
			return err
		}
		p, err = inside.pageIn(ctx, o.o)
		x.steps = inside.steps
		return err
	})
	return p, o, err
}

// sort reads all matches, one body in memory at a time.
func (x *searching) sort(ctx context.Context) (*plan.Order, error) {
	if x.plan.InMemory() && x.store.Resources() == nil {
		return nil, errNoResources
	}
	st := x.plan.Unsorted()
	x.noteStatement("all matches, to be sorted", st)
	rows, err := x.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sorters := x.plan.Sorters()
	o := x.plan.NewOrder()
	var rid int64
	var body pgtype.DriverBytes // of use until the next row
	keys := make([]*string, len(x.q.Sort))
	texts := make([]string, len(keys)) // what keys point at
	into := []any{&rid}
	ofSorter := make([]int, 0, len(sorters)) // the sort key of each
	for i := range x.q.Sort {
		if x.q.Sort[i].InMemory() {
			ofSorter = append(ofSorter, i)
		} else {
			into = append(into, &keys[i])
		}
	}
	into = append(into, &body)
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		for _, i := range ofSorter {
			keys[i] = nil
		}
		if body != nil {
			if err := x.s.sortValues(body, sorters); err != nil {
				return nil, err
			}
			for j, s := range sorters {
				if v, ok := s.Value(); ok {
					i := ofSorter[j]
					texts[i] = v
					keys[i] = &texts[i]
				}
			}
		}
		o.Add(rid, keys)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if o.Len() > x.plan.MaxOrder() { // some came since they were counted
		return nil, x.plan.TooManyToSort(int64(o.Len()))
	}
	o.Finish()
	return o, nil
}

// sortValues finds the sort values of a stored resource.
func (s *Searcher) sortValues(body []byte, sorters []*fhir.Sorter) error {
	json, err := s.store.DecodeBody(body)
	if err != nil {
		return err
	}
	r, err := s.store.Resources().Decode(json)
	if err != nil {
		return err
	}
	for _, o := range sorters {
		o.Reset()
	}
	return s.store.Resources().Sort(r, sorters)
}

// pageIn fetches the page of a fresh order.
func (x *searching) pageIn(ctx context.Context, o *plan.Order) (*pageRows, error) {
	rids, keys, err := x.plan.PageIn(o)
	if err != nil {
		return nil, err
	}
	p, err := x.readPage(ctx, "rows of the page", x.plan.Rows(rids))
	if err != nil {
		return nil, err
	}
	return arrange(p, o, rids, keys), nil
}

// arrange puts the rows of a page into their order, with their keys.
func arrange(p *pageRows, o *plan.Order, rids []int64, keys [][]*string) *pageRows {
	at := make(map[int64]row, len(p.rows))
	for _, m := range p.rows {
		at[m.rid] = m
	}
	p.rows = p.rows[:0]
	for i, rid := range rids {
		if m, ok := at[rid]; ok {
			m.keys = keys[i]
			p.rows = append(p.rows, m)
		}
	}
	p.total = int64(o.Len())
	return p
}

// rowsOf fetches the page whose resources memory tells and the proof that nothing has
// changed since snapshot, in one; nil where something has.
func (x *searching) rowsOf(ctx context.Context, rids []int64, snapshot string) (p *pageRows, now string, err error) {
	st := x.plan.RowsUnchanged(rids, snapshot)
	x.noteStatement("rows from memory", st)
	var unchanged bool
	p, err = x.readRows(ctx, st, &unchanged, &now)
	if err != nil || !unchanged || !plan.SameIndex(snapshot, now) || len(p.rows) != len(rids) {
		return nil, "", err
	}
	return p, now, nil
}
