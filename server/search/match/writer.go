package match

import (
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
)

// Env is the surroundings of a statement beside the query. It serves one search.
type Env struct {
	// Type returns the number of a resource type, false for one that has never
	// been stored.
	Type func(typ string) (int16, bool)
	// Texts returns the texts of a key in the dictionary: the systems in which a code has rows of a coded
	// composite, the types that are contained.
	Texts func(key fhir.Key) []string
	// Parts are the parts of index_date and index_quantity; nil means one for each type.
	Parts *Parts
	// Units are the units in use, needed when Query.NeedsUnits.
	Units     []Unit
	converted map[*apd.Decimal]UnitRanges // by the value of a quantity

	// MaxOrder is how many matches may be sorted in memory; plan.MaxOrder at least.
	MaxOrder int
	// Limit is the largest number of rows that a driver may find, 0 means DefaultLimit. A search that
	// stays below is answered from its candidates.
	Limit int
}

// Statement is SQL with the values of its parameters.
type Statement struct {
	SQL  string
	Args []any
}

// Beside puts the expressions of another statement before the columns of every
// row of st, and gives one row of nulls where st has none. The rows of st keep their
// order: there is one row to join them with.
func (st Statement) Beside(more Statement) Statement {
	more.SQL = "SELECT " + more.SQL
	return st.BesideRow(more)
}

// BesideRow is Beside for a statement that gives one row. It is made once: OFFSET 0 keeps the
// planner from making it for each row of st.
func (st Statement) BesideRow(row Statement) Statement {
	return Statement{
		SQL:  "SELECT v.*, s.* FROM (" + renumberParams(row.SQL, len(st.Args)) + " OFFSET 0) v LEFT JOIN (" + st.SQL + ") s ON true",
		Args: append(st.Args[:len(st.Args):len(st.Args)], row.Args...),
	}
}

// AtMost is st with no more than n of its rows.
func (st Statement) AtMost(n int64) Statement {
	return Statement{
		SQL:  "SELECT s.* FROM (" + st.SQL + ") s LIMIT $" + strconv.Itoa(len(st.Args)+1) + "::bigint",
		Args: append(st.Args[:len(st.Args):len(st.Args)], n),
	}
}

// Then returns an expression of the value of st, which has one column, followed by more.
func (st Statement) Then(more Statement) Statement {
	return Statement{
		SQL:  "(" + st.SQL + "), " + renumberParams(more.SQL, len(st.Args)),
		Args: append(st.Args[:len(st.Args):len(st.Args)], more.Args...),
	}
}

// renumberParams adds n to the number of every parameter.
func renumberParams(sql string, n int) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(sql, "$")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		end := 0
		for end < len(after) && after[end] >= '0' && after[end] <= '9' {
			end++
		}
		number, err := strconv.Atoi(after[:end])
		if err != nil {
			panic("a dollar sign that is no parameter: " + sql)
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(number + n))
		sql = after[end:]
	}
}

// Writer builds one statement.
type Writer struct {
	env   *Env
	b     []byte
	args  []any
	alias int
}

// Write writes SQL as it is: constants of the program, never a value.
func (w *Writer) Write(parts ...string) {
	for _, s := range parts {
		w.b = append(w.b, s...)
	}
}

// Bind writes a parameter.
func (w *Writer) Bind(v any) {
	w.args = append(w.args, v)
	w.b = append(w.b, '$')
	w.b = strconv.AppendInt(w.b, int64(len(w.args)), 10)
}

// Param writes a parameter into a string, for use in several places.
func (w *Writer) Param(v any) string {
	w.args = append(w.args, v)
	return "$" + strconv.Itoa(len(w.args))
}

// Terms writes a parameter that is an array of terms.
func (w *Writer) Terms(t []int64) {
	w.Bind(t)
	w.Write("::bigint[]")
}

// Under writes the test that terms of a resource contain ref under one of keys.
func (w *Writer) Under(ref string, keys []fhir.Key, terms string) {
	if len(keys) == 1 {
		w.Write(ref, " # ")
		w.Bind(int64(keys[0]))
		w.Write("::bigint = ANY (", terms, ")")
		return
	}
	w.Write("EXISTS (SELECT 1 FROM unnest(")
	w.Terms(int64s(keys))
	w.Write(") AS k(k) WHERE ", ref, " # k.k = ANY (", terms, ") OFFSET 0)")
}

// Next is a number for an alias that the statement has not used.
func (w *Writer) Next() string {
	w.alias++
	return strconv.Itoa(w.alias)
}

// Statement returns the written text with its parameters.
func (w *Writer) Statement() Statement { return Statement{string(w.b), w.args} }

// Keys writes `x.key = $1`, or ANY of several.
func (w *Writer) Keys(x string, keys []fhir.Key) {
	w.Write(x, ".key = ")
	w.anyKey(keys)
}

func (w *Writer) anyKey(keys []fhir.Key) {
	if len(keys) == 1 {
		w.Bind(int64(keys[0]))
		w.Write("::bigint")
		return
	}
	w.Write("ANY (")
	w.Terms(int64s(keys))
	w.Write(")")
}

// TestKeys is Keys for a row that is found by its rid: an index that begins with
// the key must not tempt the planner to look for the rid within a range.
func (w *Writer) TestKeys(x string, keys []fhir.Key) {
	w.Write(x, ".key + 0 = ")
	w.anyKey(keys)
}

// ridRange writes the range of surrogates of a type.
func (w *Writer) ridRange(r string, typ int16) {
	w.Write(r, ".rid >= ")
	w.Bind(int64(typ) << 48)
	w.Write("::bigint AND ", r, ".rid < ")
	w.Bind((int64(typ) + 1) << 48)
	w.Write("::bigint")
}

// Typed writes the restriction to types where no term implies it. nil is every
// type.
func (w *Writer) Typed(r string, types []int16) bool {
	switch len(types) {
	case 0:
		return false
	case 1:
		w.ridRange(r, types[0])
	default:
		w.Write(r, ".typ = ANY (")
		w.Bind(types)
		w.Write("::smallint[])")
	}
	return true
}

// EveryType writes the types even where they are all, because the index of
// last_updated begins with them. A type may have been stored a moment ago by
// another server, so all of them are read.
func (w *Writer) EveryType(r string, types []int16) {
	w.Write(r, ".typ = ANY (")
	if len(types) == 0 {
		w.Write("ARRAY(SELECT typ FROM resource_type))")
		return
	}
	w.Bind(types)
	w.Write("::smallint[])")
}

// OfType tests the type of a row that was found by something else.
func (w *Writer) OfType(r string, types []int16, and *Conditions) {
	if len(types) == 0 {
		return
	}
	and.Next()
	w.Write(r, ".typ + 0 = ANY (")
	w.Bind(types)
	w.Write("::smallint[])")
}

// TermAnd writes the array of one term from a column and the given ones.
func (w *Writer) TermAnd(term string, all []int64) {
	if len(all) == 0 {
		w.Write("ARRAY[", term, "]")
		return
	}
	w.Write("(ARRAY[", term, "] || ")
	w.Terms(all)
	w.Write(")")
}

// Not writes NOT for a negated predicate.
func (w *Writer) Not(p *Predicate) {
	if p.Not {
		w.Write("NOT ")
	}
}

// Conditions joins conditions with AND: each call of next starts one. The text lead precedes the first.
type Conditions struct {
	W    *Writer
	Lead string
	Any  bool // something was written
}

// Next begins another condition.
func (c *Conditions) Next() {
	if c.Any {
		c.W.Write(" AND ")
	} else {
		c.W.Write(c.Lead)
	}
	c.Any = true
}

// NewWriter returns an empty writer.
func NewWriter(e *Env) *Writer { return &Writer{env: e} }

// Env returns the Env of the writer.
func (w *Writer) Env() *Env { return w.env }

// Mark returns the end of the written text, for Cut.
func (w *Writer) Mark() int { return len(w.b) }

// Cut removes the text written since mark, and returns it.
func (w *Writer) Cut(mark int) string {
	cut := string(w.b[mark:])
	w.b = w.b[:mark]
	return cut
}
