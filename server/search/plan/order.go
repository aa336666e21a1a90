package plan

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// MaxOrder is the number of matches that can be sorted by a token, a reference or
// a uri where Env.MaxOrder says no other: the values are read from the resources
// themselves, at about 7 us each.
const MaxOrder = 500_000

// MaxOrder is the number of matches that the plan can sort.
func (p *Plan) MaxOrder() int { return max(MaxOrder, p.env.MaxOrder) }

// SortsInMemory reports whether the search must be sorted by an Order, because only the resources contain the values of some key.
func (p *Plan) SortsInMemory() bool {
	return slices.ContainsFunc(p.q.Sort, func(k search.SortKey) bool { return k.InMemory() })
}

// HasTies reports whether further sort keys follow a key that an administrator has indexed. Many resources have the same code: a
// walk along the index sorts all of these by the further keys for each page.
func (p *Plan) HasTies() bool { return len(p.q.Sort) > 1 && p.q.Sort[0].Indexed }

// maxCommands is how many commands a refusal names.
const maxCommands = 4

// TooManyToSort refuses to sort total matches, and names the indexes that would.
func (p *Plan) TooManyToSort(total int64) *outcome.Error {
	var names, commands []string
	for _, k := range p.q.Sort {
		if !k.InMemory() {
			continue
		}
		names = append(names, k.Code)
		for _, typ := range p.q.Types {
			if k.Indexable {
				commands = append(commands, "kiln admin indexes sort "+typ+" "+k.Code)
			}
		}
	}
	or := ", or sort by a string, date, number or quantity"
	if n := len(commands); n > 0 && n <= maxCommands {
		or += "; an administrator can have the order indexed: " + strings.Join(commands, "; ")
	}
	return outcome.New(outcome.CodeTooCostly, "parameter _sort: %s can sort at most %d matches, and the search has %d: add parameters that narrow it, such as a date or patient%s",
		strings.Join(names, ", "), p.MaxOrder(), total, or)
}

// NewSorters returns the sort keys that are read from resources, in the order of `_sort`.
func (p *Plan) NewSorters() []*fhir.Sorter {
	var out []*fhir.Sorter
	for _, k := range p.q.Sort {
		if k.InMemory() {
			out = append(out, &fhir.Sorter{Keys: k.Keys, Targets: k.Targets, Descending: k.Descending})
		}
	}
	return out
}

// OrderName identifies an order, together with the statement of SelectUnsorted.
func (p *Plan) OrderName() string {
	var b strings.Builder
	for _, k := range p.q.Sort {
		b.WriteString(strconv.FormatBool(k.Descending))
		b.WriteString(strings.Join(k.Targets, ","))
		for _, key := range k.Keys {
			b.WriteString(strconv.FormatUint(uint64(key), 16))
			b.WriteByte(' ')
		}
		b.WriteString(k.Code)
		b.WriteByte(';')
	}
	return b.String()
}

// SelectUnsorted returns the statement that reads every match, in no order: rid, a text for each sort key that has an index, and
// the body, null if the resource has no value for any other key. More than Plan.MaxOrder rows are too many.
func (p *Plan) SelectUnsorted() match.Statement {
	w := newWriter(p.env)
	w.Write("SELECT r.rid, ")
	var present []int64
	for _, c := range columns(p.q) {
		if c.key.InMemory() {
			present = append(present, match.TermsOf(c.key.Keys, fhir.ValuePresent()).Values...)
			continue
		}
		mark := w.Mark()
		w.value(&c, "r")
		w.Write(c.asText(w.Cut(mark)), ", ")
	}
	if len(present) > 0 {
		w.Write("CASE WHEN r.terms && ")
		w.Terms(present)
		w.Write(" THEN r.body END FROM ")
	} else {
		w.Write("NULL::bytea FROM ")
	}
	w.Matching("r", &p.where, p.types)
	w.Write(" LIMIT ")
	w.Bind(int64(p.MaxOrder() + 1))
	w.Write("::bigint")
	return w.Statement()
}

// An Order is the matches of a search as `_sort` has them. It is not changed once
// it is finished.
type Order struct {
	cols []orderColumn
	rids []int64
	// places has, for each match and sort key, the place of the value among the
	// distinct values in the direction asked for.
	places []uint32
}

// missing is the place of no value: the last, in both directions.
const missing = math.MaxUint32

// orderColumn is the distinct values of a sort key.
type orderColumn struct {
	key    search.SortKey
	cast   string
	seen   map[string]uint32 // until it is finished
	values []string          // sorted once it is finished
}

// NewOrder returns an empty order for the plan's `_sort`.
func (p *Plan) NewOrder() *Order {
	o := &Order{}
	for _, c := range columns(p.q) {
		o.cols = append(o.cols, orderColumn{key: c.key, cast: c.cast, seen: make(map[string]uint32)})
	}
	return o
}

// AddMatch adds a match with a text for each sort key, nil for no value.
func (o *Order) AddMatch(rid int64, keys []*string) {
	o.rids = append(o.rids, rid)
	for i, k := range keys {
		at := uint32(missing)
		if k != nil {
			c := &o.cols[i]
			n, ok := c.seen[*k]
			if !ok {
				n = uint32(len(c.values))
				text := strings.Clone(*k) // and not the body that it is a part of
				c.seen[text] = n
				c.values = append(c.values, text)
			}
			at = n
		}
		o.places = append(o.places, at)
	}
}

// FinishOrder sorts the added matches.
func (o *Order) FinishOrder() {
	n := len(o.cols)
	for i := range o.cols {
		c := &o.cols[i]
		by := make([]uint32, len(c.values))
		for j := range by {
			by[j] = uint32(j)
		}
		slices.SortFunc(by, func(a, b uint32) int { return c.compare(c.values[a], c.values[b]) })
		place := make([]uint32, len(by))
		values := make([]string, len(by))
		for j, from := range by {
			place[from], values[j] = uint32(j), c.values[from]
		}
		for j := i; j < len(o.places); j += n {
			if o.places[j] != missing {
				o.places[j] = place[o.places[j]]
			}
		}
		c.values, c.seen = values, nil
	}
	at := make([]int, len(o.rids))
	for i := range at {
		at[i] = i
	}
	slices.SortFunc(at, func(a, b int) int {
		return cmp.Or(slices.Compare(o.places[a*n:a*n+n], o.places[b*n:b*n+n]), cmp.Compare(o.rids[a], o.rids[b]))
	})
	rids, places := make([]int64, 0, len(at)), make([]uint32, 0, len(o.places))
	for _, i := range at {
		rids = append(rids, o.rids[i])
		places = append(places, o.places[i*n:i*n+n]...)
	}
	o.rids, o.places = rids, places
}

// compare orders two values as `_sort` asks for.
func (c *orderColumn) compare(a, b string) int {
	if c.key.Descending {
		a, b = b, a
	}
	switch c.cast {
	case "bigint", "timestamptz":
		m, _ := strconv.ParseInt(a, 10, 64)
		n, _ := strconv.ParseInt(b, 10, 64)
		return cmp.Compare(m, n)
	case "numeric":
		var m, n apd.Decimal
		_, _, err1 := m.SetString(a)
		_, _, err2 := n.SetString(b)
		if err1 == nil && err2 == nil {
			return m.Cmp(&n)
		}
	}
	return strings.Compare(a, b)
}

// Len is the number of matches.
func (o *Order) Len() int { return len(o.rids) }

// Bytes is about how much memory the order takes.
func (o *Order) Bytes() int {
	n := 8*len(o.rids) + 4*len(o.places)
	for i := range o.cols {
		for _, v := range o.cols[i].values {
			n += len(v) + 16
		}
	}
	return n
}

// after is the number of matches up to a place between two matches: those that
// the cursor's match comes after, and itself.
func (o *Order) after(c *search.Cursor) int {
	// Twice the place among the values; odd where the value is none of them.
	places := make([]int64, len(o.cols))
	for i, k := range c.Keys {
		if k == nil {
			places[i] = 2 * missing
			continue
		}
		col := &o.cols[i]
		at, found := slices.BinarySearchFunc(col.values, *k, col.compare)
		places[i] = 2 * int64(at)
		if !found {
			places[i]--
		}
	}
	n := len(o.cols)
	return sort.Search(len(o.rids), func(i int) bool {
		for j := range n {
			if c := cmp.Compare(2*int64(o.places[i*n+j]), places[j]); c != 0 {
				return c > 0
			}
		}
		return o.rids[i] > c.RID
	})
}

// FindPage returns the matches of the page in an order, with one more if there is one. Backwards the last comes first, as in
// SelectWalk. keys are the texts of each match, for cursors.
func (p *Plan) FindPage(o *Order) (rids []int64, keys [][]*string, err error) {
	g, err := p.page()
	if err != nil {
		return nil, nil, err
	}
	from, to := g.offset, 0
	switch {
	case g.reverse:
		to = len(o.rids)
		if g.cursor != nil {
			if to = o.after(g.cursor); to > 0 && o.rids[to-1] == g.cursor.RID {
				to--
			}
		}
		from = max(0, to-g.limit)
	default:
		if g.cursor != nil {
			from = o.after(g.cursor)
		}
		from = min(from, len(o.rids))
		to = min(from+g.limit, len(o.rids))
	}
	n := len(o.cols)
	for i := from; i < to; i++ {
		match := make([]*string, n)
		for j := range n {
			if at := o.places[i*n+j]; at != missing {
				match[j] = &o.cols[j].values[at]
			}
		}
		rids, keys = append(rids, o.rids[i]), append(keys, match)
	}
	if g.reverse {
		slices.Reverse(rids)
		slices.Reverse(keys)
	}
	return rids, keys, nil
}
