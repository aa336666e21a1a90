package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"kiln/server/store/storetest"
)

// The walk of docs/bulk.md, from the registration of a client to an import, works as it stands.
func TestBulkGuide(t *testing.T) {
	t.Parallel()
	database, address := storetest.New(t), freeAddress(t)
	guide := document(t, "docs/bulk.md")
	s := startProcess(t, database, address, "http://"+address)
	storePatient(t, s.base, database, "123")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(guide, -1)
	script := "set -euo pipefail\ntrap 'echo \"FAILED: $BASH_COMMAND\"' ERR\nkiln() { \"$PROGRAM\" \"$@\"; }\n"
	group := `{"resourceType":"Group","id":"cohort","type":"person","actual":true,"member":[{"entity":{"reference":"Patient/123"}}]}`
	for i, block := range blocks {
		if i == 1 { // between the client and the first export
			script += "kiln admin client create writer --confidential --grant-type client_credentials --scope 'system/*.cruds'\n" +
				"WRITER=$(kiln token mint --client writer --scope 'system/*.cruds' | tail -1)\n" +
				"store() { curl -sf -o /dev/null -X PUT -H \"Authorization: Bearer $WRITER\" -H 'Content-Type: application/fhir+json' \"http://127.0.0.1:8080/$1\" -d \"$2\"; }\n" +
				"store Group/cohort '" + group + "'\n" +
				`store Patient/goes '{"resourceType":"Patient","id":"goes"}'` + "\n"
		}
		if i == 2 { // between the two nights
			script += "curl -sf -o /dev/null -X DELETE -H \"Authorization: Bearer $WRITER\" http://127.0.0.1:8080/Patient/goes\n" +
				`store Patient/new '{"resourceType":"Patient","id":"new"}'` + "\n"
		}
		script += block[1]
	}
	work := filepath.Join(t.TempDir(), "work")
	c := exec.Command("bash", "-c", strings.ReplaceAll(script, "http://127.0.0.1:8080", s.base))
	c.Env = append(os.Environ(), "RUN_AS_KILN=1", "PROGRAM="+os.Args[0], "KILN_DATABASE__URL="+database, "KILN_SERVER__LISTEN="+address,
		"KILN_AUTH__SIGNING__ALGORITHM=ES384", "WORK="+work)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("the guide's commands: %v\n%s", err, out)
	}
	if got := textOf(t, work, "monday/Patient.001.ndjson"); !strings.Contains(got, `"id":"123"`) || !strings.Contains(got, `"id":"goes"`) {
		t.Errorf("Monday has the patients %s", got)
	}
	if got := gunzipped(t, textOf(t, work, "tuesday/Patient.001.ndjson.gz")); !strings.Contains(got, `"id":"new"`) || strings.Contains(got, `"id":"123"`) {
		t.Errorf("Tuesday has the patients %s", got)
	}
	if got := gunzipped(t, textOf(t, work, "tuesday/deleted/Bundle.001.ndjson.gz")); !strings.Contains(got, `"Patient/goes"`) {
		t.Errorf("Tuesday's deletions are %s", got)
	}
	if got := textOf(t, work, "cohort/Patient.001.ndjson"); strings.Count(got, "\n") != 1 {
		t.Errorf("the cohort has the patients %s", got)
	}
	var m struct{ TransactionTime string }
	if err := json.Unmarshal([]byte(textOf(t, work, "manifest.json")), &m); err != nil || m.TransactionTime == "" {
		t.Errorf("the manifest by HTTP: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(s.cmd.Dir, "pgdata", "bulk")); err == nil && len(entries) > 1 {
		t.Errorf("results are left on the server: %v", entries)
	}
}

func textOf(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func gunzipped(t *testing.T, packed string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// kilnJSON runs a command with --json and returns its summary.
func kilnJSON(args ...string) (r bulkResult, err error) {
	c := root()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(io.Discard)
	c.SetArgs(append(args, "--json"))
	err = c.Execute()
	if out.Len() > 0 {
		if broken := json.Unmarshal(out.Bytes(), &r); broken != nil {
			return r, fmt.Errorf("the output is %s: %w", out.String(), broken)
		}
	}
	return r, err
}

// kiln export and kiln import go on after an interruption, and are whole or fail.
func TestExportAndImportCommands(t *testing.T) {
	t.Parallel()
	var broken int // downloads that are cut off
	base := realServer(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".ndjson") && r.Header.Get("Range") == "" && broken < 100 && strings.Contains(r.URL.Path, "$job") && r.Header.Get("Accept-Encoding") == "identity" {
				broken++
				w.Header().Set("Content-Length", "1000000")
				_, _ = io.WriteString(w, `{"resource`)
				_ = http.NewResponseController(w).Flush() // else the client gets no answer at all
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	for _, sub := range []string{"deleted", "error"} {
		if err := os.MkdirAll(filepath.Join(in, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(in, sub, "Bundle.001.ndjson"), []byte("nonsense\n"))
	}
	write(t, filepath.Join(in, "Patient.001.ndjson"), []byte(`{"resourceType":"Patient","id":"a"}`+"\nnonsense\n"+`{"resourceType":"Patient","id":"b"}`+"\n"))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprintln(z, `{"resourceType":"Organization","id":"o","name":"O"}`)
	z.Close()
	write(t, filepath.Join(in, "Organization.001.ndjson.gz"), packed.Bytes())
	errorsFile, state := filepath.Join(dir, "errors"), filepath.Join(dir, "state")
	r, err := kilnJSON("import", in, "--server", base, "--errors", errorsFile, "--state", state)
	if err == nil || r.Resources != 3 || r.Errors != 1 {
		t.Errorf("the import: %+v, %v", r, err)
	}
	if text := textOf(t, errorsFile); !strings.Contains(text, "line 2: ") || !strings.Contains(text, "Patient.001.ndjson") || strings.Count(text, "\n") != 1 {
		t.Errorf("the errors are %s", text)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("the state file is left")
	}
	out := filepath.Join(dir, "out")
	if r, err = kilnJSON("export", out, "--server", base); err != nil || r.Resources != 3 || r.Errors != 0 || r.Bytes == 0 {
		t.Errorf("the export: %+v, %v", r, err)
	}
	if broken == 0 {
		t.Error("no download was cut off")
	}
	if text := textOf(t, out, "Patient.001.ndjson"); strings.Count(text, "\n") != 2 {
		t.Errorf("the patients are %s", text)
	}
	if _, err := kilnJSON("export", out, "--server", base); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder with files: %v", err)
	}
	if r, err = kilnJSON("export", filepath.Join(dir, "since"), "--server", base, "--since", filepath.Join(out, "manifest.json"), "--gzip"); err != nil || r.Resources != 0 {
		t.Errorf("the export since: %+v, %v", r, err)
	}
	if r, err = kilnJSON("import", out, "--server", base, "--errors", errorsFile, "--state", state); err != nil || r.Resources != 3 {
		t.Errorf("the import of the export: %+v, %v", r, err)
	}
	if _, err := kilnJSON("import", filepath.Join(out, "manifest.json"), "--server", base); err == nil {
		t.Error("a file that is no NDJSON is imported")
	}
}
