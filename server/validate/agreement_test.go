package validate

import (
	"context"
	"slices"
	"strings"
	"testing"

	"kiln/definitions"
	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/constraint"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/terminology"
)

// TestCompiledAndInterpretedAgree validates every HL7 example, and each of them
// with some of its elements taken away, twice: by the plan of its type, and with
// the type's own definition interpreted like a profile. Both find the same in
// what that definition says: the elements of the resource and of its backbone
// elements.
func TestCompiledAndInterpretedAgree(t *testing.T) {
	lib, err := definitions.Open(definitions.FS)
	if err != nil {
		t.Fatal(err)
	}
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	codes, err := terminology.New(terminology.Config{Packages: definitions.Embedded})
	if err != nil {
		t.Fatal(err)
	}
	v := New(r4.Model, lib, codes)
	interpreted := map[string]*profile{}
	compared, found := 0, 0
	for _, b := range all {
		r, err := fhir.Decode(r4.Model, b)
		if err != nil {
			continue
		}
		typ := r.Type().Name
		p, ok := interpreted[typ]
		if !ok {
			sd, known := load[*r4.StructureDefinition](r4.Model, lib, coreDefinitions+typ)
			if known {
				if p, err = v.profiles.prepare(sd, true); err != nil {
					t.Fatal(err)
				}
			}
			interpreted[typ] = p
		}
		if p == nil {
			t.Fatalf("%s has no definition", typ)
		}
		for _, variant := range variants(b) {
			r, err := fhir.Decode(r4.Model, variant)
			if err != nil {
				continue
			}
			compared++
			n := fhir.NodeOf(r)
			start := func() *run {
				u := &run{v: v}
				u.begin(context.Background(), r, &Options{})
				u.path = append(u.path, segment{typ, -1, n.T})
				u.fp.Resource, u.fp.RootResource = n, n
				return u
			}
			one, two := start(), start()
			one.against(n, p.root)
			two.element(n, v.plans.planOf(n.T))
			got, want := inOwnElements(one.issues, r.Type()), inOwnElements(two.issues, r.Type())
			found += len(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s/%s:\ninterpreted\n\t%s\ncompiled\n\t%s", typ, r.Header().ID.Text, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
		}
	}
	if compared < 5000 || found < 1000 {
		t.Errorf("compared %d resources with %d issues", compared, found)
	}
	t.Logf("%d resources, %d issues", compared, found)
}

// variants are a resource as it is, and without each of its properties in turn.
func variants(b []byte) [][]byte {
	list := [][]byte{b}
	depth, start, inString := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 1:
			if start > 0 && len(list) < 12 {
				list = append(list, append(slices.Clone(b[:start]), b[i:]...))
			}
			start = i
		}
	}
	return list
}

// inOwnElements keeps the issues about elements that the resource's own
// definition has, without those that only the walk reports or words otherwise.
func inOwnElements(issues []outcome.Issue, t *fhir.Type) []string {
	var list []string
	for _, i := range issues {
		owner, rest := t, strings.Split(i.Expression, ".")[1:]
		own := true
		for n, name := range rest {
			name, _, _ = strings.Cut(name, "[")
			f := owner.Field(name)
			if f == nil {
				own = false
				break
			}
			if f.Of == nil {
				own = n == len(rest)-1
				break
			}
			owner = f.Of.Type()
			if n < len(rest)-1 && !strings.Contains(owner.Name, ".") {
				own = false
				break
			}
		}
		text := i.Diagnostics
		// A missing element of a datatype belongs to the datatype's definition.
		if strings.Contains(text, "is required:") && owner != t && !strings.Contains(owner.Name, ".") {
			own = false
		}
		if strings.HasPrefix(text, "constraint ") {
			key, _, _ := strings.Cut(strings.TrimPrefix(text, "constraint "), ":")
			if constraint.Walked[key] != "" || owner != t && !strings.Contains(owner.Name, ".") && !strings.HasPrefix(key, "org-") {
				own = false
			}
		}
		if strings.HasPrefix(text, "fullUrl ") || strings.HasPrefix(text, "item ") {
			own = false // said in prose only
		}
		if strings.HasPrefix(text, "expected a reference to ") {
			text = "reference type"
		}
		if own {
			list = append(list, i.Expression+": "+text)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
