package validate

import (
	"strings"
	"sync"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

// answer is whether a code is in a value set.
type answer uint8

const (
	undecidable answer = iota // a code system or filter is not here
	inside
	outside
)

// coding is a code in its system.
type coding struct{ system, code string }

// codeSet is a value set as far as it can be expanded here.
type codeSet struct {
	codings map[coding]struct{}
	codes   map[string]struct{}
	// open are the systems of which not all codes are known; "" stands for any.
	open map[string]struct{}
}

// has reports whether the coding is in the set; any is for a code whose system
// the element implies.
func (s *codeSet) has(system, code string, any bool) answer {
	if any {
		if _, ok := s.codes[code]; ok {
			return inside
		}
		if len(s.open) > 0 {
			return undecidable
		}
		return outside
	}
	if _, ok := s.codings[coding{system, code}]; ok {
		return inside
	}
	if _, ok := s.open[system]; ok {
		return undecidable
	}
	if _, ok := s.open[""]; ok {
		return undecidable
	}
	return outside
}

func (s *codeSet) add(system, code string) {
	code = strings.Clone(code)
	s.codings[coding{system, code}] = struct{}{}
	s.codes[code] = struct{}{}
}

func newCodeSet() *codeSet {
	return &codeSet{codings: map[coding]struct{}{}, codes: map[string]struct{}{}, open: map[string]struct{}{}}
}

// codeSets expands and keeps value sets.
type codeSets struct {
	model       *fhir.Model
	definitions Definitions
	mu          sync.Mutex
	byURL       map[string]*codeSet
}

// maxNesting bounds value sets that include value sets.
const maxNesting = 20

// of returns the expansion of a value set, made at first use.
func (cs *codeSets) of(url string) *codeSet {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.expand(url, 0)
}

func (cs *codeSets) expand(url string, depth int) *codeSet {
	url, _, _ = strings.Cut(url, "|")
	if s, ok := cs.byURL[url]; ok {
		return s
	}
	s := newCodeSet()
	// A value set that includes itself meets this one: nothing is decided by it.
	s.open[""] = struct{}{}
	if depth > maxNesting {
		return s
	}
	cs.byURL[url] = s
	vs, ok := load[*r4.ValueSet](cs.model, cs.definitions, url)
	if !ok || vs.Compose == nil {
		return s
	}
	full := newCodeSet()
	for i := range vs.Compose.Include {
		cs.include(full, &vs.Compose.Include[i], depth)
	}
	for i := range vs.Compose.Exclude {
		out := newCodeSet()
		cs.include(out, &vs.Compose.Exclude[i], depth)
		for c := range out.codings {
			delete(full.codings, c)
		}
		for system := range out.open {
			full.open[system] = struct{}{}
		}
	}
	full.codes = map[string]struct{}{}
	for c := range full.codings {
		full.codes[c.code] = struct{}{}
	}
	*s = *full
	return s
}

// include adds what one include or exclude names to s.
func (cs *codeSets) include(s *codeSet, in *r4.ValueSetComposeInclude, depth int) {
	if len(in.ValueSet) > 0 {
		// Several value sets, and a system beside them, are an intersection.
		if len(in.ValueSet) > 1 || in.System.Text != "" {
			s.open[""] = struct{}{}
			return
		}
		other := cs.expand(in.ValueSet[0].Text, depth+1)
		for c := range other.codings {
			s.add(c.system, c.code)
		}
		for system := range other.open {
			s.open[system] = struct{}{}
		}
		return
	}
	system := strings.Clone(in.System.Text)
	if len(in.Concept) > 0 {
		for i := range in.Concept {
			s.add(system, in.Concept[i].Code.Text)
		}
		return
	}
	code, ok := load[*r4.CodeSystem](cs.model, cs.definitions, system)
	if !ok || code.Content.Text != "complete" || len(code.Concept) == 0 {
		s.open[system] = struct{}{}
		return
	}
	if len(in.Filter) == 0 {
		addConcepts(s, system, code.Concept, nil)
		return
	}
	keep := map[string]int{}
	for i := range in.Filter {
		f := &in.Filter[i]
		found := newCodeSet()
		switch {
		case f.Property.Text == "concept" && (f.Op.Text == "is-a" || f.Op.Text == "descendent-of"):
			for _, c := range subtree(code, f.Value.Text, f.Op.Text == "is-a") {
				found.add(system, c)
			}
		default:
			s.open[system] = struct{}{}
			return
		}
		for c := range found.codes {
			keep[c]++
		}
	}
	for c, n := range keep {
		if n == len(in.Filter) {
			s.add(system, c)
		}
	}
}

func addConcepts(s *codeSet, system string, list []r4.CodeSystemConcept, visit func(string)) {
	for i := range list {
		s.add(system, list[i].Code.Text)
		addConcepts(s, system, list[i].Concept, visit)
	}
}

// subtree returns the codes below root in the hierarchy: nested concepts and
// those that name a parent or subsumedBy property.
func subtree(cs *r4.CodeSystem, root string, self bool) []string {
	children := map[string][]string{}
	var visit func(parent string, list []r4.CodeSystemConcept)
	visit = func(parent string, list []r4.CodeSystemConcept) {
		for i := range list {
			c := &list[i]
			if parent != "" {
				children[parent] = append(children[parent], c.Code.Text)
			}
			for j := range c.Property {
				p := &c.Property[j]
				if k := p.Code.Text; k == "subsumedBy" || k == "parent" {
					if v := fhir.NodeOf(p.Value).Text(); v != "" {
						children[v] = append(children[v], c.Code.Text)
					}
				}
			}
			visit(c.Code.Text, c.Concept)
		}
	}
	visit("", cs.Concept)
	seen := map[string]bool{root: true}
	var out []string
	if self {
		out = append(out, root)
	}
	queue := []string{root}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, c := range children[at] {
			if !seen[c] {
				seen[c] = true
				out = append(out, c)
				queue = append(queue, c)
			}
		}
	}
	return out
}

// load decodes the definition with a canonical URL.
func load[T fhir.Resource](m *fhir.Model, d Definitions, url string) (T, bool) {
	var none T
	b, ok := d.Resolve(url)
	if !ok {
		return none, false
	}
	r, err := fhir.Decode(m, b)
	if err != nil {
		return none, false
	}
	t, ok := r.(T)
	return t, ok
}

func (cs *codeSets) forget() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	clear(cs.byURL)
}
