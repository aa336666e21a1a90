package console

import (
	"slices"
	"strings"

	"kiln/server/fhir"
)

// resultColumn is a column of the results: where its value is in a resource, and what sorts by it.
type resultColumn struct {
	name  string
	paths []string // elements, the first that there is
	sort  []string // search parameters, the first that the type has
	by    []string // search parameters that say that a type has such a value
}

// resultColumns are the columns that results can have, in their order.
var resultColumns = []resultColumn{
	{"Name", []string{"name", "title", "alias"}, []string{"name", "title", "family"}, []string{"name", "title"}},
	{"Birth date", []string{"birthDate"}, []string{"birthdate"}, []string{"birthdate"}},
	{"Gender", []string{"gender"}, nil, []string{"gender"}},
	{"Code", []string{"code", "vaccineCode", "medicationCodeableConcept", "type", "serviceType", "productCodeableConcept"}, nil, []string{"code", "vaccine-code", "type", "code-value-quantity"}},
	{"Class", []string{"class"}, nil, []string{"class"}},
	{"Category", []string{"category"}, nil, []string{"category"}},
	{"Value", []string{"value*"}, []string{"value-quantity"}, []string{"value-quantity"}},
	{"Subject", []string{"subject", "patient", "beneficiary", "individual", "candidate"}, nil, []string{"subject", "patient", "beneficiary"}},
	{"Date", []string{"effectiveDateTime", "effectivePeriod.start", "effectiveInstant", "onsetDateTime", "performedDateTime", "performedPeriod.start", "occurrenceDateTime", "occurrencePeriod.start",
		"authoredOn", "period.start", "servicedDate", "date", "recordedDate", "recorded", "issued", "created", "started", "start", "timestamp"},
		[]string{"date", "authoredon", "authored", "onset-date", "recorded-date", "recorded", "created", "started", "issued", "occurrence"}, []string{"date", "authoredon", "onset-date", "created", "recorded"}},
	{"Status", []string{"status", "clinicalStatus", "active"}, nil, []string{"status", "clinical-status", "active"}},
	{"Identifier", []string{"identifier"}, nil, []string{"identifier"}},
	{"Criteria", []string{"criteria"}, nil, []string{"criteria"}},
	{"URL", []string{"url"}, nil, []string{"url"}},
	{"Version", []string{"version"}, nil, []string{"version"}},
	{"Performer", []string{"performer", "asserter", "practitioner", "author"}, nil, []string{"performer", "asserter", "author"}},
	{"Encounter", []string{"encounter", "context"}, nil, []string{"encounter", "context"}},
}

// typeColumns are the columns that results of a type have without a choice.
func (v *visit) typeColumns(typ string) []string {
	switch typ {
	case "Patient":
		return []string{"Name", "Birth date", "Gender", "Identifier"}
	case "Observation":
		return []string{"Code", "Value", "Subject", "Date", "Status"}
	case "Encounter":
		return []string{"Class", "Code", "Subject", "Date", "Status"}
	case "AuditEvent":
		return []string{"Code", "Date"}
	}
	out := v.possibleColumns(typ)
	out = slices.DeleteFunc(out, func(name string) bool {
		switch name {
		case "Category", "Class", "Version", "Performer", "Encounter":
			return true
		case "Identifier":
			return len(out) > 4
		}
		return false
	})
	return out[:min(len(out), 5)]
}

// possibleColumns are the columns that results of a type can have.
func (v *visit) possibleColumns(typ string) []string {
	out := []string{}
	for _, c := range resultColumns {
		if slices.ContainsFunc(c.by, func(code string) bool {
			_, ok := v.c.Registry().Lookup(typ, code)
			return ok
		}) {
			out = append(out, c.name)
		}
	}
	return out
}

// sortParameter is what sorts by a column, "" for nothing.
func (v *visit) sortParameter(typ, name string) string {
	switch name {
	case "Id":
		return "_id"
	case "Last updated":
		return "_lastUpdated"
	}
	for _, c := range resultColumns {
		if c.name != name {
			continue
		}
		for _, code := range c.sort {
			if p, ok := v.c.Registry().Lookup(typ, code); ok && p.Unsupported == "" {
				switch p.Type {
				case fhir.SearchDate, fhir.SearchString, fhir.SearchNumber, fhir.SearchQuantity:
					return code
				}
			}
		}
	}
	return ""
}

// columnValue is the value of a column in a resource.
func columnValue(n *node, name string) cell {
	for _, c := range resultColumns {
		if c.name != name {
			continue
		}
		for _, path := range c.paths {
			if prefix, ok := strings.CutSuffix(path, "*"); ok {
				for _, child := range n.children {
					if strings.HasPrefix(child.name, prefix) {
						return valueCell(child)
					}
				}
				continue
			}
			if list := n.collect(strings.Split(path, ".")); len(list) > 0 {
				return valueCell(list[0])
			}
		}
	}
	return cell{}
}

// valueCell shows a value of any datatype in a few words.
func valueCell(n *node) cell {
	if n = n.first(); n == nil {
		return cell{}
	}
	if ref := n.str("reference"); ref != "" {
		return referenceCell(ref, n.str("display"))
	}
	return cell{Text: valueText(n)}
}

// valueText writes a value of any datatype in a few words.
func valueText(n *node) string {
	if n = n.first(); n == nil {
		return ""
	}
	if n.kind == 'v' {
		return clipText(n.text)
	}
	switch {
	case n.get("family") != nil || n.get("given") != nil:
		var given []string
		for _, g := range n.get("given").items() {
			given = append(given, g.text)
		}
		return clipText(strings.TrimSpace(strings.Join(append(given, n.str("family")), " ")))
	case n.get("text") != nil && n.str("text") != "":
		return clipText(n.str("text"))
	case n.get("coding") != nil:
		if d := n.str("coding", "display"); d != "" {
			return clipText(d)
		}
		return clipText(n.str("coding", "code"))
	case n.get("display") != nil:
		return clipText(n.str("display"))
	case n.get("value") != nil:
		unit := n.str("unit")
		if unit == "" && n.get("code") != nil {
			unit = n.str("code")
		}
		return clipText(strings.TrimSpace(n.str("comparator") + n.str("value") + " " + unit))
	case n.get("code") != nil:
		return clipText(n.str("code"))
	case n.get("start") != nil || n.get("end") != nil:
		return clipText(n.str("start") + " – " + n.str("end"))
	case n.get("line") != nil || n.get("city") != nil:
		var lines []string
		for _, l := range n.get("line").items() {
			lines = append(lines, l.text)
		}
		return clipText(strings.Join(append(lines, n.str("postalCode"), n.str("city")), " "))
	case n.get("numerator") != nil:
		return valueText(n.get("numerator")) + " / " + valueText(n.get("denominator"))
	case n.get("low") != nil || n.get("high") != nil:
		return valueText(n.get("low")) + " – " + valueText(n.get("high"))
	}
	return ""
}

// clipText bounds a value in a table.
func clipText(s string) string {
	const most = 300
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// referenceCell is a link to a resource of this server, named Type/id.
func referenceCell(ref, display string) cell {
	typ, id, ok := strings.Cut(ref, "/")
	id, _, _ = strings.Cut(id, "/_history/")
	if ok && fhir.ValidID(id) && typ != "" && typ[0] >= 'A' && typ[0] <= 'Z' && !strings.ContainsAny(typ, ":/#?") {
		return cell{Text: typ + "/" + id, Link: "/console/" + typ + "/" + id}
	}
	if display != "" {
		return cell{Text: clipText(display)}
	}
	return cell{Text: clipText(ref)}
}
