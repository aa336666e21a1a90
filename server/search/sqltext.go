package search

// textCondition writes what the text of row x must be, for the comparisons that
// only `_filter` has. Equal texts are found by the index of the first characters,
// ends of three characters and more by trigrams.
func (w *writer) textCondition(x string, m *Strings) {
	switch m.Op {
	case Whole:
		w.s("left(", x, ".text, 128) = ")
		w.p(firstRunes(m.Text, prefixLength))
		w.s("::text AND ", x, ".text = ")
		w.p(m.Text)
		w.s("::text")
	case Other:
		w.s(x, ".text <> ")
		w.p(m.Text)
		w.s("::text")
	case EndsWith:
		w.s(x, ".text LIKE ")
		w.p("%" + likeEscaper.Replace(m.Text))
		w.s("::text")
	}
}
