package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// appCommand is `kiln app`, for authors of Apps.
func appCommand() *cobra.Command {
	c := &cobra.Command{Use: "app", Short: "Develop Apps: create, test, deploy, read the log, replay events"}
	c.AddCommand(appInit(), appTest(), appDev(), appDeploy(), appLogs(), appReplay())
	return c
}

// project is an App in a folder: app.json, and the scripts that it names by codeFile.
type project struct {
	id     string
	fields map[string]any // of app.json
	files  []string       // that it is made of
}

// environment is a reference to the environment in a url: ${env:NAME}.
var environment = regexp.MustCompile(`\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}`)

// readProject reads the App of a folder. lookup finds what ${env:NAME} in a url stands for.
func readProject(dir string, lookup func(string) (string, bool)) (*project, error) {
	file := filepath.Join(dir, "app.json")
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has no app.json: kiln app init NAME begins an App", dir)
	}
	if err != nil {
		return nil, err
	}
	p := &project{files: []string{file}}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	if err := d.Decode(&p.fields); err != nil {
		return nil, fmt.Errorf("%s is no JSON object: %w", file, err)
	}
	p.id, _ = p.fields["id"].(string)
	if p.fields["resourceType"] != "App" || p.id == "" {
		return nil, fmt.Errorf("%s is no App with an id", file)
	}
	for _, list := range []string{"operations", "subscriptions"} {
		entries, _ := p.fields[list].([]any)
		for i, one := range entries {
			entry, _ := one.(map[string]any)
			handler, _ := entry["handler"].(map[string]any)
			if handler == nil {
				continue
			}
			if name, ok := handler["codeFile"].(string); ok {
				script := filepath.Join(dir, filepath.FromSlash(name))
				code, err := os.ReadFile(script)
				if err != nil {
					return nil, fmt.Errorf("%s[%d].handler.codeFile: %w", list, i, err)
				}
				delete(handler, "codeFile")
				handler["code"] = string(code)
				p.files = append(p.files, script)
			}
			text, _ := handler["url"].(string)
			var missing []string
			filled := environment.ReplaceAllStringFunc(text, func(m string) string {
				value, ok := lookup(m[len("${env:") : len(m)-1])
				if !ok {
					missing = append(missing, m)
				}
				return value
			})
			if len(missing) > 0 {
				return nil, fmt.Errorf("%s[%d].handler.url: %s is not set", list, i, strings.Join(missing, ", "))
			}
			if filled != text {
				handler["url"] = filled
			}
		}
	}
	return p, nil
}

func (p *project) body() ([]byte, error) { return json.Marshal(p.fields) }

// appFolder is the argument DIR, the current one without it.
func appFolder(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// The files of a new App.
const (
	newApp = `{
  "resourceType": "App",
  "id": %[1]q,
  "name": %[1]q,
  "description": "Says hello to a patient",
  "status": "active",
  "version": "0.1.0",
  "operations": [
    {
      "name": "hello",
      "type": "read",
      "resourceType": "Patient",
      "handler": { "type": "javascript", "codeFile": "hello.js" }
    }
  ]
}
`
	newCode = `// GET /Patient/{id}/$hello
async (context) => {
  const name = fhirpath("name.given.first()", context.resource)[0];
  console.log("hello", context.resourceId);
  return { greeting: "Hello, " + (name || "you") };
}
`
	newTest = `{
  "name": "the patient is greeted by name",
  "resources": [
    { "resourceType": "Patient", "id": "p1", "name": [{ "given": ["Ada"] }] }
  ],
  "request": { "method": "GET", "path": "/Patient/p1/$hello" },
  "expect": { "status": 200, "body": { "greeting": "Hello, Ada" } }
}
`
)

var projectName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,59}$`)

// appInit is `kiln app init`.
func appInit() *cobra.Command {
	return &cobra.Command{
		Use: "init NAME", Short: "Create an App in a new folder: app.json, a script and a test", Args: cobra.ExactArgs(1),
		Example: "  kiln app init risk && kiln app test risk",
		RunE: func(c *cobra.Command, args []string) error {
			dir := args[0]
			name := filepath.Base(dir)
			if !projectName.MatchString(name) {
				return fmt.Errorf("%q is no name of an App: expected letters, digits, dots and hyphens", name)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is there already", dir)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for file, text := range map[string]string{"app.json": fmt.Sprintf(newApp, name), "hello.js": newCode, "hello.test.json": newTest} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					return err
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is an App with the operation $hello.\n  kiln app test %[1]s      run its tests\n  kiln app deploy %[1]s    put it on a server\n  kiln app dev %[1]s       deploy on each save and follow the log\n", dir)
			return nil
		},
	}
}

// deploy puts an App on a server, and reports its version there.
func deploy(c *cobra.Command, r *remote, p *project) (version string, err error) {
	body, err := p.body()
	if err != nil {
		return "", err
	}
	answer, err := r.call(c, http.MethodPut, "/App/"+url.PathEscape(p.id), "application/fhir+json", body)
	if err != nil {
		return "", err
	}
	var stored struct{ Meta struct{ VersionID string } }
	return stored.Meta.VersionID, json.Unmarshal(answer, &stored)
}

// appDeploy is `kiln app deploy`.
func appDeploy() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "deploy [DIR]", Short: "Deploy the App of a folder to a running server", Args: cobra.MaximumNArgs(1),
		Example: `  kiln app deploy risk --server https://fhir.example.org/fhir --token "$TOKEN"`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := readProject(appFolder(args), os.LookupEnv)
			if err != nil {
				return err
			}
			version, err := deploy(c, &r, p)
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "App/%s is deployed, version %s\n", p.id, version)
			}
			return err
		},
	}
	r.flags(c)
	return c
}

// invocation is an entry of an App's log.
type invocation struct {
	ID           string      `json:"id"`
	At           string      `json:"at"`
	Operation    string      `json:"operation"`
	Subscription string      `json:"subscription"`
	ResourceType string      `json:"resourceType"`
	ResourceID   string      `json:"resourceId"`
	DurationMS   json.Number `json:"durationMs"`
	Outcome      string      `json:"outcome"`
	Status       int         `json:"status"`
	Lines        []logLine   `json:"lines"`
}

type logLine struct{ Level, At, Text string }

// print writes an entry: one line, and one for each line of the console.
func (v invocation) print(w io.Writer) {
	what := v.Subscription
	if v.Operation != "" {
		what = "$" + v.Operation
	}
	fmt.Fprintf(w, "%s  %s  %s  %s %d  %s ms\n", v.At, what, strings.TrimSuffix(v.ResourceType+"/"+v.ResourceID, "/"), v.Outcome, v.Status, v.DurationMS)
	for _, l := range v.Lines {
		fmt.Fprintf(w, "    %-5s %s\n", l.Level, l.Text)
	}
}

// logReader follows the log of an App.
type logReader struct {
	app, level string
	since      string
	from       time.Time // what began before is not of interest
	seen       map[string]bool
}

// next are the entries that have come since, oldest first.
func (l *logReader) next(c *cobra.Command, r *remote) ([]invocation, []byte, error) {
	q := url.Values{"_count": {"1000"}}
	if l.since != "" {
		q.Set("_since", l.since)
	}
	if l.level != "" {
		q.Set("level", l.level)
	}
	b, err := r.call(c, http.MethodGet, "/App/"+url.PathEscape(l.app)+"/$log?"+q.Encode(), "", nil)
	if err != nil {
		return nil, nil, err
	}
	var page struct{ Invocations []invocation }
	if err := json.Unmarshal(b, &page); err != nil {
		return nil, nil, err
	}
	if l.seen == nil {
		l.seen = make(map[string]bool)
		l.from, _ = time.Parse(time.RFC3339Nano, l.since) // the server has read it
	}
	var fresh []invocation
	for _, v := range slices.Backward(page.Invocations) {
		if at, err := time.Parse(time.RFC3339Nano, v.At); !l.seen[v.ID] && (err != nil || !at.Before(l.from)) {
			l.seen[v.ID] = true
			fresh = append(fresh, v)
		}
	}
	// An entry is written when its run ends, and has the time when it began.
	if n := len(page.Invocations); n > 0 {
		if at, err := time.Parse(time.RFC3339Nano, page.Invocations[0].At); err == nil {
			l.since = at.Add(-time.Minute).UTC().Format(time.RFC3339Nano)
		}
	}
	return fresh, b, nil
}

// appLogs is `kiln app logs`.
func appLogs() *cobra.Command {
	var r remote
	var l logReader
	var follow bool
	c := &cobra.Command{
		Use: "logs ID", Short: "Show the log of an App's handlers", Args: cobra.ExactArgs(1),
		Example: "  kiln app logs risk --follow --level warn",
		RunE: func(c *cobra.Command, args []string) error {
			l.app = strings.TrimPrefix(args[0], "App/")
			for {
				list, raw, err := l.next(c, &r)
				if err != nil {
					return err
				}
				if wantsJSON(c) && !follow {
					_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", bytes.TrimSpace(raw))
					return err
				}
				for _, v := range list {
					v.print(c.OutOrStdout())
				}
				if !follow {
					return nil
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(500 * time.Millisecond):
				}
			}
		},
	}
	r.flags(c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	c.Flags().StringVar(&l.level, "level", "", "only runs with a line of at least this level: debug, info, warn, error")
	c.Flags().StringVar(&l.since, "since", "", "only runs since an instant")
	return c
}

// appDev is `kiln app dev`.
func appDev() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Example: "  kiln app dev risk --server http://127.0.0.1:8080",
		Use:     "dev [DIR]", Short: "Deploy an App on each save to a running server, and follow its log", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, out := appFolder(args), c.OutOrStdout()
			log := logReader{since: time.Now().UTC().Format(time.RFC3339Nano)}
			var stamp string
			for {
				p, err := readProject(dir, os.LookupEnv)
				now := ""
				if err == nil {
					now = stampOf(p.files)
				} else {
					now = err.Error()
				}
				if now != stamp {
					stamp = now
					var version string
					if err == nil {
						p.fields["status"] = "active"
						version, err = deploy(c, &r, p)
					}
					switch {
					case c.Context().Err() != nil:
						return nil
					case err != nil:
						fmt.Fprintln(out, "not deployed:", err)
					default:
						fmt.Fprintf(out, "App/%s is deployed, version %s\n", p.id, version)
						log.app = p.id
					}
				}
				if log.app != "" {
					list, _, err := log.next(c, &r)
					if err != nil && c.Context().Err() == nil {
						fmt.Fprintln(out, "the log cannot be read:", err)
					}
					for _, v := range list {
						v.print(out)
					}
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(300 * time.Millisecond):
				}
			}
		},
	}
	r.flags(c)
	return c
}

// stampOf changes when one of the files does.
func stampOf(files []string) string {
	var b strings.Builder
	for _, f := range files {
		if s, err := os.Stat(f); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", f, s.Size(), s.ModTime().UnixNano())
		}
	}
	return b.String()
}

// appReplay is `kiln app replay`.
func appReplay() *cobra.Command {
	var r remote
	var subscription, since string
	var count int
	c := &cobra.Command{
		Use: "replay [ID]", Short: "Run past events through a subscription's handler, and print the writes of this dry run", Args: cobra.MaximumNArgs(1),
		Example: "  kiln app replay --subscription App/enrich/0 --since 2026-01-01",
		RunE: func(c *cobra.Command, args []string) error {
			id, number, err := subscriptionOf(args, subscription)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{"subscription": number, "since": since, "count": count})
			if err != nil {
				return err
			}
			b, err := r.call(c, http.MethodPost, "/admin/apps/"+url.PathEscape(id)+"/replay", "application/json", body)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				_, err := c.OutOrStdout().Write(b)
				return err
			}
			var answer struct {
				Events []struct {
					invocation
					Event, VersionID string
					Writes           []struct {
						Function string
						Args     json.RawMessage
					}
				}
				More bool
			}
			if err := json.Unmarshal(b, &answer); err != nil {
				return err
			}
			out := c.OutOrStdout()
			for _, e := range answer.Events {
				fmt.Fprintf(out, "%s of %s/%s/%s: %s %d\n", e.Event, e.ResourceType, e.ResourceID, e.VersionID, e.Outcome, e.Status)
				for _, l := range e.Lines {
					fmt.Fprintf(out, "    %-5s %s\n", l.Level, l.Text)
				}
				for _, w := range e.Writes {
					var args bytes.Buffer
					if err := json.Compact(&args, w.Args); err != nil {
						return err
					}
					fmt.Fprintf(out, "    would %s %s\n", w.Function, args.String())
				}
			}
			fmt.Fprintf(out, "%d events, nothing is stored\n", len(answer.Events))
			if answer.More {
				fmt.Fprintln(out, "there are more: --count and a later --since")
			}
			return nil
		},
	}
	r.flags(c)
	c.Flags().StringVar(&subscription, "subscription", "0", "the subscription: App/ID/NUMBER, or its number, counted from 0")
	c.Flags().StringVar(&since, "since", "", "events since an instant or a date")
	c.Flags().IntVar(&count, "count", 100, "number of events that pass the filter, at most")
	_ = c.MarkFlagRequired("since")
	return c
}

// subscriptionOf reads which subscription is meant.
func subscriptionOf(args []string, text string) (id string, number int, err error) {
	if len(args) > 0 {
		id = strings.TrimPrefix(args[0], "App/")
	}
	parts := strings.Split(text, "/")
	if len(parts) > 1 {
		if len(parts) != 3 || parts[0] != "App" || id != "" && id != parts[1] {
			return "", 0, fmt.Errorf("--subscription is %q: expected App/ID/NUMBER or a number", text)
		}
		id = parts[1]
	}
	number, err = strconv.Atoi(parts[len(parts)-1])
	if err != nil || number < 0 {
		return "", 0, fmt.Errorf("--subscription is %q: expected App/ID/NUMBER or a number", text)
	}
	if id == "" {
		return "", 0, errors.New("name the App: kiln app replay ID, or --subscription App/ID/NUMBER")
	}
	return id, number, nil
}
