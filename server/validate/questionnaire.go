package validate

import (
	"slices"
	"strconv"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// response validates a QuestionnaireResponse against its Questionnaire: which items it
// has and where, how many answers, their types and options, R4's extensions that restrict
// answers, and which questions are enabled. A response that is in progress may lack answers. Where the Questionnaire is
// not known that is a warning.
// Spec: https://hl7.org/fhir/R4/questionnaireresponse.html#notes, questionnaire.html#notes.
func (u *run) response(n fhir.Node) {
	r, ok := n.Element().(*r4.QuestionnaireResponse)
	if !ok || r.Questionnaire.Text == "" {
		return
	}
	q := u.questionnaire(r.Questionnaire.Text)
	if q == nil {
		if u.options.Warnings {
			u.reportAs(outcome.Warning, outcome.CodeIncomplete, "questionnaire %s is not known here; the response was not checked against it", r.Questionnaire.Text)
		}
		return
	}
	a := &answers{
		run: u, root: &occurrence{}, byLinkID: map[string][]*occurrence{}, parents: map[string]string{},
		complete: r.Status.Text == "completed" || r.Status.Text == "amended",
	}
	a.define(q.Item, "")
	a.collect(r.Item, a.root)
	a.items(r.Item, q.Item, a.root)
}

// questionnaire finds a Questionnaire: contained, in the Bundle, or among definitions.
func (u *run) questionnaire(canonical string) *r4.Questionnaire {
	if strings.HasPrefix(canonical, "#") {
		n, _ := u.resolved(canonical)
		q, _ := n.Element().(*r4.Questionnaire)
		return q
	}
	url, version, versioned := strings.Cut(canonical, "|")
	for i := len(u.bundles) - 1; i >= 0; i-- {
		for j := range u.bundles[i].bundle.Entry {
			q, ok := u.bundles[i].bundle.Entry[j].Resource.(*r4.Questionnaire)
			if ok && q.URL.Text == url && (!versioned || q.Version.Text == version) {
				return q
			}
		}
	}
	q, _ := load[*r4.Questionnaire](u.v.plans.model, u.v.definitions, canonical)
	return q
}

// answers is a response that is being validated.
type answers struct {
	*run
	root     *occurrence
	byLinkID map[string][]*occurrence // in the response
	parents  map[string]string        // linkId -> linkId of the item around it, in the questionnaire
	complete bool                     // required questions have answers
	steps    int                      // spent on enableWhen
}

// occurrence is an item of the response, or an answer that has items.
type occurrence struct {
	up    *occurrence
	depth int
	item  *r4.QuestionnaireResponseItem
}

// maxEnableSteps bounds the looking for answers that enableWhen asks for.
const maxEnableSteps = 2_000_000

func (a *answers) define(list []r4.QuestionnaireItem, parent string) {
	for i := range list {
		a.parents[list[i].LinkID.Text] = parent
		a.define(list[i].Item, list[i].LinkID.Text)
	}
}

func (a *answers) collect(list []r4.QuestionnaireResponseItem, up *occurrence) {
	for i := range list {
		it := &list[i]
		at := &occurrence{up: up, depth: up.depth + 1, item: it}
		a.byLinkID[it.LinkID.Text] = append(a.byLinkID[it.LinkID.Text], at)
		a.collect(it.Item, at)
		for j := range it.Answer {
			a.collect(it.Answer[j].Item, at)
		}
	}
}

// items validates the items of one level against their definitions.
func (a *answers) items(list []r4.QuestionnaireResponseItem, defined []r4.QuestionnaireItem, up *occurrence) {
	count := make([]int, len(defined))
	disabled := make([]bool, len(defined))
	byLinkID := make(map[string]int, len(defined))
	for i := range defined {
		byLinkID[defined[i].LinkID.Text] = i
		disabled[i] = a.enabled(&defined[i], up) == no
	}
	last := 0
	for i := range list {
		it := &list[i]
		a.path = append(a.path, segment{"item", i, fhir.NodeOf(it).T})
		d, ok := byLinkID[it.LinkID.Text]
		switch is, there := a.parents[it.LinkID.Text]; {
		case ok:
			if d < last {
				a.report(outcome.Failure, "item %s is out of order: the questionnaire has it before %s", it.LinkID.Text, defined[last].LinkID.Text)
			}
			last = max(last, d)
			count[d]++
			if disabled[d] {
				a.report(outcome.Failure, "item %s is not enabled: its enableWhen does not hold", it.LinkID.Text)
			} else {
				a.item(it, &defined[d], &occurrence{up: up, depth: up.depth + 1, item: it})
			}
		case there && is == "":
			a.report(outcome.Failure, "item %s belongs at the top of the response", it.LinkID.Text)
		case there:
			a.report(outcome.Failure, "item %s belongs below item %s", it.LinkID.Text, is)
		case it.LinkID.Text != "":
			a.report(outcome.Failure, "the questionnaire has no item %s", it.LinkID.Text)
		}
		a.popPath()
	}
	for i := range defined {
		d := &defined[i]
		if d.Type_.Text == "group" {
			a.restrictedCount(d, count[i])
		}
		switch {
		case count[i] == 0 && d.Required.Text == "true" && a.complete && !disabled[i] && d.Type_.Text != "display" && a.enabled(d, up) == yes:
			a.report(outcome.Failure, "item %s is required: found none", d.LinkID.Text)
		case count[i] > 1 && d.Repeats.Text != "true":
			a.report(outcome.Failure, "item %s does not repeat: expected at most 1, found %d", d.LinkID.Text, count[i])
		case count[i] > 1 && d.Type_.Text != "group":
			a.report(outcome.Failure, "item %s is a question: expected one item with all its answers, found %d items", d.LinkID.Text, count[i])
		}
	}
}

// item validates one item.
func (a *answers) item(it *r4.QuestionnaireResponseItem, d *r4.QuestionnaireItem, at *occurrence) {
	switch d.Type_.Text {
	case "group", "display":
		if len(it.Answer) > 0 {
			a.report(outcome.Failure, "item %s is a %s, which has no answer", d.LinkID.Text, d.Type_.Text)
		}
		a.items(it.Item, d.Item, at)
		return
	}
	if len(it.Item) > 0 {
		a.report(outcome.Failure, "item %s is a question: expected its items inside of its answers", d.LinkID.Text)
	}
	if len(it.Answer) == 0 && d.Required.Text == "true" && a.complete {
		a.report(outcome.Failure, "item %s is required: found no answer", d.LinkID.Text)
	}
	if len(it.Answer) > 1 && d.Repeats.Text != "true" {
		a.report(outcome.Failure, "item %s does not repeat: expected at most 1 answer, found %d", d.LinkID.Text, len(it.Answer))
	}
	a.restrictedCount(d, len(it.Answer))
	a.restrictedItem(it, d)
	for i := range it.Answer {
		v := &it.Answer[i]
		a.path = append(a.path, segment{"answer", i, fhir.NodeOf(v).T})
		if v.Value != nil {
			a.path = append(a.path, segment{"value", -1, v.Value.Type()})
			a.answer(v.Value, d)
			a.popPath()
		}
		a.items(v.Item, d.Item, at)
		a.popPath()
	}
}

// answerTypes are the types of an answer by the type of its question.
// Spec: https://hl7.org/fhir/R4/valueset-item-type.html.
var answerTypes = map[string][]string{
	"boolean": {"boolean"}, "decimal": {"decimal"}, "integer": {"integer"}, "date": {"date"}, "dateTime": {"dateTime"},
	"time": {"time"}, "string": {"string"}, "text": {"string"}, "url": {"uri"}, "choice": {"Coding"},
	"open-choice": {"Coding", "string"}, "attachment": {"Attachment"}, "reference": {"Reference"}, "quantity": {"Quantity"},
}

// answer validates the value of an answer.
func (a *answers) answer(v fhir.Element, d *r4.QuestionnaireItem) {
	typ := v.Type().Name
	want := answerTypes[d.Type_.Text]
	for i := range d.AnswerOption {
		if o := d.AnswerOption[i].Value; o != nil && !slices.Contains(want, o.Type().Name) {
			want = append(slices.Clone(want), o.Type().Name)
		}
	}
	if len(want) > 0 && !slices.Contains(want, typ) {
		a.report(outcome.Failure, "expected %s as the answer to a question of type %s, found %s", strings.Join(want, " or "), d.Type_.Text, typ)
		return
	}
	a.restrictedAnswer(v, d)
	n := fhir.NodeOf(v)
	if most, err := strconv.Atoi(d.MaxLength.Text); err == nil && typ == "string" && len([]rune(n.Text())) > most {
		a.report(outcome.Failure, "expected at most %d characters, found %d", most, len([]rune(n.Text())))
	}
	if d.Type_.Text == "open-choice" && typ == "string" {
		return
	}
	if len(d.AnswerOption) > 0 && !slices.ContainsFunc(d.AnswerOption, func(o r4.QuestionnaireItemAnswerOption) bool { return sameAnswer(o.Value, v) }) {
		a.report(outcome.Failure, "expected one of the answerOptions of item %s, found %s", d.LinkID.Text, showValue(n))
	}
	if c, ok := v.(*r4.Coding); ok && d.AnswerValueSet.Text != "" {
		if strings.HasPrefix(d.AnswerValueSet.Text, "#") {
			if a.options.Warnings {
				a.reportAs(outcome.Warning, outcome.CodeIncomplete, "whether the contained value set %s has the answer was not checked", d.AnswerValueSet.Text)
			}
			return
		}
		a.binding(fhir.NodeOf(c), &binding{required: true, valueSet: d.AnswerValueSet.Text})
	}
}

// sameAnswer compares answers: a Coding by system and code, everything else as =.
func sameAnswer(a, b fhir.Element) bool {
	if a == nil || b == nil || a.Type() != b.Type() {
		return false
	}
	switch x := a.(type) {
	case *r4.Coding:
		y := b.(*r4.Coding)
		return x.Code.Text == y.Code.Text && x.System.Text == y.System.Text
	case *r4.Reference:
		return x.Reference.Text == b.(*r4.Reference).Reference.Text
	}
	return fhirpath.Equal(fhirpath.NodeValue(fhir.NodeOf(a)), fhirpath.NodeValue(fhir.NodeOf(b)))
}

// ternary is the answer of a condition that data may leave open.
type ternary uint8

const (
	unknown ternary = iota
	no
	yes
)

func ternaryOf(b bool) ternary {
	if b {
		return yes
	}
	return no
}

// enabled reports whether an item that stands below up is enabled.
// Spec: https://hl7.org/fhir/R4/questionnaire-definitions.html#Questionnaire.item.enableWhen.
func (a *answers) enabled(d *r4.QuestionnaireItem, up *occurrence) ternary {
	if len(d.EnableWhen) == 0 {
		return yes
	}
	any := d.EnableBehavior.Text == "any"
	result := ternaryOf(!any)
	for i := range d.EnableWhen {
		switch holds := a.holds(&d.EnableWhen[i], up); {
		case holds == unknown:
			if result == ternaryOf(!any) {
				result = unknown
			}
		case any == (holds == yes):
			return holds
		}
	}
	return result
}

// holds evaluates one enableWhen.
// Spec: https://hl7.org/fhir/R4/valueset-questionnaire-enable-operator.html.
func (a *answers) holds(w *r4.QuestionnaireItemEnableWhen, up *occurrence) ternary {
	values, known := a.given(w.Question.Text, up)
	if !known {
		return unknown
	}
	if w.Operator.Text == "exists" {
		b, ok := w.Answer.(*fhir.Boolean)
		if !ok {
			return unknown
		}
		return ternaryOf((len(values) > 0) == (b.Text == "true"))
	}
	if len(values) == 0 {
		if w.Operator.Text == "!=" {
			return unknown // R4 does not say whether no answer differs
		}
		return no
	}
	open := false
	for _, v := range values {
		var holds bool
		switch w.Operator.Text {
		case "=", "!=":
			holds = sameAnswer(w.Answer, v)
		default:
			if w.Answer == nil {
				return unknown
			}
			order, known := fhirpath.Compare(fhirpath.NodeValue(fhir.NodeOf(v)), fhirpath.NodeValue(fhir.NodeOf(w.Answer)))
			open = open || !known
			switch w.Operator.Text {
			case ">":
				holds = known && order > 0
			case "<":
				holds = known && order < 0
			case ">=":
				holds = known && order >= 0
			case "<=":
				holds = known && order <= 0
			}
		}
		if holds {
			return ternaryOf(w.Operator.Text != "!=")
		}
	}
	if open {
		return unknown
	}
	return ternaryOf(w.Operator.Text == "!=")
}

// given returns the answers to a question as an item below up sees them: of the
// nearest items with the linkId, where groups repeat. known is false where looking for
// them would take too long.
func (a *answers) given(linkID string, up *occurrence) (values []fhir.Element, known bool) {
	nearest := -1
	for _, at := range a.byLinkID[linkID] {
		if a.steps += at.depth + up.depth; a.steps > maxEnableSteps {
			return nil, false
		}
		shared := sharedDepth(at, up)
		if shared < nearest {
			continue
		}
		if shared > nearest {
			values, nearest = nil, shared
		}
		for i := range at.item.Answer {
			if v := at.item.Answer[i].Value; v != nil {
				values = append(values, v)
			}
		}
	}
	return values, true
}

// sharedDepth is how deep the innermost item lies that is around both.
func sharedDepth(a, b *occurrence) int {
	for a != nil && b != nil && a.item != b.item {
		if a.depth >= b.depth {
			a = a.up
		} else {
			b = b.up
		}
	}
	if a == nil || b == nil {
		return 0
	}
	return a.depth
}
