package strategy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/text/unicode/norm"

	"kiln/definitions"
	"kiln/definitions/examples"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/search"
	"kiln/server/search/searchtest"
	"kiln/server/store"
	"kiln/server/ucum"
)

// The test below searches HL7's examples by every search parameter of R4. It draws the
// values from the results of the definition's own FHIRPath expression. It finds out by that
// expression, and by rules that are written here from search.html, which resources a search
// should find. It does not use index entries.

// item is one value of a search parameter in one resource.
type item struct {
	// Of a token. implicit is set where the value set of a code says the system,
	// or where there is no such thing; contact is a ContactPoint.
	system, code, use string
	implicit, contact bool
	display           []string

	text string // of a string or a uri
	// ofName says that the text is a part of a name, which is found by each word.
	ofName bool

	date      string // as written, or one end of a period
	low, high int64  // of a date, half open

	// Of a number or quantity: nil is no limit, an open end does not belong to it.
	number           string // as written
	min, max         *big.Rat
	minOpen, maxOpen bool
	unit             string // and system, code

	// Of a reference: to a resource of this server, or to somewhere else.
	typ, id, url     string
	identifierSystem string
	identifierValue  string
	canonical, logic bool
	itself           bool // the resource stands where others have a reference to it
	empty            bool // has nothing to be found by

	parts [][]item // of a composite
}

// searched is one resource with its type.
type searched struct {
	id   string
	node fhir.Node
}

// parameterValues evaluates parameters on resources.
type parameterValues struct {
	p          *fhir.Parameter
	branches   []*fhirpath.Program
	components [][]*fhirpath.Program // branches of each
}

// faulty are the component expressions of composite parameters with a faulty definition, by
// URL: DocumentReference-relationship has them in the wrong order, and no type of FHIR is
// called DateTime.
var faulty = map[string][]string{
	"http://hl7.org/fhir/SearchParameter/DocumentReference-relationship": {"target", "code"},
	"http://hl7.org/fhir/SearchParameter/Observation-code-value-date":    {"code", "value.as(dateTime) | value.as(Period)"},
}

// definitionsOfParameters are the expressions as the definitions have them.
func definitionsOfParameters(t *testing.T) (expressions map[string]string, components map[string][]string) {
	t.Helper()
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	expressions, components = map[string]string{}, map[string][]string{}
	for _, b := range lib.All("SearchParameter") {
		var p struct {
			URL, Expression string
			Component       []struct{ Expression string }
		}
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		expressions[p.URL] = p.Expression
		for _, c := range p.Component {
			components[p.URL] = append(components[p.URL], c.Expression)
		}
	}
	for url, list := range faulty {
		components[url] = list
	}
	return expressions, components
}

// compileBranches compiles each operand of `|` in an expression by itself: the union drops
// one of two equal values, such as 0 g and 0 mg.
func compileBranches(t *testing.T, text string) []*fhirpath.Program {
	t.Helper()
	e, err := fhirpath.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var out []*fhirpath.Program
	for _, n := range fhirpath.Branches(e.Root) {
		program, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: text, Root: n}, fhirpath.Options{Model: r4.Model, CollectionAs: true})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		out = append(out, program)
	}
	return out
}

// implicitSystem is the implicit system of all branches of a parameter, or "".
func implicitSystem(p *fhir.Parameter) string {
	if len(p.Systems) < len(p.Keys) || len(slices.Compact(slices.Clone(p.Systems))) > 1 {
		return ""
	}
	return p.Systems[0]
}

func (v *parameterValues) of(t *testing.T, n fhir.Node) []item {
	t.Helper()
	var c fhirpath.Collection
	for _, branch := range v.branches {
		some, err := branch.Eval(nil, n)
		if err != nil {
			t.Fatalf("%s.%s: %v", v.p.Base, v.p.Code, err)
		}
		c = append(c, some...)
	}
	var out []item
	for _, value := range c {
		if v.components == nil {
			for _, it := range items(t, v.p.Type, implicitSystem(v.p), value) {
				if it.itself && !slices.Contains(v.p.Targets, it.typ) {
					continue // the first entry of a Bundle that is no document, or no message
				}
				out = append(out, it)
			}
			continue
		}
		element, ok := value.Node()
		if !ok {
			t.Fatalf("%s.%s: the element of a composite is a %s", v.p.Base, v.p.Code, value.TypeName())
		}
		var it item
		for i, branches := range v.components {
			part := v.p.Composites[0].Parts[i]
			var list []item
			for _, program := range branches {
				got, err := program.Eval(&fhirpath.Context{Resource: n}, element)
				if err != nil {
					t.Fatalf("%s.%s: %v", v.p.Base, v.p.Code, err)
				}
				for _, value := range got {
					list = append(list, items(t, part.Type, part.System, value)...)
				}
			}
			it.parts = append(it.parts, list)
		}
		out = append(out, it)
	}
	return out
}

// tree is JSON.
type tree map[string]any

func (o tree) text(name string) string {
	switch v := o[name].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

func (o tree) child(name string) tree {
	switch v := o[name].(type) {
	case map[string]any:
		return v
	}
	return nil
}

func (o tree) children(name string) []tree {
	var out []tree
	list, _ := o[name].([]any)
	for _, v := range list {
		if m, ok := v.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func (o tree) texts(names ...string) []string {
	var out []string
	for _, name := range names {
		if list, ok := o[name].([]any); ok {
			for _, v := range list {
				if s, ok := v.(string); ok {
					out = append(out, s)
				}
			}
		} else if s := o.text(name); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// items are the values that one result of an expression has as a type.
// Spec: https://hl7.org/fhir/R4/search.html#ptypes.
func items(t *testing.T, typ fhir.SearchType, system string, v fhirpath.Value) []item {
	t.Helper()
	name := strings.TrimPrefix(strings.TrimPrefix(v.TypeName(), "FHIR."), "System.")
	raw := v.AppendJSON(nil)
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	var o tree
	text := ""
	switch value := value.(type) {
	case map[string]any:
		o = value
	case string:
		text = value
	case bool:
		text = fmt.Sprint(value)
	case json.Number:
		text = value.String()
	case nil: // a primitive that has extensions only
		return nil
	}
	if o != nil && o.text("resourceType") != "" && typ == fhir.SearchReference {
		return []item{{typ: o.text("resourceType"), id: o.text("id"), itself: true}}
	}
	switch typ {
	case fhir.SearchToken:
		list := tokenItems(t, name, system, o, text)
		for i := range list {
			list[i].empty = list[i].system+list[i].code == "" && len(list[i].display) == 0
		}
		return list
	case fhir.SearchString:
		return stringItems(t, name, o, text)
	case fhir.SearchURI:
		if o != nil {
			break
		}
		return []item{{text: text}}
	case fhir.SearchReference:
		return referenceItems(t, name, o, text)
	case fhir.SearchDate:
		return dateItems(t, name, o, text)
	case fhir.SearchNumber, fhir.SearchQuantity:
		return quantityItems(t, name, o, text)
	}
	t.Errorf("a %s as a %s: %s", name, typ, raw)
	return nil
}

func tokenItems(t *testing.T, name, system string, o tree, text string) []item {
	t.Helper()
	coding := func(c tree) item {
		return item{system: c.text("system"), code: c.text("code"), display: c.texts("display")}
	}
	switch name {
	case "code":
		return []item{{system: system, code: text, implicit: true}}
	case "boolean", "Boolean", "string", "String", "id", "uri", "canonical", "integer", "positiveInt", "unsignedInt", "markdown", "url":
		return []item{{code: text, implicit: true}}
	case "Coding":
		return []item{coding(o)}
	case "CodeableConcept":
		var out []item
		for _, c := range o.children("coding") {
			out = append(out, coding(c))
		}
		if text := o.text("text"); text != "" {
			out = append(out, item{display: []string{text}, implicit: true})
		}
		return out
	case "Identifier":
		return []item{{system: o.text("system"), code: o.text("value"), display: o.child("type").texts("text")}}
	case "ContactPoint":
		return []item{{system: o.text("system"), use: o.text("use"), code: o.text("value"), implicit: true, contact: true}}
	case "Extension": // R4 has expressions that end in one: its value counts
		for property, value := range o {
			if typ, ok := strings.CutPrefix(property, "value"); ok {
				m, _ := value.(map[string]any)
				return tokenItems(t, typ, system, m, "")
			}
		}
		return nil
	case "Reference", "Quantity", "Range": // of a choice; it has no form as a token
		return nil
	}
	t.Errorf("a %s as a token", name)
	return nil
}

func stringItems(t *testing.T, name string, o tree, text string) []item {
	t.Helper()
	var texts []string
	switch name {
	case "HumanName":
		texts = o.texts("family", "given", "prefix", "suffix", "text")
	case "Address":
		texts = o.texts("line", "city", "district", "state", "country", "postalCode", "text")
	case "string", "String", "markdown", "code", "id", "uri", "url":
		texts = []string{text}
	default:
		t.Fatalf("a %s as a string", name)
	}
	var out []item
	for _, s := range texts {
		out = append(out, item{text: s, ofName: name == "HumanName"})
	}
	return out
}

func referenceItems(t *testing.T, name string, o tree, text string) []item {
	t.Helper()
	it := item{url: text}
	switch name {
	case "Reference":
		it.url = o.text("reference")
		it.typ = o.text("type")
		if i := o.child("identifier"); i != nil {
			it.identifierSystem, it.identifierValue, it.logic = i.text("system"), i.text("value"), true
		}
	case "canonical", "uri", "url":
		it.canonical = true
	case "Attachment": // of a choice; it has no form as a reference
		return nil
	default:
		t.Errorf("a %s as a reference", name)
	}
	if it.url == "" && !it.logic || it.logic && it.url == "" && it.identifierSystem+it.identifierValue == "" {
		it.empty = true
	}
	if parts := strings.Split(it.url, "/"); !strings.Contains(it.url, ":") && len(parts) >= 2 && r4.Model.Resources[parts[0]] != nil {
		it.typ, it.id, it.url = parts[0], strings.SplitN(parts[1], "|", 2)[0], ""
		if it.canonical {
			it.url = text
		}
	}
	return []item{it}
}

// dateSpan is the range that a date stands for: at its own precision.
// Spec: https://hl7.org/fhir/R4/search.html#date.
func dateSpan(t *testing.T, text string) (low, high int64) {
	t.Helper()
	for _, l := range []struct {
		layout  string
		y, m, d int
		width   time.Duration
	}{
		{"2006", 1, 0, 0, 0}, {"2006-01", 0, 1, 0, 0}, {"2006-01-02", 0, 0, 1, 0},
		{"2006-01-02T15:04Z07:00", 0, 0, 0, time.Minute}, {"2006-01-02T15:04:05Z07:00", 0, 0, 0, time.Second},
	} {
		at, err := time.Parse(l.layout, text)
		if err != nil {
			continue
		}
		if _, fraction, ok := strings.Cut(text, "."); ok {
			for range len(fraction) - len(strings.TrimLeft(fraction, "0123456789")) {
				l.width /= 10
			}
			l.width = max(l.width, time.Microsecond)
		}
		return at.UnixMicro(), at.AddDate(l.y, l.m, l.d).Add(l.width).UnixMicro()
	}
	t.Fatalf("%q is no date", text)
	return 0, 0
}

func dateItems(t *testing.T, name string, o tree, text string) []item {
	t.Helper()
	period := func(start, end string) []item {
		it := item{low: fhir.OpenLow, high: fhir.OpenHigh}
		if start != "" {
			it.low, _ = dateSpan(t, start)
			it.date = start
		}
		if end != "" {
			_, it.high = dateSpan(t, end)
			it.date = end
		}
		if it.date == "" {
			return nil
		}
		return []item{it}
	}
	switch name {
	case "date", "dateTime", "instant":
		it := item{date: text}
		it.low, it.high = dateSpan(t, text)
		return []item{it}
	case "Period":
		return period(o.text("start"), o.text("end"))
	case "string": // of a choice; it has no form as a date
		return nil
	case "Timing": // the outer limits
		var out []item
		for _, event := range o.texts("event") {
			low, high := dateSpan(t, event)
			if len(out) == 0 {
				out = append(out, item{date: event, low: low, high: high})
			}
			out[0].low, out[0].high = min(out[0].low, low), max(out[0].high, high)
		}
		if p := o.child("repeat").child("boundsPeriod"); p != nil {
			out = append(out, period(p.text("start"), p.text("end"))...)
		}
		return out
	}
	t.Errorf("a %s as a date", name)
	return nil
}

func rational(t *testing.T, text string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("%q is no number", text)
	}
	return r
}

func quantityItems(t *testing.T, name string, o tree, text string) []item {
	t.Helper()
	switch name {
	case "integer", "positiveInt", "unsignedInt", "decimal", "Integer", "Decimal":
		n := rational(t, text)
		return []item{{number: text, min: n, max: n}}
	case "Quantity", "SimpleQuantity", "Age", "Duration", "Count", "Distance", "Money":
		if o.text("value") == "" {
			return nil
		}
		n := rational(t, o.text("value"))
		it := item{number: o.text("value"), min: n, max: n, system: o.text("system"), code: o.text("code"), unit: o.text("unit")}
		if name == "Money" {
			it.system, it.code, it.unit = "urn:iso:std:iso:4217", o.text("currency"), o.text("currency")
		}
		switch o.text("comparator") {
		case "<":
			it.min, it.maxOpen = nil, true
		case "<=":
			it.min = nil
		case ">":
			it.max, it.minOpen = nil, true
		case ">=":
			it.max = nil
		}
		return []item{it}
	case "Range":
		var it item
		for _, end := range []string{"high", "low"} {
			q := o.child(end)
			if q.text("value") == "" {
				continue
			}
			it.number, it.system, it.code, it.unit = q.text("value"), q.text("system"), q.text("code"), q.text("unit")
			if end == "low" {
				it.min = rational(t, it.number)
			} else {
				it.max = rational(t, it.number)
			}
		}
		if it.number == "" {
			return nil
		}
		return []item{it}
	case "SampledData": // "the lower and upper limits of the sampled data", value-quantity
		origin, factor := rational(t, o.child("origin").text("value")), big.NewRat(1, 1)
		if f := o.text("factor"); f != "" {
			factor = rational(t, f)
		}
		it := item{system: o.child("origin").text("system"), code: o.child("origin").text("code"), unit: o.child("origin").text("unit")}
		for _, point := range strings.Fields(o.text("data")) {
			if strings.ContainsAny(point, "EUL") {
				t.Fatalf("a sample of %q", point)
			}
			n := new(big.Rat).Mul(rational(t, point), factor)
			n.Add(n, origin)
			if it.min == nil || n.Cmp(it.min) < 0 {
				it.min = n
			}
			if it.max == nil || n.Cmp(it.max) > 0 {
				it.max = n
			}
		}
		if it.min == nil {
			return nil
		}
		it.number = it.min.FloatString(2)
		return []item{it}
	}
	t.Errorf("a %s as a number", name)
	return nil
}

// probe is one search and its expected matches.
type probe struct {
	modifier, value string
	holds           func(item) bool // of one value
	none            bool            // resources of which no value does
}

var searchEscaper = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `|`, `\|`, `$`, `\$`)

// probes are searches for an item and for others near it.
func probes(t *testing.T, r *rand.Rand, p *fhir.Parameter, it item) []probe {
	t.Helper()
	var out []probe
	add := func(modifier, value string, holds func(item) bool) {
		out = append(out, probe{modifier, value, holds, false})
	}
	switch p.Type {
	case fhir.SearchToken:
		for _, want := range tokenProbes(it) {
			add("", want.value, want.holds)
			out = append(out, probe{":not", want.value, want.holds, true})
		}
		if len(it.display) > 0 {
			part := foldTest(it.display[0])
			if part == "" {
				break
			}
			words := strings.Fields(part)
			part = words[r.IntN(len(words))]
			add(":text", searchEscaper.Replace(part), func(o item) bool {
				return slices.ContainsFunc(o.display, func(d string) bool {
					return strings.Contains(searchtest.JoinText(foldTest(d)), searchtest.JoinText(part))
				})
			})
		}
	case fhir.SearchString:
		out = append(out, stringProbes(r, p, it)...)
	case fhir.SearchURI:
		add("", searchEscaper.Replace(it.text), func(o item) bool { return o.text == it.text })
		if base, _, ok := strings.Cut(it.text, "://"); ok && base != "" {
			parts := strings.Split(strings.TrimRight(it.text, "/"), "/")
			below := strings.Join(parts[:3+r.IntN(len(parts)-2)], "/")
			add(":below", searchEscaper.Replace(below), func(o item) bool { return o.text == below || strings.HasPrefix(o.text, below+"/") })
			above := it.text + "/more"
			add(":above", searchEscaper.Replace(above), func(o item) bool {
				return strings.Contains(o.text, "://") && (above == o.text || strings.HasPrefix(above, strings.TrimRight(o.text, "/")+"/"))
			})
		}
	case fhir.SearchReference:
		out = append(out, referenceProbes(p, it)...)
	case fhir.SearchDate:
		text := it.date
		if r.IntN(2) == 0 && len(text) > 4 { // at another precision
			text = text[:4+3*r.IntN(2)]
		}
		for _, op := range searchtest.Prefixes {
			add("", op+text, func(o item) bool { return dateMatches(t, op, text, o) })
		}
	case fhir.SearchNumber, fhir.SearchQuantity:
		out = append(out, numberProbes(t, r, p.Type, it)...)
	}
	return out
}

func tokenProbes(it item) []probe {
	if it.code == "" {
		return nil
	}
	same := func(o item) bool { return strings.EqualFold(o.code, it.code) }
	code := searchEscaper.Replace(it.code)
	out := []probe{{value: code, holds: func(o item) bool { return o.code != "" && same(o) }}}
	if it.system != "" {
		system := searchEscaper.Replace(it.system)
		out = append(out, probe{value: system + "|" + code, holds: func(o item) bool { return same(o) && (o.system == it.system || o.use == it.system) }})
		if !it.contact { // "the system property of the Identifier or Coding"
			out = append(out, probe{value: system + "|", holds: func(o item) bool { return o.system == it.system }})
		}
	} else if !it.implicit {
		out = append(out, probe{value: "|" + code, holds: func(o item) bool { return same(o) && o.system == "" && !o.implicit }})
	}
	if it.use != "" {
		out = append(out, probe{value: it.use + "|" + code, holds: func(o item) bool { return same(o) && (o.system == it.use || o.use == it.use) }})
	}
	return out
}

// foldTest is a text without case, accents and superfluous white space.
// Spec: https://hl7.org/fhir/R4/search.html#string.
func foldTest(s string) string {
	var b strings.Builder
	for _, r := range norm.NFKD.String(s) {
		if !unicode.Is(unicode.Mn, r) {
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return strings.Join(strings.Fields(strings.NewReplacer("ø", "o", "ß", "ss", "æ", "ae", "ł", "l", "đ", "d").Replace(b.String())), " ")
}

func stringProbes(r *rand.Rand, p *fhir.Parameter, it item) []probe {
	if foldTest(it.text) == "" {
		return nil
	}
	runes := []rune(it.text)
	out := []probe{{modifier: ":exact", value: searchEscaper.Replace(it.text), holds: func(o item) bool { return o.text == it.text }}}
	start := string(runes[:min(len(runes), 1+r.IntN(12))])
	if r.IntN(2) == 0 {
		start = strings.ToUpper(start)
	}
	if want := foldTest(start); want != "" {
		out = append(out, probe{value: searchEscaper.Replace(start), holds: func(o item) bool {
			if o.ofName || p.Code == "family" || p.Code == "given" {
				return searchtest.BeginsWord(foldTest(o.text), want)
			}
			return searchtest.BeginsText(foldTest(o.text), want)
		}})
	}
	from := r.IntN(len(runes))
	part := string(runes[from:min(len(runes), from+1+r.IntN(8))])
	if want := foldTest(part); want != "" {
		out = append(out, probe{modifier: ":contains", value: searchEscaper.Replace(part), holds: func(o item) bool {
			return strings.Contains(searchtest.JoinText(foldTest(o.text)), searchtest.JoinText(want))
		}})
	}
	return out
}

func referenceProbes(p *fhir.Parameter, it item) []probe {
	var out []probe
	if it.id != "" && (len(p.Targets) == 0 || slices.Contains(p.Targets, it.typ)) {
		same := func(o item) bool { return o.typ == it.typ && o.id == it.id }
		out = append(out, probe{value: it.typ + "/" + it.id, holds: same}, probe{modifier: ":" + it.typ, value: it.id, holds: same},
			probe{value: it.id, holds: func(o item) bool {
				return o.id == it.id && (len(p.Targets) == 0 || slices.Contains(p.Targets, o.typ))
			}})
	}
	if strings.Contains(it.url, ":") {
		out = append(out, probe{value: searchEscaper.Replace(it.url), holds: func(o item) bool {
			return o.url == it.url || o.canonical && strings.Split(o.url, "|")[0] == it.url
		}})
		if url, version, ok := strings.Cut(it.url, "|"); it.canonical && ok && version != "" {
			out = append(out, probe{value: searchEscaper.Replace(url), holds: func(o item) bool { return strings.Split(o.url, "|")[0] == url }})
		}
	}
	if it.identifierValue != "" {
		value := searchEscaper.Replace(it.identifierValue)
		out = append(out, probe{modifier: ":identifier", value: value, holds: func(o item) bool { return strings.EqualFold(o.identifierValue, it.identifierValue) }},
			probe{modifier: ":identifier", value: searchEscaper.Replace(it.identifierSystem) + "|" + value, holds: func(o item) bool {
				return o.identifierSystem == it.identifierSystem && strings.EqualFold(o.identifierValue, it.identifierValue)
			}})
	}
	return out
}

// dateMatches compares as search.html#prefix says; ap is a tenth of the distance
// from now.
func dateMatches(t *testing.T, op, text string, o item) bool {
	t.Helper()
	low, high := dateSpan(t, text)
	if op == "ap" {
		margin := searchtest.Now.UnixMicro() - low
		if margin < 0 {
			margin = -margin
		}
		return o.low < high+margin/10 && o.high > low-margin/10
	}
	return searchtest.DateHolds(op, o.low, o.high, low, high)
}

func numberProbes(t *testing.T, r *rand.Rand, typ fhir.SearchType, it item) []probe {
	t.Helper()
	texts := []string{it.number}
	if i := strings.IndexByte(it.number, '.'); i > 0 && !strings.ContainsAny(it.number, "eE") { // with fewer digits
		texts = append(texts, it.number[:i+r.IntN(len(it.number)-i)])
		if strings.HasSuffix(texts[1], ".") {
			texts[1] = it.number[:i]
		}
	}
	var out []probe
	for _, text := range texts {
		for _, op := range searchtest.Prefixes {
			in := func(o item, scale *big.Rat) bool { return numberMatches(t, op, text, o, scale) }
			one := big.NewRat(1, 1)
			out = append(out, probe{value: op + text, holds: func(o item) bool { return in(o, one) }})
			if typ != fhir.SearchQuantity || it.code == "" {
				continue
			}
			out = append(out,
				probe{value: op + text + "||" + searchEscaper.Replace(it.code), holds: func(o item) bool {
					return (o.code == it.code || o.unit == it.code) && in(o, one)
				}},
				probe{value: op + text + "|" + searchEscaper.Replace(it.system) + "|" + searchEscaper.Replace(it.code), holds: func(o item) bool {
					scale, ok := sameUnit(o, it)
					return ok && in(o, scale)
				}})
			if it.system == "" {
				out = out[:len(out)-1] // that is the one before
			}
		}
	}
	return out
}

// sameUnit is the number of units of o in one unit of want.
func sameUnit(o, want item) (*big.Rat, bool) {
	if o.system == want.system && o.code == want.code {
		return big.NewRat(1, 1), true
	}
	if o.system != want.system || want.system != "http://unitsofmeasure.org" {
		return nil, false
	}
	a, err1 := ucum.Parse(want.code)
	b, err2 := ucum.Parse(o.code)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	scale, err := a.Convert(big.NewRat(1, 1), b)
	zero, err0 := a.Convert(new(big.Rat), b)
	return scale, err == nil && err0 == nil && zero.Sign() == 0
}

// numberMatches compares as search.html#number and #prefix say: eq, ne and ap with
// the range of the significant figures, the others with the number itself.
func numberMatches(t *testing.T, op, text string, o item, scale *big.Rat) bool {
	t.Helper()
	v := rational(t, text)
	mantissa, exponent, scientific := strings.Cut(strings.ToLower(text), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	digits := len(fraction)
	if scientific && digits == 0 {
		digits = 1 // "1e2" is 95 to 105
	}
	power, _ := strconv.Atoi(exponent)
	half := rational(t, fmt.Sprintf("5e%d", power-digits-1))
	if op == "ap" {
		tenth := new(big.Rat).Mul(new(big.Rat).Abs(v), big.NewRat(1, 10))
		if tenth.Cmp(half) > 0 {
			half = tenth
		}
	}
	low, high := new(big.Rat).Sub(v, half), new(big.Rat).Add(v, half)
	for _, n := range []*big.Rat{v, low, high} {
		n.Mul(n, scale)
	}
	// below and above: o lies, in part, on that side of a point.
	below := func(n *big.Rat, orAt bool) bool {
		return o.min == nil || o.min.Cmp(n) < 0 || orAt && !o.minOpen && o.min.Cmp(n) == 0
	}
	above := func(n *big.Rat, orAt bool) bool {
		return o.max == nil || o.max.Cmp(n) > 0 || orAt && !o.maxOpen && o.max.Cmp(n) == 0
	}
	contained := !below(low, false) && !above(high, true)
	switch op {
	case "", "eq":
		return contained
	case "ne":
		return !contained
	case "lt":
		return below(v, false)
	case "le":
		return below(v, true)
	case "gt":
		return above(v, false)
	case "ge":
		return above(v, true)
	case "sa":
		return !below(v, true)
	case "eb":
		return !above(v, true)
	case "ap":
		return below(high, true) && above(low, true)
	}
	t.Fatalf("prefix %q", op)
	return false
}

// loadExamples writes HL7's examples and returns them by type.
func loadExamples(t *testing.T, s *store.Store) map[string][]searched {
	t.Helper()
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]searched{}
	seen := map[string]bool{}
	for batch := range slices.Chunk(all, 100) {
		var ws []*store.Write
		for _, raw := range batch {
			r, err := fhir.Decode(r4.Model, raw)
			if err != nil || r.Header().ID.Text == "" {
				continue // resources that the codec refuses are tested there
			}
			typ, id := r.Type().Name, r.Header().ID.Text
			if seen[typ+"/"+id] {
				continue
			}
			seen[typ+"/"+id] = true
			out[typ] = append(out[typ], searched{id, fhir.NodeOf(r)})
			ws = append(ws, searchtest.NewWrite(t, raw))
		}
		if err := s.WriteAll(context.Background(), ws); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestEveryParameter asks for values of every search parameter that the examples,
// and some hundred random resources, have.
func TestEveryParameter(t *testing.T) {
	s, _ := searchtest.Open(t)
	resources := loadExamples(t, s)
	c := searchtest.NewCorpus(21, 60, 200)
	c.Load(t, s)
	stored := searchtest.ReadResources(t, s, slices.Collect(maps.Keys(resources))...)
	for typ, list := range nodesOf(t, c) {
		resources[typ] = append(resources[typ], list...)
	}
	expressions, components := definitionsOfParameters(t)
	drawn := 3
	if testing.Short() {
		drawn = 1
	}
	r := rand.New(rand.NewPCG(5, 5))
	parameters, searches := 0, 0
	for i := range index.Parameters {
		p := &index.Parameters[i]
		if p.Unsupported != "" || p.Type == fhir.SearchSpecial || p.Code == "_id" || p.Code == "_lastUpdated" || p.Expression == "" || len(resources[p.Base]) == 0 {
			continue
		}
		v := &parameterValues{p: p, branches: compileBranches(t, expressions[p.URL])}
		for _, text := range components[p.URL] {
			v.components = append(v.components, compileBranches(t, text))
		}
		values := make([][]item, len(resources[p.Base]))
		var all []item
		for i, o := range resources[p.Base] {
			values[i] = v.of(t, o.node)
			all = append(all, values[i]...)
		}
		if len(all) == 0 {
			continue
		}
		parameters++
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var list []probe
		for _, it := range all[:min(drawn, len(all))] {
			if v.components == nil {
				list = append(list, probes(t, r, p, it)...)
			} else {
				list = append(list, compositeProbes(t, r, p, it)...)
			}
		}
		for _, missing := range []bool{true, false} {
			list = append(list, probe{":missing", fmt.Sprint(missing), found, missing})
		}
		for _, q := range list {
			searches++
			var want []string
			for i, o := range resources[p.Base] {
				if slices.ContainsFunc(values[i], q.holds) != q.none {
					want = append(want, o.id)
				}
			}
			slices.Sort(want)
			text := p.Base + "?" + p.Code + q.modifier + "=" + q.value
			query, err := search.Parse(searchtest.Registry, p.Base, url.Values{p.Code + q.modifier: {q.value}}, search.Options{MaxCount: 10_000, DefaultCount: 10_000, Now: searchtest.Now})
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			searchWithoutCache(s, []int{0, 3}[searches%2]) // as candidates, or counted and walked
			got := searchtest.IDs(searchtest.FindMatches(t, s, query))
			slices.Sort(got)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s (%s):\n%s", text, expressions[p.URL], diff)
			}
			if held := searchtest.FindHolding(t, s, query, stored[p.Base]); !slices.Equal(held, got) {
				t.Errorf("%s holds in memory for %v, in SQL for %v", text, held, got)
			}
		}
	}
	t.Logf("%d parameters, %d searches", parameters, searches)
	if parameters < 500 {
		t.Errorf("only %d parameters have values", parameters)
	}
}

// found reports whether an item can be found by anything.
func found(it item) bool {
	if it.parts != nil {
		return !slices.ContainsFunc(it.parts, func(list []item) bool { return !slices.ContainsFunc(list, found) })
	}
	return !it.empty
}

// compositeProbes join a probe for each component: all must hold in one element.
func compositeProbes(t *testing.T, r *rand.Rand, p *fhir.Parameter, it item) []probe {
	t.Helper()
	var out []probe
	for range 6 {
		var all []probe
		for i, list := range it.parts {
			part := p.Composites[0].Parts[i]
			var some []probe
			for _, o := range list {
				for _, q := range probes(t, r, &fhir.Parameter{Code: part.Code, Base: p.Base, Type: part.Type}, o) {
					if q.modifier == "" && !strings.HasSuffix(q.value, "|") {
						some = append(some, q)
					}
				}
			}
			if len(some) == 0 {
				return nil
			}
			all = append(all, searchtest.PickRandom(r, some))
		}
		var values []string
		for _, q := range all {
			values = append(values, q.value)
		}
		out = append(out, probe{value: strings.Join(values, "$"), holds: func(o item) bool {
			for i, q := range all {
				if !slices.ContainsFunc(o.parts[i], q.holds) {
					return false
				}
			}
			return true
		}})
	}
	return out
}

// nodes are the resources of a corpus.
func nodesOf(t *testing.T, c *searchtest.Corpus) map[string][]searched {
	t.Helper()
	out := map[string][]searched{}
	add := func(o searchtest.Object) {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := fhir.Decode(r4.Model, raw)
		if err != nil {
			t.Fatal(err)
		}
		out[r.Type().Name] = append(out[r.Type().Name], searched{r.Header().ID.Text, fhir.NodeOf(r)})
	}
	for i := range c.Patients {
		add(c.Patients[i].JSON())
	}
	for i := range c.Observations {
		add(c.Observations[i].JSON())
	}
	for _, o := range searchtest.Organizations() {
		add(o)
	}
	return out
}
