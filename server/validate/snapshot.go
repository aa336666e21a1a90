package validate

import (
	"fmt"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

// maxElements bounds a snapshot.
const maxElements = 5000

// snapshot returns the elements of a definition's snapshot; of one that has only
// a differential, the elements of its base with the differential applied. Every
// element has an id. It fails where the base is not known, bases go in a circle, or
// the differential has an element that the base has not.
// Spec: https://hl7.org/fhir/R4/profiling.html#snapshot.
func (v *Validator) snapshot(sd *r4.StructureDefinition, depth int) ([]r4.ElementDefinition, error) {
	if sd.Snapshot != nil && len(sd.Snapshot.Element) > 0 {
		return withIDs(sd.Snapshot.Element), nil
	}
	if sd.Differential == nil {
		return nil, fmt.Errorf("%s has neither snapshot nor differential", sd.URL.Text)
	}
	if depth > maxBases {
		return nil, fmt.Errorf("its bases go in a circle, or are more than %d", maxBases)
	}
	base, ok := load[*r4.StructureDefinition](v.plans.model, v.definitions, sd.BaseDefinition.Text)
	if !ok {
		return nil, fmt.Errorf("its base %s is not known", sd.BaseDefinition.Text)
	}
	elements, err := v.snapshot(base, depth+1)
	if err != nil {
		return nil, err
	}
	s := snapshotter{v: v, elements: slices.Clone(elements), base: elements, depth: depth}
	for _, d := range withIDs(sd.Differential.Element) {
		i := s.resolve(d.ID.Text)
		if i < 0 {
			return nil, fmt.Errorf("%s has no element %s", base.URL.Text, d.ID.Text)
		}
		if len(s.elements) > maxElements {
			return nil, fmt.Errorf("its snapshot has more than %d elements", maxElements)
		}
		merge(&s.elements[i], &d)
	}
	return s.elements, nil
}

// maxBases bounds profiles on profiles.
const maxBases = 20

// withIDs completes the ids of elements that have only a path and a slice name.
func withIDs(list []r4.ElementDefinition) []r4.ElementDefinition {
	list = slices.Clone(list)
	slice := map[string]string{} // path -> id of the current slice
	for i := range list {
		e := &list[i]
		path := e.Path.Text
		id := path
		// The longest path above that has an id of its own.
		for p := path; ; {
			dot := strings.LastIndexByte(p, '.')
			if dot < 0 {
				break
			}
			p = p[:dot]
			if above, ok := slice[p]; ok {
				id = above + path[len(p):]
				break
			}
		}
		if e.SliceName.Text != "" {
			id += ":" + e.SliceName.Text
		}
		if e.ID.Text == "" {
			e.ID.Text = id
		}
		for p := range slice {
			if strings.HasPrefix(p, path+".") {
				delete(slice, p)
			}
		}
		slice[path] = e.ID.Text
	}
	return list
}

// snapshotter applies a differential.
type snapshotter struct {
	v        *Validator
	elements []r4.ElementDefinition
	base     []r4.ElementDefinition // the snapshot of the base
	depth    int                    // how many definitions lead to this one
}

func (s *snapshotter) find(id string) int {
	return slices.IndexFunc(s.elements, func(e r4.ElementDefinition) bool {
		return e.ID.Text == id || strings.HasSuffix(e.ID.Text, "[x]") && strings.TrimSuffix(e.ID.Text, "[x]") == id
	})
}

// end is the index behind element i and all below it.
func (s *snapshotter) end(i int) int {
	id := s.elements[i].ID.Text
	j := i + 1
	for j < len(s.elements) && strings.HasPrefix(s.elements[j].ID.Text, id+".") {
		j++
	}
	return j
}

// resolve returns the index of the element with an id of the differential, -1 if there can
// be none. It makes elements that the base lacks: the elements of a datatype below the
// element of that type, slices, and the slice of value[x] that "valueQuantity" means.
func (s *snapshotter) resolve(id string) int {
	if i := s.find(id); i >= 0 {
		return i
	}
	segments := strings.Split(id, ".")
	at := 0
	if s.elements[0].ID.Text != segments[0] {
		return -1
	}
	for _, name := range segments[1:] {
		if len(s.elements) > maxElements {
			return -1
		}
		parent := s.elements[at].ID.Text
		next := s.find(parent + "." + name)
		if next < 0 && s.open(at) {
			next = s.find(parent + "." + name)
		}
		base, _, sliced := strings.Cut(name, ":")
		switch {
		case next >= 0:
		case sliced:
			if whole := s.sliced(parent+"."+base, strings.TrimPrefix(name, base)); whole >= 0 {
				next = s.slice(whole, s.elements[s.find(parent+"."+base)].ID.Text+strings.TrimPrefix(name, base))
			}
		default:
			next = s.choice(at, name)
		}
		if next < 0 {
			return -1
		}
		at = next
	}
	return at
}

// sliced returns the index of the element that a new slice, such as ":mrn/official", of the
// element with an id belongs to: the slice :mrn, or the element itself. It is -1 where
// there is none.
func (s *snapshotter) sliced(id, slice string) int {
	if slash := strings.LastIndexByte(slice, '/'); slash > 0 {
		if i := s.find(id); i >= 0 {
			if i = s.find(s.elements[i].ID.Text + slice[:slash]); i >= 0 {
				return i
			}
		}
	}
	return s.find(id)
}

// choice makes the slice of a choice element below parent that name, such as
// valueQuantity, stands for. The choice has no other types then.
func (s *snapshotter) choice(parent int, name string) int {
	for i := parent + 1; i < s.end(parent); i++ {
		id := s.elements[i].ID.Text
		prefix, ok := strings.CutSuffix(id, "[x]")
		if !ok || strings.Count(id, ".") != strings.Count(s.elements[parent].ID.Text, ".")+1 {
			continue
		}
		rest, ok := strings.CutPrefix(s.elements[parent].ID.Text+"."+name, prefix)
		if !ok || rest == "" {
			continue
		}
		for _, t := range s.elements[i].Type_ {
			if !strings.EqualFold(t.Code.Text, rest) {
				continue
			}
			if j := s.find(id + ":" + name); j >= 0 {
				return j
			}
			if s.elements[i].Slicing == nil {
				s.elements[i].Type_ = nil
			}
			s.elements[i].Type_ = append(slices.Clip(s.elements[i].Type_), t)
			j := s.slice(i, id+":"+name)
			s.elements[j].Type_ = []r4.ElementDefinitionType{t}
			return j
		}
	}
	return -1
}

// slice copies the element at whole, with its children, to a new slice after it and its
// existing slices.
func (s *snapshotter) slice(whole int, id string) int {
	from := s.elements[whole].ID.Text
	copied := slices.Clone(s.elements[whole:s.end(whole)])
	for i := range copied {
		copied[i].ID.Text = id + strings.TrimPrefix(copied[i].ID.Text, from)
	}
	copied[0].SliceName.Text = id[strings.LastIndexByte(id, ':')+1:]
	copied[0].Slicing = nil
	copied[0].Min.Text = "0"
	if e := &s.elements[whole]; e.Slicing == nil {
		// Extensions are distinguished by their url, the types of a choice by themselves.
		by, at := "value", "url"
		switch {
		case strings.HasSuffix(e.Path.Text, "[x]"):
			by, at = "type", "$this"
		case !strings.HasSuffix(e.Path.Text, "xtension"):
			by = ""
		}
		if by != "" {
			e.Slicing = &r4.ElementDefinitionSlicing{Discriminator: []r4.ElementDefinitionSlicingDiscriminator{{}}}
			e.Slicing.Discriminator[0].Type_.Text, e.Slicing.Discriminator[0].Path.Text = by, at
			e.Slicing.Rules.Text = "open"
		}
	}
	at := s.end(whole)
	for at < len(s.elements) && (strings.HasPrefix(s.elements[at].ID.Text, from+":") || strings.HasPrefix(s.elements[at].ID.Text, from+"/")) {
		at = s.end(at)
	}
	s.elements = slices.Insert(s.elements, at, copied...)
	return at
}

// open adds the elements of its type below element i, unless they are there.
func (s *snapshotter) open(i int) bool {
	if s.end(i) > i+1 {
		return true
	}
	e := s.elements[i]
	list := s.content(&e)
	if len(list) == 0 {
		return false
	}
	list = slices.Clone(list)
	root, rootPath := list[0].ID.Text, list[0].Path.Text
	for j := range list {
		list[j].ID.Text = e.ID.Text + strings.TrimPrefix(list[j].ID.Text, root)
		list[j].Path.Text = e.Path.Text + strings.TrimPrefix(list[j].Path.Text, rootPath)
	}
	s.elements = slices.Insert(s.elements, i+1, list[1:]...)
	return true
}

// content returns e and the elements below it, as its type profile defines them. Where
// that profile cannot be read, its type defines them. Where e has a contentReference,
// the base's element of that name defines them. It is nil where none are known.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.contentReference.
func (s *snapshotter) content(e *r4.ElementDefinition) []r4.ElementDefinition {
	if url, id, ok := strings.Cut(e.ContentReference.Text, "#"); ok {
		base := snapshotter{v: s.v, elements: s.base}
		if sd, ok := load[*r4.StructureDefinition](s.v.plans.model, s.v.definitions, url); url != "" && ok && sd.Snapshot != nil {
			base.elements = withIDs(sd.Snapshot.Element)
		}
		i := base.find(id)
		if i < 0 {
			return nil
		}
		return base.elements[i:base.end(i)]
	}
	if len(e.Type_) != 1 {
		return nil
	}
	urls := []string{coreDefinitions + e.Type_[0].Code.Text}
	if p := e.Type_[0].Profile; len(p) == 1 {
		urls = []string{p[0].Text, urls[0]}
	}
	for _, url := range urls {
		if sd, ok := load[*r4.StructureDefinition](s.v.plans.model, s.v.definitions, url); ok {
			if list, err := s.v.snapshot(sd, s.depth+1); err == nil {
				return list
			}
		}
	}
	return nil
}

// merge lays a differential element over the one it constrains.
func merge(into, d *r4.ElementDefinition) {
	set := func(to *fhir.Primitive, from fhir.Primitive) {
		if from.Text != "" {
			to.Text = from.Text
		}
	}
	set(&into.Min.Primitive, d.Min.Primitive)
	set(&into.Max.Primitive, d.Max.Primitive)
	set(&into.SliceName.Primitive, d.SliceName.Primitive)
	set(&into.MaxLength.Primitive, d.MaxLength.Primitive)
	if d.Slicing != nil {
		into.Slicing = d.Slicing
	}
	if len(d.Type_) > 0 {
		into.Type_ = d.Type_
	}
	if d.Fixed != nil {
		into.Fixed = d.Fixed
	}
	if d.Pattern != nil {
		into.Pattern = d.Pattern
	}
	if d.MinValue != nil {
		into.MinValue = d.MinValue
	}
	if d.MaxValue != nil {
		into.MaxValue = d.MaxValue
	}
	if d.Binding != nil {
		into.Binding = d.Binding
	}
	into.Constraint = append(slices.Clone(into.Constraint), d.Constraint...)
}
