package terminology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// A supplement is a CodeSystem with content "supplement": designations and properties for the concepts of another code
// system. It has no codes of its own, so it is never used as a code system; its additions belong to the code system that
// it names. It adds no concept, no place in the hierarchy and no status.
// Spec: https://hl7.org/fhir/R4/codesystem.html#supplements.

const contentSupplement = "supplement"

// requiresSupplement says that a value set is not to be used without a supplement.
// Spec: https://hl7.org/fhir/R4/extension-valueset-supplement.html.
const requiresSupplement = "http://hl7.org/fhir/StructureDefinition/valueset-supplement"

// noSystem is the error of using a supplement as a code system.
func noSystem(cs *codeSystem) error {
	return outcome.New(outcome.CodeNotFound, "CodeSystem %s is a supplement of %s: it has no codes of its own, use %s", cs.url, cs.supplements, parseCanonical(cs.supplements).url)
}

// supplemented returns cs with what its supplements add.
func (sn *snapshot) supplemented(ctx context.Context, cs *codeSystem) (*codeSystem, error) {
	name := key{sn.number, "supplemented " + cs.url + "|" + cs.version}
	if v, ok := sn.parsed.GetIfPresent(name); ok {
		if merged, ok := v.value.(*codeSystem); ok {
			return merged, nil
		}
		return cs, nil
	}
	list, err := sn.supplementsOf(ctx, cs)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		sn.parsed.Set(name, sized{value: nil, size: 300})
		return cs, nil
	}
	merged := cs.with(list)
	sn.parsed.Set(name, sized{value: merged, size: merged.size})
	return merged, nil
}

// supplementsOf returns the supplements of a code system, stored ones before those
// of the packages, each by url.
func (sn *snapshot) supplementsOf(ctx context.Context, cs *codeSystem) ([]*codeSystem, error) {
	var out []*codeSystem
	add := func(s *codeSystem) {
		of := parseCanonical(s.supplements)
		if s.content == contentSupplement && of.url == cs.url && (of.version == "" || of.version == cs.version) &&
			!slices.ContainsFunc(out, func(o *codeSystem) bool { return o.url == s.url && s.url != "" }) {
			out = append(out, s)
		}
	}
	any, err := sn.anySupplement(ctx)
	if err != nil {
		return nil, err
	}
	if any {
		stored, err := sn.config.Resources.Supplements(ctx, cs.url)
		if err != nil {
			return nil, fmt.Errorf("look up the supplements of %s: %w", cs.url, err)
		}
		slices.SortFunc(stored, func(a, b fhir.Version) int { return b.LastUpdated.Compare(a.LastUpdated) })
		for _, v := range stored {
			s, err := parseCodeSystem(v.Body)
			if err != nil {
				return nil, outcome.UnprocessableContent(outcome.CodeInvalid, "CodeSystem/%s cannot be read as terminology", v.ID).Because(err)
			}
			add(s)
		}
	}
	packaged, err := sn.supplements()
	if err != nil {
		return nil, err
	}
	for _, url := range packaged[cs.url] {
		v, err := sn.resolve(ctx, typeCodeSystem, canonical{url: url})
		if err != nil {
			return nil, err
		}
		if s, ok := v.(*codeSystem); ok {
			add(s)
		}
	}
	slices.SortStableFunc(out, func(a, b *codeSystem) int { return strings.Compare(a.url, b.url) })
	return out, nil
}

// anySupplement reports whether any supplement is stored: a server without them
// asks once a snapshot, not for each code system.
func (sn *snapshot) anySupplement(ctx context.Context) (bool, error) {
	if !sn.anyStored() {
		return false, nil
	}
	name := key{sn.number, "any supplement"}
	if v, ok := sn.parsed.GetIfPresent(name); ok {
		return v.value.(bool), nil
	}
	list, err := sn.config.Resources.Supplements(ctx, "")
	if err != nil {
		return false, fmt.Errorf("look for supplements: %w", err)
	}
	sn.parsed.Set(name, sized{value: len(list) > 0, size: 100})
	return len(list) > 0, nil
}

// with returns a copy of cs with what supplements add to its concepts.
func (cs *codeSystem) with(supplements []*codeSystem) *codeSystem {
	out := &codeSystem{id: cs.id, url: cs.url, version: cs.version, name: cs.name, valueSet: cs.valueSet, complete: cs.complete, content: cs.content,
		fold: cs.fold, meaning: cs.meaning, properties: make(map[string]propertyDef), concepts: slices.Clone(cs.concepts), byCode: cs.byCode, size: cs.size + 64*len(cs.concepts)}
	for code, p := range cs.properties {
		out.properties[code] = p
	}
	for _, s := range supplements {
		out.used = append(out.used, canonical{s.url, s.version})
		out.size += s.size
		for code, p := range s.properties {
			if _, ok := out.properties[code]; !ok {
				out.properties[code] = p
			}
		}
		for i := range s.concepts {
			from := &s.concepts[i]
			at, ok := out.findConcept(from.code)
			if !ok {
				continue
			}
			to := &out.concepts[at]
			if from.display != "" && s.language != "" {
				to.designation = append(slices.Clip(to.designation), Designation{Language: s.language, Value: from.display})
			}
			to.designation = append(slices.Clip(to.designation), from.designation...)
			for _, p := range from.property {
				switch s.standardProperty(p.code) {
				case "parent", "child", "subsumedBy", "inactive", "notSelectable", "abstract", "status":
					continue
				}
				to.property = append(slices.Clip(to.property), p)
			}
		}
	}
	return out
}

// checkSupplements fails with not-found where a value set asks for a supplement that is not
// here.
func (sn *snapshot) checkSupplements(ctx context.Context, vs *ValueSet) error {
	for _, name := range vs.needs {
		c := parseCanonical(name)
		v, err := sn.resolve(ctx, typeCodeSystem, c)
		if err != nil {
			return err
		}
		if s, ok := v.(*codeSystem); !ok || s.content != contentSupplement {
			return outcome.UnprocessableContent(outcome.CodeNotFound, "ValueSet %s is not to be used without the supplement %s, which is not known here", outcome.Clip(vs.URL), outcome.Clip(c.String()))
		}
	}
	return nil
}
