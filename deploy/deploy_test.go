// Package deploy checks the files beside it, as far as that goes without their
// daemons.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"kiln/server"
	"kiln/server/settings"
)

// systemd takes the unit, but for the binary that is not installed here.
// Contract, Operations: deploy: the systemd unit.
func TestUnit(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	unit, err := os.ReadFile("kiln.service")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kiln.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(unit), "/usr/local/bin/kiln", self)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "verify", "--man=no", file).CombinedOutput()
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		if strings.Contains(line, "kiln.service") {
			t.Errorf("systemd-analyze: %s (%v)", line, err)
		}
	}
}

// The image runs as a user without rights, from fixed bases, by a static binary.
// Contract, Operations: deploy: a Dockerfile (static binary, non-root).
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	user := ""
	for line := range strings.SplitSeq(string(text), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "FROM":
			if image, _, _ := strings.Cut(rest, " "); !strings.Contains(image, ":") || strings.HasSuffix(image, ":latest") {
				t.Errorf("%s has no fixed tag", image)
			}
			user = ""
		case "USER":
			user = rest
		}
	}
	if user == "" || strings.HasPrefix(user, "0") || user == "root" {
		t.Errorf("the image runs as %q", user)
	}
	if !strings.Contains(string(text), "CGO_ENABLED=0") {
		t.Error("the binary is not static")
	}
}

// Compose's file can be read, its server is locked up, and each KILN_ variable of it
// is a key of the configuration.
// Contract, Operations: deploy: a compose file with PostgreSQL.
func TestCompose(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Services map[string]struct {
			Environment map[string]string
			ReadOnly    bool     `yaml:"read_only"`
			CapDrop     []string `yaml:"cap_drop"`
		}
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	kiln := c.Services["kiln"]
	if !kiln.ReadOnly || len(kiln.CapDrop) == 0 {
		t.Error("the server's root is not read-only, or it has capabilities")
	}
	known := make(map[string]bool)
	for _, k := range settings.Keys[server.Config]() {
		known["KILN_"+strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__"))] = true
	}
	for name := range kiln.Environment {
		if !known[name] {
			t.Errorf("%s is no key of the configuration", name)
		}
	}
}
