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

// Issue 11, B22: packages are installed on a running server, listed there and removed.
func TestPackagesOfARunningServer(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	file := clashingPackage(t)
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
		{[]string{"remove", "example.ig@1.0.0", "--dry-run"}, []string{"delete     CodeSystem/colours", "would remove example.ig@1.0.0: 1 deleted, 0 kept"}},
		{[]string{"remove", "example.ig"}, []string{"removed example.ig@1.0.0: 1 deleted, 0 kept"}},
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
	for _, args := range [][]string{{"remove", "example.ig", "--dry-run"}, {"list", "--token", "x"}} {
		if _, err := kiln(append([]string{"package"}, args...)...); err == nil || !strings.Contains(err.Error(), "--server") {
			t.Errorf("package %q without --server gives %v", args, err)
		}
	}
}
