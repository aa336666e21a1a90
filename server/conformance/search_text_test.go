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
