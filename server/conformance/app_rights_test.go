package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// probeScript tries the given calls and answers with statuses, or the totals of searches.
const probeScript = `async (c) => {
	const out = [];
	for (const t of c.parameters.tries) {
		try {
			switch (t.does) {
			case "read": out.push((await fhir.read(t.type, t.id)).id === t.id ? 200 : 0); break;
			case "search": out.push("total " + (await fhir.search(t.type, t.query)).total); break;
			case "create": await fhir.create(t.resource); out.push(201); break;
			case "update": await fhir.update(t.resource); out.push(200); break;
			case "patch": await fhir.patch(t.type, t.id, [{op: "replace", path: "/status", value: "amended"}]); out.push(200); break;
			case "delete": await fhir.delete(t.type, t.id); out.push(204); break;
			case "transaction": await fhir.transaction({resourceType: "Bundle", type: "transaction", entry: [{resource: t.resource, request: {method: "PUT", url: t.type + "/" + t.id}}]}); out.push(200); break;
			case "operation": await fhir.operation(t.type + "/" + t.id + "/$meta", {method: "GET"}); out.push(200); break;
			}
		} catch (e) { out.push(e.status === undefined ? String(e) : e.status) }
	}
	return out;
}`

// try is one thing that a script tries, and how the same is asked over REST.
type try struct {
	Does     string          `json:"does"`
	Type     string          `json:"type"`
	ID       string          `json:"id,omitempty"`
	Query    string          `json:"query,omitempty"`
	Resource json.RawMessage `json:"resource,omitempty"`
}

// over does the same over REST, and returns the answer that a script would get.
func (y try) over(s *service) string {
	name := "/" + y.Type + "/" + y.ID
	var a *answer
	switch y.Does {
	case "read":
		a = s.get(name)
	case "search":
		if a = s.get("/" + y.Type + "?" + y.Query); a.status == 200 {
			return "total " + a.str("total")
		}
	case "create":
		a = s.post("/"+y.Type, string(y.Resource))
	case "update":
		a = s.put(name, string(y.Resource))
	case "patch":
		a = s.do("PATCH", name, `[{"op":"replace","path":"/status","value":"amended"}]`, "Content-Type", "application/json-patch+json")
	case "delete":
		a = s.do("DELETE", name, "")
	case "transaction":
		a = s.post("/", bundle("transaction", entry("PUT", y.Type+"/"+y.ID, "", string(y.Resource))))
	case "operation":
		a = s.get(name + "/$meta")
	}
	return fmt.Sprint(a.status)
}

// through does them in a script.
func through(t *testing.T, s *service, path string, tries []try) []any {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"parameters": map[string]any{"tries": tries}})
	a := s.post(path, string(body)).want(200)
	var out []any
	if err := json.Unmarshal(a.body, &out); err != nil || len(out) != len(tries) {
		t.Fatalf("%d of %d tries are answered: %v %s", len(out), len(tries), err, clip(a.body))
	}
	return out
}

// A script can do nothing that its caller could not do over REST: the holders of the
// access matrix again, through fhir.*.
func TestAppRightsMatrix(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	all := storeRecords(t, s)
	code, _ := json.Marshal(probeScript)
	types := []string{"Condition", "Observation", "Patient"}
	var operations []string
	for _, typ := range types {
		operations = append(operations,
			fmt.Sprintf(`{"type":"execute","affectsState":false,"resourceType":%q,"name":"probe","handler":{"type":"javascript","code":%s}}`, typ, code),
			fmt.Sprintf(`{"type":"search","resourceType":%q,"name":"look","handler":{"type":"javascript","code":%s}}`, typ, code),
			fmt.Sprintf(`{"type":"execute","resourceType":%q,"name":"change","handler":{"type":"javascript","code":%s}}`, typ, code))
	}
	s.as(systemClient("admin")).put("/App/probe", `{"resourceType":"App","id":"probe","name":"probe","status":"active","operations":[`+strings.Join(operations, ",")+`]}`).want(201)

	for _, h := range holders() {
		t.Run(h.name, func(t *testing.T) {
			s := s.in(t).as(h.claims)
			path := ""
			for _, typ := range types {
				for letter, name := range map[string]string{"r": "$probe", "s": "$look"} {
					if h.covers(letter, typ) {
						path = "/" + typ + "/" + name
					} else {
						s.post("/"+typ+"/"+name, "").issue(403, "forbidden")
					}
				}
				s.post("/"+typ+"/$change", "").issue(403, "forbidden")
			}
			if path == "" {
				return
			}
			var tries []try
			for _, r := range all {
				tries = append(tries, try{Does: "read", Type: r.typ, ID: r.id}, try{Does: "operation", Type: r.typ, ID: r.id})
			}
			for _, typ := range append(types, "Encounter", "Practitioner", "App") {
				tries = append(tries, try{Does: "search", Type: typ}, try{Does: "search", Type: typ, Query: "_tag=tag-bravo"})
			}
			tries = append(tries, try{Does: "search", Type: "Observation", Query: "subject:Patient.name=name-bravo"})
			for i, got := range through(t, s, path, tries) {
				if want := tries[i].over(s); fmt.Sprint(got) != want {
					t.Errorf("%+v: a script gets %v, REST says %s", tries[i], got, want)
				}
			}
		})
	}

	// A handler with rights of its own cannot bypass the caller's rights: it is not called.
	t.Run("a write over what the caller may not change", func(t *testing.T) {
		s := s.in(t)
		s.as(systemClient("admin")).put("/App/keeper", `{"resourceType":"App","id":"keeper","name":"keeper","status":"active","operations":[
			{"type":"write","resourceType":"Observation","name":"keep","handler":{"type":"javascript","code":"(c) => c.resourceId"}}]}`).want(201)
		keep := func(scope, id string) *answer {
			return s.as(patientApp("alpha", scope)).put("/Observation/"+id+"/$keep", fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":"final","code":{"text":"x"},"subject":{"reference":"Patient/alpha"}}`, id))
		}
		keep("patient/Observation.cruds", "lab-bravo").issue(403, "forbidden", "outside")
		keep("patient/Observation.cu", "lab-bravo").issue(403, "forbidden", "outside")
		keep("patient/Observation.cu?code=nothing patient/Observation.rs", "lab-alpha").issue(403, "forbidden", "outside")
		keep("patient/Observation.cu", "lab-alpha").want(200)
		keep("patient/Observation.cu", "not-there-yet").want(200)
	})

	t.Run("writes", func(t *testing.T) {
		observation := func(id, patient string) json.RawMessage {
			if id != "" {
				id = `"id":"` + id + `",`
			}
			return json.RawMessage(fmt.Sprintf(`{"resourceType":"Observation",%s"status":"final","code":{"text":"x"},"subject":{"reference":"Patient/%s"}}`, id, patient))
		}
		tries := []try{
			{Does: "update", Type: "Observation", ID: "lab-bravo", Resource: observation("lab-bravo", "alpha")},
			{Does: "update", Type: "Observation", ID: "lab-alpha", Resource: observation("lab-alpha", "bravo")},
			{Does: "patch", Type: "Observation", ID: "lab-bravo"},
			{Does: "delete", Type: "Observation", ID: "lab-bravo"},
			{Does: "create", Type: "Observation", Resource: observation("", "bravo")},
			{Does: "create", Type: "Condition", Resource: json.RawMessage(`{"resourceType":"Condition","subject":{"reference":"Patient/alpha"}}`)},
			{Does: "transaction", Type: "Observation", ID: "lab-bravo", Resource: observation("lab-bravo", "alpha")},
			{Does: "transaction", Type: "Condition", ID: "new", Resource: json.RawMessage(`{"resourceType":"Condition","id":"new","subject":{"reference":"Patient/alpha"}}`)},
			{Does: "update", Type: "App", ID: "mine", Resource: json.RawMessage(app("mine", "active"))},
			{Does: "create", Type: "AuditEvent", Resource: json.RawMessage(`{"resourceType":"AuditEvent"}`)},
		}
		for _, scope := range []string{"patient/Observation.cruds", "patient/Observation.rus", "patient/Observation.u"} {
			caller := s.in(t).as(patientApp("alpha", scope))
			want := make([]string, len(tries))
			for i, y := range tries {
				want[i] = y.over(caller)
			}
			for i, got := range through(t, caller, "/Observation/$change", tries) {
				// DELETE of a hidden resource answers as for an absent one: 204, and nothing is deleted.
				if fmt.Sprint(got) != want[i] || strings.HasPrefix(want[i], "2") && tries[i].Does != "delete" {
					t.Errorf("%s %+v: a script gets %v, REST says %s", scope, tries[i], got, want[i])
				}
			}
			s.in(t).as(systemClient("system/*.rs")).get("/Observation/lab-bravo").want(200).equal("meta.versionId", "1")
			// A script may do everything that the caller may.
			if scope == "patient/Observation.cruds" {
				if got := through(t, caller, "/Observation/$change", []try{{Does: "create", Type: "Observation", Resource: observation("", "alpha")}}); fmt.Sprint(got[0]) != "201" {
					t.Errorf("the caller's own: %v", got)
				}
			}
		}
		// An operation that changes no data has no function that does.
		reader := s.in(t).as(patientApp("alpha", "patient/Observation.cruds"))
		for i, got := range through(t, reader, "/Observation/$probe", tries[:7]) {
			if fmt.Sprint(got) != "403" {
				t.Errorf("%+v in an operation that changes nothing: %v", tries[i], got)
			}
		}
	})
}
