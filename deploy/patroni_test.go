package deploy

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"kiln/server/store"
)

// The files for Patroni fit together: the members, and a URL that Kiln takes.
func TestPatroni(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("patroni/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var c struct {
		Scope     string
		Etcd3     struct{ Hosts string }
		Bootstrap struct {
			DCS struct {
				Synchronous bool `yaml:"synchronous_mode"`
				Strict      bool `yaml:"synchronous_mode_strict"`
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read("patroni.yml")), &c); err != nil {
		t.Fatal(err)
	}
	if c.Scope != "kiln" || !c.Bootstrap.DCS.Synchronous || !c.Bootstrap.DCS.Strict {
		t.Errorf("%+v", c)
	}
	_, url, _ := strings.Cut(read("kiln.env"), "KILN_DATABASE__URL=")
	if err := store.CheckHosts(strings.TrimSpace(url)); err != nil {
		t.Error(err)
	}
	for _, member := range []string{"db1", "db2", "db3"} {
		for name, text := range map[string]string{"patroni.yml": c.Etcd3.Hosts, "kiln.env": url, "etcd.env": read("etcd.env")} {
			if !strings.Contains(text, member) {
				t.Errorf("%s lacks %s", name, member)
			}
		}
	}
}
