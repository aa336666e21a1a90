package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// http.html#history
func TestHistory(t *testing.T) {
	s := start(t)
	id := s.create(`{"resourceType":"Patient","active":true}`)
	s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`","active":false}`).want(200)
	s.do("DELETE", "/Patient/"+id, "").want(204)
	s.put("/Patient/"+id, `{"resourceType":"Patient","id":"`+id+`"}`).want(201)
	s.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"}}`).want(201)

	t.Run("of an instance, newest first, with request and response (bundle.html#history)", func(t *testing.T) {
		a := s.in(t).get("/Patient/" + id + "/_history").want(200)
		a.equal("resourceType", "Bundle").equal("type", "history").equal("total", "4")
		for i, want := range []struct{ method, url, status, version string }{
			{"PUT", "Patient/" + id, "200 OK", "4"},
			{"DELETE", "Patient/" + id, "204 No Content", ""},
			{"PUT", "Patient/" + id, "200 OK", "2"},
			{"POST", "Patient", "201 Created", "1"},
		} {
			at := fmt.Sprintf("entry.%d.", i)
			a.equal(at+"request.method", want.method).equal(at+"request.url", want.url).equal(at+"resource.meta.versionId", want.version)
			a.equal(at+"fullUrl", s.base+"/Patient/"+id).equal(at+"response.etag", fmt.Sprintf(`W/"%d"`, 4-i))
			if i > 0 {
				a.equal(at+"response.status", want.status)
			}
		}
	})
	t.Run("of a type and of everything", func(t *testing.T) {
		s.in(t).get("/Patient/_history").want(200).equal("total", "4")
		s.in(t).get("/_history").want(200).equal("total", "5").equal("entry.0.resource.resourceType", "Observation")
		s.in(t).get("/Encounter/_history").want(200).equal("total", "0")
	})
	t.Run("paging", func(t *testing.T) {
		s := s.in(t)
		var versions []string
		for next := "/Patient/" + id + "/_history?_count=3"; next != ""; {
			a := s.get(next).want(200).equal("total", "4")
			for i := range a.len("entry") {
				versions = append(versions, a.str(fmt.Sprintf("entry.%d.response.etag", i)))
			}
			next = a.link("next")
		}
		if got := fmt.Sprint(versions); got != `[W/"4" W/"3" W/"2" W/"1"]` {
			t.Errorf("pages hold %s", got)
		}
	})
	t.Run("_count=0 is the total only", func(t *testing.T) {
		if a := s.in(t).get("/_history?_count=0").want(200).equal("total", "5"); a.len("entry") != 0 {
			t.Error("_count=0 with entries")
		}
	})
	t.Run("_since and _at (http.html#history)", func(t *testing.T) {
		s := s.in(t)
		second := s.get("/Patient/" + id + "/_history/2").want(200).str("meta.lastUpdated")
		s.get("/Patient/"+id+"/_history?_since=2001-01-01").want(200).equal("total", "4")
		s.get("/Patient/"+id+"/_history?_since=2999-01-01T00:00:00Z").want(200).equal("total", "0")
		s.get("/Patient/"+id+"/_history?_at=2001-01-01").want(200).equal("total", "0")
		if a := s.get("/Patient/" + id + "/_history?_since=" + second).want(200); a.len("entry") < 3 {
			t.Errorf("since version 2: %d entries, want 3 or 4", a.len("entry"))
		}
		s.get("/Patient/"+id+"/_history?_since=yesterday").issue(400, "invalid", "_since", "yesterday")
	})
	t.Run("_at a period: what was current at some time in it", func(t *testing.T) {
		s := s.in(t)
		year := s.get("/Patient/" + id + "/_history/2").want(200).str("meta.lastUpdated")[:4]
		s.get("/Patient/"+id+"/_history?_at="+year).want(200).equal("total", "4")
		s.get("/Patient/"+id+"/_history?_at=2999").want(200).equal("total", "1").equal("entry.0.resource.meta.versionId", "4")
	})
	t.Run("a time zone with an unescaped plus", func(t *testing.T) {
		s.in(t).get("/Patient/"+id+"/_history?_since=2001-01-01T00:00:00+01:00").want(200).equal("total", "4")
	})
	t.Run("what never existed has none: 404", func(t *testing.T) {
		s.in(t).get("/Patient/nobody/_history").issue(404, "not-found")
	})
	t.Run("_summary and _elements (http.html#parameters), kept by the links", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/cut", `{"resourceType":"Patient","id":"cut","birthDate":"2001-02-03","photo":[{"title":"x"}],"name":[{"family":"Cut"}]}`).want(201)
		s.put("/Patient/cut", `{"resourceType":"Patient","id":"cut","birthDate":"2001-02-04","photo":[{"title":"x"}],"name":[{"family":"Cut"}]}`).want(200)
		whole := func(a *answer, at string, left ...string) {
			t.Helper()
			for _, name := range []string{"birthDate", "photo", "name"} {
				if got, want := a.at(at+name) != nil, slices.Contains(left, name); got != want {
					t.Errorf("%s: %s%s is there: %v, want %v", a.what, at, name, got, want)
				}
			}
			if subset := len(left) < 3; strings.Contains(a.str(at+"meta.tag.0.code"), "SUBSETTED") != subset {
				t.Errorf("%s: SUBSETTED is not %v\n%s", a.what, subset, clip(a.body))
			}
		}
		whole(s.get("/Patient/cut/_history").want(200), "entry.0.resource.", "birthDate", "photo", "name")
		for _, path := range []string{"/Patient/cut/_history", "/Patient/_history", "/_history"} {
			a := s.get(path + "?_elements=birthDate&_elements=name&_count=1&_format=json").want(200)
			whole(a, "entry.0.resource.", "birthDate", "name")
			for _, relation := range []string{"self", "next"} {
				if l := a.link(relation); !strings.Contains(l, "_elements=birthDate%2Cname") || !strings.Contains(l, "_format=json") {
					t.Errorf("%s: the link %s is %q", path, relation, l)
				}
			}
			whole(s.get(a.link("next")).want(200), "entry.0.resource.", "birthDate", "name")
			whole(s.get(path+"?_summary=true&_count=1").want(200), "entry.0.resource.", "birthDate", "name")
			whole(s.get(path+"?_summary=false&_count=1").want(200), "entry.0.resource.", "birthDate", "photo", "name")
			if a := s.get(path + "?_summary=count").want(200); a.len("entry") != 0 || a.at("total") == nil {
				t.Errorf("%s: _summary=count gives %s", path, clip(a.body))
			}
			s.get(path+"?_summary=brief").issue(400, "invalid", "_summary", "brief")
		}
		s.get("/Patient/cut/_history?_elements=colour").issue(400, "invalid", "_elements", "colour")
		s.get("/Patient/cut/_history?_elements=name&_summary=text").issue(400, "invalid", "combined")
		s.post("/", bundle("batch", entry("GET", "Patient/cut/_history?_elements=name", "", "", ""))).want(200).
			equal("entry.0.resource.entry.0.resource.meta.tag.0.code", "SUBSETTED")
	})
	t.Run("a parameter without a value is ignored, and absent from the self link", func(t *testing.T) {
		s := s.in(t)
		a := s.get("/Patient/"+id+"/_history?_since=&_at=&_count=&_total=&_summary=&_elements=").want(200).equal("total", "4")
		if l := a.link("self"); l != s.base+"/Patient/"+id+"/_history" && !strings.HasSuffix(l, "/_history?_count=20") {
			t.Errorf("the self link is %q", l)
		}
	})
	t.Run("previous leads back to the same pages (http.html#paging)", func(t *testing.T) {
		s := s.in(t)
		s.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true}`).want(201)
		for _, path := range []string{"/Patient/" + id + "/_history?_count=1", "/Patient/_history?_count=1", "/_history?_count=2&_since=2001-01-01", "/_history?_count=2&_at=2001&_total=none", "/Patient/_history?_count=3&_elements=active"} {
			s.followBothWays(path)
		}
	})
	t.Run("unknown parameters are refused", func(t *testing.T) {
		s.in(t).get("/_history?name=x").issue(400, "invalid", "name")
		s.in(t).get("/_history?_count=-1").issue(400, "invalid", "_count")
		s.in(t).get("/_history?_total=exact").issue(400, "invalid", "_total", "accurate")
		s.in(t).get("/_history?_cursor=!").want(400)
	})
}

// followBothWays follows next to the last page and previous back to the first one, and
// compares the pages.
func (s *service) followBothWays(path string) {
	s.t.Helper()
	var pages []string
	a := s.get(path).want(200)
	if l := a.link("previous"); l != "" {
		s.t.Errorf("%s: the first page has previous %s", path, l)
	}
	for {
		pages = append(pages, fmt.Sprint(a.at("entry")))
		if a.link("next") == "" {
			break
		}
		a = s.get(a.link("next")).want(200)
	}
	for i := len(pages) - 2; i >= 0; i-- {
		if a.link("previous") == "" {
			s.t.Fatalf("%s: page %d has no previous", path, i+2)
		}
		if a = s.get(a.link("previous")).want(200); fmt.Sprint(a.at("entry")) != pages[i] {
			s.t.Errorf("%s: previous of page %d is %v, want %s", path, i+2, a.at("entry"), pages[i])
		}
		if a.link("next") == "" || a.link("first") == "" {
			s.t.Errorf("%s: page %d from behind has no next or first", path, i+1)
		}
	}
	if l := a.link("previous"); l != "" {
		s.t.Errorf("%s: the first page has previous %s on the way back", path, l)
	}
}
