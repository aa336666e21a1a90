package validate

import (
	"fmt"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// report adds an issue about the element at the end of the path, with the profile
// that it goes against.
func (u *run) report(severity outcome.Severity, format string, args ...any) {
	u.reportAs(severity, outcome.CodeInvalid, format, args...)
}

// reportFailure reports what does not keep a resource from being stored: an error where that is
// asked for (Options.Strict), else a warning where these are.
func (u *run) reportFailure(format string, args ...any) {
	switch {
	case u.options.Strict:
		u.report(outcome.Failure, format, args...)
	case u.options.Warnings:
		u.report(outcome.Warning, format, args...)
	}
}

// reportAs is report with another issue code.
func (u *run) reportAs(severity outcome.Severity, code outcome.Code, format string, args ...any) {
	if len(u.issues) >= maxIssues {
		return
	}
	i := outcome.Issue{Severity: severity, Code: code, Diagnostics: fmt.Sprintf(format, args...) + u.reportedBy(), Expression: u.expression()}
	i.Line, i.Column = u.currentPlace()
	u.issues = append(u.issues, i)
}

// reportedBy names the profile that is being applied, "" for the base definitions.
func (u *run) reportedBy() string {
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

// reported tells whether the last issue is an error about the element at the end of the
// path.
func (u *run) reported() bool {
	n := len(u.issues)
	return n > 0 && u.issues[n-1].Severity == outcome.Failure && u.issues[n-1].Expression == u.expression()
}
