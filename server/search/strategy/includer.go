package strategy

import (
	"fmt"
	"slices"

	"kiln/server/outcome"
	"kiln/server/search/plan"
	"kiln/server/search/session"
)

// includer adds the includes of a page to its result, round after round.
type includer struct {
	x      *execution
	result *Result
	seen   []int64 // surrogates of the matches, and of the includes of earlier rounds

	// Of the present round:
	found   []int64 // surrogates of the includes
	iterate bool    // only `:iterate` adds includes
	limit   int     // of rows of one statement
}

// addRows adds includes to the result. It returns false after the last resource that fits. With cut, rows are missing because
// of the limit of a statement.
func (n *includer) addRows(rows []session.Row, cut bool) bool {
	r := n.result
	for _, row := range rows {
		if slices.Contains(n.found, row.RID) {
			continue
		}
		if len(r.Includes) == plan.IncludeLimit {
			cut = true
			break
		}
		r.Includes = append(r.Includes, row.Version)
		n.found = append(n.found, row.RID)
	}
	if cut {
		r.Issues = append(r.Issues, outcome.Issue{
			Severity: outcome.Warning, Code: outcome.CodeTooCostly,
			Diagnostics: fmt.Sprintf("more than %d resources would be included on this page; the rest was left out: ask for fewer matches with _count, or for the included resources by themselves", plan.IncludeLimit),
		})
	}
	return !cut
}
