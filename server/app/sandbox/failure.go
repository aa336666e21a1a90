package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/dop251/goja"
)

// Kind is why a script has failed.
type Kind string

// The kinds of failures.
const (
	KindSyntax  Kind = "syntax"  // the code does not parse
	KindError   Kind = "error"   // something was thrown
	KindOutcome Kind = "outcome" // an OperationOutcomeError was thrown
	KindTime    Kind = "timeout" // over Limits.Execution
	KindMemory  Kind = "memory"  // over Limits.Memory
	KindWorker  Kind = "worker"  // the process ended
)

// Failure is why a script did not come to its end. Line and Column are 1-based and 0
// where they are not known.
type Failure struct {
	Kind    Kind            `json:"kind"`
	Message string          `json:"message"`
	Line    int             `json:"line,omitempty"`
	Column  int             `json:"column,omitempty"`
	Status  int             `json:"status,omitempty"`  // of an outcome
	Code    string          `json:"code,omitempty"`    // of an outcome
	Outcome json.RawMessage `json:"outcome,omitempty"` // of an outcome
	// Fatal says that the worker is not to be used again.
	Fatal bool `json:"fatal,omitempty"`
}

func (f *Failure) Error() string {
	if f.Line > 0 {
		return fmt.Sprintf("%s (line %d, column %d)", f.Message, f.Line, f.Column)
	}
	return f.Message
}

// isBreach reports whether the worker is to be replaced.
func (f *Failure) isBreach() bool {
	return f != nil && (f.Fatal || f.Kind == KindTime || f.Kind == KindMemory || f.Kind == KindWorker)
}

func timeFailure(l Limits) *Failure {
	return &Failure{Kind: KindTime, Message: fmt.Sprintf("the script took more than %d ms (apps.sandbox.max_execution_ms)", l.Execution.Milliseconds())}
}

// setPosition takes the place of the innermost call of the handler's own code.
func (f *Failure) setPosition(stack []goja.StackFrame) {
	for _, s := range stack {
		if p := s.Position(); s.SrcName() == "handler.js" && p.Line > 0 {
			f.Line, f.Column = p.Line, p.Column
			return
		}
	}
}

var placePattern = regexp.MustCompile(`handler\.js:(\d+):(\d+)`)

// positionInStack reads the first place in the handler's code of a stack's text.
func positionInStack(stack string) (line, column int) {
	m := placePattern.FindStringSubmatch(stack)
	if m == nil {
		return 0, 0
	}
	line, _ = strconv.Atoi(m[1])
	column, _ = strconv.Atoi(m[2])
	return line, column
}

var syntaxPattern = regexp.MustCompile(`(?s)^(?:SyntaxError: )?(?:\S+: Line (\d+):(\d+) )?(.*?)(?: \(and \d+ more errors?\))?$`)

// syntaxFailure reads the error of the parser or the compiler.
func syntaxFailure(err error) *Failure {
	f := &Failure{Kind: KindSyntax, Message: cutText(err.Error(), 1000)}
	var compile *goja.CompilerSyntaxError
	if errors.As(err, &compile) && compile.File != nil {
		p := compile.File.Position(compile.Offset)
		f.Line, f.Column, f.Message = p.Line, p.Column, compile.Message
	}
	if m := syntaxPattern.FindStringSubmatch(f.Message); m != nil && m[1] != "" {
		f.Line, _ = strconv.Atoi(m[1])
		f.Column, _ = strconv.Atoi(m[2])
		f.Message = m[3]
	}
	return f
}
