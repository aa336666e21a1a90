package match

// FullText holds for a resource whose narrative contains the words of Query. With Content any text of the
// resource counts. Words are compared as PostgreSQL's text search compares them (configuration simple), without
// case. The index contains the words of narratives. The words of a whole resource are read from its body, some
// 3,000 resources a second.
// Spec: https://hl7.org/fhir/R4/search.html#content.
type FullText struct {
	Query   TextQuery
	Content bool
}

// TextQuery is a condition on a text: words in any order, a phrase of consecutive words, or a combination
// of queries by Op.
type TextQuery struct {
	Op   TextQueryOp
	Text string      // of AllWords and Phrase
	Of   []TextQuery // of the others: one for NoneOf
}

// TextQueryOp is a kind of TextQuery.
type TextQueryOp uint8

// The kinds of queries.
const (
	AllWords TextQueryOp = iota
	Phrase
	AllOf
	OneOf
	NoneOf
)

// write writes q as a tsquery.
func (q *TextQuery) write(w *Writer) {
	switch q.Op {
	case AllWords:
		w.Write("plainto_tsquery('simple', ")
		w.Bind(q.Text)
		w.Write("::text)")
		return
	case Phrase:
		w.Write("phraseto_tsquery('simple', ")
		w.Bind(q.Text)
		w.Write("::text)")
		return
	case NoneOf:
		w.Write("!! ")
	}
	operator := " && "
	if q.Op == OneOf {
		operator = " || "
	}
	w.Write("(")
	for i := range q.Of {
		if i > 0 {
			w.Write(operator)
		}
		q.Of[i].write(w)
	}
	w.Write(")")
}

// secret is the path of Subscription.channel.header, which is content for nobody: only the owner of the
// Subscription may read it. No other resource type has an element channel.
const secret = "{channel,header}"

func (m FullText) tested() bool { return m.Content }

func (m FullText) find(w *Writer, types []int16) {
	if m.Content {
		w.findAlone(m, types)
		return
	}
	x := "x" + w.Next()
	w.Write("SELECT ", x, ".rid FROM index_narrative ", x, " WHERE ", x, ".words @@ ")
	m.Query.write(w)
	if len(types) > 0 {
		w.Write(" AND (", x, ".rid >> 48)::smallint = ANY (")
		w.Bind(types)
		w.Write("::smallint[])")
	}
}

func (m FullText) test(w *Writer, r string) {
	if m.Content {
		w.Write("jsonb_to_tsvector('simple', resource_body(", r, ".body)::jsonb #- '", secret, "', '[\"string\"]') @@ ")
		m.Query.write(w)
		return
	}
	x := "x" + w.Next()
	w.Write("EXISTS (SELECT 1 FROM index_narrative ", x, " WHERE ", x, ".rid = ", r, ".rid AND ", x, ".words @@ ")
	m.Query.write(w)
	w.Write(" OFFSET 0)")
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
