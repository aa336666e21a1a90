package conformance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The oracle of these tests knows nothing of search: it reads resources as JSON, and
// has R4's CompartmentDefinition/patient as paths written down by hand.
// Spec: https://hl7.org/fhir/R4/compartmentdefinition-patient.html.

// inPatient are, for each type of the records, the elements that put a resource into a patient's compartment. The
// definition lacks Device and Task: theirs is the element of their search parameter patient.
var inPatient = map[string][]string{
	"AllergyIntolerance": {"patient", "recorder", "asserter"},
	"Appointment":        {"participant.actor"},
	"Condition":          {"subject", "asserter"},
	"Device":             {"patient"},
	"DiagnosticReport":   {"subject"},
	"Encounter":          {"subject"},
	"Group":              {"member.entity"},
	"Immunization":       {"patient"},
	"List":               {"subject", "source"},
	"Observation":        {"subject", "performer"},
	"Patient":            {"link.other"},
	"Person":             {"link.target"},
	"Provenance":         {"target"},
	"RelatedPerson":      {"patient"},
	"Schedule":           {"actor"},
	"Task":               {"for"},
}

// whole are the types of the records that belong to no patient.
var whole = []string{"Organization", "Practitioner", "Location", "Medication", "Questionnaire"}

// resource is a stored resource, as the oracle sees it.
type resource struct {
	typ, id string
	fields  map[string]any
}

func (r *resource) name() string { return r.typ + "/" + r.id }

// records are two patients' disjoint records of every type, with shared resources and resources of nobody.
func records() []*resource {
	var out []*resource
	add := func(body string) {
		r := &resource{}
		if err := json.Unmarshal([]byte(body), &r.fields); err != nil {
			panic(body)
		}
		r.typ, r.id = r.fields["resourceType"].(string), r.fields["id"].(string)
		out = append(out, r)
	}
	add(`{"resourceType":"Organization","id":"org","name":"General Hospital"}`)
	add(`{"resourceType":"Practitioner","id":"dr","name":[{"family":"Doctor"}]}`)
	add(`{"resourceType":"Location","id":"ward","name":"Ward"}`)
	add(`{"resourceType":"Medication","id":"pill","code":{"text":"pill"}}`)
	add(`{"resourceType":"Questionnaire","id":"form","status":"active"}`)
	for _, p := range []string{"alpha", "bravo"} {
		ref := `{"reference":"Patient/` + p + `"}`
		tag := `"meta":{"tag":[{"code":"tag-` + p + `"}]}`
		each := func(typ, id, more string) {
			add(`{"resourceType":"` + typ + `","id":"` + id + `-` + p + `",` + tag + `,` + strings.ReplaceAll(more, "REF", ref) + `}`)
		}
		add(`{"resourceType":"Patient","id":"` + p + `",` + tag + `,"name":[{"family":"name-` + p + `"}],"generalPractitioner":[{"reference":"Practitioner/dr"}],"managingOrganization":{"reference":"Organization/org"}}`)
		each("Patient", "linked", `"link":[{"other":REF,"type":"seealso"}]`)
		each("Observation", "lab", `"status":"final","code":{"coding":[{"code":"c1"}],"text":"name-`+p+`"},"category":[{"coding":[{"code":"laboratory"}]}],"subject":REF,"performer":[{"reference":"Practitioner/dr"}],"encounter":{"reference":"Encounter/visit-`+p+`"}`)
		each("Observation", "vital", `"status":"final","code":{"coding":[{"code":"c2"}]},"category":[{"coding":[{"code":"vital-signs"}]}],"subject":REF,"derivedFrom":[{"reference":"Observation/lab-`+p+`"}]`)
		each("Observation", "own", `"status":"final","code":{"text":"x"},"subject":{"reference":"Group/group-`+p+`"},"performer":[REF]`)
		each("AllergyIntolerance", "nut", `"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical","code":"active"}]},"patient":REF,"code":{"text":"name-`+p+`"}`)
		each("Appointment", "meet", `"status":"proposed","participant":[{"status":"accepted","actor":{"reference":"Practitioner/dr"}},{"status":"accepted","actor":REF}]`)
		each("Condition", "flu", `"subject":REF,"asserter":{"reference":"Practitioner/dr"},"code":{"text":"name-`+p+`"}`)
		each("Device", "pump", `"patient":REF,"serialNumber":"name-`+p+`"`)
		each("DiagnosticReport", "report", `"status":"final","code":{"text":"x"},"subject":REF,"result":[{"reference":"Observation/lab-`+p+`"}]`)
		each("Encounter", "visit", `"status":"finished","class":{"code":"AMB"},"subject":REF,"serviceProvider":{"reference":"Organization/org"}`)
		each("Group", "group", `"type":"person","actual":true,"member":[{"entity":REF}]`)
		each("Immunization", "shot", `"status":"completed","vaccineCode":{"text":"x"},"patient":REF,"occurrenceString":"x"`)
		each("List", "list", `"status":"current","mode":"working","subject":REF,"entry":[{"item":{"reference":"Practitioner/dr"}}]`)
		each("Person", "person", `"link":[{"target":REF}]`)
		each("Provenance", "prov", `"target":[REF],"recorded":"2024-01-01T00:00:00Z","agent":[{"who":{"reference":"Practitioner/dr"}}]`)
		each("RelatedPerson", "mother", `"patient":REF,"name":[{"family":"name-`+p+`"}]`)
		each("Schedule", "plan", `"actor":[REF]`)
		each("Task", "todo", `"status":"requested","intent":"order","for":REF,"requester":{"reference":"Practitioner/dr"}`)
	}
	add(`{"resourceType":"Observation","id":"nobody","status":"final","code":{"text":"name-nobody"}}`)
	add(`{"resourceType":"Device","id":"shelf","serialNumber":"name-nobody"}`)
	add(`{"resourceType":"Binary","id":"file","contentType":"text/plain","data":"eA=="}`)
	add(`{"resourceType":"Bundle","id":"bundle","type":"collection"}`)
	return out
}

// references are those at a path of elements.
func references(v any, path string) (out []string) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			out = append(out, references(e, path)...)
		}
	case map[string]any:
		if path == "" {
			if text, ok := v["reference"].(string); ok {
				out = append(out, text)
			}
			return out
		}
		first, rest, _ := strings.Cut(path, ".")
		return references(v[first], rest)
	}
	return out
}

// belongs reports whether a resource is in a patient's compartment.
func (r *resource) belongs(patient string) bool {
	if r.name() == "Patient/"+patient {
		return true
	}
	for _, path := range inPatient[r.typ] {
		if slices.Contains(references(r.fields, path), "Patient/"+patient) {
			return true
		}
	}
	return false
}

// has reports whether a resource has a code in category.
func (r *resource) has(category string) bool {
	text, _ := json.Marshal(r.fields["category"])
	return strings.Contains(string(text), `"`+category+`"`)
}

// holder is a token with the resources that the oracle shows it.
type holder struct {
	name string
	claims
	grants []grant
}

// grant is the meaning of a scope: letters for types ("" is all) over a patient's record ("" is every record), of one
// category.
type grant struct{ letters, typ, patient, category string }

// covers reports whether the token has a scope for a letter and a type at all.
func (h *holder) covers(letter, typ string) bool {
	return slices.ContainsFunc(h.grants, func(g grant) bool {
		return strings.Contains(g.letters, letter) && (g.typ == "" || g.typ == typ)
	})
}

// sees reports whether the token lets a resource through for a letter.
func (h *holder) sees(letter string, r *resource) bool {
	return slices.ContainsFunc(h.grants, func(g grant) bool {
		return strings.Contains(g.letters, letter) && (g.typ == "" || g.typ == r.typ) && (g.category == "" || r.has(g.category)) &&
			(g.patient == "" || slices.Contains(whole, r.typ) || r.belongs(g.patient))
	})
}

// holders are every kind of scope.
func holders() []holder {
	app := func(name, scope string, grants ...grant) holder {
		return holder{name, patientApp("alpha", scope), grants}
	}
	user := func(name, fhirUser, scope string, grants ...grant) holder {
		return holder{name, claims{Subject: "u", Client: "app", User: fhirUser, Scope: scope}, grants}
	}
	return []holder{
		app("patient, all types", "patient/*.rs", grant{"rs", "", "alpha", ""}),
		app("patient, version 1", "patient/*.read", grant{"rs", "", "alpha", ""}),
		app("patient, one type", "patient/Observation.rs", grant{"rs", "Observation", "alpha", ""}),
		app("patient, read alone", "patient/*.r", grant{"r", "", "alpha", ""}),
		app("patient, search alone", "patient/*.s", grant{"s", "", "alpha", ""}),
		app("patient, two types", "patient/Observation.rs patient/Patient.r", grant{"rs", "Observation", "alpha", ""}, grant{"r", "Patient", "alpha", ""}),
		app("patient, granular", "patient/Observation.rs?category=laboratory patient/Patient.rs", grant{"rs", "Observation", "alpha", "laboratory"}, grant{"rs", "Patient", "alpha", ""}),
		user("a patient as user", "Patient/bravo", "user/*.rs", grant{"rs", "", "bravo", ""}),
		user("a related person", "RelatedPerson/mother-alpha", "user/*.rs", grant{"rs", "", "alpha", ""}),
		app("patient, one shared type", "patient/Practitioner.rs", grant{"rs", "Practitioner", "alpha", ""}),
		user("a related person of nobody", "RelatedPerson/none", "user/*.rs", grant{"rs", "", "none", ""}),
		user("a practitioner", "Practitioner/dr", "user/*.rs", grant{"rs", "", "", ""}),
		user("a practitioner, granular", "Practitioner/dr", "user/Observation.rs?category=vital-signs", grant{"rs", "Observation", "", "vital-signs"}),
		{"system", systemClient("system/*.rs"), []grant{{"rs", "", "", ""}}},
		{"system, one type", systemClient("system/Condition.rs"), []grant{{"rs", "Condition", "", ""}}},
		{"system, two types", systemClient("system/Observation.rs system/Patient.rs"), []grant{{"rs", "Observation", "", ""}, {"rs", "Patient", "", ""}}},
		{"patient and user", claims{Subject: "u", Client: "app", Patient: "alpha", User: "Patient/bravo", Scope: "patient/Condition.rs user/Observation.rs"},
			[]grant{{"rs", "Condition", "alpha", ""}, {"rs", "Observation", "bravo", ""}}},
		{"admin", systemClient("admin"), nil},
	}
}

// storeRecords puts the records into a service.
func storeRecords(t *testing.T, s *service) []*resource {
	t.Helper()
	list := records()
	var entries []string
	for _, r := range list {
		body, _ := json.Marshal(r.fields)
		entries = append(entries, entry("PUT", r.name(), "", string(body)))
	}
	a := s.as(systemClient("system/*.cruds")).post("/", bundle("batch", entries...)).want(200)
	for i := range list {
		a.equal(fmt.Sprintf("entry.%d.response.status", i), "201 Created")
	}
	return list
}

// Every path, with every kind of scope, agrees with the oracle.
// Contract: docs/contract.md, Authorization, Scopes.
// Contract, Authorization 1: one authorization predicate: pages and totals are exact; 4: letters,
// compartments, shared types, `_sort`.
func TestAccessMatrix(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	all := storeRecords(t, s)
	types := append([]string{"Binary", "Bundle"}, whole...)
	for typ := range inPatient {
		types = append(types, typ)
	}
	slices.Sort(types)
	for _, h := range holders() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := s.in(t).as(h.claims)
			of := func(letter string, keep func(r *resource) bool) (out []string) {
				for _, r := range all {
					if h.sees(letter, r) && keep(r) {
						out = append(out, r.name())
					}
				}
				slices.Sort(out)
				return out
			}
			// finds checks a search, or its refusal, by GET, POST and its total.
			finds := func(typ, query string, keep func(r *resource) bool) {
				t.Helper()
				path := "/" + typ + "?_count=200" + query
				got := s.get(path)
				post := s.do("POST", "/"+typ+"/_search", "_count=200"+query, "Content-Type", "application/x-www-form-urlencoded")
				count := s.get(path + "&_summary=count")
				if !h.covers("s", typ) {
					got.issue(403, "forbidden", typ+".s")
					post.issue(403, "forbidden", typ+".s")
					count.issue(403, "forbidden", typ+".s")
					return
				}
				want := of("s", func(r *resource) bool { return r.typ == typ && keep(r) })
				for _, a := range []*answer{got, post} {
					if found := a.want(200).named("match"); !slices.Equal(found, want) {
						t.Errorf("%s finds %v, want %v", a.what, found, want)
					}
					a.equal("total", strconv.Itoa(len(want)))
				}
				count.want(200).equal("total", strconv.Itoa(len(want)))
			}
			anything := func(*resource) bool { return true }
			for _, r := range all {
				for _, more := range []string{"", "/_history/1", "/_history", "/$meta"} {
					a := s.get("/" + r.name() + more)
					switch {
					case !h.covers("r", r.typ):
						a.issue(403, "forbidden", r.typ+".r")
					case h.sees("r", r):
						a.want(200)
					default:
						a.issue(404, "not-found")
					}
				}
			}
			for _, typ := range types {
				finds(typ, "", anything)
				finds(typ, "&_tag=tag-bravo", func(r *resource) bool { return strings.HasSuffix(r.id, "bravo") })
				finds(typ, "&_tag:not=tag-bravo", func(r *resource) bool { return !strings.HasSuffix(r.id, "bravo") })
				finds(typ, "&_id=alpha,bravo,lab-alpha,lab-bravo,org", func(r *resource) bool {
					return slices.Contains([]string{"alpha", "bravo", "lab-alpha", "lab-bravo", "org"}, r.id)
				})
				if typ == "Provenance" || inPatient[typ] != nil && typ != "Patient" {
					a := s.get("/Patient/bravo/" + typ + "?_count=200")
					if !h.covers("s", typ) {
						a.issue(403, "forbidden")
					} else if want := of("s", func(r *resource) bool { return r.typ == typ && r.belongs("bravo") }); typ != "Device" && typ != "Task" && !slices.Equal(a.want(200).named("match"), want) {
						t.Errorf("%s finds %v, want %v", a.what, a.named("match"), want)
					}
				}
				a := s.get("/" + typ + "/_history?_count=200")
				if !h.covers("s", typ) {
					a.issue(403, "forbidden")
				} else if want := of("s", func(r *resource) bool { return r.typ == typ }); a.want(200).len("entry") != len(want) {
					t.Errorf("%s has %d entries, want %d", a.what, a.len("entry"), len(want))
				} else {
					a.equal("total", strconv.Itoa(len(want)))
				}
			}
			every := of("s", anything)
			if !slices.ContainsFunc(h.grants, func(g grant) bool { return strings.Contains(g.letters, "s") }) {
				for _, path := range []string{"/", "/?_summary=count", "/_history", "/Patient/alpha/*"} {
					lacks(s.get(path), "/*.s")
				}
			} else {
				if a := s.get("/?_count=200").want(200); !slices.Equal(a.named("match"), every) {
					t.Errorf("/ finds %v, want %v", a.named("match"), every)
				}
				s.get("/?_summary=count").want(200).equal("total", strconv.Itoa(len(every)))
				s.get("/_history?_count=200").want(200).equal("total", strconv.Itoa(len(every)))
				ofBravo := func(r *resource) bool { return strings.HasSuffix(r.id, "bravo") } // and so tagged
				named := func(r *resource) bool {
					return slices.Contains([]string{"bravo", "lab-bravo", "visit-bravo", "dr"}, r.id)
				}
				for query, keep := range map[string]func(r *resource) bool{
					"_id=bravo,lab-bravo,visit-bravo,dr": named, "_id=bravo": func(r *resource) bool { return r.id == "bravo" },
					"_filter=" + url.QueryEscape("_id eq bravo or _id eq lab-bravo or _id eq visit-bravo or _id eq dr"): named,
					"_tag=tag-bravo": ofBravo, "_tag=tag-bravo&_id=lab-bravo,bravo": func(r *resource) bool { return r.id == "lab-bravo" || r.id == "bravo" },
					"_tag:not=tag-alpha&_id=lab-alpha,lab-bravo,dr": func(r *resource) bool { return r.id == "lab-bravo" || r.id == "dr" },
					"_lastUpdated=gt2000-01-01":                     anything,
				} {
					want := of("s", keep)
					get, post := s.get("/?_count=200&"+query), s.do("POST", "/_search", "_count=200&"+query, "Content-Type", "application/x-www-form-urlencoded")
					for _, a := range []*answer{get, post} {
						if found := a.want(200).named("match"); !slices.Equal(found, want) {
							t.Errorf("%s finds %v, want %v", a.what, found, want)
						}
						a.equal("total", strconv.Itoa(len(want)))
					}
				}
				for _, path := range []string{"/Patient/bravo/*", "/Patient/bravo/*?_tag=tag-bravo", "/Encounter/visit-bravo/*", "/Practitioner/dr/*"} {
					for _, name := range s.get(path).want(200).named("match") {
						if !slices.Contains(every, name) {
							t.Errorf("%s finds %s", path, name)
						}
					}
				}
				if a := s.get("/$meta"); a.status == 200 && len(of("r", ofBravo)) == 0 && strings.Contains(string(a.body), "tag-bravo") {
					t.Errorf("%s: %s", a.what, clip(a.body))
				}
			}

			// Chains and _has are blind to what cannot be read, includes add none of it.
			readable := func(name string) bool {
				return slices.ContainsFunc(all, func(r *resource) bool { return r.name() == name && h.sees("r", r) })
			}
			for _, p := range []string{"alpha", "bravo"} {
				finds("Observation", "&subject:Patient.name=name-"+p, func(r *resource) bool {
					return slices.Contains(references(r.fields, "subject"), "Patient/"+p) && readable("Patient/"+p)
				})
				finds("Practitioner", "&_has:Patient:general-practitioner:name=name-"+p, func(r *resource) bool { return readable("Patient/" + p) })
				finds("Practitioner", "&_has:Observation:performer:_tag=tag-"+p, func(r *resource) bool { return readable("Observation/lab-" + p) })
				finds("Practitioner", "&_has:Observation:performer:encounter:Encounter._tag=tag-"+p, func(r *resource) bool {
					return readable("Observation/lab-"+p) && readable("Encounter/visit-"+p)
				})
				finds("Practitioner", "&_list=list-"+p, func(r *resource) bool { return readable("List/list-" + p) })
				finds("Organization", "&_has:Encounter:service-provider:subject:Patient.name=name-"+p, func(r *resource) bool {
					return readable("Encounter/visit-"+p) && readable("Patient/"+p)
				})
				finds("Observation", "&_filter="+url.QueryEscape("derived-from._tag eq tag-"+p), func(r *resource) bool {
					return r.id == "vital-"+p && readable("Observation/lab-"+p)
				})
			}
			for _, query := range []string{"Practitioner?_revinclude=*", "Organization?_revinclude=*", "Observation?_include=*&_include:iterate=*&_revinclude:iterate=*", "Practitioner?_revinclude=Observation:performer&_include:iterate=Observation:subject"} {
				typ, _, _ := strings.Cut(query, "?")
				if !h.covers("s", typ) {
					continue
				}
				a := s.get("/" + query + "&_count=200").want(200)
				for _, name := range a.named("include") {
					if !readable(name) {
						t.Errorf("%s includes %s", a.what, name)
					}
				}
			}
			for _, p := range []string{"alpha", "bravo"} {
				a := s.get("/Patient/" + p + "/$everything")
				if !h.covers("r", "Patient") || !h.covers("s", "Patient") {
					a.issue(403, "forbidden", "Patient.")
					continue
				}
				if !readable("Patient/" + p) {
					if a.status != 404 && a.status != 403 {
						t.Errorf("%s: %d", a.what, a.status)
					}
					continue
				}
				for _, mode := range []string{"match", "include"} {
					for _, name := range a.want(200).named(mode) {
						if !readable(name) {
							t.Errorf("%s has %s", a.what, name)
						}
					}
				}
			}
		})
	}
}

// A random walk with the tokens of patient alpha finds no byte of bravo's record, no difference between hidden and
// absent, and changes nothing of it. KILN_ACCESS_WALK is the number of requests.
// Contract, Authorization 4: hidden resources are absent.
func TestAccessRandomWalk(t *testing.T) {
	t.Parallel()
	steps := 600
	if text := os.Getenv("KILN_ACCESS_WALK"); text != "" {
		var err error
		if steps, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	s := authorized(t)
	all := storeRecords(t, s)
	var hidden, own []*resource
	for _, r := range all {
		switch {
		case r.belongs("alpha"):
			own = append(own, r)
		case !slices.Contains(whole, r.typ):
			hidden = append(hidden, r)
		}
	}
	scopes := []string{"patient/*.cruds", "patient/*.rs", "patient/*.cud patient/*.rs", "patient/Observation.cruds patient/Patient.rs patient/Condition.rs", "patient/*.cruds patient/Observation.rs?category=laboratory"}
	rnd := rand.New(rand.NewPCG(1, uint64(steps)))
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	secret := []string{"name-bravo", "tag-bravo", "Patient/bravo", "-bravo\"", "name-nobody"}
	check := func(a *answer, asked string) {
		t.Helper()
		for _, word := range secret {
			if strings.Contains(string(a.body), word) && !strings.Contains(asked, strings.Trim(word, `"`)) {
				t.Fatalf("%s tells %q:\n%s", a.what, word, a.body)
			}
		}
	}
	for step := range steps {
		if step > 0 && step%10_000 == 0 {
			t.Logf("%d requests", step)
		}
		app := s.as(patientApp("alpha", scopes[rnd.IntN(len(scopes))]))
		h := hidden[rnd.IntN(len(hidden))]
		// absent has the type and the length of the hidden id.
		absent := fmt.Sprintf("%0*d", len(h.id), step)[:len(h.id)]
		body := func(id string) string {
			fields := map[string]any{}
			for k, v := range h.fields {
				fields[k] = v
			}
			fields["id"] = id
			text, _ := json.Marshal(fields)
			return strings.ReplaceAll(string(text), "Patient/bravo", "Patient/alpha")
		}
		twice := func(do func(id string) *answer) {
			t.Helper()
			x, y := do(h.id), do(absent)
			check(x, h.name()+`"Patient/bravo"`+h.id+`-bravo"`)
			app.same(x, y, h.id, absent)
		}
		jsonPatch := []string{"Content-Type", "application/json-patch+json"}
		switch rnd.IntN(14) {
		case 0:
			more := pick("", "/_history/1", "/_history/2", "/_history", "/$meta", "?_summary=true", "?_elements=id", "/_history?_count=0", "/_history?_since=2000-01-01")
			twice(func(id string) *answer { return app.get("/" + h.typ + "/" + id + more) })
		case 1:
			more := pick("", "&_summary=count", "&_total=none", "&_include=*", "&_revinclude=*", "&_sort=_lastUpdated", "&_elements=id", "&_tag=tag-x", "&_count=0")
			twice(func(id string) *answer { return app.get("/" + h.typ + "?_id=" + id + more) })
		case 2:
			headers := append(jsonPatch, "If-Match", pick("", `W/"1"`, `W/"2"`, "*"))
			twice(func(id string) *answer {
				return app.do("PATCH", "/"+h.typ+"/"+id, `[{"op":"add","path":"/language","value":"en"}]`, headers...)
			})
		case 3:
			match := pick("", `W/"1"`, `W/"2"`)
			twice(func(id string) *answer { return app.do("DELETE", "/"+h.typ+"/"+id, "", "If-Match", match) })
		case 4:
			match := pick(`W/"1"`, `W/"2"`, "*")
			twice(func(id string) *answer { return app.put("/"+h.typ+"/"+id, body(id), "If-Match", match) })
		case 5:
			method := pick("DELETE", "PATCH")
			twice(func(id string) *answer {
				return app.do(method, "/"+h.typ+"?_id="+id, `[{"op":"add","path":"/language","value":"en"}]`, jsonPatch...)
			})
		case 6:
			kind := pick("batch", "transaction")
			method := pick("GET", "DELETE")
			twice(func(id string) *answer {
				return app.post("/", bundle(kind, entry(method, h.typ+"/"+id, "", ""), entry("GET", "Patient?_id="+id, "", "")))
			})
		case 7:
			query := pick("/Practitioner?_has:"+h.typ+":_tag=x&_id=dr", "/Observation?subject=", "/Observation?subject:Patient._id=", "/Encounter?subject:Patient._id=", "/Practitioner?_list=", "/Observation?derived-from=Observation/", "/Practitioner?_has:Observation:performer:_id=")
			twice(func(id string) *answer { return app.get(query + id) })
		case 8:
			if a := app.put("/"+h.name(), body(h.id)); a.status != http.StatusForbidden {
				t.Fatalf("%s: %d %s", a.what, a.status, a.body)
			}
		case 9:
			o := own[rnd.IntN(len(own))]
			check(app.get("/"+o.name()+pick("", "/_history", "/$meta", "?_pretty=true")), "")
		case 10:
			typ := pick("Observation", "Patient", "Condition", "Practitioner", "Organization", "Device", "Task", "Group", "List", "Provenance")
			query := pick("", "_sort=-_lastUpdated", "_include=*", "_revinclude=*", "_include:iterate=*&_include=*", "_revinclude:iterate=*&_revinclude=*", "_count=1", "_count=2&_offset=1", "_summary=true", "_tag:not=tag-alpha", "_lastUpdated=gt2000", "_id:not=alpha", "_tag:missing=false")
			check(app.get("/"+typ+"?"+query), "")
		case 11:
			check(app.get(pick("/", "/?_type=Observation,Patient,Practitioner", "/_history", "/Observation/_history", "/Patient/alpha/$everything", "/Patient/alpha/*", "/Patient/bravo/*", "/$meta", "/Observation/$meta", "/_history?_count=3")), "Patient/bravo")
		case 12:
			typ := pick("Observation", "Condition")
			subject := pick("alpha", "alpha", "bravo")
			a := app.post("/"+typ, `{"resourceType":"`+typ+`","status":"final","code":{"text":"x"},"clinicalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/condition-clinical","code":"active"}]},"subject":{"reference":"Patient/`+subject+`"}}`)
			if subject == "bravo" && a.status < 400 {
				t.Fatalf("%s stores into bravo's record: %s", a.what, a.body)
			}
			check(a, "Patient/bravo")
		case 13: // a reference to a hidden resource is rejected, and nothing is stored
			a := app.post("/", bundle("transaction", entry("POST", "Observation", "", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/alpha"},"focus":[{"reference":"`+pick("Patient?name=name-bravo", "Patient?_tag=tag-bravo", "Patient?name=name-alpha")+`"}]}`)))
			check(a, "name-bravo tag-bravo")
		}
	}
	admin := s.as(systemClient("system/*.rs"))
	for _, r := range hidden {
		admin.get("/"+r.name()+"/_history").want(200).equal("total", "1")
	}
}
