package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "sandbox-worker" {
		memory, _ := strconv.ParseInt(os.Args[2], 10, 64)
		if err := RunWorker(os.Stdin, os.Stdout, memory); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func pool(t testing.TB, execution time.Duration) *Pool {
	t.Helper()
	if !Supported {
		t.Skip("this platform cannot hold a script")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Pool{Command: []string{self, "sandbox-worker"}, Limits: Limits{Execution: execution, Memory: 128 << 20}, Size: 2}
	t.Cleanup(p.Close)
	return p
}

func TestRun(t *testing.T) {
	p := pool(t, time.Minute) // workers have a lower priority than other work of the machine
	host := func(_ context.Context, function string, args json.RawMessage) (json.RawMessage, *Failure) {
		if strings.Contains(string(args), "missing") {
			return nil, &Failure{Status: 404, Code: "not-found", Message: "Patient/missing does not exist", Outcome: json.RawMessage(`{"resourceType":"OperationOutcome","issue":[{"code":"not-found"}]}`)}
		}
		return json.RawMessage(`{"function":"` + function + `","args":` + string(args) + `}`), nil
	}
	for _, c := range []struct{ name, code, want string }{
		{"an arrow function", `(context) => ({sum: context.a + 1})`, `{"sum":2}`},
		{"a function without a name", "function (c) { return c.a }", `1`},
		{"a function with a name", "function double(c) { return c.a * 2 }", `2`},
		{"an async function with a name, behind comments", "// Doubles.\n/* twice */ async function double(c) { return c.a * 2 };\n", `2`},
		{"functions before the handler", "function two() { return 2 }\nfunction handler(c) { return two() * c.a }", `2`},
		{"an async function", `async (c) => { return [await fhir.read("Patient", "1")] }`, `[{"function":"read","args":{"type":"Patient","id":"1"}}]`},
		{"a program that defines handler", "const two = 2;\nfunction handler(c) { return two * c.a }", `2`},
		{"a program that defines handler as a constant", "var handler = (c) => c.b.x", `"y"`},
		{"undefined", `() => {}`, ``},
		{"null", `() => null`, ``},
		{"raw texts", `(c) => c.raw.resource`, `"{\"value\":1.10}"`},
		{"raw texts beside what they are", `(c) => [c.resource.value, c.raw.resource, c.raw.parameters]`, `[1.1,"{\"value\":1.10}","{\"parameters\":{}}"]`},
		{"several calls at once", `async () => (await Promise.all([1,2,3].map(i => fhir.read("Patient", String(i))))).map(r => r.args.id)`, `["1","2","3"]`},
		{"an error of the host is caught", `async () => { try { await fhir.read("Patient", "missing") } catch (e) { return [e.name, e.status, e.code, e.message, e.outcome.issue[0].code, e instanceof OperationOutcomeError] } }`,
			`["OperationOutcomeError",404,"not-found","Patient/missing does not exist","not-found",true]`},
		{"fhirpath", `() => fhirpath("name.given", {resourceType: "Patient", name: [{given: ["Jim", "X"]}]})`, `["Jim","X"]`},
		{"crypto", `() => crypto.randomUUID().length`, `36`},
		{"nothing of a process", `() => [typeof require, typeof process, typeof fetch, typeof setTimeout, typeof XMLHttpRequest, typeof Deno, typeof globalThis.std]`,
			`["undefined","undefined","undefined","undefined","undefined","undefined","undefined"]`},
		{"a legitimate use of memory", `() => { const a = []; for (let i = 0; i < 60; i++) a.push(new Uint8Array(1<<20)); return a.length }`, `60`},
		{"much garbage", `() => { let n = 0; for (let i = 0; i < 2e5; i++) { n += {a: [i, i]}.a.length } return n }`, `400000`},
		{"a regular expression", `() => "2024-05-06".match(/(?<y>\d+)-/).groups.y`, `"2024"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := p.Run(context.Background(), &Call{Code: c.code, Context: json.RawMessage(`{"a":1,"b":{"x":"y"}}`), Resource: json.RawMessage(`{"value":1.10}`), Parameters: json.RawMessage(`{"parameters":{}}`), Host: host})
			if err != nil || string(got) != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestFailuresSayWhere(t *testing.T) {
	p := pool(t, time.Minute)
	for _, c := range []struct {
		name, code   string
		kind         Kind
		message      string
		line, column int
	}{
		{"a thrown error", "(c) => {\n  throw new Error('no such dose')\n}", KindError, "no such dose", 2, 9},
		{"a reference error in a program", "function handler() {\n\n  return nothing.at.all\n}", KindError, "nothing is not defined", 3, 10},
		{"an error behind await", "async (c) => {\n  await null;\n  throw new TypeError('late')\n}", KindError, "late", 3, 9},
		{"a function without a name in one line", "function (c) { throw new Error('here') }", KindError, "here", 1, 22},
		{"a function with a name in one line", "function one(c) { throw new Error('here') }", KindError, "here", 1, 25},
		{"a program in one line", "function handler(c) { throw new Error('here') }", KindError, "here", 1, 29},
		{"a text", "() => { throw 'plain' }", KindError, "plain", 1, 9},
		{"an outcome", "() => { throw new OperationOutcomeError(409, 'conflict', 'busy') }", KindOutcome, "busy", 0, 0},
		{"code that does not parse", "(c) => {\n  return }}", KindSyntax, "", 2, 11},
		{"a function without a name that does not parse", "function (c) { return 1 + }", KindSyntax, "", 1, 27},
		{"a second function that does not parse", "function two() { return 2 }\nfunction handler(c) { return 1 + }", KindSyntax, "", 2, 34},
		{"a promise that never settles", "() => new Promise(() => {})", KindError, "never settled", 0, 0},
		{"no function", "42", KindError, "no function", 0, 0},
		{"what is no JSON", "() => Symbol('x')", KindError, "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Run(context.Background(), &Call{Code: c.code})
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatalf("error is %v", err)
			}
			if f.Kind != c.kind || !strings.Contains(f.Message, c.message) || c.line > 0 && (f.Line != c.line || f.Column != c.column) {
				t.Errorf("failure is %+v", f)
			}
		})
	}
	if err := p.Check(context.Background(), "(c) => c"); err != nil {
		t.Errorf("check: %v", err)
	}
	var f *Failure
	if err := p.Check(context.Background(), "(c) => {\n  return ]"); !errors.As(err, &f) || f.Line != 2 || f.Kind != KindSyntax {
		t.Errorf("check: %+v", err)
	}
}

// hostile are scripts that want the server's processor, memory or secrets: those that
// goja was tried with, and others. Each is a breach of time or memory, or an error.
var hostile = []struct{ name, code string }{
	{"an endless loop", `() => { while (true) {} }`},
	{"an endless loop at load", `while (true) {}`},
	{"an endless chain of microtasks", `() => { const f = () => Promise.resolve().then(f); return f() }`},
	{"an endless async loop", `async () => { while (true) await null }`},
	{"an array bomb", `() => { const a = []; while (true) a.push(new Array(1000).fill(1)) }`},
	{"an object bomb", `() => { const o = {}; for (let i = 0; ; i++) o["k" + i] = {i} }`},
	{"a string bomb", `() => { let s = "x"; while (true) s += s }`},
	{"a map bomb", `() => { const m = new Map(); for (let i = 0; ; i++) m.set(i, {}) }`},
	{"endless recursion", `() => { const f = () => f() + 1; return f() }`},
	{"recursion through map", `() => { const f = () => [1].map(f); return f() }`},
	{"recursion through a getter", `() => { const o = { get x() { return o.x } }; return o.x }`},
	{"recursion through toString", `() => { const o = { toString() { return "" + o } }; return "" + o }`},
	{"recursion through a proxy", `() => { const p = new Proxy({}, { get(t, k) { return p[k] } }); return p.x }`},
	{"recursion through toJSON", `() => { const o = { toJSON() { return JSON.stringify(o) } }; return o }`},
	{"a giant repeat", `() => 'x'.repeat(2**40)`},
	{"a large repeat", `() => 'x'.repeat(2**30)`},
	{"a giant buffer", `() => new ArrayBuffer(2**40)`},
	{"a large buffer", `() => new ArrayBuffer(2**31).byteLength`},
	{"a giant join", `() => Array(2**31).join("xx")`},
	{"deep JSON", `() => JSON.parse('['.repeat(5e6))`},
	{"a giant fill", `() => Array(2**32-1).fill(0)`},
	{"a regular expression that backtracks", `() => /^(?=((a+)+)$)\1b/.test("a".repeat(40) + "!")`},
	{"a regular expression that backtracks with groups", `() => /^(?!z)(a+)+$/.test("a".repeat(40) + "!")`},
	{"a deep array to JSON", `() => { let a = []; for (let i = 0; i < 1e6; i++) a = [a]; return a }`},
	{"a deep array to text", `() => { let a = []; for (let i = 0; i < 1e6; i++) a = [a]; return String(a) }`},
	{"a giant power", `() => String(3n ** 50000000n).length`},
	{"an endless power", `() => { let n = 3n; while (true) n = n * n }`},
	{"a sort that never ends", `() => [1,2,3].sort(() => { while (true) {} })`},
	{"an endless iterator", `() => [...{ [Symbol.iterator]() { return { next() { return { done: false, value: 1 } } } } }]`},
	{"an endless generator", `() => { function* g() { while (true) yield new Array(100) } return [...g()] }`},
	{"a giant length", `() => Array.from({ length: 2**32 }, () => 0)`},
	{"a giant result", `() => "x".repeat(20 << 20)`},
	{"a result with a hostile toJSON", `() => ({ toJSON() { while (true) {} } })`},
	{"a result with a hostile getter", `() => ({ get x() { while (true) {} } })`},
	{"an error with a hostile message", `() => { throw { get message() { while (true) {} } } }`},
	{"an error with a hostile toString", `() => { throw { toString() { while (true) {} } } }`},
	{"a thenable that never settles", `async () => { await { then() {} } }`},
	{"a thenable that loops", `async () => { await { then() { while (true) {} } } }`},
	{"a console bomb that loops", `() => { while (true) console.log("x".repeat(1000)) }`},
	{"a giant line that loops", `() => { for (;;) console.log("x".repeat(1 << 24)) }`},
	{"code that makes code", `() => { let s = "1"; for (;;) s = "(" + s + "+" + s + ")", eval(s) }`},
	{"deep code", `() => eval("(".repeat(1e6))`},
	{"a function that makes functions", `() => { for (;;) new Function("a".repeat(1000), "return 1") }`},
	{"too many calls of the host", `async () => { const a = []; for (let i = 0; i < 1e6; i++) a.push(fhir.read("Patient", "x")); await Promise.all(a) }`},
	{"a giant argument for the host", `async () => { await fhir.create({ x: "y".repeat(100 << 20) }) }`},
	{"a cyclic argument for the host", `async () => { const o = {}; o.o = o; await fhir.create(o) }`},
	{"a cyclic result", `() => { const o = {}; o.o = o; return o }`},
	{"a changed Promise", `async () => { Promise.prototype.then = () => { while (true) {} }; await fhir.read("Patient", "x"); while (true) {} }`},
	{"a replace that grows", `() => { let s = "a".repeat(1e4); for (;;) s = s.replace(/a/g, "aa") }`},
	{"a giant concat", `() => { let a = [1]; for (;;) a = a.concat(a) }`},
	{"a giant padStart", `() => "x".padStart(2**30, "yz").length && "x".padStart(2**31-1, "yz").length`},
	{"a typed array bomb", `() => { const a = []; for (;;) a.push(new Float64Array(1e6).fill(1)) }`},
	{"a weak map bomb", `() => { const m = new WeakMap(), k = []; for (;;) { const o = {}; k.push(o); m.set(o, k) } }`},
	{"a date loop", `() => { for (;;) new Date().toISOString() }`},
	{"a nested template", "() => { let s = ''; for (;;) s = `${s}${s}x` }"},
}

// The contract, Apps section 4: over a limit the answer comes within it and 1.5 s.
func TestHostileScriptsEnd(t *testing.T) {
	const limit = 300 * time.Millisecond
	p := pool(t, limit)
	before := resident(t)
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			_, err := p.Run(context.Background(), &Call{Code: c.code, Context: json.RawMessage(`{}`), Log: func(Line) {},
				Host: func(context.Context, string, json.RawMessage) (json.RawMessage, *Failure) {
					return json.RawMessage(`{}`), nil
				}})
			took := time.Since(start)
			var f *Failure
			if !errors.As(err, &f) {
				t.Fatalf("error is %v", err)
			}
			if f.Kind == KindWorker {
				t.Errorf("the failure is not told: %v", f)
			}
			if took > limit+1500*time.Millisecond+time.Second { // a second for a busy machine
				t.Errorf("took %s", took)
			}
			// Others go on.
			if got, err := p.Run(context.Background(), &Call{Code: `() => [typeof leak, [].flat ? 1 : 0]`}); err != nil || string(got) != `["undefined",1]` {
				t.Errorf("the next call: %s, %v", got, err)
			}
		})
	}
	if after := resident(t); after > before+64<<20 {
		t.Errorf("this process has grown from %d to %d MB", before>>20, after>>20)
	}
}

func resident(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestNothingIsLeftFromCallToCall(t *testing.T) {
	p := pool(t, 5*time.Second)
	p.Size = 1
	for _, code := range []string{
		`() => { globalThis.leak = 1; Object.prototype.leak = 2; Array.prototype.map = () => "stolen"; JSON.stringify = () => '"stolen"'; return 1 }`,
		`() => { Promise.prototype.then = null; Function.prototype.call = null; Object.freeze(globalThis); return 1 }`,
	} {
		if _, err := p.Run(context.Background(), &Call{Code: code}); err != nil {
			t.Fatal(err)
		}
		got, err := p.Run(context.Background(), &Call{Code: `async () => [typeof leak, ({}).leak === undefined, [1].map(x => x + 1), await Promise.resolve(3)]`})
		if err != nil || string(got) != `["undefined",true,[2],3]` {
			t.Errorf("%s leaves %s, %v", code, got, err)
		}
	}
}

func TestWaitingForTheHostIsNotTheScriptsTime(t *testing.T) {
	p := pool(t, 300*time.Millisecond)
	release := make(chan struct{})
	time.AfterFunc(900*time.Millisecond, func() { close(release) })
	got, err := p.Run(context.Background(), &Call{Code: `async () => { await fhir.read("Patient", "1"); return "done" }`,
		Host: func(context.Context, string, json.RawMessage) (json.RawMessage, *Failure) {
			<-release
			return nil, nil
		}})
	if err != nil || string(got) != `"done"` {
		t.Errorf("got %s, %v", got, err)
	}
	// The caller's own timeout ends a waiting call and the host calls of its script.
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	_, err = p.Run(ctx, &Call{Code: `async () => { await fhir.read("Patient", "1") }`,
		Host: func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, *Failure) {
			<-ctx.Done()
			close(ended)
			return nil, nil
		}})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	<-ended
}

// The contract, Apps section 4: "the server and other calls are never affected". As many endless
// scripts as there are workers, and more, hold a call up for less than a second on an idle machine;
// no more run at the same time than surge allows, and the workers beside end with them.
func TestEndlessScriptsHoldNobodyUp(t *testing.T) {
	t.Parallel()
	p := pool(t, 20*time.Second)
	p.Warm = p.Size
	for loops := p.Size; loops <= surge*p.Size-1; loops += surge*p.Size - 1 - p.Size {
		ctx, cancel := context.WithCancel(context.Background())
		on := make(chan struct{}, loops)
		var all sync.WaitGroup
		for range loops {
			all.Go(func() {
				_, _ = p.Run(ctx, &Call{Code: `() => { console.log("on"); while (true) {} }`, Log: func(Line) { on <- struct{}{} }})
			})
		}
		await(t, on, loops)
		began := time.Now()
		got, err := p.Run(context.Background(), &Call{Code: `() => 1`})
		took := time.Since(began)
		if err != nil || string(got) != "1" || took > 5*time.Second {
			t.Errorf("beside %d loops: %s, %v after %s", loops, got, err, took)
		}
		if took > time.Second {
			t.Logf("beside %d loops: %s, more than a second, on a busy machine", loops, took)
		}
		cancel()
		all.Wait()
		p.mu.Lock()
		if len(p.turns) != 0 || len(p.idle) > p.Size {
			t.Errorf("%d turns and %d idle workers are left", len(p.turns), len(p.idle))
		}
		p.mu.Unlock()
	}
	// With the last turn that there may be taken a call waits, as long as its caller does.
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	on := make(chan struct{}, surge*p.Size+2)
	for range surge*p.Size + 2 {
		all.Go(func() {
			_, _ = p.Run(ctx, &Call{Code: `() => { console.log("on"); while (true) {} }`, Log: func(Line) { on <- struct{}{} }})
		})
	}
	await(t, on, surge*p.Size)
	turns := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.turns)
	}
	short, end := context.WithTimeout(context.Background(), 5*patience)
	defer end()
	if _, err := p.Run(short, &Call{Code: `() => 1`}); !errors.Is(err, context.DeadlineExceeded) || turns() != surge*p.Size {
		t.Errorf("%d turns, and %v", turns(), err)
	}
	cancel()
	all.Wait()
	if got, err := p.Run(context.Background(), &Call{Code: `() => 2`}); err != nil || string(got) != "2" {
		t.Errorf("afterwards: %s, %v", got, err)
	}
}

// await waits until so many have told that they run.
func await(t *testing.T, on <-chan struct{}, n int) {
	t.Helper()
	late := time.After(15 * time.Second)
	for i := range n {
		select {
		case <-on:
		case <-late:
			t.Fatalf("%d of %d loops run", i, n)
		}
	}
}

// Calls that are short wait for each other, however many they are: no worker is added for them.
func TestShortScriptsTakeTurns(t *testing.T) {
	t.Parallel()
	p := pool(t, time.Minute)
	p.start()
	p.mu.Lock()
	defer p.mu.Unlock()
	start := func() *turn {
		n := &turn{pool: p, tree: new(tree), depth: 1}
		p.startTurn(n)
		n.began = n.began.Add(time.Minute) // it has just begun, whenever that is looked at
		return n
	}
	first, second := start(), start()
	if p.mayStart(&turn{depth: 1}) {
		t.Error("a call starts beside two that have just begun")
	}
	first.began = time.Now().Add(-patience)
	if !p.mayStart(&turn{depth: 1}) {
		t.Error("no call starts beside one that has run for long")
	}
	third := start()
	if p.mayStart(&turn{depth: 1}) {
		t.Error("two calls start beside one that has run for long")
	}
	p.mu.Unlock()
	for _, n := range []*turn{first, second, third} {
		p.leaveTurn(n)
	}
	p.mu.Lock()
	if len(p.turns) != 0 || len(p.byApp) != 0 {
		t.Errorf("%d turns are left", len(p.turns))
	}
}

// A flood of endless calls of one App, or of one client, leaves workers to all others.
func TestAppsAndClientsShareWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		apps, clients int // of the flood
		app, client   string
		together      int // turns that the flood has at most
	}{
		{"one App, without clients", 1, 0, "other", "", 8},
		{"one App and one client, seen by another App of the client", 1, 1, "other", "c0", 8},
		{"one App and one client, seen by another client of the App", 1, 1, "a0", "other", 8},
		{"ten Apps, without clients", 10, 0, "other", "", 14},
		{"ten Apps of one client", 10, 1, "other", "other", 12},
		{"ten Apps of one client, seen by one of the Apps", 10, 1, "a3", "other", 12},
		{"one App of ten clients", 1, 10, "other", "other", 14},
		{"twenty Apps of one client", 20, 1, "other", "other", 12},
	} {
		p := &Pool{Size: 4, Command: []string{"none"}}
		p.start()
		name := func(prefix string, i, n int) string {
			if n == 0 {
				return ""
			}
			return prefix + strconv.Itoa(i%n)
		}
		p.mu.Lock()
		for i := range 400 {
			n := &turn{pool: p, tree: new(tree), depth: 1, app: name("a", i, c.apps), client: name("c", i, c.clients)}
			if p.mayStart(n) {
				p.startTurn(n)
				n.began = n.began.Add(-time.Minute) // it is endless
			}
		}
		if n := len(p.turns); n > c.together || n < 8 {
			t.Errorf("%s: the flood has %d turns: want 8 to %d", c.name, n, c.together)
		}
		if !p.mayStart(&turn{depth: 1, app: c.app, client: c.client}) {
			t.Errorf("%s: another call does not start beside %d turns", c.name, len(p.turns))
		}
		p.mu.Unlock()
	}
}

// Trees of calls that wait for each other come to their end with few workers, whatever their shape.
func TestTreesOfCallsAreBounded(t *testing.T) {
	t.Parallel()
	p := pool(t, time.Minute)
	var calls atomic.Int64
	var code string
	var run func(ctx context.Context, context json.RawMessage) (json.RawMessage, error)
	run = func(ctx context.Context, text json.RawMessage) (json.RawMessage, error) {
		return p.Run(ctx, &Call{App: "a", Code: code, Context: text, Host: func(ctx context.Context, _ string, args json.RawMessage) (json.RawMessage, *Failure) {
			calls.Add(1)
			var a struct{ Params json.RawMessage }
			if err := json.Unmarshal(args, &a); err != nil {
				return nil, &Failure{Kind: KindError, Message: err.Error()}
			}
			value, err := run(ctx, a.Params)
			var f *Failure
			if errors.As(err, &f) {
				return nil, f
			}
			if err != nil {
				return nil, &Failure{Kind: KindOutcome, Status: 500, Code: "exception", Message: err.Error()}
			}
			return value, nil
		}})
	}
	code = `async (c) => c.depth <= 1 ? 1 : (await Promise.all(Array.from({length: c.fan}, () => fhir.search("X", {fan: c.fan, depth: c.depth - 1})))).reduce((a, b) => a + b, 0)`
	most := 0
	watch, end := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for watch.Err() == nil {
			p.mu.Lock()
			most = max(most, p.nested)
			p.mu.Unlock()
			time.Sleep(time.Millisecond) // it samples
		}
	})
	var all sync.WaitGroup
	for _, c := range []struct{ fan, depth, want int }{{2, 8, 128}, {2, 8, 128}, {10, 3, 100}, {3, 4, 27}, {1, 8, 1}} {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got, err := run(ctx, fmt.Appendf(nil, `{"fan":%d,"depth":%d}`, c.fan, c.depth))
			if err != nil || string(got) != strconv.Itoa(c.want) {
				t.Errorf("fan-out %d, depth %d: %s, %v; want %d", c.fan, c.depth, got, err, c.want)
			}
		})
	}
	all.Wait()
	end()
	watching.Wait()
	if most > maxNested || most == 0 {
		t.Errorf("%d nested calls ran at the same time: want at most %d", most, maxNested)
	}
	if _, err := run(t.Context(), json.RawMessage(`{"fan":1,"depth":9}`)); err == nil {
		t.Error("nine calls wait for each other")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nested != 0 || len(p.nestedOf) != 0 || len(p.byApp) != 0 || len(p.waiting) != 0 {
		t.Errorf("left: %d nested, %v, %v, %d waiting", p.nested, p.nestedOf, p.byApp, len(p.waiting))
	}
}

// The server works on few host calls of a script at a time, and on none while it has not taken
// the answers to the former ones.
func TestBytesOnTheirWayToAScript(t *testing.T) {
	t.Parallel()
	p := pool(t, time.Minute)
	p.Limits.Memory = 512 << 20
	var now, most, made atomic.Int64
	big := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	const calls = 64
	code := fmt.Sprintf(`async () => (await Promise.all(Array.from({length: %d}, () => fhir.search("X", {})))).length`, calls)
	got, err := p.Run(t.Context(), &Call{Code: code, Host: func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, *Failure) {
		release, err := HoldResult(ctx)
		if err != nil {
			return nil, &Failure{Kind: KindError, Message: err.Error()}
		}
		defer release()
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		turnOf(ctx).pool.mu.Lock()
		if bytes := turnOf(ctx).tree.bytes; bytes > maxTreeBytes+maxHosts<<20 {
			t.Errorf("%d bytes are on their way", bytes)
		}
		turnOf(ctx).pool.mu.Unlock()
		made.Add(1)
		return big, nil
	}})
	if err != nil || string(got) != "64" || made.Load() != calls {
		t.Errorf("%s, %v after %d calls", got, err, made.Load())
	}
	if most.Load() > maxHosts {
		t.Errorf("%d host calls at the same time: want at most %d", most.Load(), maxHosts)
	}
}

// A script or its caller gets an error for an answer or an argument that is too large.
func TestAnswersThatAreTooLarge(t *testing.T) {
	t.Parallel()
	p := pool(t, time.Minute)
	large := json.RawMessage(`"` + strings.Repeat("x", maxAnswer) + `"`)
	host := func(context.Context, string, json.RawMessage) (json.RawMessage, *Failure) { return large, nil }
	got, err := p.Run(t.Context(), &Call{Code: `async () => { try { await fhir.search("X", {}) } catch (e) { return [e.status, e.code, /too large/.test(e.message), e instanceof OperationOutcomeError] } }`, Host: host})
	if err != nil || string(got) != `[413,"too-long",true,true]` {
		t.Errorf("an answer: %s, %v", got, err)
	}
	var f *Failure
	if _, err := p.Run(t.Context(), &Call{Code: `() => 1`, Resource: append(large, large...)}); !errors.As(err, &f) || f.Status != 413 {
		t.Errorf("an argument: %v", err)
	}
	if _, err := p.Run(t.Context(), &Call{Code: `() => { throw new OperationOutcomeError(422, "invalid", "x", {issue: [{diagnostics: "y".repeat(80 << 20)}]}) }`}); !errors.As(err, &f) || f.Status != 422 && f.Kind != KindMemory {
		t.Errorf("an outcome: %v", err)
	}
	if got, err := p.Run(t.Context(), &Call{Code: `() => 2`}); err != nil || string(got) != "2" {
		t.Errorf("afterwards: %s, %v", got, err)
	}
}

func TestConsole(t *testing.T) {
	p := pool(t, 5*time.Second)
	var mu sync.Mutex
	var lines []string
	_, err := p.Run(context.Background(), &Call{Code: `(c) => { console.log("a", 1, {x: [1]}); console.warn("w"); console.error(new Error("e")); for (let i = 0; i < 1000; i++) console.log(i) }`,
		Log: func(l Line) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, l.Level+" "+l.Text)
		}})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != maxLines+1 || lines[0] != `info a 1 {"x":[1]}` || lines[1] != "warn w" || lines[2] != "error Error: e" || !strings.Contains(lines[maxLines], "left out") {
		t.Errorf("%d lines: %q … %q", len(lines), lines[:3], lines[len(lines)-1])
	}
}

// The end of a worker in the middle of a call is told to the caller, and the
// next call has another one.
func TestKilledWorker(t *testing.T) {
	p := pool(t, 10*time.Second)
	p.Size = 1
	if _, err := p.Run(context.Background(), &Call{Code: `() => 1`}); err != nil {
		t.Fatal(err)
	}
	w := p.idle[0]
	waits := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := p.Run(context.Background(), &Call{Code: `async () => { await fhir.read("Patient", "1"); while (true) {} }`,
			Host: func(context.Context, string, json.RawMessage) (json.RawMessage, *Failure) {
				close(waits)
				return nil, nil
			}})
		done <- err
	}()
	<-waits
	if err := syscall.Kill(w.command.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var f *Failure
	if err := <-done; !errors.As(err, &f) || f.Kind != KindWorker {
		t.Errorf("error is %v", err)
	}
	if got, err := p.Run(context.Background(), &Call{Code: `() => 2`}); err != nil || string(got) != "2" {
		t.Errorf("the next call: %s, %v", got, err)
	}
}

// A worker that is killed during its start is replaced. If none starts, the error differs from an error of the
// script.
func TestWorkersThatDoNotStart(t *testing.T) {
	t.Parallel()
	p := pool(t, 5*time.Second)
	mark := filepath.Join(t.TempDir(), "mark")
	p.Command = []string{"/bin/sh", "-c", `[ -e "$0" ] || { : > "$0"; exit 1; }; exec "$1" sandbox-worker "$2"`, mark, p.Command[0]}
	if err := p.Check(t.Context(), "() => 1"); err != nil {
		t.Errorf("check, when the first worker does not start: %v", err)
	}
	p = pool(t, 5*time.Second)
	p.Command = []string{"/bin/false"}
	if err := p.Check(t.Context(), "() => 1"); !errors.Is(err, ErrNoWorker) {
		t.Errorf("check without workers: %v", err)
	}
	if _, err := p.Run(t.Context(), &Call{Code: "() => 1"}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("run without workers: %v", err)
	}
}

func TestCloseLeavesNoProcess(t *testing.T) {
	p := pool(t, 5*time.Second)
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() { _, _ = p.Run(context.Background(), &Call{Code: `() => 1`}) })
	}
	done.Wait()
	p.mu.Lock()
	var all []*process
	all = append(all, p.idle...)
	p.mu.Unlock()
	p.Close()
	for _, w := range all {
		<-w.dead
	}
	if _, err := p.Run(context.Background(), &Call{Code: `() => 1`}); err == nil {
		t.Error("a closed pool runs scripts")
	}
}

func BenchmarkRun(b *testing.B) {
	p := pool(b, 5*time.Second)
	call := &Call{Code: `(c) => ({id: c.resource.id})`, Context: json.RawMessage(`{}`), Resource: json.RawMessage(`{"resourceType":"Patient","id":"1"}`)}
	for b.Loop() {
		if _, err := p.Run(context.Background(), call); err != nil {
			b.Fatal(err)
		}
	}
}

// The contract, Apps section 4: a limit reached in a function that the worker calls, and not the script, is reported as
// that limit, too.
func TestLimitsInWhatTheWorkerCalls(t *testing.T) {
	t.Parallel()
	p := pool(t, 200*time.Millisecond)
	const forever, memory = `for (;;);`, `const a = []; for (;;) a.push(new Uint8Array(1 << 22).fill(1))`
	for _, c := range []struct{ name, code string }{
		{"a getter of the result", `() => Object.defineProperty({}, "x", {enumerable: true, get() { LIMIT }})`},
		{"toJSON of the result", `() => ({toJSON() { LIMIT }})`},
		{"a proxy as result", `() => new Proxy({}, {ownKeys() { LIMIT }})`},
		{"message of what is thrown", `() => { throw {get message() { LIMIT }} }`},
		{"stack of what is thrown", `() => { throw {message: "m", get stack() { LIMIT }} }`},
		{"toString of what is thrown", `() => { throw {toString() { LIMIT }} }`},
		{"status of an outcome", `() => { const e = new OperationOutcomeError(422, "invalid", "y"); e.status = {valueOf() { LIMIT }}; throw e }`},
		{"outcome of an outcome", `() => { const e = new OperationOutcomeError(422, "invalid", "y"); e.outcome = {toJSON() { LIMIT }}; throw e }`},
		{"what a promise is rejected with", `async () => { throw {get message() { LIMIT }} }`},
		{"a line of the console", `() => { console.log({toJSON() { throw 1 }, toString() { LIMIT }}) }`},
		{"an argument of the host", `async () => { await fhir.create({toJSON() { LIMIT }}) }`},
		{"a resource for fhirpath", `() => fhirpath("id", {toJSON() { LIMIT }})`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Run(context.Background(), &Call{Code: strings.ReplaceAll(c.code, "LIMIT", forever)})
			var f *Failure
			if !errors.As(err, &f) || f.Kind != KindTime || !strings.Contains(f.Message, "max_execution_ms") {
				t.Errorf("over the time: %v", err)
			}
			// A busy machine may be out of time before it is out of memory.
			_, err = p.Run(context.Background(), &Call{Code: strings.ReplaceAll(c.code, "LIMIT", memory)})
			if f = nil; !errors.As(err, &f) || f.Kind != KindMemory && f.Kind != KindTime {
				t.Errorf("over the memory: %v", err)
			}
		})
	}
	if value, err := p.Run(context.Background(), &Call{Code: "() => 1"}); err != nil || string(value) != "1" {
		t.Errorf("afterwards: %s, %v", value, err)
	}
}

// The contract, Apps section 4: the limit is of the script's own time, and where others have the
// processor a script that takes none of it has somewhat longer, but less than 1.5 s.
func TestOwnTimeIsOfTheProcessor(t *testing.T) {
	if !Supported {
		t.Skip("no sandbox on this platform")
	}
	const limit, second = 5 * time.Second, time.Second
	for _, c := range []struct {
		name                      string
		clock, processor          time.Duration
		wantAtLeast, wantLessThan time.Duration
	}{
		{"at the beginning", 0, 0, limit - second, limit + 1},
		{"the machine is idle", limit, limit, -second, 1},
		{"others have the processor", limit, second, busyGrace - second/5, busyGrace + 1},
		{"nearly all of it was the script's", limit, limit - second/5, 0, second/5 + 1},
		{"for too long", limit + busyGrace, second, -second, 1},
		{"two threads of it", limit - second, limit + second, second / 2, second + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &ownTime{clock: c.clock, processor: c.processor, started: time.Now(), used: processorTime()}
			if left := o.timeLeft(limit); left < c.wantAtLeast || left >= c.wantLessThan {
				t.Errorf("%s are left, want %s to %s", left, c.wantAtLeast, c.wantLessThan)
			}
		})
	}
	if busyGrace >= killGrace {
		t.Error("the worker is killed before the script is interrupted")
	}
}

// A call has 200 lines, and a word about others where there were others.
func TestConsoleAtItsBound(t *testing.T) {
	t.Parallel()
	p := pool(t, 5*time.Second)
	for n, want := range map[int]int{maxLines - 1: maxLines - 1, maxLines: maxLines, maxLines + 1: maxLines + 1, maxLines + 50: maxLines + 1} {
		var lines []Line
		if _, err := p.Run(context.Background(), &Call{Code: fmt.Sprintf(`() => { for (let i = 1; i <= %d; i++) console.log("line " + i) }`, n), Log: func(l Line) { lines = append(lines, l) }}); err != nil {
			t.Fatal(err)
		}
		if len(lines) != want {
			t.Errorf("%d lines are %d, want %d", n, len(lines), want)
			continue
		}
		last := lines[len(lines)-1]
		if told := strings.Contains(last.Text, "left out"); told != (n > maxLines) || !told && last.Text != fmt.Sprint("line ", n) {
			t.Errorf("of %d lines the last is %q", n, last.Text)
		}
	}
}
