// Package suite runs test files of SQL on FHIR against the views of this server and makes the report
// that an implementation publishes.
//
// Spec: SQL on FHIR 3.0.0-ballot, tests.schema.json and test-report.schema.json.
package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/view"
	"kiln/server/view/format"
)

// Report is the results of test files, by the name of the file.
type Report map[string]*FileReport

// FileReport is the results of one file.
type FileReport struct {
	Tests []TestReport `json:"tests"`
}

// TestReport is the result of one test.
type TestReport struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
}

// Result says whether a test passed, and names its fault.
type Result struct {
	Passed bool   `json:"passed"`
	Error  string `json:"error,omitempty"`
}

// Count returns how many tests passed and how many there are.
func (r Report) Count() (passed, all int) {
	for _, f := range r {
		for _, t := range f.Tests {
			all++
			if t.Result.Passed {
				passed++
			}
		}
	}
	return passed, all
}

type file struct {
	Title     string            `json:"title"`
	Resources []json.RawMessage `json:"resources"`
	Tests     []test            `json:"tests"`
}

type test struct {
	Title         string            `json:"title"`
	View          json.RawMessage   `json:"view"`
	Expect        []json.RawMessage `json:"expect"`
	ExpectCount   *int              `json:"expectCount"`
	ExpectError   bool              `json:"expectError"`
	ExpectColumns []string          `json:"expectColumns"`
}

// Run runs the test files at paths: files, and the .json files of folders.
func Run(ctx context.Context, model *fhir.Model, paths []string) (Report, error) {
	report := make(Report)
	for _, p := range paths {
		files := []string{p}
		info, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(p, "*.json")); err != nil {
				return nil, err
			}
		}
		for _, name := range files {
			body, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			var f file
			if err := json.Unmarshal(body, &f); err != nil {
				return nil, fmt.Errorf("%s is no test file: %w", name, err)
			}
			if len(f.Tests) == 0 {
				return nil, fmt.Errorf("%s has no tests", name)
			}
			report[filepath.Base(name)] = f.run(ctx, model)
		}
	}
	if len(report) == 0 {
		return nil, errors.New("there are no test files")
	}
	return report, nil
}

func (f *file) run(ctx context.Context, model *fhir.Model) *FileReport {
	out := &FileReport{}
	resources, err := readResources(model, f.Resources)
	for _, t := range f.Tests {
		e := err
		if e == nil {
			e = t.run(ctx, model, resources)
		}
		r := TestReport{Name: t.Title, Result: Result{Passed: e == nil}}
		if e != nil {
			r.Result.Error = e.Error()
		}
		out.Tests = append(out.Tests, r)
	}
	return out
}

func readResources(model *fhir.Model, list []json.RawMessage) ([]fhir.Resource, error) {
	var out []fhir.Resource
	for i, body := range list {
		in, err := fhir.Read(model, body)
		if err != nil {
			return nil, fmt.Errorf("resources[%d]: %w", i, err)
		}
		out = append(out, in.Resource)
	}
	return out, nil
}

// ReadView reads a ViewDefinition whose JSON can lack resourceType.
func ReadView(model *fhir.Model, body []byte) (*r4.ViewDefinition, error) {
	var head struct{ ResourceType string }
	if err := json.Unmarshal(body, &head); err != nil {
		return nil, err
	}
	if head.ResourceType == "" {
		rest := bytes.TrimLeft(bytes.TrimLeft(bytes.TrimSpace(body), "{"), " \t\r\n")
		start := `{"resourceType":"ViewDefinition"`
		if !bytes.HasPrefix(rest, []byte("}")) {
			start += ","
		}
		body = append([]byte(start), rest...)
	}
	r, err := fhir.Decode(model, body)
	if err != nil {
		return nil, err
	}
	d, ok := r.(*r4.ViewDefinition)
	if !ok {
		return nil, fmt.Errorf("this is no ViewDefinition, found %s", r.Type().Name)
	}
	return d, nil
}

func (t *test) run(ctx context.Context, model *fhir.Model, resources []fhir.Resource) error {
	rows, columns, err := t.evaluate(ctx, model, resources)
	switch {
	case t.ExpectError && err == nil:
		return errors.New("expected an error, found none")
	case t.ExpectError:
		return nil
	case err != nil:
		return err
	case t.ExpectColumns != nil && !slices.Equal(t.ExpectColumns, columns):
		return fmt.Errorf("expected the columns %s, found %s", strings.Join(t.ExpectColumns, ", "), strings.Join(columns, ", "))
	case t.ExpectCount != nil && *t.ExpectCount != len(rows):
		return fmt.Errorf("expected %d rows, found %d", *t.ExpectCount, len(rows))
	case t.Expect == nil:
		return nil
	}
	want, err := canonicalRows(t.Expect)
	if err != nil {
		return err
	}
	found, err := canonicalRows(rows)
	if err != nil {
		return err
	}
	slices.Sort(want)
	slices.Sort(found)
	if !slices.Equal(want, found) {
		return fmt.Errorf("expected the rows %s, found %s", strings.Join(want, " "), strings.Join(found, " "))
	}
	return nil
}

// evaluate returns the rows of a view as JSON objects.
func (t *test) evaluate(ctx context.Context, model *fhir.Model, resources []fhir.Resource) (rows []json.RawMessage, columns []string, err error) {
	d, err := ReadView(model, t.View)
	if err != nil {
		return nil, nil, err
	}
	v, err := view.Compile(model, d)
	if err != nil {
		return nil, nil, err
	}
	for i := range v.Columns {
		columns = append(columns, v.Columns[i].Name)
	}
	var b bytes.Buffer
	w := format.NDJSON.Open(&b, v.Columns, format.Options{})
	e := v.NewEvaluator(ctx, nil, time.Now())
	for _, r := range resources {
		if r.Type().Name != v.Resource {
			continue
		}
		if err := e.Eval(r, w.Write); err != nil {
			return nil, nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	for line := range bytes.Lines(b.Bytes()) {
		rows = append(rows, line)
	}
	return rows, columns, nil
}

// canonicalRows are rows with sorted keys and numbers without a spelling of their own.
func canonicalRows(rows []json.RawMessage) ([]string, error) {
	var out []string
	for _, row := range rows {
		d := json.NewDecoder(bytes.NewReader(row))
		d.UseNumber()
		var value any
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		b, err := json.Marshal(plain(value))
		if err != nil {
			return nil, err
		}
		out = append(out, string(b))
	}
	return out, nil
}

func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return map[string]string{"number": r.RatString()}
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return value
}
