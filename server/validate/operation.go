package validate

import (
	"context"
	"fmt"
	"slices"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/parameters"
)

// Operation is a $validate request.
// Spec: https://hl7.org/fhir/R4/resource-operation-validate.html.
type Operation struct {
	// Type and ID are the resource type and id in the URL; "" where it has none.
	Type, ID string
	// Mode is create, update, delete, profile or "". In Parameters it can stand in
	// the body too.
	Mode     string
	Profiles []string
	// Body is the resource, or a Parameters resource with the parts resource,
	// mode and profile. It may be empty for mode delete, which ignores it.
	Body []byte
	// Stored reads the resource of the URL, for a request without one; nil where the URL
	// has no id.
	Stored func(ctx context.Context) ([]byte, error)
}

// Operate answers $validate: the issues of the OperationOutcome, 200, worst first. A valid
// resource has one issue of severity information, after its warnings. It fails with
// invalid, 400, if the request itself is wrong: no resource, an unknown mode, mode profile
// without a profile. For JSON with values of a wrong form it reports these values and the
// other faults.
func (v *Validator) Operate(ctx context.Context, op Operation, o Options) ([]outcome.Issue, error) {
	if err := op.unwrap(); err != nil {
		return nil, err
	}
	if err := op.checkMode(); err != nil {
		return nil, err
	}
	if op.Mode == "delete" {
		// The content is ignored.
		// Spec: https://hl7.org/fhir/R4/valueset-resource-validation-mode.html.
		return valid("nothing is known that keeps the resource from being deleted"), nil
	}
	body, err := op.read(ctx)
	if err != nil {
		return nil, err
	}
	in, err := fhir.Read(v.plans.model, body)
	if err != nil {
		e, ok := outcome.From(err)
		if !ok {
			return nil, err
		}
		return e.Issues, nil
	}
	r, issues := in.Resource, in.Issues
	issues = append(issues, op.checkIdentity(r)...)
	o.Profiles = append(slices.Clone(o.Profiles), op.Profiles...)
	// A create or update would store the resource with the warnings.
	o.Warnings, o.Strict = true, op.Mode != "create" && op.Mode != "update"
	issues = append(issues, v.validate(ctx, r, o, in.Lost)...)
	if o.Check != nil && len(in.Issues) == 0 {
		if e, ok := outcome.From(o.Check(ctx, r)); ok {
			issues = append(issues, e.Issues...)
		}
	}
	if !slices.ContainsFunc(issues, func(i outcome.Issue) bool { return rank(i.Severity) < rank(outcome.Warning) }) {
		issues = append(issues, valid("the resource is valid")...)
	}
	slices.SortStableFunc(issues, func(a, b outcome.Issue) int { return rank(a.Severity) - rank(b.Severity) })
	return issues, nil
}

// unwrap takes the parts of the request out of a body that is a Parameters resource.
func (op *Operation) unwrap() error {
	parts, ok := parametersOf(op.Body)
	if !ok {
		return nil
	}
	op.Body = nil
	for _, p := range parts {
		switch p.Name {
		case "resource":
			op.Body = p.Resource
		case "mode":
			op.Mode = p.Text()
		case "profile":
			op.Profiles = append(op.Profiles, p.Text())
		default:
			return outcome.Invalid("$validate has no parameter %q; it takes resource, mode and profile", p.Name)
		}
	}
	return nil
}

// checkMode checks the mode, and that mode profile has a profile.
func (op *Operation) checkMode() error {
	switch op.Mode {
	case "", "create", "update", "delete":
	case "profile":
		if len(op.Profiles) == 0 {
			return outcome.Invalid("mode profile needs a profile: the parameter profile names none")
		}
	default:
		return outcome.Invalid("mode is create, update, delete or profile, found %q", op.Mode)
	}
	return nil
}

// read returns the resource of the request, or else the stored one.
func (op *Operation) read(ctx context.Context) (body []byte, err error) {
	body = op.Body
	if len(body) == 0 && op.Stored != nil {
		if body, err = op.Stored(ctx); err != nil {
			return nil, err
		}
	}
	if len(body) == 0 {
		return nil, outcome.Invalid("$validate needs a resource in the body, alone or as the parameter resource")
	}
	return body, nil
}

// checkIdentity checks the resource type and id of r against the URL and the mode.
func (op *Operation) checkIdentity(r fhir.Resource) (issues []outcome.Issue) {
	fail := func(at, format string, args ...any) {
		issues = append(issues, outcome.Issue{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...), Expression: at})
	}
	typ, id := r.Type().Name, r.Header().ID.Text
	if op.Type != "" && typ != op.Type {
		fail(typ, "expected resource type %s, found %s", op.Type, typ)
	}
	switch {
	case op.Mode == "create": // a create ignores the id
	case id != "" && !fhir.ValidID(id):
		fail(typ+".id", "%q is not a valid id: expected 1 to 64 letters, digits, - and .", id)
	case op.Mode == "update" && id == "":
		fail(typ+".id", "an update needs an id")
	case op.Mode == "update" && op.ID != "" && id != op.ID:
		fail(typ+".id", "expected the id %s of the URL, found %s", op.ID, id)
	}
	return issues
}

func rank(s outcome.Severity) int {
	return slices.Index([]outcome.Severity{outcome.Fatal, outcome.Failure, outcome.Warning, outcome.Information}, s)
}

func valid(text string) []outcome.Issue {
	return []outcome.Issue{{Severity: outcome.Information, Code: outcome.CodeInformational, Diagnostics: text}}
}

// parametersOf reads the parts of a Parameters resource that wraps a request. The
// resource stays JSON, so that its issues have its own paths.
func parametersOf(body []byte) ([]parameters.Parameter, bool) {
	list, err := parameters.Read(body)
	return list, err == nil
}
