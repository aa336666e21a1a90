// Package fhirpackage reads the definitions of a FHIR package and judges them. It is
// the one reader of packages: $install-package brings what it accepts to a running
// server, `kiln package add` to the source tree, and both report what it found.
//
// Packages as they are published have mistakes. What is wrong with a definition is an
// Issue with file and element; the definition is accepted all the same where it can be
// read. Refused are a definition that cannot be read, a search parameter that could
// never work, and one with a code that another search parameter of the type has
// already: a Conflict.
//
// The archive itself, its limits and its digest are read by package definitions.
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

// MaxIssues bounds what a report tells of a package.
const MaxIssues = 1000

// Reader holds definitions against what is there already.
type Reader struct {
	Model *fhir.Model
	// Validate fails with the issues of a resource that has errors by the rules.
	Validate func(ctx context.Context, r fhir.Resource) error
	// Parameter fails where a search parameter can never work.
	Parameter func(p *r4.SearchParameter) error
	// Used is the URL of the search parameter that has a code of a resource type.
	Used func(typ, code string) (url string, ok bool)
}

// Content is what a package is found to hold.
type Content struct {
	Accepted  []Definition
	Refused   []*definitions.File
	Issues    []Issue
	Conflicts []Conflict
}

// Definition is a definition that can be stored or compiled in.
type Definition struct {
	File     *definitions.File
	Resource fhir.Resource
}

// Issue is what is wrong in one file.
type Issue struct {
	File string // its name in the archive
	outcome.Issue
}

// Conflict is a code of a resource type that two search parameters have.
type Conflict struct {
	Code         string // "Patient.birthdate"
	Used, Hidden string // their URLs; the hidden one is refused
}

// Read judges the definitions of an archive, in its order. With strict it fails with
// invalid, 422, and the errors of every file, where there is one.
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
				got.Conflicts = append(got.Conflicts, c...)
				got.Refused = append(got.Refused, f)
				continue
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

// conflicts are the types of p whose search parameter of the same code has another
// URL. Where there are none, own learns those of p.
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

// types are the resource types that a search parameter is for, sorted, those of the
// bases Resource and DomainResource too.
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
