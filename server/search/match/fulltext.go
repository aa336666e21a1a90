package match

// FullText holds for a resource with all of the words: in its narrative, or, with
// Content, in any of its texts. Words are compared as PostgreSQL's text search does,
// configuration simple, without case. The index has the words of narratives; those of
// a whole resource are read from its body, some 3,000 resources a second.
// Spec: https://hl7.org/fhir/R4/search.html#content.
type FullText struct {
	Words   string
	Content bool
}

func (m FullText) tested() bool { return m.Content }

func (m FullText) find(w *Writer, types []int16) {
	if m.Content {
		w.findAlone(m, types)
		return
	}
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_narrative ", x, " WHERE ", x, ".words @@ plainto_tsquery('simple', ")
	w.Bind(m.Words)
	w.Write("::text)")
	if len(types) > 0 {
		w.Write(" AND (", x, ".rid >> 48)::smallint = ANY (")
		w.Bind(types)
		w.Write("::smallint[])")
	}
}

func (m FullText) test(w *Writer, r string) {
	if m.Content {
		w.Write("jsonb_to_tsvector('simple', resource_body(", r, ".body)::jsonb, '[\"string\"]') @@ plainto_tsquery('simple', ")
		w.Bind(m.Words)
		w.Write("::text)")
		return
	}
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_narrative ", x, " WHERE ", x, ".rid = ", r, ".rid AND ", x, ".words @@ plainto_tsquery('simple', ")
	w.Bind(m.Words)
	w.Write("::text) OFFSET 0)")
}

// MaxContent is the number of resources whose bodies a search by their content reads.
const MaxContent = 20_000

// ReadsContent reports whether the clause reads bodies.
func (c *Clause) ReadsContent() bool {
	return Contain([]Clause{*c}, func(m Match) bool {
		text, ok := m.(FullText)
		return ok && text.Content
	})
}

func (FullText) open() {}

// holds leaves words to PostgreSQL.
func (m FullText) holds(*Resource) Answer { return Unknown }

func (m FullText) describe() string { return "" }
