package validate_test

import (
	"slices"
	"strings"
	"testing"

	"kiln/definitions/examples"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/validate"
)

const questionnaire = `{"resourceType":"Questionnaire","url":"http://example.org/q","status":"active","item":[
	{"linkId":"who","type":"group","required":true,"item":[
		{"linkId":"name","type":"string","required":true,"maxLength":5},
		{"linkId":"born","type":"date"}]},
	{"linkId":"smoker","type":"boolean"},
	{"linkId":"packs","type":"integer","required":true,"enableWhen":[{"question":"smoker","operator":"=","answerBoolean":true}]},
	{"linkId":"heavy","type":"display","text":"That is much","enableWhen":[{"question":"packs","operator":">","answerInteger":20}]},
	{"linkId":"color","type":"choice","repeats":true,"answerOption":[{"valueCoding":{"system":"urn:c","code":"red"}},{"valueCoding":{"system":"urn:c","code":"blue"}}],
		"item":[{"linkId":"why","type":"text"}]},
	{"linkId":"drink","type":"open-choice","answerOption":[{"valueString":"tea"}]},
	{"linkId":"sex","type":"choice","answerValueSet":"http://hl7.org/fhir/ValueSet/administrative-gender"},
	{"linkId":"any","type":"string","enableBehavior":"any","enableWhen":[{"question":"smoker","operator":"exists","answerBoolean":false},{"question":"born","operator":"<","answerDate":"2000-01-01"}]},
	{"linkId":"child","type":"group","repeats":true,"item":[
		{"linkId":"sick","type":"boolean"},
		{"linkId":"illness","type":"string","required":true,"enableWhen":[{"question":"sick","operator":"=","answerBoolean":true}]}]}]}`

// Spec: https://hl7.org/fhir/R4/questionnaireresponse.html#notes, questionnaire.html#notes.
func TestQuestionnaireResponse(t *testing.T) {
	v := validate.New(r4.Model, overlay{Definitions: library(t), byURL: map[string]string{"http://example.org/q": questionnaire}}, codes(t))
	response := func(status, items string) string {
		return `{"resourceType":"QuestionnaireResponse","questionnaire":"http://example.org/q","status":"` + status + `","item":[` + items + `]}`
	}
	const who = `{"linkId":"who","item":[{"linkId":"name","answer":[{"valueString":"Ann"}]}]}`
	no, yes := `,{"linkId":"smoker","answer":[{"valueBoolean":false}]}`, `,{"linkId":"smoker","answer":[{"valueBoolean":true}]}`
	for _, c := range []struct{ name, data, want string }{
		{"complete", response("completed", who+no), ""},
		{"everything", response("completed", who+yes+`,{"linkId":"packs","answer":[{"valueInteger":21}]},{"linkId":"heavy"},`+
			`{"linkId":"color","answer":[{"valueCoding":{"system":"urn:c","code":"red","display":"Red"},"item":[{"linkId":"why","answer":[{"valueString":"so"}]}]},{"valueCoding":{"system":"urn:c","code":"blue"}}]},`+
			`{"linkId":"drink","answer":[{"valueString":"gin"}]},{"linkId":"sex","answer":[{"valueCoding":{"system":"http://hl7.org/fhir/administrative-gender","code":"female"}}]},`+
			`{"linkId":"child","item":[{"linkId":"sick","answer":[{"valueBoolean":true}]},{"linkId":"illness","answer":[{"valueString":"flu"}]}]},{"linkId":"child","item":[{"linkId":"sick","answer":[{"valueBoolean":false}]}]}`), ""},
		{"an unknown linkId", response("completed", who+no+`,{"linkId":"nothing"}`), "error QuestionnaireResponse.item[2]: the questionnaire has no item nothing"},
		{"an item of another level", response("completed", who+no+`,{"linkId":"born"}`), "error QuestionnaireResponse.item[2]: item born belongs below item who"},
		{"an item of the top below", response("completed", `{"linkId":"who","item":[{"linkId":"name","answer":[{"valueString":"Ann"}]},{"linkId":"smoker"}]}`), "error QuestionnaireResponse.item[0].item[1]: item smoker belongs at the top"},
		{"items of a question outside of its answers", response("completed", who+`,{"linkId":"color","item":[{"linkId":"why","answer":[{"valueString":"so"}]}]}`), "error QuestionnaireResponse.item[1]: item color is a question: expected its items inside of its answers"},
		{"items out of order", response("completed", `{"linkId":"smoker","answer":[{"valueBoolean":false}]},`+who), "error QuestionnaireResponse.item[1]: item who is out of order"},
		{"a required group is missing", response("completed", `{"linkId":"smoker","answer":[{"valueBoolean":false}]}`), "error QuestionnaireResponse: item who is required: found none"},
		{"a required question is missing", response("completed", `{"linkId":"who","item":[{"linkId":"born","answer":[{"valueDate":"2001"}]}]}`), "error QuestionnaireResponse.item[0]: item name is required: found none"},
		{"a required question has no answer", response("completed", `{"linkId":"who","item":[{"linkId":"name"}]}`), "error QuestionnaireResponse.item[0].item[0]: item name is required: found no answer"},
		{"one in progress may lack answers", response("in-progress", `{"linkId":"who","item":[{"linkId":"name"}]}`), ""},
		{"a required question that is enabled", response("completed", who+yes), "error QuestionnaireResponse: item packs is required: found none"},
		{"an answer that is not enabled", response("completed", who+no+`,{"linkId":"packs","answer":[{"valueInteger":1}]}`), "error QuestionnaireResponse.item[2]: item packs is not enabled"},
		{"an answer of another type", response("completed", who+`,{"linkId":"smoker","answer":[{"valueString":"yes"}]}`), "error QuestionnaireResponse.item[1].answer[0].value: expected boolean as the answer to a question of type boolean, found string"},
		{"two answers", response("completed", who+`,{"linkId":"smoker","answer":[{"valueBoolean":true},{"valueBoolean":false}]}`), "error QuestionnaireResponse.item[1]: item smoker does not repeat: expected at most 1 answer, found 2"},
		{"a group twice", response("completed", who+","+who), "error QuestionnaireResponse: item who does not repeat: expected at most 1, found 2"},
		{"a repeating question as two items", response("completed", who+no+`,{"linkId":"color","answer":[{"valueCoding":{"system":"urn:c","code":"red"}}]},{"linkId":"color","answer":[{"valueCoding":{"system":"urn:c","code":"blue"}}]}`), "error QuestionnaireResponse: item color is a question: expected one item with all its answers"},
		{"none of the options", response("completed", who+no+`,{"linkId":"color","answer":[{"valueCoding":{"system":"urn:c","code":"green"}}]}`), "error QuestionnaireResponse.item[2].answer[0].value: expected one of the answerOptions of item color"},
		{"a code outside of the value set", response("completed", who+no+`,{"linkId":"sex","answer":[{"valueCoding":{"system":"http://hl7.org/fhir/administrative-gender","code":"f"}}]}`), "error QuestionnaireResponse.item[2].answer[0].value: expected a code of http://hl7.org/fhir/ValueSet/administrative-gender"},
		{"text that is too long", response("completed", `{"linkId":"who","item":[{"linkId":"name","answer":[{"valueString":"Annabel"}]}]}`), "error QuestionnaireResponse.item[0].item[0].answer[0].value: expected at most 5 characters, found 7"},
		{"an answer to a group", response("completed", `{"linkId":"who","answer":[{"valueString":"x"}]}`), "error QuestionnaireResponse.item[0]: item who is a group, which has no answer"},
		{"enabled by one of several", response("completed", who+`,{"linkId":"any","answer":[{"valueString":"x"}]}`), ""},
		{"enabled by none of several", response("completed", who+no+`,{"linkId":"any","answer":[{"valueString":"x"}]}`), "error QuestionnaireResponse.item[2]: item any is not enabled"},
		{"enabled by the answer in the same group", response("completed", who+no+`,{"linkId":"child","item":[{"linkId":"sick","answer":[{"valueBoolean":false}]},{"linkId":"illness","answer":[{"valueString":"flu"}]}]},{"linkId":"child","item":[{"linkId":"sick","answer":[{"valueBoolean":true}]},{"linkId":"illness","answer":[{"valueString":"flu"}]}]}`),
			"error QuestionnaireResponse.item[2].item[1]: item illness is not enabled"},
		{"a questionnaire that is not known", `{"resourceType":"QuestionnaireResponse","questionnaire":"http://example.org/other","status":"completed"}`, "warning QuestionnaireResponse: questionnaire http://example.org/other is not known here"},
		{"a contained questionnaire", `{"resourceType":"QuestionnaireResponse","questionnaire":"#q","status":"completed","contained":[{"resourceType":"Questionnaire","id":"q","status":"active","item":[{"linkId":"1","type":"boolean"}]}],"item":[{"linkId":"2"}]}`,
			"error QuestionnaireResponse.item[0]: the questionnaire has no item 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := issues(t, v, c.data, validate.Options{Warnings: true, Strict: true})
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("got\n\t%s", strings.Join(got, "\n\t"))
			case c.want != "" && !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, c.want) }):
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), c.want)
			}
		})
	}
}

// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.type.targetProfile.
func TestTargetProfiles(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	v := validate.New(r4.Model, overlay{Definitions: library(t), byURL: map[string]string{
		"http://example.org/member": differential("member", "Patient", core+"Patient",
			`{"id":"Patient.managingOrganization","path":"Patient.managingOrganization","type":[{"code":"Reference","targetProfile":["http://example.org/clinic"]}]}`),
		"http://example.org/clinic": differential("clinic", "Organization", core+"Organization",
			`{"id":"Organization.telecom","path":"Organization.telecom","min":1},{"id":"Organization.partOf","path":"Organization.partOf","type":[{"code":"Reference","targetProfile":["http://example.org/clinic"]}]}`),
	}}, codes(t))
	bundle := func(reference, organization string) string {
		return `{"resourceType":"Bundle","type":"collection","entry":[
			{"fullUrl":"http://x/Patient/p","resource":{"resourceType":"Patient","id":"p","meta":{"profile":["http://example.org/member"]},"managingOrganization":{"reference":"` + reference + `"}}},
			{"fullUrl":"http://x/Organization/o","resource":{"resourceType":"Organization","id":"o","name":"x"` + organization + `}}]}`
	}
	const want = "error Bundle.entry[0].resource.managingOrganization: expected a reference to a resource that conforms to http://example.org/clinic, "
	for _, c := range []struct{ name, data, want string }{
		{"a target that conforms", bundle("Organization/o", `,"telecom":[{"system":"phone","value":"1"}]`), ""},
		{"a target that does not", bundle("Organization/o", ""), want + "Organization/o does not"},
		{"by its absolute URL", bundle("http://x/Organization/o", ""), want + "http://x/Organization/o does not"},
		{"a target elsewhere", bundle("http://y/Organization/o", ""), ""},
		{"a target that refers to itself", bundle("Organization/o", `,"telecom":[{"system":"phone","value":"1"}],"partOf":{"reference":"Organization/o"}`), ""},
	} {
		got := strings.Join(issues(t, v, c.data, validate.Options{}), "; ")
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// HL7's examples against the Questionnaires among them.
func TestExampleResponses(t *testing.T) {
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	o := overlay{Definitions: library(t), byURL: map[string]string{}}
	var responses []string
	for _, b := range all {
		switch r, err := fhir.Decode(r4.Model, b); r := r.(type) {
		case *r4.Questionnaire:
			o.byURL[r.URL.Text], o.byURL["Questionnaire/"+r.ID.Text] = string(b), string(b)
		case *r4.QuestionnaireResponse:
			if err == nil {
				responses = append(responses, string(b))
			}
		}
	}
	v := validate.New(r4.Model, o, codes(t))
	checked := 0
	for _, r := range responses {
		got := issues(t, v, r, validate.Options{Warnings: true})
		if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "is not known here; the response") }) {
			checked++
		}
		for _, i := range got {
			if strings.HasPrefix(i, "error") {
				t.Errorf("%s", i)
			}
		}
	}
	if checked < 4 {
		t.Errorf("%d of %d responses name a questionnaire that is an example too", checked, len(responses))
	}
}

// R4's extensions that restrict answers.
// Spec: https://hl7.org/fhir/R4/questionnaire-profiles.html.
func TestQuestionnaireExtensions(t *testing.T) {
	const base = `"url":"http://hl7.org/fhir/StructureDefinition/`
	for _, c := range []struct{ name, item, answers, want string }{
		{"at least", `"type":"integer","extension":[{` + base + `minValue","valueInteger":3}]`, `{"valueInteger":2}`, "the minValue of item i is 3: found 2"},
		{"the least", `"type":"integer","extension":[{` + base + `minValue","valueInteger":3}]`, `{"valueInteger":3}`, ""},
		{"at most, a date", `"type":"date","extension":[{` + base + `maxValue","valueDate":"2020-01-01"}]`, `{"valueDate":"2020-01-02"}`, "the maxValue of item i is 2020-01-01"},
		{"too short", `"type":"string","extension":[{` + base + `minLength","valueInteger":3}]`, `{"valueString":"äö"}`, "expected at least 3 characters (minLength), found 2"},
		{"a pattern", `"type":"string","extension":[{` + base + `regex","valueString":"[0-9]{5}"}]`, `{"valueString":"123456"}`, "does not match its regular expression [0-9]{5}"},
		{"a pattern that matches", `"type":"string","extension":[{` + base + `regex","valueString":"[0-9]{5}"}]`, `{"valueString":"12345"}`, ""},
		{"a pattern of another kind", `"type":"string","extension":[{` + base + `regex","valueString":"(?=a)"}]`, `{"valueString":"a"}`, "was not checked"},
		{"digits", `"type":"decimal","extension":[{` + base + `maxDecimalPlaces","valueInteger":1}]`, `{"valueDecimal":1.25}`, "expected at most 1 digits behind the point (maxDecimalPlaces), found 2"},
		{"too few answers", `"type":"string","repeats":true,"extension":[{` + base + `questionnaire-minOccurs","valueInteger":2}]`, `{"valueString":"a"}`, "item i occurs at least 2 times"},
		{"too many answers", `"type":"string","repeats":true,"extension":[{` + base + `questionnaire-maxOccurs","valueInteger":1}]`, `{"valueString":"a"},{"valueString":"b"}`, "item i occurs at most 1 times"},
		{"an exclusive option", `"type":"choice","repeats":true,"answerOption":[{"valueCoding":{"code":"a"}},{"extension":[{` + base + `questionnaire-optionExclusive","valueBoolean":true}],"valueCoding":{"code":"none"}}]`,
			`{"valueCoding":{"code":"a"}},{"valueCoding":{"code":"none"}}`, "item i has an answer that excludes others"},
		{"an exclusive option alone", `"type":"choice","repeats":true,"answerOption":[{"valueCoding":{"code":"a"}},{"extension":[{` + base + `questionnaire-optionExclusive","valueBoolean":true}],"valueCoding":{"code":"none"}}]`,
			`{"valueCoding":{"code":"none"}}`, ""},
		{"a reference to another type", `"type":"reference","extension":[{` + base + `questionnaire-referenceResource","valueCode":"Patient"}]`, `{"valueReference":{"reference":"Group/1"}}`, "item i takes no reference to a Group"},
		{"a unit", `"type":"quantity","extension":[{` + base + `questionnaire-unitOption","valueCoding":{"system":"http://unitsofmeasure.org","code":"kg"}}]`,
			`{"valueQuantity":{"value":1,"system":"http://unitsofmeasure.org","code":"g"}}`, "item i takes no quantity in http://unitsofmeasure.org|g"},
		{"a type of attachments", `"type":"attachment","extension":[{` + base + `mimeType","valueCode":"image/png"}]`, `{"valueAttachment":{"contentType":"image/gif","url":"http://example.org/a"}}`, "item i takes no attachment of type image/gif"},
		{"a large attachment", `"type":"attachment","extension":[{` + base + `maxSize","valueDecimal":0.0001}]`, `{"valueAttachment":{"contentType":"image/png","data":"` + strings.Repeat("AAAA", 60) + `"}}`, "item i takes attachments up to 0.0001 MB"},
		{"a rule that is not checked", `"type":"string","extension":[{` + base + `questionnaire-signatureRequired","valueCodeableConcept":{"text":"x"}}]`, `{"valueString":"a"}`, "the extension questionnaire-signatureRequired of item i was not checked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := validate.New(r4.Model, overlay{Definitions: library(t), byURL: map[string]string{
				"http://example.org/x": `{"resourceType":"Questionnaire","url":"http://example.org/x","status":"active","item":[{"linkId":"i",` + c.item + `}]}`}}, codes(t))
			got := issues(t, v, `{"resourceType":"QuestionnaireResponse","questionnaire":"http://example.org/x","status":"completed","item":[{"linkId":"i","answer":[`+c.answers+`]}]}`,
				validate.Options{Warnings: true})
			found := slices.ContainsFunc(got, func(s string) bool { return c.want != "" && strings.Contains(s, c.want) })
			other := slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "item i") })
			if found != (c.want != "") || c.want == "" && other {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
