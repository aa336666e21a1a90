package conformance

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"kiln/server"
)

// validation.html, resource-operation-validate.html
func TestValidate(t *testing.T) {
	s := start(t)
	bad := `{"resourceType":"Observation","status":"finished","code":{"text":"x"}}` // not in the required value set
	good := `{"resourceType":"Observation","status":"final","code":{"text":"x"}}`

	t.Run("what breaks a rule is not stored: 422 (http.html#create)", func(t *testing.T) {
		s := s.in(t)
		s.post("/Observation", bad).issue(422, "invalid", "finished").equal("issue.0.expression.0", "Observation.status")
		s.post("/Observation", `{"resourceType":"Observation","status":"final"}`).issue(422, "invalid", "code")
		s.put("/Observation/v", `{"resourceType":"Observation","id":"v","status":"finished","code":{"text":"x"}}`).issue(422, "invalid")
		s.post("/", bundle("transaction", entry("POST", "Observation", "", good), entry("POST", "Observation", "", bad))).want(422).
			equal("issue.0.expression.0", "Bundle.entry[1].resource.status")
		id := s.create(good)
		s.do("PATCH", "/Observation/"+id, `[{"op":"replace","path":"/status","value":"finished"}]`, "Content-Type", jsonPatch).issue(422, "invalid", "finished")
		s.get("/Observation?_summary=count").want(200).equal("total", "1")
	})
	t.Run("a refusal tells errors, not warnings beside them (contract)", func(t *testing.T) {
		warned := `"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/patient-birthPlace","valueAddress":{"city":"Wien"}}],` // not on an Observation
		a := s.in(t).post("/Observation", `{"resourceType":"Observation",`+warned+bad[len(`{"resourceType":"Observation",`):]).want(422)
		a.equal("issue.0.severity", "error").equal("issue.0.expression.0", "Observation.status").equal("issue.1", "")
	})
	t.Run("$validate tells, and stores nothing", func(t *testing.T) {
		s := s.in(t)
		for _, path := range []string{"/Observation/$validate", "/Observation/x/$validate", "/$validate"} {
			s.post(path, bad).want(200).equal("resourceType", "OperationOutcome").equal("issue.0.severity", "error")
			s.post(path, good).want(200).equal("resourceType", "OperationOutcome")
		}
		s.post("/Observation/$validate", `{"resourceType":"Parameters","parameter":[{"name":"resource","resource":`+bad+`},{"name":"mode","valueCode":"create"}]}`).
			want(200).equal("issue.0.severity", "error")
		s.post("/Patient/$validate", good).want(200).equal("issue.0.severity", "error")
		s.post("/Observation/$validate?mode=nonsense", good).issue(400, "invalid", "nonsense")
		s.post("/Observation/$validate", `{"resourceType":"Observation","status":5}`).want(200).equal("issue.0.severity", "error")
		s.get("/Observation?_summary=count").want(200).equal("total", "1")
	})
	t.Run("mode delete ignores the content (valueset-resource-validation-mode.html)", func(t *testing.T) {
		s.in(t).post("/Observation/x/$validate", `{"resourceType":"Parameters","parameter":[{"name":"resource","resource":`+bad+`},{"name":"mode","valueCode":"delete"}]}`).
			want(200).equal("issue.0.severity", "information")
	})
	t.Run("mode profile needs a profile, and judges what is stored (resource-operation-validate.html)", func(t *testing.T) {
		s := s.in(t)
		s.post("/Patient/$validate?mode=profile", `{"resourceType":"Patient"}`).issue(400, "invalid", "profile")
		s.post("/Patient/$validate", `{"resourceType":"Parameters","parameter":[{"name":"resource","resource":{"resourceType":"Patient"}},{"name":"mode","valueCode":"profile"}]}`).issue(400, "invalid", "profile")
		id := s.create(good)
		s.get("/Observation/"+id+"/$validate?mode=profile&profile=http://hl7.org/fhir/StructureDefinition/bmi").want(200).equal("issue.0.severity", "error")
		s.get("/Observation/"+id+"/$validate?mode=profile&profile=http://hl7.org/fhir/StructureDefinition/Observation").want(200).equal("issue.0.severity", "information")
	})
	t.Run("errors of JSON and of rules are told together", func(t *testing.T) {
		const bad = `{"resourceType":"Observation","status":"finished","issued":"soon","foo":1,"subject":{"reference":"Device/1","display":5}}`
		s := s.in(t)
		for _, a := range []*answer{
			s.post("/Observation/$validate", bad).want(200), s.post("/Observation", bad).want(422),
			s.put("/Observation/bad", strings.Replace(bad, `"status"`, `"id":"bad","status"`, 1)).want(422),
		} {
			for _, want := range []string{"not a valid instant", "unknown element", "found finished", "code is required", "expected a string, found a number"} {
				if !strings.Contains(string(a.body), want) {
					t.Errorf("%q is not told: %s", want, a.body)
				}
			}
		}
		// An element of a wrong form is not missing.
		if a := s.in(t).post("/Observation/$validate", `{"resourceType":"Observation","status":5,"code":{"text":"x"}}`).want(200); strings.Contains(string(a.body), "status is required") {
			t.Errorf("told as missing: %s", a.body)
		}
	})
	t.Run("errors of JSON and of rules are told together, of every entry of a Bundle and after a patch", func(t *testing.T) {
		const patient, observation = `{"resourceType":"Patient","birthDate":"soon","name":[{"id":"a"}]}`, `{"resourceType":"Observation","id":"o","status":"finished","foo":1,"code":{"text":"x"}}`
		s := s.in(t)
		s.put("/Patient/p", `{"resourceType":"Patient","id":"p"}`).want(201)
		entries := []string{entry("POST", "Patient", "", patient), entry("PUT", "Observation/o", "", observation), entry("GET", "Patient/p", "", "")}
		transaction := s.post("/", bundle("transaction", entries...)).want(422)
		batch := s.post("/", bundle("batch", entries...)).want(200).equal("entry.0.response.status", "422 Unprocessable Entity").equal("entry.1.response.status", "422 Unprocessable Entity").
			equal("entry.2.response.status", "200 OK")
		for _, a := range []*answer{transaction, batch} {
			for _, want := range []string{"not a valid date", "ele-1", `unknown element \"foo\"`, "found finished", "Bundle.entry[0].resource.name[0]", "Bundle.entry[1].resource.status"} {
				if n := strings.Count(string(a.body), want); n != 1 {
					t.Errorf("%q is told %d times: %s", want, n, a.body)
				}
			}
		}
		a := s.do("PATCH", "/Patient/p", `[{"op":"add","path":"/birthDate","value":"soon"},{"op":"add","path":"/name","value":[{"id":"a"}]}]`, "Content-Type", "application/json-patch+json").want(422)
		if text := string(a.body); !strings.Contains(text, "not a valid date") || !strings.Contains(text, "ele-1") {
			t.Errorf("after a patch: %s", text)
		}
	})
	t.Run("the rules that a transaction breaks are told of every entry", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction", entry("POST", "Patient", "", `{"resourceType":"Patient","gender":"x"}`), entry("POST", "Basic", "", `{"resourceType":"Basic","code":{"text":"x"}}`),
			entry("POST", "Observation", "", `{"resourceType":"Observation","status":"finished","code":{"text":"x"}}`))).want(422)
		a.equal("issue.0.expression.0", "Bundle.entry[0].resource.gender").equal("issue.1.expression.0", "Bundle.entry[2].resource.status")
		s.get("/Basic?_summary=count").want(200).equal("total", "0")
	})
	t.Run("$validate of a SearchParameter compiles its expression", func(t *testing.T) {
		parameter := func(expression string) string {
			return `{"resourceType":"SearchParameter","url":"http://x/p","name":"P","status":"active","description":"d","code":"p","base":["Patient"],"type":"string","expression":"` + expression + `"}`
		}
		s := s.in(t)
		s.post("/SearchParameter/$validate", parameter("Patient.name.family")).want(200).equal("issue.0.severity", "information")
		s.post("/SearchParameter/$validate", parameter("Patient.name.(")).want(200).equal("issue.0.severity", "error").equal("issue.0.expression.0", "SearchParameter.expression")
		s.post("/SearchParameter/$validate", parameter("Patient.nam")).want(200).equal("issue.0.severity", "error").equal("issue.0.expression.0", "SearchParameter.expression")
	})
	t.Run("what is stored is what was sent, though a SearchParameter lacks what R4 requires (contract: SearchParameter)", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/SearchParameter", `{"resourceType":"SearchParameter","url":"http://x/bare","code":"bare","base":["Patient"],"type":"string","expression":"Patient.name.family"}`).want(201)
		if strings.Contains(string(s.get("/SearchParameter/"+a.str("id")).want(200).body), "Unnamed") {
			t.Error("a name was made up")
		}
	})
	t.Run("what HL7's validator judges and R4 lets a server store is stored", func(t *testing.T) {
		s.in(t).post("/Patient", `{"resourceType":"Patient","identifier":[{"system":"mrn","value":"1"}],"modifierExtension":[{"url":"http://nobody.knows/x","valueString":"y"}]}`).want(201)
	})
	t.Run("an element id twice is not stored (element-definitions.html#Element.id)", func(t *testing.T) {
		s.in(t).post("/Patient", `{"resourceType":"Patient","name":[{"id":"a","family":"x"}],"telecom":[{"id":"a","value":"1"}]}`).issue(422, "invalid", "id a")
	})
	t.Run("a QuestionnaireResponse keeps to its Questionnaire (questionnaireresponse.html#notes)", func(t *testing.T) {
		s := s.in(t)
		s.stores(`{"resourceType":"Questionnaire","id":"q","url":"http://x/q","status":"active","item":[{"linkId":"1","type":"boolean","required":true}]}`)
		response := func(item string) string {
			return `{"resourceType":"QuestionnaireResponse","questionnaire":"http://x/q","status":"completed","item":[` + item + `]}`
		}
		s.post("/QuestionnaireResponse", response(`{"linkId":"1","answer":[{"valueBoolean":true}]}`)).want(201)
		s.post("/QuestionnaireResponse", response(`{"linkId":"1","answer":[{"valueString":"yes"}]}`)).issue(422, "invalid", "expected boolean")
		s.post("/QuestionnaireResponse", response(`{"linkId":"2"}`)).issue(422, "invalid", "no item 2")
	})
	t.Run("inside a batch", func(t *testing.T) {
		s.in(t).post("/", bundle("batch", entry("POST", "Observation/$validate", "", good))).want(200).
			equal("entry.0.response.status", "200 OK").equal("entry.0.resource.resourceType", "OperationOutcome")
	})
	t.Run("X-Skip-Validation is off by default (contract)", func(t *testing.T) {
		s.in(t).post("/Observation", bad, "X-Skip-Validation", "true").want(422)
	})
}

// A required binding to a value set that is not known is never silently valid.
// https://hl7.org/fhir/R4/terminologies.html#strength
func TestRequiredBindingElsewhere(t *testing.T) {
	profile := `{"resourceType":"StructureDefinition","id":"bound","url":"http://x/bound","name":"B","status":"active","kind":"resource","abstract":false,"type":"Observation",
		"baseDefinition":"http://hl7.org/fhir/StructureDefinition/Observation","derivation":"constraint","differential":{"element":[{"id":"Observation.code","path":"Observation.code","binding":{"strength":"required","valueSet":"http://far/vs"}}]}}`
	observation := func(code string) string {
		return `{"resourceType":"Observation","meta":{"profile":["http://x/bound"]},"status":"final","code":{"coding":[{"system":"http://far/cs","code":"` + code + `"}]}}`
	}
	t.Run("nobody can tell", func(t *testing.T) {
		s := start(t)
		s.stores(profile)
		s.post("/Observation/$validate", observation("a")).want(200).equal("issue.0.severity", "warning").equal("issue.0.expression.0", "Observation.code")
		s.post("/Observation", observation("a")).want(201)
	})
	t.Run("the terminology server tells", func(t *testing.T) {
		far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/fhir+json")
			if strings.HasSuffix(r.URL.Path, "/metadata") {
				fmt.Fprint(w, `{"resourceType":"CapabilityStatement","fhirVersion":"4.0.1"}`)
				return
			}
			body, _ := io.ReadAll(r.Body)
			result := strings.Contains(string(body)+r.URL.RawQuery, `"a"`) || strings.Contains(r.URL.RawQuery, "code=a")
			fmt.Fprintf(w, `{"resourceType":"Parameters","parameter":[{"name":"result","valueBoolean":%v}]}`, result)
		}))
		t.Cleanup(far.Close)
		s := start(t, func(c *server.Config) { c.Terminology.ServerURL = far.URL })
		s.stores(profile)
		s.post("/Observation/$validate", observation("a")).want(200).equal("issue.0.severity", "information")
		s.post("/Observation/$validate", observation("b")).want(200).equal("issue.0.severity", "error").equal("issue.0.expression.0", "Observation.code")
		s.post("/Observation", observation("b")).issue(422, "invalid", "http://far/vs")
	})
}

// contract: validation.allow_skip, validation.mode
func TestValidationSettings(t *testing.T) {
	bad := `{"resourceType":"Observation","status":"finished","code":{"text":"x"}}`
	s := start(t, func(c *server.Config) { c.Validation.AllowSkip = true })
	s.post("/Observation", bad).want(422)
	s.post("/Observation", bad, "X-Skip-Validation", "true").want(201)
	s = start(t, func(c *server.Config) { c.Validation.Mode = "structure" })
	s.post("/Observation", bad).want(201)
	s.post("/Observation", `{"resourceType":"Observation","sttus":"final"}`).want(422)
}

// contract: validation.check_references
func TestCheckReferences(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Validation.CheckReferences = true })
	observation := func(reference string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"` + reference + `"}}`
	}
	s.post("/Observation", observation("Patient/nobody")).issue(422, "invalid", "Patient/nobody")
	id := s.create(`{"resourceType":"Patient"}`)
	s.post("/Observation", observation("Patient/"+id)).want(201)
	s.post("/", bundle("transaction",
		entry("POST", "Patient", "urn:uuid:66666666-6666-4666-8666-666666666666", `{"resourceType":"Patient"}`),
		entry("POST", "Observation", "", observation("urn:uuid:66666666-6666-4666-8666-666666666666")))).want(200)
}

// datatypes.html#dateTime: the offset of a zone is at most 14:00, in either direction, in resources and in searches.
func TestOffsets(t *testing.T) {
	t.Parallel()
	s := start(t)
	for offset, good := range map[string]bool{
		"+14:00": true, "-14:00": true, "-12:00": true, "+05:45": true, "Z": true,
		"+14:01": false, "-14:30": false, "+15:00": false, "+24:00": false, "+00:60": false,
	} {
		status, searched := 201, 200
		if !good {
			status, searched = 422, 400
		}
		const at = "2020-01-01T00:00:00"
		s.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"effectiveDateTime":"`+at+offset+`"}`).want(status)
		s.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"issued":"`+at+offset+`"}`).want(status)
		s.get("/Observation?date=" + url.QueryEscape(at+offset)).want(searched)
	}
}
