package terminology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/parameters"
)

// ValidateCodeParams are the inputs of $validate-code. For a value set one of URL
// and ValueSet is set; both unset ask whether the codes are in their code systems.
type ValidateCodeParams struct {
	URL      string // canonical of the value set
	Version  string // valueSetVersion
	ValueSet *ValueSet
	// Coding is the code, or the codings of a CodeableConcept: one of them must be valid. A display is checked if it
	// is present.
	Coding []Coding
	// InferSystem lets a coding without system stand for the same code in any
	// system of the value set.
	InferSystem     bool
	Abstract        bool // abstract codes are valid
	DisplayLanguage string
}

// ValidateCodeResult is the answer to $validate-code.
type ValidateCodeResult struct {
	Result  bool
	Message string // why not, or a hint
	Coding  Coding // as it is known; zero when nothing is
	// Warning tells of an answer that is not fresh.
	Warning string
}

// ValidateCode reports whether a code is in a value set or code system, and whether
// its display is right: without regard to case and accents, one of those that the
// value set or the code system gives. It fails with not-found where the value set,
// or asked about a code system that, is not known.
// Spec: https://hl7.org/fhir/R4/valueset-operation-validate-code.html,
// codesystem-operation-validate-code.html.
func (s *Service) ValidateCode(ctx context.Context, p ValidateCodeParams) (ValidateCodeResult, error) {
	if err := s.enabled(); err != nil {
		return ValidateCodeResult{}, err
	}
	if len(p.Coding) == 0 {
		return ValidateCodeResult{}, outcome.New(outcome.CodeRequired, "$validate-code needs code with system, coding or codeableConcept")
	}
	sn, err := s.now(ctx)
	if err != nil {
		return ValidateCodeResult{}, err
	}
	check := sn.inCodeSystem
	if p.URL != "" || p.ValueSet != nil {
		if check, err = sn.inValueSet(ctx, &p); err != nil {
			return ValidateCodeResult{}, err
		}
	}
	var messages []string
	var last ValidateCodeResult
	for _, c := range p.Coding {
		if c.Code == "" {
			messages = append(messages, "a coding has no code")
			continue
		}
		r, err := check(ctx, &p, c)
		if err != nil {
			return ValidateCodeResult{}, err
		}
		if r.Result {
			return r, nil
		}
		messages, last = append(messages, r.Message), r
	}
	last.Message = strings.Join(slices.Compact(messages), "; ")
	return last, nil
}

type checkFunc func(ctx context.Context, p *ValidateCodeParams, c Coding) (ValidateCodeResult, error)

// inCodeSystem checks a code against its code system.
func (sn *snapshot) inCodeSystem(ctx context.Context, p *ValidateCodeParams, c Coding) (ValidateCodeResult, error) {
	if c.System == "" {
		return ValidateCodeResult{Message: fmt.Sprintf("code %q has no system", outcome.Clip(c.Code))}, nil
	}
	at := canonical{c.System, c.Version}
	cs, err := sn.codeSystem(ctx, at)
	if err != nil {
		return ValidateCodeResult{}, err
	}
	var found *concept
	if cs != nil {
		if i, ok := cs.findConcept(c.Code); ok {
			found = &cs.concepts[i]
		}
	}
	check := grammars[c.System]
	switch {
	case found != nil:
		known := Coding{System: cs.url, Version: cs.version, Code: found.code, Display: displayIn(found.display, found.designation, p.DisplayLanguage)}
		return p.judge(c, known, found.abstract, found.designation, "CodeSystem "+cs.url), nil
	case check != nil && check(c.Code):
		return ValidateCodeResult{Result: true, Coding: Coding{System: c.System, Code: c.Code}}, nil
	case check == nil && (cs == nil || !cs.complete):
		if sn.server() != nil {
			return sn.askValidate(ctx, p, c, "CodeSystem/$validate-code", func(in *askedParameters) {
				in.add(parameters.URI("url", c.System))
				in.add(parameters.String("version", c.Version))
			})
		}
		return ValidateCodeResult{}, notFound(typeCodeSystem, at)
	}
	return ValidateCodeResult{Message: fmt.Sprintf("code %q is not in CodeSystem %s", outcome.Clip(c.Code), outcome.Clip(c.System))}, nil
}

// A valueSetCheck checks codes against one value set.
type valueSetCheck struct {
	sn       *snapshot
	valueSet *ValueSet // nil if only the external server has it
	given    bool      // the request contains the value set
	at       canonical
	name     string     // for messages
	codes    *expansion // of the versions that the value set names
}

// inValueSet returns the check of a code against the value set of p.
func (sn *snapshot) inValueSet(ctx context.Context, p *ValidateCodeParams) (checkFunc, error) {
	v := &valueSetCheck{sn: sn, valueSet: p.ValueSet, given: p.ValueSet != nil, at: parseCanonical(p.URL)}
	var err error
	if v.given {
		v.at = canonical{v.valueSet.URL, v.valueSet.Version}
	} else {
		if p.Version != "" {
			v.at.version = p.Version
		}
		if v.valueSet, err = sn.valueSet(ctx, v.at); err != nil {
			return nil, err
		}
		if v.valueSet == nil && sn.server() == nil {
			return nil, notFoundValueSet(v.at)
		}
	}
	if v.codes, err = v.expand(ctx, sn.evaluate(true)); err != nil {
		return nil, err
	}
	v.name = "ValueSet " + outcome.Clip(v.at.String())
	return v.check, nil
}

// expand returns the codes of the value set that are known here.
func (v *valueSetCheck) expand(ctx context.Context, e *evaluation) (*expansion, error) {
	if v.given {
		return e.valueSetOf(ctx, v.valueSet)
	}
	return e.canonical(ctx, v.at)
}

// check looks for a coding among the codes that are known here, then in the parts of the value set that are not listed.
func (v *valueSetCheck) check(ctx context.Context, p *ValidateCodeParams, c Coding) (ValidateCodeResult, error) {
	if c.System == "" && !p.InferSystem {
		return ValidateCodeResult{Message: fmt.Sprintf("code %q has no system", outcome.Clip(c.Code))}, nil
	}
	codes := v.codes
	if c.System != "" && c.Version != "" {
		e := v.sn.evaluate(true)
		e.version = map[string]string{c.System: c.Version}
		var err error
		if codes, err = v.expand(ctx, e); err != nil {
			return ValidateCodeResult{}, err
		}
	}
	found, cs, err := v.sn.lookFor(ctx, codes, c)
	switch {
	case err != nil:
		return ValidateCodeResult{}, err
	case found != nil:
		return v.judgeListed(p, c, found, cs), nil
	}
	matched, open := inGaps(codes.gaps, c)
	switch {
	case matched != nil:
		return ValidateCodeResult{Result: true, Coding: *matched}, nil
	case open && v.sn.server() != nil:
		return v.askServer(ctx, p, c)
	}
	return v.explainAbsence(ctx, c, open)
}

// judgeListed compares a coding with the code of the value set that it names. cs is the code system, nil if it is not known.
func (v *valueSetCheck) judgeListed(p *ValidateCodeParams, c Coding, found *entry, cs *codeSystem) ValidateCodeResult {
	known := Coding{System: found.system, Version: found.version, Code: found.code, Display: found.displayIn(p.DisplayLanguage)}
	designation := found.designation
	if cs != nil {
		known.Version = cs.version
		if i, ok := cs.findConcept(found.code); ok {
			designation = append(slices.Clip(designation), Designation{Value: cs.concepts[i].display})
		}
	}
	return p.judge(c, known, found.abstract, designation, v.name)
}

// inGaps tests a coding on the parts of a value set that are not listed. It returns the code if one of them has it by its
// grammar. open reports whether one of them cannot be tested here.
func inGaps(gaps []gap, c Coding) (matched *Coding, open bool) {
	for _, gap := range gaps {
		if gap.system != "" && c.System != "" && gap.system != c.System {
			continue
		}
		if gap.check == nil || gap.exclude {
			open = true
		} else if gap.check(c.Code) {
			return &Coding{System: gap.system, Code: c.Code}, open
		}
	}
	return nil, open
}

// askServer asks the external server. If that does not answer, a kept expansion may.
func (v *valueSetCheck) askServer(ctx context.Context, p *ValidateCodeParams, c Coding) (ValidateCodeResult, error) {
	vs := v.valueSet
	r, err := v.sn.askValidate(ctx, p, c, "ValueSet/$validate-code", func(in *askedParameters) {
		in.add(parameters.URI("system", c.System))
		in.add(parameters.String("systemVersion", c.Version))
		if vs == nil {
			in.add(parameters.URI("url", v.at.url))
			in.add(parameters.String("valueSetVersion", v.at.version))
			return
		}
		in.resource("valueSet", struct {
			ResourceType string `json:"resourceType"`
			ValueSet
		}{"ValueSet", ValueSet{URL: vs.URL, Version: vs.Version, Status: "active", Compose: vs.Compose}})
	})
	if isUnreachable(err) {
		if kept, ok := v.sn.inKept(ctx, p, vs, v.at, c); ok {
			return kept, nil
		}
	}
	return r, err
}

// explainAbsence says why a coding is not in the value set or, if open, why that is not known.
func (v *valueSetCheck) explainAbsence(ctx context.Context, c Coding, open bool) (ValidateCodeResult, error) {
	code, system := outcome.Clip(c.Code), systemName(c.System)
	if !open {
		return ValidateCodeResult{Message: fmt.Sprintf("code %q of %s is not in %s", code, system, v.name)}, nil
	}
	if c.Version != "" {
		newest, err := v.sn.codeSystem(ctx, canonical{url: c.System})
		if err != nil {
			return ValidateCodeResult{}, err
		}
		if newest != nil && newest.version != c.Version {
			return ValidateCodeResult{Message: fmt.Sprintf("code %q of %s cannot be checked: version %s is not known here", code, system, outcome.Clip(c.Version))}, nil
		}
	}
	return ValidateCodeResult{Message: fmt.Sprintf("whether code %q of %s is in %s is not known here: the value set takes codes from a code system that is not local", code, system, v.name)}, nil
}

// inKept checks a code against the expansion that is kept of a value set which the
// server has to be asked for: when that does not answer. ok is false where nothing
// is kept, or where that does not tell.
func (sn *snapshot) inKept(ctx context.Context, p *ValidateCodeParams, vs *ValueSet, at canonical, c Coding) (_ ValidateCodeResult, ok bool) {
	e := sn.evaluate(false)
	e.keptOnly = true
	var x *expansion
	var err error
	if vs != nil {
		x, err = e.valueSetOf(ctx, vs)
	} else {
		x, err = e.canonical(ctx, at)
	}
	if err != nil {
		return ValidateCodeResult{}, false
	}
	y, _, err := sn.lookFor(ctx, x, c)
	if err != nil || y == nil && x.unclosed {
		return ValidateCodeResult{}, false
	}
	name := "ValueSet " + outcome.Clip(at.String())
	r := ValidateCodeResult{Message: fmt.Sprintf("code %q of %s is not in %s", outcome.Clip(c.Code), systemName(c.System), name)}
	if y != nil {
		known := Coding{System: y.system, Version: y.version, Code: y.code, Display: y.displayIn(p.DisplayLanguage)}
		r = p.judge(c, known, y.abstract, y.designation, name)
	}
	r.Warning = strings.Join(x.warnings, "; ")
	return r, true
}

func systemName(system string) string {
	if system == "" {
		return "any system"
	}
	return outcome.Clip(system)
}

// lookFor finds a code in an expansion, and its code system where that is local.
func (sn *snapshot) lookFor(ctx context.Context, x *expansion, c Coding) (*entry, *codeSystem, error) {
	folds := make(map[canonical]*codeSystem)
	for i := range x.entries {
		y := &x.entries[i]
		if c.System != "" && y.system != c.System || c.Version != "" && y.version != "" && y.version != c.Version {
			continue
		}
		at := canonical{y.system, y.version}
		cs, ok := folds[at]
		if !ok {
			var err error
			if cs, err = sn.codeSystem(ctx, at); err != nil {
				return nil, nil, err
			}
			folds[at] = cs
		}
		if y.code == c.Code || cs != nil && cs.fold && strings.EqualFold(y.code, c.Code) {
			return y, cs, nil
		}
	}
	return nil, nil, nil
}

// ofLanguage reports whether a designation is of the language that is asked for, if one
// is.
func (p *ValidateCodeParams) ofLanguage(d Designation) bool {
	if p.DisplayLanguage == "" {
		return true
	}
	base, _, _ := strings.Cut(d.Language, "-")
	return strings.EqualFold(d.Language, p.DisplayLanguage) || strings.EqualFold(base, p.DisplayLanguage)
}

// judge compares a coding with the known concept.
func (p *ValidateCodeParams) judge(c, known Coding, abstract bool, designation []Designation, where string) ValidateCodeResult {
	r := ValidateCodeResult{Result: true, Coding: known}
	if abstract && !p.Abstract {
		r.Result = false
		r.Message = fmt.Sprintf("code %q is abstract in %s: it cannot be used", outcome.Clip(c.Code), where)
		return r
	}
	if c.Version != "" && known.Version != "" && c.Version != known.Version {
		r.Message = fmt.Sprintf("the code was looked for in version %s of %s; version %s is not known here", known.Version, outcome.Clip(known.System), outcome.Clip(c.Version))
	}
	if c.Display == "" || known.Display == "" && len(designation) == 0 {
		return r
	}
	given := fhir.FoldText(c.Display)
	if given == fhir.FoldText(known.Display) || slices.ContainsFunc(designation, func(d Designation) bool {
		return p.ofLanguage(d) && fhir.FoldText(d.Value) == given
	}) {
		return r
	}
	r.Result = false
	r.Message = fmt.Sprintf("the display of code %q is %q, not %q", outcome.Clip(c.Code), known.Display, outcome.Clip(c.Display))
	return r
}

// askValidate asks the server. where adds the operation's parameters for the value set or code system, and the system of
// the code.
func (sn *snapshot) askValidate(ctx context.Context, p *ValidateCodeParams, c Coding, path string, where func(*askedParameters)) (ValidateCodeResult, error) {
	var in askedParameters
	where(&in)
	in.add(parameters.Code("code", c.Code))
	in.add(parameters.String("display", c.Display))
	in.add(parameters.Code("displayLanguage", p.DisplayLanguage))
	in.flag("abstract", p.Abstract)
	out, warning, err := sn.server().operation(ctx, path, in)
	if err != nil {
		if notKnown(err) && path == "ValueSet/$validate-code" && p.ValueSet == nil {
			err = notFoundValueSet(canonical{p.URL, p.Version}).Because(err)
		}
		return ValidateCodeResult{}, err
	}
	r := ValidateCodeResult{Result: parameters.Get(out, "result").True(), Message: parameters.Get(out, "message").Text(), Warning: warning,
		Coding: Coding{System: c.System, Version: parameters.Get(out, "version").Text(), Code: c.Code, Display: parameters.Get(out, "display").Text()}}
	if !r.Result && r.Message == "" {
		r.Message = fmt.Sprintf("code %q of %s is not valid, says the terminology server", outcome.Clip(c.Code), systemName(c.System))
	}
	return r, nil
}

// JSON returns the result as Parameters.
func (r ValidateCodeResult) JSON() ([]byte, error) {
	list := []parameters.Parameter{parameters.Boolean("result", r.Result)}
	add := func(p parameters.Parameter) {
		if !p.Empty() {
			list = append(list, p)
		}
	}
	add(parameters.String("message", r.Message))
	add(parameters.String("display", r.Coding.Display))
	add(parameters.Code("code", r.Coding.Code))
	add(parameters.URI("system", r.Coding.System))
	add(parameters.String("version", r.Coding.Version))
	add(parameters.String("warning", r.Warning))
	return parameters.Write(list)
}
