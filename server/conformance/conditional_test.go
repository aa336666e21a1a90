package conformance

import (
	"strings"
	"testing"
)

// Conditional references are resolved last: http.html#trules.
func TestConditionalReferenceWithinTransaction(t *testing.T) {
	t.Parallel()
	s := start(t)
	patient := func(mrn string) string {
		return `{"resourceType":"Patient","identifier":[{"system":"urn:mrn","value":"` + mrn + `"}]}`
	}
	observation := func(code, member string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"identifier":[{"system":"urn:o","value":"` + code + `"}],"hasMember":[{"reference":"` + member + `"}]}`
	}
	about := func(subject string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"` + subject + `"}}`
	}
	t.Run("a conditional reference finds what the same transaction creates", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Observation", "", about("Patient?identifier=urn:mrn|1")),
			entry("POST", "Patient", "urn:uuid:11111111-1111-4111-8111-111111111111", patient("1")))).want(200)
		created := strings.TrimSuffix(a.str("entry.1.response.location"), "/_history/1")
		s.get("/"+a.str("entry.0.response.location")).want(200).equal("subject.reference", created)
	})
	t.Run("and what it updates", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Observation", "", about("Patient?identifier=urn:mrn|2")),
			entry("PUT", "Patient/two", "", `{"resourceType":"Patient","id":"two","identifier":[{"system":"urn:mrn","value":"2"}]}`))).want(200)
		s.get("/"+a.str("entry.0.response.location")).want(200).equal("subject.reference", "Patient/two")
	})
	t.Run("not what it deletes, nor what no longer matches", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/three", `{"resourceType":"Patient","id":"three","identifier":[{"system":"urn:mrn","value":"3"}]}`).want(201)
		s.post("/", bundle("transaction",
			entry("POST", "Observation", "", about("Patient?identifier=urn:mrn|3")),
			entry("DELETE", "Patient/three", "", ""))).issue(412, "not-found").equal("issue.0.expression.0", "Bundle.entry[0]")
		s.post("/", bundle("transaction",
			entry("POST", "Observation", "", about("Patient?identifier=urn:mrn|3")),
			entry("PUT", "Patient/three", "", `{"resourceType":"Patient","id":"three"}`))).issue(412, "not-found")
		s.get("/Patient/three").want(200).equal("meta.versionId", "1")
	})
	t.Run("one that is stored and one that is created are several", func(t *testing.T) {
		s := s.in(t)
		s.create(patient("4"))
		s.post("/", bundle("transaction",
			entry("POST", "Observation", "", about("Patient?identifier=urn:mrn|4")),
			entry("POST", "Patient", "", patient("4")))).issue(412, "multiple-matches")
		s.get("/Patient?identifier=urn:mrn|4").want(200).equal("total", "1")
	})
	t.Run("references along a row of entries", func(t *testing.T) {
		s := s.in(t)
		a := s.post("/", bundle("transaction",
			entry("POST", "Observation", "", observation("c", "Observation?identifier=urn:o|b")),
			entry("POST", "Observation", "", observation("b", "Observation?identifier=urn:o|a")),
			entry("POST", "Observation", "", observation("a", "Observation/none")))).want(200)
		for i, want := range []string{"entry.1", "entry.2"} {
			s.get("/"+a.str([]string{"entry.0", "entry.1"}[i]+".response.location")).want(200).
				equal("hasMember.0.reference", strings.TrimSuffix(a.str(want+".response.location"), "/_history/1"))
		}
	})
	t.Run("two entries that wait for each other are refused as a whole", func(t *testing.T) {
		s := s.in(t)
		s.post("/", bundle("transaction",
			entry("POST", "Observation", "", observation("d", "Observation?identifier=urn:o|e")),
			entry("POST", "Observation", "", observation("e", "Observation?identifier=urn:o|d")))).issue(412, "not-found")
		s.get("/Observation?identifier=urn:o|d,urn:o|e").want(200).equal("total", "0")
	})
}

// HAPI's client writes searches with the server's base URL: If-None-Exist and
// conditional references may bear it.
func TestConditionsWithTheServersBaseURL(t *testing.T) {
	t.Parallel()
	s := start(t)
	const criteria = "Patient?identifier=urn:mrn|base"
	patient := `{"resourceType":"Patient","identifier":[{"system":"urn:mrn","value":"base"}]}`
	root := strings.TrimSuffix(s.base, "/fhir")
	id := s.post("/Patient", patient, "If-None-Exist", s.base+"/"+criteria).want(201).str("id")
	for _, base := range []string{s.base + "/", root + "/", "/", ""} {
		s.post("/Patient", patient, "If-None-Exist", base+criteria).want(200).equal("id", id)
		a := s.post("/", bundle("transaction",
			entry("POST", "Patient", "", patient, `,"ifNoneExist":"`+base+criteria+`"`))).want(200)
		a.equal("entry.0.response.status", "200 OK")
		s.post("/", bundle("batch", entry("POST", "Patient", "", patient, `,"ifNoneExist":"`+base+criteria+`"`))).want(200).
			equal("entry.0.response.status", "200 OK")
		if base != "/" {
			a = s.post("/", bundle("transaction",
				entry("POST", base+"Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"`+base+criteria+`"}}`))).want(200)
			s.get("/"+a.str("entry.0.response.location")).want(200).equal("subject.reference", "Patient/"+id)
		}
	}
	s.get("/Patient").want(200).equal("total", "1")
	s.post("/Patient", patient, "If-None-Exist", "http://elsewhere.example.org/fhir/"+criteria).want(400)
}

// A query on the URL of a create is no conditional create.
func TestCreateWithAQuery(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.post("/Patient?identifier=urn:mrn|1", `{"resourceType":"Patient"}`).issue(400, "invalid", "identifier", "If-None-Exist")
	s.post("/", bundle("batch", entry("POST", "Patient?identifier=1", "", `{"resourceType":"Patient"}`))).want(200).
		equal("entry.0.response.status", "400 Bad Request")
	s.post("/", bundle("transaction", entry("POST", "Patient?identifier=1", "", `{"resourceType":"Patient"}`))).issue(400, "invalid", "identifier")
	s.post("/Patient?_format=json&_pretty=true", `{"resourceType":"Patient"}`).want(201)
	s.get("/Patient").want(200).equal("total", "1")
}

// In a batch an entry with an unknown or malformed resource fails alone: http.html#brules.
func TestBatchEntryFailsAlone(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, resource := range map[string]string{
		"unknown type":       `{"resourceType":"Patiens"}`,
		"no type":            `{"active":true}`,
		"not an object":      `[1]`,
		"text":               `"Patient"`,
		"unknown property":   `{"resourceType":"Patient","actvie":true}`,
		"wrong kind":         `{"resourceType":"Patient","active":{"x":1}}`,
		"empty":              `{}`,
		"null":               `null`,
		"empty array":        `{"resourceType":"Patient","name":[]}`,
		"malformed contents": `{"resourceType":"Patient","birthDate":"yesterday"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			a := s.post("/", bundle("batch",
				entry("POST", "Patient", "", `{"resourceType":"Patient","active":true}`),
				entry("POST", "Patient", "", resource),
				entry("POST", "Patient", "", `{"resourceType":"Patient","active":false}`))).want(200)
			a.equal("entry.0.response.status", "201 Created").equal("entry.2.response.status", "201 Created")
			if status := a.str("entry.1.response.status"); !strings.HasPrefix(status, "4") {
				t.Errorf("entry 1: %s", status)
			}
			if at := a.str("entry.1.response.outcome.issue.0.expression.0"); !strings.HasPrefix(at, "Bundle.entry[1]") {
				t.Errorf("entry 1 is told about %q", at)
			}
		})
	}
	s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"POST","url":"Patient"},"resource":{"resourceType":"Patient"}},]}`).issue(400, "structure")
	s.post("/", bundle("transaction",
		entry("POST", "Patient", "", `{"resourceType":"Patient","active":true}`),
		entry("POST", "Patient", "", `{"resourceType":"Patiens"}`))).want(400)
}
