package conformance

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// http.html#create
func TestCreate(t *testing.T) {
	s := start(t)
	t.Run("201 with Location, ETag, Last-Modified and the resource (http.html#create)", func(t *testing.T) {
		a := s.in(t).post("/Patient", `{"resourceType":"Patient","id":"mine","meta":{"versionId":"9","lastUpdated":"2001-01-01T00:00:00Z","profile":["http://example.org/p"]},"active":true}`).want(201)
		id := a.str("id")
		if id == "mine" || id == "" {
			t.Errorf("id %q: the server chooses it", id)
		}
		a.equal("meta.versionId", "1").equal("meta.profile.0", "http://example.org/p").equal("active", "true")
		a.has("Location", s.base+"/Patient/"+id+"/_history/1").has("ETag", `W/"1"`)
		if strings.HasPrefix(a.str("meta.lastUpdated"), "2001") {
			t.Error("the client's lastUpdated was kept")
		}
	})
	t.Run("Prefer (http.html#ops)", func(t *testing.T) {
		s := s.in(t)
		if a := s.post("/Patient", `{"resourceType":"Patient"}`, "Prefer", "return=minimal").want(201); len(a.body) != 0 {
			t.Errorf("minimal: %s", a.body)
		}
		s.post("/Patient", `{"resourceType":"Patient"}`, "Prefer", "return=representation").want(201).equal("resourceType", "Patient")
		s.post("/Patient", `{"resourceType":"Patient"}`, "Prefer", "return=OperationOutcome").want(201).equal("resourceType", "OperationOutcome").equal("issue.0.severity", "information")
		s.post("/Patient", `{"resourceType":"Patient"}`, "Prefer", "return=everything, handling=loose").want(201).equal("resourceType", "Patient") // RFC 7240 §2
	})
	t.Run("the body must be of the URL's type (contract)", func(t *testing.T) {
		s.in(t).post("/Patient", `{"resourceType":"Observation"}`).issue(400, "invalid", "Observation", "Patient")
		s.in(t).post("/Patient", ``).issue(400, "structure", "no body")
		s.in(t).post("/Patient", `{}`).issue(400, "structure", "resourceType")
		s.in(t).post("/Patient", `{"resourceType":"Patent"}`).issue(400, "structure", "Patent")
		s.in(t).post("/Patient", `{"resourceType":"Patient"`).issue(400, "structure")
	})
	t.Run("what is no R4 Patient is 422, one issue an error (http.html#create)", func(t *testing.T) {
		a := s.in(t).post("/Patient", `{"resourceType":"Patient","nme":[],"birthDate":"30.3.1970"}`).issue(422, "invalid", "nme", "birthDate")
		if a.len("issue") < 2 {
			t.Errorf("%d issues, want at least 2\n%s", a.len("issue"), a.body)
		}
		a = s.in(t).post("/Patient", `{"resourceType":"Patient","birthDate":"30.3.1970"}`).want(422)
		a.equal("issue.0.expression.0", "Patient.birthDate")
	})
	t.Run("nothing is lost: decimals, primitive extensions, contained, narrative, order (json.html)", func(t *testing.T) {
		body := `{"resourceType":"Observation","contained":[{"resourceType":"Patient","id":"p"}],"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><b>ä &amp; é</b></div>"},` +
			`"status":"final","_status":{"extension":[{"url":"http://example.org/e","valueDecimal":0.10}]},"code":{"text":"x"},"subject":{"reference":"#p"},` +
			`"valueQuantity":{"value":6.30,"unit":"mmol"},"component":[{"code":{"text":"b"},"valueQuantity":{"value":1.0E+3}},{"code":{"text":"a"},"valueQuantity":{"value":-0.00}}]}`
		id := s.in(t).create(body)
		got := string(s.in(t).get("/Observation/" + id).want(200).body)
		_, got, _ = strings.Cut(got, `"}`)
		_, want, _ := strings.Cut(body, `"Observation"`)
		if strings.TrimSuffix(got, "\n") != want {
			t.Errorf("stored\n%s\nwant\n%s", got, want)
		}
	})
}

// http.html#ccreate
func TestConditionalCreate(t *testing.T) {
	s := start(t)
	body := `{"resourceType":"Patient","identifier":[{"system":"urn:s","value":"1"}]}`
	first := s.post("/Patient", body, "If-None-Exist", "identifier=urn:s|1").want(201)

	again := s.post("/Patient", body, "If-None-Exist", "identifier=urn:s|1").want(200)
	again.equal("id", first.str("id")).has("ETag", `W/"1"`).has("Location", s.base+"/Patient/"+first.str("id")+"/_history/1")
	for _, criteria := range []string{"?identifier=urn:s|1", "Patient?identifier=urn:s|1", "/Patient?identifier=urn:s|1"} {
		s.post("/Patient", body, "If-None-Exist", criteria).want(200).equal("id", first.str("id"))
		s.post("/", bundle("batch", entry("POST", "Patient", "", body, `,"ifNoneExist":"`+criteria+`"`))).want(200).equal("entry.0.response.status", "200 OK")
	}
	s.post("/Patient", body, "If-None-Exist", "identifier=urn:s|1", "Prefer", "return=OperationOutcome").want(200).issue(200, "informational", "left as it is")
	s.post("/Patient", body, "If-None-Exist", "?").issue(400, "invalid")
	s.post("/", bundle("batch", entry("POST", "Patient", "", body, `,"ifNoneExist":"?"`))).want(200).equal("entry.0.response.status", "400 Bad Request")
	s.post("/Patient", body, "If-None-Exist", "Observation?identifier=urn:s|1").issue(400, "not-supported", "Observation")

	s.create(body)
	s.post("/Patient", body, "If-None-Exist", "identifier=urn:s|1").issue(412, "multiple-matches")
	s.post("/Patient", body, "If-None-Exist", "unknown=1").issue(400, "not-supported", "unknown")
	s.post("/Patient", body, "If-None-Exist", "_sort=family").issue(400, "invalid", "_sort")
	s.post("/Patient", `{"resourceType":"Patient","nme":1}`, "If-None-Exist", "identifier=urn:s|1").want(422)
}

// http.html#ccreate under concurrency: of many requests with one condition, one
// creates.
func TestConditionalCreateRace(t *testing.T) {
	s := start(t)
	const n = 50
	body := `{"resourceType":"Patient","identifier":[{"system":"urn:race","value":"1"}]}`
	status := parallel(n, func(int) int {
		a, err := s.try("POST", "/Patient", body, "If-None-Exist", "identifier=urn:race|1")
		if err != nil {
			return -1
		}
		return a.status
	})
	if status[201] != 1 || status[200] != n-1 {
		t.Errorf("statuses %v, want one 201 and %d 200", status, n-1)
	}
	s.get("/Patient?identifier=urn:race|1").want(200).equal("total", "1")
}

// parallel runs f n times at once and counts its results.
func parallel(n int, f func(i int) int) map[int]int {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count = make(map[int]int)
		begin = make(chan struct{})
	)
	for i := range n {
		wg.Go(func() {
			<-begin
			r := f(i)
			mu.Lock()
			count[r]++
			mu.Unlock()
		})
	}
	close(begin)
	wg.Wait()
	return count
}

func TestManyCreatesAtOnce(t *testing.T) {
	s := start(t)
	const n = 100
	status := parallel(n, func(i int) int {
		body := fmt.Sprintf(`{"resourceType":"Patient","identifier":[{"value":"%d"}]}`, i)
		if i%10 == 9 {
			body = `{"resourceType":"Patient","nme":1}`
		}
		a, err := s.try("POST", "/Patient", body)
		if err != nil {
			return -1
		}
		return a.status
	})
	if status[201] != 90 || status[422] != 10 {
		t.Errorf("statuses %v, want 90 of 201 and 10 of 422: a bad write must not fail its neighbours", status)
	}
	s.get("/Patient?_summary=count").want(200).equal("total", "90")
}
