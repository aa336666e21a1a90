package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// runViews runs kiln with arguments and returns its output.
func runViews(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const patientView = `{"resourceType":"ViewDefinition","name":"people","resource":"Patient","status":"active","select":[{"column":[{"name":"id","path":"id"},{"name":"sex","path":"gender"}]}],"where":[{"path":"gender = 'female'"},{"path":"active.not()"}]}`

func TestViewCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := writeFile(t, dir, "good.json", patientView)
	out, err := runViews(t, "view", "check", good)
	if err != nil || !strings.Contains(out, "id: id") || !strings.Contains(out, "where gender = 'female': index") || !strings.Contains(out, "where active.not(): scan") {
		t.Errorf("%v\n%s", err, out)
	}
	writeFile(t, dir, "bad.json", strings.Replace(patientView, `"gender"`, `"gendre"`, 1))
	out, err = runViews(t, "view", "check", dir, "--json")
	if err == nil {
		t.Error("a view with a fault ends well")
	}
	var all []struct {
		Valid  bool
		Issues []struct{ Expression, Diagnostics string }
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 2 || all[0].Valid || !all[1].Valid || len(all[0].Issues) != 1 || !strings.HasSuffix(all[0].Issues[0].Expression, "column[1].path") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestViewRunOnFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	definition := writeFile(t, dir, "people.json", patientView)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, data, "a.ndjson", `{"resourceType":"Patient","id":"1","gender":"female","active":false}`+"\n\n"+`{"resourceType":"Observation","id":"o"}`)
	writeFile(t, data, "b.json", `{"resourceType":"Bundle","type":"collection","entry":[{"resource":{"resourceType":"Patient","id":"2","gender":"female","active":false}},{"resource":{"resourceType":"Patient","id":"3","gender":"male","active":false}}]}`)
	out, err := runViews(t, "view", "run", definition, "--data", data, "--format", "csv")
	if want := "id,sex\r\n1,female\r\n2,female\r\n"; err != nil || out != want {
		t.Errorf("got %q (%v), want %q", out, err, want)
	}
	out, err = runViews(t, "view", "run", definition, "--data", data, "--limit", "1", "--format", "json")
	if want := `[{"id":"1","sex":"female"}]` + "\n"; err != nil || out != want {
		t.Errorf("got %q (%v), want %q", out, err, want)
	}
	tables := filepath.Join(dir, "tables")
	if out, err := runViews(t, "view", "run", definition, "--data", data, "--output", tables); err != nil {
		t.Fatal(err, out)
	}
	if body, err := os.ReadFile(filepath.Join(tables, "people.ndjson")); err != nil || bytes.Count(body, []byte("\n")) != 2 {
		t.Errorf("%v: %s", err, body)
	}
	writeFile(t, data, "c.ndjson", "{")
	if _, err := runViews(t, "view", "run", definition, "--data", data, "--output", filepath.Join(dir, "other")); err == nil || !strings.Contains(err.Error(), "c.ndjson, line 1") {
		t.Errorf("got %v, want the place of the fault", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "other")); err != nil || len(left) > 0 {
		t.Errorf("a failed run leaves %v (%v)", left, err)
	}
}

func TestViewTestReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, dir, "mine.json", `{"title":"mine","resources":[{"resourceType":"Patient","id":"1"}],"tests":[
		{"title":"right","view":{"resource":"Patient","select":[{"column":[{"name":"id","path":"id"}]}]},"expect":[{"id":"1"}]},
		{"title":"wrong","view":{"resource":"Patient","select":[{"column":[{"name":"id","path":"id"}]}]},"expect":[]}]}`)
	report := filepath.Join(dir, "report.json")
	out, err := runViews(t, "view", "test", file, "--report", report)
	if err == nil || !strings.Contains(out, "1 of 2 tests passed") {
		t.Errorf("%v\n%s", err, out)
	}
	body, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]struct {
		Tests []struct {
			Name   string
			Result struct{ Passed bool }
		}
	}
	if err := json.Unmarshal(body, &r); err != nil || len(r["mine.json"].Tests) != 2 || !r["mine.json"].Tests[0].Result.Passed || r["mine.json"].Tests[1].Result.Passed {
		t.Errorf("%v\n%s", err, body)
	}
}

// The views of examples/views have one row for each resource, with id and, but for patients, patient_id.
func TestExampleViews(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := writeFile(t, dir, "all.ndjson", strings.Join([]string{
		`{"resourceType":"Patient","id":"p","name":[{"use":"official","family":"F","given":["A","B"]},{"use":"maiden","family":"G"}],"address":[{"city":"C"},{"city":"D"}],"birthDate":"1970-01-01"}`,
		`{"resourceType":"Condition","id":"c","subject":{"reference":"Patient/p"},"code":{"coding":[{"system":"http://snomed.info/sct","code":"1"},{"code":"2"}]},"onsetDateTime":"2020-01-01"}`,
		`{"resourceType":"Observation","id":"o","subject":{"reference":"Patient/p"},"status":"final","code":{"coding":[{"code":"1"},{"code":"2"}]},"valueQuantity":{"value":1.50,"unit":"cm"}}`,
		`{"resourceType":"MedicationRequest","id":"m","subject":{"reference":"Patient/p"},"status":"active","intent":"order","medicationCodeableConcept":{"coding":[{"code":"1"},{"code":"2"}]}}`,
		`{"resourceType":"Encounter","id":"e","subject":{"reference":"Patient/p"},"status":"finished","class":{"code":"AMB"},"type":[{"coding":[{"code":"1"},{"code":"2"}]},{}],"period":{"start":"2020-01-01T00:00:00Z"}}`,
	}, "\n"))
	if out, err := runViews(t, "view", "run", "../examples/views", "--data", data, "--output", dir); err != nil {
		t.Fatal(err, out)
	}
	for name, id := range map[string]string{"patients": "p", "conditions": "c", "observations": "o", "medications": "m", "encounters": "e"} {
		body, err := os.ReadFile(filepath.Join(dir, name+".ndjson"))
		if err != nil {
			t.Error(err)
			continue
		}
		var row map[string]any
		if err := json.Unmarshal(body, &row); err != nil || row["id"] != id || name != "patients" && row["patient_id"] != "p" {
			t.Errorf("%s: %v %s", name, err, body)
		}
	}
}

func TestViewRunOnAServer(t *testing.T) {
	t.Parallel()
	cfg := server.Default()
	cfg.Database.URL, cfg.Log.Level, cfg.Bulk.Directory = storetest.New(t), "error", t.TempDir()
	s, err := server.New(t.Context(), cfg, server.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := httptest.NewServer(s.Handler)
	defer h.Close()
	put := func(path, body string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPut, h.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/fhir+json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatal(path, err, resp)
		}
		resp.Body.Close()
	}
	put("/ViewDefinition/people", strings.Replace(patientView, `"name":"people"`, `"id":"people","name":"people"`, 1))
	put("/Patient/1", `{"resourceType":"Patient","id":"1","gender":"female","active":false}`)
	put("/Patient/2", `{"resourceType":"Patient","id":"2","gender":"female","active":false}`)
	definition := writeFile(t, t.TempDir(), "people.json", patientView)
	for _, args := range [][]string{{"people"}, {definition}} {
		out, err := runViews(t, append([]string{"view", "run", "--server", h.URL, "--format", "csv", "--patient", "Patient/2", "--no-header"}, args...)...)
		if err != nil || out != "2,female\r\n" {
			t.Errorf("%v: %q (%v)", args, out, err)
		}
	}
	if out, err := runViews(t, "view", "run", "--server", h.URL, "none"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("%q (%v)", out, err)
	}
}
