package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const source = `package x

import "testing"

func TestGood(t *testing.T) { t.Log("said by a good test") }

func TestBad(t *testing.T) { t.Error("said by a bad test") }

func TestSkippedFirst(t *testing.T) { t.Skip("promtool is not installed") }

func TestSkippedSecond(t *testing.T) {
	t.Run("part", func(t *testing.T) { t.Skip("promtool is not installed") })
}

func TestSilent(t *testing.T) { t.SkipNow() }
`

// make test ends with the number of skipped tests and the reason of each.
func TestSummary(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module kiln/x\n\ngo 1.26\n", "x_test.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		c := exec.Command("go", append([]string{"test", "-json"}, args...)...)
		c.Dir = dir
		in, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := summarize(in, &out, false); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // it fails where a test does
		return out.String()
	}
	got := run("./...")
	for _, want := range []string{"said by a bad test", "--- FAIL: TestBad", "FAIL\tkiln/x\t", "3 tests were skipped:\n    2  promtool is not installed\n         x TestSkippedFirst\n         x TestSkippedSecond/part\n    1  no reason is given\n         x TestSilent\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the output lacks %q:\n%s", want, got)
		}
	}
	for _, no := range []string{"said by a good test", "=== RUN", "--- PASS", "--- SKIP"} {
		if strings.Contains(got, no) {
			t.Errorf("the output has %q:\n%s", no, got)
		}
	}
	if got := run("-run", "TestGood", "./..."); !strings.HasPrefix(got, "ok  \tkiln/x\t") || !strings.HasSuffix(got, "no test was skipped\n") {
		t.Errorf("of a good package:\n%s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "y_test.go"), []byte("package x\n\nvar x int = \"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run("./..."); !strings.Contains(got, "y_test.go:3:13") || !strings.Contains(got, "FAIL\tkiln/x [build failed]") {
		t.Errorf("of a package that does not compile:\n%s", got)
	}
}

// The recipe of make test ends with the summary, and fails where a test does.
func TestMakeTestPrintsTheSummary(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for args, want := range map[string]string{
		"TESTFLAGS=-run=^TestSurrogatesBehind$": "no test was skipped", // it needs the database
		"TESTFLAGS=-run=^TestNothing$":          "no test was skipped",
		"TESTFLAGS=-no-such-flag":               "",
	} {
		c := exec.Command("make", "--silent", "-C", "../..", "test", "PKG=./queries", args)
		c.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
		out, err := c.CombinedOutput()
		if (err == nil) != (want != "") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}
