package definitions

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tgz packs files into an archive as npm does.
func tgz(t *testing.T, files map[string]string) []byte {
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
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const (
	manifest  = `{"name":"test.ig","version":"1.2.0","fhirVersions":["4.0.1"],"license":"CC0-1.0"}`
	parameter = `{"resourceType":"SearchParameter","id":"p","url":"http://x/p","text":{"div":"x"},"code":"p","base":["Patient"],"type":"token","expression":"Patient.active","xpath":"x"}`
)

// registry serves one package as npm does; dist is its description of the archive.
func registry(t *testing.T, archive []byte, dist map[string]string) Source {
	t.Helper()
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	dist["tarball"] = srv.URL + "/test.ig.tgz"
	doc := map[string]any{"versions": map[string]any{"1.2.0": map[string]any{"dist": dist}}}
	mux.HandleFunc("GET /test.ig", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewEncoder(w).Encode(doc); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /test.ig.tgz", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(archive) })
	return Source{Registry: srv.URL, Client: srv.Client()}
}

func TestAddFromRegistry(t *testing.T) {
	archive := tgz(t, map[string]string{
		"package/package.json": manifest, "package/SearchParameter-p.json": parameter,
		"package/Patient-x.json":        `{"resourceType":"Patient","id":"x"}`,
		"package/example/ValueSet.json": `{"resourceType":"ValueSet","id":"not-taken"}`,
	})
	sum := sha1.Sum(archive)
	for _, c := range []struct {
		name string
		dist map[string]string
		err  string
	}{
		{"npm's integrity is checked", map[string]string{"integrity": integrity(archive)}, ""},
		{"a FHIR registry's SHA-1 is checked", map[string]string{"shasum": hex.EncodeToString(sum[:])}, ""},
		{"another digest is refused", map[string]string{"integrity": integrity([]byte("x"))}, "digest is sha512-"},
		{"another SHA-1 is refused", map[string]string{"shasum": strings.Repeat("0", 40)}, "SHA-1 is"},
		{"a registry without digest is refused", map[string]string{}, "gives no digest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := registry(t, archive, c.dist).Add(context.Background(), dir, "test.ig@1.2.0")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v, want %q", err, c.err)
				}
				if files, _ := os.ReadDir(dir); len(files) > 0 {
					t.Errorf("%d files were written", len(files))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Resources["SearchParameter"] != 1 || len(p.Resources) != 1 {
				t.Errorf("resources are %v, want one SearchParameter", p.Resources)
			}
			l, err := Open(os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			got, ok := l.Resolve("http://x/p")
			want := `{"resourceType":"SearchParameter","id":"p","url":"http://x/p","base":["Patient"],"code":"p","expression":"Patient.active","type":"token"}`
			if !ok || string(got) != want {
				t.Errorf("condensed to\n%s, want\n%s", got, want)
			}
		})
	}
}

func TestAddRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, files map[string]string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, tgz(t, files), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ name, spec, err string }{
		{"a bare name", "test.ig", "neither NAME@VERSION nor a .tgz"},
		{"a path as a name", "../../x@1.0.0", "neither NAME@VERSION nor a .tgz"},
		{"a file that is not there", "none.tgz", "none.tgz"},
		{"a package whose name is a path", file("a.tgz", map[string]string{"package/package.json": `{"name":"../../x","version":"1"}`, "package/p.json": parameter}), `names "../../x"`},
		{"a package for another FHIR", file("b.tgz", map[string]string{"package/package.json": strings.Replace(manifest, "4.0.1", "5.0.0", 1), "package/p.json": parameter}), "is for FHIR 5.0.0"},
		{"a package without definitions", file("c.tgz", map[string]string{"package/package.json": manifest}), "has no definitions"},
		{"a package without package.json", file("d.tgz", map[string]string{"package/p.json": parameter}), "no package/package.json"},
		{"a path that leads out", file("e.tgz", map[string]string{"package/package.json": manifest, "package/p.json": parameter, "package/../../etc/x.json": parameter}), "leads out of the archive"},
		{"two definitions of one URL", file("f.tgz", map[string]string{"package/package.json": manifest, "package/SearchParameter-p.json": parameter,
			"package/SearchParameter-q.json": strings.Replace(parameter, `"id":"p"`, `"id":"q"`, 1)}), "both define SearchParameter http://x/p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Source{}.Add(context.Background(), dir, c.spec)
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v, want %q", err, c.err)
			}
		})
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%d files were written", len(files))
	}
}

func TestAddReplacesAndRemove(t *testing.T) {
	dir := t.TempDir()
	add := func(version string) error {
		path := filepath.Join(t.TempDir(), "x.tgz")
		body := tgz(t, map[string]string{"package/package.json": strings.Replace(manifest, "1.2.0", version, 1), "package/p.json": parameter})
		if err := os.WriteFile(path, body, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Source{}.Add(context.Background(), dir, path)
		return err
	}
	for _, v := range []string{"1.2.0", "1.3.0"} {
		if err := add(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := add("1.3.0"); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("adding a version twice: %v", err)
	}
	list, err := List(os.DirFS(dir))
	if err != nil || len(list) != 1 || list[0].Version != "1.3.0" {
		t.Errorf("list is %v, %v; want the new version only", list, err)
	}
	if _, err := Remove(dir, "other"); err == nil || !strings.Contains(err.Error(), "test.ig@1.3.0") {
		t.Errorf("removing what is not there: %v, want what is there", err)
	}
	if _, err := Remove(dir, "test.ig"); err != nil {
		t.Fatal(err)
	}
	files, _ := os.ReadDir(dir)
	if len(files) != 1 || files[0].Name() != manifestFile {
		t.Errorf("left are %v, want the manifest", files)
	}
}

// Two packages with different definitions of a URL: the conflict is told, one that
// says the same is none.
func TestConflicts(t *testing.T) {
	dir := t.TempDir()
	var last Package
	for _, c := range []struct{ name, parameter string }{
		{"a.ig", parameter},
		{"b.ig", parameter},
		{"c.ig", strings.Replace(parameter, "token", "string", 1)},
	} {
		file := filepath.Join(t.TempDir(), "x.tgz")
		body := tgz(t, map[string]string{"package/package.json": strings.Replace(manifest, "test.ig", c.name, 1), "package/p.json": c.parameter})
		if err := os.WriteFile(file, body, 0o644); err != nil {
			t.Fatal(err)
		}
		var err error
		if last, err = (Source{}).Add(t.Context(), dir, file); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Conflicts(os.DirFS(dir), last)
	want := []Conflict{{"http://x/p", "a.ig@1.2.0", "c.ig@1.2.0"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("conflicts are %v, %v; want %v", got, err, want)
	}
}

func TestLibrary(t *testing.T) {
	l, err := Open(FS)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(l.Entries("StructureDefinition")); n < 655 {
		t.Errorf("%d StructureDefinitions, R4 has 655", n)
	}
	for _, canonical := range []string{"http://hl7.org/fhir/StructureDefinition/Patient", "http://hl7.org/fhir/ValueSet/administrative-gender|4.0.1"} {
		b, ok := l.Resolve(canonical)
		url, _, _ := strings.Cut(canonical, "|")
		if !ok || !bytes.Contains(b, []byte(`"url":"`+url+`"`)) {
			t.Errorf("%s resolves to %.80s, %v", canonical, b, ok)
		}
	}
	if _, ok := l.Resolve("http://hl7.org/fhir/StructureDefinition/Patient|3.0.0"); ok {
		t.Error("a version that is not there resolves")
	}
	if b, ok := l.Read("SearchParameter", "Observation-code"); ok || b != nil {
		t.Errorf("Observation-code is clinical-code in R4, read %.80s", b)
	}
	n := 0
	for e, b := range l.All("") {
		n++
		if !json.Valid(b) || !bytes.Contains(b, []byte(`"id":"`+e.ID+`"`)) {
			t.Fatalf("%s/%s is %.100s", e.Type, e.ID, b)
		}
	}
	if n != len(l.Entries("")) || n < 4500 {
		t.Errorf("All walks %d definitions, Entries has %d", n, len(l.Entries("")))
	}
}

// A local definition is written as a differential and has a snapshot in the
// library.
func TestLocalSnapshot(t *testing.T) {
	l, err := Open(FS)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := l.Resolve("http://kiln/fhir/StructureDefinition/App")
	var d struct {
		Snapshot struct{ Element []struct{ Path string } }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range d.Snapshot.Element {
		paths = append(paths, e.Path)
	}
	got := strings.Join(paths, " ")
	for _, want := range []string{"App App.id App.meta", "App.modifierExtension App.name", "App.operations App.operations.id App.operations.extension App.operations.modifierExtension App.operations.name"} {
		if !strings.Contains(got, want) {
			t.Errorf("snapshot is %s, want %q in it", got, want)
		}
	}
	if b, ok := l.Resolve("http://hl7.org/fhir/StructureDefinition/Subscription"); !ok || !bytes.Contains(b, []byte("Subscription.filterBy")) {
		t.Error("HL7's Subscription is not replaced by the local one")
	}
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		if _, err := Open(FS); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	l, err := Open(FS)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, ok := l.Resolve("http://hl7.org/fhir/StructureDefinition/Patient"); !ok {
			b.Fatal("not found")
		}
	}
}

// A package is named by its requirements and its guide, which it keeps; those of R4 itself are examples.
func TestAddKeepsGuides(t *testing.T) {
	files := map[string]string{
		"package/package.json": manifest, "package/SearchParameter-p.json": parameter,
		"package/CapabilityStatement-s.json": `{"resourceType":"CapabilityStatement","id":"s","url":"http://x/s","kind":"requirements","rest":[{"mode":"server","documentation":"prose"}]}`,
		"package/ImplementationGuide-g.json": `{"resourceType":"ImplementationGuide","id":"g","url":"http://x/g","packageId":"test.ig","definition":{"resource":[]}}`,
	}
	for name, want := range map[string]bool{"test.ig": true, "hl7.fhir.r4.test": false} {
		if !want { // R4's own package has its guide twice
			files["package/ImplementationGuide-again.json"] = files["package/ImplementationGuide-g.json"]
		} else {
			delete(files, "package/ImplementationGuide-again.json")
		}
		files["package/package.json"] = strings.Replace(manifest, "test.ig", name, 1)
		file := filepath.Join(t.TempDir(), "x.tgz")
		if err := os.WriteFile(file, tgz(t, files), 0o644); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		p, err := Source{}.Add(context.Background(), dir, file)
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		for url, body := range map[string]string{
			"http://x/s": `{"resourceType":"CapabilityStatement","id":"s","url":"http://x/s","kind":"requirements","rest":[{"mode":"server"}]}`,
			"http://x/g": `{"resourceType":"ImplementationGuide","id":"g","url":"http://x/g","packageId":"test.ig"}`,
		} {
			if got, ok := l.Resolve(url); ok != want || ok && string(got) != body {
				t.Errorf("%s: %s is %s, want %v", name, url, got, want)
			}
		}
		if got := p.Resources["ImplementationGuide"] == 1; got != want {
			t.Errorf("%s: the manifest counts %v", name, p.Resources)
		}
	}
}
