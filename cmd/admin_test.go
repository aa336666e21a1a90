package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kiln runs a command and returns its output.
func kiln(args ...string) (string, error) {
	c := root()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestAdminReindex(t *testing.T) {
	var asked []string
	answers := []string{
		`{"resourceType":"Parameters","parameter":[{"name":"job","part":[{"name":"id","valueString":"2"},{"name":"type","valueCode":"Patient"},{"name":"parameter","valueUri":"http://x/p"},
			{"name":"state","valueCode":"running"},{"name":"reason","valueString":"search parameters have changed"},{"name":"total","valueDecimal":400},{"name":"done","valueDecimal":100},{"name":"changed","valueDecimal":90},{"name":"failed","valueDecimal":0},
			{"name":"rate","valueDecimal":50.5},{"name":"remainingSeconds","valueDecimal":6}]}]}`,
		`{"resourceType":"Parameters","parameter":[{"name":"job","part":[{"name":"id","valueString":"2"},{"name":"type","valueCode":"Patient"},{"name":"state","valueCode":"done"},
			{"name":"total","valueDecimal":400},{"name":"done","valueDecimal":400},{"name":"changed","valueDecimal":399},{"name":"failed","valueDecimal":1},{"name":"failure","valueString":"x: too long"}]}]}`,
		`{"resourceType":"Parameters"}`,
	}
	next := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
		if r.Method == http.MethodGet {
			w.Write([]byte(answers[next]))
			next++
		}
	}))
	defer srv.Close()
	out, err := kiln("admin", "reindex", "--server", srv.URL, "--start", "--type", "Patient", "--watch")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Patient", "running", "25.0 %", "100 of 400, 90 changed", "6s left (search parameters have changed)", "done", "1 FAILED: x: too long"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if len(asked) != 3 || asked[0] != "POST /$reindex?type=Patient" || asked[2] != "GET /$reindex" {
		t.Errorf("asked was %q", asked)
	}
	if out, err := kiln("admin", "reindex", "--server", srv.URL); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("without jobs it says %q, %v", out, err)
	}
	if _, err := kiln("admin", "reindex", "--server", srv.URL, "--type", "Patient"); err == nil {
		t.Error("--type without --start is accepted")
	}
}

func TestPackageInstall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tgz")
	if err := os.WriteFile(file, []byte("archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") != "application/gzip" || r.URL.Path != "/$install-package" {
			t.Errorf("asked was %s with %s", r.URL, r.Header.Get("Content-Type"))
		}
		if r.URL.Query().Get("dry-run") != "true" {
			w.WriteHeader(http.StatusBadRequest)
			w.Write([]byte(`{"resourceType":"OperationOutcome","issue":[{"diagnostics":"digest is wrong"}]}`))
			return
		}
		w.Write([]byte(`{"resourceType":"Parameters","parameter":[{"name":"name","valueString":"test.ig"},{"name":"version","valueString":"1.0.0"},{"name":"dryRun","valueBoolean":true},
			{"name":"resource","part":[{"name":"action","valueCode":"create"},{"name":"url","valueUri":"http://x/v"},{"name":"reference","valueReference":{"reference":"ValueSet/v"}}]}]}`))
	}))
	defer srv.Close()
	out, err := kiln("package", "install", file, "--server", srv.URL, "--dry-run")
	if err != nil || !strings.Contains(out, "create     ValueSet/v  http://x/v") || !strings.Contains(out, "would install test.ig@1.0.0") {
		t.Errorf("it says %q, %v", out, err)
	}
	if _, err := kiln("package", "install", file, "--server", srv.URL); err == nil || !strings.Contains(err.Error(), "digest is wrong") {
		t.Errorf("a refusal is %v", err)
	}
}
