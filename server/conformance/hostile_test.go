package conformance

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"kiln/server"
)

// Input that is meant to break something is answered by an OperationOutcome with
// a 4xx that names the place, and by nothing worse.
func TestHostileBodies(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Server.MaxBodyBytes = 4 << 20 })
	deep := func(open, close string, n int) string { return strings.Repeat(open, n) + strings.Repeat(close, n) }
	patient := func(rest string) string { return `{"resourceType":"Patient",` + rest + `}` }
	for _, tt := range []struct {
		name, body string
		wantPlace  string // the place named by the outcome
	}{
		{"10,000 arrays in each other", patient(`"name":` + deep("[", "]", 10000)), "Patient.name"},
		{"10,000 objects in each other", patient(`"extension":[` + strings.Repeat(`{"url":"u","extension":[`, 10000) + strings.Repeat(`]}`, 10000) + `]`), ""},
		{"10,000 contained resources in each other", `{"resourceType":"Patient",` + strings.Repeat(`"contained":[{"resourceType":"Patient",`, 10000) + `"id":"x"` + strings.Repeat(`}]`, 10000) + `}`, ""},
		{"deep nesting where nothing is known", patient(`"nonsense":` + deep("[", "]", 10000)), ""},
		{"only open brackets", deep("[", "", 100000), ""},
		{"invalid UTF-8", patient("\"name\":[{\"family\":\"a\xff\xfeb\"}]"), "UTF-8"},
		{"an overlong encoding", patient("\"name\":[{\"family\":\"\xc0\x80\"}]"), "UTF-8"},
		{"a NUL byte", patient("\"name\":[{\"family\":\"a\x00b\"}]"), ""},
		{"an escaped NUL", patient(`"name":[{"family":"a\u0000b"}]`), "Patient.name"},
		{"half a surrogate pair", patient(`"name":[{"family":"\ud800"}]`), ""},
		{"a property twice", patient(`"active":true,"active":false`), "active"},
		{"resourceType twice", `{"resourceType":"Patient","resourceType":"Observation"}`, "resourceType"},
		{"an enormous number", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":` + strings.Repeat("9", 100000) + `}}`, ""},
		{"a string in the place of an object", patient(`"name":"x"`), "Patient.name"},
		{"an object in the place of an array", patient(`"name":{"family":"x"}`), "Patient.name"},
		{"a number in the place of a string", patient(`"birthDate":1970`), "Patient.birthDate"},
		{"a string in the place of a number", patient(`"multipleBirthInteger":"1"`), "Patient.multipleBirth"},
		{"a string in the place of a boolean", patient(`"active":"true"`), "Patient.active"},
		{"null", patient(`"active":null`), "Patient.active"},
		{"an empty array", patient(`"name":[]`), "Patient.name"},
		{"an empty object", patient(`"name":[{}]`), "Patient.name"},
		{"an empty string", patient(`"name":[{"family":""}]`), "Patient.name[0].family"},
		{"an array of null", patient(`"name":[null]`), "Patient.name"},
		{"an unknown element", patient(`"nme":1`), "nme"},
		{"two values of a choice", patient(`"multipleBirthInteger":1,"multipleBirthBoolean":true`), "multipleBirth"},
		{"a trailing comma", patient(`"active":true,`), ""},
		{"text after the resource", patient(`"active":true`) + "x", ""},
		{"two resources", patient(`"active":true`) + patient(`"active":true`), ""},
		{"an array", `[]`, ""},
		{"a string", `"Patient"`, ""},
		{"a comment", `{/* x */"resourceType":"Patient"}`, ""},
		{"NaN", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":NaN}}`, ""},
		{"single quotes", `{'resourceType':'Patient'}`, ""},
		{"a prototype", patient(`"__proto__":{"x":1}`), "__proto__"},
		{"resourceType of another shape", `{"resourceType":{"a":1}}`, "resourceType"},
		{"an id that is none", `{"resourceType":"Patient","id":"../../etc"}`, ""},
	} {
		for _, path := range []string{"/Patient", "/"} {
			t.Run(tt.name+" to "+path, func(t *testing.T) {
				body, place := tt.body, tt.wantPlace
				if path == "/" {
					place = strings.Replace(place, "Patient.", "Bundle.entry[0].resource.", 1)
					body = `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":` + tt.body + `,"request":{"method":"POST","url":"Patient"}}]}`
				} else if strings.Contains(body, `"Observation","status"`) {
					path = "/Observation"
				}
				a := s.in(t).post(path, body)
				if a.status < 400 || a.status > 499 || a.str("resourceType") != "OperationOutcome" {
					if tt.name == "an id that is none" && (a.status == 201 || a.status == 200) {
						return // a create ignores the body's id
					}
					t.Fatalf("status %d, want a 4xx OperationOutcome\n%s", a.status, clip(a.body))
				}
				if !strings.Contains(string(a.body), place) {
					t.Errorf("the outcome does not name %q\n%s", place, clip(a.body))
				}
				checkNoLeak(t, a)
			})
		}
	}
	t.Run("a body over the limit: 413 (contract)", func(t *testing.T) {
		s := s.in(t)
		big := patient(`"name":[{"family":"` + strings.Repeat("x", 5<<20) + `"}]`)
		s.post("/Patient", big).issue(413, "too-long", "server.max_body_bytes")
		// Clients that read no answer before all is sent get one too.
		for range 5 {
			s.post("/Patient", big).want(413)
		}
	})
	t.Run("the service is still there", func(t *testing.T) {
		s.in(t).get("/health/ready").want(200)
		s.in(t).get("/Patient?_summary=count").want(200)
	})
}

// Clients that stop in the middle of large bodies do not hold up the others, also where they have taken
// up the 16 MB in which bodies arrive.
func TestStalledUploads(t *testing.T) {
	s := start(t)
	host := strings.TrimSuffix(strings.TrimPrefix(s.base, "http://"), "/fhir")
	for _, length := range []int{20_000_000, 20_000_000, 20_000_000, 4_000_000, 4_000_000, 4_000_000, 4_000_000, 770_000} {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /Patient HTTP/1.1\r\nHost: x\r\nContent-Type: application/fhir+json\r\nContent-Length: %d\r\n\r\n%s", length,
			`{"resourceType":"Patient","name":[{"family":"`+strings.Repeat("x", 400_000))
	}
	var entries []string
	for range 2000 {
		entries = append(entries, entry("POST", "Patient", "", `{"resourceType":"Patient","name":[{"family":"`+strings.Repeat("x", 100)+`"}]}`))
	}
	// Were they in the way, this would wait until they are given up.
	s.post("/", bundle("transaction", entries...)).want(200)
}

// A number is kept as written, however large, or refused by name.
func TestHugeExponent(t *testing.T) {
	s := start(t)
	for _, value := range []string{"1e400", "-1E400", "1e-400", "1e999999999", "0.1e99999999999999999999"} {
		a := s.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":`+value+`}}`)
		if a.status >= 500 || a.status == 201 && !strings.Contains(string(a.body), value) {
			t.Errorf("%s: status %d\n%s", value, a.status, clip(a.body))
		}
		checkNoLeak(t, a)
		q := s.get("/Observation?value-quantity=" + url.QueryEscape(value))
		if q.status >= 500 {
			t.Errorf("search for %s: status %d\n%s", value, q.status, clip(q.body))
		}
	}
}

// SQL in every field: stored as it came, found as it came, and nothing happens.
func TestSQLInEveryField(t *testing.T) {
	s := start(t)
	for _, evil := range []string{`'; DROP TABLE resource; --`, `" OR "1"="1`, `$1`, `\'; SELECT pg_sleep(10); --`, `%`, `_`, `x' UNION SELECT body FROM resource --`, `{"$ne":1}`} {
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(evil)
		id := s.create(`{"resourceType":"Patient","identifier":[{"system":"` + "urn:s" + `","value":"` + quoted + `"}],"name":[{"family":"` + quoted + `","given":["` + quoted + `"]}],"address":[{"city":"` + quoted + `"}]}`)
		s.get("/Patient/"+id).want(200).equal("name.0.family", evil)
		for _, param := range []string{"family", "family:exact", "family:contains", "given", "address-city", "identifier", "_id", "_tag", "birthdate", "organization", "_sort", "_include", "_count", "_offset", "_cursor", "_elements", "_summary", "_type", evil} {
			v := url.Values{param: {evil}}
			a := s.get("/Patient?" + v.Encode())
			if a.status >= 500 {
				t.Errorf("%s=%s: status %d\n%s", param, evil, a.status, clip(a.body))
			}
			checkNoLeak(t, a)
		}
		for _, path := range []string{"/Patient/" + url.PathEscape(evil), "/" + url.PathEscape(evil), "/Patient/" + id + "/_history/" + url.PathEscape(evil), "/Patient/" + id + "/" + url.PathEscape(evil), "/Patient/$" + url.PathEscape(evil)} {
			if a := s.get(path); a.status < 400 || a.status >= 500 {
				t.Errorf("%s: status %d\n%s", path, a.status, clip(a.body))
			} else {
				checkNoLeak(t, a)
			}
		}
		for _, header := range []string{"If-None-Exist", "If-Match", "Prefer", "Accept", "Content-Type", "If-None-Match"} {
			a := s.put("/Patient/evil", `{"resourceType":"Patient","id":"evil"}`, header, evil)
			if a.status >= 500 {
				t.Errorf("%s: %s: status %d\n%s", header, evil, a.status, clip(a.body))
			}
			checkNoLeak(t, a)
		}
	}
	s.get("/Patient?_summary=count").want(200)
}

var leaks = []*regexp.Regexp{
	regexp.MustCompile(`SQLSTATE|pgx|pgconn|PostgreSQL`),
	regexp.MustCompile(`(?i)\b(select|insert|update|delete)\b.{0,60}\b(from|into|set|where)\b.{0,40}(\$\d|resource_history|index_)`),
	regexp.MustCompile(`goroutine \d|runtime error|\.go:\d`),
	regexp.MustCompile(`(^|[\s"'(])/(home|root|work|tmp|usr|var)/\w`),
}

// checkNoLeak fails when an error body shows SQL, a path or a stack.
func checkNoLeak(t testing.TB, a *answer) {
	t.Helper()
	if a.status < 400 {
		return
	}
	for _, l := range leaks {
		if found := l.Find(a.body); found != nil {
			t.Errorf("%s: the error body leaks %q\n%s", a.what, found, clip(a.body))
		}
	}
}

// contract: an error that nobody expected says its request id, and no more.
func TestErrorsLeakNothing(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/Patient/nobody", "/Nobody", "/Patient?x=1", "/Patient/1/_history/x", "/$x", "/Patient/1/$x"} {
		a := s.get(path)
		if a.status < 400 {
			t.Errorf("%s: status %d", path, a.status)
		}
		checkNoLeak(t, a)
		if a.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: no X-Request-Id", path)
		}
	}
	for _, method := range []string{"TRACE", "FOO", "CONNECTED"} {
		a := s.do(method, "/Patient", "")
		if a.status != 405 {
			t.Errorf("%s: status %d, want 405", method, a.status)
		}
		checkNoLeak(t, a)
	}
}
