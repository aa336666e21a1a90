package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// exported is the result of a view's export: the locations by output.
func (s *service) exported(body string, headers ...string) (status string, result *answer) {
	s.t.Helper()
	a := s.post("/$sql-export", body, append([]string{"Prefer", "respond-async"}, headers...)...).want(202)
	status = a.header.Get("Content-Location")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		a := s.get(status)
		if a.status == 303 {
			return status, s.get(a.header.Get("Location"))
		}
		if a.want(202); time.Now().After(deadline) {
			s.t.Fatal("the export does not end")
		}
	}
}

// outputs are the locations of an export's result, by the names of the outputs.
func (a *answer) outputs() map[string][]string {
	a.t.Helper()
	var p struct {
		Parameter []struct {
			Name string
			Part []struct{ Name, ValueString, ValueUri string }
		}
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		a.t.Fatal(err)
	}
	out := make(map[string][]string)
	for _, q := range p.Parameter {
		if q.Name != "output" {
			continue
		}
		name := ""
		for _, part := range q.Part {
			switch part.Name {
			case "name":
				name = part.ValueString
			case "location":
				out[name] = append(out[name], part.ValueUri)
			}
		}
	}
	return out
}

// contract, Views 4
func TestExportOfViews(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Jobs.MaxPerClient, c.Bulk.MaxFileMB = 100, 1 })
	s.put("/ViewDefinition/everyone", everyone).want(201)
	var entries []string
	for i := range 1500 {
		entries = append(entries, fmt.Sprintf(`{"resource":{"resourceType":"Patient","id":"p%d","name":[{"family":%q}]},"request":{"method":"PUT","url":"Patient/p%d"}}`, i, strings.Repeat("n", 1000), i))
	}
	s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	s.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/p7"}}]}`).want(201)
	subject := func(parts ...string) string { return `{"name":"subject","part":[` + strings.Join(parts, ",") + `]}` }
	stored := `{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/everyone"}}`

	t.Run("each output is files, each whole in its format", func(t *testing.T) {
		s := s.in(t)
		status, a := s.exported(inParameters(subject(stored), subject(`{"name":"name","valueString":"second one"}`, `{"name":"subjectResource","resource":`+everyone+`}`), `{"name":"_format","valueCode":"csv"}`, `{"name":"clientTrackingId","valueString":"mine"}`))
		a.want(200)
		outputs := a.outputs()
		if len(outputs) != 2 || len(outputs["everyone"]) != 2 || len(outputs["second one"]) != 2 || !strings.Contains(string(a.body), `"completed"`) || !strings.Contains(string(a.body), `"mine"`) {
			t.Fatalf("the result is %s", a.body)
		}
		var got []string
		for _, location := range outputs["everyone"] {
			f := s.get(location).want(200).has("Content-Type", "text/csv")
			header, rest, _ := strings.Cut(string(f.body), "\r\n")
			if header != "id,family" || !strings.HasSuffix(rest, "\r\n") || !strings.HasSuffix(location, ".csv") {
				t.Errorf("%s begins %q", location, header)
			}
			got = append(got, strings.Split(strings.TrimSuffix(rest, "\r\n"), "\r\n")...)
		}
		whole := strings.Split(strings.TrimSuffix(string(s.get("/$sql-run?subjectReference=ViewDefinition/everyone&_format=csv&header=false").want(200).body), "\r\n"), "\r\n")
		slices.Sort(got)
		slices.Sort(whole)
		if !slices.Equal(got, whole) {
			t.Errorf("the export has %d rows that differ from the %d of a run", len(got), len(whole))
		}
		s.do("DELETE", status, "").want(202)
		s.get(status).want(404)
		s.get(outputs["everyone"][0]).want(404)
	})
	t.Run("an output without rows is a file", func(t *testing.T) {
		s := s.in(t)
		_, a := s.exported(inParameters(subject(stored), `{"name":"_format","valueCode":"json"}`, `{"name":"_since","valueInstant":"2999-01-01T00:00:00Z"}`))
		if f := s.get(a.want(200).outputs()["everyone"][0]).want(200); string(f.body) != "[]\n" {
			t.Errorf("the file is %q", f.body)
		}
		_, a = s.exported(inParameters(subject(stored), `{"name":"group","valueReference":{"reference":"Group/g"}}`))
		if got := rows(s.get(a.want(200).outputs()["everyone"][0])); len(got) != 1 || !strings.Contains(got[0], `"p7"`) {
			t.Errorf("the rows of a group are %v", got)
		}
	})
	t.Run("a failed result is its error", func(t *testing.T) {
		s := s.in(t)
		_, a := s.exported(inParameters(subject(`{"name":"subjectResource","resource":` + strings.Replace(everyone, "name.family.first()", "(name.family | 'x').single()", 1) + `}`)))
		a.issue(422, "invalid", "Patient/p", "family")
	})
	t.Run("errors of the kick-off", func(t *testing.T) {
		s := s.in(t)
		one := subject(stored)
		for _, tt := range []struct{ body, code, at string }{
			{inParameters(`{"name":"_format","valueCode":"csv"}`), "required", "subject"},
			{inParameters(one, `{"name":"_limit","valueInteger":1}`), "invalid", "_limit"},
			{inParameters(one, `{"name":"resource","resource":{"resourceType":"Patient"}}`), "invalid", "resource"},
			{inParameters(one, one), "invalid", "subject"},
			{inParameters(one, `{"name":"_format","valueCode":"fhir"}`), "not-supported", "_format"},
			{inParameters(one, `{"name":"source","valueString":"x"}`), "not-supported", "source"},
			{inParameters(one, `{"name":"patient","valueReference":{"reference":"Patient/none"}}`), "not-found", "patient"},
			{inParameters(subject(`{"name":"name","valueString":"x"}`)), "required", "subjectCanonical"},
		} {
			s.post("/$sql-export", tt.body, "Prefer", "respond-async").issue(400, tt.code).equal("issue.0.expression.0", tt.at)
		}
		s.post("/$sql-export", inParameters(one)).issue(400, "required").equal("issue.0.expression.0", "Prefer")
		s.post("/$sql-export", inParameters(subject(`{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/none"}}`)), "Prefer", "respond-async").issue(404, "not-found")
		s.post("/ViewDefinition/$viewdefinition-export", inParameters(`{"name":"view","part":[{"name":"viewReference","valueReference":{"reference":"ViewDefinition/everyone"}}]}`), "Prefer", "respond-async").want(202)
	})
}

// contract, Views 4
func TestRightsOfAnExport(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	twoPatients(s)
	body := inParameters(`{"name":"subject","part":[{"name":"subjectResource","resource":` + everyone + `}]}`)
	s.as(systemClient("system/Patient.r")).in(t).post("/$sql-export", body, "Prefer", "respond-async").issue(403, "forbidden", "Patient")
	a := s.as(patientApp("a", "patient/*.rs")).in(t)
	_, result := a.exported(body)
	location := result.want(200).outputs()["everyone"][0]
	wantRows(t, a.get(location), `{"id":"a","family":"secret-a"}`)
	s.as(patientApp("b", "patient/*.rs")).in(t).get(location).want(404)
	s.in(t).get(location).issue(401, "login")
}
