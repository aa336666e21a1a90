package main

import (
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kiln/queries"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The first tutorial works when a reader pastes it from top to bottom.
func TestFirstServerTutorial(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	out := pasteBlocks(t, shellBlocks(t, "docs/tutorials/first-server.md"), nil, "http://127.0.0.1:8080/fhir", base)
	showsAll(t, out, `"birthDate":"1974-12-25"`, `"versionId":"2"`, `"conflict"`, `"transaction-response"`, "90 resources in 5 requests", "0 failed",
		`"total":3`, `did you mean`, `"type":"searchset"`, `"Kiln"`, `{"status":"ok"`, `"value":"Jim"`)
}

// A target that needs PostgreSQL and the program looks for PostgreSQL first, because compiling
// takes minutes.
func TestPostgreSQLIsLookedForBeforeCompiling(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):([a-z ]*) ##`).FindAllStringSubmatch(document(t, "Makefile"), -1) {
		needs := strings.Fields(m[2])
		build, database := slices.Index(needs, "build"), slices.Index(needs, "postgresql")
		if build >= 0 && (database < 0 || database > build) {
			t.Errorf("make %s compiles before it looks for PostgreSQL", m[1])
		}
		if database >= 0 {
			seen++
		}
	}
	if seen < 4 {
		t.Errorf("%d targets look for PostgreSQL", seen)
	}
}

// documents are the pages whose quotations of the code are checked.
var documents = []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/README.md", "docs/tutorials/first-server.md", "docs/tutorials/smart-app.md", "docs/tutorials/webhook.md", "docs/tutorials/app.md", "docs/views.md", "docs/console.md", "docs/storage.md", "docs/security.md",
	"docs/how-to/tls-and-proxy.md", "docs/how-to/keycloak.md", "docs/how-to/backup-and-restore.md", "docs/how-to/upgrade.md", "docs/how-to/implementation-guides.md", "docs/how-to/compose-and-kubernetes.md", "docs/reference/rest.md", "docs/architecture.md", "docs/operate.md", "docs/apps.md", "docs/notifications.md", "docs/authorization.md", "docs/bulk.md"}

// Every line of a shell block that calls kiln names an existing command and existing flags.
func TestDocumentedCommandsParse(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```(?:sh|bash|console)?\n(.*?)```")
	call := regexp.MustCompile(`(?:^|[\s;&|(])(?:bin/|/usr/bin/)?kiln ((?:'[^']*'|"[^"]*"|[^'"|;&<>)\n#])*)`)
	word := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	parsed := 0
	for _, file := range documents {
		for _, b := range block.FindAllStringSubmatch(document(t, file), -1) {
			for line := range strings.Lines(strings.ReplaceAll(b[1], "\\\n", " ")) {
				if program, _, _ := strings.Cut(strings.TrimSpace(line), " "); slices.Contains([]string{"docker", "kubectl", "helm", "install", "systemctl"}, program) {
					continue // kiln is the name of an image, a Secret or a unit
				}
				if m := call.FindStringSubmatch(strings.TrimPrefix(line, "$ ")); m != nil && !strings.HasPrefix(strings.TrimSpace(line), "#") {
					args := word.FindAllString(m[1], -1)
					c, rest, err := root().Find(args)
					if err == nil {
						c.InheritedFlags() // merges them
						err = c.ParseFlags(rest)
					}
					if err != nil || !c.HasParent() {
						t.Errorf("%s: kiln %s: %v", file, m[1], err)
					}
					parsed++
				}
			}
		}
	}
	if parsed < 10 {
		t.Errorf("only %d lines call kiln", parsed)
	}
}

// Every path of the service beside FHIR that the documents quote is a route.
func TestDocumentedPathsAreRouted(t *testing.T) {
	t.Parallel()
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	routed := make(map[string]bool)
	literal := regexp.MustCompile(`"(?:[A-Z]+ )?(/[^" ]*)"`)
	for _, dir := range []string{"../server", "../oauth"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range literal.FindAllStringSubmatch(string(b), -1) {
				routed[parameter.ReplaceAllString(m[1], "{}")] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	quoted := regexp.MustCompile("`(?:(?:GET|POST|PUT|DELETE|PATCH) )?(/(?:admin|auth|health|metrics|notifications|\\.well-known)[^` ]*)")
	seen := 0
	for _, file := range documents {
		for _, m := range quoted.FindAllStringSubmatch(document(t, file), -1) {
			path, _, _ := strings.Cut(m[1], "?")
			path = parameter.ReplaceAllString(path, "{}")
			if strings.ContainsAny(path, "*…") { // several at once
				continue
			}
			seen++
			// An example has an id where the route has a parameter.
			route := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(path), `\{\}`, `[^/]+`) + "$")
			if !routed[path] && !slices.ContainsFunc(slices.Collect(maps.Keys(routed)), func(r string) bool {
				pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(r), `\{\}`, `[^/]+`) + "$")
				return pattern.MatchString(path) || route.MatchString(r)
			}) {
				t.Errorf("%s quotes %s, which is no route", file, m[1])
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d paths are quoted", seen)
	}
}

// The commands, configuration keys and tables that the documents quote exist in the code.
func TestDocumentsQuoteTheCode(t *testing.T) {
	t.Parallel()
	known := names()
	sections := make(map[string]bool)
	for _, name := range known {
		section, _, _ := strings.Cut(name, ".")
		sections[section] = true
	}
	quoted := regexp.MustCompile("`([^`\n]+)`")
	word := regexp.MustCompile(`^[a-z]+(\.[a-z_]+)+$`)
	for _, file := range documents {
		for _, m := range quoted.FindAllStringSubmatch(document(t, file), -1) {
			text := m[1]
			section, _, _ := strings.Cut(text, ".")
			isSection := slices.ContainsFunc(known, func(name string) bool { return strings.HasPrefix(name, text+".") })
			ofScripts := (file == "docs/apps.md" || file == "docs/tutorials/app.md") && section == "fhir" // names that a script calls
			if word.MatchString(text) && sections[section] && !slices.Contains(known, text) && !isSection && !ofScripts && !strings.HasSuffix(text, ".go") {
				t.Errorf("%s quotes %s, which is no configuration key", file, text)
			}
			if table, ok := strings.CutPrefix(text, "table "); ok && !slices.Contains(queries.Tables(), table) {
				t.Errorf("%s quotes the table %s, which no migration makes", file, table)
			}
			args, ok := strings.CutPrefix(strings.TrimPrefix(text, "bin/"), "kiln ")
			if !ok {
				continue
			}
			names := strings.Fields(strings.Split(args, "|")[0])
			if c, rest, err := root().Find(names[:1]); err != nil || len(rest) > 0 || !c.HasParent() {
				t.Errorf("%s quotes kiln %s, which is no command", file, args)
				continue
			}
			// Below one that has only others there must be one of them.
			if c, rest, err := root().Find(names); err != nil || len(rest) > 0 && c.HasSubCommands() && !strings.HasPrefix(rest[0], "-") && rest[0] != "…" {
				t.Errorf("%s quotes kiln %s, and there is no kiln %s %v", file, args, c.CommandPath(), rest)
			}
		}
	}
}

// The README's map has every package of the server, the authorization server.
func TestMapIsWhole(t *testing.T) {
	t.Parallel()
	readme := document(t, "README.md")
	for _, parent := range []string{"server", "server/search", "oauth"} {
		entries, err := os.ReadDir(filepath.Join("..", parent))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() || e.Name() == "testdata" {
				continue
			}
			if line := regexp.MustCompile(`(?m)^ +` + e.Name() + `/ +[A-Za-z$]`); !line.MatchString(readme) {
				t.Errorf("the map has no line for %s/%s", parent, e.Name())
			}
		}
	}
}

// The guide to views works when a reader pastes it from top to bottom.
func TestViewsGuide(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	out := pasteBlocks(t, shellBlocks(t, "docs/views.md"), nil, "http://127.0.0.1:8080/fhir", base)
	showsAll(t, out, "valid, 8 columns", "id,family,given,gender", "Ashford", "patients.parquet", "observations.parquet", `"completed"`, "/patients.1.csv")
}

// Every piece of configuration of the documents is one that a server starts with.
func TestDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	pieces := 0
	for _, file := range documents {
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(document(t, file), -1) {
			path := write(t, filepath.Join(t.TempDir(), "kiln.yaml"), []byte(m[1]))
			c := exec.Command(os.Args[0], "config", "print", "--config", path)
			c.Env = append(os.Environ(), "RUN_AS_KILN=1")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", file, err, out, m[1])
			}
			pieces++
		}
	}
	if pieces < 8 {
		t.Errorf("the documents have %d pieces of configuration", pieces)
	}
}

// Every relative link of the documents leads to a file, and to a heading where it names one.
func TestDocumentedLinks(t *testing.T) {
	t.Parallel()
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	drop := regexp.MustCompile("[^a-z0-9 _-]")
	for _, file := range documents {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(document(t, file), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue
			}
			path := filepath.Join("..", filepath.Dir(file), target)
			if target == "" {
				path = filepath.Join("..", file)
			}
			b, err := os.ReadFile(path)
			if info, statErr := os.Stat(path); statErr != nil {
				t.Errorf("%s links to %s, which is not there", file, m[1])
				continue
			} else if info.IsDir() || fragment == "" {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, h := range heading.FindAllStringSubmatch(string(b), -1) {
				found = found || strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == fragment
			}
			if !found {
				t.Errorf("%s links to %s: there is no such heading", file, m[1])
			}
		}
	}
}
