package plan

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
	"kiln/server/search/match"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var testRegistry = search.NewRegistry(r4.Model, index.Parameters, index.Compartments)

var testOptions = search.Options{Now: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC), BaseURLs: []string{"http://kiln.example/fhir"}}

// testEnv knows some types, and the units that a few quantities have.
var testEnv = &match.Env{
	Type: func(typ string) (int16, bool) {
		for i, t := range []string{"Patient", "Observation", "Encounter", "Condition", "Organization", "List", "ValueSet", "Questionnaire", "QuestionnaireResponse", "MolecularSequence"} {
			if t == typ {
				return int16(i + 1), true
			}
		}
		return 0, false
	},
	Texts: func(fhir.Key) []string { return []string{"http://loinc.org"} },
	Units: []match.Unit{
		match.NewUnit(1, "http://unitsofmeasure.org", "g", "g"),
		match.NewUnit(2, "http://unitsofmeasure.org", "mg", "milligram"),
		match.NewUnit(3, "http://unitsofmeasure.org", "mmol/L", "mmol/L"),
		match.NewUnit(4, "", "", "g"),
	},
}

// TestGolden compiles the searches of testdata. A line that begins with "? " is a search. The following lines are
// its tree and its statements or, after "!", the reason of its rejection. Run with -update to rewrite.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			lines := bufio.NewScanner(bytes.NewReader(want))
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				line := lines.Text()
				switch {
				case strings.HasPrefix(line, "# "):
					fmt.Fprintln(&got, line)
				case strings.HasPrefix(line, "? "):
					fmt.Fprintln(&got, line)
					compileGolden(&got, line[2:], goldenEnv(file))
					fmt.Fprintln(&got)
				}
			}
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("run with -update if this is meant:\n%s", diff)
			}
		})
	}
}

// goldenEnv is testEnv, for parts.txt with three parts of Observation.
func goldenEnv(file string) *match.Env {
	env := *testEnv
	if filepath.Base(file) == "parts.txt" {
		env.Parts = &match.Parts{Of: map[int16]int{2: 3}}
	}
	return &env
}

func compileGolden(b *bytes.Buffer, line string, env *match.Env) {
	typ, query, _ := strings.Cut(line, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		fmt.Fprintf(b, "! %v\n", err)
		return
	}
	q, err := search.Parse(testRegistry, typ, values, testOptions)
	if err != nil {
		fmt.Fprintf(b, "! %v\n", err)
		return
	}
	for i := range q.Clauses {
		dump(b, "  ", &q.Clauses[i])
	}
	p := Compile(q, env)
	if p.Empty {
		fmt.Fprintln(b, "empty")
		return
	}
	show := func(name string, st match.Statement, err error) {
		if err != nil {
			fmt.Fprintf(b, "%s ! %v\n", name, err)
			return
		}
		fmt.Fprintf(b, "%s: %s\n", name, st.SQL)
		fmt.Fprintf(b, "  with %s\n", arguments(st.Args))
	}
	for i, d := range p.Drivers {
		st, err := p.SelectCandidates(i)
		show("candidates by "+d.Name, st, err)
		if i == 0 && len(p.Drivers) > 2 {
			break
		}
	}
	show("count", p.CountMatches(), nil)
	if p.SortsInMemory() {
		show("unsorted", p.SelectUnsorted(), nil)
	} else if p.CanWalk() {
		for phase := range p.CountPhases() {
			if st, ok, err := p.SelectWalk(phase, 0, 0, 0); ok || err != nil {
				show("walk", st, err)
			}
		}
	} else {
		st, err := p.GatherMatches()
		show("gather", st, err)
	}
	for _, st := range p.SelectIncludes([]int64{1}, []int64{1}, false, 10) {
		show("include", st, nil)
	}
	if len(q.RevIncludes) > 0 {
		for _, st := range p.SelectIncludes(make([]int64, 3000), nil, false, 10) {
			show("include for many", st, nil)
		}
	}
}

func arguments(args []any) string {
	out := make([]string, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case []int64:
			out[i] = fmt.Sprintf("%d numbers", len(a))
		case int64:
			if a > 1e15 && a != fhir.OpenHigh+1 || a < -1e15 || a > 1e9 && a < 1<<40 { // neither a surrogate nor a number
				out[i] = "key or time"
				break
			}
			out[i] = fmt.Sprint(a)
		case time.Time:
			out[i] = a.Format(time.RFC3339Nano)
		default:
			out[i] = fmt.Sprintf("%q", a)
		}
	}
	return strings.Join(out, "; ")
}

// keyNames are the parameters that keys belong to.
var keyNames = func() map[fhir.Key]string {
	names := make(map[fhir.Key]string)
	for _, p := range index.Parameters {
		for _, k := range p.Keys {
			if names[k] == "" {
				names[k] = p.Base + "." + p.Code
				names[fhir.WordKey(k)] = "its words"
			}
		}
		for _, c := range p.Composites {
			if c.Key != 0 {
				names[c.Key] = p.Base + "." + p.Code
			}
		}
	}
	return names
}()

func keysText(keys []fhir.Key) string {
	out := make([]string, len(keys))
	for i, k := range keys {
		if out[i] = keyNames[k]; out[i] == "" {
			out[i] = "composite"
		}
	}
	return strings.Join(out, ", ")
}

func dump(b *bytes.Buffer, indent string, c *match.Clause) {
	not := ""
	if c.Not {
		not = " not"
	}
	fmt.Fprintf(b, "%s%s = %s%s\n", indent, c.Name, c.Value, not)
	for _, m := range c.Any {
		in := indent + "  "
		switch m := m.(type) {
		case match.Terms:
			fmt.Fprintf(b, "%sterms: %d\n", in, len(m.Values))
		case match.Dates:
			fmt.Fprintf(b, "%sdates of %s: %s [%s, %s)\n", in, keysText(m.Keys), m.Op, instantText(m.Low), instantText(m.High))
		case match.Numbers:
			fmt.Fprintf(b, "%snumbers of %s: %s\n", in, keysText(m.Keys), numbersText(&m))
		case match.NumberPair:
			fmt.Fprintf(b, "%spairs of %s: %s and %s\n", in, keysText(m.Keys), numbersText(&m.First), numbersText(&m.Second))
		case match.Quantities:
			fmt.Fprintf(b, "%squantities of %s: %s in %q of %q\n", in, keysText(m.Keys), numbersText(&m.Numbers), m.Code, m.System)
		case match.Strings:
			fmt.Fprintf(b, "%sstrings of %s: %d %q\n", in, keysText(m.Keys), m.Op, m.Text)
		case match.Coded:
			fmt.Fprintf(b, "%scoded %s\n", in, m.Code)
			dump(b, in+"  ", &match.Clause{Name: c.Name, Value: c.Value, Any: []match.Match{m.Any}})
		case match.Contained:
			fmt.Fprintf(b, "%sthe same of a contained %s\n", in, m.Type)
		case match.Texts:
			fmt.Fprintf(b, "%stexts of %s: %d %q\n", in, keysText(m.Keys), m.Op, m.Text)
		case match.IDs:
			fmt.Fprintf(b, "%sids: %d\n", in, len(m.Refs))
		case match.Updated:
			fmt.Fprintf(b, "%supdated: %s [%s, %s)\n", in, m.Op, instantText(m.Low), instantText(m.High))
		case match.Chain:
			fmt.Fprintf(b, "%schain over %s to %s\n", in, keysText(m.Keys), m.Target)
			for i := range m.Clauses {
				dump(b, in+"  ", &m.Clauses[i])
			}
		case match.Has:
			fmt.Fprintf(b, "%shas %s by %s\n", in, m.Source, keysText(m.Keys))
			for i := range m.Clauses {
				dump(b, in+"  ", &m.Clauses[i])
			}
		case match.Named:
			how := "canonical"
			if m.Back {
				how = "canonical back"
			}
			fmt.Fprintf(b, "%s%s over %s to %s\n", in, how, keysText(m.Keys), m.Target)
			for i := range m.Clauses {
				dump(b, in+"  ", &m.Clauses[i])
			}
		case match.All:
			fmt.Fprintf(b, "%sall\n", in)
			for i := range m.Clauses {
				dump(b, in+"  ", &m.Clauses[i])
			}
		default:
			fmt.Fprintf(b, "%s%T\n", in, m)
		}
	}
}

func instantText(micros int64) string {
	switch {
	case micros <= fhir.OpenLow:
		return "-∞"
	case micros >= fhir.OpenHigh:
		return "∞"
	}
	return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano)
}

func numbersText(m *match.Numbers) string {
	switch m.Op {
	case match.EQ, match.NE, match.AP:
		return fmt.Sprintf("%s [%s, %s)", m.Op, m.Low, m.High)
	}
	return fmt.Sprintf("%s %s", m.Op, m.Value)
}
