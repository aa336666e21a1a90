package fhirpath

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Phase says when an expression failed.
type Phase uint8

// The phases.
const (
	Syntax    Phase = iota // Parse: not a FHIRPath expression
	Semantic               // Compile: unknown function or element, types that cannot fit
	Execution              // Eval: the data do not fit, or the environment lacks something
	Limit                  // Eval: more steps or memory than allowed
)

// String names the phase.
func (p Phase) String() string {
	return [...]string{"syntax error", "semantic error", "execution error", "limit exceeded"}[p]
}

// Error is why an expression cannot be parsed, compiled or evaluated.
type Error struct {
	Phase  Phase
	Source string // the whole expression
	Pos    int    // byte offset in Source
	Reason string
	Cause  error // of a failing resolver or terminology, or nil
}

// Error names the phase, the line and column (both from 1, in characters) and
// the reason.
func (e *Error) Error() string {
	line, column := e.Position()
	where := fmt.Sprintf("column %d", column)
	if strings.Contains(e.Source, "\n") {
		where = fmt.Sprintf("line %d column %d", line, column)
	}
	return fmt.Sprintf("FHIRPath %s at %s: %s", e.Phase, where, e.Reason)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Position is the line and column of the error, both from 1, in characters.
func (e *Error) Position() (line, column int) {
	pos := min(e.Pos, len(e.Source))
	before := e.Source[:pos]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}
