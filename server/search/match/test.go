package match

// Tests writes the conditions of c on a row r that is already known. skip is
// the index of a clause that needs no test, or -1.
func (w *Writer) Tests(r string, c *Conjunction, and *Conditions, skip int) {
	if c.ByID {
		and.Next()
		w.Write("(", r, ".ref = ANY (")
		w.Terms(c.IDs)
		w.Write(")) IS TRUE")
	}
	if len(c.All) > 0 {
		and.Next()
		w.Write("(", r, ".terms @> ")
		w.Terms(c.All)
		w.Write(") IS TRUE")
	}
	for _, any := range c.Any {
		and.Next()
		w.Write("(", r, ".terms && ")
		w.Terms(any)
		w.Write(") IS TRUE")
	}
	if len(c.None) > 0 {
		and.Next()
		w.Write("NOT (", r, ".terms && ")
		w.Terms(c.None)
		w.Write(")")
	}
	for i := range c.Preds {
		if i == skip {
			continue
		}
		and.Next()
		w.Not(&c.Preds[i])
		w.Test(r, c.Preds[i].Any)
	}
}

// Test writes one disjunction as a test of row r.
func (w *Writer) Test(r string, any []Match) {
	w.Write("(")
	for i, m := range any {
		if i > 0 {
			w.Write(" OR ")
		}
		m.test(w, r)
	}
	if len(any) == 0 {
		w.Write("false")
	}
	w.Write(")")
}
