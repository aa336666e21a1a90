package conformance

import (
	"fmt"
	"strings"
	"testing"

	"kiln/server"
)

// search.html: the interaction. What each parameter type means has files of its
// own.
func TestSearch(t *testing.T) {
	s := start(t)
	for i := range 25 {
		s.put(fmt.Sprintf("/Patient/p%02d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"p%02d","active":%v,"name":[{"family":"Family%02d"}],"birthDate":"19%02d-01-01"}`, i, i%2 == 0, i, 50+i)).want(201)
	}
	for i := range 5 {
		s.put(fmt.Sprintf("/Observation/o%d", i), fmt.Sprintf(`{"resourceType":"Observation","id":"o%d","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"%d-1"}]},"subject":{"reference":"Patient/p%02d"}}`, i, i%2, i)).want(201)
	}

	t.Run("a searchset with total, self link and mode (bundle.html#searchset)", func(t *testing.T) {
		a := s.in(t).get("/Patient?family=Family01").want(200)
		a.equal("resourceType", "Bundle").equal("type", "searchset").equal("total", "1")
		a.equal("entry.0.search.mode", "match").equal("entry.0.resource.id", "p01").equal("entry.0.fullUrl", s.base+"/Patient/p01")
		if a.link("self") != s.base+"/Patient?family=Family01" {
			t.Errorf("self link %q", a.link("self"))
		}
	})
	t.Run("by POST, parameters of URL and form together (http.html#search)", func(t *testing.T) {
		a := s.in(t).post("/Patient/_search?active=true", "family=Family0", "Content-Type", "application/x-www-form-urlencoded").want(200)
		a.equal("total", "5")
		s.in(t).post("/Patient/_search", `{}`, "Content-Type", "application/json").issue(415, "not-supported")
		s.in(t).get("/Patient/_search?family=x").issue(405, "not-supported", "POST")
	})
	t.Run("pages: every match once, links to all (http.html#paging)", func(t *testing.T) {
		s := s.in(t)
		for _, sort := range []string{"", "&_sort=-birthdate", "&_sort=family", "&_sort=_id", "&_sort=-_lastUpdated", "&_sort=active,-birthdate"} {
			seen := make(map[string]int)
			first := s.get("/Patient?_count=10"+sort).want(200).equal("total", "25")
			pages := 0
			var last *answer
			for a := first; ; {
				pages++
				for _, id := range a.ids() {
					seen[id]++
				}
				last = a
				if a.link("next") == "" {
					break
				}
				a = s.get(a.link("next")).want(200).equal("total", "25")
			}
			if len(seen) != 25 || pages != 3 {
				t.Errorf("%q: %d matches on %d pages, want 25 on 3", sort, len(seen), pages)
			}
			for id, n := range seen {
				if n != 1 {
					t.Errorf("%q: %s came %d times", sort, id, n)
				}
			}
			byLast := s.get(first.link("last")).want(200)
			if fmt.Sprint(byLast.ids()) != fmt.Sprint(last.ids()) {
				t.Errorf("%q: last page %v, want %v", sort, byLast.ids(), last.ids())
			}
			previous := s.get(last.link("previous")).want(200)
			if fmt.Sprint(s.get(previous.link("previous")).want(200).ids()) != fmt.Sprint(first.ids()) {
				t.Errorf("%q: previous of previous of last is not first", sort)
			}
		}
		if got := s.get("/Patient?_count=10&_offset=20").want(200).ids(); len(got) != 5 {
			t.Errorf("a hand-written _offset: %v", got)
		}
	})
	t.Run("_count (contract)", func(t *testing.T) {
		s := s.in(t)
		if a := s.get("/Patient?_count=0").want(200).equal("total", "25"); a.len("entry") != 0 {
			t.Error("_count=0 with entries")
		}
		if a := s.get("/Patient?_count=100000").want(200); !strings.Contains(a.link("self"), "_count=1000") {
			t.Errorf("self link %q, want the clamped _count", a.link("self"))
		}
		s.get("/Patient?_count=-1").issue(400, "invalid", "_count")
		s.get("/Patient?_count=x").issue(400, "invalid", "_count")
	})
	t.Run("unknown parameters (search.html#errors, contract)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient?famly=x").issue(400, "not-supported", "famly", "family")
		a := s.get("/Patient?famly=x&active=true", "Prefer", "handling=lenient").want(200).equal("total", "13")
		if strings.Contains(a.link("self"), "famly") {
			t.Errorf("self link %q says what was not applied", a.link("self"))
		}
		last := fmt.Sprintf("entry.%d.", a.len("entry")-1)
		a.equal(last+"search.mode", "outcome").equal(last+"resource.resourceType", "OperationOutcome")
		s.get("/Patient?famly=x", "Prefer", "handling=strict").issue(400, "not-supported")
		s.get("/Patient?family%3Aexactly=x").want(400)
		s.get("/Patient?birthdate=yesterday").issue(400, "invalid", "birthdate", "yesterday")
	})
	t.Run("in a compartment (http.html#vsearch)", func(t *testing.T) {
		s := s.in(t)
		s.get("/Patient/p01/Observation").want(200).equal("total", "1").equal("entry.0.resource.id", "o1")
		s.get("/Patient/p01/Observation?code=1-1").want(200).equal("total", "1")
		s.get("/Patient/p01/Observation?code=0-1").want(200).equal("total", "0")
		if a := s.get("/Patient/p01/*").want(200); a.str("total") == "0" {
			t.Error("nothing in the compartment")
		}
		s.get("/Patient/p01/Organization").want(404)
		s.get("/Organization/1/Patient").want(404)
		s.get("/Patient/p01/Patent").issue(404, "not-supported", "Patent")
	})
	t.Run("of the whole system (http.html#search)", func(t *testing.T) {
		s := s.in(t)
		s.get("/?_type=Patient,Observation").want(200).equal("total", "30")
		s.get("/?_id=p01").want(200).equal("total", "1")
		s.post("/_search", "_type=Observation", "Content-Type", "application/x-www-form-urlencoded").want(200).equal("total", "5")
	})
	t.Run("_include and _revinclude (search.html#include)", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Observation?_id=o1&_include=Observation:subject").want(200).equal("total", "1")
		a.equal("entry.1.resource.id", "p01").equal("entry.1.search.mode", "include")
		s.get("/Patient?_id=p01&_revinclude=Observation:subject").want(200).equal("entry.1.resource.id", "o1")
	})
	t.Run("_summary and _elements (search.html#summary)", func(t *testing.T) {
		s := s.in(t)
		if a := s.get("/Patient?_summary=count").want(200).equal("total", "25"); a.len("entry") != 0 {
			t.Error("_summary=count with entries")
		}
		s.get("/Patient?_id=p01&_elements=active").want(200).equal("entry.0.resource.active", "false").equal("entry.0.resource.name.0.family", "").
			equal("entry.0.resource.meta.tag.0.code", "SUBSETTED")
	})
	t.Run("a write is found by the next search (contract)", func(t *testing.T) {
		s := s.in(t)
		for i := range 20 {
			family := fmt.Sprintf("Fresh%d", i)
			id := s.create(`{"resourceType":"Patient","name":[{"family":"` + family + `"}]}`)
			s.get("/Patient?family="+family).want(200).equal("total", "1").equal("entry.0.resource.id", id)
		}
	})
}

// In a form, _format and _pretty count like in a URL (http.html#parameters).
func TestSearchForm(t *testing.T) {
	s := start(t)
	form := func(body string) *answer {
		return s.do("POST", "/Patient/_search", body, "Content-Type", "application/x-www-form-urlencoded")
	}
	form("_format=xml").issue(406, "not-supported", "xml")
	form("_format=application/json").want(200).has("Content-Type", "application/json; charset=utf-8")
	if a := form("_pretty=true").want(200); !strings.Contains(string(a.body), "\n  ") {
		t.Errorf("not indented: %s", a.body)
	}
}

// contract: search.default_count and search.max_count
func TestSearchPageSizes(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Search.DefaultCount, c.Search.MaxCount = 2, 3 })
	for range 5 {
		s.create(`{"resourceType":"Patient"}`)
	}
	if a := s.get("/Patient").want(200); a.len("entry") != 2 {
		t.Errorf("%d entries, want 2", a.len("entry"))
	}
	if a := s.get("/Patient?_count=4").want(200); len(a.matches()) != 3 {
		t.Errorf("%d matches, want 3", len(a.matches()))
	}
	if a := s.get("/_history?_count=4").want(200); a.len("entry") != 3 {
		t.Errorf("%d entries of history, want 3", a.len("entry"))
	}
}
