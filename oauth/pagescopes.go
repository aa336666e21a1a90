package oauth

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// scopeText is a scope and what it means in words; Parts are narrower scopes that the
// person may choose in place of it.
type scopeText struct {
	Scope, Words string
	Parts        []scopeText
}

var otherWords = map[string]string{
	"openid":           "Know who you are",
	"fhirUser":         "Know which record is your own",
	"profile":          "Read your name and e-mail address",
	"launch":           "Know what you were working on when you opened the app",
	"launch/patient":   "Know which patient you choose",
	"launch/encounter": "Know which encounter you choose",
	"launch/context":   "Open other apps with a context",
	"offline_access":   "Keep access when you are not there, until you take it back",
	"online_access":    "Keep access while you use the app, for a day at most",
	"admin":            "Administer this server",
	"metrics":          "Read this server's metrics",
}

// verbs are the permissions of a scope in words, in the order in which a sentence has them.
var verbs = []struct {
	permission      smart.Permissions
	english, german string
}{
	{smart.Read, "read", "lesen"}, {smart.Search, "search", "suchen"}, {smart.Create, "add", "hinzufügen"},
	{smart.Update, "change", "ändern"}, {smart.Delete, "delete", "löschen"},
}

// germanTypes are resource types as patients call them.
var germanTypes = map[string]string{
	"AllergyIntolerance": "Allergien und Unverträglichkeiten", "Appointment": "Termine", "CarePlan": "Behandlungspläne", "CareTeam": "Behandlungsteams",
	"Condition": "Erkrankungen und Beschwerden", "Consent": "Einwilligungen", "Coverage": "Versicherungen", "Device": "Geräte und Implantate",
	"DiagnosticReport": "Befundberichte", "DocumentReference": "Dokumente", "Encounter": "Besuche und Aufenthalte", "Goal": "Behandlungsziele",
	"Immunization": "Impfungen", "Location": "Orte", "Medication": "Medikamente", "MedicationDispense": "Abgaben von Medikamenten",
	"MedicationRequest": "Verordnungen von Medikamenten", "MedicationStatement": "Angaben zur Medikation", "Observation": "Messwerte und Beobachtungen",
	"Organization": "Organisationen", "Patient": "Stammdaten", "Practitioner": "Behandelnde", "Procedure": "Eingriffe und Maßnahmen",
	"QuestionnaireResponse": "ausgefüllte Fragebögen", "RelatedPerson": "Angehörige", "ServiceRequest": "Anforderungen von Leistungen",
	"Specimen": "Proben", "Task": "Aufgaben",
}

// describeScopes says in words what each scope means.
func (p page) describeScopes(s smart.Scopes) []scopeText {
	var out []scopeText
	for _, o := range s.Other {
		words := o
		if known := otherWords[o]; known != "" {
			words = p.T(known)
		}
		out = append(out, scopeText{Scope: o, Words: words})
	}
	for _, r := range s.Resource {
		words := describeEnglish(r)
		if p.Language == german {
			words = describeGerman(r)
		}
		out = append(out, scopeText{Scope: r.String(), Words: words})
	}
	return out
}

func describeEnglish(r smart.Scope) string {
	words := verbsOf(r, english, " and ")
	words = strings.ToUpper(words[:1]) + words[1:]
	what := "everything"
	switch {
	case r.Type == "*":
	case r.Type == "Patient" && r.Context == smart.Patient:
		what = "the personal details"
	default:
		what = "the " + spaced(r.Type) + " records"
	}
	words += " " + what
	switch r.Context {
	case smart.Patient:
		words += " of the patient"
	case smart.User:
		words += " that you may see"
	}
	return words + narrowed(r, ", only where ")
}

func describeGerman(r smart.Scope) string {
	what := germanTypes[r.Type]
	switch {
	case r.Type == "*":
		what = "Alle Daten"
	case what == "":
		what = "Einträge der Art " + r.Type
	}
	switch r.Context {
	case smart.Patient:
		what += " der Patientin oder des Patienten"
	case smart.User:
		what += ", die Sie sehen dürfen,"
	}
	what += " " + verbsOf(r, german, " und ")
	return strings.ToUpper(what[:1]) + what[1:] + narrowed(r, ", nur mit ")
}

func verbsOf(r smart.Scope, language, and string) string {
	var list []string
	for _, v := range verbs {
		if r.Permissions&v.permission == 0 {
			continue
		}
		if language == german {
			list = append(list, v.german)
		} else {
			list = append(list, v.english)
		}
	}
	if n := len(list); n > 1 {
		return strings.Join(list[:n-1], ", ") + and + list[n-1]
	}
	return strings.Join(list, "")
}

func narrowed(r smart.Scope, where string) string {
	if r.Search == "" {
		return ""
	}
	search, err := url.QueryUnescape(r.Search)
	if err != nil {
		search = r.Search
	}
	return where + search
}

// spaced writes MedicationRequest as medication request.
func spaced(typ string) string {
	var b strings.Builder
	for i, c := range typ {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}

// part is a part of a resource type that a person may choose in place of the whole type.
type part struct {
	Type   string `json:"type"`
	Search string `json:"search"` // of the granular scope, such as category=…|…
	Name   string `json:"name"`
	NameDE string `json:"name_de"`
}

const (
	conditionCategory   = "http://terminology.hl7.org/CodeSystem/condition-category"
	observationCategory = "http://terminology.hl7.org/CodeSystem/observation-category"
	usCoreCategory      = "http://hl7.org/fhir/us/core/CodeSystem/us-core-category"
	usCoreCondition     = "http://hl7.org/fhir/us/core/CodeSystem/condition-category"
	usCoreObservation   = "http://hl7.org/fhir/us/core/CodeSystem/us-core-observation-category"
)

// defaultParts are the parts that ONC's certification requires of a consent page, with the
// category codes of US Core. US Core 4.0.0 and 5.0.1 define the code for clinical tests;
// later versions have no code of their own for them.
// Spec: 45 CFR 170.315(g)(10); http://hl7.org/fhir/us/core/STU7/scopes.html
func defaultParts() []map[string]any {
	var out []map[string]any
	for _, x := range [][5]string{
		{"Condition", conditionCategory, "problem-list-item", "Problem list", "Problemliste"},
		{"Condition", conditionCategory, "encounter-diagnosis", "Diagnoses of visits", "Diagnosen bei Besuchen"},
		{"Condition", usCoreCondition, "health-concern", "Health concerns", "Gesundheitliche Sorgen"},
		{"Observation", observationCategory, "laboratory", "Laboratory results", "Laborwerte"},
		{"Observation", observationCategory, "vital-signs", "Vital signs", "Vitalwerte"},
		{"Observation", observationCategory, "social-history", "Social history", "Lebensumstände"},
		{"Observation", observationCategory, "survey", "Surveys and questionnaires", "Umfragen und Fragebögen"},
		{"Observation", usCoreCategory, "sdoh", "Social determinants of health", "Soziale Einflüsse auf die Gesundheit"},
		{"Observation", usCoreObservation, "clinical-test", "Clinical tests", "Klinische Untersuchungen"},
	} {
		out = append(out, map[string]any{"type": x[0], "search": "category=" + x[1] + "|" + x[2], "name": x[3], "name_de": x[4]})
	}
	return out
}

// readParts reads auth.pages.parts.
func readParts(entries []map[string]any) ([]part, error) {
	var out []part
	for i, entry := range entries {
		var x part
		err := decodeEntry(entry, &x)
		if err == nil && x.Name == "" {
			err = errors.New("name is missing")
		}
		if err == nil {
			_, err = smart.ParseScope("patient/" + x.Type + ".rs?" + x.Search)
		}
		if err == nil && x.Type == "*" {
			err = errors.New("type is *: expected a resource type")
		}
		if err != nil {
			return nil, fmt.Errorf("auth.pages.parts[%d]: %w", i, err)
		}
		out = append(out, x)
	}
	return out, nil
}

// parts are the parts of a scope that a person may choose: of a whole type, of one
// patient's data.
func (s *Server) parts(r smart.Scope, u *storage.User) []part {
	own := strings.HasPrefix(u.FHIRUser, "Patient/") || strings.HasPrefix(u.FHIRUser, "RelatedPerson/")
	if r.Search != "" || r.Context != smart.Patient && !(r.Context == smart.User && own) {
		return nil
	}
	all, _ := readParts(s.Config().Pages.Parts) // Check has read them
	return slices.DeleteFunc(all, func(x part) bool { return x.Type != r.Type })
}

// offerScopes describes the scopes of a consent, and their parts.
func (s *Server) offerScopes(p page, may smart.Scopes, u *storage.User) []scopeText {
	out := p.describeScopes(may)
	for i, r := range may.Resource {
		for _, x := range s.parts(r, u) {
			words := x.Name
			if p.Language == german && x.NameDE != "" {
				words = x.NameDE
			}
			at := &out[len(may.Other)+i]
			at.Parts = append(at.Parts, scopeText{Scope: partOf(r, x).String(), Words: words})
		}
	}
	return out
}

func partOf(r smart.Scope, x part) smart.Scope {
	r.Search = x.Search
	return r
}

// choosePart applies the choice of parts: without script the whole type stays ticked
// beside them. Some parts stand in place of the type; all of them are the type.
func (s *Server) chooseParts(may, chosen smart.Scopes, u *storage.User) smart.Scopes {
	for _, whole := range may.Resource {
		offered := s.parts(whole, u)
		if len(offered) == 0 || !slices.Contains(chosen.Resource, whole) {
			continue
		}
		isPart := func(r smart.Scope) bool {
			return !slices.Contains(may.Resource, r) && slices.ContainsFunc(offered, func(x part) bool { return partOf(whole, x) == r })
		}
		picked := 0
		for _, r := range chosen.Resource {
			if isPart(r) {
				picked++
			}
		}
		all := picked == len(offered)
		chosen.Resource = slices.DeleteFunc(slices.Clone(chosen.Resource), func(r smart.Scope) bool {
			return all && isPart(r) || !all && picked > 0 && r == whole
		})
	}
	return chosen
}
