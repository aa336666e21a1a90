package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/definitions"
)

// packageFile writes a .tgz of names and contents in turn, and returns its path.
func packageFile(t *testing.T, files ...string) string {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for i := 0; i < len(files); i += 2 {
		if err := tw.WriteHeader(&tar.Header{Name: "package/" + files[i], Typeflag: tar.TypeReg, Size: int64(len(files[i+1])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "example.tgz")
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// clashingPackage has a code system, a file that is no resource, a resource that is
// no R4, and a search parameter with the code of one of R4.
func clashingPackage(t *testing.T) string {
	return packageFile(t,
		"package.json", `{"name":"example.ig","version":"1.0.0","fhirVersions":["4.0.1"]}`,
		"CodeSystem-colours.json", `{"resourceType":"CodeSystem","id":"colours","url":"http://example.org/colours","status":"active","content":"complete","concept":[{"code":"red"}]}`,
		"ValueSet-x.json", `{"resourceType":"ValueSet","id":"x","url":"http://example.org/x","status":"active","colour":1}`,
		"broken.json", "{",
		"SearchParameter-mine.json", `{"resourceType":"SearchParameter","id":"mine","url":"http://example.org/mine","name":"Mine","status":"active","description":"x","code":"birthdate","base":["Patient"],"type":"date","expression":"Patient.deceased.ofType(dateTime)"}`)
}

// Packages are installed on a running server, listed there and removed.
func TestPackagesOfARunningServer(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	file := clashingPackage(t)
	later := packageFile(t,
		"package.json", `{"name":"example.ig","version":"2.0.0","fhirVersions":["4.0.1"]}`,
		"CodeSystem-colours.json", `{"resourceType":"CodeSystem","id":"colours","url":"http://example.org/colours","status":"active","content":"complete","concept":[{"code":"blue"}]}`)
	if out, err := kiln("package", "install", file, "--server", base, "--strict"); err == nil || !strings.Contains(err.Error(), "ValueSet-x.json") {
		t.Errorf("--strict gives %v\n%s", err, out)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"list"}, nil},
		{[]string{"install", file}, []string{"package/broken.json: error: ", "package/ValueSet-x.json: error: ", "colour",
			"Patient.birthdate: the search parameter http://hl7.org/fhir/SearchParameter/individual-birthdate is used, http://example.org/mine is not",
			"create     CodeSystem/colours  http://example.org/colours", "refused", "installed example.ig@1.0.0: 1 create, 0 update, 0 unchanged, 2 refused"}},
		{[]string{"list"}, []string{"example.ig@1.0.0  1 resources, installed "}},
		{[]string{"install", later}, []string{"installed example.ig@2.0.0: 0 create, 1 update"}},
		{[]string{"list"}, []string{"; 1 replaced by 2.0.0\nexample.ig@2.0.0  1 resources"}},
		{[]string{"list", "--replaced"}, []string{"\n  CodeSystem/colours  replaced by 2.0.0\n"}},
		{[]string{"remove", "example.ig@1.0.0"}, []string{"0 deleted, 1 kept"}},
		{[]string{"remove", "example.ig@2.0.0", "--dry-run"}, []string{"delete     CodeSystem/colours", "would remove example.ig@2.0.0: 1 deleted, 0 kept"}},
		{[]string{"remove", "example.ig"}, []string{"removed example.ig@2.0.0: 1 deleted, 0 kept"}},
		{[]string{"list"}, nil},
	} {
		out, err := kiln(append(append([]string{"package"}, c.args...), "--server", base)...)
		if err != nil {
			t.Fatalf("package %q: %v\n%s", c.args, err, out)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("package %q does not say %q:\n%s", c.args, want, out)
			}
		}
		if c.want == nil && out != "" {
			t.Errorf("package %q says %q", c.args, out)
		}
	}
	for _, args := range [][]string{{"remove", "example.ig", "--dry-run"}, {"list", "--token", "x"}, {"list", "--replaced"}} {
		if _, err := kiln(append([]string{"package"}, args...)...); err == nil || !strings.Contains(err.Error(), "--server") {
			t.Errorf("package %q without --server gives %v", args, err)
		}
	}
}

// Real packages are installed as they are published. KILN_TEST_REGISTRY=1
// fetches them from the registry; they are too large to keep in the tree.
func TestPublishedPackages(t *testing.T) {
	t.Parallel()
	if os.Getenv("KILN_TEST_REGISTRY") == "" {
		t.Skip("KILN_TEST_REGISTRY is not set")
	}
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	for _, name := range []string{"hl7.fhir.uv.ips@2.0.0", "hl7.terminology.r4@7.0.1"} {
		out, err := kiln("package", "install", name, "--server", base)
		if err != nil || !strings.Contains(out, "installed "+name+": ") {
			t.Errorf("%s: %v\n%s", name, err, out[max(0, len(out)-2000):])
		}
		if listed, err := kiln("package", "list", "--server", base); err != nil || !strings.Contains(listed, name) {
			t.Errorf("%s is not listed: %v\n%s", name, err, listed)
		}
	}
}

// A package that is added reports what its installation reports, and
// both refuse the same.
func TestPackageOfTheSourceTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, definitions.FS); err != nil {
		t.Fatal(err)
	}
	file := clashingPackage(t)
	add := func(args ...string) (string, error) {
		return kiln(append([]string{"package", "add", "--dir", dir}, args...)...)
	}
	list := func() string {
		t.Helper()
		out, err := kiln("package", "list", "--dir", dir)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := list()
	if out, err := add("--strict", file); err == nil || !strings.Contains(err.Error(), "ValueSet-x.json") || list() != before {
		t.Errorf("--strict gives %v\n%s", err, out)
	}
	added, err := add(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(added, "added example.ig@1.0.0: 1 CodeSystem; 2 refused\nnow run: make generate build") || !strings.Contains(list(), "example.ig@1.0.0  1 CodeSystem") {
		t.Errorf("it says %q, listed are\n%s", added, list())
	}
	library, err := definitions.Open(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://example.org/mine", "http://example.org/x"} {
		if _, there := library.Resolve(url); there {
			t.Errorf("%s is refused and there", url)
		}
	}
	installed, err := kiln("package", "install", file, "--server", realServer(t, func(next http.Handler) http.Handler { return next }))
	if err != nil {
		t.Fatal(err)
	}
	found := func(out string) (lines []string) {
		for line := range strings.Lines(out) {
			if strings.Contains(line, ": error: ") || strings.Contains(line, ": warning: ") || strings.Contains(line, "is used, ") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if diff := cmp.Diff(found(installed), found(added)); diff != "" || len(found(added)) < 3 {
		t.Errorf("reports (-install +add):\n%s", diff)
	}

	t.Run("a code of a package that was added before", func(t *testing.T) {
		parameter := func(url string) string {
			return `{"resourceType":"SearchParameter","id":"kin","url":"` + url + `","name":"Kin","status":"active","description":"x","code":"kin","base":["Patient"],"type":"string","expression":"Patient.contact.name.family"}`
		}
		if out, err := add(packageFile(t, "package.json", `{"name":"first.ig","version":"1.0.0"}`, "SearchParameter-kin.json", parameter("http://z.example/kin"))); err != nil {
			t.Fatal(err, out)
		}
		out, err := add("--json", packageFile(t, "package.json", `{"name":"second.ig","version":"1.0.0"}`, "SearchParameter-kin.json", parameter("http://a.example/kin"),
			"CodeSystem-c.json", `{"resourceType":"CodeSystem","id":"c","url":"http://a.example/c","status":"active","content":"complete"}`))
		if err != nil || !strings.Contains(out, `"code": "Patient.kin"`) || !strings.Contains(out, `"used": "http://z.example/kin"`) {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("a search parameter of R4", func(t *testing.T) {
		again := packageFile(t, "package.json", `{"name":"third.ig","version":"1.0.0"}`,
			"CodeSystem-d.json", `{"resourceType":"CodeSystem","id":"d","url":"http://a.example/d","status":"active","content":"complete"}`,
			"SearchParameter-born.json", `{"resourceType":"SearchParameter","id":"born","url":"http://a.example/born","name":"Born","status":"active","description":"x","code":"birthdate","base":["Patient"],"type":"date","expression":"Patient.birthDate"}`)
		out, err := add(again)
		if err != nil || !strings.Contains(out, "1 CodeSystem; 1 already part of R4") || strings.Contains(out, "refused") {
			t.Errorf("add: %v\n%s", err, out)
		}
		out, err = kiln("package", "install", again, "--server", realServer(t, func(next http.Handler) http.Handler { return next }))
		if err != nil || !strings.Contains(out, "http://a.example/born: already part of R4") ||
			!strings.Contains(out, "installed third.ig@1.0.0: 1 create, 0 update, 0 unchanged, 0 refused, 1 already part of R4") {
			t.Errorf("install: %v\n%s", err, out)
		}
	})
	for _, name := range []string{"example.ig", "first.ig@1.0.0", "second.ig", "third.ig"} {
		if out, err := kiln("package", "remove", "--dir", dir, name); err != nil || !strings.Contains(out, "removed "+strings.TrimSuffix(name, "@1.0.0")+"@1.0.0") {
			t.Errorf("remove %s: %v\n%s", name, err, out)
		}
	}
	if list() != before {
		t.Errorf("left is\n%s", list())
	}
	if _, err := kiln("package", "remove", "--dir", dir, "example.ig"); err == nil {
		t.Error("a package that is not there is removed")
	}
}
