package definitions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// expand gives a StructureDefinition that has only a differential its snapshot:
// the elements of its base, then its own, each backbone element with the
// elements of BackboneElement. That is all a specialisation needs; constraints
// on inherited elements are not looked at. Other definitions come back as they
// are.
func (l *Library) expand(definition []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(definition))
	dec.UseNumber()
	var d map[string]any
	if err := dec.Decode(&d); err != nil {
		return nil, err
	}
	if d["resourceType"] != "StructureDefinition" || d["snapshot"] != nil {
		return definition, nil
	}
	typ, _ := d["type"].(string)
	own := elements(d, "differential")
	if typ == "" || len(own) == 0 || own[0]["path"] != typ {
		return nil, errors.New("a StructureDefinition needs a type and a differential that begins with it")
	}
	base, _ := d["baseDefinition"].(string)
	inherited, err := l.snapshot(base)
	if err != nil {
		return nil, err
	}
	backbone, err := l.snapshot("http://hl7.org/fhir/StructureDefinition/BackboneElement")
	if err != nil {
		return nil, err
	}
	out := rebase(inherited, typ)
	root := out[0]
	for k, v := range own[0] {
		if k != "constraint" {
			root[k] = v
		}
	}
	if c, ok := own[0]["constraint"].([]any); ok {
		list, _ := root["constraint"].([]any)
		root["constraint"] = append(slices.Clone(list), c...)
	}
	for _, e := range own[1:] {
		path, _ := e["path"].(string)
		e["id"] = path
		out = append(out, e)
		if isBackbone(e) {
			out = append(out, rebase(backbone, path)[1:]...)
		}
	}
	list := make([]any, len(out))
	for i, e := range out {
		completeElement(e)
		list[i] = e
	}
	d["snapshot"] = map[string]any{"element": list}
	delete(d, "differential")
	var b bytes.Buffer
	if err := writeObject(&b, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// completeElement adds to an element of a snapshot what every one has: a definition, and the element that it
// is based on, which for an own element is itself.
// Spec: https://hl7.org/fhir/R4/structuredefinition.html#invs, sdf-3 and sdf-8b.
func completeElement(e map[string]any) {
	if e["definition"] == nil && e["short"] != nil {
		e["definition"] = e["short"]
	}
	if e["base"] == nil {
		e["base"] = map[string]any{"path": e["path"], "min": e["min"], "max": e["max"]}
	}
}

func (l *Library) snapshot(url string) ([]map[string]any, error) {
	b, ok := l.Resolve(url)
	if !ok {
		return nil, fmt.Errorf("base %s is not defined", url)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var d map[string]any
	if err := dec.Decode(&d); err != nil {
		return nil, err
	}
	list := elements(d, "snapshot")
	if len(list) == 0 {
		return nil, fmt.Errorf("base %s has no snapshot", url)
	}
	return list, nil
}

func elements(d map[string]any, part string) []map[string]any {
	m, _ := d[part].(map[string]any)
	list, _ := m["element"].([]any)
	var out []map[string]any
	for _, e := range list {
		if e, ok := e.(map[string]any); ok {
			out = append(out, e)
		}
	}
	return out
}

// rebase copies elements of one type as elements at path.
func rebase(list []map[string]any, path string) []map[string]any {
	var out []map[string]any
	for _, e := range list {
		e = maps.Clone(e)
		old, _ := e["path"].(string)
		rest := ""
		if i := strings.IndexByte(old, '.'); i >= 0 {
			rest = old[i:]
		}
		e["path"], e["id"] = path+rest, path+rest
		out = append(out, e)
	}
	return out
}

func isBackbone(e map[string]any) bool {
	types, _ := e["type"].([]any)
	if len(types) != 1 {
		return false
	}
	t, _ := types[0].(map[string]any)
	return t["code"] == "BackboneElement"
}
