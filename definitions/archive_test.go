package definitions

import (
	"strings"
	"testing"
)

func TestReadArchive(t *testing.T) {
	good := map[string]string{
		"package/package.json": manifest, "package/SearchParameter-p.json": parameter, "package/.index.json": "{}",
		"package/Patient-x.json": `{"resourceType":"Patient","id":"x"}`, "package/example/ValueSet.json": `{"resourceType":"ValueSet","id":"not-taken","url":"http://x/v"}`,
	}
	with := func(name, body string) map[string]string {
		out := map[string]string{}
		for k, v := range good {
			out[k] = v
		}
		if out[name] = body; body == "" {
			delete(out, name)
		}
		return out
	}
	for _, c := range []struct {
		name, want string
		files      map[string]string
		err        string // of the archive; after "~" of a problem
	}{
		{"a package", "", good, ""},
		{"a package with another digest", "sha512-x", good, "digest is sha512-"},
		{"a path that leads out", "", with("package/../../x.json", "{}"), "leads out of the archive"},
		{"a path that leads out and is no definition", "", with("../../etc/cron.d/x", "x"), "leads out of the archive"},
		{"an absolute path", "", with("/x.json", "{}"), "leads out of the archive"},
		{"a path with backslashes", "", with(`package\..\..\x.json`, "{}"), "leads out of the archive"},
		{"no manifest", "", with("package/package.json", ""), "no FHIR package"},
		{"a manifest with a path as a name", "", with("package/package.json", `{"name":"../x","version":"1"}`), "names"},
		{"a file that is no JSON", "", with("package/x.json", "{"), "~package/x.json"},
		{"two definitions of one URL", "", with("package/SearchParameter-q.json", strings.Replace(parameter, `"id":"p"`, `"id":"q"`, 1)), "~both define SearchParameter http://x/p"},
		{"one definition under a second name", "", with("package/other.json", parameter), ""},
		{"nothing to install", "", with("package/SearchParameter-p.json", ""), "has no definitions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := ReadArchive(tgz(t, c.files), c.want)
			if want, ok := strings.CutPrefix(c.err, "~"); ok {
				if err != nil || len(a.Problems) != 1 || !strings.Contains(a.Problems[0].File+": "+a.Problems[0].Reason, want) {
					t.Fatalf("error is %v, problems are %v, want %q", err, a, want)
				}
				return
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if a.Name != "test.ig" || a.Version != "1.2.0" || len(a.Files) != 1 {
				t.Fatalf("read %s@%s with %d definitions", a.Name, a.Version, len(a.Files))
			}
			if f := a.Files[0]; f.Type != "SearchParameter" || f.ID != "p" || f.URL != "http://x/p" || string(f.Body) != parameter {
				t.Errorf("the definition is %+v", f)
			}
		})
	}
}
