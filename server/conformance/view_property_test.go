package conformance

import (
	"archive/tar"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"kiln/definitions/examples"
	"kiln/server"
)

// The rows of a view over HL7's examples and over Synthea's data are the same inline, stored, in four
// formats and exported. An indexed where gives the rows that a scan gives.
func TestRowsAreTheSameEveryWay(t *testing.T) {
	t.Parallel()
	t.Run("HL7's examples", func(t *testing.T) {
		t.Parallel()
		rowsAreTheSameEveryWay(t, exampleObservations(t), "", "status = 'final'", "code.coding.exists(system = %loinc and code = '8867-4')", "code.coding.exists(system = 'http://loinc.org')",
			"subject.reference = 'Patient/example'", "subject.reference = 'Patient/f001' and status = 'final'", "code.coding.where(code = '85354-9').exists() and value.empty()")
	})
	t.Run("Synthea", func(t *testing.T) {
		t.Parallel()
		rowsAreTheSameEveryWay(t, syntheaObservations(t), "", "status = 'final'", "code.coding.exists(system = %loinc and code = '8302-2')", "subject.reference = 'Patient/0'",
			"code.coding.where(code = '8302-2').exists() and value.exists()")
	})
}

// rowsAreTheSameEveryWay compares the rows of a view of some Observations, for each where.
func rowsAreTheSameEveryWay(t *testing.T, observations map[string]string, wheres ...string) {
	t.Helper()
	s := start(t, func(c *server.Config) { c.Jobs.MaxPerClient, c.Validation.Mode = 100, "off" })
	var entries, inline []string
	for id, body := range observations {
		entries = append(entries, `{"resource":`+body+`,"request":{"method":"PUT","url":"Observation/`+id+`"}}`)
		inline = append(inline, `{"name":"resource","resource":`+body+`}`)
	}
	s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	const select_ = `"select":[{"column":[{"name":"id","path":"id"},{"name":"code","path":"code.coding.code.first()"},{"name":"amount","path":"value.ofType(Quantity).value"},
		{"name":"at","path":"effective.ofType(dateTime)"},{"name":"note","path":"code.text"}]},{"forEachOrNull":"code.coding","column":[{"name":"system","path":"system"},{"name":"n","path":"%rowIndex"}]}]`
	for _, where := range wheres {
		view := `{"resourceType":"ViewDefinition","name":"same","resource":"Observation",` + select_
		scan := view
		if where != "" {
			view += `,"where":[{"path":` + quote(where) + `}]`
			scan += `,"where":[{"path":` + quote("("+where+") or false") + `}]`
		}
		subject := `{"name":"subjectResource","resource":` + view + `}}`
		run := func(format string, more ...string) *answer {
			return s.post("/$sql-run", inParameters(append(more, subject, `{"name":"_format","valueCode":"`+format+`"}`)...)).want(200)
		}
		want := rows(s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+scan+`}}`)))
		if len(want) == 0 {
			t.Errorf("%q has no rows", where)
		}
		same := func(how string, got []string) {
			t.Helper()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%q, %s: %d rows differ from the %d of a scan", where, how, len(got), len(want))
			}
		}
		same("stored", rows(run("ndjson")))
		same("inline", rows(run("ndjson", inline...)))
		var list []json.RawMessage
		if err := json.Unmarshal(run("json").body, &list); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, row := range list {
			texts = append(texts, string(row))
		}
		same("json", texts)
		same("csv", csvRows(t, run("csv").body))
		same("parquet", parquetRows(t, run("parquet").body))
		_, result := s.exported(inParameters(`{"name":"subject","part":[` + subject + `]}`))
		var exported []string
		for _, location := range result.want(200).outputs()["same"] {
			exported = append(exported, rows(s.get(location))...)
		}
		same("exported", exported)
	}
}

func quote(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// exampleObservations are HL7's examples of Observation, by id.
func exampleObservations(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range all {
		var head struct{ ResourceType, ID string }
		if err := json.Unmarshal(body, &head); err != nil {
			t.Fatal(err)
		}
		if head.ResourceType == "Observation" {
			out[head.ID] = string(body)
		}
	}
	if len(out) < 20 {
		t.Fatalf("there are %d examples", len(out))
	}
	return out
}

// syntheaObservations are Observations of three of Synthea's patients, Patient/0 to Patient/2, by id.
func syntheaObservations(t *testing.T) map[string]string {
	t.Helper()
	folder := os.Getenv("KILN_SHARED_DATA")
	if folder == "" {
		t.Skip("set KILN_SHARED_DATA to the folder with Synthea's data")
	}
	file, err := os.Open(filepath.Join(folder, "synthea-r4-617-patients.tar.zst"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := zstd.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out := make(map[string]string)
	patients := 0
	for archive := tar.NewReader(z); patients < 3; {
		if _, err := archive.Next(); err != nil {
			t.Fatal(err)
		}
		var bundle struct {
			Entry []struct{ Resource json.RawMessage }
		}
		if json.NewDecoder(archive).Decode(&bundle) != nil {
			continue // a folder
		}
		found := false
		for _, e := range bundle.Entry {
			var head struct{ ResourceType, ID string }
			if err := json.Unmarshal(e.Resource, &head); err != nil {
				t.Fatal(err)
			}
			if head.ResourceType != "Observation" {
				continue
			}
			found = true
			body := anyReference.ReplaceAllString(string(e.Resource), fmt.Sprintf(`"reference":"Patient/%d"`, patients))
			out[head.ID] = compact([]byte(body))
		}
		if found {
			patients++
		}
	}
	return out
}

// anyReference is a reference to another entry of a Bundle.
var anyReference = regexp.MustCompile(`"reference"\s*:\s*"urn:uuid:[^"]*"`)

// sameRow is a row as NDJSON has it, of the texts of its cells; nil is null.
func sameRow(cells []*string) string {
	var b strings.Builder
	for i, name := range []string{"id", "code", "amount", "at", "note", "system", "n"} {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(name) + ":")
		switch {
		case cells[i] == nil:
			b.WriteString("null")
		case name == "amount" || name == "n":
			b.WriteString(*cells[i])
		default:
			b.WriteString(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(quote(*cells[i])))
		}
	}
	return "{" + b.String() + "}"
}

func csvRows(t *testing.T, body []byte) (out []string) {
	t.Helper()
	list, err := csv.NewReader(bytes.NewReader(body)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range list[1:] {
		cells := make([]*string, len(line))
		for i := range line {
			if line[i] != "" {
				cells[i] = &line[i]
			}
		}
		out = append(out, sameRow(cells))
	}
	return out
}

func parquetRows(t *testing.T, body []byte) (out []string) {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.RowGroups() {
		r := group.Rows()
		for {
			buffer := make([]parquet.Row, 50)
			n, err := r.ReadRows(buffer)
			for _, row := range buffer[:n] {
				cells := make([]*string, len(row))
				for _, v := range row {
					if !v.IsNull() {
						text := v.String()
						cells[v.Column()] = &text
					}
				}
				out = append(out, sameRow(cells))
			}
			if err != nil {
				break
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
