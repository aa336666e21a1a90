package cache

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// following is a memory of one state, which follows the type 3.
func following(t *testing.T) *Memory {
	t.Helper()
	m := New(1<<20, time.Now)
	if _, ok := m.FindAddPosition("5:5: index", 3, "Observation"); !ok {
		t.Fatal("a state cannot be followed")
	}
	m.state, m.at = &state{text: "5:5: index", end: 5, index: "index"}, time.Now()
	return m
}

const rid = 3<<48 | 1

func observation(version int) *match.Resource {
	return &match.Resource{Type: "Observation", ID: "a", VersionID: version, Index: &fhir.Index{Terms: []int64{7}, Strings: []fhir.StringEntry{{Key: 1, Text: "text"}}}}
}

// changedTo is the answer of the statement for a position: the row of version 1 is there.
func changedTo(p Position) Changes {
	return Changes{Position: p, Followed: true, Now: "6:6: index", Rows: "844424930131969/1 "}
}

// write notes a row of one version.
func (w *Writing) write(rid int64, r *match.Resource) {
	row := w.BeginRow(1)
	row.AddVersion(rid, r.VersionID, r)
	row.KeepRow()
}

// The server's own writes are brought in as they were written, and then not named again.
func TestWrittenIsBrought(t *testing.T) {
	t.Parallel()
	m := following(t)
	w := m.BeginWriting()
	r := observation(1)
	w.write(rid, r)
	r.Index.Terms[0], r.Index.Strings[0].Text = 8, "other" // the index is used again
	w.EndWriting(true)
	p := m.position()
	if len(p.Written) != 1 || p.Written[0].RID != rid {
		t.Fatalf("written are %v", p.Written)
	}
	m.ApplyChanges(changedTo(p))
	if len(m.steps) != 1 || m.state.text != "6:6: index" {
		t.Fatalf("%d steps, state %q", len(m.steps), m.state.text)
	}
	got := m.steps[0].changed[rid]
	if got == nil || !slices.Equal(got.Index.Terms, []int64{Every, 7}) || got.Index.Strings[0].Text != "text" || len(got.Index.Dates) != 1 {
		t.Errorf("brought is %+v", got)
	}
	if p := m.position(); len(p.Written) > 0 {
		t.Errorf("still written are %v", p.Written)
	}
}

// The cache keeps no part of the text that a resource was read from: that is the body of a
// whole Bundle, and 8,000 of them are gigabytes.
func TestWrittenKeepsNoBody(t *testing.T) {
	t.Parallel()
	const size = 1 << 16
	body := strings.Repeat("12345", size/5)
	first := uintptr(unsafe.Pointer(unsafe.StringData(body)))
	m := following(t)
	w := m.BeginWriting()
	w.write(rid, &match.Resource{Type: body[:4], ID: body[1:3], VersionID: 1, Index: &fhir.Index{
		Numbers:    []fhir.NumberEntry{{Key: 1, Low: body[:2], High: body[:3]}},
		Quantities: []fhir.QuantityEntry{{Key: 1, Low: body[:2], High: body[:3], System: body[3:9], Code: body[2:5], Unit: body[:5]}},
		Strings:    []fhir.StringEntry{{Key: 1, Text: body[5:10]}},
	}})
	w.EndWriting(true)
	p := m.position()
	if len(p.Written) != 1 {
		t.Fatalf("written are %v", p.Written)
	}
	texts := 0
	var look func(v reflect.Value)
	look = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			texts++
			if at := uintptr(unsafe.Pointer(unsafe.StringData(v.String()))); v.Len() > 0 && at >= first && at < first+size {
				t.Errorf("%q is part of the body", v)
			}
		case reflect.Pointer:
			if !v.IsNil() && v.Type().Elem().PkgPath() != "time" {
				look(v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				look(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				look(v.Index(i))
			}
		}
	}
	look(reflect.ValueOf(p.Written[0].versions[0].r))
	if texts < 10 {
		t.Errorf("looked at %d texts", texts)
	}
}

// A version that others have seen already is awaited until this server knows how its commit has
// ended. One that it does not know to be committed brings nothing.
func TestWrittenIsAwaited(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := following(t)
			w := m.BeginWriting()
			w.write(rid, observation(1))
			brought := false
			go func() {
				m.ApplyChanges(changedTo(m.position()))
				brought = true
			}()
			synctest.Wait()
			if brought {
				t.Fatal("a commit is not awaited")
			}
			w.EndWriting(committed)
			synctest.Wait()
			if moved := m.state.text == "6:6: index"; !brought || moved != committed {
				t.Errorf("committed: %v, brought: %v, state %q", committed, brought, m.state.text)
			}
			if p := m.position(); len(p.Written) > 0 {
				t.Errorf("still written are %v", p.Written)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // nor one that never ends
		m := following(t)
		m.BeginWriting().write(rid, observation(1))
		m.ApplyChanges(changedTo(m.position()))
		if m.state.text != "5:5: index" {
			t.Errorf("state %q", m.state.text)
		}
	})
}

func TestWrittenIsKept(t *testing.T) {
	t.Parallel()
	if w := New(1<<20, time.Now).BeginWriting(); w != nil {
		t.Errorf("a memory that follows nothing keeps %v", w)
	}
	(*Writing)(nil).write(rid, observation(1))
	(*Writing)(nil).EndWriting(true)

	numbers := func(low, high string) *match.Resource {
		r := observation(1)
		r.Index.Quantities = []fhir.QuantityEntry{{Key: 1, Low: low, High: high}}
		return r
	}
	text := func(n int) *match.Resource {
		r := observation(1)
		r.Index.Strings[0].Text = strings.Repeat("x", n)
		return r
	}
	for _, c := range []struct {
		name string
		rid  int64
		r    *match.Resource
		want int
	}{
		{"one of a type that is followed", rid, observation(1), 1},
		{"one of a type that may be followed when it is brought in", 4<<48 | 1, observation(1), 1},
		{"a deletion", rid, nil, 1},
		{"a number", rid, numbers("-1.50", "-1.50"), 1},
		{"a number with an exponent, which the database writes without", rid, numbers("1e3", "1e3"), 0},
		{"a range that is open", rid, numbers("1", ""), 0},
		{"a large one", rid, text(maxWrittenBytes), 0},
		{"one that is not quite so large", rid, text(maxWrittenBytes - 64), 1},
	} {
		m := following(t)
		if row := m.BeginWriting().BeginRow(1); c.r == nil {
			row.AddVersion(c.rid, 2, nil)
			row.KeepRow()
		} else {
			row.AddVersion(c.rid, 1, c.r)
			row.KeepRow()
		}
		if p := m.position(); len(p.Written) != c.want {
			t.Errorf("%s: kept are %v", c.name, p.Written)
		}
	}

	m := following(t)
	m.BeginWriting().write(rid, observation(1))
	m.BeginWriting().write(rid, observation(2))
	m.written.brought(nil, map[int64]*match.Resource{rid: observation(1)})
	if p := m.position(); len(p.Written) != 1 || p.Written[0].Version != 2 {
		t.Errorf("after the version before was brought in %v are kept", p.Written)
	}
	m.written.brought(nil, map[int64]*match.Resource{rid: nil})
	if p := m.position(); len(p.Written) > 0 {
		t.Errorf("after the deletion was brought in %v are kept", p.Written)
	}
	m.BeginWriting().write(rid, observation(1))
	m.written.brought(m.position().Written, nil)
	if p := m.position(); len(p.Written) > 0 || m.written.n != 0 || m.written.bytes != 0 {
		t.Errorf("after the row was brought in %v are kept: %d versions in %d bytes", p.Written, m.written.n, m.written.bytes)
	}
	m.BeginWriting().write(rid, observation(1))
	m.Clear()
	if len(m.written.of) > 0 {
		t.Errorf("after all is forgotten %v are kept", m.written.of)
	}
	m = following(t)
	for n := range int64(maxWritten + 1) {
		m.written.add(&Written{RID: n, versions: make([]writtenVersion, 1)})
	}
	if w := m.BeginWriting(); len(m.written.of) > 0 || w != nil {
		t.Errorf("%d are kept of more than %d, and those of %v", len(m.written.of), maxWritten, w)
	}
	m.written.brought(nil, map[int64]*match.Resource{1: observation(1)})
	m.BeginWriting().write(rid, observation(1))
	if len(m.written.of) != 1 {
		t.Errorf("%d are kept after something was brought in", len(m.written.of))
	}
	late := time.Now().Add(writtenFor + time.Second)
	m.written.now = func() time.Time { return late }
	if p := m.position(); len(p.Written) > 0 {
		t.Errorf("after a while %v are kept", p.Written)
	}
}

// Of several rows the last version of a resource counts, but the data read is the present
// one.
func TestLastVersionCounts(t *testing.T) {
	t.Parallel()
	m := following(t)
	w := m.BeginWriting()
	row := w.BeginRow(1)
	for n, versions := range [][]int{{3}, {1}, {1}} {
		for _, v := range versions {
			row.AddVersion(rid+int64(n), v, observation(v))
		}
	}
	row.KeepRow()
	w.write(rid+1, observation(2))
	second := w.BeginRow(1)
	second.AddVersion(rid+2, 2, nil)
	second.AddVersion(rid, 2, observation(2))
	second.KeepRow()
	w.EndWriting(true)
	rows := fmt.Sprintf(`%d/2,%d/3,%d/2 [{"r":%d,"i":"x","v":9,"u":0,"t":[],"g":[]}]`, rid+2, rid, rid+1, rid+1)
	c := Changes{Position: m.position(), Followed: true, Now: "6:6: index", Rows: rows}
	got, ok := c.resources()
	if !ok || len(got) != 3 || got[rid] == nil || got[rid].VersionID != 3 || got[rid+1] == nil || got[rid+1].VersionID != 9 || got[rid+2] != nil {
		t.Errorf("%v, %v", got, ok)
	}
	for _, rows := range []string{"x", "1/1", "1/1 [", " {}", "1 "} {
		c := Changes{Position: m.position(), Followed: true, Now: "6:6: index", Rows: rows}
		if all, ok := c.resources(); ok && c.Followed {
			t.Errorf("%q is read as %v", rows, all)
		}
	}
}
