package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

// more are further scripts that try to reach forbidden things.
var more = []struct{ name, code string }{
	{"a prototype of every object", `async () => { Object.defineProperty(Object.prototype, "then", { get() { while (true) {} } }); return {} }`},
	{"a prototype whose setter loops", `() => { Object.defineProperty(Object.prototype, "raw", { set() { while (true) {} } }); return ({}).raw = 1 }`},
	{"a proxy as result", `() => new Proxy({}, { ownKeys() { while (true) {} } })`},
	{"a proxy of proxies", `() => { let p = {}; for (;;) p = new Proxy(p, {}) }`},
	{"a promise of promises", `() => { const f = () => new Promise(r => r(f())); return f() }`},
	{"a race that nobody wins", `() => Promise.race([])`},
	{"a regular expression with back references", `() => /(a*)*\1*$(?!x)b/.test("a".repeat(60))`},
	{"a giant regular expression", `() => new RegExp("(".repeat(1e6))`},
	{"BigInt of a giant text", `() => BigInt("9".repeat(1e8))`},
	{"BigInt shifted", `() => 1n << 9999999999n`},
	{"BigInt products", `() => { let n = 1n; for (let i = 1n; ; i++) n *= i }`},
	{"console of a getter that loops", `() => console.log({ get x() { while (true) {} } })`},
	{"console of a deep value", `() => { let a = []; for (let i = 0; i < 1e6; i++) a = [a]; console.log(a); while (true) {} }`},
	{"a result of keys without end", `() => { const o = {}; for (let i = 0; ; i++) o["key" + i] = "x".repeat(100) }`},
	{"an error of errors", `() => { let e = new Error("x"); for (;;) e = new Error("x", { cause: e }) }`},
	{"an outcome with a hostile status", `() => { throw new OperationOutcomeError({ valueOf() { while (true) {} } }, "x", "y") }`},
	{"the constructor of functions", `() => { (async () => {}).constructor("while (true) {}")() }`},
	{"the host's own function", `() => { while (true) fhir.read.constructor("return this")().x = [] }`},
	{"a symbol that converts", `() => "" + { [Symbol.toPrimitive]() { while (true) {} } }`},
	{"an array species", `() => { class A extends Array { static get [Symbol.species]() { while (true) {} } } return new A(1, 2).map(x => x) }`},
	{"a sparse array", `() => { const a = []; a[2**32 - 2] = 1; return a.reverse() }`},
	{"a JSON reviver", `() => JSON.parse('[[[[1]]]]', () => { while (true) {} })`},
	{"a tagged template", "() => { const f = () => { while (true) {} }; return f`x` }"},
	{"a label that loops", `() => { a: for (;;) { continue a } }`},
	{"fhirpath without end", `() => { for (;;) fhirpath("name.given", { resourceType: "Patient", name: [{ given: ["x"] }] }) }`},
	{"fhirpath of a giant", `() => { for (;;) fhirpath("descendants()", { resourceType: "Patient", name: Array.from({length: 10000}, () => ({ given: ["x"] })) }) }`},
	{"uuids without end", `() => { for (;;) crypto.randomUUID() }`},
	{"a frozen world", `() => { Object.freeze(Object.prototype); while (true) {} }`},
}

func TestMoreHostileScriptsEnd(t *testing.T) {
	const limit = 300 * time.Millisecond
	p := pool(t, limit)
	for _, c := range more {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			_, err := p.Run(context.Background(), hostileCall(c.code))
			var f *Failure
			if !errors.As(err, &f) || f.Kind == KindWorker {
				t.Fatalf("error is %v", err)
			}
			if took := time.Since(start); took > limit+2500*time.Millisecond { // a second for a busy machine
				t.Errorf("took %s", took)
			}
		})
	}
}

func hostileCall(code string) *Call {
	return &Call{Code: code, Context: json.RawMessage(`{}`), Log: func(Line) {},
		Host: func(context.Context, string, json.RawMessage) (json.RawMessage, *Failure) {
			return json.RawMessage(`{}`), nil
		}}
}

// Many hostile scripts in a row leave no process, descriptor or megabyte behind.
// KILN_HOSTILE is their number.
func TestHostileScriptsLeaveNothing(t *testing.T) {
	n := 40
	if text := os.Getenv("KILN_HOSTILE"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	p := pool(t, 50*time.Millisecond)
	p.Size = 4
	all := append(append([]struct{ name, code string }{}, hostile...), more...)
	if _, err := p.Run(context.Background(), hostileCall(`() => 1`)); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	memory, files := resident(t), descriptors(t)
	work := make(chan string)
	var done sync.WaitGroup
	for range p.Size {
		done.Go(func() {
			for code := range work {
				_, err := p.Run(context.Background(), hostileCall(code))
				var f *Failure
				if err != nil && !errors.As(err, &f) {
					t.Errorf("%s: %v", code, err)
				}
			}
		})
	}
	for i := range n {
		work <- all[i%len(all)].code
	}
	close(work)
	done.Wait()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		runtime.GC()
		children, fds, now := offspring(t), descriptors(t), resident(t)
		if children <= p.Size && fds <= files+3*p.Size && now <= memory+48<<20 {
			t.Logf("%d scripts: %d processes, %d descriptors (%d before), %d MB (%d before)", n, children, fds, files, now>>20, memory>>20)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d scripts leave %d processes, %d descriptors (%d before), %d MB (%d before)", n, children, fds, files, now>>20, memory>>20)
		}
	}
}

// descriptors is how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// offspring is how many children this process has, dead ones that nobody has reaped included.
func offspring(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	n := 0
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%s/children", task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		inNumber := false
		for _, c := range b {
			if c == ' ' {
				inNumber = false
			} else if !inNumber {
				inNumber = true
				n++
			}
		}
	}
	return n
}
