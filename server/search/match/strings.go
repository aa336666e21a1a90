package match

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// Strings holds for a resource with a string that stands to Text as Op says, both as
// fhir.JoinText has them.
type Strings struct {
	Keys   []fhir.Key
	Single bool
	Op     TextOp
	Text   string
}

// prefixLength is how much of a string its index keeps.
const prefixLength = 128

// highest sorts after every character that can follow a prefix.
const highest = "\U0010FFFF"

func (w *Writer) stringRIDs(m *Strings) {
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_string ", x, " WHERE ")
	w.Keys(x, m.Keys)
	w.Write(" AND ")
	if m.Op == Contains || m.Op == EndsWith {
		w.Write("NOT ", x, ".word AND ") // as the index of trigrams has it
	}
	if m.Op != StartsWith && m.Op != Contains {
		w.textCondition(x, m)
		return
	}
	if m.Op == Contains {
		// Trigrams find parts of three characters and more; a shorter part reads
		// the strings of the key.
		if len([]rune(m.Text)) >= 3 {
			w.Write(x, ".text LIKE ")
			w.Bind("%" + likeEscaper.Replace(m.Text) + "%")
			w.Write("::text")
			return
		}
		w.Write("strpos(", x, ".text, ")
		w.Bind(m.Text)
		w.Write("::text) > 0")
		return
	}
	prefix := firstRunes(m.Text, prefixLength)
	w.Write("left(", x, ".text, 128) >= ")
	w.Bind(prefix)
	w.Write("::text AND left(", x, ".text, 128) < ")
	w.Bind(prefix + highest)
	w.Write("::text")
	if len(prefix) < len(m.Text) {
		w.Write(" AND starts_with(", x, ".text, ")
		w.Bind(m.Text)
		w.Write("::text)")
	}
}

func (w *Writer) testStrings(r string, m *Strings) {
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_string ", x, " WHERE ", x, ".rid = ", r, ".rid AND ")
	w.TestKeys(x, m.Keys)
	if m.Op != StartsWith && m.Op != Contains {
		w.Write(" AND ")
		w.textCondition(x, m)
	} else if m.Op == Contains {
		w.Write(" AND strpos(", x, ".text, ")
		w.Bind(m.Text)
		w.Write("::text) > 0")
	} else {
		w.Write(" AND starts_with(", x, ".text, ")
		w.Bind(m.Text)
		w.Write("::text)")
	}
	w.Write(" OFFSET 0)")
}

var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// firstRunes returns the first n characters of s.
func firstRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	runes := 0
	for i := range s {
		if runes == n {
			return s[:i]
		}
		runes++
	}
	return s
}

// textCondition writes a comparison of the text of row x that only `_filter` has. The index of first characters
// finds equal texts; trigrams find ends of three characters and more.
func (w *Writer) textCondition(x string, m *Strings) {
	switch m.Op {
	case Whole:
		w.Write("left(", x, ".text, 128) = ")
		w.Bind(firstRunes(m.Text, prefixLength))
		w.Write("::text AND ", x, ".text = ")
		w.Bind(m.Text)
		w.Write("::text")
	case Other:
		w.Write(x, ".text <> ")
		w.Bind(m.Text)
		w.Write("::text")
	case EndsWith:
		w.Write(x, ".text LIKE ")
		w.Bind("%" + likeEscaper.Replace(m.Text))
		w.Write("::text")
	}
}

func (m Strings) ranged() {}

func (m Strings) single() bool { return m.Single }

func (m Strings) wide() bool { return false }

func (m Strings) find(w *Writer, _ []int16) { w.stringRIDs(&m) }

func (m Strings) test(w *Writer, r string) { w.testStrings(r, &m) }

func (m Strings) byRows() bool { return true }

func (m Strings) holds(r *Resource) Answer {
	return of(slices.ContainsFunc(r.Index.Strings, func(e fhir.StringEntry) bool {
		return slices.Contains(m.Keys, e.Key) && m.includes(e.Text)
	}))
}

func (m *Strings) includes(text string) bool {
	switch m.Op {
	case Contains:
		return strings.Contains(text, m.Text)
	case EndsWith:
		return strings.HasSuffix(text, m.Text)
	case Whole:
		return text == m.Text
	case Other:
		return text != m.Text
	}
	return strings.HasPrefix(text, m.Text)
}

func (m Strings) describe() string { return "" }

func (m Strings) within(way []fhir.Key) Match {
	m.Keys, m.Single = withinKeys(m.Keys, way), false
	return m
}
