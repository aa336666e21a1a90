package validate_test

import (
	"strings"
	"testing"

	"kiln/gen/r4"
	"kiln/server/validate"
)

// A differential may go below an element whose content another element defines, and below
// a type profile that has no snapshot.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.contentReference.
func TestSnapshotBelowReferencedContent(t *testing.T) {
	const core = "http://hl7.org/fhir/StructureDefinition/"
	o := overlay{Definitions: library(t), byURL: map[string]string{}}
	for id, d := range map[string]string{
		"second": differential("second", "Questionnaire", core+"Questionnaire", `{"id":"Questionnaire.item.item.linkId","path":"Questionnaire.item.item.linkId","maxLength":3}`),
		"third":  differential("third", "Questionnaire", core+"Questionnaire", `{"id":"Questionnaire.item.item.item.text","path":"Questionnaire.item.item.item.text","min":1}`),
		"part":   differential("part", "Parameters", core+"Parameters", `{"id":"Parameters.parameter.part.part.value[x]","path":"Parameters.parameter.part.part.value[x]","type":[{"code":"string"}]}`),
		"range":  differential("range", "Observation", core+"Observation", `{"id":"Observation.component.referenceRange.low.value","path":"Observation.component.referenceRange.low.value","min":1}`),
		"link":   differential("link", "Bundle", core+"Bundle", `{"id":"Bundle.entry.link.relation","path":"Bundle.entry.link.relation","fixedString":"self"}`),
	} {
		o.byURL["http://example.org/"+id] = d
	}
	v := validate.New(r4.Model, o, codes(t))
	questionnaire := func(linkID, text string) string {
		return `{"resourceType":"Questionnaire","status":"active","item":[{"linkId":"long-1","type":"group","item":[{"linkId":"` + linkID + `","type":"group","item":[{"linkId":"3","type":"string"` + text + `}]}]}]}`
	}
	parameters := func(value string) string {
		return `{"resourceType":"Parameters","parameter":[{"name":"a","valueInteger":1},{"name":"b","part":[{"name":"c","part":[{"name":"d",` + value + `}]}]}]}`
	}
	observation := func(low string) string {
		return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"referenceRange":[{"low":{"unit":"g"}}],"component":[{"code":{"text":"y"},"referenceRange":[{"low":` + low + `}]}]}`
	}
	bundle := func(relation string) string {
		return `{"resourceType":"Bundle","type":"collection","link":[{"relation":"next","url":"http://x"}],"entry":[{"fullUrl":"urn:uuid:c757873d-ec9a-4326-a141-556f43239520","link":[{"relation":"` + relation + `","url":"http://x"}],"resource":{"resourceType":"Basic","code":{"text":"x"}}}]}`
	}
	for _, c := range []struct{ profile, good, bad, want string }{
		{"second", questionnaire("2", ""), questionnaire("long-2", ""), "Questionnaire.item[0].item[0].linkId: expected at most 3 characters, found 6"},
		{"third", questionnaire("2", `,"text":"x"`), questionnaire("2", ""), "Questionnaire.item[0].item[0].item[0]: text is required"},
		{"part", parameters(`"valueString":"x"`), parameters(`"valueInteger":1`), "Parameters.parameter[1].part[0].part[0].value: expected string, found integer"},
		{"range", observation(`{"value":1}`), observation(`{"unit":"g"}`), "Observation.component[0].referenceRange[0].low: value is required"},
		{"link", bundle("self"), bundle("next"), "Bundle.entry[0].link[0].relation: expected self, found next"},
	} {
		options := validate.Options{Profiles: []string{"http://example.org/" + c.profile}}
		if got := issues(t, v, c.good, options); len(got) > 0 {
			t.Errorf("%s: %q", c.profile, got)
		}
		if got := issues(t, v, c.bad, options); len(got) != 1 || !strings.HasPrefix(got[0], "error "+c.want) {
			t.Errorf("%s: got %q, want %s", c.profile, got, c.want)
		}
	}
}
