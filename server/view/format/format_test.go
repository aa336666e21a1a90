package format_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/view"
	"kiln/server/view/format"
)

const everyKind = `{"resourceType":"ViewDefinition","resource":"Observation","select":[{"column":[
	{"name":"z","path":"id"},
	{"name":"flag","path":"value.ofType(boolean)"},
	{"name":"whole","path":"value.ofType(integer)"},
	{"name":"amount","path":"value.ofType(Quantity).value"},
	{"name":"fixed","path":"value.ofType(Quantity).value","tag":[{"name":"ansi/type","value":"DECIMAL(20,3)"}]},
	{"name":"at","path":"issued"},
	{"name":"day","path":"effective.ofType(dateTime)","tag":[{"name":"ansi/type","value":"DATE"}]},
	{"name":"codes","path":"code.coding.code","collection":true},
	{"name":"whole_code","path":"code","type":"CodeableConcept"},
	{"name":"note","path":"note.text"}]}]}`

var observations = []string{
	`{"resourceType":"Observation","id":"a","issued":"2020-01-02T03:04:05.123456789+02:00","effectiveDateTime":"2020-01-02","code":{"text":"say \"hi\",\r\nyou","coding":[{"code":"1"},{"code":"2"}]},"valueQuantity":{"value":6.30},"note":[{"text":"a,b"}]}`,
	`{"resourceType":"Observation","id":"b","code":{"text":"x"},"valueBoolean":false}`,
	`{"resourceType":"Observation","id":"c","code":{"text":"x"},"valueInteger":-5,"note":[{"text":"line\nline"}]}`,
	`{"resourceType":"Observation","id":"d","code":{"text":"x"},"valueQuantity":{"value":-0.001}}`,
}

func write(t *testing.T, f *format.Format, o format.Options) []byte {
	t.Helper()
	d, err := fhir.Decode(r4.Model, []byte(everyKind))
	if err != nil {
		t.Fatal(err)
	}
	v, err := view.Compile(r4.Model, d.(*r4.ViewDefinition))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := f.Open(&b, v.Columns, o)
	e := v.NewEvaluator(context.Background(), nil, time.Now())
	for _, body := range observations {
		r, err := fhir.Decode(r4.Model, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Eval(r, w.Write); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTextFormats(t *testing.T) {
	t.Parallel()
	code := `{"coding":[{"code":"1"},{"code":"2"}],"text":"say \"hi\",\r\nyou"}`
	ndjson := []string{
		`{"z":"a","flag":null,"whole":null,"amount":6.30,"fixed":6.30,"at":"2020-01-02T03:04:05.123456789+02:00","day":"2020-01-02","codes":["1","2"],"whole_code":` + code + `,"note":"a,b"}`,
		`{"z":"b","flag":false,"whole":null,"amount":null,"fixed":null,"at":null,"day":null,"codes":[],"whole_code":{"text":"x"},"note":null}`,
		`{"z":"c","flag":null,"whole":-5,"amount":null,"fixed":null,"at":null,"day":null,"codes":[],"whole_code":{"text":"x"},"note":"line\nline"}`,
		`{"z":"d","flag":null,"whole":null,"amount":-0.001,"fixed":-0.001,"at":null,"day":null,"codes":[],"whole_code":{"text":"x"},"note":null}`,
	}
	csv := "a,,,6.30,6.30,2020-01-02T03:04:05.123456789+02:00,2020-01-02,\"[\"\"1\"\",\"\"2\"\"]\",\"" + strings.ReplaceAll(code, `"`, `""`) + "\",\"a,b\"\r\n" +
		"b,false,,,,,,[],\"{\"\"text\"\":\"\"x\"\"}\",\r\nc,,-5,,,,,[],\"{\"\"text\"\":\"\"x\"\"}\",\"line\nline\"\r\nd,,,-0.001,-0.001,,,[],\"{\"\"text\"\":\"\"x\"\"}\",\r\n"
	for _, tt := range []struct {
		name string
		f    *format.Format
		o    format.Options
		want string
	}{
		{"ndjson", format.NDJSON, format.Options{}, strings.Join(ndjson, "\n") + "\n"},
		{"json", format.JSON, format.Options{}, "[" + strings.Join(ndjson, ",\n") + "]\n"},
		{"csv", format.CSV, format.Options{}, "z,flag,whole,amount,fixed,at,day,codes,whole_code,note\r\n" + csv},
		{"csv without header", format.CSV, format.Options{NoHeader: true}, csv},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := string(write(t, tt.f, tt.o)); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// The columns keep the view's order, and a value the form of its type.
func TestParquet(t *testing.T) {
	t.Parallel()
	body := write(t, format.Parquet, format.Options{})
	f, err := parquet.OpenFile(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	if f.NumRows() != 4 {
		t.Errorf("the file has %d rows, want 4", f.NumRows())
	}
	var names []string
	for _, field := range f.Schema().Fields() {
		names = append(names, field.Name())
	}
	if got := strings.Join(names, " "); got != "z flag whole amount fixed at day codes whole_code note" {
		t.Errorf("the columns are %s", got)
	}
	modules := os.Getenv("KILN_PYTHON_DUCKDB")
	if modules == "" {
		t.Skip("set KILN_PYTHON_DUCKDB to a folder with Python's module duckdb to read the file with DuckDB")
	}
	name := filepath.Join(t.TempDir(), "rows.parquet")
	if err := os.WriteFile(name, body, 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("python3", "-c", `import duckdb,sys
print([c[0]+" "+c[1] for c in duckdb.sql("describe select * from '"+sys.argv[1]+"'").fetchall()])
for r in duckdb.sql("select z, flag, whole, amount, fixed, epoch_us(o.at), day, codes, whole_code, note from '"+sys.argv[1]+"' o").fetchall(): print(r)`, name)
	c.Env = append(os.Environ(), "PYTHONPATH="+modules)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := `['z VARCHAR', 'flag BOOLEAN', 'whole INTEGER', 'amount VARCHAR', 'fixed DECIMAL(20,3)', 'at TIMESTAMP WITH TIME ZONE', 'day DATE', 'codes VARCHAR[]', 'whole_code VARCHAR', 'note VARCHAR']
('a', None, None, '6.30', Decimal('6.300'), 1577927045123456, datetime.date(2020, 1, 2), ['1', '2'], '{"coding":[{"code":"1"},{"code":"2"}],"text":"say \\"hi\\",\\r\\nyou"}', 'a,b')
('b', False, None, None, None, None, None, [], '{"text":"x"}', None)
('c', None, -5, None, None, None, None, [], '{"text":"x"}', 'line\nline')
('d', None, None, '-0.001', Decimal('-0.001'), None, None, [], '{"text":"x"}', None)
`
	if string(out) != want {
		t.Errorf("DuckDB reads\n%s\nwant\n%s", out, want)
	}
}

func TestWithoutRows(t *testing.T) {
	t.Parallel()
	columns := []view.Column{{Name: "a", Type: "string"}, {Name: "b", Type: "string"}}
	for f, want := range map[*format.Format]string{format.JSON: "[]\n", format.NDJSON: "", format.CSV: "a,b\r\n"} {
		var b bytes.Buffer
		if err := f.Open(&b, columns, format.Options{}).Close(); err != nil || b.String() != want {
			t.Errorf("%s without rows is %q (%v), want %q", f.Name, b.String(), err, want)
		}
	}
}
