package validate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/validate"
)

// overlay adds definitions to a library.
type overlay struct {
	validate.Definitions
	byURL map[string]string
}

func (o overlay) Resolve(url string) ([]byte, bool) {
	if b, ok := o.byURL[url]; ok {
		return []byte(b), true
	}
	return o.Definitions.Resolve(url)
}

// differential writes a profile that has no snapshot.
func differential(id, typ, base, elements string) string {
	return `{"resourceType":"StructureDefinition","id":"` + id + `","url":"http://example.org/` + id + `","name":"X","status":"active","kind":"resource","abstract":false,"type":"` + typ +
		`","baseDefinition":"` + base + `","derivation":"constraint","differential":{"element":[` + elements + `]}}`
}

func TestProfiles(t *testing.T) {
	core := "http://hl7.org/fhir/StructureDefinition/"
	profiles := map[string]string{
		"cardinality": differential("cardinality", "Patient", core+"Patient", `{"id":"Patient.name","path":"Patient.name","min":1,"max":"1"},{"id":"Patient.photo","path":"Patient.photo","max":"0"},{"id":"Patient.name.family","path":"Patient.name.family","min":1}`),
		"derived":     differential("derived", "Patient", "http://example.org/cardinality", `{"id":"Patient.gender","path":"Patient.gender","min":1,"fixedCode":"female"}`),
		"slices": differential("slices", "Observation", core+"Observation", `{"id":"Observation.category","path":"Observation.category","slicing":{"discriminator":[{"type":"value","path":"coding.code"}],"rules":"closed"}},`+
			`{"id":"Observation.category:lab","path":"Observation.category","sliceName":"lab","min":1,"max":"1","patternCodeableConcept":{"coding":[{"code":"laboratory"}]}},`+
			`{"id":"Observation.category:vital","path":"Observation.category","sliceName":"vital","max":"1"},{"id":"Observation.category:vital.coding.code","path":"Observation.category.coding.code","min":1,"fixedCode":"vital-signs"}`),
		"types":   differential("types", "Observation", core+"Observation", `{"id":"Observation.value[x]","path":"Observation.value[x]","min":1,"type":[{"code":"Quantity"}]},{"id":"Observation.value[x].code","path":"Observation.value[x].code","min":1},{"id":"Observation.subject","path":"Observation.subject","type":[{"code":"Reference","targetProfile":["`+core+`Patient"]}]}`),
		"choice":  differential("choice", "Observation", core+"Observation", `{"id":"Observation.value[x]:valueString","path":"Observation.value[x]","sliceName":"valueString","type":[{"code":"string"}],"maxLength":3}`),
		"short":   differential("short", "Observation", core+"Observation", `{"id":"Observation.valueQuantity","path":"Observation.valueQuantity","min":1},{"id":"Observation.valueQuantity.code","path":"Observation.valueQuantity.code","min":1,"fixedCode":"kg"}`),
		"implied": differential("implied", "Patient", core+"Patient", `{"id":"Patient.extension:color","path":"Patient.extension","sliceName":"color","max":"1","type":[{"code":"Extension","profile":["http://example.org/color"]}]}`),
		"rule":    differential("rule", "Patient", core+"Patient", `{"id":"Patient","path":"Patient","constraint":[{"key":"r-1","severity":"error","human":"needs a phone","expression":"telecom.where(system = 'phone').exists()"}]}`),
		"extended": differential("extended", "Patient", core+"Patient", `{"id":"Patient.extension","path":"Patient.extension","slicing":{"discriminator":[{"type":"value","path":"url"}],"rules":"open"}},`+
			`{"id":"Patient.extension:color","path":"Patient.extension","sliceName":"color","min":1,"max":"1","type":[{"code":"Extension","profile":["http://example.org/color"]}]}`),
		"color":   strings.Replace(differential("color", "Extension", core+"Extension", `{"id":"Extension.url","path":"Extension.url","fixedUri":"http://example.org/color"},{"id":"Extension.value[x]","path":"Extension.value[x]","min":1,"type":[{"code":"code"}]}`), `"kind":"resource"`, `"kind":"complex-type"`, 1),
		"endless": differential("endless", "Patient", core+"Patient", `{"id":"Patient.contained","path":"Patient.contained","type":[{"code":"Resource","profile":["http://example.org/endless"]}]}`),
		"circle":  differential("circle", "Patient", "http://example.org/circle", `{"id":"Patient.name","path":"Patient.name","min":1}`),
		"bound":   differential("bound", "Observation", core+"Observation", `{"id":"Observation.code","path":"Observation.code","binding":{"strength":"required","valueSet":"http://hl7.org/fhir/ValueSet/administrative-gender"}}`),
		"bounds": differential("bounds", "Observation", core+"Observation", `{"id":"Observation.value[x]","path":"Observation.value[x]","type":[{"code":"integer"}],"minValueInteger":1,"maxValueInteger":10},`+
			`{"id":"Observation.effective[x]","path":"Observation.effective[x]","type":[{"code":"dateTime"}],"minValueDateTime":"2020-01-02"}`),
		"atend": differential("atend", "Patient", core+"Patient", `{"id":"Patient.identifier","path":"Patient.identifier","slicing":{"discriminator":[{"type":"value","path":"system"}],"rules":"openAtEnd"}},`+
			`{"id":"Patient.identifier:mrn","path":"Patient.identifier","sliceName":"mrn"},{"id":"Patient.identifier:mrn.system","path":"Patient.identifier.system","min":1,"fixedUri":"urn:mrn"}`),
		"again": differential("again", "Patient", core+"Patient", `{"id":"Patient.identifier","path":"Patient.identifier","slicing":{"discriminator":[{"type":"value","path":"system"}],"rules":"open"}},`+
			`{"id":"Patient.identifier:mrn","path":"Patient.identifier","sliceName":"mrn","slicing":{"discriminator":[{"type":"value","path":"use"}],"rules":"open"}},{"id":"Patient.identifier:mrn.system","path":"Patient.identifier.system","min":1,"fixedUri":"urn:mrn"},`+
			`{"id":"Patient.identifier:mrn/official","path":"Patient.identifier","sliceName":"mrn/official","min":1,"max":"1"},{"id":"Patient.identifier:mrn/official.use","path":"Patient.identifier.use","min":1,"fixedCode":"official"}`),
		"target": differential("target", "Observation", core+"Observation", `{"id":"Observation.hasMember","path":"Observation.hasMember","slicing":{"discriminator":[{"type":"type","path":"resolve()"}],"rules":"open"}},`+
			`{"id":"Observation.hasMember:answers","path":"Observation.hasMember","sliceName":"answers","min":1,"max":"1","type":[{"code":"Reference","targetProfile":["`+core+`QuestionnaireResponse"]}]}`),
		"parts": strings.Replace(differential("parts", "Extension", core+"Extension", `{"id":"Extension.extension:code","path":"Extension.extension","sliceName":"code"},{"id":"Extension.extension:code.url","path":"Extension.extension.url","fixedUri":"code"},`+
			`{"id":"Extension.url","path":"Extension.url","fixedUri":"http://example.org/parts"},{"id":"Extension.value[x]","path":"Extension.value[x]","max":"0"}`), `"kind":"resource"`, `"kind":"complex-type"`, 1),
		"entries": differential("entries", "Bundle", core+"Bundle", `{"id":"Bundle.entry","path":"Bundle.entry","slicing":{"discriminator":[{"type":"profile","path":"resource"}],"rules":"closed"}},`+
			`{"id":"Bundle.entry:p","path":"Bundle.entry","sliceName":"p","min":1,"max":"1"},{"id":"Bundle.entry:p.resource","path":"Bundle.entry.resource","min":1,"type":[{"code":"Patient","profile":["http://example.org/cardinality"]}]},`+
			`{"id":"Bundle.entry:b","path":"Bundle.entry","sliceName":"b"},{"id":"Bundle.entry:b.resource","path":"Bundle.entry.resource","min":1,"type":[{"code":"Basic"}]}`),
		"exists": differential("exists", "Patient", core+"Patient", `{"id":"Patient.identifier","path":"Patient.identifier","slicing":{"discriminator":[{"type":"exists","path":"system"}],"rules":"open"}},`+
			`{"id":"Patient.identifier:global","path":"Patient.identifier","sliceName":"global","min":1},{"id":"Patient.identifier:global.system","path":"Patient.identifier.system","min":1},`+
			`{"id":"Patient.identifier:local","path":"Patient.identifier","sliceName":"local","max":"0"},{"id":"Patient.identifier:local.system","path":"Patient.identifier.system","max":"0"}`),
	}
	o := overlay{Definitions: library(t), byURL: map[string]string{}}
	for id, p := range profiles {
		o.byURL["http://example.org/"+id] = p
	}
	v := validate.New(r4.Model, o, codes(t))
	observation := func(more string) string {
		return `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://x","code":"y"}]}` + more + `}`
	}
	tests := []struct {
		name, profile, data string
		want                []string
	}{
		{"cardinality holds", "cardinality", `{"resourceType":"Patient","name":[{"family":"A"}]}`, nil},
		{"cardinality does not", "cardinality", `{"resourceType":"Patient","name":[{"text":"A"},{"family":"B"}],"photo":[{"title":"t"}]}`, []string{
			"Patient: name: expected at most 1, found 2", "Patient.name[0]: family is required: expected at least 1, found none", "Patient: photo is not allowed here"}},
		{"a profile of a profile", "derived", `{"resourceType":"Patient","gender":"male"}`, []string{
			"Patient: name is required: expected at least 1, found none", "Patient.gender: expected female, found male"}},
		{"slices hold", "slices", observation(`,"category":[{"coding":[{"code":"vital-signs"}]},{"coding":[{"system":"s","code":"laboratory"}]}]`), nil},
		{"a slice is missing", "slices", observation(`,"category":[{"coding":[{"code":"vital-signs"}]}]`), []string{
			"Observation: category:lab is required: expected at least 1, found none"}},
		{"a slice too many and one that is closed out", "slices", observation(`,"category":[{"coding":[{"code":"laboratory"}]},{"coding":[{"code":"laboratory"}]},{"text":"z"}]`), []string{
			"Observation.category[2]: expected one of the slices lab, vital, found none of them", "Observation: category:lab: expected at most 1, found 2"}},
		{"a type that is not allowed", "types", observation(`,"valueString":"x","subject":{"reference":"Group/1"}`), []string{
			"Observation.subject: expected a reference to Patient, found Group/1", "Observation.value: expected Quantity, found string"}},
		{"an element of a datatype", "types", observation(`,"valueQuantity":{"value":1}`), []string{
			"Observation.value: code is required: expected at least 1, found none"}},
		{"one type of a choice", "choice", observation(`,"valueString":"long"`), []string{"Observation.value: expected at most 3 characters, found 4"}},
		{"another type of the choice", "choice", observation(`,"valueInteger":12345`), nil},
		{"a choice by its JSON name", "short", observation(`,"valueQuantity":{"value":1,"system":"http://unitsofmeasure.org","code":"g"}`), []string{"Observation.value.code: expected kg, found g"}},
		{"another type than the JSON name says", "short", observation(`,"valueString":"x"`), []string{
			"Observation.value: expected Quantity, found string", "Observation: value:valueQuantity is required: expected at least 1, found none"}},
		{"extensions are sliced by url", "implied", `{"resourceType":"Patient","extension":[{"url":"http://a","valueString":"x"},{"url":"http://b","valueString":"x"}]}`, nil},
		{"an invariant", "rule", `{"resourceType":"Patient","telecom":[{"system":"email","value":"a"}]}`, []string{"Patient: constraint r-1: needs a phone"}},
		{"an extension", "extended", `{"resourceType":"Patient","extension":[{"url":"http://example.org/color","valueCode":"red"},{"url":"http://other","valueString":"x"}]}`, nil},
		{"an extension is missing", "extended", `{"resourceType":"Patient"}`, []string{"Patient: extension:color is required: expected at least 1, found none"}},
		{"an extension of the wrong type", "extended", `{"resourceType":"Patient","extension":[{"url":"http://example.org/color","valueString":"red"}]}`, []string{
			"Patient.extension[0].value: expected code, found string"}},
		{"a required binding", "bound", observation(``), []string{
			"Observation.code: expected a code of http://hl7.org/fhir/ValueSet/administrative-gender (required binding), found http://x|y; it has female, male, other, unknown"}},
		{"slices by existence", "exists", `{"resourceType":"Patient","identifier":[{"value":"1"}]}`, []string{
			"Patient: identifier:global is required: expected at least 1, found none", "Patient: identifier:local is not allowed here"}},
		{"values within bounds", "bounds", observation(`,"valueInteger":10,"effectiveDateTime":"2020-01"`), nil},
		{"values out of bounds", "bounds", observation(`,"valueInteger":11,"effectiveDateTime":"2020-01-01"`), []string{
			"Observation.effective: expected 2020-01-02 or more, found 2020-01-01", "Observation.value: expected 10 or less, found 11"}},
		{"what is in no slice at the end", "atend", `{"resourceType":"Patient","identifier":[{"system":"urn:mrn"},{"system":"urn:x"}]}`, nil},
		{"what is in no slice before the end", "atend", `{"resourceType":"Patient","identifier":[{"system":"urn:x"},{"system":"urn:mrn"}]}`, []string{
			"Patient.identifier[1]: expected slice mrn before items in no slice"}},
		{"a slice of a slice", "again", `{"resourceType":"Patient","identifier":[{"system":"urn:mrn","use":"official"},{"system":"urn:mrn","use":"old"}]}`, nil},
		{"a slice of a slice is missing", "again", `{"resourceType":"Patient","identifier":[{"system":"urn:mrn","use":"old"},{"system":"urn:x","use":"official"}]}`, []string{
			"Patient: identifier:mrn/official is required: expected at least 1, found none"}},
		{"slices by the type of a target", "target", observation(`,"hasMember":[{"reference":"Observation/1"},{"reference":"QuestionnaireResponse/1"}]`), nil},
		{"two in a slice by the type of a target", "target", observation(`,"hasMember":[{"reference":"QuestionnaireResponse/1"},{"type":"QuestionnaireResponse","identifier":{"value":"2"}}]`), []string{
			"Observation: hasMember:answers: expected at most 1, found 2"}},
		{"slices by profile, one of them by type alone", "entries", `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Patient/1","resource":{"resourceType":"Patient","name":[{"family":"A"}]}},{"fullUrl":"http://x/Basic/1","resource":{"resourceType":"Basic","code":{"text":"x"}}}]}`, nil},
		{"an entry of no profile", "entries", `{"resourceType":"Bundle","type":"collection","entry":[{"fullUrl":"http://x/Patient/1","resource":{"resourceType":"Patient","name":[{"family":"A"}]}},{"fullUrl":"http://x/Patient/2","resource":{"resourceType":"Patient"}}]}`, []string{
			"Bundle.entry[1]: expected one of the slices p, b, found none of them; the nearest profile fails: Patient: name is required: expected at least 1, found none"}},
		{"a profile of another type", "rule", observation(``), []string{"Observation: profile http://example.org/rule is for Patient, found a Observation"}},
		{"a profile that is not known", "nothing", observation(``), []string{"Observation: profile http://example.org/nothing is not known here"}},
		{"bases in a circle", "circle", `{"resourceType":"Patient"}`, []string{"Patient: profile http://example.org/circle cannot be used: its bases go in a circle, or are more than 20"}},
		{"a profile that contains itself", "endless", `{"resourceType":"Patient","contained":[{"resourceType":"Patient","id":"c"}],"link":[{"type":"seealso","other":{"reference":"#c"}}]}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := issues(t, v, tt.data, validate.Options{Profiles: []string{"http://example.org/" + tt.profile}})
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "error ")
				// Each says which profile it goes against.
				if !strings.HasPrefix(strings.Join(tt.want, ""), "Observation: profile ") && tt.profile != "circle" && !strings.Contains(got[i], " (profile http://example.org/") {
					t.Errorf("%q does not name the profile", got[i])
				}
				got[i], _, _ = strings.Cut(got[i], " (profile ")
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

// TestVitalSigns applies HL7's own profiles, which slice and fix, to its examples
// and to one with a wrong unit.
func TestVitalSigns(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	v := newValidator(t)
	checked := 0
	for _, b := range all {
		var head struct {
			ResourceType, ID string
			Meta             struct{ Profile []string }
		}
		if err := json.Unmarshal(b, &head); err != nil {
			t.Fatal(err)
		}
		if head.ResourceType != "Observation" || len(head.Meta.Profile) == 0 || head.ID == "clinical-gender" {
			continue
		}
		checked++
		special := map[string]string{"blood-pressure": "bp", "bmi": "bmi", "body-height": "bodyheight", "body-temperature": "bodytemp",
			"head-circumference": "headcircum", "heart-rate": "heartrate", "respiratory-rate": "resprate", "satO2": "oxygensat", "vitals-panel": "vitalspanel"}
		o := validate.Options{}
		if p, ok := special[head.ID]; ok {
			o.Profiles = []string{"http://hl7.org/fhir/StructureDefinition/" + p}
		}
		if got := issues(t, v, string(b), o); len(got) > 0 {
			t.Errorf("%s: %v", head.ID, got)
		}
		if head.ID == "bmi" {
			wrong := strings.ReplaceAll(string(b), `"code":"kg/m2"`, `"code":"kg"`)
			got := issues(t, v, wrong, o)
			if len(got) == 0 || !strings.Contains(got[0], "kg/m2") {
				t.Errorf("a BMI in kg: %v", got)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d examples name a profile", checked)
	}
}

// A rule of a profile that cannot be decided is always reported.
func TestProfileThatCannotBeDecided(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	constraint := func(id, key, severity, expression string) string {
		return differential(id, "Patient", core+"Patient", `{"id":"Patient","path":"Patient","constraint":[{"key":"`+key+`","severity":"`+severity+`","human":"x","expression":"`+expression+`"}]}`)
	}
	o := overlay{Definitions: library(t), byURL: map[string]string{
		"http://example.org/endless":  constraint("endless", "e-1", "error", "'a'.repeat($this & 'a').empty()"),
		"http://example.org/lenient":  constraint("lenient", "l-1", "warning", "'a'.repeat($this & 'a').empty()"),
		"http://example.org/broken":   constraint("broken", "b-1", "error", "name.where("),
		"http://example.org/orphan":   differential("orphan", "Patient", "http://example.org/none", `{"id":"Patient.name","path":"Patient.name","min":1}`),
		"http://example.org/named":    differential("named", "Patient", core+"Patient", `{"id":"Patient.name","path":"Patient.name","type":[{"code":"HumanName","profile":["http://example.org/none"]}]}`),
		"http://example.org/pointing": differential("pointing", "Patient", core+"Patient", `{"id":"Patient.managingOrganization","path":"Patient.managingOrganization","type":[{"code":"Reference","targetProfile":["http://example.org/none"]}]}`),
		"http://example.org/strange":  differential("strange", "Patient", core+"Patient", `{"id":"Patient.nickname","path":"Patient.nickname","min":1}`),
	}}
	sliced := func(id, path string) {
		o.byURL["http://example.org/"+id] = differential(id, "Patient", core+"Patient", `{"id":"Patient.identifier","path":"Patient.identifier","slicing":{"discriminator":[{"type":"value","path":"`+path+`"}],"rules":"open"}},`+
			`{"id":"Patient.identifier:a","path":"Patient.identifier","sliceName":"a"}`)
	}
	sliced("vague", "system")
	sliced("nowhere", "nothing")
	const patient = `{"resourceType":"Patient","name":[{"text":"x"}],"contained":[{"resourceType":"Organization","id":"o","name":"x"}],"managingOrganization":{"reference":"#o"}}`
	v := validate.New(r4.Model, o, codes(t))
	for _, c := range []struct {
		profile  string
		warnings bool
		want     string
	}{
		{"endless", false, "error Patient: constraint e-1 could not be evaluated: FHIRPath limit exceeded"},
		{"lenient", true, "warning Patient: constraint l-1 could not be evaluated: FHIRPath limit exceeded"},
		{"broken", true, "warning Patient: constraint b-1 of Patient was not checked: FHIRPath syntax error"},
		{"orphan", false, "error Patient: profile http://example.org/orphan cannot be used: its base http://example.org/none is not known"},
		{"strange", false, "error Patient: profile http://example.org/strange cannot be used: http://hl7.org/fhir/StructureDefinition/Patient has no element Patient.nickname"},
		{"named", true, "warning Patient.name[0]: profile http://example.org/none is not known here; it was not checked"},
		{"pointing", true, "warning Patient.managingOrganization: profile http://example.org/none is not known here; the target was not checked against it"},
		{"vague", true, "warning Patient: slice a of Patient.identifier could not be distinguished: it fixes no value at system,"},
		{"nowhere", true, "warning Patient: slice a of Patient.identifier could not be distinguished: it fixes no value at nothing,"},
	} {
		got := issues(t, v, patient, validate.Options{Profiles: []string{"http://example.org/" + c.profile}, Warnings: c.warnings})
		if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: got %q, want %s", c.profile, got, c.want)
		}
	}
}
