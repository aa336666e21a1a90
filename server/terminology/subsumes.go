package terminology

import (
	"context"

	"kiln/server/outcome"
	"kiln/server/parameters"
)

// SubsumesParams are the inputs of $subsumes.
type SubsumesParams struct {
	System, Version string
	CodeA, CodeB    string
}

// Subsumption is how two codes stand to each other.
// Spec: https://hl7.org/fhir/R4/valueset-concept-subsumption-outcome.html.
type Subsumption string

// The outcomes of $subsumes, about code A.
const (
	Equivalent   Subsumption = "equivalent"
	SubsumesCode Subsumption = "subsumes"
	SubsumedBy   Subsumption = "subsumed-by"
	NotSubsumed  Subsumption = "not-subsumed"
)

// SubsumesOutcome says how code A stands to code B in the hierarchy of their code
// system. It fails with not-found where the system or one of the codes is not
// known. Spec: https://hl7.org/fhir/R4/codesystem-operation-subsumes.html.
func (s *Service) SubsumesOutcome(ctx context.Context, p SubsumesParams) (Subsumption, error) {
	if err := s.enabled(); err != nil {
		return "", err
	}
	if p.System == "" || p.CodeA == "" || p.CodeB == "" {
		return "", outcome.New(outcome.CodeRequired, "$subsumes needs system, codeA and codeB")
	}
	sn, err := s.now(ctx)
	if err != nil {
		return "", err
	}
	at := canonical{p.System, p.Version}
	cs, err := sn.codeSystem(ctx, at)
	if err != nil {
		return "", err
	}
	if cs == nil || !cs.complete {
		return s.askSubsumes(ctx, p, at)
	}
	a, okA := cs.findConcept(p.CodeA)
	b, okB := cs.findConcept(p.CodeB)
	switch {
	case !okA:
		return "", noCode(cs, p.CodeA)
	case !okB:
		return "", noCode(cs, p.CodeB)
	case a == b:
		return Equivalent, nil
	case cs.subsumes(a, b) && cs.subsumes(b, a):
		return Equivalent, nil // a hierarchy that runs in a circle
	case cs.subsumes(a, b):
		return SubsumesCode, nil
	case cs.subsumes(b, a):
		return SubsumedBy, nil
	}
	return NotSubsumed, nil
}

func noCode(cs *codeSystem, code string) error {
	return outcome.New(outcome.CodeNotFound, "CodeSystem %s has no code %q", cs.url, outcome.Clip(code))
}

func (s *Service) askSubsumes(ctx context.Context, p SubsumesParams, at canonical) (Subsumption, error) {
	if s.server() == nil {
		return "", notFound(typeCodeSystem, at)
	}
	var in askedParameters
	in.add(parameters.URI("system", p.System))
	in.add(parameters.String("version", p.Version))
	in.add(parameters.Code("codeA", p.CodeA))
	in.add(parameters.Code("codeB", p.CodeB))
	out, _, err := s.server().operation(ctx, "CodeSystem/$subsumes", in)
	if err != nil {
		return "", err
	}
	return Subsumption(parameters.Get(out, "outcome").Text()), nil
}

// Subsumes reports whether code general is special or above it. known is false
// where the code system or one of the codes is not known.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#functions (subsumes).
func (s *Service) Subsumes(ctx context.Context, system, general, special string) (subsumes, known bool, err error) {
	if s.disabled.Load() {
		return false, false, nil
	}
	o, err := s.SubsumesOutcome(ctx, SubsumesParams{System: system, CodeA: general, CodeB: special})
	if notKnown(err) {
		return false, false, nil
	}
	return o == Equivalent || o == SubsumesCode, err == nil, err
}

// notKnown reports whether err says that something asked about is not known.
func notKnown(err error) bool {
	e, ok := outcome.From(err)
	return ok && len(e.Issues) > 0 && (e.Issues[0].Code == outcome.CodeNotFound || e.Issues[0].Code == outcome.CodeRequired)
}

// JSON returns the outcome as Parameters.
func (o Subsumption) JSON() ([]byte, error) {
	return parameters.Write([]parameters.Parameter{parameters.Code("outcome", string(o))})
}
