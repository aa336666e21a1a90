package validate

import (
	"cmp"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// reference checks ref-1, the form of a relative reference, and the type of the
// target. Spec: https://hl7.org/fhir/R4/references.html#literal,
// references-definitions.html#Reference.type.
func (u *run) reference(n fhir.Node, fp *fieldPlan) {
	r, ok := n.Element().(*r4.Reference)
	if !ok {
		return
	}
	ref := r.Reference.Text
	typ, ok := u.referenceTarget(r)
	if !ok {
		u.report(outcome.Failure, "constraint ref-1: %s names no contained resource", ref)
		return
	}
	if ref != "" && ref[0] != '#' && !strings.ContainsAny(ref, ":?") {
		t, id, _ := strings.Cut(ref, "/")
		id, version, versioned := strings.Cut(id, "/_history/")
		if typ == "" || t != typ || !fhir.ValidID(id) || versioned && !fhir.ValidID(version) {
			u.report(outcome.Failure, "expected a relative reference of the form [type]/[id], found %s", ref)
			return
		}
		if u.options.Exists != nil && !versioned {
			u.exists(typ, id)
		}
	}
	u.checkDocument(ref)
	switch said := saidType(r); {
	case typ == "":
	case said != "" && typ != said:
		u.report(outcome.Failure, "expected a reference to %s, which type says, found %s", said, ref)
	case !fp.allowsType(typ):
		u.report(outcome.Failure, "expected a reference to %s, found %s", strings.Join(fp.field.Targets, ", "), cmp.Or(ref, typ))
	}
}

// checkDocument reports a reference in a document that the document does not resolve. The resources to
// which the Composition refers must be in the document: this is an error. Others are a warning. A
// reference to another server stays as it is.
// Spec: https://hl7.org/fhir/R4/documents.html#content, bundle.html#references.
func (u *run) checkDocument(ref string) {
	if len(u.bundles) == 0 || !u.options.Strict && !u.options.Warnings {
		return
	}
	at := &u.bundles[len(u.bundles)-1]
	if at.bundle.Type_.Text != "document" || ref == "" || ref[0] == '#' || strings.Contains(ref, "?") ||
		strings.Contains(ref, ":") && !strings.HasPrefix(ref, "urn:") {
		return
	}
	if _, ok := u.resolved(ref); ok {
		return
	}
	first := at.entry == 0 && len(at.bundle.Entry) > 0 && at.bundle.Entry[0].Resource != nil && at.bundle.Entry[0].Resource.Type().Name == "Composition"
	switch {
	case first:
		u.reportFailure("expected a reference to a resource of the document, found %s: no entry has it", outcome.Clip(ref))
	case u.options.Warnings:
		u.report(outcome.Warning, "%s is in no entry of the document", outcome.Clip(ref))
	}
}

// referenceTarget returns the resource type that a reference points at, "" where it does not
// say; ok is false when it names a contained resource that is not there.
func (u *run) referenceTarget(r *r4.Reference) (typ string, ok bool) {
	if r.Reference.Text != "" && (r.Reference.Text[0] == '#' || len(u.bundles) > 0) {
		if n, ok := u.resolved(r.Reference.Text); ok {
			return n.T.Name, true
		}
		if r.Reference.Text[0] == '#' {
			return "", false
		}
	}
	for _, typ := range []string{fhirpath.ReferenceType(r.Reference.Text), saidType(r)} {
		if u.v.plans.model.Resources[typ] != nil {
			return typ, true
		}
	}
	return "", true
}

// saidType is Reference.type, without the base of R4's own types.
func saidType(r *r4.Reference) string { return strings.TrimPrefix(r.Type_.Text, coreDefinitions) }

func (u *run) exists(typ, id string) {
	ok, err := u.options.Exists(u.ctx, typ, id)
	if err == nil && !ok {
		u.report(outcome.Failure, "expected a reference to a resource of this server, %s/%s does not exist", typ, id)
	}
}

// checkTargets checks the target of a reference: its type, and where it is in the resource or
// the Bundle that is being validated, that it conforms to one of the target profiles.
// Spec: https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.type.targetProfile.
func (u *run) checkTargets(n fhir.Node, ref *typeRef) {
	r, ok := n.Element().(*r4.Reference)
	if !ok {
		return
	}
	typ, _ := u.referenceTarget(r)
	if typ == "" {
		return
	}
	target, here := u.resolved(r.Reference.Text)
	var names, profiles []string
	near := match{}
	for _, url := range ref.targets {
		name, known := u.targetType(url)
		if !known && here && u.options.Warnings {
			u.reportAs(outcome.Warning, outcome.CodeIncomplete, "profile %s %s; the target was not checked against it", url, u.v.profiles.reasonMissing(url))
		}
		if !known || name == "Resource" {
			return
		}
		names = append(names, name)
		if name != typ {
			continue
		}
		p := u.v.profiles.profileOf(url)
		if p == nil || !here {
			return
		}
		failures := u.failuresOf(target, p)
		if len(failures) == 0 {
			return
		}
		profiles = append(profiles, p.url)
		near = nearestMatch(near, match{verdict: out, why: firstFailure(failures), fails: len(failures)})
	}
	if len(profiles) > 0 {
		u.reportOnce("expected a reference to a resource that conforms to %s, %s does not: %s", strings.Join(profiles, " or "), r.Reference.Text, near.why)
		return
	}
	u.reportOnce("expected a reference to %s, found %s", strings.Join(names, ", "), cmp.Or(r.Reference.Text, typ))
}

// targetType returns the type that a target profile is for.
func (u *run) targetType(url string) (name string, known bool) {
	if u.v.profiles.isBase(url) {
		url, _, _ = strings.Cut(url, "|")
		return strings.TrimPrefix(url, coreDefinitions), true
	}
	if p := u.v.profiles.profileOf(url); p != nil {
		return p.typ, true
	}
	return "", false
}
