package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kiln/server/store/storetest"
)

// runApart is runKiln with its two outputs apart.
func runApart(t *testing.T, dir string, environment []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Dir, c.Env = dir, append(append(os.Environ(), "RUN_AS_KILN=1"), environment...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

// A command that works on a database names it, and works on none that the server at
// server.listen does not use.
// Contract, Operations: Commands on a database.
func TestCommandsNameTheirDatabase(t *testing.T) {
	t.Parallel()
	its, another, address := storetest.New(t), storetest.New(t), freeAddress(t)
	startProcess(t, its, address, "http://"+address)
	at := "KILN_SERVER__LISTEN=" + address
	commands := [][]string{{"admin", "client", "list"}, {"migrate", "plan"}, {"backup", "x.zip"}}
	for _, args := range commands {
		name := strings.Join(args, " ")
		dir := t.TempDir()
		stdout, stderr, err := runApart(t, dir, []string{at, "KILN_DATABASE__URL=" + another}, args...)
		if err == nil || stdout != "" || !strings.Contains(stderr, "a server listens on "+address+" and uses another database") || !strings.Contains(stderr, "--any-server") {
			t.Errorf("%s on another database: %v, %q, %q", name, err, stdout, stderr)
		}
		// A private PostgreSQL that nobody uses is not even made.
		_, stderr, err = runApart(t, dir, []string{at}, args...)
		if err == nil || !strings.Contains(stderr, "uses another database than "+filepath.Join(dir, ".kiln")) {
			t.Errorf("%s without a configuration: %v, %q", name, err, stderr)
		}
		if _, err := os.Stat(filepath.Join(dir, ".kiln")); err == nil {
			t.Errorf("%s has made a data directory", name)
		}
	}
	dir := t.TempDir()
	for _, tt := range []struct {
		name        string
		environment []string
		args        []string
	}{
		{"the server's database", []string{at, "KILN_DATABASE__URL=" + its}, []string{"admin", "client", "list", "--json"}},
		{"another one, by option", []string{at, "KILN_DATABASE__URL=" + another}, []string{"admin", "client", "list", "--json", "--any-server"}},
		{"no server at the address", []string{"KILN_SERVER__LISTEN=" + freeAddress(t), "KILN_DATABASE__URL=" + another}, []string{"migrate", "plan", "--json"}},
		{"any port", []string{"KILN_SERVER__LISTEN=127.0.0.1:0", "KILN_DATABASE__URL=" + another}, []string{"migrate", "status", "--json"}},
	} {
		stdout, stderr, err := runApart(t, dir, tt.environment, tt.args...)
		if err != nil || !strings.HasPrefix(stdout, "[") || !strings.HasPrefix(stderr, "database: postgres") {
			t.Errorf("%s: %v, %q, %q", tt.name, err, stdout, stderr)
		}
	}
}
