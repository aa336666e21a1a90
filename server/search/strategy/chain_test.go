package strategy_test

import (
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"kiln/server/search/searchtest"
)

// TestChainAlongCanonical follows a canonical to the resources with its url, and back: from
// few targets to the resources that refer to them, and, if the targets are too many, from
// each resource to its targets.
func TestChainAlongCanonical(t *testing.T) {
	s, _ := searchtest.Open(t)
	for i, status := range []string{"active", "active", "active", "draft"} {
		searchtest.Write(t, s, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"Questionnaire","id":"q%d","url":"http://acme.example/q%[1]d","status":%q}`, i, status)))
		searchtest.Write(t, s, searchtest.NewWrite(t, fmt.Appendf(nil, `{"resourceType":"QuestionnaireResponse","id":"r%d","status":"completed","questionnaire":"http://acme.example/q%[1]d"}`, i)))
	}
	searchtest.Write(t, s, searchtest.NewWrite(t, []byte(`{"resourceType":"Questionnaire","id":"unused","url":"http://acme.example/unused","status":"active"}`)))
	searchtest.Write(t, s, searchtest.NewWrite(t, []byte(`{"resourceType":"QuestionnaireResponse","id":"none","status":"completed","questionnaire":"http://acme.example/elsewhere"}`)))
	for _, tt := range []struct {
		sc   searchtest.Case
		want []string
	}{
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.status", "active")}, []string{"r0", "r1", "r2"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.status", "draft")}, []string{"r3"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire._lastUpdated", "gt2000", "status", "completed")}, []string{"r0", "r1", "r2", "r3"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.status:not", "active")}, []string{"r3"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:status", "completed")}, []string{"q0", "q1", "q2", "q3"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:_id", "r1,r2", "status", "active")}, []string{"q1", "q2"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:_lastUpdated", "gt2000", "url:missing", "false")}, []string{"q0", "q1", "q2", "q3"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:status", "amended")}, nil},
		{searchtest.Case{Values: searchtest.Parameters("_type", "Questionnaire,Patient", "_has:QuestionnaireResponse:questionnaire:_id", "r1")}, []string{"q1"}},
	} {
		for _, limit := range []int{0, 2} {
			limitSearches(s, limit)
			got := searchtest.IDs(searchtest.FindMatches(t, s, tt.sc.ParseQuery(t)))
			slices.Sort(got)
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (limit %d):\n%s", &tt.sc, limit, diff)
			}
		}
	}
}

// TestChainAlongCanonicalVersions follows canonicals to the version that they name, and
// back, like includes do.
func TestChainAlongCanonicalVersions(t *testing.T) {
	s, _ := searchtest.Open(t)
	put := func(format string, args ...any) {
		searchtest.Write(t, s, searchtest.NewWrite(t, fmt.Appendf(nil, format, args...)))
	}
	for id, version := range map[string]string{"v1": `,"version":"1","title":"Old"`, "v2": `,"version":"2","title":"New"`, "v0": `,"title":"None"`} {
		put(`{"resourceType":"Questionnaire","id":%q,"url":"http://q.ex/m","status":"active"%s}`, id, version)
	}
	put(`{"resourceType":"Questionnaire","id":"other","url":"http://q.ex/o","version":"1.0.1","status":"active","title":"Other"}`)
	for id, canonical := range map[string]string{"r1": "http://q.ex/m|1", "r2": "http://q.ex/m|2", "r3": "http://q.ex/m|3", "any": "http://q.ex/m", "part": "http://q.ex/m|2#x", "o": "http://q.ex/o|1.1"} {
		put(`{"resourceType":"QuestionnaireResponse","id":%q,"status":"completed","questionnaire":%q}`, id, canonical)
	}
	// Libraries both name others and are named; a reference that is none of canonicals names nothing.
	put(`{"resourceType":"Library","id":"base","url":"http://l.ex/base","version":"1","status":"active","type":{"text":"x"}}`)
	put(`{"resourceType":"Library","id":"next","url":"http://l.ex/next","version":"1","status":"active","type":{"text":"x"},"relatedArtifact":[{"type":"depends-on","resource":"http://l.ex/base|1"}]}`)
	put(`{"resourceType":"Library","id":"both","url":"http://l.ex/both","status":"draft","type":{"text":"x"},"relatedArtifact":[{"type":"depends-on","resource":"http://l.ex/next"},{"type":"depends-on","resource":"http://l.ex/next|7"}]}`)
	put(`{"resourceType":"Basic","id":"literal","code":{"text":"x"},"subject":{"reference":"http://l.ex/base"}}`)
	for _, tt := range []struct {
		sc   searchtest.Case
		want []string
	}{
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.title", "new")}, []string{"any", "part", "r2"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.title", "none")}, []string{"any"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.title", "other")}, nil},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.version", "1")}, []string{"any", "r1"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire.url", "http://q.ex/m", "status", "completed")}, []string{"any", "part", "r1", "r2"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire._id", "v1")}, []string{"any", "r1"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("questionnaire:Questionnaire._id", "v2,other")}, []string{"any", "part", "r2"}},
		{searchtest.Case{Type: "QuestionnaireResponse", Values: searchtest.Parameters("_filter", `questionnaire.title eq "new" or questionnaire._id eq v1`)}, []string{"any", "part", "r1", "r2"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:_id", "r1")}, []string{"v1"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:_id", "r3,o")}, nil},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_has:QuestionnaireResponse:questionnaire:_id", "any", "status", "active")}, []string{"v0", "v1", "v2"}},
		{searchtest.Case{Type: "Questionnaire", Values: searchtest.Parameters("_filter", `_has:QuestionnaireResponse:questionnaire:_id eq part`)}, []string{"v2"}},
		{searchtest.Case{Values: searchtest.Parameters("_type", "Questionnaire,Library", "_has:QuestionnaireResponse:questionnaire:_id", "r2")}, []string{"v2"}},
		{searchtest.Case{Type: "Library", Values: searchtest.Parameters("depends-on:Library._id", "next")}, []string{"both"}},
		{searchtest.Case{Type: "Library", Values: searchtest.Parameters("depends-on._id", "base")}, []string{"next"}},
		{searchtest.Case{Type: "Library", Values: searchtest.Parameters("depends-on:Library.depends-on:Library.url", "http://l.ex/base")}, []string{"both"}},
		{searchtest.Case{Type: "Library", Values: searchtest.Parameters("_has:Library:depends-on:_id", "next")}, []string{"base"}},
		{searchtest.Case{Type: "Library", Values: searchtest.Parameters("_has:Library:depends-on:status", "draft")}, []string{"next"}},
		{searchtest.Case{Type: "Basic", Values: searchtest.Parameters("subject:Library.status", "active")}, nil},
	} {
		for _, limit := range []int{0, 1} {
			limitSearches(s, limit)
			got := searchtest.IDs(searchtest.FindMatches(t, s, tt.sc.ParseQuery(t)))
			slices.Sort(got)
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (limit %d):\n%s", &tt.sc, limit, diff)
			}
		}
	}
}
