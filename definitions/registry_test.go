package definitions

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The registry is npm's; without one the error says how to name one.
func TestRegistry(t *testing.T) {
	for _, name := range []string{"npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		t.Setenv(name, "")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", home) // where there is no npm
	t.Chdir(t.TempDir())
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		got, err := Registry(t.Context())
		if want == "" && (err == nil || !strings.Contains(err.Error(), "--registry") || !strings.Contains(err.Error(), ".npmrc")) {
			t.Errorf("got %q, %v; want an error that says how to name a registry", got, err)
		}
		if want != "" && (got != want || err != nil) {
			t.Errorf("got %q, %v; want %s", got, err, want)
		}
	}
	check("")
	if _, err := (Source{}).Add(t.Context(), t.TempDir(), "test.ig@1.2.0"); err == nil || !strings.Contains(err.Error(), "--registry") {
		t.Errorf("Add without a registry: %v", err)
	}
	write(filepath.Join(home, "npm"), "#!/bin/sh\necho https://npm.example.org/\n")
	if err := os.Chmod(filepath.Join(home, "npm"), 0o700); err != nil {
		t.Fatal(err)
	}
	check("https://npm.example.org/")
	write(filepath.Join(home, ".npmrc"), "//home.example.org/:_authToken=x\nregistry = https://home.example.org\n")
	check("https://home.example.org")
	t.Setenv("NPM_HOST", "here.example.org")
	write(".npmrc", "@scope:registry=https://scope.example.org\nregistry=\"https://${NPM_HOST}/\"\n")
	check("https://here.example.org/")
	t.Setenv("npm_config_registry", "https://env.example.org")
	check("https://env.example.org")
	t.Setenv("npm_config_registry", "nonsense")
	check("")
}
