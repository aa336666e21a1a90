package conformance

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"kiln/server"
)

// search.html#sort
func TestSearchSort(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"a","name":[{"family":"Zeta","given":["Anna"]}],"birthDate":"1980-05-01"}`,
		`{"resourceType":"Patient","id":"b","name":[{"family":"alpha","given":["Bert"]}],"birthDate":"1980"}`,
		`{"resourceType":"Patient","id":"c","name":[{"family":"Émile","given":["Carl"]}],"birthDate":"1975-01-01"}`,
		`{"resourceType":"Patient","id":"d","name":[{"family":"Alpha","given":["Anna"]}]}`,
		`{"resourceType":"Patient","id":"e"}`,
		`{"resourceType":"Patient","id":"f","name":[{"family":"Beta"},{"family":"Omega"}],"birthDate":"1990-12-31"}`,
		`{"resourceType":"Observation","id":"o1","status":"final","code":{"text":"x"},"valueQuantity":{"value":10,"unit":"kg","system":"http://unitsofmeasure.org","code":"kg"}}`,
		`{"resourceType":"Observation","id":"o2","status":"final","code":{"text":"x"},"valueQuantity":{"value":9,"unit":"kg","system":"http://unitsofmeasure.org","code":"kg"}}`,
		`{"resourceType":"Observation","id":"o3","status":"final","code":{"text":"x"}}`,
	)
	for _, c := range []struct{ query, want string }{
		{"Patient?_sort=_id", "a b c d e f"},
		{"Patient?_sort=-_id", "f e d c b a"},
		{"Patient?_sort=birthdate", "c b a f d e|c b a f e d"}, // a year begins before its days; resources without a date come last
		{"Patient?_sort=-birthdate", "f a b c d e|f b a c d e|f a b c e d|f b a c e d"},
		{"Patient?_sort=family,_id", "b d f c a e"},   // without case and accents
		{"Patient?_sort=family,given", "d b f c a e"}, // the second key where the first is equal
		{"Patient?_sort=family,-given", "b d f c a e"},
		{"Patient?_sort=-family,_id", "a f c b d e"}, // descending by the last of several values
		{"Patient?_sort=given,-family&given:missing=false", "a d b c"},
		{"Observation?_sort=value-quantity", "o2 o1 o3"},
		{"Observation?_sort=-value-quantity", "o1 o2 o3"},
	} {
		t.Run(c.query+" (#sort)", func(t *testing.T) {
			s := s.in(t)
			got := strings.Join(s.get("/"+c.query).want(200).ids(), " ")
			if !slices.Contains(strings.Split(c.want, "|"), got) {
				t.Errorf("order %q, want %q", got, c.want)
			}
			// The same order page by page.
			var paged []string
			for a := s.get("/" + c.query + "&_count=2").want(200); ; a = s.get(a.link("next")).want(200) {
				paged = append(paged, a.ids()...)
				if a.link("next") == "" {
					break
				}
			}
			if strings.Join(paged, " ") != got {
				t.Errorf("order by pages %q, on one page %q", paged, got)
			}
		})
	}
	t.Run("by _lastUpdated, the newest first with - (#sort)", func(t *testing.T) {
		s := s.in(t)
		for _, id := range []string{"c", "a"} {
			s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`"}`).want(200)
		}
		if got := s.get("/Patient?_sort=-_lastUpdated&_count=2").want(200).ids(); fmt.Sprint(got) != "[a c]" {
			t.Errorf("newest first: %v", got)
		}
		if got := s.get("/Patient?_sort=_lastUpdated").want(200).ids(); fmt.Sprint(got[4:]) != "[c a]" {
			t.Errorf("oldest first: %v", got)
		}
	})
	t.Run("values that no URL could hold (#sort, http.html#paging)", func(t *testing.T) {
		s := s.in(t)
		var want []string
		for i := range 3 {
			id := fmt.Sprintf("long%d", i)
			s.put("/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"identifier":[{"system":"urn:long","value":"%d%s"}],"name":[{"family":"%d%[3]s"}]}`, id, i, strings.Repeat("x", 200_000), i)).want(201)
			want = append(want, id)
		}
		for _, sort := range []string{"family", "identifier"} {
			var got []string
			for a := s.get("/Patient?identifier=urn:long|&_count=1&_sort=" + sort).want(200); ; a = s.get(a.link("next")).want(200) {
				got = append(got, a.ids()...)
				if a.link("next") == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("_sort=%s: %v, want %v", sort, got, want)
			}
		}
		for _, id := range want {
			s.do("DELETE", "/Patient/"+id, "").want(204)
		}
	})
	t.Run("refused by name (#sort)", func(t *testing.T) {
		s := s.in(t)
		for _, key := range []string{"nothing", "birthdate,nothing", "family,family", "-", "birthdate:asc", "code-value-quantity"} {
			s.get("/Patient?_sort=" + url.QueryEscape(key)).want(400)
		}
		s.get("/Patient?_sort=birtdate").issue(400, "not-supported", "birtdate", "birthdate")
	})
}

// search.html#count, #total and http.html#paging
func TestSearchPages(t *testing.T) {
	s := start(t)
	for i := range 7 {
		s.put(fmt.Sprintf("/Patient/p%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"p%d","active":true}`, i)).want(201)
	}
	t.Run("links are built with _offset (contract)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Patient?active=true&_count=3").want(200).equal("total", "7")
		offset := func(a *answer, relation string) string {
			u, err := url.Parse(a.link(relation))
			if err != nil {
				t.Fatal(err)
			}
			if u.Query().Get("active") != "true" || u.Query().Get("_count") != "3" {
				t.Errorf("%s link %q lost a parameter", relation, u)
			}
			return u.Query().Get("_offset")
		}
		if got := offset(a, "next"); got != "3" {
			t.Errorf("next has _offset %q, want 3", got)
		}
		if got := offset(a, "first"); got != "0" {
			t.Errorf("first has _offset %q, want 0", got)
		}
		if got := offset(a, "last"); got != "6" {
			t.Errorf("last has _offset %q, want 6", got)
		}
		if a.link("previous") != "" {
			t.Errorf("the first page has a previous one: %q", a.link("previous"))
		}
		second := s.get(a.link("next")).want(200)
		if got := offset(second, "previous"); got != "0" {
			t.Errorf("previous of page 2 has _offset %q, want 0", got)
		}
		if got := offset(second, "next"); got != "6" {
			t.Errorf("next of page 2 has _offset %q, want 6", got)
		}
		last := s.get(second.link("next")).want(200)
		if last.link("next") != "" || last.len("entry") != 1 {
			t.Errorf("page 3 has %d entries and next %q", last.len("entry"), last.link("next"))
		}
	})
	t.Run("an offset beyond the end is an empty page with the total (contract)", func(t *testing.T) {
		a := s.in(t).get("/Patient?_offset=100").want(200).equal("total", "7")
		if a.len("entry") != 0 {
			t.Errorf("%d entries", a.len("entry"))
		}
	})
	t.Run("a search that finds nothing has no entry (bundle.html: no empty arrays)", func(t *testing.T) {
		a := s.in(t).get("/Patient?active=false").want(200).equal("total", "0")
		if strings.Contains(string(a.body), `"entry"`) {
			t.Error("an empty array of entries")
		}
	})
	t.Run("_total (#total)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient?_total=accurate&_count=1").want(200).equal("total", "7")
		s.get("/Patient?_total=estimate&_count=1").want(200)
		if a := s.get("/Patient?_total=none&_count=1").want(200); a.at("total") != nil {
			t.Errorf("total %v in spite of none", a.at("total"))
		}
		s.get("/Patient?_total=some").issue(400, "invalid", "_total", "some")
	})
	t.Run("_summary=count is total and no entries (#summary)", func(t *testing.T) {
		for _, query := range []string{"_summary=count&_total=none", "_count=0&_total=none"} { // the hint says nothing against the count
			if a := s.in(t).get("/Patient?"+query).want(200).equal("total", "7"); strings.Contains(a.link("self"), "_total") {
				t.Errorf("the self link says that _total was applied: %s", a.link("self"))
			}
		}
		a := s.in(t).get("/Patient?_summary=count&active=true").want(200).equal("total", "7").equal("type", "searchset")
		if a.len("entry") != 0 {
			t.Error("entries with _summary=count")
		}
	})
	t.Run("nothing comes twice and nothing is missed while others write (http.html#paging)", func(t *testing.T) {
		s := s.in(t)
		seen := map[string]int{}
		n := 0
		for a := s.get("/Patient?_count=2&_sort=_id").want(200); ; a = s.get(a.link("next")).want(200) {
			for _, id := range a.ids() {
				seen[id]++
			}
			n++
			s.put(fmt.Sprintf("/Patient/a%d", n), fmt.Sprintf(`{"resourceType":"Patient","id":"a%d"}`, n)).want(201) // sorts before the page
			if a.link("next") == "" {
				break
			}
		}
		for i := range 7 {
			if id := fmt.Sprintf("p%d", i); seen[id] != 1 {
				t.Errorf("%s came %d times", id, seen[id])
			}
		}
	})
	t.Run("parameters that can be given once (#return)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient?_count=1&_count=2").want(400)
		s.get("/Patient?_sort=_id&_sort=family").want(400)
		s.get("/Patient?_summary=true&_summary=data").want(400)
	})
}

// search.html#summary and #elements
// TestSearchesAtTheSameTime checks that each answer belongs to its own search, while others search: pages reuse memory.
func TestSearchesAtTheSameTime(t *testing.T) {
	s := start(t)
	var resources []string
	for i := range 40 {
		resources = append(resources,
			fmt.Sprintf(`{"resourceType":"Patient","id":"p%d","gender":%q,"name":[{"family":%q}]}`,
				i, []string{"male", "female"}[i%2], strings.Repeat(string(rune('a'+i%26)), 10+i*37)),
			fmt.Sprintf(`{"resourceType":"Condition","id":"c%d","code":{"text":%q},"subject":{"reference":"Patient/p%d"}}`,
				i, strings.Repeat(string(rune('A'+i%26)), 500-i*11), i))
	}
	s.load(resources...)
	paths := []string{
		"/Patient?gender=male&_count=7", "/Patient?gender=female&_sort=-_id", "/Condition?_include=Condition:subject&_count=11",
		"/Patient?_elements=name", "/Patient?_revinclude=Condition:subject&gender=male", "/Patient/p3/$everything", "/Condition?_total=none&_offset=9",
	}
	want := make([]string, len(paths))
	for i, path := range paths {
		want[i] = string(s.get(path).want(200).body)
	}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 40 {
				at := (n + i) % len(paths)
				a, err := s.try("GET", paths[at], "")
				if err != nil || string(a.body) != want[at] {
					t.Errorf("GET %s, with others: %v, or another answer than alone", paths[at], err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestSearchSummary(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Search.Explain = false })
	s.load(`{"resourceType":"Observation","id":"o","meta":{"security":[{"system":"urn:t","code":"kept"}],"tag":[{"system":"urn:t","code":"kept"}]},"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">o</div>"},` +
		`"contained":[{"resourceType":"Patient","id":"p"}],"identifier":[{"value":"i"}],"status":"final","category":[{"text":"c"}],"code":{"text":"x"},"subject":{"reference":"#p"},"issued":"2020-01-01T00:00:00Z","valueString":"v","note":[{"text":"n"}],"bodySite":{"text":"b"}}`)
	for _, c := range []struct {
		spec, query     string
		present, absent string
	}{
		{"#summary: true has the summary elements", "_summary=true", "id meta status code subject issued valueString identifier", "text contained note bodySite"},
		{"#summary: text has text, id, meta and what is mandatory", "_summary=text", "id meta text status code", "contained note subject valueString identifier"},
		{"#summary: data has all but the text", "_summary=data", "id meta contained status category code subject note valueString", "text"},
		{"#summary: false has all", "_summary=false", "id meta text contained status note valueString", ""},
		{"#elements: those named, with what is mandatory or a modifier", "_elements=note,valueString", "id meta note valueString status code", "text contained subject category"},
		{"#elements: a choice by its name in the definition", "_elements=value[x]", "id meta valueString status code", "note"},
		{"#elements: a choice by its name without a type", "_elements=value", "id meta valueString status code", "note"},
		{"#elements: with the type before", "_elements=Observation.note", "note", "text"},
		{"#elements: repeated", "_elements=note&_elements=issued", "note issued", "text"},
	} {
		t.Run(c.query+" ("+c.spec+")", func(t *testing.T) {
			s := s.in(t)
			search := s.get("/Observation?_id=o&" + encoded(c.query)).want(200)
			read := s.get("/Observation/o?" + encoded(c.query)).want(200)
			for name, at := range map[string]struct {
				*answer
				path string
			}{"search": {search, "entry.0.resource."}, "read": {read, ""}} {
				for e := range strings.FieldsSeq(c.present) {
					if at.at(at.path+e) == nil {
						t.Errorf("%s: %s is missing", name, e)
					}
				}
				for e := range strings.FieldsSeq(c.absent) {
					if at.at(at.path+e) != nil {
						t.Errorf("%s: %s is there", name, e)
					}
				}
				tags := 0
				for i := range at.len(at.path + "meta.tag") {
					if at.str(fmt.Sprintf("%smeta.tag.%d.code", at.path, i)) == "SUBSETTED" {
						tags++
					}
				}
				want := 1
				if c.absent == "" {
					want = 0
				}
				if tags != want {
					t.Errorf("%s: %d tags SUBSETTED, want %d", name, tags, want)
				}
				at.equal(at.path+"meta.tag.0.code", "kept").equal(at.path+"meta.security.1.code", "").equal(at.path+"meta.versionId", "1")
			}
		})
	}
	t.Run("refused by name", func(t *testing.T) {
		s := s.in(t)
		s.get("/Observation?_summary=some").issue(400, "invalid", "_summary", "some")
		s.get("/Observation?_elements=nothing").issue(400, "invalid", "nothing")
		s.get("/Observation?_summary=true&_elements=note").issue(400, "invalid", "_summary", "_elements")
		s.get("/Observation/o?_summary=some").issue(400, "invalid", "_summary", "some")
		s.get("/Observation/o?_elements=nothing").issue(400, "invalid", "nothing")
	})
	t.Run("a resource that was cut down is not stored over the whole one (#elements)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Observation/o").want(200).equal("note.0.text", "n").equal("meta.tag.1.code", "")
	})
}
