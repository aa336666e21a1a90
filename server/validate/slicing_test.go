package validate_test

import (
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/validate"
)

// TestSlicingShapes holds every way to tell slices apart against values that are in a
// slice, that are in none, and of which that cannot be decided.
// Spec: https://hl7.org/fhir/R4/profiling.html#discriminator.
func TestSlicingShapes(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	o := overlay{Definitions: library(t), byURL: map[string]string{}}
	add := func(id, typ, base, elements string) {
		o.byURL["http://example.org/"+id] = differential(id, typ, base, elements)
	}
	datatype := func(id, typ, elements string) {
		o.byURL["http://example.org/"+id] = strings.Replace(differential(id, typ, core+typ, elements), `"kind":"resource"`, `"kind":"complex-type"`, 1)
	}
	by := func(pairs ...string) string {
		list := []string{}
		for _, p := range pairs {
			kind, path, _ := strings.Cut(p, ":")
			list = append(list, `{"type":"`+kind+`","path":"`+path+`"}`)
		}
		return `"slicing":{"discriminator":[` + strings.Join(list, ",") + `],"rules":"open"}`
	}
	// slice writes a sliced list of typ with one slice, which is required.
	slice := func(path, slicing, types, more string) string {
		return `{"id":"` + path + `","path":"` + path + `",` + slicing + `},{"id":"` + path + `:s","path":"` + path + `","sliceName":"s","min":1` + types + `}` + more
	}
	below := func(path, name, rest string) string {
		return `,{"id":"` + path + `:s.` + name + `","path":"` + path + `.` + name + `"` + rest + `}`
	}
	const identifier, category, member = "Patient.identifier", "Observation.category", "Observation.hasMember"
	typed := func(code string, urls ...string) string {
		return `,"type":[{"code":"` + code + `","profile":["` + strings.Join(urls, `","`) + `"]}]`
	}
	target := func(urls ...string) string {
		return `,"type":[{"code":"Reference","targetProfile":["` + strings.Join(urls, `","`) + `"]}]`
	}

	datatype("mrn", "Identifier", `{"id":"Identifier.system","path":"Identifier.system","min":1,"fixedUri":"urn:mrn"}`)
	datatype("ssn", "Identifier", `{"id":"Identifier.system","path":"Identifier.system","min":1,"fixedUri":"urn:ssn"}`)
	datatype("nosystem", "Identifier", `{"id":"Identifier.system","path":"Identifier.system","max":"0"}`)
	datatype("typed", "Identifier", `{"id":"Identifier.type","path":"Identifier.type","min":1,"patternCodeableConcept":{"coding":[{"system":"urn:t","code":"MR"}]}}`)
	datatype("color", "Extension", `{"id":"Extension.url","path":"Extension.url","fixedUri":"http://example.org/color"},{"id":"Extension.value[x]","path":"Extension.value[x]","min":1,"type":[{"code":"code"}]}`)
	add("named", "Patient", core+"Patient", `{"id":"Patient.name","path":"Patient.name","min":1}`)
	add("final", "Observation", core+"Observation", `{"id":"Observation.status","path":"Observation.status","fixedCode":"final"},{"id":"Observation.code","path":"Observation.code","patternCodeableConcept":{"coding":[{"system":"urn:c","code":"a"}]}}`)

	patient := func(id, slicing, types, more string) {
		add(id, "Patient", core+"Patient", slice(identifier, slicing, types, more))
	}
	patient("type-profile", by("value:system"), typed("Identifier", "http://example.org/mrn"), "")
	patient("type-profiles", by("value:system"), typed("Identifier", "http://example.org/mrn", "http://example.org/ssn"), "")
	patient("type-profile-deep", by("value:type.coding.code"), typed("Identifier", "http://example.org/typed"), "")
	patient("type-profile-pattern", by("pattern:type"), typed("Identifier", "http://example.org/typed"), "")
	patient("type-profile-exists", by("exists:system"), typed("Identifier", "http://example.org/nosystem"), "")
	patient("type-profile-unknown", by("value:system"), typed("Identifier", "http://example.org/unknown"), "")
	patient("profile-this", by("profile:$this"), typed("Identifier", "http://example.org/mrn"), "")
	patient("profile-this-unknown", by("profile:$this"), typed("Identifier", "http://example.org/unknown"), "")
	patient("one-open", by("value:system", "value:use"), "", below(identifier, "system", `,"min":1,"fixedUri":"urn:mrn"`))
	patient("one-open-first", by("value:use", "value:system"), "", below(identifier, "system", `,"min":1,"fixedUri":"urn:mrn"`))
	patient("one-open-kinds", by("exists:period", "type:assigner.resolve()", "value:system"), "", below(identifier, "system", `,"min":1,"fixedUri":"urn:mrn"`))
	patient("all-open", by("value:system", "value:use"), "", "")
	patient("two-values", by("value:system", "value:use"), "", below(identifier, "use", `,"min":1,"fixedCode":"old"`)+below(identifier, "system", `,"min":1,"fixedUri":"urn:mrn"`))
	patient("whole-pattern", by("value:system"), `,"patternIdentifier":{"system":"urn:mrn","use":"official"}`, "")
	patient("whole-pattern-this", by("value:$this"), `,"patternIdentifier":{"system":"urn:mrn"}`, "")
	patient("exists-present", by("exists:period"), "", below(identifier, "period", `,"min":1`))
	patient("exists-absent", by("exists:period"), "", below(identifier, "period", `,"max":"0"`))
	patient("exists-deep", by("exists:period.start"), "", below(identifier, "period", `,"min":1`)+below(identifier, "period.start", `,"min":1`))
	patient("exists-extension", by("exists:extension('http://example.org/color')"), "", below(identifier, "extension:c", `,"sliceName":"c","min":1,"type":[{"code":"Extension","profile":["http://example.org/color"]}]`))
	patient("value-extension", by("value:extension('http://example.org/color').value"), "",
		below(identifier, "extension:c", `,"sliceName":"c","min":1,"type":[{"code":"Extension","profile":["http://example.org/color"]}]`)+below(identifier, "extension:c.value[x]", `,"min":1,"fixedCode":"red"`))
	patient("binding", by("value:type"), "", below(identifier, "type", `,"min":1,"binding":{"strength":"required","valueSet":"http://hl7.org/fhir/ValueSet/administrative-gender"}`))
	patient("binding-unknown", by("value:type"), "", below(identifier, "type", `,"min":1,"binding":{"strength":"required","valueSet":"http://example.org/ValueSet/none"}`))
	patient("odd-path", by("value:where(system = 'x').use"), "", below(identifier, "system", `,"fixedUri":"urn:mrn"`))
	patient("no-discriminator", `"slicing":{"rules":"open"}`, "", below(identifier, "system", `,"fixedUri":"urn:mrn"`))
	patient("target-value", by("value:assigner.resolve().active"), "", below(identifier, "assigner", target("http://example.org/active")))
	add("active", "Organization", core+"Organization", `{"id":"Organization.active","path":"Organization.active","min":1,"fixedBoolean":true}`)

	obs := func(id, path, slicing, types, more string) {
		add(id, "Observation", core+"Observation", slice(path, slicing, types, more))
	}
	obs("target-type", member, by("type:resolve()"), target(core+"QuestionnaireResponse"), "")
	obs("target-type-this", member, by("type:$this.resolve()"), target(core+"QuestionnaireResponse"), "")
	obs("target-type-profile", member, by("type:resolve()"), target("http://example.org/final"), "")
	obs("target-profile", member, by("profile:resolve()"), target("http://example.org/final"), "")
	obs("target-code", member, by("value:resolve().code"), target("http://example.org/final"), "")
	obs("component-type", "Observation.component", by("type:value"), "", below("Observation.component", "value[x]", `,"type":[{"code":"Quantity"}]`))
	obs("component-oftype", "Observation.component", by("value:value.ofType(CodeableConcept).coding.code"), "",
		below("Observation.component", "value[x]", `,"min":1,"type":[{"code":"CodeableConcept"}],"patternCodeableConcept":{"coding":[{"code":"x"}]}`))
	obs("category-two", category, by("value:coding.system", "value:coding.code"), `,"patternCodeableConcept":{"coding":[{"system":"urn:c","code":"lab"}]}`, "")
	obs("category-inner", category, by("value:coding.code"), "", below(category, "coding", `,"slicing":{"discriminator":[{"type":"value","path":"system"}],"rules":"open"}`)+
		below(category, "coding:l", `,"sliceName":"l","min":1`)+below(category, "coding:l.system", `,"min":1,"fixedUri":"urn:c"`)+below(category, "coding:l.code", `,"min":1,"fixedCode":"lab"`))
	obs("choice", "Observation.value[x]", by("type:$this"), `,"type":[{"code":"Quantity"},{"code":"Range"}]`, "")

	add("bundle", "Bundle", core+"Bundle", slice("Bundle.entry", by("profile:resource"), "", below("Bundle.entry", "resource", `,"min":1,"type":[{"code":"Patient","profile":["http://example.org/named"]}]`)))
	add("bundle-type", "Bundle", core+"Bundle", slice("Bundle.entry", by("type:resource"), "", below("Bundle.entry", "resource", `,"min":1,"type":[{"code":"Patient"}]`)))
	add("bundle-value", "Bundle", core+"Bundle", slice("Bundle.entry", by("value:resource.code.coding.code"), "", below("Bundle.entry", "resource", `,"min":1,"type":[{"code":"Observation","profile":["http://example.org/final"]}]`)))
	add("closed-unknown", "Patient", core+"Patient", strings.Replace(slice(identifier, by("value:system"), typed("Identifier", "http://example.org/unknown"), ""), `"rules":"open"`, `"rules":"closed"`, 1))
	add("again", "Patient", core+"Patient", slice(identifier, by("value:system"), typed("Identifier", "http://example.org/mrn")+`,`+by("value:use"), `,{"id":"Patient.identifier:s/r","path":"Patient.identifier","sliceName":"s/r","min":1`+typed("Identifier", "http://example.org/mrn")+`}`+
		`,{"id":"Patient.identifier:s/r.use","path":"Patient.identifier.use","min":1,"fixedCode":"official"}`))
	add("again-unknown", "Patient", core+"Patient", slice(identifier, by("value:system"), typed("Identifier", "http://example.org/unknown")+`,`+by("value:use"), `,{"id":"Patient.identifier:s/r","path":"Patient.identifier","sliceName":"s/r","min":1}`+
		`,{"id":"Patient.identifier:s/r.use","path":"Patient.identifier.use","min":1,"fixedCode":"official"}`))

	v := validate.New(r4.Model, o, codes(t))
	identified := func(s string) string { return `{"resourceType":"Patient","identifier":[{"value":"0"},` + s + `]}` }
	observed := func(s string) string {
		return `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://x","code":"y"}]},` + s + `}`
	}
	entries := func(s string) string {
		return `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Basic/1","resource":{"resourceType":"Basic","code":{"text":"x"}}},{"fullUrl":"http://x/` + s + `}]}`
	}
	contained := func(code string) string {
		return observed(`"contained":[{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"system":"urn:c","code":"` + code + `"}]}}],"hasMember":[{"reference":"#o"}]`)
	}
	type place struct{ profile, in, out, unsure string }
	for _, c := range []place{
		{"type-profile", identified(`{"system":"urn:mrn","value":"1"}`), identified(`{"system":"urn:x","value":"1"}`), ""},
		{"type-profiles", identified(`{"system":"urn:ssn","value":"1"}`), identified(`{"system":"urn:x","value":"1"}`), ""},
		{"type-profile-deep", identified(`{"type":{"coding":[{"system":"urn:t","code":"MR"}]}}`), identified(`{"type":{"coding":[{"system":"urn:t","code":"X"}]}}`), ""},
		{"type-profile-pattern", identified(`{"type":{"coding":[{"system":"urn:t","code":"MR"}]}}`), identified(`{"type":{"coding":[{"system":"urn:t","code":"X"}]}}`), ""},
		{"type-profile-exists", identified(`{"system":"urn:x","value":"1"}`), `{"resourceType":"Patient","identifier":[{"system":"urn:x"}]}`, ""},
		{"type-profile-unknown", "", "", identified(`{"system":"urn:x"}`)},
		{"profile-this", identified(`{"system":"urn:mrn"}`), identified(`{"system":"urn:x"}`), ""},
		{"profile-this-unknown", "", "", identified(`{"system":"urn:x"}`)},
		{"one-open", identified(`{"system":"urn:mrn"}`), identified(`{"system":"urn:x","use":"old"}`), ""},
		{"one-open", identified(`{"system":"urn:mrn","use":"old"}`), identified(`{"use":"old"}`), ""},
		{"one-open-first", identified(`{"system":"urn:mrn"}`), identified(`{"system":"urn:x"}`), ""},
		{"one-open-kinds", identified(`{"system":"urn:mrn"}`), identified(`{"system":"urn:x"}`), ""},
		{"all-open", "", "", identified(`{"system":"urn:x"}`)},
		{"two-values", identified(`{"system":"urn:mrn","use":"old"}`), identified(`{"system":"urn:mrn","use":"official"}`), ""},
		{"whole-pattern", identified(`{"system":"urn:mrn","use":"official"}`), identified(`{"system":"urn:x","use":"official"}`), ""},
		{"whole-pattern-this", identified(`{"system":"urn:mrn","use":"official"}`), identified(`{"system":"urn:x"}`), ""},
		{"exists-present", identified(`{"period":{"start":"2020"}}`), identified(`{"system":"urn:x"}`), ""},
		{"exists-absent", identified(`{"system":"urn:x"}`), `{"resourceType":"Patient","identifier":[{"period":{"start":"2020"}}]}`, ""},
		{"exists-deep", identified(`{"period":{"start":"2020"}}`), identified(`{"period":{"end":"2020"}}`), ""},
		{"exists-extension", identified(`{"extension":[{"url":"http://example.org/color","valueCode":"red"}]}`), identified(`{"extension":[{"url":"http://example.org/other","valueCode":"red"}]}`), ""},
		{"value-extension", identified(`{"extension":[{"url":"http://example.org/color","valueCode":"red"}]}`), identified(`{"extension":[{"url":"http://example.org/color","valueCode":"blue"}]}`), ""},
		{"binding", identified(`{"type":{"coding":[{"system":"http://hl7.org/fhir/administrative-gender","code":"male"}]}}`), identified(`{"type":{"coding":[{"system":"http://hl7.org/fhir/administrative-gender","code":"none"}]}}`), ""},
		{"binding-unknown", "", "", identified(`{"type":{"coding":[{"system":"http://x","code":"male"}]}}`)},
		{"odd-path", "", "", identified(`{"system":"urn:mrn"}`)},
		{"no-discriminator", "", "", identified(`{"system":"urn:mrn"}`)},
		{"target-value", `{"resourceType":"Patient","contained":[{"resourceType":"Organization","id":"o","name":"x","active":true}],"identifier":[{"assigner":{"reference":"#o"}}]}`,
			`{"resourceType":"Patient","contained":[{"resourceType":"Organization","id":"o","name":"x","active":false}],"identifier":[{"assigner":{"reference":"#o"}}]}`, identified(`{"assigner":{"reference":"Organization/1"}}`)},
		{"target-type", observed(`"hasMember":[{"reference":"QuestionnaireResponse/1"}]`), observed(`"hasMember":[{"reference":"Observation/1"}]`), observed(`"hasMember":[{"display":"x"}]`)},
		{"target-type-this", observed(`"hasMember":[{"reference":"QuestionnaireResponse/1"}]`), observed(`"hasMember":[{"reference":"Observation/1"}]`), observed(`"hasMember":[{"reference":"urn:uuid:c757873d-ec9a-4326-a141-556f43239520"}]`)},
		{"target-type-profile", observed(`"hasMember":[{"reference":"Observation/1"}]`), observed(`"hasMember":[{"reference":"MolecularSequence/1"}]`), ""},
		{"target-profile", contained("a"), contained("b"), observed(`"hasMember":[{"reference":"Observation/1"}]`)},
		{"target-profile", contained("a"), observed(`"hasMember":[{"reference":"MolecularSequence/1"}]`), observed(`"hasMember":[{"display":"x"}]`)},
		{"target-code", contained("a"), contained("b"), observed(`"hasMember":[{"reference":"Observation/1"}]`)},
		{"component-type", observed(`"component":[{"code":{"text":"x"},"valueQuantity":{"value":1}}]`), observed(`"component":[{"code":{"text":"x"},"valueString":"1"}]`), ""},
		{"component-oftype", observed(`"component":[{"code":{"text":"x"},"valueCodeableConcept":{"coding":[{"code":"x"}]}}]`), observed(`"component":[{"code":{"text":"x"},"valueString":"1"}]`), ""},
		{"category-two", observed(`"category":[{"coding":[{"system":"urn:c","code":"lab"}]}]`), observed(`"category":[{"coding":[{"system":"urn:c","code":"x"}]}]`), ""},
		{"category-inner", observed(`"category":[{"coding":[{"system":"urn:c","code":"lab"}]}]`), observed(`"category":[{"coding":[{"system":"urn:c","code":"x"}]}]`), ""},
		{"choice", observed(`"valueRange":{"low":{"value":1}}`), observed(`"valueString":"x"`), ""},
		{"bundle", entries(`Patient/1","resource":{"resourceType":"Patient","name":[{"text":"x"}]}`), entries(`Patient/1","resource":{"resourceType":"Patient","gender":"male"}`), ""},
		{"bundle-type", entries(`Patient/1","resource":{"resourceType":"Patient","gender":"male"}`), entries(`Basic/2","resource":{"resourceType":"Basic","code":{"text":"x"}}`), ""},
		{"bundle-value", entries(`Observation/1","resource":{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"urn:c","code":"a"}]}}`),
			entries(`Observation/1","resource":{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"urn:c","code":"b"}]}}`), ""},
		{"closed-unknown", "", "", identified(`{"system":"urn:x"}`)},
		{"again", identified(`{"system":"urn:mrn","use":"official"}`), identified(`{"system":"urn:mrn","use":"old"}`), ""},
		{"again-unknown", "", "", identified(`{"system":"urn:x","use":"official"}`)},
	} {
		check := func(kind, data string) {
			if data == "" {
				return
			}
			t.Run(c.profile+" "+kind, func(t *testing.T) {
				url := []string{"http://example.org/" + c.profile}
				written := issues(t, v, data, validate.Options{Profiles: url})
				asked := strings.Join(issues(t, v, data, validate.Options{Profiles: url, Warnings: true}), "\n")
				missing := strings.Contains(strings.Join(written, "\n"), " is required: expected at least 1, found none")
				if kind == "out" != missing || kind != "out" && len(written) > 0 {
					t.Errorf("errors: %q", written)
				}
				if said := strings.Contains(asked, " was not checked: ") || strings.Contains(asked, " that may be in it"); said != (kind == "unsure") {
					t.Errorf("$validate: %s", asked)
				}
			})
		}
		check("in", c.in)
		check("out", c.out)
		check("unsure", c.unsure)
	}
}
