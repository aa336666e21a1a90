package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// Every command of the guide works, in the guide's order, beside a running server; and
// every piece of configuration is one that a server starts with: docs/authorization.md.
// Contract, Authorization 2: `kiln admin client|user|key|apikey` on the database itself; an API key stands
// alone on the last line; 5: `kiln token explain`.
func TestAuthorizationGuide(t *testing.T) {
	t.Parallel()
	database, address := storetest.New(t), freeAddress(t)
	guide, err := os.ReadFile("../docs/authorization.md")
	if err != nil {
		t.Fatal(err)
	}
	s := startProcess(t, database, address, "http://"+address)
	storePatient(t, s.base, database, "123")
	dir := t.TempDir()
	environment := append(os.Environ(), "RUN_AS_KILN=1", "PROGRAM="+os.Args[0], "KILN_DATABASE__URL="+database, "KILN_SERVER__LISTEN="+address, "KILN_AUTH__SIGNING__ALGORITHM=ES384")

	// 1. The commands: one shell, for variables live from block to block.
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	script := "set -euo pipefail\ntrap 'echo \"FAILED: $BASH_COMMAND\"' ERR\nkiln() { \"$PROGRAM\" \"$@\"; }\nmake() { command make -n \"$@\"; }\n"
	for _, block := range blocks {
		script += block[1]
	}
	c := exec.Command("bash", "-c", strings.ReplaceAll(script, "http://127.0.0.1:8080", s.base))
	c.Dir, c.Env = "..", environment
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("the guide's commands: %v\n%s", err, out)
	}
	for what, pattern := range map[string]string{
		"make demo":                    `(?m)bin/kiln serve --demo`,
		"an API key alone on its line": `(?m)^kiln_\S+$`,
		"a password of a new user":     `(?m)^\S{12,}$`,
		"a token by a secret":          `"access_token":"[^"]+"`,
		"a launch":                     `"launch":"[^"]+"`,
		"what a token may":             `"decision": "conditional"`,
		"registration switched on":     `"enabled": ?true|enabled`,
	} {
		if !regexp.MustCompile(pattern).Match(out) {
			t.Errorf("no output is %s:\n%s", what, out)
		}
	}
	if len(blocks) < 10 {
		t.Errorf("the guide has %d blocks of commands", len(blocks))
	}
	// What explain makes for its question is gone; the guide's two keys are there.
	list := exec.Command(os.Args[0], "admin", "apikey", "list")
	list.Env = environment
	if keys, err := list.Output(); err != nil || strings.Contains(string(keys), "explain") || !strings.Contains(string(keys), "nightly") {
		t.Errorf("API keys: %v\n%s", err, keys)
	}

	// 2. The configuration.
	pieces := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	if len(pieces) < 4 {
		t.Errorf("the guide has %d pieces of configuration", len(pieces))
	}
	for _, piece := range pieces {
		file := write(t, filepath.Join(dir, "kiln.yaml"), []byte(piece[1]))
		c := exec.Command(os.Args[0], "config", "print", "--config", file)
		c.Env = environment
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s\n%s", err, out, piece[1])
		}
	}
	// 3. No command stands elsewhere, where nobody runs it.
	rest := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(guide), "")
	if m := regexp.MustCompile(`(?m)^ {4}\S.*$`).FindString(rest); m != "" {
		t.Errorf("the guide has an indented block, which no test runs: %s", m)
	}
}

// Contract, Authorization 1: `auth.enabled` is false by default, which the banner tells;
// with it the banner says that tokens are needed.
func TestBannerTellsWhoHasAccess(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"": "open to everyone on this machine", "true": "by token"} {
		t.Run("auth.enabled "+value, func(t *testing.T) {
			t.Parallel()
			database, err := url.Parse(storetest.New(t))
			if err != nil {
				t.Fatal(err)
			}
			q := database.Query()
			q.Set("sslpassword", "hidden")
			database.RawQuery = q.Encode()
			args := []string{"serve", "--listen", freeAddress(t), "--database-url", database.String()}
			if value != "" {
				file := write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("auth: {enabled: "+value+", signing: {algorithm: ES384}}\n"))
				args = append(args, "--config", file)
			}
			_, said := startKiln(t, args...)
			for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), "Ctrl-C"); <-time.After(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no banner: %s", said)
				}
			}
			if !strings.Contains(said.String(), "Access       "+want) {
				t.Errorf("the banner does not say that access is %s:\n%s", want, said)
			}
			if asks := strings.Contains(said.String(), "Authorization: Bearer"); asks != (value == "true") || strings.Contains(said.String(), "curl -d") == asks {
				t.Errorf("what the banner says to try is not by token, or is by one:\n%s", said)
			}
			if strings.Contains(said.String(), "hidden") {
				t.Errorf("a password is shown:\n%s", said)
			}
		})
	}
}

// Contract, Authorization 2: `kiln admin client|user|key …` on the database itself, no
// server needed: list, create, show, update, disable, delete, new secret and password;
// API keys, `--expires` or, told, none; the key stands alone on the last line.
func TestAccountCommands(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	environment := append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database, "KILN_AUTH__SIGNING__ALGORITHM=ES384", "KILN_SERVER__LISTEN="+freeAddress(t))
	run := func(line string) (string, error) {
		c := exec.Command(os.Args[0], strings.Fields(line)...)
		c.Dir, c.Env = t.TempDir(), environment
		out, err := c.CombinedOutput()
		return string(out), err
	}
	last := func(out string) string {
		lines := strings.Split(strings.TrimSpace(out), "\n")
		return lines[len(lines)-1]
	}
	var key, secret, kid string
	for _, tt := range []struct{ line, want, not string }{
		{"admin client create backend --confidential --grant-type client_credentials --scope system/*.rs", `(?m)^[A-Za-z0-9_-]{43}$`, ""},
		{"admin client create backend --confidential --scope system/*.rs", "already", ""},
		{"admin client create useless --confidential", "scopes is empty", ""},
		{"admin client create useless --scope patient/*.rs", "redirectUris is empty", ""},
		{"admin client create useless --confidential --scope system/Patiens.rs", "no resource can match", ""},
		{"admin client create useless --confidential --scope system/Patient.rs?colour=red", "no resource can match", ""},
		{"admin client list", "backend", ""},
		{"admin client show backend", `system/\*\.rs`, "ecret\":"},
		{"admin client update backend --name Nightly", "Nightly", ""},
		{"admin grant list", `(?m)^\[\]`, ""},
		{"admin client secret backend", `(?m)^[A-Za-z0-9_-]{43}$`, ""},
		{"admin client disable backend", "", ""},
		{"admin client show backend", `"?active"?:? ?\S*false`, ""},
		{"admin client delete backend", "", ""},
		{"admin client list", "", "backend"},
		{"admin user create nurse --name Nora --role admin", `(?m)^\S{12,}$`, ""},
		{"admin user list", "nurse", ""},
		{"admin user update nurse --name Nina", "Nina", ""},
		{"admin user show nurse", "Nina", "argon2id"},
		{"admin user password nurse", `(?m)^\S{12,}$`, ""},
		{"admin client create chart --redirect-uri https://app.example.org/cb --scope user/*.rs", "", ""},
		{"token mint --client chart --user nurse --scope user/*.rs", "", ""},
		{"admin grant list --user nurse", `"client": "chart"`, ""},
		{"admin grant revoke --user nurse --client chart", "", ""},
		{"admin grant list --user nurse", `(?m)^\[\]`, ""},
		{"admin user disable nurse", "", ""},
		{"admin user show nurse", `"?active"?:? ?\S*false`, ""},
		{"admin user delete nurse", "", ""},
		{"admin user list", "", "nurse"},
		{"admin key rotate", "", ""},
		{"admin key list", "ES384", "PRIVATE"},
		{"admin key rotate --now", "signing", "retired"},
		{"admin key revoke KID", "signing", "KID"},
		{"admin apikey create --name nightly --scope system/*.rs", "it does not expire", ""},
		{"admin apikey create --name lab --scope system/Observation.rs?category=laboratory,vital-signs&status=final,system/Patient.rs,admin",
			`with scope admin system/Observation\.rs\?category=laboratory,vital-signs&status=final system/Patient\.rs;`, ""},
		{"admin apikey create --name short --scopes system/*.rs --expires 90d", "it expires 20", ""},
		{"admin apikey list", "nightly", ""},
		{"admin apikey revoke KEY", "", ""},
		{"admin apikey list --json", `"revoked`, ""},
	} {
		if strings.Contains(tt.line, "KID") {
			tt.line = strings.ReplaceAll(tt.line, "KID", kid)
			tt.not = kid
		}
		out, err := run(strings.ReplaceAll(tt.line, "KEY", key))
		if m := regexp.MustCompile(`"kid": "([^"]*)"`).FindStringSubmatch(out); m != nil {
			kid = m[1]
		}
		if refused := tt.want == "already" || strings.HasSuffix(tt.want, "is empty") || tt.want == "no resource can match"; (err != nil) != refused {
			t.Errorf("kiln %s: %v\n%s", tt.line, err, out)
			continue
		}
		if !regexp.MustCompile(tt.want).MatchString(out) || tt.not != "" && strings.Contains(out, tt.not) {
			t.Errorf("kiln %s says %s, want %q and no %q", tt.line, out, tt.want, tt.not)
		}
		switch {
		case strings.HasPrefix(tt.line, "admin apikey create"):
			if key = last(out); !strings.HasPrefix(key, "kiln_") || strings.ContainsAny(key, " \t") {
				t.Errorf("kiln %s: the last line is %q", tt.line, key)
			}
		case strings.HasPrefix(tt.line, "admin client create"), strings.HasPrefix(tt.line, "admin client secret"):
			if !strings.Contains(out, "already") && last(out) == secret {
				t.Errorf("kiln %s gives the secret that was", tt.line)
			}
			secret = last(out)
		}
	}
}

// Contract, Authorization, section 4: a granular scope is one scope, whichever values its search has.
func TestScopesFlag(t *testing.T) {
	t.Parallel()
	for given, want := range map[string][]string{
		"system/*.rs":                                                   {"system/*.rs"},
		"openid launch/patient  admin":                                  {"openid", "launch/patient", "admin"},
		"system/Patient.rs,admin":                                       {"system/Patient.rs", "admin"},
		"system/Observation.rs?category=a,b":                            {"system/Observation.rs?category=a,b"},
		"system/Observation.rs?code=a,admin&subject=Patient/1 admin":    {"system/Observation.rs?code=a,admin&subject=Patient/1", "admin"},
		"user/A.rs?x=a,b,user/B.rs?y=c,d,patient/C.rs,launch":           {"user/A.rs?x=a,b", "user/B.rs?y=c,d", "patient/C.rs", "launch"},
		"system/Observation.rs?subject=Patient/1,Patient/2,system/B.rs": {"system/Observation.rs?subject=Patient/1,Patient/2", "system/B.rs"},
		"": nil,
	} {
		var got scopeList
		if err := got.Set(given); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", given, got, err, want)
		}
	}
}
