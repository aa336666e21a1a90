package conformance

import (
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
	t.Run("inside a batch", func(t *testing.T) {
		s.in(t).post("/", bundle("batch", entry("POST", "Observation/$validate", "", good))).want(200).
			equal("entry.0.response.status", "200 OK").equal("entry.0.resource.resourceType", "OperationOutcome")
	})
	t.Run("X-Skip-Validation is off by default (contract)", func(t *testing.T) {
		s.in(t).post("/Observation", bad, "X-Skip-Validation", "true").want(422)
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
