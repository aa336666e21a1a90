package validate

import (
	"fmt"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// report adds an issue about the element at the end of the path, with the profile
// that it goes against.
func (u *run) report(severity outcome.Severity, format string, args ...any) {
	if len(u.issues) >= maxIssues {
		return
	}
	i := outcome.Issue{Severity: severity, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...) + u.by(), Expression: u.expression()}
	i.Line, i.Column = u.place()
	u.issues = append(u.issues, i)
}

// by names the profile that is being applied, "" for the base definitions.
func (u *run) by() string {
	if u.applied == nil {
		return ""
	}
	return " (profile " + u.applied.url + ")"
}

// expression is the path to the element that is being validated.
func (u *run) expression() string {
	return fhir.Expression(func(yield func(string, int) bool) {
		for _, s := range u.path {
			if !yield(s.name, s.index) {
				return
			}
		}
	})
}
