package conformance

import (
	"fmt"
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
	t.Run("unknown parameters are refused", func(t *testing.T) {
		s.in(t).get("/_history?name=x").issue(400, "invalid", "name")
		s.in(t).get("/_history?_count=-1").issue(400, "invalid", "_count")
		s.in(t).get("/_history?_cursor=!").want(400)
	})
}
