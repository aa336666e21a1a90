package plan

import (
	"strconv"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// sortColumn is how one sort key is read, compared and bound.
type sortColumn struct {
	key   search.SortKey
	cast  string // SQL type
	table string // ordered table, "" for a column of resource
}

func columns(q *search.Query) []sortColumn {
	out := make([]sortColumn, len(q.Sort))
	for i, k := range q.Sort {
		c := sortColumn{key: k}
		switch {
		case k.Code == "_lastUpdated":
			c.cast = "timestamptz"
		case k.Code == "_id", k.InMemory():
			c.cast = "text"
		case k.Type == fhir.SearchString:
			c.cast, c.table = "text", "index_string"
		case k.Type == fhir.SearchDate:
			c.cast, c.table = "bigint", "index_date"
		case k.Type == fhir.SearchNumber:
			c.cast, c.table = "numeric", "index_number"
		default:
			c.cast, c.table = "numeric", "index_quantity"
		}
		out[i] = c
	}
	return out
}

// of is the ordered value of row x of the column's table, as its index has it.
func (c *sortColumn) of(x string) string {
	if c.table == "index_string" {
		return "left(" + x + ".text, 128)"
	}
	return x + ".low"
}

// parted reports whether the entries of a key are in parts (match.Writer.PartedKeys).
func (c *sortColumn) parted() bool { return c.table == "index_date" || c.table == "index_quantity" }

// entryKeys are the keys of the entries of resources of some types in the column's table.
func (w *writer) entryKeys(c *sortColumn, types []int16) []fhir.Key {
	if c.parted() {
		return w.Env().Parts.Stored(c.key.Keys, types)
	}
	return c.key.Keys
}

// testKeys writes the test of the keys of row x of the column's table, found by its rid.
func (w *writer) testKeys(c *sortColumn, x string) {
	if c.parted() {
		w.TestPartedKeys(x, c.key.Keys)
	} else {
		w.TestKeys(x, c.key.Keys)
	}
}

// descends reports whether index_string_descending has the order, forwards or backwards:
// values descend, and those that are equal come by rid.
func (c *sortColumn) descends() bool { return c.key.Indexed && c.key.Descending }

// value writes the sort value of resource r: of several entries the first in the
// direction asked for. The neutral operation keeps the planner from looking for a
// minimum along the whole index.
func (w *writer) value(c *sortColumn, r string) {
	switch c.key.Code {
	case "_lastUpdated":
		w.Write(r, ".last_updated")
		return
	case "_id":
		w.Write(r, ".id")
		return
	}
	x := "x" + w.Next()
	pick, neutral := "min(", " + 0"
	if c.key.Descending {
		pick = "max("
	}
	if c.cast == "text" {
		neutral = ` || '' COLLATE "C"`
	}
	w.Write("(SELECT ", pick, c.of(x), neutral, ") FROM ", c.table, " ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.testKeys(c, x)
	w.Write(")")
}

// asText is the column as the text that a cursor keeps.
func (c *sortColumn) asText(col string) string {
	if c.cast == "timestamptz" {
		return "(extract(epoch FROM " + col + ") * 1000000)::bigint::text"
	}
	return col + "::text"
}

// bind turns the text of a cursor key into an argument.
func (c *sortColumn) bind(text string) (any, error) {
	switch c.cast {
	case "bigint", "timestamptz":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, badCursor()
		}
		if c.cast == "timestamptz" {
			return time.UnixMicro(n).UTC(), nil
		}
		return n, nil
	case "numeric":
		if text != "Infinity" && text != "-Infinity" {
			if _, err := fhir.ParseDecimal(text); err != nil {
				return nil, badCursor()
			}
		}
	}
	return text, nil
}

func badCursor() *outcome.Error {
	return outcome.Invalid("parameter _cursor does not fit this search: follow the links of a search result")
}
