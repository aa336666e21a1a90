package bulk

import (
	"cmp"
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/rest"
	"kiln/server/search"
	"kiln/server/smart"
)

// exportSpec is the parameters of an export.
type exportSpec struct {
	Level    string              `json:"level"` // system, Patient or Group
	Group    string              `json:"group,omitempty"`
	Types    []string            `json:"types,omitempty"` // of _type; none for all
	Since    time.Time           `json:"since,omitzero"`
	Until    time.Time           `json:"until,omitzero"`
	Filters  map[string][]string `json:"filters,omitempty"`  // of _typeFilter: queries by type, ORed
	Elements map[string][]string `json:"elements,omitempty"` // of _elements, by type; "" is for every type
	Patients []string            `json:"patients,omitempty"` // ids of patient
	// Associated selects the Provenance of each exported resource: latest, all, or "" for the rule of the level.
	Associated string `json:"associated,omitempty"`
	// Warnings are lines of errors: parameters that handling=lenient has ignored.
	Warnings []json.RawMessage `json:"warnings,omitempty"`
}

const (
	latestProvenance = "latest"
	allProvenance    = "all"
)

// exportParameters are the parameters of $export.
// Spec: https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters.
var exportParameters = []string{"_elements", "_outputFormat", "_since", "_type", "_typeFilter", "_until", "allowPartialManifests", "includeAssociatedData",
	"organizeOutputBy", "patient"}

// exportJob checks a kick-off and makes its job.
func (s *Service) exportJob(ctx context.Context, r *http.Request, k rest.KickOff) (*jobs.Job, []jobs.Part, error) {
	if s.ExportEnabled != nil && !s.ExportEnabled(ctx) {
		return nil, nil, outcome.NotImplemented("$export is switched off (bulk.export.enabled)")
	}
	if err := s.CheckAllowed(ctx, access.Operation, k.ResourceType, k.ID); err != nil {
		return nil, nil, err
	}
	values, err := s.exportValues(r)
	if err != nil {
		return nil, nil, err
	}
	p := &exportReader{s: s, ctx: ctx, lenient: k.Lenient, spec: exportSpec{Level: "system"}}
	if k.ResourceType != "" {
		p.spec.Level, p.spec.Group = k.ResourceType, k.ID
	}
	if err := p.read(values); err != nil {
		return nil, nil, err
	}
	stored, err := json.Marshal(p.spec)
	if err != nil {
		return nil, nil, err
	}
	reason := map[string]string{"system": "an export of everything", "Patient": "an export of all patients", "Group": "an export of Group/" + k.ID}[p.spec.Level]
	return &jobs.Job{Type: "export", Spec: stored, Reason: reason}, []jobs.Part{{Spec: exportPart{Do: planExport}}}, nil
}

// exportValues reads the parameters of a kick-off: of the query, and of Parameters in a POST.
func (s *Service) exportValues(r *http.Request) (url.Values, error) {
	values, err := interaction.ParseQuery(r.URL.RawQuery)
	if err != nil || r.Method != http.MethodPost {
		return values, err
	}
	body, err := readBody(r, 1<<20)
	if err != nil || len(body) == 0 {
		return values, err
	}
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || typ != "application/fhir+json" && typ != "application/json" {
		return nil, outcome.UnsupportedMediaType("the body of $export is Parameters: expected Content-Type application/fhir+json")
	}
	var in struct {
		ResourceType string                       `json:"resourceType"`
		Parameter    []map[string]json.RawMessage `json:"parameter"`
	}
	if err := json.Unmarshal(body, &in); err != nil || in.ResourceType != "Parameters" {
		return nil, outcome.New(outcome.CodeStructure, "the body of $export is not a Parameters resource")
	}
	for _, p := range in.Parameter {
		var name, text string
		if json.Unmarshal(p["name"], &name) != nil || name == "" {
			return nil, outcome.New(outcome.CodeStructure, "a parameter of $export has no name")
		}
		found := false
		for key, value := range p {
			if !strings.HasPrefix(key, "value") {
				continue
			}
			found = true
			var reference struct {
				Reference string `json:"reference"`
			}
			switch {
			case key == "valueReference":
				if err := json.Unmarshal(value, &reference); err != nil {
					return nil, outcome.Invalid("parameter %s is no reference", outcome.Clip(name))
				}
				text = reference.Reference
			case json.Unmarshal(value, &text) != nil:
				text = string(value)
			}
		}
		if !found {
			return nil, outcome.Invalid("parameter %s has no value", outcome.Clip(name))
		}
		values.Add(name, text)
	}
	return values, nil
}

// exportReader reads the parameters of one kick-off.
type exportReader struct {
	s       *Service
	ctx     context.Context
	lenient bool
	spec    exportSpec
}

// ignore returns err, or nil with a warning where the client asked for lenient handling.
func (p *exportReader) ignore(err error) error {
	warnings, err := lenientWarnings(p.lenient, err)
	p.spec.Warnings = append(p.spec.Warnings, warnings...)
	return err
}

func (p *exportReader) read(values url.Values) error {
	reg := p.s.Parameters.Current()
	for name, list := range values {
		var err error
		switch name {
		case "_format", "_pretty", "allowPartialManifests", "_typeFilter", "patient":
		case "_outputFormat":
			err = readOutputFormat(list)
		case "_since":
			p.spec.Since, err = readInstant(name, list)
		case "_until":
			p.spec.Until, err = readInstant(name, list)
		case "_type":
			err = p.readTypes(reg, splitList(list))
		case "_elements":
			err = p.readElements(splitList(list))
		case "includeAssociatedData":
			err = p.readAssociated(splitList(list))
		case "organizeOutputBy":
			err = p.ignore(outcome.RefusedParameter("organizeOutputBy is not served: files are by resource type"))
		default:
			err = p.ignore(outcome.RefusedParameter("$export has no parameter %q%s", outcome.Clip(name), outcome.DidYouMean(name, exportParameters)))
		}
		if err != nil {
			return err
		}
	}
	if !p.spec.Since.IsZero() && !p.spec.Until.IsZero() && !p.spec.Until.After(p.spec.Since) {
		return outcome.Invalid("_until is not later than _since")
	}
	if err := p.readFilters(values["_typeFilter"]); err != nil {
		return err
	}
	if err := p.checkTypes(reg); err != nil {
		return err
	}
	return p.readPatients(values["patient"])
}

func (p *exportReader) readTypes(reg *search.Registry, list []string) error {
	for _, typ := range list {
		if p.s.Model.Resources[typ] == nil {
			return outcome.Invalid("_type names %q, which is no resource type%s", outcome.Clip(typ), reg.NearestType(typ))
		}
		if !slices.Contains(p.spec.Types, typ) {
			p.spec.Types = append(p.spec.Types, typ)
		}
	}
	if len(p.spec.Types) == 0 {
		return outcome.Invalid("_type is empty: expected resource types between commas")
	}
	return nil
}

// readAssociated reads includeAssociatedData.
func (p *exportReader) readAssociated(list []string) error {
	for _, v := range list {
		switch v {
		case "LatestProvenanceResources":
			p.spec.Associated = cmp.Or(p.spec.Associated, latestProvenance)
		case "RelevantProvenanceResources":
			p.spec.Associated = allProvenance
		default:
			if err := p.ignore(outcome.RefusedParameter("includeAssociatedData is %q: expected LatestProvenanceResources or RelevantProvenanceResources", outcome.Clip(v))); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitList reads a list: commas, repetition, or both.
func splitList(list []string) (out []string) {
	for _, v := range list {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				out = append(out, item)
			}
		}
	}
	return out
}

func readOutputFormat(list []string) error {
	for _, v := range list {
		switch strings.ReplaceAll(v, " ", "+") {
		case "application/fhir+ndjson", "application/ndjson", "ndjson":
		default:
			return outcome.RefusedParameter("_outputFormat is %q: expected application/fhir+ndjson", outcome.Clip(v))
		}
	}
	return nil
}

// fullInstant is an instant: a time to the second or better, with its zone.
var fullInstant = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

func readInstant(name string, list []string) (time.Time, error) {
	if len(list) > 1 {
		return time.Time{}, outcome.Invalid("%s is given %d times", name, len(list))
	}
	text := strings.ReplaceAll(list[0], " ", "+")
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !fullInstant.MatchString(text) {
		return time.Time{}, outcome.Invalid("%s is %q: expected an instant such as 2026-11-27T20:00:00Z", name, outcome.Clip(text))
	}
	return t.UTC(), nil
}

func (p *exportReader) readElements(list []string) error {
	if p.spec.Elements == nil {
		p.spec.Elements = make(map[string][]string)
	}
	for _, item := range list {
		typ, element, ok := strings.Cut(item, ".")
		if !ok {
			typ, element = "", item
		}
		known := false
		for name, r := range p.s.Model.Resources {
			known = known || (typ == "" || typ == name) && (r.Type().FieldOf(element) != nil || element == "id" || element == "meta")
		}
		if !known {
			return outcome.Invalid("_elements names %q: expected a root element, such as Patient.name or name", outcome.Clip(item))
		}
		p.spec.Elements[typ] = append(p.spec.Elements[typ], element)
	}
	return nil
}

// filterStart is where a filter of _typeFilter begins behind a comma.
var filterStart = regexp.MustCompile(`,[A-Z][A-Za-z]*(\?|%3[Ff])`)

// splitFilters splits _typeFilter: a comma separates only before Type?.
func splitFilters(list []string) (out []string) {
	for _, v := range list {
		for {
			at := filterStart.FindStringIndex(v)
			if at == nil {
				break
			}
			out = append(out, v[:at[0]])
			v = v[at[0]+1:]
		}
		out = append(out, v)
	}
	return out
}

// resultParameters say how a search answers, and not what matches.
var resultParameters = []string{"_sort", "_count", "_offset", "_cursor", "_include", "_revinclude", "_summary", "_elements", "_total", "_contained", "_containedType",
	"_format", "_pretty", "_explain", "_score"}

func (p *exportReader) readFilters(list []string) error {
	for _, filter := range splitFilters(list) {
		if !strings.Contains(filter, "?") { // it was escaped as a whole
			if text, err := url.PathUnescape(filter); err == nil {
				filter = text
			}
		}
		typ, query, ok := strings.Cut(filter, "?")
		if !ok || p.s.Model.Resources[typ] == nil {
			return outcome.Invalid("_typeFilter has %q: expected Type?search%s", outcome.Clip(filter), p.s.Parameters.Current().NearestType(typ))
		}
		if len(p.spec.Types) > 0 && !slices.Contains(p.spec.Types, typ) {
			return outcome.Invalid("_typeFilter has a filter of %s, which _type excludes", typ)
		}
		query = strings.ReplaceAll(query, "+", "%2B") // a plus sign stays
		values, err := interaction.ParseQuery(query)
		if err != nil {
			return err
		}
		for name := range values {
			base, _, _ := strings.Cut(name, ":")
			if slices.Contains(resultParameters, base) {
				return outcome.Invalid("_typeFilter of %s has %s, which does not say what matches", typ, outcome.Clip(name))
			}
		}
		q, err := search.Parse(p.s.Parameters.Current(), typ, values, p.s.SearchOptions(p.ctx, p.lenient, nil))
		if err != nil {
			return badRequest(err)
		}
		for _, issue := range q.Ignored {
			p.spec.Warnings = append(p.spec.Warnings, outcome.JSON([]outcome.Issue{issue}))
		}
		if p.spec.Filters == nil {
			p.spec.Filters = make(map[string][]string)
		}
		p.spec.Filters[typ] = append(p.spec.Filters[typ], query)
	}
	return nil
}

// badRequest returns err with status 400: a fault of a filter is a fault of the request.
func badRequest(err error) error {
	if outcome.Is(err, outcome.CodeNotSupported) {
		return outcome.RefusedParameter("%s", err)
	}
	return err
}

// checkTypes checks the types against the level and the rights.
func (p *exportReader) checkTypes(reg *search.Registry) error {
	if p.spec.Level != "system" && len(p.spec.Types) > 0 && !slices.ContainsFunc(p.spec.Types, func(t string) bool { return inPatientCompartment(reg, t) }) {
		return outcome.Invalid("_type names no type of the patient compartment: %s", strings.Join(p.spec.Types, ", "))
	}
	rights, err := p.s.Access.Rights(p.ctx)
	if err != nil || rights == nil {
		return err
	}
	named := slices.Clone(p.spec.Types)
	for typ := range p.spec.Filters {
		named = append(named, typ)
	}
	for _, typ := range named {
		for _, permission := range []smart.Permissions{smart.Read, smart.Search} {
			if err := rights.Check(permission, typ); err != nil {
				return err
			}
		}
	}
	if len(p.spec.Types) > 0 {
		return nil
	}
	for _, typ := range reg.Types() {
		if rights.Check(smart.Read, typ) == nil && rights.Check(smart.Search, typ) == nil {
			return nil
		}
	}
	return rights.Check(smart.Read|smart.Search, "Patient")
}

// readPatients reads the parameter patient, and the Group.
func (p *exportReader) readPatients(list []string) error {
	from, err := p.s.SeenBy(p.ctx, p.s.Store, smart.Read|smart.Search)
	if err != nil {
		return err
	}
	if p.spec.Level == "Group" {
		if !fhir.ValidID(p.spec.Group) {
			return outcome.NotFound("Group", outcome.Clip(p.spec.Group))
		}
		if err := p.s.CheckAllowed(p.ctx, access.Read, "Group", p.spec.Group); err != nil {
			return err
		}
		if _, err := from.Read(p.ctx, "Group", p.spec.Group); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return nil
	}
	if p.spec.Level == "system" {
		return outcome.Invalid("patient is no parameter of an export of the system; it is one of /Patient/$export and /Group/{id}/$export")
	}
	var members map[string]bool
	if p.spec.Level == "Group" {
		run, err := p.s.newExport(p.ctx, &p.spec, p.s.Now().Add(time.Hour))
		if err != nil {
			return err
		}
		if members, err = run.members(p.ctx, run.moment); err != nil {
			return err
		}
	}
	var absent []string
	for _, text := range splitList(list) {
		id := strings.TrimPrefix(text, "Patient/")
		for _, base := range p.s.BaseURLs {
			id = strings.TrimPrefix(strings.TrimPrefix(id, base+"/"), "Patient/")
		}
		_, err := from.Read(p.ctx, "Patient", id)
		if !fhir.ValidID(id) || err != nil && outcome.Theirs(err) || members != nil && !members[id] {
			absent = append(absent, outcome.Clip(text))
			continue
		}
		if err != nil {
			return err
		}
		p.spec.Patients = append(p.spec.Patients, id)
	}
	if len(absent) > 0 {
		return outcome.Invalid("patient names no patient of this export: %s", strings.Join(absent, ", "))
	}
	return nil
}

// inPatientCompartment reports whether resources of a type can be in a patient's compartment.
func inPatientCompartment(reg *search.Registry, typ string) bool {
	keys, self := reg.CompartmentKeys(typ, "Patient")
	return self || len(keys) > 0
}
