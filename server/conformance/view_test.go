package conformance

import "testing"

// contract, Views 1
func TestViewDefinitionsAreChecked(t *testing.T) {
	s := start(t)
	good := `{"resourceType":"ViewDefinition","id":"v","url":"http://example.org/v","name":"v","status":"active","resource":"Patient","select":[{"column":[{"name":"id","path":"id"}]}]}`
	bad := `{"resourceType":"ViewDefinition","id":"w","status":"active","resource":"Patient","select":[{"column":[{"name":"id","path":"idd"}]}]}`
	t.Run("a ViewDefinition has every interaction", func(t *testing.T) {
		s := s.in(t)
		s.put("/ViewDefinition/v", good).want(201)
		s.get("/ViewDefinition/v").want(200).equal("resource", "Patient")
		s.get("/ViewDefinition?url=http://example.org/v&resource=Patient&name=v").want(200).equal("total", "1")
		s.do("PATCH", "/ViewDefinition/v", `[{"op":"replace","path":"/resource","value":"Observation"}]`, "Content-Type", "application/json-patch+json").want(200).equal("resource", "Observation")
		s.get("/ViewDefinition/v/_history").want(200).equal("total", "2")
	})
	t.Run("faults are 422 invalid with their place, in every write", func(t *testing.T) {
		s := s.in(t)
		for _, a := range []*answer{
			s.put("/ViewDefinition/w", bad), s.post("/ViewDefinition", bad), s.put("/ViewDefinition/w", bad, "X-Skip-Validation", "true"),
			s.do("PATCH", "/ViewDefinition/v", `[{"op":"replace","path":"/select/0/column/0/path","value":"idd"}]`, "Content-Type", "application/json-patch+json"),
		} {
			a.issue(422, "invalid", "idd").equal("issue.0.expression.0", "ViewDefinition.select[0].column[0].path")
		}
		s.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":`+bad+`,"request":{"method":"PUT","url":"ViewDefinition/w"}}]}`).issue(422, "invalid", "idd")
		s.get("/ViewDefinition/w").want(404)
		s.put("/ViewDefinition/w", `{"resourceType":"ViewDefinition","id":"w","status":"active","select":[{"column":[{"name":"id","path":"id"}]}]}`).issue(422, "invalid").equal("issue.0.expression.0", "ViewDefinition.resource")
		s.put("/ViewDefinition/w", `{"resourceType":"ViewDefinition","id":"w","status":"active","resource":"Patient","select":[{"forEach":1,"column":[{"name":"id","path":"id"}]}]}`).issue(422, "invalid").equal("issue.0.expression.0", "ViewDefinition.select[0].forEach")
	})
	t.Run("$validate reports them", func(t *testing.T) {
		s.in(t).post("/ViewDefinition/$validate", bad).want(200).equal("issue.0.severity", "error").equal("issue.0.code", "invalid")
		s.in(t).post("/ViewDefinition/$validate", good).want(200).equal("issue.0.severity", "information")
	})
}
