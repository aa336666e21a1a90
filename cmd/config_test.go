package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/server"
)

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
		{name: "a value of another type", file: "search:\n  max_count: many\n", wantErr: "max_count"},
		{name: "a file that is no YAML", file: "server: [", wantErr: "kiln.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kiln.yaml")
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			c := root()
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
		c := root()
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
		args := []string{"config", "print", "--database-url", "postgres://kiln:hidden@db/kiln"}
		if json {
			args = append(args, "--json")
		}
		c.SetArgs(args)
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "hidden") || !strings.Contains(out.String(), "postgres://kiln:xxxxx@db/kiln") {
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

// What serve refuses, check refuses.
func TestConfigCheck(t *testing.T) {
	for flags, want := range map[string]string{
		"":                       "",
		"--listen 127.0.0.1:0":   "",
		"--listen 0.0.0.0:8080":  "server.listen",
		"--listen example":       "server.listen",
		"--base-url example.org": "server.base_url",
	} {
		c := root()
		c.SetArgs(append([]string{"config", "check"}, strings.Fields(flags)...))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("config check %s: %v, want %q", flags, err, want)
		}
	}
}
