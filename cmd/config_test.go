package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"kiln/server"
	"kiln/server/store/storetest"
)

// command is the command of a name, with the flags that it has of those above it.
func command(t *testing.T, names ...string) *cobra.Command {
	t.Helper()
	c, _, err := root().Find(names)
	if err != nil {
		t.Fatal(err)
	}
	c.InheritedFlags() // merges them
	return c
}

func TestReadConfig(t *testing.T) {
	for _, tt := range []struct {
		name    string
		file    string
		env     []string
		args    []string
		want    func(c *server.Config)
		wantErr string
	}{
		{name: "nothing is configured", want: func(*server.Config) {}},
		{name: "the file", file: "server:\n  listen: 127.0.0.1:1\nsearch:\n  max_count: 50\n",
			want: func(c *server.Config) { c.Server.Listen, c.Search.MaxCount = "127.0.0.1:1", 50 }},
		{name: "the environment wins over the file", file: "server:\n  listen: 127.0.0.1:1\n", env: []string{"KILN_SERVER__LISTEN=127.0.0.1:2", "KILN_AUTH__ENABLED=false"},
			want: func(c *server.Config) { c.Server.Listen = "127.0.0.1:2" }},
		{name: "a flag wins over the environment", env: []string{"KILN_SERVER__LISTEN=127.0.0.1:2"}, args: []string{"--listen", "127.0.0.1:3"},
			want: func(c *server.Config) { c.Server.Listen = "127.0.0.1:3" }},
		{name: "lists in the environment are divided by commas", env: []string{"KILN_SERVER__TRUSTED_PROXIES=10.0.0.1, 10.1.0.0/16"},
			want: func(c *server.Config) { c.Server.TrustedProxies = []string{"10.0.0.1", "10.1.0.0/16"} }},
		{name: "a list in the file", file: "server:\n  allowed_origins: [https://a.example.org]\n",
			want: func(c *server.Config) { c.Server.AllowedOrigins = []string{"https://a.example.org"} }},
		{name: "an empty list turns CORS off", env: []string{"KILN_SERVER__ALLOWED_ORIGINS="}, want: func(c *server.Config) { c.Server.AllowedOrigins = []string{} }},
		{name: "other variables are none of ours", env: []string{"KILN_SHARED_DATA=/data", "HOME=/root"}, want: func(*server.Config) {}},
		{name: "an unknown key names the nearest", file: "server:\n  lisen: x\n", wantErr: "unknown key server.lisen, did you mean \"server.listen\"?"},
		{name: "an unknown key in the environment", env: []string{"KILN_SEARCH__MAXCOUNT=1"}, wantErr: "unknown key search.maxcount, did you mean \"search.max_count\"?"},
		{name: "a value of another type", file: "search:\n  max_count: many\n", wantErr: `search.max_count is "many": expected a whole number`},
		{name: "a text that is no number", file: "telemetry:\n  sample_ratio: half\n", wantErr: `kiln.yaml: telemetry.sample_ratio is "half": expected a number`},
		{name: "a key without a value sets nothing", file: "server:\n  base_url:\nsearch:\n  max_count: null\n  # default_count: 5\nlog:\n", want: func(*server.Config) {}},
		{name: "an unknown key without a value", file: "serch:\n", wantErr: "unknown key serch"},
		{name: "a second document", file: "search:\n  max_count: 50\n---\nsearch:\n  max_cuont: 60\n", wantErr: "kiln.yaml: expected one document, found another after ---"},
		{name: "a document between its marks", file: "---\nsearch:\n  max_count: 50\n...\n", want: func(c *server.Config) { c.Search.MaxCount = 50 }},
		{name: "a section in the environment", env: []string{"KILN_AUTH=true"}, wantErr: "KILN_AUTH is no key, did you mean a key of auth, such as KILN_AUTH__ENABLED?"},
		{name: "a list with a wrong item", env: []string{"KILN_NOTIFICATIONS__WEBHOOK__RETRY_BACKOFF_SECONDS=10,x"},
			wantErr: `environment: notifications.webhook.retry_backoff_seconds is "[10 x]": expected a list, of each a whole number`},
		{name: "a list with a wrong item in the file", file: "notifications:\n  webhook:\n    retry_backoff_seconds: [1, two]\n",
			wantErr: `kiln.yaml: notifications.webhook.retry_backoff_seconds is "[1 two]": expected a list, of each a whole number`},
		{name: "a list of entries that are texts", file: "auth:\n  bootstrap:\n    clients: [a]\n", wantErr: "auth.bootstrap.clients is "},
		{name: "a list of entries in the environment", env: []string{"KILN_AUTH__BOOTSTRAP__CLIENTS=a"}, wantErr: "environment: auth.bootstrap.clients has entries with fields: it can only be set in the file"},
		{name: "a file that is a list", file: "- search\n", wantErr: "kiln.yaml: expected keys with their values"},
		{name: "a file that is a text", file: "search\n", wantErr: "kiln.yaml: expected keys with their values"},
		{name: "a text that is no truth value", env: []string{"KILN_AUTH__ENABLED=maybe"}, wantErr: `environment: auth.enabled is "maybe": expected true or false`},
		{name: "every wrong key is told", file: "server:\n  lisen: x\nserch:\n  max_count: 1\n", env: []string{"KILN_LOG__LEVL=info"}, wantErr: "unknown key log.levl, did you mean \"log.level\"? (KILN_LOG__LEVEL); its value is \"info\""},
		{name: "with its value", file: "server:\n  lisen: x\nserch:\n  max_count: 17\n", wantErr: `; its value is "17"`},
		{name: "KILN_DATABASE_URL", env: []string{"KILN_DATABASE_URL=postgres://db/kiln"}, wantErr: "environment: KILN_DATABASE_URL is no key, did you mean KILN_DATABASE__URL?"},
		{name: "KILN_LISTEN", env: []string{"KILN_LISTEN=127.0.0.1:1"}, wantErr: "KILN_LISTEN is no key, did you mean KILN_SERVER__LISTEN?"},
		{name: "KILN_BASE_URL", env: []string{"KILN_BASE_URL=http://x"}, wantErr: "did you mean KILN_SERVER__BASE_URL?"},
		{name: "KILN_DATA_DIR", env: []string{"KILN_DATA_DIR=/d"}, wantErr: "did you mean KILN_DATABASE__DATA_DIR?"},
		{name: "KILN_AUTH_ENABLED", env: []string{"KILN_AUTH_ENABLED=true"}, wantErr: "did you mean KILN_AUTH__ENABLED?"},
		{name: "a letter wrong", env: []string{"KILN_DATABSE_URL=postgres://db/kiln"}, wantErr: "did you mean KILN_DATABASE__URL?"},
		{name: "KILN_DB_URL", env: []string{"KILN_DB_URL=postgres://db/kiln"}, wantErr: "did you mean KILN_DATABASE__URL?"},
		{name: "KILN_PORT with a number", env: []string{"KILN_PORT=8080"}, wantErr: "did you mean KILN_SERVER__LISTEN?"},
		{name: "KILN_CONFIG", env: []string{"KILN_CONFIG=/etc/kiln.yaml"}, wantErr: "did you mean the flag --config?"},
		{name: "small letters", env: []string{"kiln_database__url=postgres://db/kiln"}, wantErr: "kiln_database__url is no key, did you mean KILN_DATABASE__URL?"},
		{name: "small letters and one underscore", env: []string{"kiln_listen=x"}, wantErr: "did you mean KILN_SERVER__LISTEN?"},
		{name: "variables of a container platform", env: []string{"KILN_PORT=tcp://10.0.0.1:8080", "KILN_SERVICE_HOST=10.0.0.1", "KILN_SERVICE_PORT=8080", "KILN_PORT_8080_TCP=tcp://10.0.0.1:8080",
			"KILN_PORT_8080_TCP_ADDR=10.0.0.1", "KILN_VERSION=1", "KILN_HOME=/opt", "KILN_BIN=/usr/bin/kiln"}, want: func(*server.Config) {}},
		{name: "a file that is no YAML", file: "server: [", wantErr: "kiln.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kiln.yaml")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			c := command(t, "serve")
			if err := c.ParseFlags(append(tt.args, "--config", path)); err != nil {
				t.Fatal(err)
			}
			got, err := readConfig(c.Flags(), tt.env)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want %q in it", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := server.Default()
			tt.want(&want)
			if diff := cmp.Diff(want, got.config); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a file that was named must be there", func(t *testing.T) {
		c := command(t, "serve")
		if err := c.ParseFlags([]string{"--config", filepath.Join(t.TempDir(), "none.yaml")}); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(c.Flags(), nil); err == nil {
			t.Error("no error")
		}
	})
}

func TestConfigPrintMasksSecrets(t *testing.T) {
	for _, json := range []bool{false, true} {
		c := root()
		var out strings.Builder
		c.SetOut(&out)
		t.Setenv("KILN_TELEMETRY__OTLP_ENDPOINT", "https://kiln:hidden@traces.example.org")
		t.Setenv("KILN_TERMINOLOGY__SERVER_URL", "https://kiln:hidden@tx.example.org/fhir")
		args := []string{"config", "print", "--database-url", "postgres://kiln:hidden@db/kiln?sslpassword=hidden"}
		if json {
			args = append(args, "--json")
		}
		c.SetArgs(args)
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "hidden") || strings.Count(out.String(), "//kiln:xxxxx@") != 3 {
			t.Errorf("json %v:\n%s", json, out.String())
		}
	}
}

func TestEveryKeyIsExplained(t *testing.T) {
	for _, k := range keys() {
		if k.doc == "" || strings.HasSuffix(k.name, ".") {
			t.Errorf("key %q has no name or no explanation", k.name)
		}
	}
}

// What serve refuses, check refuses, and it tells every wrong key with its value.
func TestConfigCheck(t *testing.T) {
	foreign := httptest.NewServer(http.NotFoundHandler())
	defer foreign.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	busy := foreign.Listener.Addr().String()
	for _, tt := range []struct {
		flags string
		env   map[string]string
		want  []string // nil: the configuration is good
	}{
		{flags: "--listen 127.0.0.1:0"},
		{flags: "--listen 0.0.0.0:8080", want: []string{"server.listen"}},
		{flags: "--listen example", want: []string{"server.listen"}},
		{flags: "--listen 127.0.0.1:0 --base-url example.org", want: []string{`server.base_url is "example.org"`}},
		{flags: "--listen 127.0.0.1:0 --base-url https://example.org/fhir?a=b", want: []string{`server.base_url is "https://example.org/fhir?a=b": expected a URL without a query and a fragment`}},
		{flags: "--listen 127.0.0.1:0 --base-url https://example.org/fhir#a", want: []string{`server.base_url is "https://example.org/fhir#a": expected a URL without`}},
		{flags: "--listen 127.0.0.1:0 --database-url mysql://kiln:hidden@db/kiln", want: []string{`database.url is "mysql://kiln:xxxxx@db/kiln": expected a URL that starts with postgres://`}},
		{flags: "--listen 127.0.0.1:0 --database-url mysql:///kiln?password=hidden", want: []string{`database.url is "mysql:///kiln?password=xxxxx": expected`}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_DATABASE__URL": "host=db port=x password=hidden"}, want: []string{`database.url is "host=db port=x password=xxxxx": expected`}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_TERMINOLOGY__SERVER_URL": strings.Replace(gone.URL, "//", "//kiln:hidden@", 1)}, want: []string{"terminology.server_url: http://kiln:xxxxx@"}},
		{flags: "--listen 127.0.0.1:0 --database-url postgres://kiln@127.0.0.1:1/kiln", want: []string{"connection: the database at 127.0.0.1:1 cannot be reached"}},
		{flags: "--listen " + busy, want: []string{"port: another program listens on " + busy, "--listen"}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_TERMINOLOGY__SERVER_URL": gone.URL}, want: []string{"terminology.server_url: " + gone.URL + " cannot be reached"}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_TERMINOLOGY__SERVER_URL": foreign.URL}, want: []string{"answers 404 Not Found to /metadata"}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_LOG__LEVEL": "loud", "KILN_SEARCH__MAX_COUNT": "0", "KILN_SEARCH__TIMEOUT_SECONDS": "soon", "KILN_VALIDATION__MODE": "some", "KILN_LISTEN": "x"},
			want: []string{`log.level is "loud": expected debug, info, warn, error`, "search.max_count is 0: expected 1 or more", `search.timeout_seconds is "soon": expected a whole number`,
				`validation.mode is "some"`, "KILN_LISTEN is no key, did you mean KILN_SERVER__LISTEN?"}},
		{flags: "--listen 127.0.0.1:0", env: map[string]string{"KILN_AUTH__OAUTH__ACCESS_TOKEN_LIFETIME": "soon", "KILN_AUTH__RATE_LIMITING__CONCURRENT_SEARCHES": "-1", "KILN_AUTH__SIGNING__KEY_ROTATION_DAYS": "1"},
			want: []string{`auth.oauth.access_token_lifetime is "soon": expected a lifetime`, "auth.rate_limiting.concurrent_searches is -1: expected 0 or more", "auth.signing.key_rotation_days is 1: expected 2 or more"}},
		{flags: "--listen 127.0.0.1:0 --config " + write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("server:\n  tls: {cert_file: /nonexistent, key_file: /nonexistent}\n")),
			want: []string{"TLS: server.tls: open /nonexistent"}},
		{flags: "--listen 127.0.0.1:0 --config " + write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("auth:\n  bootstrap:\n    clients: [{client_id: a}]\n    users: [{username: u, passwort: hidden}]\n")),
			want: []string{`auth.bootstrap.clients[0]: unknown field "client_id"`, `auth.bootstrap.users[0]: unknown field "passwort"`}},
		{flags: "--listen 127.0.0.1:0 --config " + write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("auth:\n  bootstrap:\n    clients: [{clientId: a, scopes: [patient/x]}, {name: b}]\n    users: [{username: u, password: hidden}, {username: ' v', password: correct-horse-battery}, {username: w}]\n")),
			want: []string{`auth.bootstrap.clients[0]: scopes: `, `auth.bootstrap.clients[1]: clientId is missing`, `auth.bootstrap.users[0]: password: expected at least 12`, `auth.bootstrap.users[1]: username is`}},
	} {
		t.Run(tt.flags, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			c := root()
			c.SetArgs(append([]string{"config", "check"}, strings.Fields(tt.flags)...))
			c.SetOut(io.Discard)
			c.SetErr(io.Discard)
			err := c.Execute()
			if tt.want == nil && err != nil {
				t.Errorf("error %v", err)
			}
			for _, want := range tt.want {
				if err == nil || strings.Count(err.Error(), want) != 1 {
					t.Errorf("error %v, want %q in it, once", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hidden") {
				t.Errorf("the password is told: %v", err)
			}
			if len(tt.env) > 1 { // wrong keys, which doctor tells the same of
				out, _ := runCommand(t, append([]string{"doctor"}, strings.Fields(tt.flags)...)...)
				for _, want := range tt.want {
					if !strings.Contains(out, want) {
						t.Errorf("doctor says %q, want %q in it", out, want)
					}
				}
			}
		})
	}
}

// A boolean of a file or the environment is printed as a boolean, where a key is true,
// false or auto.
func TestConfigPrintsBooleans(t *testing.T) {
	for _, tt := range []struct{ value, want string }{{"true", "true"}, {"false", "false"}, {`"true"`, "true"}, {"auto", "auto"}} {
		file := write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("notifications:\n  webhook:\n    allow_private_networks: "+tt.value+"\n"))
		if out, err := runCommand(t, "config", "print", "--config", file); err != nil || !strings.Contains(out, "notifications.webhook.allow_private_networks: "+tt.want+" #") {
			t.Errorf("%s: %v\n%s", tt.value, err, out)
		}
		if out, err := runCommand(t, "config", "print", "--json", "--config", file); err != nil || tt.want != "auto" && !strings.Contains(out, `"allow_private_networks": `+tt.want) {
			t.Errorf("%s: %v\n%s", tt.value, err, out)
		}
	}
}

// Contract, Operations: configuration in the database is above the file and below
// environment and flags, which hide it (409); its source is shown, by `kiln config print`
// and by GET /admin/config.
func TestSourcesOfConfiguration(t *testing.T) {
	t.Parallel()
	database, address := storetest.New(t), freeAddress(t)
	file := write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte("search: {default_count: 11, max_count: 111}\nlog: {level: warn}\n"))
	environment := append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database, "KILN_LOG__ACCESS=off")
	args := []string{"--config", file, "--listen", address}
	c := exec.Command(os.Args[0], append([]string{"serve"}, args...)...)
	c.Dir, c.Env = t.TempDir(), environment
	said := new(sharedBuffer)
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), "Ctrl-C"); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no banner: %s", said)
		}
	}
	do := func(method, key, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+address+"/admin/config/"+strings.Replace(key, ".", "/", 1), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.ReplaceAll(string(text), `": `, `":`)
	}
	for _, tt := range []struct {
		method, key, body string
		status            int
		words             []string
	}{
		{"GET", "search.default_count", "", 200, []string{`"source":"file"`, `"value":11`}},
		{"GET", "log.access", "", 200, []string{`"source":"environment"`}},
		{"GET", "server.listen", "", 200, []string{`"source":"flag"`}},
		{"GET", "search.timeout_seconds", "", 200, []string{`"source":"default"`}},
		{"PUT", "search.default_count", "12", 200, []string{`"source":"database"`, `"value":12`}},
		{"GET", "search.default_count", "", 200, []string{`"source":"database"`, `"value":12`}},
		{"PUT", "log.access", `"all"`, 409, []string{"environment"}},
		{"PUT", "server.listen", `"127.0.0.1:1"`, 409, []string{"flag"}},
		{"DELETE", "search.default_count", "", 200, []string{`"source":"file"`, `"value":11`}},
		{"PUT", "search.max_count", `{"value":112}`, 200, []string{`"source":"database"`}},
	} {
		status, text := do(tt.method, tt.key, tt.body)
		for _, word := range tt.words {
			if status != tt.status || !strings.Contains(text, word) {
				t.Errorf("%s %s %s: %d %s, want %d and %s", tt.method, tt.key, tt.body, status, text, tt.status, word)
			}
		}
	}
	show := exec.Command(os.Args[0], append([]string{"config", "print"}, args...)...)
	show.Dir, show.Env = t.TempDir(), environment
	out, err := show.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for key, source := range map[string]string{"default_count": `kiln\.yaml`, "max_count": "database", "access": "environment", "listen": "flag", "timeout_seconds": "default"} {
		if !regexp.MustCompile(`(?m)` + key + `:.*; .*` + source).Match(out) {
			t.Errorf("kiln config print does not say that %s is of %s:\n%s", key, source, out)
		}
	}
	// A terminal that is closed ends a server as Ctrl-C does, unless it is under nohup.
	if signal.Ignored(syscall.SIGHUP) {
		return
	}
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("after SIGHUP: %v: %s", err, said)
	}
}
