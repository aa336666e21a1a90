package codegen_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"kiln/codegen"
	"kiln/codegen/emit"
	"kiln/codegen/ir"
	"kiln/definitions"
	"kiln/server/fhir"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// folder is definitions/ with the given files instead of its local ones.
func folder(t *testing.T, local ...string) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	take := func(from, to string) {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		out[to] = &fstest.MapFile{Data: b}
	}
	packages, err := filepath.Glob("../definitions/*.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		take(p, filepath.Base(p))
	}
	take("../definitions/packages.json", "packages.json")
	for _, f := range local {
		take(f, "local/"+filepath.Base(f))
	}
	return out
}

func goldenTree(t *testing.T) (emit.Tree, *ir.Model) {
	t.Helper()
	local, err := filepath.Glob("testdata/definitions/*.json")
	if err != nil || len(local) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	tree, m, err := codegen.Generate(folder(t, local...))
	if err != nil {
		t.Fatal(err)
	}
	return tree, m
}

// golden compares with a file of testdata/golden, or rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata/golden", filepath.FromSlash(name))
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); -update rewrites it:\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	tree, m := goldenTree(t)
	for _, typ := range []string{"choice", "backbone", "backbonepart", "recursion", "contained", "primitive", "index"} {
		name := "r4/golden" + typ + ".go"
		t.Run(typ, func(t *testing.T) { golden(t, name, tree[name]) })
	}
	for _, name := range []string{"index/goldenindex.go", "handler/goldenindex.go", "invariant/goldeninvariant.go"} {
		t.Run(name, func(t *testing.T) { golden(t, name, tree[name]) })
	}
	var b strings.Builder
	for _, list := range []struct {
		title   string
		remarks []ir.Remark
	}{{"interpreted", m.Interpreted}, {"omitted", m.Omitted}} {
		fmt.Fprintln(&b, list.title+":")
		for _, r := range list.remarks {
			if r.Base == "GoldenIndex" && !strings.HasPrefix(r.Code, "_") {
				fmt.Fprintf(&b, "  %s %s %q: %s\n", r.Type, r.Code, r.Expression, r.Reason)
			}
		}
	}
	golden(t, "remarks.txt", []byte(b.String()))
}

// TestGoldenCompiles builds the golden tree in place of gen/.
func TestGoldenCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles all of gen/")
	}
	tree, _ := goldenTree(t)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	for _, pkg := range []string{"r4", "index", "handler", "invariant"} {
		old, err := filepath.Glob(filepath.Join(root, "gen", pkg, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range old {
			replace[f] = "" // not there
		}
	}
	for name, body := range tree {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, body, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, "gen", filepath.FromSlash(name))] = file
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", overlay, "./gen/r4", "./gen/index", "./gen/handler", "./gen/invariant")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestFailingInputs(t *testing.T) {
	files, err := filepath.Glob("testdata/failing/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		t.Run(name, func(t *testing.T) {
			_, _, err := codegen.Generate(folder(t, f))
			if err == nil {
				t.Fatal("it compiles")
			}
			golden(t, path.Join("failing", name+".txt"), []byte(err.Error()+"\n"))
		})
	}
}

// TestPackageIsTakenIn adds a package and generates. Its search parameters and resource types become code;
// its faulty definitions are listed.
func TestPackageIsTakenIn(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, folder(t)); err != nil {
		t.Fatal(err)
	}
	widget, err := os.ReadFile("testdata/package/StructureDefinition-Widget.json")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "test.ig.tgz")
	pack(t, archive, map[string]string{
		"package/package.json":                    `{"name":"test.ig","version":"1.0.0","fhirVersions":["4.0.1"]}`,
		"package/StructureDefinition-Widget.json": string(widget),
		"package/SearchParameter-eye.json": `{"resourceType":"SearchParameter","id":"eye","url":"http://x/eye","name":"eye","status":"active","description":"Eye colour",
			"code":"eye","base":["Patient","Widget"],"type":"token","expression":"Patient.extension.where(url = 'http://x/eye').value | Widget.colour"}`,
		"package/SearchParameter-gender.json": `{"resourceType":"SearchParameter","id":"gender","url":"http://x/gender","name":"gender","status":"active","description":"x",
			"code":"gender","base":["Patient"],"type":"token","expression":"Patient.gender"}`,
		"package/SearchParameter-bad.json": `{"resourceType":"SearchParameter","id":"bad","url":"http://x/bad","name":"bad","status":"active","description":"x",
			"code":"bad","base":["Patient"],"type":"token","expression":"Patient.name.where("}`,
		"package/SearchParameter-worse.json": `{"resourceType":"SearchParameter","id":"worse","url":"http://x/worse","name":"worse","status":"nonsense","code":"worse","base":["Patient"],"type":"token"}`,
	})
	if _, err := (definitions.Source{}).Add(t.Context(), dir, archive); err != nil {
		t.Fatal(err)
	}
	tree, m, err := codegen.Generate(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want string }{
		{"index/patient.go", `tokenOf(x, ` + fmt.Sprintf("%#x", uint64(fhir.KeyOf(fhir.SearchToken, "Patient.extension('http://x/eye').value"))) + `, extension.Value)`},
		{"index/patient.go", `{Code: "eye", Base: "Patient"`},
		{"index/patient.go", `URL: "http://hl7.org/fhir/SearchParameter/individual-gender"`},
		{"r4/widget.go", "Colour *CodeableConcept"},
		{"index/widget.go", "tokenCodeableConcept(x, "},
		{"handler/widget.go", `"GET /Widget/{id}"`},
	} {
		if !strings.Contains(string(tree[c.file]), c.want) {
			t.Errorf("%s has no %s", c.file, c.want)
		}
	}
	var omitted []string
	for _, r := range m.Omitted {
		if strings.HasPrefix(r.URL, "http://x/") {
			omitted = append(omitted, r.URL+": "+r.Reason)
		}
	}
	want := []string{
		"http://x/worse: unknown PublicationStatus code `nonsense`",
		"http://x/bad: FHIRPath syntax error at column 20: expected a value, a name or '(', found end of expression",
		"http://x/gender: the code is that of http://hl7.org/fhir/SearchParameter/individual-gender",
	}
	if diff := cmp.Diff(want, omitted); diff != "" {
		t.Errorf("omitted (-want +got):\n%s", diff)
	}
}

// pack writes a .tgz.
func pack(t *testing.T, file string, files map[string]string) {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for name, body := range files {
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(body)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close(), os.WriteFile(file, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// The same definitions give the same bytes, equal to the committed ones.
func TestGenerateIsDeterministic(t *testing.T) {
	definitions := os.DirFS("../definitions")
	one, _, err := codegen.Generate(definitions)
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := codegen.Generate(definitions)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range one {
		if !bytes.Equal(body, two[name]) {
			t.Errorf("%s differs from run to run", name)
		}
		committed, err := os.ReadFile(filepath.Join("../gen", filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(body, committed) {
			t.Errorf("gen/%s is not what the definitions give: run go generate ./...", name)
		}
	}
}

func TestWriteKeepsWhatIsRight(t *testing.T) {
	dir := t.TempDir()
	write := func(tree emit.Tree) {
		t.Helper()
		if err := tree.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	const head = "// Code generated by codegen from x. DO NOT EDIT.\n"
	write(emit.Tree{"a/one.go": []byte(head + "1"), "a/two.go": []byte(head + "2")})
	own := filepath.Join(dir, "a", "own_test.go")
	if err := os.WriteFile(own, []byte("package a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(dir, "a/one.go"))
	if err != nil {
		t.Fatal(err)
	}
	write(emit.Tree{"a/one.go": []byte(head + "1")})
	after, err := os.Stat(filepath.Join(dir, "a/one.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !before.ModTime().Equal(after.ModTime()) {
		t.Error("a file that was right is written again")
	}
	if _, err := os.Stat(filepath.Join(dir, "a/two.go")); !os.IsNotExist(err) {
		t.Errorf("a stale file stays: %v", err)
	}
	if _, err := os.Stat(own); err != nil {
		t.Errorf("a hand-written file goes: %v", err)
	}
}
