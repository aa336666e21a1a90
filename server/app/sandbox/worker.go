package sandbox

import (
	"bufio"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/dop251/goja"
	"github.com/dop251/goja/parser"
	"github.com/google/uuid"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

const (
	maxCallStack = 1000     // calls in each other, of goja
	maxLines     = 200      // of the console, in one call; one more says that there were others
	maxLine      = 4 << 10  // bytes of one line
	maxResult    = 16 << 20 // bytes of a result
	maxOutcome   = 1 << 20  // bytes of the outcome of an error that is thrown
	maxHostCalls = 64       // on their way at one time
	keptPrograms = 64
)

//go:embed prelude.js
var preludeSource string

// worker is the process that scripts run in.
type worker struct {
	out      io.Writer
	mu       sync.Mutex // of out
	in       *bufio.Reader
	prelude  *goja.Program
	programs map[string]compiled
	next     *run   // for the next call, made while the worker is idle
	base     uint64 // live heap of the idle worker, in bytes
	watchdog watchdog
}

// RunWorker is the life of a worker process: it takes calls from in, one after the other,
// and answers on out, until in ends.
func RunWorker(in io.Reader, out io.Writer, memory int64) error {
	debug.SetGCPercent(400) // of a small heap; the limit bounds a large one
	debug.SetMaxStack(64 << 20)
	debug.SetMemoryLimit(memory + memory/4)
	w := &worker{out: out, in: bufio.NewReader(in), programs: make(map[string]compiled)}
	var err error
	if w.prelude, err = goja.Compile("prelude.js", preludeSource, true); err != nil {
		return err
	}
	if w.next, err = w.fresh(); err != nil {
		return err
	}
	runtime.GC()
	w.base = liveHeap()
	if err := confineProcess(memory); err != nil {
		return fmt.Errorf("confine the worker: %w", err)
	}
	if err := w.send(&frame{Kind: frameResult}); err != nil { // ready
		return err
	}
	for {
		f, err := receive(w.in, maxFrame)
		if err != nil {
			return nil // the host has ended
		}
		result := &frame{Kind: frameResult}
		switch f.Kind {
		case frameCheck:
			_, result.Failure = w.compile(string(f.Code))
		case frameCall:
			result.Value, result.Failure = w.call(f)
		default:
			continue // an answer that came too late
		}
		w.watchdog.mu.Lock()
		result.Demoted = w.watchdog.demoted
		w.watchdog.mu.Unlock()
		if err := w.send(result); err != nil {
			return err
		}
		if result.Demoted || result.Failure.isBreach() {
			return nil // this process may contain data of the script
		}
		if w.next == nil {
			if w.next, err = w.fresh(); err != nil {
				return err
			}
		}
	}
}

func (w *worker) send(f *frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return send(w.out, f)
}

// compile parses code: a program, or a function alone.
func (w *worker) compile(code string) (compiled, *Failure) {
	if p, ok := w.programs[code]; ok {
		return p, nil
	}
	p, failure := compileHandler(code)
	if failure != nil {
		return p, failure
	}
	if len(w.programs) >= keptPrograms {
		clear(w.programs)
	}
	w.programs[code] = p
	return p, nil
}

// compileHandler parses a program, or one function alone: also with a name, which as a
// program would define that name and be of no use.
func compileHandler(code string) (compiled, *Failure) {
	p, err := goja.Compile("handler.js", code, false)
	begin := functionPattern.FindStringSubmatch(code)
	if begin == nil || err == nil && begin[1] == "handler" {
		if err != nil {
			return compiled{}, syntaxFailure(err)
		}
		return compiled{p, false}, nil
	}
	alone, failed := goja.Compile("handler.js", "("+strings.TrimRight(code, "; \t\r\n")+"\n)", false)
	switch {
	case failed == nil:
		return compiled{alone, true}, nil
	case err == nil:
		return compiled{p, false}, nil
	case begin[1] != "":
		return compiled{}, syntaxFailure(err)
	}
	f := syntaxFailure(failed)
	compiled{alone: true}.correct(f)
	return compiled{}, f
}

// compiled is code that was parsed.
type compiled struct {
	*goja.Program
	alone bool // a function, within parentheses
}

// correct has a place in the first line say where it is in the code.
func (c compiled) correct(f *Failure) {
	if c.alone && f.Line == 1 && f.Column > 1 {
		f.Column--
	}
}

// functionPattern is the beginning of code that may be a function alone, behind comments;
// its group is the name.
var functionPattern = regexp.MustCompile(`^(?:\s|//[^\n]*\n|/\*(?s:.*?)\*/)*(?:async\s+)?function\b\s*([\p{L}_$][\p{L}\p{N}_$]*)?`)

// errors that interrupt a script.
var (
	errTime   = errors.New("time")
	errMemory = errors.New("memory")
)

// run is one call of a script.
type run struct {
	w       *worker
	vm      *goja.Runtime
	limits  Limits
	pending map[int]*promise
	lastID  int
	lines   int
	// The built-in functions as they were before any script ran.
	parseJSON, stringify goja.Callable
	errorClass           *goja.Object // OperationOutcomeError
	errorPrototype       *goja.Object
	fetch                goja.Value

	own ownTime
}

type promise struct{ resolve, reject func(any) error }

// fresh makes a runtime that no script has seen.
func (w *worker) fresh() (*run, error) {
	r := &run{w: w, vm: goja.New(), pending: make(map[int]*promise)}
	r.vm.SetMaxCallStackSize(maxCallStack)
	r.vm.SetRandSource(randomFloat)
	return r, r.globals()
}

// call runs a script.
func (w *worker) call(f *frame) (value json.RawMessage, failure *Failure) {
	program, failure := w.compile(string(f.Code))
	if failure != nil {
		return nil, failure
	}
	r := w.next
	w.next = nil
	r.limits = Limits{Execution: time.Duration(f.Execution) * time.Millisecond, Memory: f.Memory}
	defer func() {
		r.pause()
		if p := recover(); p != nil {
			value, failure = nil, r.broken(p)
		}
	}()
	r.resume()
	result, err := r.do(program.Program, f)
	if err == nil {
		value, err = r.json(result)
	}
	if err != nil {
		failure = r.failure(err)
		program.correct(failure)
		return nil, failure
	}
	return value, nil
}

// broken returns the reason why the runtime did not return from a script: a limit reached in a getter, or in another
// function called by the worker itself, is a panic.
func (r *run) broken(p any) *Failure {
	var interrupted *goja.InterruptedError
	var overflow *goja.StackOverflowError
	failure := &Failure{Kind: KindError, Message: fmt.Sprintf("the script broke its runtime: %.200v", p)}
	if err, ok := p.(error); ok && (errors.As(err, &interrupted) || errors.As(err, &overflow)) {
		failure = r.failure(err)
	}
	failure.Fatal = true
	return failure
}

// busyGrace is how long a script may be over Limits.Execution by the clock while it is not by the
// processor, which others may have: workers come behind requests. It is less than killGrace.
const busyGrace = 700 * time.Millisecond

// ownTime is the script's own time.
type ownTime struct {
	clock     time.Duration // until started
	processor time.Duration // of the process, until started
	started   time.Time     // zero while the script waits
	used      time.Duration // processor time of the process at started
}

// timeLeft is how long the script may go on, before one looks again.
func (o *ownTime) timeLeft(limit time.Duration) time.Duration {
	clock := o.clock + time.Since(o.started)
	if clock < limit {
		return limit - clock
	}
	return min(limit-(o.processor+processorTime()-o.used), limit+busyGrace-clock)
}

// resume and pause count the script's own time.
func (r *run) resume() {
	d := &r.w.watchdog
	d.mu.Lock()
	defer d.mu.Unlock()
	r.own.started, r.own.used = time.Now(), processorTime()
	d.watch(r)
}

func (r *run) pause() {
	d, o := &r.w.watchdog, &r.own
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.started.IsZero() {
		return
	}
	d.run = nil
	o.clock += time.Since(o.started)
	o.processor += processorTime() - o.used
	o.started = time.Time{}
}

// do runs the program, calls its handler and waits for what that promises.
func (r *run) do(program *goja.Program, f *frame) (goja.Value, error) {
	if f.Fetch {
		if err := r.vm.Set("fetch", r.fetch); err != nil {
			return nil, err
		}
	}
	last, err := r.vm.RunProgram(program)
	if err != nil {
		return nil, err
	}
	handler, ok := goja.AssertFunction(r.vm.Get("handler"))
	if !ok {
		handler, ok = goja.AssertFunction(last)
	}
	if !ok {
		return nil, errors.New("the code is no function and defines no function handler")
	}
	context, err := r.context(f)
	if err != nil {
		return nil, err
	}
	result, err := handler(goja.Undefined(), context)
	if err != nil {
		return nil, err
	}
	return r.settle(result)
}

// context makes the argument of the handler.
func (r *run) context(f *frame) (goja.Value, error) {
	value, err := r.parse(f.Context)
	if err != nil || len(f.Context) == 0 {
		return value, err
	}
	context, raw := value.ToObject(r.vm), r.vm.NewObject()
	if len(f.Resource) > 0 {
		resource, err := r.parseResource(f.Resource)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(context.Set("resource", resource), raw.Set("resource", string(f.Resource))); err != nil {
			return nil, err
		}
	}
	if len(f.Parameters) > 0 {
		if err := raw.Set("parameters", string(f.Parameters)); err != nil {
			return nil, err
		}
	}
	return value, context.Set("raw", raw)
}

// json makes JSON of a value, nil of undefined and null.
func (r *run) json(v goja.Value) (json.RawMessage, error) {
	if v == nil || goja.IsUndefined(v) || goja.IsNull(v) {
		return nil, nil
	}
	text, err := r.stringify(goja.Undefined(), v)
	if err != nil {
		return nil, err
	}
	if goja.IsUndefined(text) { // a function, a symbol
		return nil, errors.New("the handler's result is no JSON")
	}
	if s := text.String(); len(s) <= maxResult {
		return json.RawMessage(s), nil
	}
	return nil, fmt.Errorf("the result is larger than %d bytes", maxResult)
}

// globals sets the global objects of the script.
func (r *run) globals() error {
	vm := r.vm
	// The source map comment of a program would be a path to read.
	vm.SetParserOptions(parser.WithDisableSourceMaps)
	object := vm.Get("JSON").ToObject(vm)
	r.parseJSON, _ = goja.AssertFunction(object.Get("parse"))
	r.stringify, _ = goja.AssertFunction(object.Get("stringify"))
	prelude, err := vm.RunProgram(r.w.prelude)
	if err != nil {
		return err
	}
	build, _ := goja.AssertFunction(prelude)
	made, err := build(goja.Undefined(), vm.ToValue(r.host))
	if err != nil {
		return err
	}
	parts := made.ToObject(vm)
	r.fetch = parts.Get("fetch")
	r.errorClass = parts.Get("OperationOutcomeError").ToObject(vm)
	r.errorPrototype = r.errorClass.Get("prototype").ToObject(vm)
	console := vm.NewObject()
	for _, name := range []string{"log", "info", "debug", "warn", "error"} {
		level := map[string]string{"log": "info"}[name]
		if level == "" {
			level = name
		}
		if err := console.Set(name, r.console(level)); err != nil {
			return err
		}
	}
	crypto := vm.NewObject()
	if err := crypto.Set("randomUUID", func() string { return uuid.NewString() }); err != nil {
		return err
	}
	globals := map[string]any{"fhir": parts.Get("fhir"), "OperationOutcomeError": r.errorClass, "console": console, "crypto": crypto, "fhirpath": r.fhirpath}
	for name, value := range globals {
		if err := vm.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// console returns a function that logs a line.
func (r *run) console(level string) func(goja.FunctionCall) goja.Value {
	return func(c goja.FunctionCall) goja.Value {
		if r.lines++; r.lines > maxLines+1 {
			return goja.Undefined()
		}
		var b strings.Builder
		for i, v := range c.Arguments {
			if i > 0 {
				b.WriteByte(' ')
			}
			text := ""
			if o, ok := v.(*goja.Object); ok && o.ClassName() != "Error" && o.ClassName() != "Function" {
				if s, err := r.stringify(goja.Undefined(), v); err == nil && !goja.IsUndefined(s) {
					text = s.String()
				}
			}
			if text == "" {
				text = v.String()
			}
			if b.WriteString(cutText(text, maxLine)); b.Len() > maxLine {
				break
			}
		}
		text := cutText(b.String(), maxLine)
		if r.lines > maxLines {
			level, text = "warn", fmt.Sprintf("further lines are left out: a call has at most %d", maxLines)
		}
		if err := r.w.send(&frame{Kind: frameLine, texts: texts{Level: []byte(level), Text: []byte(text)}}); err != nil {
			panic(r.vm.ToValue("the host is gone"))
		}
		return goja.Undefined()
	}
}

// cutText bounds a text.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// host calls a function of the host and returns a promise of its answer.
func (r *run) host(c goja.FunctionCall) goja.Value {
	p, resolve, reject := r.vm.NewPromise()
	if len(r.pending) >= maxHostCalls {
		panic(r.vm.NewTypeError("more than %d calls of fhir at one time", maxHostCalls))
	}
	args, err := r.stringify(goja.Undefined(), c.Argument(1))
	if err != nil {
		panic(err)
	}
	r.lastID++
	f := &frame{Kind: frameHost, ID: r.lastID, texts: texts{Function: []byte(c.Argument(0).String()), Args: []byte(args.String())}}
	if err := r.w.send(f); err != nil {
		panic(r.vm.NewTypeError("the call is too large"))
	}
	r.pending[r.lastID] = &promise{resolve, reject}
	return r.vm.ToValue(p)
}

// settle waits until a promise is kept, and returns its value; any other value is
// itself.
func (r *run) settle(v goja.Value) (goja.Value, error) {
	p, ok := v.Export().(*goja.Promise)
	if !ok {
		return v, nil
	}
	for p.State() == goja.PromiseStatePending {
		if len(r.pending) == 0 {
			return nil, errors.New("the promise of the handler is never settled")
		}
		r.pause()
		if err := r.w.send(&frame{Kind: frameWait}); err != nil {
			return nil, err
		}
		f, err := receive(r.w.in, maxFrame)
		if err != nil {
			return nil, errors.New("the host is gone")
		}
		r.resume()
		if err := r.answered(f); err != nil {
			return nil, err
		}
	}
	if p.State() == goja.PromiseStateRejected {
		return nil, &thrown{p.Result()}
	}
	return p.Result(), nil
}

// answered settles the promise that the host has answered.
func (r *run) answered(f *frame) error {
	p := r.pending[f.ID]
	delete(r.pending, f.ID)
	if p == nil {
		return nil
	}
	if f.Failure == nil {
		v, err := r.parse(f.Value)
		if err != nil {
			return err
		}
		return p.resolve(v)
	}
	outcome, err := r.parse(f.Failure.Outcome)
	if err != nil {
		return err
	}
	e, err := r.vm.New(r.errorClass, r.vm.ToValue(f.Failure.Status), r.vm.ToValue(f.Failure.Code), r.vm.ToValue(f.Failure.Message), outcome)
	if err != nil {
		return err
	}
	return p.reject(e)
}

// thrown is the reason of a rejected promise.
type thrown struct{ value goja.Value }

func (t *thrown) Error() string { return "rejected" }

// fhirpath evaluates an expression on a resource and returns an array.
func (r *run) fhirpath(c goja.FunctionCall) goja.Value {
	fail := func(err error) {
		panic(r.vm.NewTypeError("fhirpath: %s", cutText(err.Error(), 500)))
	}
	resource, err := r.stringify(goja.Undefined(), c.Argument(1))
	if err != nil {
		panic(err)
	}
	values, err := evaluate(c.Argument(0).String(), resource.String())
	if err != nil {
		fail(err)
	}
	v, err := r.parse(values)
	if err != nil {
		fail(err)
	}
	return v
}

// failure says why a script has ended.
func (r *run) failure(err error) *Failure {
	var interrupted *goja.InterruptedError
	var exception *goja.Exception
	var rejected *thrown
	switch {
	case errors.As(err, &interrupted) && interrupted.Value() == errMemory:
		return memoryFailure(r.limits)
	case errors.As(err, &interrupted):
		return timeFailure(r.limits)
	case errors.As(err, &exception):
		f := r.thrown(exception.Value())
		if stack := exception.Stack(); len(stack) > 0 && f.Line == 0 {
			f.setPosition(stack)
		}
		return f
	case errors.As(err, &rejected):
		return r.thrown(rejected.value)
	}
	var overflow *goja.StackOverflowError
	if errors.As(err, &overflow) {
		return &Failure{Kind: KindError, Message: "the functions call each other too deeply"}
	}
	return &Failure{Kind: KindError, Message: cutText(err.Error(), 1000)}
}

// thrown reads a value thrown by a script. Its getters run within the limits.
func (r *run) thrown(v goja.Value) *Failure {
	f := &Failure{Kind: KindError}
	var limit *goja.InterruptedError
	failed := r.vm.Try(func() {
		o, ok := v.(*goja.Object)
		if !ok {
			if v != nil {
				f.Message = cutText(v.String(), 1000)
			}
			return
		}
		if m := o.Get("message"); m != nil && !goja.IsUndefined(m) {
			f.Message = cutText(m.String(), 1000)
		} else {
			f.Message = cutText(v.String(), 1000)
		}
		if stack := o.Get("stack"); stack != nil {
			f.Line, f.Column = positionInStack(cutText(stack.String(), 4000))
		}
		if r.isOutcome(o) {
			f.Kind = KindOutcome
			f.Status, f.Code = int(o.Get("status").ToInteger()), cutText(o.Get("code").String(), 40)
			text, err := r.stringify(goja.Undefined(), o.Get("outcome"))
			if err == nil && len(text.String()) <= maxOutcome {
				f.Outcome = json.RawMessage(text.String())
			}
			errors.As(err, &limit)
		}
	})
	if limit != nil {
		return r.failure(limit)
	}
	if failed != nil || f.Message == "" {
		f.Message = "the script failed without a message"
	}
	return f
}

// isOutcome reports whether o is an OperationOutcomeError.
func (r *run) isOutcome(o *goja.Object) bool {
	for p := o.Prototype(); p != nil; p = p.Prototype() {
		if p.SameAs(r.errorPrototype) {
			return true
		}
	}
	return false
}

// evaluate returns the result of an expression on the JSON of a resource, as an array.
func evaluate(expression, resource string) (json.RawMessage, error) {
	r, err := fhir.Decode(r4.Model, []byte(resource))
	if err != nil {
		return nil, err
	}
	input := fhir.NodeOf(r)
	p, err := fhirpath.Compile(expression, fhirpath.Options{Model: r4.Model, Input: input.T, Strict: true})
	if err != nil {
		return nil, err
	}
	values, err := p.Eval(new(fhirpath.Context), input)
	if err != nil {
		return nil, err
	}
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = v.AppendJSON(b)
	}
	return append(b, ']'), nil
}

func randomFloat() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
}
