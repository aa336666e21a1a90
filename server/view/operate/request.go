package operate

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/rest"
)

// runRequest is a request of $sql-run.
type runRequest struct {
	canonical string // of the subject; one of the three is set
	reference string
	body      json.RawMessage
	parameter string // the name of the subject's parameter

	resources        []fhir.Resource // in the place of stored data
	inline           bool            // resources were given
	format           string
	header           bool
	patients, groups []string // ids
	since            time.Time
	limit            int             // -1 for none
	values           json.RawMessage // Parameters of an SQL query; nil for none
}

// The parameters of a subject, by the name of the operation.
var subjectParameters = map[string][]string{
	"$sql-run":               {"subjectCanonical", "subjectReference", "subjectResource"},
	"$viewdefinition-run":    {"viewReference", "viewResource"},
	"$sqlquery-run":          {"queryReference", "queryResource"},
	"$sql-export":            {"subjectCanonical", "subjectReference", "subjectResource"},
	"$viewdefinition-export": {"viewReference", "viewResource"},
}

// single are the parameters that are given once at most.
var single = []string{"_format", "header", "_since", "_limit"}

// readInputs returns the parameters of a request, of the query and of Parameters in the body of a POST.
func (s *Service) readInputs(r *http.Request, operation string) ([]parameters.Parameter, error) {
	values, err := interaction.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	var out []parameters.Parameter
	for name, list := range values {
		for _, v := range list {
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			out = append(out, parameters.Parameter{Name: name, Type: "Query", Value: text})
		}
	}
	if r.Method != http.MethodPost {
		return out, nil
	}
	body, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return out, nil
	}
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Header.Get("Content-Type") != "" && (err != nil || typ != "application/fhir+json" && typ != "application/json") {
		return nil, outcome.UnsupportedMediaType("the body of %s is Parameters: expected Content-Type application/fhir+json", operation)
	}
	list, err := parameters.Read(body)
	if err != nil {
		return nil, err
	}
	return append(out, list...), nil
}

// readRun reads the parameters of a run.
func (s *Service) readRun(r *http.Request, k rest.KickOff) (*runRequest, error) {
	list, err := s.readInputs(r, k.Operation)
	if err != nil {
		return nil, err
	}
	q := &runRequest{header: true, limit: -1}
	if k.ID != "" {
		q.reference, q.parameter = "ViewDefinition/"+k.ID, "id"
		if k.Operation == "$sqlquery-run" {
			q.reference = "Library/" + k.ID
		}
	}
	seen := make(map[string]int)
	for _, p := range list {
		seen[p.Name]++
		if slices.Contains(single, p.Name) && seen[p.Name] > 1 {
			return nil, outcome.Invalid("%s is given more than once", p.Name).At(p.Name)
		}
		if err := s.readParameter(q, r, k, &p); err != nil {
			return nil, err
		}
	}
	switch {
	case q.parameter == "":
		return nil, outcome.New(outcome.CodeRequired, "the view is missing: expected one of %s", strings.Join(subjectParameters[k.Operation], ", ")).At(subjectParameters[k.Operation][0])
	case q.inline && (len(q.patients) > 0 || len(q.groups) > 0 || !q.since.IsZero()):
		return nil, outcome.Invalid("resource does not go with patient, group and _since: they choose among stored resources").At("resource")
	}
	return q, nil
}

// readParameter reads one parameter.
func (s *Service) readParameter(q *runRequest, r *http.Request, k rest.KickOff, p *parameters.Parameter) error {
	subject := func() error {
		switch {
		case k.ID != "":
			return outcome.Invalid("%s is given on an instance, which is the view itself", p.Name).At(p.Name)
		case q.parameter != "":
			return outcome.Invalid("there are two views: %s and %s", q.parameter, p.Name).At(p.Name)
		}
		q.parameter = p.Name
		return nil
	}
	ownSubject := slices.Contains(subjectParameters[k.Operation], p.Name)
	switch {
	case ownSubject && strings.HasSuffix(p.Name, "Resource"):
		if err := subject(); err != nil {
			return err
		}
		if p.Resource == nil {
			return outcome.Invalid("%s is a resource in the body of a POST", p.Name).At(p.Name)
		}
		q.body = p.Resource
		return nil
	case ownSubject:
		if err := subject(); err != nil {
			return err
		}
		text, err := textOf(p)
		if err != nil || text == "" {
			return outcome.Invalid("%s has no value", p.Name).At(p.Name)
		}
		if p.Name == "subjectCanonical" || p.Name != "subjectReference" && strings.Contains(text, ":") && !s.isLocal(text, k.Base) {
			q.canonical = text
		} else {
			q.reference = text
		}
		return nil
	}
	var err error
	switch p.Name {
	case "resource":
		if p.Resource == nil {
			return outcome.Invalid("resource is a resource in the body of a POST").At("resource")
		}
		q.inline = true
		return q.addResource(s.Model, p.Resource)
	case "context":
		return outcome.Invalid("context is no parameter here: a run has none").At("context")
	case "parameters":
		if q.values = p.Resource; q.values == nil {
			return outcome.Invalid("parameters is a resource in the body of a POST: Parameters with the values of an SQL query").At("parameters")
		}
	case "_pretty":
		return nil
	case "_format", "header", "patient", "group", "_since", "_limit":
		return s.readPlain(q, p, k.Base)
	default:
		err = outcome.RefusedParameter("%s has no parameter %q%s", k.Operation, outcome.Clip(p.Name),
			outcome.DidYouMean(p.Name, append(slices.Clone(subjectParameters[k.Operation]), "resource", "_format", "header", "patient", "group", "_since", "_limit"))).At(outcome.Clip(p.Name))
	}
	return err
}

// fullInstant is an instant: a time to the second or better, with its zone.
var fullInstant = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

// readPlain reads a parameter of a primitive type or a reference.
func (s *Service) readPlain(q *runRequest, p *parameters.Parameter, base string) error {
	text, err := textOf(p)
	if err != nil {
		return err
	}
	bad := func(expected string) error {
		return outcome.Invalid("%s is %q: expected %s", p.Name, outcome.Clip(text), expected).At(p.Name)
	}
	switch p.Name {
	case "_format":
		q.format = text
	case "header":
		if text != "true" && text != "false" {
			return bad("true or false")
		}
		q.header = text == "true"
	case "_limit":
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return bad("a number from 0")
		}
		q.limit = n
	case "_since":
		t, err := time.Parse(time.RFC3339Nano, strings.ReplaceAll(text, " ", "+"))
		if err != nil || !fullInstant.MatchString(strings.ReplaceAll(text, " ", "+")) {
			return bad("an instant such as 2026-11-27T20:00:00Z")
		}
		q.since = t.UTC()
	default:
		typ := map[string]string{"patient": "Patient", "group": "Group"}[p.Name]
		id := strings.TrimPrefix(text, base+"/")
		for _, own := range s.BaseURLs {
			id = strings.TrimPrefix(id, own+"/")
		}
		id = strings.TrimPrefix(id, typ+"/")
		if !fhir.ValidID(id) {
			return bad("a reference such as " + typ + "/id")
		}
		if p.Name == "patient" {
			q.patients = append(q.patients, id)
		} else {
			q.groups = append(q.groups, id)
		}
	}
	return nil
}

// textOf is the text of a parameter: a primitive, or the reference of a Reference.
func textOf(p *parameters.Parameter) (string, error) {
	if p.Value == nil {
		return "", outcome.Invalid("%s has no value", outcome.Clip(p.Name)).At(outcome.Clip(p.Name))
	}
	var reference struct {
		Reference string `json:"reference"`
	}
	if p.Type == "Reference" {
		if err := json.Unmarshal(p.Value, &reference); err != nil {
			return "", outcome.Invalid("%s is no reference", outcome.Clip(p.Name)).At(outcome.Clip(p.Name))
		}
		return reference.Reference, nil
	}
	var text string
	if json.Unmarshal(p.Value, &text) != nil {
		text = string(p.Value)
	}
	return text, nil
}

// addResource adds an inline resource, or the resources of a Bundle.
func (q *runRequest) addResource(model *fhir.Model, body []byte) error {
	in, err := fhir.Read(model, body)
	if err == nil && len(in.Issues) > 0 {
		err = outcome.Unprocessable(in.Issues)
	}
	if e, ok := outcome.From(err); ok {
		return outcome.Invalid("resource cannot be read: %s", e.Issues[0].Diagnostics).At("resource")
	}
	if err != nil {
		return err
	}
	if b, ok := in.Resource.(*r4.Bundle); ok {
		for i := range b.Entry {
			if b.Entry[i].Resource != nil {
				q.resources = append(q.resources, b.Entry[i].Resource)
			}
		}
		return nil
	}
	q.resources = append(q.resources, in.Resource)
	return nil
}

// isLocal reports whether a URL is below one of the server's bases.
func (s *Service) isLocal(text, base string) bool {
	for _, own := range append(slices.Clone(s.BaseURLs), base) {
		if own != "" && strings.HasPrefix(text, own+"/") {
			return true
		}
	}
	return false
}

// relative is a literal reference without the server's base.
func (s *Service) relative(reference, base string) string {
	for _, own := range append(slices.Clone(s.BaseURLs), base) {
		if rest, ok := strings.CutPrefix(reference, own+"/"); own != "" && ok {
			return rest
		}
	}
	return reference
}

// findValues are the parameters of the search for a canonical.
func findValues(canonical string) (values url.Values, version string) {
	address, version, versioned := strings.Cut(canonical, "|")
	values = url.Values{"url": {escape(address)}, "_total": {"none"}, "_count": {"200"}}
	if versioned {
		values.Set("version", escape(version))
	}
	return values, version
}

// escape escapes the separators of a search's value.
func escape(v string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `|`, `\|`, `$`, `\$`).Replace(v)
}
