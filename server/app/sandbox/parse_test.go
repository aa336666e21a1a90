package sandbox

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dop251/goja"
)

// parsing returns a runtime for parse.
func parsing(t testing.TB) *run {
	t.Helper()
	w := new(worker)
	var err error
	if w.prelude, err = goja.Compile("prelude.js", preludeSource, true); err != nil {
		t.Fatal(err)
	}
	r, err := w.fresh()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// same says where two values differ, which ECMAScript can tell.
const same = `(a, b) => {
	const differ = (a, b, at) => {
		if (!Object.is(typeof a, typeof b)) return at + ": " + typeof a + ", " + typeof b;
		if (a === null || typeof a !== "object") return Object.is(a, b) ? "" : at + ": " + String(a) + ", " + String(b);
		if (Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return at + ": prototypes";
		const x = Object.getOwnPropertyNames(a), y = Object.getOwnPropertyNames(b);
		if (x.join("\n") !== y.join("\n")) return at + ": " + x + ", " + y;
		for (const name of x) {
			const p = Object.getOwnPropertyDescriptor(a, name), q = Object.getOwnPropertyDescriptor(b, name);
			if (p.writable !== q.writable || p.enumerable !== q.enumerable || p.configurable !== q.configurable) return at + "." + name + ": flags";
			const d = differ(p.value, q.value, at + "." + name);
			if (d) return d;
		}
		return "";
	};
	return differ(a, b, "$");
}`

var parsed = []string{
	`{}`, `[]`, `null`, `true`, `false`, `""`, `"x"`, `0`, `-0`, `-0.0`, `1`, `1.5`, `1e3`, `1E+3`, `1e-7`, `9007199254740993`, `12345678901234567890`, `1e400`, `-1e400`, `1.10`,
	` { "a" : [ 1 , 2 , { } ] , "b" : null } ` + "\n\t\r", `{"a":1,"b":2,"a":3}`, `{"__proto__":{"x":1},"constructor":2,"toString":3,"":4}`, `{"1":"b","0":"a","x":"c"}`, `[[],[[]],{"a":[]}]`,
	`"é\u00e9\ud83d\ude00😀"`, `"\ud800"`, `"a\"b\\c\/d\b\f\n\r\t"`, `{"\u0061":1}`, `"` + "\xff" + `"`, `"` + "\u2028" + `"`, `{"length":3,"valueOf":{}}`,
	`{"resourceType":"Patient","id":"1","multipleBirthInteger":2,"name":[{"family":"Ångström","given":["Ada","B."]}],"extension":[{"url":"x","valueDecimal":1.0}]}`,
}

// Texts that are no JSON.
var broken = []string{``, ` `, `{`, `}`, `[1,]`, `[,1]`, `{"a":1,}`, `{"a"}`, `{a:1}`, `01`, `+1`, `.5`, `1.`, `1e`, `--1`, `tru`, `nul`, `truex`, `"a`, "\"a\nb\"", `"\x"`, `"\u12"`, `1 2`, `{} {}`, `[1`, `'a'`, `NaN`, `Infinity`, `0x1`, `1_000`}

// parse equals JSON.parse in its results and its errors.
func TestParse(t *testing.T) {
	t.Parallel()
	r := parsing(t)
	v, err := r.vm.RunString(same)
	if err != nil {
		t.Fatal(err)
	}
	differ, _ := goja.AssertFunction(v)
	for _, text := range parsed {
		if why := parsedOtherwise(t, r, differ, text); why != "" {
			t.Errorf("%s: parse and JSON.parse differ at %s", text, why)
		}
	}
	for _, text := range broken {
		if v, err := r.parse([]byte(text)); err == nil && text != "" {
			t.Errorf("%s is %v, want an error", text, v)
		}
	}
}

// parsedOtherwise says where parse and JSON.parse differ, "" where they do not.
func parsedOtherwise(t testing.TB, r *run, differ goja.Callable, text string) string {
	t.Helper()
	got, err := r.parse([]byte(text))
	want, failed := r.parseJSON(goja.Undefined(), r.vm.ToValue(text))
	if err != nil || failed != nil {
		if (err == nil) != (failed == nil) {
			t.Errorf("%q: %v, JSON.parse: %v", text, err, failed)
		}
		return ""
	}
	why, err := differ(goja.Undefined(), got, want)
	if err != nil {
		t.Fatal(err)
	}
	return why.String()
}

// To a script, a member that is read later equals one of JSON.parse.
func TestParseResource(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", readLater)
	text := `{"resourceType":"Patient","id":"1","text":{"div":"` + long + `\\\"}]"},"name":[{"family":"A"},{"family":"` + long + `","given":["B"]}],"active":true,"text":{"div":"` + long + `"}}`
	for _, tt := range []struct{ name, code, want string }{
		{"its members are in order", `r => Object.keys(r).join()`, "resourceType,id,text,name,active"},
		{"it is written as it was", `r => JSON.stringify(r) === JSON.stringify(JSON.parse(text))`, "true"},
		{"it is read", `r => r.name[1].given[0]`, "B"},
		{"it is one object", `r => (r.name[0].family = "C", r.name === r.name && r.name[0].family)`, "C"},
		{"a property as others once it is read", `r => (r.name, JSON.stringify(Object.getOwnPropertyDescriptor(r, "name").writable))`, "true"},
		{"it is an array", `r => Array.isArray(r.name)`, "true"},
		{"it is copied", `r => ({...r}).name[0].family + Object.assign({}, r).name[1].given`, "AB"},
		{"assigned before it is read", `r => (r.name = [1], r.name[0] + JSON.stringify(Object.getOwnPropertyDescriptor(r, "name").value))`, "1[1]"},
		{"deleted", `r => (delete r.name, "name" in r)`, "false"},
		{"assigned to an object behind it", `r => { const o = Object.create(r); o.name = 1; return o.name + r.name[0].family }`, "1A"},
		{"of a frozen object", `r => (Object.freeze(r), r.name === r.name && r.name[0].family)`, "A"},
		{"assigned to a frozen object", `r => { Object.freeze(r); try { r.name = 1 } catch (e) { return e instanceof TypeError && r.name[0].family } }`, "A"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := parsing(t)
			if err := r.vm.Set("text", text); err != nil {
				t.Fatal(err)
			}
			v, err := r.vm.RunString(tt.code)
			if err != nil {
				t.Fatal(err)
			}
			f, _ := goja.AssertFunction(v)
			resource, err := r.parseResource([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			got, err := f(goja.Undefined(), resource)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range append(broken, parsed...) {
		f.Add(text)
	}
	r := parsing(f)
	v, err := r.vm.RunString(same)
	if err != nil {
		f.Fatal(err)
	}
	differ, _ := goja.AssertFunction(v)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) == 0 || len(text) > 4096 || !json.Valid([]byte(text)) && len(text) > 100 {
			t.Skip()
		}
		if why := parsedOtherwise(t, r, differ, text); why != "" {
			t.Errorf("%q: parse and JSON.parse differ at %s", text, why)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	r := parsing(b)
	text := []byte(parsed[len(parsed)-1])
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
