package terminology

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kiln/server/outcome"
)

// Limits of one expansion. Beyond them it is too-costly.
const (
	maxCodes   = 250_000
	maxImports = 32         // value sets within value sets
	maxWork    = 50_000_000 // concepts looked at
)

// expansion is the codes of a value set. It is not changed once made.
type expansion struct {
	entries []entry
	// systems are the code systems used, with version where known, in order.
	systems []canonical
	// supplements are those that the entries have designations and properties of.
	supplements []canonical
	// gaps are what could not be enumerated; only a lenient evaluation has any.
	gaps     []gap
	warnings []string
	// foreign says that some of it came from the server, whose answers have a
	// lifetime of their own.
	foreign bool
	// page says that the entries are one page; total is then the number of all
	// codes, -1 where the server does not tell.
	page  bool
	total int
	// unclosed says that the value set has more codes than the entries: a code that
	// is not among them may be in it.
	unclosed bool
	// expires is when the first of the server's answers in it is past its time; zero
	// where there is none.
	expires time.Time
}

// entry is one code of an expansion.
type entry struct {
	system, version, code, display string
	abstract, inactive             bool
	designation                    []Designation
	// parent is the entry that this one is nested in, -1 at the top; it comes
	// before this one.
	parent int32
}

// gap is a part of a value set whose codes are not listed here: all of a system,
// or with system "" a value set that is not known.
type gap struct {
	system  string
	check   func(code string) bool // tells the codes of a system that has a grammar; nil where nothing does
	exclude bool
}

func (e *expansion) size() int { return 500 + 130*len(e.entries) }

type code struct{ system, code string }

// evaluation expands one value set, with its includes.
type evaluation struct {
	*snapshot
	// lenient notes gaps instead of asking the server or failing.
	lenient bool
	// keptOnly takes the server's expansions from the cache, of whatever age, and
	// does not ask.
	keptOnly bool
	// version is the version of each code system that an include without a version means;
	// nil means the newest. Such an expansion is not cached.
	version map[string]string
	path    []string // of value sets that are being expanded, outermost first
	done    map[string]*expansion
	work    int // concepts looked at so far
}

// looks counts n concepts that are about to be looked at.
func (e *evaluation) looks(n int) error {
	if e.work += n; e.work > maxWork {
		return outcome.New(outcome.CodeTooCostly, "the value set is too complex: more than %d concepts have to be looked at", maxWork)
	}
	return nil
}

func (sn *snapshot) evaluate(lenient bool) *evaluation {
	return &evaluation{snapshot: sn, lenient: lenient, done: make(map[string]*expansion)}
}

// canonical expands the value set of a canonical URL. It fails with not-found
// where nobody knows it.
func (e *evaluation) canonical(ctx context.Context, c canonical) (*expansion, error) {
	name := c.String()
	if slices.Contains(e.path, name) {
		return nil, circular(append(e.path, name))
	}
	if x, ok := e.done[name]; ok {
		return x, nil
	}
	if e.version == nil {
		if x := e.cachedExpansion(name); x != nil {
			return x, nil
		}
	}
	vs, err := e.valueSet(ctx, c)
	if err != nil {
		return nil, err
	}
	if vs == nil {
		return e.foreign(ctx, c)
	}
	// The path has the version that was found, too: a|1 may include a.
	if full := (canonical{vs.URL, vs.Version}).String(); full != name && slices.Contains(e.path, full) {
		return nil, circular(append(e.path, full))
	}
	e.path = append(e.path, name)
	x, err := e.valueSetOf(ctx, vs)
	e.path = e.path[:len(e.path)-1]
	if err != nil {
		return nil, err
	}
	e.done[name] = x
	if e.version == nil {
		e.cacheExpansion(name, x)
	}
	return x, nil
}

// foreign expands a value set that is not local.
func (e *evaluation) foreign(ctx context.Context, c canonical) (*expansion, error) {
	if e.lenient {
		return &expansion{gaps: []gap{{}}}, nil
	}
	if e.server() == nil {
		return nil, notFoundValueSet(c)
	}
	x, err := e.ask(ctx, question{URL: c.String()})
	if notKnown(err) {
		return nil, notFoundValueSet(c).Because(err)
	}
	return x, err
}

// ask returns the server's expansion.
func (e *evaluation) ask(ctx context.Context, q question) (*expansion, error) {
	if e.keptOnly {
		return e.server().keptExpansion(ctx, q)
	}
	return e.server().expand(ctx, q)
}

func notFoundValueSet(c canonical) *outcome.Error {
	return outcome.New(outcome.CodeNotFound, "ValueSet %s not found", outcome.Clip(c.String()))
}

func circular(path []string) error {
	return outcome.UnprocessableContent(outcome.CodeInvalid, "the value set includes itself: %s", strings.Join(path, " -> "))
}

// valueSetOf expands a value set that is at hand.
func (e *evaluation) valueSetOf(ctx context.Context, vs *ValueSet) (*expansion, error) {
	if len(e.path) > maxImports {
		return nil, outcome.New(outcome.CodeTooCostly, "value sets include each other more than %d deep", maxImports)
	}
	if !e.lenient {
		if err := e.checkSupplements(ctx, vs); err != nil {
			return nil, err
		}
	}
	if vs.Compose == nil {
		if vs.Expansion == nil {
			return &expansion{}, nil
		}
		x := new(expansion)
		err := x.addContained(vs.Expansion.Contains, -1)
		total := vs.Expansion.Total
		x.unclosed = vs.Expansion.isMarked(unclosedURL) || vs.Expansion.isLimited() || total != nil && *total > len(x.entries)
		return x, err
	}
	out := &expansion{}
	b := builder{expansion: out, seen: make(codeVersions)}

	// 1. What to leave out.
	for i := range vs.Compose.Exclude {
		x, err := e.include(ctx, vs, &vs.Compose.Exclude[i])
		if err != nil {
			return nil, err
		}
		for j := range x.entries {
			b.seen.add(&x.entries[j])
		}
		for _, gap := range x.gaps {
			gap.exclude = true
			out.gaps = append(out.gaps, gap)
		}
		out.addNotices(x)
	}

	// 2. Everything else, once.
	activeOnly := vs.Compose.Inactive != nil && !*vs.Compose.Inactive
	for i := range vs.Compose.Include {
		x, err := e.include(ctx, vs, &vs.Compose.Include[i])
		if err != nil {
			return nil, err
		}
		if err := b.add(x, func(y *entry) bool { return !activeOnly || !y.inactive }); err != nil {
			return nil, err
		}
		out.gaps = append(out.gaps, x.gaps...)
		for _, c := range x.systems {
			if !slices.Contains(out.systems, c) {
				out.systems = append(out.systems, c)
			}
		}
		out.addNotices(x)
	}
	return out, nil
}

// addNotices takes over the warnings and the supplements of a part, and when it
// expires.
func (x *expansion) addNotices(part *expansion) {
	x.foreign = x.foreign || part.foreign
	x.unclosed = x.unclosed || part.unclosed
	if x.expires.IsZero() || !part.expires.IsZero() && part.expires.Before(x.expires) {
		x.expires = part.expires
	}
	for _, c := range part.supplements {
		if !slices.Contains(x.supplements, c) {
			x.supplements = append(x.supplements, c)
		}
	}
	for _, w := range part.warnings {
		if !slices.Contains(x.warnings, w) {
			x.warnings = append(x.warnings, w)
		}
	}
}

// builder puts entries into an expansion, each code once.
type builder struct {
	*expansion
	seen codeVersions
}

// codeVersions are codes, each with the versions of its system that it is in; "" is every
// version.
type codeVersions map[code][]string

func (v codeVersions) add(y *entry) {
	k := code{y.system, y.code}
	v[k] = append(v[k], y.version)
}

// has reports whether the code of y is there in its version, or one of them names none.
func (v codeVersions) has(y *entry) bool {
	return slices.ContainsFunc(v[code{y.system, y.code}], func(version string) bool {
		return version == y.version || version == "" || y.version == ""
	})
}

// add appends the entries of x that are new and that keep accepts. An entry whose
// parent is left out is nested in the nearest one above that is there.
func (b *builder) add(x *expansion, keep func(*entry) bool) error {
	at := make([]int32, len(x.entries))
	for i := range x.entries {
		y := x.entries[i]
		up := int32(-1)
		if y.parent >= 0 {
			up = at[y.parent]
		}
		at[i] = up
		if b.seen.has(&y) || !keep(&y) {
			continue
		}
		b.seen.add(&y)
		if len(b.entries) >= maxCodes {
			return tooCostly("")
		}
		y.parent = up
		at[i] = int32(len(b.entries))
		b.entries = append(b.entries, y)
	}
	return nil
}

func tooCostly(why string) error {
	if why != "" {
		why = " (" + why + ")"
	}
	return outcome.New(outcome.CodeTooCostly, "the expansion is too large: at most %d codes are accepted%s", maxCodes, why)
}

// include expands one include: the codes of its system or of its value sets, or the intersection if it has both.
// Spec: https://hl7.org/fhir/R4/valueset.html#compositions.
func (e *evaluation) include(ctx context.Context, vs *ValueSet, inc *Include) (*expansion, error) {
	var parts []*expansion
	whole := len(inc.Concept)+len(inc.Filter) == 0
	if inc.System != "" && (!whole || len(inc.ValueSet) == 0) {
		x, err := e.system(ctx, inc)
		if err != nil {
			return nil, err
		}
		parts = append(parts, x)
	} else if inc.System == "" && !whole {
		return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "ValueSet %s: an include has concepts or filters and no system", vs.URL)
	}
	for _, url := range inc.ValueSet {
		x, err := e.imported(ctx, vs, url)
		if err != nil {
			return nil, err
		}
		if inc.System != "" && whole {
			// All of the system, as far as it is in the value sets.
			if x, err = x.of(inc.System); err != nil {
				return nil, err
			}
		}
		if err := e.looks(len(x.entries)); err != nil {
			return nil, err
		}
		parts = append(parts, x)
	}
	switch len(parts) {
	case 0:
		return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "ValueSet %s: an include has neither system nor valueSet", vs.URL)
	case 1:
		return parts[0], nil
	}
	return intersect(parts)
}

// of returns the entries of one system.
func (x *expansion) of(system string) (*expansion, error) {
	out := &expansion{gaps: x.gaps}
	out.addNotices(x)
	for _, c := range x.systems {
		if c.url == system {
			out.systems = append(out.systems, c)
		}
	}
	b := builder{expansion: out, seen: make(codeVersions)}
	return out, b.add(x, func(y *entry) bool { return y.system == system })
}

func (e *evaluation) imported(ctx context.Context, vs *ValueSet, url string) (*expansion, error) {
	if !strings.HasPrefix(url, "#") {
		return e.canonical(ctx, parseCanonical(url))
	}
	inner := vs.contained[url]
	if inner == nil {
		return nil, outcome.UnprocessableContent(outcome.CodeNotFound, "ValueSet %s has no contained value set %s", vs.URL, outcome.Clip(url))
	}
	name := vs.URL + url
	if slices.Contains(e.path, name) {
		return nil, circular(append(e.path, name))
	}
	if x, ok := e.done[name]; ok {
		return x, nil
	}
	e.path = append(e.path, name)
	defer func() { e.path = e.path[:len(e.path)-1] }()
	within := *inner
	within.contained = vs.contained
	if within.URL == "" {
		within.URL = vs.URL
	}
	x, err := e.valueSetOf(ctx, &within)
	if err == nil {
		e.done[name] = x
	}
	return x, err
}

// intersect returns the codes that all parts contain, in the order of the first.
func intersect(parts []*expansion) (*expansion, error) {
	out := &expansion{}
	b := builder{expansion: out, seen: make(codeVersions)}
	sets := make([]codeVersions, len(parts)-1)
	for i, x := range parts[1:] {
		sets[i] = make(codeVersions, len(x.entries))
		for j := range x.entries {
			sets[i].add(&x.entries[j])
		}
	}
	err := b.add(parts[0], func(y *entry) bool {
		for _, set := range sets {
			if !set.has(y) {
				return false
			}
		}
		return true
	})
	for _, x := range parts {
		out.systems = append(out.systems, x.systems...)
		out.addNotices(x)
		if len(x.gaps) > 0 {
			// An intersection of codes that cannot be enumerated is not known.
			out.gaps = []gap{{}}
		}
	}
	return out, err
}

// system expands the part of an include that is about its system.
func (e *evaluation) system(ctx context.Context, inc *Include) (*expansion, error) {
	if version := e.version[inc.System]; version != "" && inc.Version == "" {
		of := *inc
		of.Version = version
		inc = &of
	}
	at := canonical{inc.System, inc.Version}
	cs, err := e.codeSystem(ctx, at)
	if err != nil {
		return nil, err
	}
	if len(inc.Concept) > 0 {
		return listed(inc, cs), nil
	}
	if cs == nil || !cs.complete {
		return e.foreignSystem(ctx, inc, cs)
	}
	return e.concepts(inc, cs)
}

// concepts returns the concepts of a code system that every filter of the include
// accepts.
func (e *evaluation) concepts(inc *Include, cs *codeSystem) (*expansion, error) {
	// 1. The concepts that every filter accepts.
	var tests []func(int32) bool
	for _, f := range inc.Filter {
		test, err := cs.filterMatcher(f)
		if err != nil {
			return nil, err
		}
		tests = append(tests, test)
	}

	if err := e.looks(len(cs.concepts) * (1 + len(tests))); err != nil {
		return nil, err
	}

	// 2. Each nested in the nearest one above it that is taken too.
	x := &expansion{systems: []canonical{{cs.url, cs.version}}, supplements: cs.used}
	if len(cs.concepts) > maxCodes && len(tests) == 0 {
		return nil, tooCostly("CodeSystem " + cs.url)
	}
	place := make([]int32, len(cs.concepts))
	for i := range cs.concepts {
		c := &cs.concepts[i]
		place[i] = -1
		if c.parent >= 0 {
			place[i] = place[c.parent]
		}
		if slices.ContainsFunc(tests, func(test func(int32) bool) bool { return !test(int32(i)) }) {
			continue
		}
		x.entries = append(x.entries, entry{system: cs.url, version: inc.Version, code: c.code, display: c.display,
			abstract: c.abstract, inactive: c.inactive, designation: c.designation, parent: place[i]})
		place[i] = int32(len(x.entries) - 1)
	}
	return x, nil
}

// listed expands an include that names its concepts. It adds the properties of the system, and
// leaves out the codes that a complete system does not have. cs may be nil.
func listed(inc *Include, cs *codeSystem) *expansion {
	x := &expansion{entries: make([]entry, 0, len(inc.Concept))}
	if cs != nil {
		x.systems, x.supplements = []canonical{{cs.url, cs.version}}, cs.used
	} else {
		x.systems = []canonical{{inc.System, inc.Version}}
	}
	for _, c := range inc.Concept {
		y := entry{system: inc.System, version: inc.Version, code: c.Code, display: c.Display, designation: c.Designation, parent: -1}
		if cs != nil {
			if i, ok := cs.findConcept(c.Code); ok {
				known := &cs.concepts[i]
				y.abstract, y.inactive = known.abstract, known.inactive
				if y.display == "" {
					y.display = known.display
				}
				y.designation = slices.Concat(y.designation, known.designation)
			} else if cs.complete && grammars[inc.System] == nil {
				continue
			}
		}
		x.entries = append(x.entries, y)
	}
	return x
}

// foreignSystem expands an include of a system whose codes are not all here.
func (e *evaluation) foreignSystem(ctx context.Context, inc *Include, cs *codeSystem) (*expansion, error) {
	check, grammar := grammars[inc.System]
	switch {
	case e.lenient && grammar && len(inc.Filter) == 0:
		return &expansion{gaps: []gap{{system: inc.System, check: check}}}, nil
	case e.lenient:
		x := &expansion{gaps: []gap{{system: inc.System}}}
		if cs != nil && len(inc.Filter) == 0 {
			for i := range cs.concepts {
				x.entries = append(x.entries, entry{system: cs.url, code: cs.concepts[i].code, parent: -1})
			}
		}
		return x, nil
	case e.server() != nil:
		only := Include{System: inc.System, Version: inc.Version, Filter: inc.Filter}
		x, err := e.ask(ctx, question{Compose: &Compose{Include: []Include{only}}})
		if notKnown(err) && cs.partial() {
			return e.partial(inc, cs)
		}
		if notKnown(err) {
			return nil, notFound(typeCodeSystem, canonical{inc.System, inc.Version}).Because(err)
		}
		return x, err
	case cs.partial():
		return e.partial(inc, cs)
	case grammar:
		return nil, outcome.New(outcome.CodeTooCostly, "the codes of CodeSystem %s follow a grammar and cannot be listed", inc.System)
	}
	return nil, notFound(typeCodeSystem, canonical{inc.System, inc.Version})
}

// partial reports whether some of the codes are here: a fragment or examples.
func (cs *codeSystem) partial() bool { return cs != nil && !cs.complete && len(cs.concepts) > 0 }

// partial expands an include from the part of its system that is here, and says so.
func (e *evaluation) partial(inc *Include, cs *codeSystem) (*expansion, error) {
	x, err := e.concepts(inc, cs)
	if err == nil {
		x.warnings = []string{fmt.Sprintf("CodeSystem %s is here in part only (content: %s)", cs.url, cs.content)}
	}
	return x, err
}

// addContained appends the concepts of an expansion as it is written.
func (x *expansion) addContained(list []Contained, parent int32) error {
	for i := range list {
		c := &list[i]
		up := parent
		if c.Code != "" {
			if len(x.entries) >= maxCodes {
				return tooCostly("")
			}
			up = int32(len(x.entries))
			x.entries = append(x.entries, entry{system: c.System, version: c.Version, code: c.Code, display: c.Display,
				abstract: c.Abstract, inactive: c.Inactive, designation: c.Designation, parent: parent})
		}
		if len(c.Contains) > 0 {
			if err := x.addContained(c.Contains, up); err != nil {
				return err
			}
		}
	}
	return nil
}
