package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Every resource that the server itself writes is valid by its own $validate.
func TestOwnAnswersAreValid(t *testing.T) {
	t.Parallel()
	s := withAuthorizationOn(t, storetest.New(t), notifying, func(c *server.Config) {
		c.Audit.Rest, c.Search.Explain, c.Search.MaxCount = "all", true, 50
		c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "everything", "name": "Everything", "confidential": true,
			"clientSecret": clientSecret, "grantTypes": []any{"client_credentials"}, "scopes": []any{"admin system/*.cruds"}})
	})
	all := s.bearer(s.backendToken("everything", "system/*.cruds admin"))
	judged := map[string]int{}
	judge := func(t *testing.T, what string, body []byte) {
		t.Helper()
		var head struct{ ResourceType string }
		if err := json.Unmarshal(body, &head); err != nil || head.ResourceType == "" {
			t.Errorf("%s: no resource: %s", what, clip(body))
			return
		}
		judged[head.ResourceType]++
		// The contract gives a message without events an empty array, which JSON in FHIR does not have.
		body = bytes.ReplaceAll(body, []byte(`,"notificationEvent":[]`), nil)
		if head.ResourceType == "Parameters" { // of the operation, otherwise
			body = []byte(`{"resourceType":"Parameters","parameter":[{"name":"resource","resource":` + string(body) + `}]}`)
		}
		a := all.in(t).post("/"+head.ResourceType+"/$validate", string(body)).want(200)
		for i := range a.len("issue") {
			at := fmt.Sprintf("issue.%d.", i)
			if severity := a.str(at + "severity"); severity == "error" || severity == "fatal" {
				t.Errorf("%s: %s: %s\n%s", what, a.str(at+"expression.0"), a.str(at+"diagnostics"), clip(body))
			}
		}
	}

	all.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	r := newReceiver(t)
	hook := all.subscribe(backportSubscription("http://example.org/encounters", r.url))
	plain := all.subscribe(fmt.Sprintf(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Patient?","channel":{"type":"rest-hook","endpoint":%q,"payload":"application/fhir+json"}}`, r.url))
	all.put("/Patient/a", `{"resourceType":"Patient","id":"a","name":[{"family":"A"}]}`).want(201)
	all.put("/Patient/a", `{"resourceType":"Patient","id":"a","name":[{"family":"B"}]}`).want(200)
	all.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	all.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"subject":{"reference":"Patient/a"},"valueQuantity":{"value":1,"unit":"cm"}}`).want(201)
	all.install(packed(t, "package/package.json", packageJSON, "package/CodeSystem-colours.json", fmt.Sprintf(packageCodes, "1", "green"), "package/ValueSet-colours.json", packageCodeSet), "").want(200)
	all.put("/Patient/gone", `{"resourceType":"Patient","id":"gone"}`).want(201)
	all.do("DELETE", "/Patient/gone", "").want(204)
	eventually(t, "the events were delivered", func() bool { return len(all.get("/Subscription/"+hook+"/$events").body) > 0 && len(r.got) >= 2 })

	for _, c := range []struct{ method, path, body string }{
		{"GET", "/metadata", ""}, {"GET", "/metadata?mode=terminology", ""}, {"GET", "/metadata?_summary=true", ""},
		// Bundles
		{"GET", "/Patient?_count=1", ""}, {"GET", "/Observation?_include=Observation:subject&_revinclude=Provenance:target", ""}, {"GET", "/Patient?_summary=count", ""},
		{"GET", "/Patient?_count=5000", ""}, {"GET", "/Patient?_elements=name", ""}, {"GET", "/Patient?_summary=true", ""}, {"GET", "/Patient?_explain=true", ""},
		{"GET", "/?_type=Patient,Observation", ""}, {"GET", "/CodeSystem?status=active", ""}, {"GET", "/Patient/a/_history", ""}, {"GET", "/Patient/_history", ""}, {"GET", "/_history?_count=5", ""},
		{"GET", "/Patient/gone/_history", ""}, {"GET", "/Patient/a/$everything", ""}, {"GET", "/Patient/a/*", ""},
		{"POST", "/", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient/a"}},{"request":{"method":"GET","url":"Patient/none"}},{"request":{"method":"GET","url":"Patient?name=b"}},{"resource":{"resourceType":"Patient"},"request":{"method":"POST","url":"Patient"}},{"request":{"method":"DELETE","url":"Patient/none"}}]}`},
		{"POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"resourceType":"Patient"},"fullUrl":"urn:uuid:6f1d3bb4-7a20-4b3e-9d55-5a1f3a1b2c3d","request":{"method":"POST","url":"Patient"}},{"request":{"method":"GET","url":"Patient/a"}}]}`},
		// Parameters and what operations answer
		{"GET", "/$packages", ""}, {"GET", "/$reindex", ""}, {"GET", "/Patient/a/$meta", ""}, {"GET", "/$meta", ""}, {"GET", "/Patient/$meta", ""},
		{"GET", "/CodeSystem/$lookup?system=http://hl7.org/fhir/administrative-gender&code=male", ""}, {"GET", "/ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender", ""},
		{"GET", "/ValueSet/$validate-code?url=http://hl7.org/fhir/ValueSet/administrative-gender&code=male&system=http://hl7.org/fhir/administrative-gender", ""},
		{"GET", "/ValueSet/$validate-code?url=http://hl7.org/fhir/ValueSet/administrative-gender&code=x&system=http://hl7.org/fhir/administrative-gender", ""},
		{"GET", "/CodeSystem/$validate-code?url=http://hl7.org/fhir/administrative-gender&code=x", ""},
		{"GET", "/CodeSystem/$subsumes?system=http://terminology.hl7.org/CodeSystem/v3-ActCode&codeA=AMB&codeB=AMB", ""},
		{"GET", "/ConceptMap/$translate?url=http://hl7.org/fhir/ConceptMap/cm-address-use-v3&code=home&system=http://hl7.org/fhir/address-use", ""},
		{"GET", "/Subscription/" + hook + "/$status", ""}, {"GET", "/Subscription/" + plain + "/$status", ""}, {"GET", "/Subscription/$status", ""}, {"GET", "/Subscription/" + hook + "/$events", ""},
		{"GET", "/Subscription/" + hook + "/$get-ws-binding-token", ""}, {"POST", "/$install-package?dry-run=true", "gz"}, {"POST", "/$remove-package?name=example.ig&dry-run=true", ""},
		{"GET", "/AuditEvent?_count=50", ""}, {"GET", "/Subscription", ""}, {"GET", "/StructureDefinition/Patient", ""}, {"GET", "/StructureDefinition/App", ""},
		{"GET", "/StructureDefinition/Subscription", ""}, {"GET", "/StructureDefinition/SubscriptionStatus", ""}, {"GET", "/StructureDefinition/SubscriptionTopic", ""}, {"GET", "/StructureDefinition/oauth-uris", ""},
		// OperationOutcomes
		{"POST", "/Patient/$validate", `{"resourceType":"Patient","gender":"x","id":"_"}`}, {"POST", "/Patient/$validate", `{"resourceType":"Patient"}`}, {"POST", "/Patient", `{`}, {"POST", "/Patient", `{"resourceType":"Patient","gender":"x","nick":1}`},
		{"GET", "/Patient/none", ""}, {"GET", "/Patient/gone", ""}, {"GET", "/Nothing", ""}, {"GET", "/Patient?x=1", ""}, {"GET", "/Patient?_stored=x", ""}, {"PATCH", "/Patient/a", "{}"}, {"TRACE", "/Patient", ""},
		{"GET", "/Patient/$none", ""}, {"PUT", "/Patient/a", `{"resourceType":"Patient","id":"b"}`}, {"GET", "/" + strings.Repeat("x", 65<<10), ""}, {"DELETE", "/AuditEvent/x", ""},
		{"GET", s.origin() + "/admin/config/none", ""}, {"GET", s.origin() + "/admin/none", ""}, {"POST", "/Subscription", `{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Patient?x=1","channel":{"type":"rest-hook","endpoint":"http://x.example"}}`},
		{"POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[{"request":{"method":"GET","url":"Patient/none"}}]}`},
	} {
		what := c.method + " " + c.path
		t.Run(clip([]byte(what)), func(t *testing.T) {
			all := all.in(t)
			headers := []string{}
			if c.body == "gz" {
				c.body, headers = packed(t, "package/package.json", packageJSON, "package/ValueSet-colours.json", packageCodeSet, "package/broken.json", "{"), []string{"Content-Type", "application/gzip"}
			}
			a := all.do(c.method, c.path, c.body, headers...)
			judge(t, fmt.Sprintf("%s: %d", clip([]byte(what)), a.status), a.body)
		})
	}
	t.Run("refusals without a token", func(t *testing.T) {
		s := s.in(t)
		judge(t, "no token", s.get("/Patient/a").want(401).body)
		judge(t, "a wrong token", s.bearer("x").in(t).get("/Patient/a").want(401).body)
		judge(t, "too little", s.bearer(s.backendToken("backend", "system/Patient.r")).in(t).get("/Observation/o").want(403).body)
	})
	t.Run("webhooks", func(t *testing.T) {
		for len(r.got) > 0 {
			if d := <-r.got; d.json["event"] == nil { // no Notification message, which is no resource
				judge(t, "webhook", d.body)
			}
		}
	})
	for _, typ := range []string{"CapabilityStatement", "TerminologyCapabilities", "OperationOutcome", "Bundle", "Parameters", "SubscriptionStatus"} {
		if judged[typ] == 0 {
			t.Errorf("no %s was validated", typ)
		}
	}
}
