package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// benchView is a view of Observation with six columns; where is a path, "" for all.
func benchView(where string) string {
	text := `{"resourceType":"ViewDefinition","id":"bench-view","name":"bench_view","status":"active","resource":"Observation","select":[{"column":[
		{"name":"id","path":"getResourceKey()"},{"name":"patient_id","path":"subject.getReferenceKey(Patient)"},{"name":"code","path":"code.coding.code.first()"},
		{"name":"effective","path":"effective.ofType(dateTime)"},{"name":"value","path":"value.ofType(Quantity).value"},{"name":"unit","path":"value.ofType(Quantity).unit"}]}]`
	if where != "" {
		path, _ := json.Marshal(where)
		text += `,"where":[{"path":` + string(path) + `}]`
	}
	return text + `}`
}

// runView runs a view over all data, and counts the rows by their lines.
func runView(category, format, where string, rows func(body []byte) int) Op {
	body := []byte(`{"resourceType":"Parameters","parameter":[{"name":"_format","valueCode":"` + format + `"},{"name":"header","valueBoolean":false},{"name":"subjectResource","resource":` + benchView(where) + `}]}`)
	return once(category, func(_ context.Context, w *Worker) error {
		if err := w.x.Do(Request{Method: "POST", Path: "$sql-run", Body: body, ContentType: "application/fhir+json", Accept: "*/*"}); err != nil {
			return err
		}
		if w.x.Status != 200 {
			return fmt.Errorf("$sql-run: %d %s", w.x.Status, excerpt(w.x.Body))
		}
		w.Moved(rows(w.x.Body))
		return nil
	})
}

func countLines(body []byte) int { return bytes.Count(body, []byte("\n")) }

var viewCSVWorkload = Workload{
	Name: "view-csv", About: "a view of six columns over every Observation, as CSV", Finite: true,
	Prepare: func(context.Context, *Bench) (Task, error) {
		return Task{Op: runView("run", "csv", "", countLines)}, nil
	},
}

var viewParquetWorkload = Workload{
	Name: "view-parquet", About: "the same as Parquet", Finite: true,
	Prepare: func(_ context.Context, b *Bench) (Task, error) {
		x := b.Client.NewExchange()
		if err := x.Do(Request{Method: "GET", Path: "Observation?_summary=count"}); err != nil {
			return Task{}, err
		}
		total := int(gjson.GetBytes(x.Body, "total").Int()) // one row for each resource
		return Task{Op: runView("run", "parquet", "", func([]byte) int { return total })}, nil
	},
}

var viewWhereWorkload = Workload{
	Name: "view-where", About: "the same for one patient, by the index", Finite: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		if len(s.Patients) == 0 {
			return Task{}, fmt.Errorf("the server has no data to read")
		}
		where := "subject.reference = 'Patient/" + strings.TrimPrefix(s.Patients[0], "Patient/") + "'"
		return Task{Op: runView("run", "csv", where, countLines)}, nil
	},
}

var viewTableWorkload = Workload{
	Name: "view-table", About: "the same as a table, from the request until it is current", Finite: true,
	Prepare: func(_ context.Context, b *Bench) (Task, error) {
		x := b.Client.NewExchange()
		if err := x.Do(Request{Method: "PUT", Path: "ViewDefinition/bench-view", Body: []byte(benchView("")), ContentType: "application/fhir+json"}); err != nil {
			return Task{}, err
		}
		if x.Status != 200 && x.Status != 201 {
			return Task{}, fmt.Errorf("store the view: %d %s", x.Status, excerpt(x.Body))
		}
		at := strings.TrimSuffix(b.Client.base, "/fhir") + "/admin/views"
		if err := x.Do(Request{Method: "DELETE", Path: at + "/bench_view"}); err != nil { // of an earlier run
			return Task{}, err
		}
		return Task{Op: once("build", func(ctx context.Context, w *Worker) error {
			if err := w.x.Do(Request{Method: "POST", Path: at, Body: []byte(`{"view":"ViewDefinition/bench-view"}`), ContentType: "application/json"}); err != nil {
				return err
			}
			if w.x.Status != 202 {
				return fmt.Errorf("make the table: %d %s", w.x.Status, excerpt(w.x.Body))
			}
			for ctx.Err() == nil {
				if err := w.x.Do(Request{Method: "GET", Path: at + "/bench_view"}); err != nil {
					return err
				}
				switch gjson.GetBytes(w.x.Body, "state").Str {
				case "current":
					w.Moved(int(gjson.GetBytes(w.x.Body, "rows").Int()))
					return nil
				case "failed":
					return fmt.Errorf("the build failed: %s", excerpt(w.x.Body))
				}
				wait(ctx, time.Now().Add(20*time.Millisecond))
			}
			return ctx.Err()
		})}, nil
	},
}
