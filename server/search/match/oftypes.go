package match

import "slices"

// OfTypes holds for a resource of one of these types. A clause of nothing else is
// tested, and finds no candidates.
type OfTypes struct{ Types []string }

func (m OfTypes) tested() bool { return true }

func (m OfTypes) find(w *Writer, types []int16) { w.findAlone(m, types) }

func (m OfTypes) test(w *Writer, r string) {
	numbers := []int16{}
	for _, t := range m.Types {
		if n, ok := w.env.Type(t); ok {
			numbers = append(numbers, n)
		}
	}
	w.Write(r, ".typ = ANY (")
	w.Bind(numbers)
	w.Write("::smallint[])")
}

func (m OfTypes) byRows() bool { return true }

func (m OfTypes) holds(r *Resource) Answer { return of(slices.Contains(m.Types, r.Type)) }

func (m OfTypes) describe() string { return "" }
