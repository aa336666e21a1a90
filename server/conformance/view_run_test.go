package conformance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"kiln/server"
)

// heights is a view of Observation that the index can find resources of.
const heights = `{"resourceType":"ViewDefinition","id":"heights","url":"http://example.org/heights","version":"1.0.0","name":"heights","status":"active","resource":"Observation",
	"constant":[{"name":"c","valueCode":"8302-2"}],
	"select":[{"column":[{"name":"id","path":"getResourceKey()"},{"name":"patient_id","path":"subject.getReferenceKey(Patient)"},{"name":"cm","path":"value.ofType(Quantity).value"}]}],
	"where":[{"path":"code.coding.exists(system = %loinc and code = %c)"}]}`

// everyone is a view of all patients.
const everyone = `{"resourceType":"ViewDefinition","id":"everyone","url":"http://example.org/everyone","name":"everyone","status":"active","resource":"Patient",
	"select":[{"column":[{"name":"id","path":"id"},{"name":"family","path":"name.family.first()"}]}]}`

func heightObservation(id, patient, code, value string) string {
	return fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":"final","code":{"coding":[{"system":"http://loinc.org","code":%q}]},"subject":{"reference":"Patient/%s"},"valueQuantity":{"value":%s,"unit":"cm"}}`, id, code, patient, value)
}

// rows are the lines of NDJSON, sorted.
func rows(a *answer) []string {
	a.t.Helper()
	if a.status != 200 {
		a.t.Fatalf("%s: %d %s", a.what, a.status, a.body)
	}
	lines := strings.Split(strings.TrimSuffix(string(a.body), "\n"), "\n")
	if len(a.body) == 0 {
		lines = nil
	}
	slices.Sort(lines)
	return lines
}

func wantRows(t *testing.T, a *answer, want ...string) {
	t.Helper()
	if got := rows(a); !slices.Equal(got, want) {
		t.Errorf("%s: the rows are\n%s\nwant\n%s", a.what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func inParameters(parts ...string) string {
	return `{"resourceType":"Parameters","parameter":[` + strings.Join(parts, ",") + `]}`
}

// metric is the value of a metric.
func (s *service) metric(name string) string {
	s.t.Helper()
	for line := range strings.Lines(string(s.do("GET", s.root("/metrics"), "").body)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// contract, Views 3
func TestRunOfAView(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Views.StallTimeout, c.Views.ConcurrentRuns = "500ms", 2 })
	s.put("/ViewDefinition/heights", heights).want(201)
	s.put("/ViewDefinition/everyone", everyone).want(201)
	s.put("/Patient/1", `{"resourceType":"Patient","id":"1","name":[{"family":"Müller, \"A\""}]}`).want(201)
	s.put("/Patient/2", `{"resourceType":"Patient","id":"2"}`).want(201)
	s.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/2"}}]}`).want(201)
	for i, p := range []string{"1", "2", "2"} {
		s.put(fmt.Sprintf("/Observation/h%d", i), heightObservation(fmt.Sprintf("h%d", i), p, "8302-2", fmt.Sprintf("17%d.50", i))).want(201)
		s.put(fmt.Sprintf("/Observation/w%d", i), heightObservation(fmt.Sprintf("w%d", i), p, "29463-7", "70")).want(201)
	}
	h0, h1, h2 := `{"id":"h0","patient_id":"1","cm":170.50}`, `{"id":"h1","patient_id":"2","cm":171.50}`, `{"id":"h2","patient_id":"2","cm":172.50}`
	canonical := url.QueryEscape("http://example.org/heights")

	t.Run("a subject is a canonical, a reference or the view itself", func(t *testing.T) {
		s := s.in(t)
		for _, path := range []string{"/$sql-run?subjectCanonical=" + canonical, "/$sql-run?subjectCanonical=" + canonical + "%7C1.0.0", "/$sql-run?subjectReference=ViewDefinition/heights",
			"/$sql-run?subjectReference=" + url.QueryEscape(s.base+"/ViewDefinition/heights"), "/$viewdefinition-run?viewReference=ViewDefinition/heights", "/$viewdefinition-run?viewReference=" + canonical,
			"/ViewDefinition/$viewdefinition-run?viewReference=ViewDefinition/heights", "/ViewDefinition/heights/$viewdefinition-run"} {
			wantRows(t, s.get(path), h0, h1, h2)
		}
		inline := strings.Replace(heights, `"status":"active",`, "", 1)
		wantRows(t, s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+inline+`}`)), h0, h1, h2)
		wantRows(t, s.post("/ViewDefinition/$viewdefinition-run", inParameters(`{"name":"viewResource","resource":`+inline+`}`, `{"name":"_limit","valueInteger":0}`)))
		s.put("/ViewDefinition/old", strings.Replace(strings.Replace(heights, `"heights","url"`, `"old","url"`, 1), `"8302-2"`, `"29463-7"`, 1)).want(201)
		s.put("/ViewDefinition/new", strings.NewReplacer(`"heights","url"`, `"new","url"`, `"1.0.0"`, `"1.10.0"`, `"8302-2"`, `"none"`).Replace(heights)).want(201)
		s.put("/ViewDefinition/draft", strings.NewReplacer(`"heights","url"`, `"draft","url"`, `"1.0.0"`, `"2.0.0"`, `"active"`, `"draft"`).Replace(heights)).want(201)
		wantRows(t, s.get("/$sql-run?subjectCanonical="+canonical))
		for _, id := range []string{"old", "new", "draft"} {
			s.do("DELETE", "/ViewDefinition/"+id, "").want(204)
		}
	})
	t.Run("errors name the parameter", func(t *testing.T) {
		s := s.in(t)
		for _, tt := range []struct {
			method, path, body string
			status             int
			code, at           string
		}{
			{"GET", "/$sql-run", "", 400, "required", "subjectCanonical"},
			{"GET", "/$sql-run?subjectCanonical=x&subjectReference=ViewDefinition/heights", "", 400, "invalid", ""},
			{"GET", "/$sql-run?subjectResource=x", "", 400, "invalid", "subjectResource"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&resource=x", "", 400, "invalid", "resource"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&_limit=-1", "", 400, "invalid", "_limit"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&_since=yesterday", "", 400, "invalid", "_since"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&header=no", "", 400, "invalid", "header"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&_format=xml", "", 400, "not-supported", "_format"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&source=s3", "", 400, "not-supported", "source"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&patient=Patient/9", "", 400, "not-found", "patient"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/heights&group=Group/9", "", 400, "not-found", "group"},
			{"GET", "/$sql-run?subjectReference=ViewDefinition/none", "", 404, "not-found", "subjectReference"},
			{"GET", "/$sql-run?subjectCanonical=http://example.org/none", "", 404, "not-found", "subjectCanonical"},
			{"GET", "/$sql-run?subjectReference=Patient/1", "", 422, "invalid", "subjectReference"},
			{"GET", "/ViewDefinition/heights/$viewdefinition-run?viewReference=ViewDefinition/heights", "", 400, "invalid", "viewReference"},
			{"POST", "/$sql-run", inParameters(`{"name":"subjectResource","resource":{"resourceType":"Patient"}}`), 422, "invalid", "subjectResource"},
			{"POST", "/$sql-run", inParameters(`{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/heights"}}`, `{"name":"resource","resource":{"resourceType":"Patient"}}`, `{"name":"patient","valueReference":{"reference":"Patient/1"}}`), 400, "invalid", "resource"},
			{"POST", "/$sql-run", inParameters(`{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/heights"}}`, `{"name":"parameters","resource":{"resourceType":"Parameters"}}`), 400, "invalid", "parameters"},
		} {
			a := s.do(tt.method, tt.path, tt.body).issue(tt.status, tt.code)
			if tt.at != "" && a.str("issue.0.expression.0") != tt.at {
				t.Errorf("%s %s: the expression is %s, want %s", tt.method, tt.path, a.str("issue.0.expression.0"), tt.at)
			}
		}
		s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+strings.Replace(everyone, "name.family.first()", "nam.family", 1)+`}`)).issue(422, "invalid").equal("issue.0.expression.0", "ViewDefinition.select[0].column[1].path")
		s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+strings.Replace(everyone, "name.family.first()", "name.family.single()", 1)+`}`, `{"name":"resource","resource":{"resourceType":"Patient","id":"x","name":[{"family":"a"},{"family":"b"}]}}`)).issue(422, "invalid", "Patient/x", "family")
	})
	t.Run("formats by _format and Accept", func(t *testing.T) {
		s := s.in(t)
		path := "/$sql-run?subjectReference=ViewDefinition/everyone&_limit=1"
		csv := "id,family\r\n1,\"Müller, \"\"A\"\"\"\r\n"
		for _, a := range []*answer{s.get(path + "&_format=csv"), s.get(path + "&_format=text/csv"), s.get(path, "Accept", "text/csv"), s.get(path, "Accept", "image/png;q=0.1, text/csv")} {
			if string(a.want(200).body) != csv || !strings.HasPrefix(a.header.Get("Content-Type"), "text/csv") {
				t.Errorf("%s: %s %q", a.what, a.header.Get("Content-Type"), a.body)
			}
		}
		if a := s.get(path + "&_format=csv&header=false").want(200); string(a.body) != csv[len("id,family\r\n"):] {
			t.Errorf("without header: %q", a.body)
		}
		if a := s.get(path, "Accept", "application/json").want(200); string(a.body) != `[{"id":"1","family":"Müller, \"A\""}]`+"\n" {
			t.Errorf("json: %s", a.body)
		}
		if a := s.get("/$sql-run?subjectReference=ViewDefinition/everyone&_since=2999-01-01T00:00:00Z&_format=json").want(200); string(a.body) != "[]\n" {
			t.Errorf("json without rows: %s", a.body)
		}
		binary := s.get(path+"&_format=csv", "Accept", "application/fhir+json").want(200).equal("resourceType", "Binary").equal("contentType", "text/csv")
		if data, err := base64.StdEncoding.DecodeString(binary.str("data")); err != nil || string(data) != csv {
			t.Errorf("Binary: %q %v", data, err)
		}
		s.get(path, "Accept", "image/png").want(406)
		zipped := s.get(path+"&_format=csv", "Accept-Encoding", "gzip").want(200).has("Content-Encoding", "gzip")
		z, err := gzip.NewReader(bytes.NewReader(zipped.body))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(z); err != nil || string(body) != csv {
			t.Errorf("gzip: %q %v", body, err)
		}
		body := s.get("/$sql-run?subjectReference=ViewDefinition/everyone&_format=parquet").want(200).body
		if f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body))); err != nil || f.NumRows() != 2 {
			t.Errorf("parquet: %v", err)
		}
	})
	t.Run("patient, group and _since choose resources", func(t *testing.T) {
		s := s.in(t)
		path := "/$sql-run?subjectReference=ViewDefinition/heights"
		wantRows(t, s.get(path+"&patient=Patient/1"), h0)
		wantRows(t, s.get(path+"&patient=Patient/1&patient=Patient/2"), h0, h1, h2)
		wantRows(t, s.get(path+"&group=Group/g"), h1, h2)
		wantRows(t, s.get(path+"&group=Group/g&patient=Patient/1"))
		wantRows(t, s.get("/$sql-run?subjectReference=ViewDefinition/everyone&group=Group/g"), `{"id":"2","family":null}`)
		at, err := time.Parse(time.RFC3339Nano, s.get("/Observation/h1").str("meta.lastUpdated"))
		if err != nil {
			t.Fatal(err)
		}
		s.put("/Observation/h2", heightObservation("h2", "2", "8302-2", "172.50")).want(200) // at least a millisecond later
		since := url.QueryEscape(at.Add(time.Millisecond).Format(time.RFC3339Nano))
		wantRows(t, s.get(path+"&_since="+since), h2)
		wantRows(t, s.get(path+"&_limit=3&_since="+since), h2)
	})
	t.Run("inline resources take the place of stored ones", func(t *testing.T) {
		s := s.in(t)
		bundle := `{"resourceType":"Bundle","type":"collection","entry":[{"resource":{"resourceType":"Patient","id":"a"}},{"resource":{"resourceType":"Observation","id":"o","status":"final","code":{"text":"c"}}}]}`
		wantRows(t, s.post("/$sql-run", inParameters(`{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/everyone"}}`, `{"name":"resource","resource":`+bundle+`}`, `{"name":"resource","resource":{"resourceType":"Patient","id":"b"}}`)),
			`{"id":"a","family":null}`, `{"id":"b","family":null}`)
	})
	t.Run("an indexed where reads only matching resources", func(t *testing.T) {
		s := s.in(t)
		before := s.metric("service_view_resources_read_total")
		wantRows(t, s.get("/$sql-run?subjectReference=ViewDefinition/heights"), h0, h1, h2)
		var a, b float64
		fmt.Sscan(before, &a)
		fmt.Sscan(s.metric("service_view_resources_read_total"), &b)
		if b-a != 3 {
			t.Errorf("the run decoded %v resources, want 3", b-a)
		}
	})
	t.Run("an error behind the first 64 KiB cuts the connection", func(t *testing.T) {
		s := s.in(t)
		name := strings.Repeat("n", 1000)
		var parts []string
		for i := range 200 {
			parts = append(parts, fmt.Sprintf(`{"name":"resource","resource":{"resourceType":"Patient","id":"%d","name":[{"family":%q}]}}`, i, name))
		}
		parts = append(parts, `{"name":"resource","resource":{"resourceType":"Patient","id":"bad","name":[{"family":"a"},{"family":"b"}]}}`,
			`{"name":"subjectResource","resource":`+strings.Replace(everyone, "name.family.first()", "name.family", 1)+`}`)
		for _, f := range []string{"json", "ndjson", "csv"} {
			_, err := s.try("POST", "/$sql-run", inParameters(append(parts, `{"name":"_format","valueCode":"`+f+`"}`)...), "Accept-Encoding", "identity")
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: got %v, want a body that ends early", f, err)
			}
		}
	})
	t.Run("a client that does not read is cut off, others wait for a place", func(t *testing.T) {
		s := s.in(t)
		s.do("PUT", s.root("/admin/config/views/concurrent_runs"), `{"value":1}`).want(200)
		many := strings.Repeat(`{"value":"x"},`, 900)
		body := inParameters(`{"name":"resource","resource":{"resourceType":"Patient","id":"many","identifier":[`+many[:len(many)-1]+`]}}`,
			`{"name":"subjectResource","resource":{"resourceType":"ViewDefinition","resource":"Patient","select":[{"forEach":"identifier","column":[{"name":"a","path":"value"}]},{"forEach":"identifier","column":[{"name":"b","path":"value"}]},{"forEach":"identifier","column":[{"name":"c","path":"value"}]}]}}`)
		address, _ := url.Parse(s.base)
		conn, err := net.Dial("tcp", address.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s/$sql-run HTTP/1.1\r\nHost: %s\r\nContent-Type: application/fhir+json\r\nContent-Length: %d\r\n\r\n%s", address.Path, address.Host, len(body), body)
		before := time.Now()
		for s.metric(`service_view_runs_total{format="json",outcome="failed"}`) == "" && time.Since(before) < 100*time.Millisecond {
			time.Sleep(10 * time.Millisecond) // the run takes the only place
		}
		wantRows(t, s.get("/$sql-run?subjectReference=ViewDefinition/heights"), h0, h1, h2) // when the other one was cut off
		if waited := time.Since(before); waited < 400*time.Millisecond {
			t.Errorf("the second run waited %s for the only place", waited)
		}
		deadline := time.Now().Add(15 * time.Second)
		for s.metric(`service_view_runs_total{format="ndjson",outcome="failed"}`) == "" || !s.failedMore() {
			if time.Now().After(deadline) {
				t.Fatal("the run of a client that does not read goes on")
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Run("the operations are in /metadata", func(t *testing.T) {
		text := string(s.in(t).get("/metadata").want(200).body)
		for _, name := range []string{`"sql-run"`, `"viewdefinition-run"`} {
			if !strings.Contains(text, name) {
				t.Errorf("/metadata lacks %s", name)
			}
		}
		s.in(t).get("/OperationDefinition/sql-run").want(200).equal("base", "http://hl7.org/fhir/uv/sql-on-fhir/OperationDefinition/SQLRun")
	})
	t.Run("views.enabled is off", func(t *testing.T) {
		s := s.in(t)
		s.do("PUT", s.root("/admin/features/views"), `{"enabled":false}`).want(200)
		defer s.do("DELETE", s.root("/admin/features/views"), "")
		s.get("/$sql-run?subjectReference=ViewDefinition/heights").issue(501, "not-supported")
	})
}

// failedMore reports whether a run has failed since the first call of a test.
func (s *service) failedMore() bool {
	var n float64
	fmt.Sscan(s.metric(`service_view_runs_total{format="ndjson",outcome="failed"}`), &n)
	return n > 0
}

// contract, Views 3
func TestRightsOfARun(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	all := s.as(systemClient("system/*.cruds"))
	all.put("/ViewDefinition/everyone", everyone).want(201)
	all.put("/ViewDefinition/codes", `{"resourceType":"ViewDefinition","id":"codes","status":"active","resource":"Observation","select":[{"column":[{"name":"id","path":"id"}]}]}`).want(201)
	all.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/a"}},{"entity":{"reference":"Patient/b"}}]}`).want(201)
	run := func(view string) string { return "/$sql-run?subjectReference=ViewDefinition/" + view }
	t.Run("r and s on the type, r on ViewDefinition", func(t *testing.T) {
		for scope, says := range map[string]string{"system/Patient.r system/ViewDefinition.r": "Patient", "system/Patient.s system/ViewDefinition.r": "Patient", "system/Patient.rs": "ViewDefinition"} {
			s.as(systemClient(scope)).in(t).get(run("everyone")).issue(403, "forbidden", says)
		}
		wantRows(t, s.as(systemClient("system/Patient.rs system/ViewDefinition.r")).in(t).get(run("everyone")), `{"id":"a","family":"secret-a"}`, `{"id":"b","family":"secret-b"}`)
		s.in(t).get(run("everyone")).issue(401, "login")
		one := s.as(systemClient("system/Encounter.r")).in(t)
		wantRows(t, one.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+everyone+`}`, `{"name":"resource","resource":{"resourceType":"Patient","id":"x"}}`)), `{"id":"x","family":null}`)
	})
	t.Run("compartments and granular scopes are part of a run", func(t *testing.T) {
		a := s.as(patientApp("a", "patient/*.rs")).in(t)
		wantRows(t, a.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+everyone+`}`)), `{"id":"a","family":"secret-a"}`)
		codes := `{"resourceType":"ViewDefinition","resource":"Observation","select":[{"column":[{"name":"id","path":"id"}]}]}`
		wantRows(t, a.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+codes+`}`)), `{"id":"obs-a"}`, `{"id":"vital-a"}`)
		labs := s.as(systemClient("system/Observation.rs?category=laboratory system/ViewDefinition.r")).in(t)
		wantRows(t, labs.get(run("codes")), `{"id":"obs-a"}`, `{"id":"obs-b"}`)
	})
	t.Run("a hidden patient, group or view answers like an absent one", func(t *testing.T) {
		a := s.as(patientApp("a", "patient/*.rs")).in(t)
		for _, p := range [][2]string{{"patient", "Patient/b"}, {"patient", "Patient/none"}, {"group", "Group/none"}} {
			a.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+everyone+`}`, `{"name":"`+p[0]+`","valueReference":{"reference":"`+p[1]+`"}}`)).issue(400, "not-found").equal("issue.0.expression.0", p[0])
		}
	})
	t.Run("a patient/ scope writes no view", func(t *testing.T) {
		s.as(patientApp("a", "patient/*.cruds")).in(t).post("/ViewDefinition", everyone).want(403)
	})
}

// contract, Views 3: a run is one AuditEvent, which names operation and view.
func TestAuditOfARun(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Audit.Rest = "all" })
	s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+everyone+`}`)).want(200)
	a := s.events("subtype=sql-run", 1)
	query, err := base64.StdEncoding.DecodeString(a.str("entry.0.resource.entity.0.query"))
	if err != nil || a.len("entry") != 1 || !strings.Contains(string(query), "$sql-run") || !strings.Contains(string(query), url.QueryEscape("http://example.org/everyone")) {
		t.Errorf("the events are %s", a.body)
	}
}

// Two resources are always changed together: a run shows both or none of a change.
func TestRunShowsWholeTransactions(t *testing.T) {
	t.Parallel()
	s := start(t)
	pair := func(n int) string {
		return fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[
			{"resource":{"resourceType":"Patient","id":"l","name":[{"family":"%d"}]},"request":{"method":"PUT","url":"Patient/l"}},
			{"resource":{"resourceType":"Patient","id":"r","name":[{"family":"%d"}]},"request":{"method":"PUT","url":"Patient/r"}}]}`, n, n)
	}
	s.post("/", pair(0)).want(200)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if a, err := s.try("POST", "/", pair(n)); err != nil || a.status != 200 {
				return
			}
		}
	}()
	body := inParameters(`{"name":"subjectResource","resource":` + everyone + `}`)
	for range 300 {
		got := rows(s.post("/$sql-run", body))
		var pairs [2]struct{ Family string }
		for i := range got {
			if err := json.Unmarshal([]byte(got[i]), &pairs[i]); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != 2 || pairs[0] != pairs[1] {
			t.Fatalf("a torn run: %v", got)
		}
	}
	close(stop)
	<-done
}
