package definitions

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// errNoRegistry says how to name a registry.
var errNoRegistry = errors.New(`no package registry is known: name one with --registry URL, or set npm's with "npm config set registry URL" or a line registry=URL in .npmrc`)

// Registry returns the base URL of the package registry that npm uses here: its
// environment variable npm_config_registry, .npmrc in the working folder and in the
// home folder, then what `npm config get registry` says. No registry is built in.
// Spec: https://docs.npmjs.com/cli/configuring-npm/npmrc.
func Registry(ctx context.Context) (string, error) {
	found := cmp.Or(os.Getenv("npm_config_registry"), os.Getenv("NPM_CONFIG_REGISTRY"))
	if found == "" {
		found = fromFile(".npmrc")
	}
	if home, err := os.UserHomeDir(); found == "" && err == nil {
		found = fromFile(filepath.Join(home, ".npmrc"))
	}
	if found == "" {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output(); err == nil {
			found = strings.TrimSpace(string(out))
		}
	}
	if u, err := url.Parse(found); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", errNoRegistry
	}
	return found, nil
}

// fromFile returns the registry that an .npmrc names, "" where it names none.
func fromFile(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), "="); ok && strings.TrimSpace(k) == "registry" {
			return os.ExpandEnv(strings.Trim(strings.TrimSpace(v), `"'`))
		}
	}
	return ""
}
