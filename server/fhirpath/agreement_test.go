package fhirpath_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kiln/definitions"
	"kiln/definitions/examples"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// corrected are the component expressions of composite parameters whose
// definition is faulty, by URL.
var corrected = map[string][]string{
	// The definition has the expressions of its two components the wrong way round.
	"http://hl7.org/fhir/SearchParameter/DocumentReference-relationship": {"target", "code"},
	// It says value.as(DateTime), which is no type.
	"http://hl7.org/fhir/SearchParameter/Observation-code-value-date": {"code", "value.as(dateTime) | value.as(Period)"},
}

// interpreter extracts the entries of one parameter by evaluating its expression.
type interpreter struct {
	parameter *fhir.Parameter
	branches  []*fhirpath.Program
	keys      []fhir.Key // of each branch
	composite []fhir.Composite
	parts     [][]*fhirpath.Program // of each composite branch
}

// TestCompiledAndInterpretedAgree extracts every HL7 example twice: with the
// generated code, and by evaluating the expression of each SearchParameter with
// this engine.
func TestCompiledAndInterpretedAgree(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	components := componentExpressions(t)
	byType := map[string][]*interpreter{}
	for i := range index.Parameters {
		p := &index.Parameters[i]
		if p.Unsupported != "" || p.Code == "_id" || p.Code == "_lastUpdated" || p.Expression == "" || p.Type == fhir.SearchSpecial {
			continue // indexed by code of their own: _text, _content, near
		}
		byType[p.Base] = append(byType[p.Base], newInterpreter(t, p, components))
	}
	resources, entries := 0, 0
	reported := map[string]bool{}
	for _, b := range all {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			continue // faulty examples are the codec's tests' business
		}
		resources++
		typ := r.Type().Name
		var compiled fhir.Index
		index.Extract(&compiled, r)
		compiled.Finish()
		all := map[int64]bool{}
		ordered := map[string]bool{}
		for _, ip := range byType[typ] {
			name := typ + "." + ip.parameter.Code
			var x fhir.Index
			x.ResourceType, x.Resource = typ, r
			if err := ip.extract(&x, r); err != nil {
				t.Fatalf("%s of %s/%s: %v", name, typ, r.Header().ID.Text, err)
			}
			ip.shareParts(&x, &compiled)
			x.Finish()
			entries += len(x.Terms)
			var missing []string
			for _, term := range x.Terms {
				all[term] = true
				if !slices.Contains(compiled.Terms, term) {
					missing = append(missing, fmt.Sprintf("term %x", term))
				}
			}
			for _, e := range orderedEntries(&x) {
				ordered[e] = true
				if !slices.Contains(orderedEntries(&compiled), e) {
					missing = append(missing, e)
				}
			}
			if len(missing) > 0 && !reported[name] {
				reported[name] = true
				t.Errorf("%s of %s/%s: the expression %s gives what the compiled code does not: %v", name, typ, r.Header().ID.Text, ip.parameter.Expression, missing)
			}
		}
		extra := 0
		for _, term := range compiled.Terms {
			if !all[term] {
				extra++
			}
		}
		for _, e := range orderedEntries(&compiled) {
			if !ordered[e] {
				extra++
			}
		}
		if name := typ + ".*"; extra > 0 && !reported[name] {
			reported[name] = true
			t.Errorf("%s/%s: the compiled code has %d entries that no expression gives", typ, r.Header().ID.Text, extra)
		}
	}
	if resources < 600 || entries < 10_000 {
		t.Errorf("compared only %d resources with %d terms", resources, entries)
	}
	t.Logf("%d resources, %d terms, %d parameters", resources, entries, len(index.Parameters))
}

func orderedEntries(x *fhir.Index) []string {
	var list []string
	for _, e := range x.Dates {
		list = append(list, fmt.Sprintf("date %+v", e))
	}
	for _, e := range x.Numbers {
		list = append(list, fmt.Sprintf("number %+v", e))
	}
	for _, e := range x.Quantities {
		list = append(list, fmt.Sprintf("quantity %+v", e))
	}
	for _, e := range x.Strings {
		list = append(list, fmt.Sprintf("string %+v", e))
	}
	for _, e := range x.Texts {
		list = append(list, fmt.Sprintf("text %+v", e))
	}
	return list
}

// componentExpressions are the expressions of composite parameters, by URL.
func componentExpressions(t *testing.T) map[string][]string {
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, b := range lib.All("SearchParameter") {
		var p struct {
			URL       string
			Component []struct{ Expression string }
		}
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Component {
			out[p.URL] = append(out[p.URL], c.Expression)
		}
	}
	for url, expressions := range corrected {
		out[url] = expressions
	}
	return out
}

func newInterpreter(t *testing.T, p *fhir.Parameter, components map[string][]string) *interpreter {
	ip := &interpreter{parameter: p}
	opts := fhirpath.Options{Model: r4.Model, Input: r4.Model.Resources[p.Base].Type(), CollectionAs: true}
	e, err := fhirpath.Parse(p.Expression)
	if err != nil {
		t.Fatalf("%s.%s: %v", p.Base, p.Code, err)
	}
	branches := fhirpath.Branches(e.Root)
	for i, b := range branches {
		program, err := fhirpath.CompileExpr(&fhirpath.Expr{Source: p.Expression, Root: b}, opts)
		if err != nil {
			t.Fatalf("%s.%s: %v", p.Base, p.Code, err)
		}
		if len(p.Composites) > 0 {
			if i >= len(p.Composites) {
				break
			}
			var parts []*fhirpath.Program
			for _, c := range components[p.URL] {
				part, err := fhirpath.Compile(c, fhirpath.Options{Model: r4.Model, CollectionAs: true})
				if err != nil {
					t.Fatalf("%s.%s: %v", p.Base, p.Code, err)
				}
				parts = append(parts, part)
			}
			ip.branches = append(ip.branches, program)
			ip.composite = append(ip.composite, p.Composites[i])
			ip.parts = append(ip.parts, parts)
			continue
		}
		key, ok := keyOf(p, b, i, len(branches))
		if !ok {
			continue // this branch has no form as the parameter's type
		}
		ip.branches = append(ip.branches, program)
		ip.keys = append(ip.keys, key)
	}
	return ip
}

// keyOf finds the key of a branch: by its canonical path, or where the parameter
// has as many keys as branches by its position.
func keyOf(p *fhir.Parameter, b fhirpath.Node, i, branches int) (fhir.Key, bool) {
	path := strings.ReplaceAll(fhirpath.CanonicalPath(b), ".where(resolve() is", "\x00")
	path, _, _ = strings.Cut(path, "\x00")
	if key := fhir.KeyOf(p.Type, path); slices.Contains(p.Keys, key) {
		return key, true
	}
	if len(p.Keys) == branches {
		return p.Keys[i], true
	}
	if len(p.Keys) == 1 && i == 0 {
		return p.Keys[0], true
	}
	return 0, false
}

// system is the implicit system of a branch.
func (ip *interpreter) system(branch int) string {
	if i := slices.Index(ip.parameter.Keys, ip.keys[branch]); i >= 0 && i < len(ip.parameter.Systems) {
		return ip.parameter.Systems[i]
	}
	return ""
}

func (ip *interpreter) extract(x *fhir.Index, r fhir.Resource) error {
	for i, b := range ip.branches {
		c, err := b.Eval(nil, fhir.NodeOf(r))
		if err != nil {
			return err
		}
		for _, v := range c {
			if ip.composite == nil {
				value(x, ip.parameter.Type, ip.system(i), ip.keys[i], v)
				continue
			}
			node, _ := v.Node()
			switch c := ip.composite[i]; {
			case c.Key != 0:
				x.Open(c.Key, len(ip.parts[i]))
			case c.Coded != 0:
				x.OpenCoded(c.Coded, len(ip.parts[i]))
			default:
				continue // the parts are parameters of their own
			}
			for j, part := range ip.parts[i] {
				if j > 0 {
					x.Next()
				}
				values, err := part.Eval(&fhirpath.Context{Resource: fhir.NodeOf(r)}, node)
				if err != nil {
					return err
				}
				for _, pv := range values {
					value(x, ip.composite[i].Parts[j].Type, ip.composite[i].Parts[j].System, 0, pv)
				}
			}
			x.Close()
		}
	}
	return nil
}

// shareParts gives the entries that the compiled code has under the keys of a
// value's parts those keys: the engine knows of no parts.
func (ip *interpreter) shareParts(x, compiled *fhir.Index) {
	p := ip.parameter
	for i, whole := range p.PartOf {
		part := p.Keys[i]
		if whole == 0 {
			continue
		}
		for i, term := range x.Terms {
			if other := part.Term(fhir.Value(whole.Term(fhir.Value(term)))); term != whole.Term(fhir.ValuePresent()) &&
				!slices.Contains(compiled.Terms, term) && slices.Contains(compiled.Terms, other) {
				x.Terms[i] = other
			}
		}
		for i, e := range x.Strings {
			of, to := whole, part
			if e.Key == fhir.WordKey(whole) {
				of, to = fhir.WordKey(whole), fhir.WordKey(part)
			}
			other := fhir.StringEntry{Key: to, Text: e.Text, Word: e.Word}
			if e.Key == of && !slices.Contains(compiled.Strings, e) && slices.Contains(compiled.Strings, other) {
				x.Strings[i] = other
			}
		}
		// A name of nothing but parts is there by those.
		x.Terms = slices.DeleteFunc(x.Terms, func(term int64) bool {
			return term == whole.Term(fhir.ValuePresent()) && !slices.Contains(compiled.Terms, term) &&
				slices.Contains(compiled.Terms, part.Term(fhir.ValuePresent()))
		})
	}
}

// value indexes one result; a code has the system that the parameter knows.
func value(x *fhir.Index, typ fhir.SearchType, system string, key fhir.Key, v fhirpath.Value) {
	e := v.Element()
	if code, ok := e.(*fhir.Code); ok && system != "" {
		x.CodeOf(key, system, code.Text)
		return
	}
	index.Value(x, typ, key, e)
}
