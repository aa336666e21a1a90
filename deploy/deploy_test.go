// Package deploy checks the files beside it, as far as that goes without their
// daemons.
package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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
	_, final, _ := strings.Cut(string(text), "\nFROM debian")
	for what, line := range map[string]string{"every address": "ENV KILN_SERVER__LISTEN=0.0.0.0:8080 KILN_BULK__DIRECTORY=/var/lib/kiln/bulk", "pg_dump": "postgresql-client-17", "roots of TLS": "ca-certificates",
		"a place for files": "install -d -m 0700 -o 65532 -g 65532 /var/lib/kiln", "a health check": `CMD ["kiln", "health"]`, "the command": `ENTRYPOINT ["kiln"]`, "its place": "/usr/local/bin/kiln"} {
		if !strings.Contains(final, line) {
			t.Errorf("the image lacks %s: %s", what, line)
		}
	}
	// What the build copies exists, and is not ignored.
	ignored, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"cmd", "server", "oauth", "gen", "queries", "definitions", "go.mod", "go.sum", "oauth/oryx"} {
		if _, err := os.Stat(filepath.Join("..", folder)); err != nil {
			t.Error(err)
		}
		for line := range strings.SplitSeq(string(ignored), "\n") {
			if line == folder {
				t.Errorf(".dockerignore leaves out %s, which the build needs", folder)
			}
		}
	}
	for _, line := range []string{".git", ".kiln", "bin"} {
		if !strings.Contains(string(ignored), "\n"+line+"\n") {
			t.Errorf(".dockerignore does not leave out %s", line)
		}
	}
}

// A password may have every character: it stands beside the URL of the database.
func TestComposePassword(t *testing.T) {
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const password = "p@ss:w/o%20r#d?'\""
	var c struct {
		Services map[string]struct {
			Environment map[string]string
			Healthcheck struct{ Test []string }
		}
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	environment := c.Services["kiln"].Environment
	for name, value := range environment {
		if strings.HasPrefix(name, "PG") {
			t.Setenv(name, strings.ReplaceAll(value, "${KILN_DATABASE_PASSWORD}", password))
		}
	}
	config, err := pgx.ParseConfig(environment["KILN_DATABASE__URL"])
	if err != nil || config.Password != password || config.Host != "database" || config.User != "kiln" {
		t.Errorf("the password is %q, %v", config.Password, err)
	}
	if test := c.Services["kiln"].Healthcheck.Test; len(test) < 2 || test[len(test)-1] != "health" {
		t.Errorf("the health check is %q", test)
	}
}

// The unit waits for the server's own message, survives a killed script, and leaves the end of a private PostgreSQL to the
// server.
func TestUnitSettings(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("kiln.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Type=notify", "TimeoutStartSec=infinity", "OOMPolicy=continue", "KillMode=mixed", "UMask=0077"} {
		if !strings.Contains(string(unit), "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
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
			ReadOnly    bool `yaml:"read_only"`
			Volumes     []string
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
	if strings.Join(kiln.Volumes, "") != "files:/var/lib/kiln" {
		t.Errorf("the volumes are %v: the files of bulk jobs end with the container", kiln.Volumes)
	}
	if issuer, base := kiln.Environment["KILN_AUTH__ISSUER"], kiln.Environment["KILN_SERVER__BASE_URL"]; base != "${KILN_ISSUER}/fhir" || !strings.HasPrefix(issuer, "${KILN_ISSUER:") {
		t.Errorf("links begin with %q, the issuer is %q", base, issuer)
	}
	known := make(map[string]bool)
	for _, k := range settings.Keys[server.Config]() {
		known["KILN_"+strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__"))] = true
	}
	for name := range kiln.Environment {
		if !known[name] && name != "PGPASSWORD" {
			t.Errorf("%s is no key of the configuration", name)
		}
	}
}
