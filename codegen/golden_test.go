package codegen_test

import (
	"bytes"
	"encoding/json"
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
)

var update = flag.Bool("update", false, "rewrite the golden files")

// folder is definitions/ with the given files instead of its local ones.
func folder(t *testing.T, local ...string) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	copy := func(from, to string) {
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
		copy(p, filepath.Base(p))
	}
	copy("../definitions/packages.json", "packages.json")
	for _, f := range local {
		copy(f, "local/"+filepath.Base(f))
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
	for _, name := range []string{"index/goldenindex.go", "handler/goldenindex.go"} {
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
	for _, pkg := range []string{"r4", "index", "handler"} {
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
	cmd := exec.Command("go", "build", "-overlay", overlay, "./gen/r4", "./gen/index", "./gen/handler")
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

// The same definitions give the same bytes, and what is committed is what they
// give.
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
