// Package fhirpackage reads the definitions of a FHIR package and judges them.
// $install-package stores the accepted definitions on a running server; `kiln package
// add` adds them to the source tree. Both report the same issues.
//
// Published packages contain mistakes. Each mistake is an Issue with file and element. A
// definition that can be read is accepted all the same. Read refuses
//
//   - a definition that cannot be read,
//   - a search parameter that can never work,
//   - a search parameter whose code another one of the type has: a Conflict.
//
// A search parameter that repeats one of R4's is neither accepted nor refused: it is
// Existing.
//
// Package definitions reads the archive, and checks its limits and its digest.
// Spec: https://hl7.org/fhir/packages.html.
package fhirpackage

import (
	"context"
	"fmt"
	"slices"

	"kiln/definitions"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// MaxIssues is the highest number of issues in a report.
const MaxIssues = 1000

// Reader compares the definitions of a package with those of a server or a source tree.
type Reader struct {
	Model *fhir.Model
	// Validate fails with the issues of a resource that breaks a rule of FHIR.
	Validate func(ctx context.Context, r fhir.Resource) error
	// Parameter fails if a search parameter can never work.
	Parameter func(p *r4.SearchParameter) error
	// Warnings returns warnings about a search parameter that can work.
	Warnings func(p *r4.SearchParameter) []outcome.Issue
	// Restates reports whether R4 has a search parameter of the same code, type and
	// values for each resource type of p.
	Restates func(p *r4.SearchParameter) bool
	// Used returns the URL of the search parameter that has a code of a resource type.
	Used func(typ, code string) (url string, ok bool)
}

// Content is the result of Read.
type Content struct {
	Accepted  []Definition
	Refused   []*definitions.File
	Existing  []*definitions.File // search parameters that R4 has already
	Issues    []Issue
	Conflicts []Conflict
}

// Definition is a definition that can be stored or compiled in.
type Definition struct {
	File     *definitions.File
	Resource fhir.Resource
}

// Issue is a mistake in one file.
type Issue struct {
	File string // name in the archive
	outcome.Issue
}

// Conflict is a code of a resource type that two search parameters have.
type Conflict struct {
	Code         string // "Patient.birthdate"
	Used, Hidden string // URLs of the two; Read refuses the hidden one
}

// Read judges the definitions of an archive, in its order. If strict is set and a file
// has an error, it fails with invalid, 422, and the errors of all files.
func (r Reader) Read(ctx context.Context, a *definitions.Archive, strict bool) (*Content, error) {
	got := new(Content)
	var wrong []outcome.Issue
	note := func(file string, issue outcome.Issue) {
		got.Issues = append(got.Issues, Issue{file, issue})
		if issue.Severity == outcome.Failure || issue.Severity == outcome.Fatal {
			issue.Diagnostics = file + ": " + issue.Diagnostics
			wrong = append(wrong, issue)
		}
	}
	for _, p := range a.Problems {
		note(p.File, outcome.Issue{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: p.Reason})
	}
	own := make(map[[2]string]string) // type and code -> URL of the search parameter of this package
	for i := range a.Files {
		f := &a.Files[i]
		resource, err := fhir.Decode(r.Model, f.Body)
		readable := err == nil
		if readable {
			err = r.Validate(ctx, resource)
		}
		if p, ok := resource.(*r4.SearchParameter); ok && readable {
			if r.Parameter(p) != nil {
				readable = false
			} else if c := r.conflicts(p, own); len(c) > 0 {
				if r.Restates(p) {
					got.Existing = append(got.Existing, f)
					continue
				}
				got.Conflicts = append(got.Conflicts, c...)
				got.Refused = append(got.Refused, f)
				continue
			} else {
				for _, issue := range r.Warnings(p) {
					note(f.Name, issue)
				}
			}
		}
		if err != nil {
			e, ok := outcome.From(err)
			if !ok {
				return nil, fmt.Errorf("%s: %w", f.Name, err)
			}
			for _, issue := range e.Issues {
				note(f.Name, issue)
			}
		}
		if readable {
			got.Accepted = append(got.Accepted, Definition{f, resource})
		} else {
			got.Refused = append(got.Refused, f)
		}
	}
	if strict && len(wrong) > 0 {
		return nil, outcome.Unprocessable(wrong[:min(len(wrong), MaxIssues)])
	}
	return got, nil
}

// conflicts returns a Conflict for each type of p that has another search parameter of
// the same code. If there is none, conflicts adds the codes of p to own.
func (r Reader) conflicts(p *r4.SearchParameter, own map[[2]string]string) []Conflict {
	var out []Conflict
	types := r.types(p)
	for _, typ := range types {
		code := [2]string{typ, p.Code.Text}
		used, ok := r.Used(typ, p.Code.Text)
		if !ok || used == p.URL.Text {
			used, ok = own[code]
		}
		if ok && used != p.URL.Text {
			out = append(out, Conflict{typ + "." + p.Code.Text, used, p.URL.Text})
		}
	}
	if len(out) == 0 {
		for _, typ := range types {
			own[[2]string{typ, p.Code.Text}] = p.URL.Text
		}
	}
	return out
}

// types returns the resource types of a search parameter, sorted. The bases Resource and
// DomainResource mean all of their types.
func (r Reader) types(p *r4.SearchParameter) []string {
	var out []string
	for i := range p.Base {
		base := p.Base[i].Text
		if base != "Resource" && base != "DomainResource" {
			out = append(out, base)
			continue
		}
		for name, resource := range r.Model.Resources {
			if base == "Resource" || resource.Type().Base == base {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
