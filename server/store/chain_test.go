package store_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestChainAlongCanonical follows a canonical to the resources with its url, and
// back: from few targets to what refers to them, and, where there are too many of
// them, from each resource to what it refers to.
func TestChainAlongCanonical(t *testing.T) {
	s, _ := open(t)
	for i, status := range []string{"active", "active", "active", "draft"} {
		write(t, s, resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"Questionnaire","id":"q%d","url":"http://acme.example/q%[1]d","status":%q}`, i, status)))
		write(t, s, resourceWrite(t, fmt.Appendf(nil, `{"resourceType":"QuestionnaireResponse","id":"r%d","status":"completed","questionnaire":"http://acme.example/q%[1]d"}`, i)))
	}
	write(t, s, resourceWrite(t, []byte(`{"resourceType":"Questionnaire","id":"unused","url":"http://acme.example/unused","status":"active"}`)))
	write(t, s, resourceWrite(t, []byte(`{"resourceType":"QuestionnaireResponse","id":"none","status":"completed","questionnaire":"http://acme.example/elsewhere"}`)))
	for _, tt := range []struct {
		sc   searchCase
		want []string
	}{
		{searchCase{typ: "QuestionnaireResponse", values: params("questionnaire.status", "active")}, []string{"r0", "r1", "r2"}},
		{searchCase{typ: "QuestionnaireResponse", values: params("questionnaire.status", "draft")}, []string{"r3"}},
		{searchCase{typ: "QuestionnaireResponse", values: params("questionnaire._lastUpdated", "gt2000", "status", "completed")}, []string{"r0", "r1", "r2", "r3"}},
		{searchCase{typ: "QuestionnaireResponse", values: params("questionnaire.status:not", "active")}, []string{"r3"}},
		{searchCase{typ: "Questionnaire", values: params("_has:QuestionnaireResponse:questionnaire:status", "completed")}, []string{"q0", "q1", "q2", "q3"}},
		{searchCase{typ: "Questionnaire", values: params("_has:QuestionnaireResponse:questionnaire:_id", "r1,r2", "status", "active")}, []string{"q1", "q2"}},
		{searchCase{typ: "Questionnaire", values: params("_has:QuestionnaireResponse:questionnaire:_lastUpdated", "gt2000", "url:missing", "false")}, []string{"q0", "q1", "q2", "q3"}},
		{searchCase{typ: "Questionnaire", values: params("_has:QuestionnaireResponse:questionnaire:status", "amended")}, nil},
		{searchCase{values: params("_type", "Questionnaire,Patient", "_has:QuestionnaireResponse:questionnaire:_id", "r1")}, []string{"q1"}},
	} {
		for _, limit := range []int{0, 2} {
			s.SetSearchLimit(limit)
			got := ids(find(t, s, tt.sc.parse(t)))
			slices.Sort(got)
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (limit %d):\n%s", &tt.sc, limit, diff)
			}
		}
	}
}
