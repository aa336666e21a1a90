package ir

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kiln/codegen/definition"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// Search describes the search parameters of one resource type.
type Search struct {
	Type       *Type
	Parameters []fhir.Parameter
	// Branches are what to extract, each key once, in the order of their text.
	Branches []Branch
	// Composites are the composite keys to extract.
	Composites []CompositeBranch
}

// Branch is one key: paths whose values are indexed alike.
type Branch struct {
	Key   fhir.Key
	Type  fhir.SearchType
	Text  string // the text that the key is made of
	Paths []Path
	// System is the implicit system of the code that the branch ends in.
	System string
	// Elsewhere are the elements of a name or an address that have a branch of their
	// own, and Parts the keys of those: this one leaves them out.
	Elsewhere []string
	Parts     []fhir.Key
}

// CompositeBranch is an element whose components are indexed together.
type CompositeBranch struct {
	Key     fhir.Key
	Coded   bool // Key is a fhir.Composite's Coded
	Text    string
	Element Path
	Parts   []CompositePart
}

// CompositePart is one component: paths from the element.
type CompositePart struct {
	Type  fhir.SearchType
	Paths []Path
	// OfResource says that the paths start at the resource, and not at the element:
	// %resource.
	OfResource bool
}

// Remark describes a search parameter, or a branch of one, that the generator left out.
type Remark struct {
	Base, Code, URL, Expression, Reason string
	Type                                fhir.SearchType
	// Key is the key for the engine's values of Expression; 0 if nothing is indexed.
	Key fhir.Key
}

// search builds the tables of every resource type.
func search(set *definition.Set, m *Model) error {
	s := &searcher{set: set, model: m, byType: map[string]*Search{}, taken: map[[2]string]string{}}
	for _, t := range m.Resources {
		x := &Search{Type: t}
		m.Searches = append(m.Searches, x)
		s.byType[t.Name] = x
	}
	list := definition.Sorted(set.Parameters)
	slices.SortStableFunc(list, func(a, b *definition.SearchParameter) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, d := range list {
		if len(d.Base) == 0 {
			s.omit(Remark{Code: d.Code, URL: d.Url, Type: searchType(d), Reason: "it names no base"})
		}
		for _, base := range s.bases(d) {
			if err := s.parameter(d, base); err != nil {
				return fmt.Errorf("%s: %w", d.Url, err)
			}
		}
	}
	for _, u := range set.Unread {
		s.omit(Remark{Code: u.Type, URL: u.URL, Type: fhir.SearchSpecial, Reason: u.Reason})
	}
	for _, x := range m.Searches {
		x.shareParts()
		slices.SortFunc(x.Parameters, func(a, b fhir.Parameter) int { return cmp.Compare(a.Code, b.Code) })
		slices.SortFunc(x.Branches, func(a, b Branch) int {
			return cmp.Or(cmp.Compare(a.Text, b.Text), cmp.Compare(a.Type, b.Type))
		})
		slices.SortFunc(x.Composites, func(a, b CompositeBranch) int { return cmp.Compare(a.Text, b.Text) })
	}
	remarks := func(a, b Remark) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.Code, b.Code), cmp.Compare(a.URL, b.URL), cmp.Compare(a.Expression, b.Expression))
	}
	slices.SortFunc(m.Interpreted, remarks)
	slices.SortFunc(m.Omitted, remarks)
	return s.membership()
}

type searcher struct {
	set    *definition.Set
	model  *Model
	byType map[string]*Search
	taken  map[[2]string]string // base, code -> URL
}

func (s *searcher) omit(r Remark) { s.model.Omitted = append(s.model.Omitted, r) }

// bases are the resource types a parameter is for.
func (s *searcher) bases(d *definition.SearchParameter) []*Type {
	var out []*Type
	for _, t := range s.model.Resources {
		if slices.Contains(d.Base, t.Name) || slices.Contains(d.Base, "Resource") ||
			slices.Contains(d.Base, "DomainResource") && t.Base == "DomainResource" {
			out = append(out, t)
		}
	}
	return out
}

func searchType(d *definition.SearchParameter) fhir.SearchType {
	return fhir.SearchType(d.Type.Code())
}

// withoutEntries are the codes of the parameters that are searched and for which no
// expression gives entries.
var withoutEntries = []string{
	"_id", "_lastUpdated", // columns
	"_text", "_content", // words, which PostgreSQL's text search has
	"near", // fhir.Index.Finish leaves its entries
}

// parameter adds the meaning of a definition for one resource type.
func (s *searcher) parameter(d *definition.SearchParameter, t *Type) error {
	x := s.byType[t.Name]
	p := fhir.Parameter{
		Code: d.Code, Base: t.Name, URL: d.Url, Type: searchType(d),
		Description: description(d.Description, t.Name),
	}
	remark := Remark{Base: t.Name, Code: d.Code, URL: d.Url, Type: p.Type, Expression: text(d.Expression)}
	if other, ok := s.taken[[2]string{t.Name, d.Code}]; ok {
		remark.Reason = "the code is that of " + other
		s.omit(remark)
		return nil
	}
	s.taken[[2]string{t.Name, d.Code}] = d.Url

	unsupported := func(reason string) {
		p.Unsupported, p.Keys, p.Words, p.Composites, p.Single = reason, nil, nil, nil, false
		x.Parameters = append(x.Parameters, p)
		remark.Reason = reason
		if strings.HasPrefix(d.Code, "_") {
			// One remark is enough for all types.
			remark.Base = d.Base[0]
			if slices.Contains(s.model.Omitted, remark) {
				return
			}
		}
		s.omit(remark)
	}
	if slices.Contains(withoutEntries, d.Code) {
		p.Single = true
		if d.Expression != nil {
			p.Expression = t.Name + "." + strings.TrimPrefix(*d.Expression, "Resource.")
		}
		x.Parameters = append(x.Parameters, p)
		return nil
	}
	if reason, ok := fhir.RefusedParameters[d.Code]; ok && (d.Expression == nil || p.Type == fhir.SearchSpecial) {
		unsupported(reason)
		return nil
	}
	if p.Type == fhir.SearchSpecial {
		unsupported(fhir.RefusedSpecial)
		return nil
	}
	if d.Expression == nil || strings.TrimSpace(*d.Expression) == "" {
		unsupported(fhir.RefusedNoExpression)
		return nil
	}
	expr, err := fhirpath.Parse(*d.Expression)
	if err != nil && d.Rank == definition.Added {
		unsupported(err.Error()) // no reason to refuse the package
		return nil
	}
	if err != nil {
		return err
	}
	branches := s.concern(expr.Root, t)
	if len(branches) == 0 {
		unsupported("its expression says nothing of " + t.Name)
		return nil
	}
	p.Expression = union(branches)
	if p.Type == fhir.SearchComposite {
		if err := s.composite(d, t, branches, &p); err != nil {
			unsupported(err.Error())
			return nil
		}
		x.Parameters = append(x.Parameters, p)
		return nil
	}

	p.Single = true
	var targets []string
	var formless []Remark
	c := &compiler{model: s.model, root: t}
	for _, n := range branches {
		b, err := s.branch(c, p.Type, n)
		if err != nil {
			key := fhir.KeyOf(p.Type, fhirpath.CanonicalPathFrom(t.Name, n))
			p.Keys = appendNew(p.Keys, key)
			if p.Type == fhir.SearchString {
				p.Words = appendNew(p.Words, key) // the engine may give names
			}
			p.Single = false
			r := remark
			r.Expression, r.Key, r.Reason = n.String(), key, err.Error()
			s.model.Interpreted = append(s.model.Interpreted, r)
			targets = append(targets, s.known(d.Target)...)
			continue
		}
		if b == nil {
			r := remark
			r.Expression, r.Reason = n.String(), "its values have no form as "+string(p.Type)
			formless = append(formless, r)
			continue
		}
		x.add(*b)
		p.Keys = appendNew(p.Keys, b.Key)
		if p.Type == fhir.SearchString && slices.ContainsFunc(b.Paths, hasWords) {
			p.Words = appendNew(p.Words, b.Key)
		}
		p.Single = p.Single && !slices.ContainsFunc(b.Paths, several)
		if b.System != "" {
			p.Systems = append(p.Systems, make([]string, len(p.Keys)-len(p.Systems))...)
			p.Systems[slices.Index(p.Keys, b.Key)] = b.System
		}
		for _, q := range b.Paths {
			targets = append(targets, s.targets(d, q)...)
		}
	}
	if len(p.Keys) == 0 {
		unsupported("its values have no form as " + string(p.Type))
		return nil
	}
	s.model.Omitted = append(s.model.Omitted, formless...)
	if p.Type == fhir.SearchReference {
		slices.Sort(targets)
		p.Targets = slices.Compact(targets)
	}
	x.Parameters = append(x.Parameters, p)
	return nil
}

// several reports whether a path can leave several entries.
func several(p Path) bool {
	if p.Repeats() || severalRows[p.At.Name] {
		return true
	}
	return p.Open != nil && (p.Open.Open || slices.ContainsFunc(p.Open.Choices, func(r Ref) bool { return severalRows[r.Name] }))
}

// concern are the branches of an expression that say something of the type. A
// union inside of a path is multiplied out.
func (s *searcher) concern(n fhirpath.Node, t *Type) []fhirpath.Node {
	var out []fhirpath.Node
	for _, b := range fhirpath.Branches(n) {
		root := fhirpath.RootOf(b)
		if other := s.model.Lookup(root); other != nil && other.Resource && other != t {
			continue
		}
		out = append(out, b)
	}
	return out
}

func union(branches []fhirpath.Node) string {
	var b []string
	for _, n := range branches {
		b = append(b, n.String())
	}
	return strings.Join(b, " | ")
}

// branch compiles one branch. It is nil where no value has a form as typ.
func (s *searcher) branch(c *compiler, typ fhir.SearchType, n fhirpath.Node) (*Branch, error) {
	start := []Path{{At: Ref{Name: c.root.Name, Go: c.root.Go}}}
	paths, err := c.compile(n, start)
	if err != nil {
		return nil, err
	}
	return makeBranch(c.root, typ, paths), nil
}

func makeBranch(root *Type, typ fhir.SearchType, paths []Path) *Branch {
	paths = slices.DeleteFunc(slices.Clone(paths), func(p Path) bool { return Conversion(typ, p) == "" })
	if len(paths) == 0 {
		return nil
	}
	b := &Branch{Type: typ, Paths: paths}
	var texts []string
	for i, p := range paths {
		texts = append(texts, p.text(root.Name))
		sys := ""
		if last := len(p.Steps) - 1; typ == fhir.SearchToken && p.At.Name == "code" && last >= 0 && p.Steps[last].Kind == StepChild {
			sys = p.Steps[last].Field.Binding.System
		}
		if i == 0 {
			b.System = sys
		} else if b.System != sys {
			b.System = ""
		}
	}
	b.Text = strings.Join(texts, " | ")
	b.Key = fhir.KeyOf(typ, b.Text)
	return b
}

// add takes a branch in unless its key is there.
func (x *Search) add(b Branch) {
	if !slices.ContainsFunc(x.Branches, func(o Branch) bool { return o.Key == b.Key }) {
		x.Branches = append(x.Branches, b)
	}
}

// shareParts makes the branches of whole names and addresses read the entries of the branches of their parts, if the
// type has such: `name` reads `family` and `given`. Without sharing, two thirds of a patient's strings would
// be stored twice.
func (x *Search) shareParts() {
	for i := range x.Branches {
		whole := &x.Branches[i]
		if whole.Type != fhir.SearchString || len(whole.Paths) != 1 || !divisible[whole.Paths[0].At.Name] || x.combines(whole.Key) {
			continue
		}
		path := whole.Paths[0]
		for _, b := range x.Branches {
			if b.Type != fhir.SearchString || len(b.Paths) != 1 {
				continue
			}
			part, n := b.Paths[0], len(path.Steps)
			if len(part.Steps) == n+1 && slices.Equal(part.Steps[:n], path.Steps) && part.Steps[n].Kind == StepChild && part.At.Name == "string" {
				whole.Elsewhere = append(whole.Elsewhere, part.Steps[n].Field.Name)
				whole.Parts = append(whole.Parts, b.Key)
			}
		}
		if len(whole.Parts) == 0 {
			continue
		}
		slices.Sort(whole.Elsewhere)
		for j := range x.Parameters {
			readParts(&x.Parameters[j], whole)
		}
	}
}

// combines reports whether a composite has the values of a key among its parts.
func (x *Search) combines(k fhir.Key) bool {
	for _, p := range x.Parameters {
		for _, c := range p.Composites {
			if slices.ContainsFunc(c.Parts, func(part fhir.Part) bool { return slices.Contains(part.Keys, k) }) {
				return true
			}
		}
	}
	return false
}

// targets are the possible target types of the references of a path: the types in resolve(), else those of
// the element, else those of the parameter.
func (s *searcher) targets(d *definition.SearchParameter, p Path) []string {
	if len(p.Targets) > 0 {
		return s.known(p.Targets)
	}
	for i := len(p.Steps) - 1; i >= 0; i-- {
		if f := p.Steps[i].Field; f != nil && len(f.Targets) > 0 {
			return s.known(f.Targets)
		}
	}
	return s.known(d.Target)
}

// known returns the names that are resource types. It returns every type, Kiln's own included, for "Resource",
// for no name, and for a list of all R4 types without Parameters, which references never point at.
func (s *searcher) known(names []string) []string {
	var out, all []string
	core := 0
	for _, t := range s.model.Resources {
		all = append(all, t.Name)
		if strings.HasPrefix(t.URL, base) && strings.HasSuffix(t.Source, "|4.0.1") { // not ViewDefinition, of SQL on FHIR
			core++
		}
		if slices.Contains(names, t.Name) {
			out = append(out, t.Name)
		}
	}
	if len(out) == 0 || len(out) >= core-1 {
		return all
	}
	return out
}

// readParts adds the keys of a branch's parts to a parameter that has the branch.
func readParts(p *fhir.Parameter, whole *Branch) {
	if !slices.Contains(p.Keys, whole.Key) {
		return
	}
	p.PartOf = append(p.PartOf, make([]fhir.Key, len(p.Keys)-len(p.PartOf))...)
	for _, k := range whole.Parts {
		if !slices.Contains(p.Keys, k) {
			p.Keys, p.PartOf = append(p.Keys, k), append(p.PartOf, whole.Key)
			if slices.Contains(p.Words, whole.Key) {
				p.Words = append(p.Words, k)
			}
		}
	}
}

func appendNew(keys []fhir.Key, k fhir.Key) []fhir.Key {
	if slices.Contains(keys, k) {
		return keys
	}
	return append(keys, k)
}

// composite compiles a composite parameter.
func (s *searcher) composite(d *definition.SearchParameter, t *Type, branches []fhirpath.Node, p *fhir.Parameter) error {
	x := s.byType[t.Name]
	c := &compiler{model: s.model, root: t}
	start := []Path{{At: Ref{Name: t.Name, Go: t.Go}}}
	for _, n := range branches {
		elements, err := c.compile(n, start)
		if err != nil {
			return err
		}
		for _, e := range elements {
			b := CompositeBranch{Element: e, Text: t.Name + e.String() + ":"}
			out := fhir.Composite{}
			for i, comp := range d.Component {
				def := s.set.Parameters[comp.Definition]
				if def == nil {
					return fmt.Errorf("component %s is not defined", comp.Definition)
				}
				expr, err := fhirpath.Parse(comp.Expression)
				if err != nil {
					return fmt.Errorf("component %s: %w", comp.Definition, err)
				}
				part := fhir.Part{Code: def.Code, Type: searchType(def)}
				cp := CompositePart{Type: part.Type, OfResource: e.Repeats() && strings.HasPrefix(comp.Expression, "%resource.")}
				var texts []string
				list, err := s.component(c, e, expr.Root, def)
				if err != nil {
					return fmt.Errorf("component %s: %w", def.Code, err)
				}
				for _, relative := range list {
					part.System = relative.System
					cp.Paths = append(cp.Paths, relative.Paths...)
					for _, q := range relative.Paths {
						text := strings.TrimPrefix(q.String(), ".")
						if cp.OfResource {
							text = "%resource." + text
						}
						texts = append(texts, text)
					}
					if e.Repeats() {
						continue
					}
					absolute := slices.Clone(relative.Paths)
					if !strings.HasPrefix(comp.Expression, "%") {
						for i, q := range absolute {
							absolute[i].Steps = append(slices.Clone(e.Steps), q.Steps...)
						}
					}
					a := makeBranch(t, part.Type, absolute)
					x.add(*a)
					part.Keys = appendNew(part.Keys, a.Key)
				}
				if i > 0 {
					b.Text += " &"
				}
				b.Text += " " + strings.Join(texts, " | ")
				b.Parts = append(b.Parts, cp)
				out.Parts = append(out.Parts, part)
			}
			b.Coded = coded(b)
			if e.Repeats() || b.Coded {
				if err := combinable(b); err != nil {
					return err
				}
				b.Key = fhir.KeyOf(fhir.SearchComposite, b.Text)
				if b.Coded {
					out.Coded = b.Key
				} else {
					out.Key = b.Key
				}
				if !slices.ContainsFunc(x.Composites, func(o CompositeBranch) bool { return o.Key == b.Key }) {
					x.Composites = append(x.Composites, b)
				}
			}
			p.Composites = append(p.Composites, out)
		}
	}
	return nil
}

// component compiles a component's expression, as seen from the element e. HL7
// has swapped the expressions of two components of DocumentReference: where the
// values have no form as the component's type, its own definition tells the path.
func (s *searcher) component(c *compiler, e Path, n fhirpath.Node, def *definition.SearchParameter) ([]Branch, error) {
	typ := searchType(def)
	var out []Branch
	for _, m := range fhirpath.Branches(n) {
		paths, err := c.compile(m, []Path{{At: e.At, Open: e.Open}})
		if err != nil {
			return nil, err
		}
		if b := makeBranch(c.root, typ, paths); b != nil {
			out = append(out, *b)
		}
	}
	if len(out) > 0 || def.Expression == nil {
		return out, nil
	}
	own, err := fhirpath.Parse(*def.Expression)
	if err != nil {
		return nil, err
	}
	for _, m := range s.concern(own.Root, c.root) {
		paths, err := c.compile(m, []Path{{At: Ref{Name: c.root.Name, Go: c.root.Go}}})
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if strings.HasPrefix(p.String(), e.String()+".") {
				p.Steps = p.Steps[len(e.Steps):]
				if b := makeBranch(c.root, typ, []Path{p}); b != nil {
					out = append(out, *b)
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("its values have no form as %s", typ)
	}
	return out, nil
}

// combinable reports why the components of a repetition cannot be indexed
// together: at most one of them may be ordered, or two that are numbers, and all
// must lie in the element.
func combinable(b CompositeBranch) error {
	ordered, numbers := 0, 0
	for _, p := range b.Parts {
		switch p.Type {
		case fhir.SearchNumber:
			ordered, numbers = ordered+1, numbers+1
		case fhir.SearchDate, fhir.SearchQuantity, fhir.SearchString:
			ordered++
		}
	}
	if ordered > 1 && (ordered != 2 || numbers != 2) {
		return fmt.Errorf("it combines %d ordered components of a repeating element", ordered)
	}
	return nil
}

// coded reports whether a composite is a token of the resource itself with a value
// that has an order and no text: such a search would otherwise look at every
// resource with the token.
func coded(b CompositeBranch) bool {
	if b.Element.Repeats() || len(b.Parts) != 2 {
		return false
	}
	tokens, ordered := 0, 0
	for _, p := range b.Parts {
		switch p.Type {
		case fhir.SearchToken:
			tokens++
		case fhir.SearchDate, fhir.SearchNumber, fhir.SearchQuantity:
			ordered++
		}
	}
	return tokens == 1 && ordered == 1
}

// membership checks that the search parameters are there which put resources into
// compartments.
func (s *searcher) membership() error {
	for _, comp := range s.model.Compartments {
		for _, x := range s.model.Searches {
			for _, code := range comp.By[x.Type.Name] {
				if code != "{def}" && !slices.ContainsFunc(x.Parameters, func(p fhir.Parameter) bool { return p.Code == code }) {
					return fmt.Errorf("compartment %s: %s has no search parameter %s", comp.Code, x.Type.Name, code)
				}
			}
		}
	}
	return nil
}

var multiple = regexp.MustCompile(`\* \[(\w+)\]\([^)]*\): *([^\r\n]*)`)

// description extracts the text about one resource type: HL7 lists the types of a shared parameter in one text.
func description(all, typ string) string {
	if !strings.HasPrefix(all, "Multiple Resources") {
		return strings.Join(strings.Fields(all), " ")
	}
	for _, m := range multiple.FindAllStringSubmatch(all, -1) {
		if m[1] == typ {
			return strings.Join(strings.Fields(m[2]), " ")
		}
	}
	return ""
}
