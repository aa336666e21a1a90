package console

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kiln/server/fhir"
)

// patientPage is the record of a patient.
type patientPage struct {
	Tabs     []navItem
	Facts    []patientFact
	Charts   []chart
	Tables   []table
	Timeline []event
	More     string
}

// patientFact is an element of the Patient, with its values.
type patientFact struct {
	Name   string
	Values []cell
}

// event is a line of the timeline.
type event struct {
	Date, Type, Text, Link string
}

// Limits of the patient view.
const (
	chartsShown     = 12
	measurementsOf  = 1000 // of a search for measurements
	measurementsMax = 5    // searches
	recordsShown    = 100  // rows of a table
	timelineShown   = 200
	valuesShown     = 500
)

// records are the resources of a search, newest first; -1 of total where nobody knows.
func (v *visit) records(typ, id, sort string, count, pages int) (list []*node, total int64, err error) {
	q := url.Values{"patient": {"Patient/" + id}, "_count": {strconv.Itoa(count)}, "_total": {"accurate"}}
	if sort != "" {
		q.Set("_sort", sort)
	}
	target := "/" + typ + "?" + q.Encode()
	for range pages {
		a := v.call(http.MethodGet, target, nil)
		if a.status == http.StatusForbidden {
			return nil, 0, nil // the person may not see these
		}
		if err := a.err(); err != nil {
			return nil, 0, err
		}
		var b searchBundle
		if err := json.Unmarshal(a.Bytes(), &b); err != nil {
			return nil, 0, err
		}
		if b.Total != nil {
			total = *b.Total
		}
		target = ""
		for _, e := range b.Entry {
			if e.Search.Mode != "match" {
				continue
			}
			n, err := parseTree(e.Resource)
			if err != nil {
				return nil, 0, err
			}
			list = append(list, n)
		}
		for _, l := range b.Link {
			if u, err := url.Parse(l.URL); l.Relation == "next" && err == nil {
				target = "/" + typ + "?" + u.RawQuery
			}
		}
		if target == "" {
			break
		}
	}
	return list, total, nil
}

// recordType is a table of the patient view.
type recordType struct {
	typ, sort string
	dates     []string // elements with the date
	name      []string // elements with the text
}

var recordTypes = []recordType{
	{"Condition", "-onset-date", []string{"onsetDateTime", "recordedDate", "onsetPeriod.start"}, []string{"code"}},
	{"MedicationRequest", "-authoredon", []string{"authoredOn"}, []string{"medicationCodeableConcept", "medicationReference"}},
	{"Encounter", "-date", []string{"period.start"}, []string{"type", "class"}},
	{"DocumentReference", "-date", []string{"date"}, []string{"type", "description", "content.attachment.title"}},
	{"DiagnosticReport", "-date", []string{"effectiveDateTime", "effectivePeriod.start", "issued"}, []string{"code"}},
	{"Procedure", "-date", []string{"performedDateTime", "performedPeriod.start"}, []string{"code"}},
	{"Immunization", "-date", []string{"occurrenceDateTime"}, []string{"vaccineCode"}},
	{"AllergyIntolerance", "", []string{"onsetDateTime", "recordedDate"}, []string{"code"}},
}

// patientTables are the tables with the types that they have. german is the German name where the English word has several.
var patientTables = []struct {
	name, german string
	types        []string
}{
	{"Conditions", "Diagnosen", []string{"Condition"}}, {"Allergies", "", []string{"AllergyIntolerance"}}, {"Medications", "", []string{"MedicationRequest"}}, {"Encounters", "", []string{"Encounter"}}, {"Documents", "", []string{"DocumentReference", "DiagnosticReport"}},
}

// firstOf is the text of the first element that there is.
func firstOf(n *node, paths []string) string {
	for _, path := range paths {
		if list := n.collect(strings.Split(path, ".")); len(list) > 0 {
			if text := valueText(list[0]); text != "" {
				return text
			}
			if ref := list[0].str("reference"); ref != "" {
				return ref
			}
		}
	}
	return ""
}

// patientView shows the record of a patient.
func (v *visit) patientView(id string) error {
	body, _, err := v.read("Patient", id)
	if err != nil {
		return err
	}
	patient, err := parseTree(body)
	if err != nil {
		return err
	}
	p := patientPage{Tabs: v.tabs("Patient", id, "Patient view")}
	for _, fact := range []struct{ name, path string }{
		{"Name", "name"}, {"Birth date", "birthDate"}, {"Gender", "gender"}, {"Deceased", "deceasedDateTime"}, {"Identifier", "identifier"}, {"Telephone and mail", "telecom"}, {"Address", "address"},
		{"General practitioner", "generalPractitioner"}, {"Organization", "managingOrganization"},
	} {
		var values []cell
		for _, x := range patient.collect([]string{fact.path}) {
			value := textCell(valueText(x))
			if ref := x.str("reference"); ref != "" {
				link := referenceCell(ref, "")
				value = cell{Text: cmp.Or(value.Text, link.Text), Link: link.Link}
			}
			if value.Text != "" && len(values) < 5 {
				values = append(values, value)
			}
		}
		if len(values) > 0 {
			p.Facts = append(p.Facts, patientFact{v.T(fact.name), values})
		}
	}

	// The searches do not depend on each other.
	found := make(map[string][]*node)
	totals := make(map[string]int64)
	var mu sync.Mutex
	var wait sync.WaitGroup
	var failed error
	look := func(typ, sort string, count, pages int) {
		list, total, err := v.records(typ, id, sort, count, pages)
		mu.Lock()
		defer mu.Unlock()
		found[typ], totals[typ] = list, total
		if err != nil {
			failed = err
		}
	}
	wait.Go(func() { look("Observation", "-date", measurementsOf, measurementsMax) })
	for _, r := range recordTypes {
		wait.Go(func() { look(r.typ, r.sort, recordsShown, 1) })
	}
	wait.Wait()
	if failed != nil {
		return failed
	}
	p.Charts = v.measurements(found["Observation"])
	p.Tables = v.recordTables(found, totals)
	for _, r := range recordTypes {
		for _, n := range found[r.typ] {
			p.Timeline = append(p.Timeline, event{firstOf(n, r.dates), r.typ, firstOf(n, r.name), "/console/" + r.typ + "/" + escape(n.str("id"))})
		}
	}
	for _, n := range found["Observation"] {
		text := strings.TrimSpace(valueText(n.get("code")) + ": " + columnValue(n, "Value").Text)
		p.Timeline = append(p.Timeline, event{columnValue(n, "Date").Text, "Observation", strings.TrimSuffix(text, ":"), "/console/Observation/" + escape(n.str("id"))})
	}
	slices.SortStableFunc(p.Timeline, func(a, b event) int { return strings.Compare(b.Date, a.Date) })
	if len(p.Timeline) > timelineShown {
		p.More = v.T("The newest %d are shown.", timelineShown)
		p.Timeline = p.Timeline[:timelineShown]
	}
	return v.show("patient", v.T("Patient view"), "", p)
}

// recordTables are the tables of a record, of the resources by type and of their numbers.
func (v *visit) recordTables(found map[string][]*node, totals map[string]int64) (list []table) {
	for _, t := range patientTables {
		name := v.T(t.name)
		if v.Language == german && t.german != "" {
			name = t.german
		}
		out := table{Name: name, Head: columns(v.T("Resource"), v.T("Date"), v.T("Description"), v.T("Status"))}
		var rest int64
		for _, typ := range t.types {
			kind := recordTypes[slices.IndexFunc(recordTypes, func(r recordType) bool { return r.typ == typ })]
			for _, n := range found[typ] {
				out.Rows = append(out.Rows, []cell{linkCell(typ+"/"+n.str("id"), "/console/"+typ+"/"+escape(n.str("id"))), {Text: firstOf(n, kind.dates), Class: "date"},
					textCell(firstOf(n, kind.name)), textCell(firstOf(n, []string{"clinicalStatus", "status"}))})
			}
			rest += totals[typ] - int64(len(found[typ]))
		}
		slices.SortStableFunc(out.Rows, func(a, b []cell) int { return strings.Compare(b[1].Text, a[1].Text) })
		if len(out.Rows) == 0 {
			out.More = v.T("There are none.")
		}
		if rest > 0 {
			out.More = v.plural(rest, "1 more is in the search.", "%s more are in the search.")
		}
		list = append(list, out)
	}
	return list
}

// series are the values of a code.
type series struct {
	display string
	dates   []string
	values  []string
	points  []point
}

// measurements are charts of the codes with most values.
func (v *visit) measurements(list []*node) []chart {
	byCode := make(map[string]*series)
	add := func(code, value *node, date string) {
		key := code.str("coding", "system") + "|" + code.str("coding", "code")
		if code.get("coding") == nil {
			key = code.str("text")
		}
		number, err := strconv.ParseFloat(value.str("value"), 64)
		low, _, err2 := fhir.ParseDate(date)
		if err != nil || err2 != nil || key == "" {
			return
		}
		s := byCode[key]
		if s == nil {
			s = &series{display: valueText(code)}
			byCode[key] = s
		}
		s.dates, s.values, s.points = append(s.dates, date), append(s.values, valueText(value)), append(s.points, point{float64(low), number})
	}
	for _, n := range list {
		date := columnValue(n, "Date").Text
		if q := n.get("valueQuantity"); q != nil {
			add(n.get("code"), q, date)
		}
		for _, c := range n.get("component").items() {
			if q := c.get("valueQuantity"); q != nil {
				add(c.get("code"), q, date)
			}
		}
	}
	var all []*series
	for _, s := range byCode {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *series) int {
		return cmp.Or(cmp.Compare(len(b.points), len(a.points)), strings.Compare(a.display, b.display))
	})
	var out []chart
	for _, s := range all[:min(len(all), chartsShown)] {
		n := len(s.points)
		newest, oldest := s.dates[0], s.dates[n-1]
		c := chart{Name: v.T("%s: %s values, %s to %s", s.display, formatNumber(v.Language, int64(n)), day(oldest), day(newest)), Title: s.display, Range: s.values[0] + " · " + day(newest)}
		t := table{Name: v.T("Values of %s", s.display), Head: columns(v.T("Date"), v.T("Value"))}
		for i := range min(n, valuesShown) {
			t.Rows = append(t.Rows, []cell{{Text: s.dates[i], Class: "date", Head: true}, textCell(s.values[i])})
		}
		if n > valuesShown {
			t.More = v.T("The newest %d are shown.", valuesShown)
		}
		c.Table = &t
		slices.Reverse(s.points)
		c.draw(s.points, false)
		out = append(out, c)
	}
	return out
}

// day is the date of a date and time.
func day(date string) string { return date[:min(len(date), len("2006-01-02"))] }
