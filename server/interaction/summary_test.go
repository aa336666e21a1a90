package interaction

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kiln/definitions"
	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
)

// definedElement is an ElementDefinition, as far as summaries need it.
type definedElement struct {
	Path                  string
	Min                   int
	IsSummary, IsModifier bool
	ContentReference      string
	Type                  []struct{ Code string }
}

// definedElements are the elements of R4's types by path: Patient.name, HumanName.family.
func definedElements(t *testing.T) map[string]*definedElement {
	t.Helper()
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*definedElement{}
	for _, b := range lib.All("StructureDefinition") {
		var d struct {
			Derivation, Type, URL string
			Snapshot              struct{ Element []*definedElement }
		}
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		if d.Derivation == "constraint" || !strings.HasSuffix(d.URL, "/"+d.Type) {
			continue
		}
		for _, e := range d.Snapshot.Element {
			out[e.Path] = e
		}
	}
	return out
}

// element finds the definition of a property, and the path that its own are under.
func element(all map[string]*definedElement, under, property string) (e *definedElement, path string) {
	property = strings.TrimPrefix(property, "_")
	if e = all[under+"."+property]; e != nil {
		path = e.Path
		if ref := strings.TrimPrefix(e.ContentReference, "#"); ref != "" {
			return e, ref
		}
		if len(e.Type) == 1 && e.Type[0].Code != "BackboneElement" && e.Type[0].Code != "Element" {
			path = e.Type[0].Code
		}
		return e, path
	}
	for i := range property {
		if e = all[under+"."+property[:i]+"[x]"]; e != nil {
			return e, property[i:]
		}
	}
	return nil, ""
}

// summaryOf is the summary of an object whose elements are defined under a path.
func summaryOf(all map[string]*definedElement, under string, object map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range object {
		e, path := element(all, under, name)
		if e == nil || !e.IsSummary && !e.IsModifier && e.Min == 0 {
			continue
		}
		if path != "Resource" && path != "Extension" && !strings.HasPrefix(name, "_") {
			left := summaryOfValue(all, path, value)
			if left == nil && e.Min == 0 {
				continue
			}
			if left != nil {
				value = left
			}
		}
		out[name] = value
	}
	return out
}

// summaryOfValue is nil where nothing is left.
func summaryOfValue(all map[string]*definedElement, path string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		if left := summaryOf(all, path, value); len(left) > 0 {
			return left
		}
		return nil
	case []any:
		var list []any
		for _, v := range value {
			if left := summaryOfValue(all, path, v); left != nil || v == nil {
				list = append(list, left)
			}
		}
		if list == nil {
			return nil
		}
		return list
	}
	return value
}

func object(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var out map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// search.html#summary: of every HL7 example and at every level the summary has the elements
// that the StructureDefinitions name, and is a resource that can be read.
func TestSummaryOfEveryExample(t *testing.T) {
	all := definedElements(t)
	list, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Model: r4.Model}
	reduce := s.newReducer(search.SummaryTrue, nil)
	n, before, after := 0, 0, 0
	for _, raw := range list {
		r, err := fhir.Decode(r4.Model, raw)
		if err != nil {
			continue // faulty examples are the codec's business
		}
		typ := r.Type().Name
		body, err := fhir.Splice(raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		stored := body.Render(nil, "x", 1, time.Unix(0, 0))
		left := reduce(fhir.Version{ResourceType: typ, Body: stored}).Body
		if _, err := fhir.Decode(r4.Model, left); err != nil {
			t.Errorf("%s/%s: the summary cannot be read: %v", typ, r.Header().ID.Text, err)
			continue
		}
		whole, got := object(t, stored), object(t, left)
		want := summaryOf(all, typ, whole)
		for _, name := range []string{"resourceType", "id"} {
			want[name] = whole[name]
		}
		if !strings.Contains(fmt.Sprint(got["meta"]), "SUBSETTED") {
			t.Errorf("%s/%s: the tag SUBSETTED is missing", typ, r.Header().ID.Text)
		}
		want["meta"] = got["meta"]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s/%s:\n%s", typ, r.Header().ID.Text, diff)
		}
		n, before, after = n+1, before+len(stored), after+len(left)
	}
	t.Logf("%d resources, %d bytes become %d", n, before, after)
	if n < 600 {
		t.Errorf("only %d examples", n)
	}
}
