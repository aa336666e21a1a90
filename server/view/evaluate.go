package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// Cell is the value of one column in one row.
type Cell struct {
	Set   bool // a value, or a list; false is null
	Value fhirpath.Value
	List  []fhirpath.Value // of a collection
}

// Row has a cell for each column. It and its cells are valid until emit returns.
type Row []Cell

// Error says why a resource has no rows.
type Error struct {
	Resource string // "Patient/1"
	Column   string // "" for a fault outside of columns
	Reason   string
	Cause    error
}

// Error names resource, column and reason.
func (e *Error) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("%s: %s", e.Resource, e.Reason)
	}
	return fmt.Sprintf("%s, column %s: %s", e.Resource, e.Column, e.Reason)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// ErrStop is what emit returns to end the evaluation without an error.
var ErrStop = errors.New("view: enough rows")

// selection is a compiled select: fields, nested selections and a union, for each item of an iteration.
type selection struct {
	each        *fhirpath.Program // forEach; nil for the input itself
	orNull      bool
	repeat      []*fhirpath.Program
	fields      []field
	parts       []*selection
	union       []*selection
	first, last int // its columns
}

// field is the path of one column.
type field struct {
	column  int
	program *fhirpath.Program
	index   bool // %rowIndex alone
}

// Evaluator evaluates one view for one goroutine, resource by resource.
type Evaluator struct {
	View *View
	// LocalBases are the URLs of this server, for getReferenceKey().
	LocalBases []string

	ctx      fhirpath.Context
	emit     func(Row) error
	row      Row
	values   []fhirpath.Value // a stack, as paths are evaluated inside each other
	steps    int
	resource string
}

// maxRepeatDepth bounds the nesting of repeat. JSON that is read has at most 128 levels.
const maxRepeatDepth = 256

// maxVisits bounds the nodes that one resource's selections visit between two rows.
const maxVisits = 10_000_000

// NewEvaluator returns an evaluator. Its paths see now as the time of evaluation.
func (v *View) NewEvaluator(ctx context.Context, localBases []string, now time.Time) *Evaluator {
	return &Evaluator{View: v, LocalBases: localBases, row: make(Row, len(v.Columns)), ctx: fhirpath.Context{Context: ctx, LocalBases: localBases, Now: now}}
}

// Eval calls emit with each row of a resource, which is of the view's type. It fails with an *Error,
// or with the error of emit; ErrStop ends it without an error.
func (e *Evaluator) Eval(r fhir.Resource, emit func(Row) error) error {
	node := fhir.NodeOf(r)
	e.ctx.Resource, e.ctx.RootResource, e.ctx.RowIndex = node, node, 0
	e.emit, e.values, e.steps = emit, e.values[:0], 0
	e.resource = node.T.Name + "/" + r.Header().ID.Text
	focus := fhirpath.NodeValue(node)
	for i := range e.View.Wheres {
		ok, err := e.passes(&e.View.Wheres[i], focus)
		if err != nil || !ok {
			return err
		}
	}
	for i := range e.row {
		e.row[i] = Cell{}
	}
	return e.expand(e.View.root, focus, 0, func() error { e.steps = 0; return e.emit(e.row) })
}

func (e *Evaluator) fail(column, format string, args ...any) error {
	return &Error{Resource: e.resource, Column: column, Reason: fmt.Sprintf(format, args...)}
}

func (e *Evaluator) failed(column string, err error) error {
	if cause := e.ctx.Context.Err(); cause != nil {
		return cause
	}
	return &Error{Resource: e.resource, Column: column, Reason: err.Error(), Cause: err}
}

// passes reports whether a where is true.
func (e *Evaluator) passes(w *Where, focus fhirpath.Value) (bool, error) {
	base := len(e.values)
	var err error
	if e.values, err = w.Program.AppendEval(e.values, &e.ctx, focus); err != nil {
		return false, e.failed("", err)
	}
	list := e.values[base:]
	e.values = e.values[:base]
	switch len(list) {
	case 0:
		return false, nil
	case 1:
		if valueless(list[0]) {
			return false, nil
		}
		b, ok := list[0].Bool()
		if !ok {
			return false, e.fail("", "where needs a Boolean, %s gives %s", w.Source, list[0].TypeName())
		}
		return b, nil
	}
	return false, e.fail("", "where needs one Boolean, %s gives %d items", w.Source, len(list))
}

// expand sets the cells of a selection for each of its items, and calls next for each combination.
func (e *Evaluator) expand(s *selection, focus fhirpath.Value, index int, next func() error) error {
	switch {
	case s.each != nil:
		return e.expandEach(s, focus, index, next)
	case s.repeat != nil:
		position := 0
		return e.expandRepeat(s, focus, index, 0, &position, next)
	}
	return e.item(s, focus, index, next)
}

func (e *Evaluator) expandEach(s *selection, focus fhirpath.Value, index int, next func() error) error {
	base := len(e.values)
	defer func() { e.values = e.values[:base] }()
	e.ctx.RowIndex = index
	var err error
	if e.values, err = s.each.AppendEval(e.values, &e.ctx, focus); err != nil {
		return e.failed("", err)
	}
	n := len(e.values) - base
	if n == 0 && s.orNull {
		for i := s.first; i < s.last; i++ {
			e.row[i] = Cell{}
		}
		e.nullIndexes(s)
		return next()
	}
	for i := range n {
		if err := e.visit(); err != nil {
			return err
		}
		if err := e.item(s, e.values[base+i], i, next); err != nil {
			return err
		}
	}
	return nil
}

// nullIndexes sets the cells of a null row that are %rowIndex, which is 0 there.
func (e *Evaluator) nullIndexes(s *selection) {
	for _, f := range s.fields {
		if f.index {
			c := &e.View.Columns[f.column]
			e.row[f.column] = Cell{Set: true, Value: fhirpath.Integer(0)}
			if c.Collection {
				e.row[f.column] = Cell{Set: true, List: []fhirpath.Value{fhirpath.Integer(0)}}
			}
		}
	}
	for _, p := range s.parts {
		if p.each == nil && p.repeat == nil {
			e.nullIndexes(p)
		}
	}
}

// visit counts a node, and ends evaluations that take too long or whose client has left.
func (e *Evaluator) visit() error {
	if e.steps++; e.steps > maxVisits {
		return e.fail("", "stopped after %d items without a row", maxVisits)
	}
	if e.steps&1023 == 0 {
		return e.ctx.Context.Err()
	}
	return nil
}

func (e *Evaluator) expandRepeat(s *selection, focus fhirpath.Value, index, depth int, position *int, next func() error) error {
	if depth > maxRepeatDepth {
		return e.fail("", "repeat does not end: it is nested more than %d times", maxRepeatDepth)
	}
	for _, p := range s.repeat {
		base := len(e.values)
		e.ctx.RowIndex = index
		var err error
		if e.values, err = p.AppendEval(e.values, &e.ctx, focus); err != nil {
			return e.failed("", err)
		}
		n := len(e.values) - base
		for i := range n {
			if err := e.visit(); err != nil {
				return err
			}
			at := *position
			*position++
			found := e.values[base+i]
			if err := e.item(s, found, at, next); err != nil {
				return err
			}
			if err := e.expandRepeat(s, found, index, depth+1, position, next); err != nil {
				return err
			}
		}
		e.values = e.values[:base]
	}
	return nil
}

// item sets the cells of one item, then the cells of nested selections, then the cells of the union.
func (e *Evaluator) item(s *selection, focus fhirpath.Value, index int, next func() error) error {
	base := len(e.values)
	for i := range s.fields {
		if err := e.setCell(&s.fields[i], focus, index); err != nil {
			return err
		}
	}
	err := e.cross(s, 0, focus, index, next)
	e.values = e.values[:base]
	return err
}

// cross combines the nested selections from the i-th on, with the union behind them.
func (e *Evaluator) cross(s *selection, i int, focus fhirpath.Value, index int, next func() error) error {
	if i < len(s.parts) {
		if i+1 == len(s.parts) && s.union == nil {
			return e.expand(s.parts[i], focus, index, next)
		}
		return e.expand(s.parts[i], focus, index, func() error { return e.cross(s, i+1, focus, index, next) })
	}
	if s.union == nil {
		return next()
	}
	for _, branch := range s.union {
		if err := e.expand(branch, focus, index, next); err != nil {
			return err
		}
	}
	return nil
}

// setCell evaluates one column. Its values stay on the stack as long as its row.
func (e *Evaluator) setCell(f *field, focus fhirpath.Value, index int) error {
	c := &e.View.Columns[f.column]
	base := len(e.values)
	e.ctx.RowIndex = index
	var err error
	if e.values, err = f.program.AppendEval(e.values, &e.ctx, focus); err != nil {
		return e.failed(c.Name, err)
	}
	k := base
	for i := base; i < len(e.values); i++ {
		v := e.values[i]
		if valueless(v) {
			continue
		}
		if reason := c.checkValue(v); reason != "" {
			return e.fail(c.Name, "%s", reason)
		}
		e.values[k] = v
		k++
	}
	e.values = e.values[:k]
	list := e.values[base:k:k]
	if c.Collection {
		e.row[f.column] = Cell{Set: true, List: list}
		return nil
	}
	switch len(list) {
	case 0:
		e.row[f.column] = Cell{}
	case 1:
		e.row[f.column] = Cell{Set: true, Value: list[0]}
	default:
		return e.fail(c.Name, "the path gives %d values, and the column is no collection", len(list))
	}
	e.values = e.values[:base]
	return nil
}

// valueless reports whether v is a primitive with an id or extensions alone.
func valueless(v fhirpath.Value) bool {
	n, ok := v.Node()
	return ok && n.T.Kind.Primitive() && n.Text() == ""
}
