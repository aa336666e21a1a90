package conformance

import "testing"

// search.html#content: _text and _content.
func TestSearchFullText(t *testing.T) {
	t.Parallel()
	s := start(t)
	condition := func(id, div, note string) string {
		return `{"resourceType":"Condition","id":"` + id + `","text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">` + div + `</div>"},"subject":{"reference":"Patient/p"},"note":[{"text":"` + note + `"}]}`
	}
	s.load(
		`{"resourceType":"Patient","id":"p","name":[{"family":"Bone"}]}`,
		condition("bone", "<p>Metastasis of <b>bone</b></p>", "seen in Zürich"),
		condition("liver", "Cancer of the liver &amp; lung", "no bone"),
		`{"resourceType":"Condition","id":"plain","code":{"text":"Fracture of bone"},"subject":{"reference":"Patient/p"}}`,
	)
	s.searches(t, "Condition", []searchCase{
		{"#content: _text is of the narrative", "_text=bone", "bone"},
		{"#content: _text, without case", "_text=BONE metastasis", "bone"},
		{"#content: _text, all of the words", "_text=bone cancer", ""},
		{"#content: _text, markup is no word", "_text=p", ""},
		{"#content: _text, entities are characters", "_text=lung", "liver"},
		{"#combining: comma is OR", "_text=metastasis,cancer", "bone liver"},
		{"#content: _content is of the whole resource", "_content=bone", "bone liver plain"},
		{"#content: _content, all of the words", "_content=fracture bone", "plain"},
		{"#content: _content, names of elements are none", "_content=subject", ""},
		{"#content: beside others", "_content=bone&code:missing=false", "plain"},
		{"#content: AND, OR and parentheses", "_text=(bone OR liver) and cancer", "liver"},
		{"#content: AND binds before OR", "_text=bone AND cancer OR lung", "liver"},
		{"#content: AND before a parenthesis may be left out", "_text=cancer (lung or bone)", "liver"},
		{"#content: OR", "_text=bone or lung", "bone liver"},
		{"#content: NOT", "_text=of NOT (liver OR kidney)", "bone"},
		{"#content: not in small letters is a word", "_text=of not liver", ""},
		{"#content: a phrase", `_text="metastasis of bone"`, "bone"},
		{"#content: a phrase in another order", `_text="bone metastasis"`, ""},
		{"#content: a phrase and a word", `_text="of the" lung`, "liver"},
		{"#content: _content, OR", "_content=(fracture OR zürich) bone", "bone plain"},
		{"#content: _content, NOT", "_content=bone NOT fracture", "bone liver"},
		{"#content: _content, a phrase", `_content="fracture of"`, "plain"},
		{"#content: NOT alone", "_text=NOT bone", "400 _text"},
		{"#content: NOT alone, in part", "_text=bone OR NOT liver", "400 _text"},
		{"#content: an operator without a word", "_text=bone OR", "400 _text"},
		{"#content: an open parenthesis", "_text=(bone", "400 _text"},
		{"#content: a closed parenthesis", "_text=bone)", "400 _text"},
		{"#content: empty parentheses", "_text=bone ()", "400 _text"},
		{"#chaining", "subject:Patient._text=bone", ""},
		{"#content: no words", "_text=...", "400 _text"},
		{"#content: no modifier", "_text:exact=bone", "400 _text"},
		{"#sort: not sorted by words", "_sort=_text", "400 _text"},
	})
	s.put("/Condition/bone", condition("bone", "nothing", "x")).want(200)
	s.do("DELETE", "/Condition/liver", "").want(204)
	s.searches(t, "Condition", []searchCase{
		{"#content: after an update", "_text=bone", ""},
		{"#content: after an update", "_text=nothing", "bone"},
		{"#content: after a delete", "_text=cancer", ""},
	})
	for _, code := range []string{"_text", "_content"} {
		if !s.supports("Condition", code) {
			t.Errorf("%s is not in /metadata", code)
		}
	}
}
