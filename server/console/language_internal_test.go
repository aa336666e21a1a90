package console

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// German is complete: each text of a template or of the code has a translation with the same values.
func TestGermanIsComplete(t *testing.T) {
	t.Parallel()
	texts := make(map[string]string)
	collect := func(pattern, expression string) {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(string(b), -1) {
				texts[m[1]] = file
			}
		}
	}
	collect("*.html", `\bT "((?:[^"\\]|\\.)*)"`)
	collect("*.go", `\bT\("((?:[^"\\]|\\.)*)"`)
	collect("*.go", `v\.problem\([^,]+, "((?:[^"\\]|\\.)*)"`)
	for _, s := range mainScreens {
		texts[s.name] = "screens.go"
	}
	for _, c := range comparisons {
		texts[c.label] = "search.go"
	}
	for _, c := range resultColumns {
		texts[c.name] = "searchcolumns.go"
	}
	verb := regexp.MustCompile(`%[a-z]`)
	for text, file := range texts {
		german, ok := germanTexts[text]
		if !ok {
			t.Errorf("%s: %q has no German text", file, text)
			continue
		}
		if want, got := len(verb.FindAllString(text, -1)), len(verb.FindAllString(german, -1)); want != got {
			t.Errorf("%q has %d values, its German text %d", text, want, got)
		}
	}
	if len(texts) < 200 {
		t.Errorf("only %d texts were found", len(texts))
	}
}

// An address that was sealed is the same each time, and cannot be changed, or used for another purpose.
func TestSeal(t *testing.T) {
	t.Parallel()
	s, err := newSealer([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	sealed := s.seal("search", "name=Ashford")
	if again := s.seal("search", "name=Ashford"); again != sealed {
		t.Errorf("two addresses: %s and %s", sealed, again)
	}
	if text, ok := s.open("search", sealed); !ok || text != "name=Ashford" {
		t.Errorf("opened %q, %v", text, ok)
	}
	if _, ok := s.open("request", sealed); ok {
		t.Error("an address is good for another purpose")
	}
	for i := range len(sealed) {
		for _, c := range "AZaz09-_" {
			changed := sealed[:i] + string(c) + sealed[i+1:]
			if _, ok := s.open("search", changed); ok && changed != sealed {
				t.Fatalf("a changed address opens: %s", changed)
			}
		}
	}
}

// A return address is a path below /console.
func TestReturnPath(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/console": "/console", "/console/Patient/1": "/console/Patient/1", "/console?x=1": "/console?x=1", "//evil.example/console": "/console", "https://evil.example": "/console",
		"/consolex": "/console", "/console/../auth/logout": "/console", `/console\evil`: "/console", "javascript:alert(1)": "/console", "": "/console", "/console//evil": "/console", "/console/%2e%2e/x": "/console",
	} {
		if got := returnPath(in); got != want {
			t.Errorf("%q returns to %q, want %q", in, got, want)
		}
	}
}

// What is left of a narrative can be read and nothing else.
func TestCleanNarrative(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`<div xmlns="http://www.w3.org/1999/xhtml" id="main" class="alert" style="position:fixed"><p onclick="x()">a &amp; b</p></div>`: `<div><p>a &amp; b</p></div>`,
		`<div><a href="javascript:alert(1)">x</a><a href="https://example.org/?a=1&amp;b=2">y</a></div>`:                                `<div><a>x</a><a href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer">y</a></div>`,
		`<div><img src="x" onerror="alert(1)"/><script>alert(1)</script><b>z</b><h1>H</h1></div>`:                                       `<div><b>z</b><strong>H</strong></div>`,
		`<div><form action="/console/sign-out"><button>Sign out</button></form>`:                                                        `<div>Sign out</div>`,
		`<div><table><tr><td colspan="2" width="1">1</td></tr></table></div></div></main><p>out</p>`:                                    `<div><table><tr><td colspan="2">1</td></tr></table></div>`,
	} {
		if got := string(cleanNarrative(in)); got != want {
			t.Errorf("%s\n gives %s\n want  %s", in, got, want)
		}
	}
}
