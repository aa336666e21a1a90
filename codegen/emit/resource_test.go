package emit_test

import (
	"os"
	"reflect"
	"testing"

	"kiln/codegen/definition"
	"kiln/codegen/ir"
	"kiln/gen/r4"
	"kiln/server/fhir"
)

func build(t *testing.T) *ir.Model {
	t.Helper()
	set, err := definition.Load(os.DirFS("../../definitions"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ir.Build(set)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestModelListsEveryType(t *testing.T) {
	m := build(t)
	if got, want := len(r4.Model.Resources), len(m.Resources); got != want || got < 146 {
		t.Errorf("Model has %d resource types, the definitions have %d, R4 has 146", got, want)
	}
	for _, typ := range m.Resources {
		r := r4.Model.Resources[typ.Name]
		if r == nil {
			t.Errorf("Model lacks the resource type %s", typ.Name)
		} else if got := r.Type(); got.Name != typ.Name || got.Kind != fhir.ResourceKind {
			t.Errorf("type of %s is %s, kind %d", typ.Name, got.Name, got.Kind)
		}
	}
	for _, d := range m.DatatypeRefs() {
		e := r4.Model.Datatypes[d.Name]
		if e == nil {
			t.Errorf("Model lacks the datatype %s", d.Name)
		} else if e.Type().Name != d.Name {
			t.Errorf("datatype %s is named %s", d.Name, e.Type().Name)
		}
	}
}

// TestTablesDescribeTheStructs compares each Type with its struct by reflection:
// the codec reads and writes memory by these offsets.
func TestTablesDescribeTheStructs(t *testing.T) {
	seen := map[*fhir.Type]bool{}
	var check func(e fhir.Element)
	check = func(e fhir.Element) {
		typ := e.Type()
		if seen[typ] || typ.Kind.Primitive() {
			return
		}
		seen[typ] = true
		rt := reflect.TypeOf(e).Elem()
		if rt.Size() != typ.Size {
			t.Errorf("%s: Size is %d, the struct has %d bytes", typ.Name, typ.Size, rt.Size())
		}
		if got := reflect.TypeOf(typ.New()); got != reflect.TypeOf(e) {
			t.Errorf("%s: New returns %v", typ.Name, got)
		}
		covered := map[uintptr]string{}
		for i := range typ.Fields {
			f := &typ.Fields[i]
			if other, ok := covered[f.Offset]; ok {
				t.Errorf("%s: %s and %s have one offset", typ.Name, other, f.Name)
			}
			covered[f.Offset] = f.Name
			var at reflect.Type
			for _, sf := range reflect.VisibleFields(rt) {
				if !sf.Anonymous && sf.Name != "Raw" && offset(rt, sf) == f.Offset {
					at = sf.Type
				}
			}
			if want := layout(f); at != want {
				t.Errorf("%s.%s: at its offset lies %v, want %v", typ.Name, f.Name, at, want)
			}
			for _, c := range f.Choices {
				check(c)
			}
			if f.Of != nil {
				check(f.Of)
			}
		}
		want := rt.NumField()
		if got := len(typ.Fields); got != want {
			t.Errorf("%s: table has %d fields, the struct %d", typ.Name, got, want)
		}
	}
	for _, r := range r4.Model.Resources {
		check(r)
	}
	for _, d := range r4.Model.Datatypes {
		check(d)
	}
	if len(seen) < 600 {
		t.Errorf("only %d types were reached", len(seen))
	}
}

// offset is the offset of a field, with the embedded header.
func offset(rt reflect.Type, sf reflect.StructField) uintptr {
	var off uintptr
	for _, i := range sf.Index {
		off += rt.Field(i).Offset
		rt = rt.Field(i).Type
	}
	return off
}

// layout is the Go type that model.go promises at a field's offset.
func layout(f *fhir.Field) reflect.Type {
	var one reflect.Type
	switch {
	case f.AnyResource:
		one = reflect.TypeFor[fhir.Resource]()
	case f.Choice():
		one = reflect.TypeFor[fhir.Element]()
	default:
		one = reflect.TypeOf(f.Of) // *T
		if f.Of.Type().Kind.Primitive() || f.Repeats() {
			one = one.Elem()
		}
	}
	if f.Repeats() {
		return reflect.SliceOf(one)
	}
	return one
}
