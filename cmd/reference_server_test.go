package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/server"
	"kiln/server/store/storetest"
)

// The reference pages of operations and metrics describe a running server. `go test ./cmd -run Reference -update`
// writes them; it needs a PostgreSQL as every test of a server does.
func TestReferencePagesOfAServer(t *testing.T) {
	t.Parallel()
	c := server.Default()
	c.Database.URL = storetest.New(t)
	c.Database.ReadURLs = []string{c.Database.URL} // for the metrics of standbys
	s, err := server.New(t.Context(), c, server.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(s.Handler)
	t.Cleanup(func() { service.Close(); s.Close() })
	for page, text := range map[string]string{
		"metrics.md":    metricsPage(t, s.Metrics),
		"operations.md": operationsPage(t, service.URL+"/fhir"),
	} {
		path := filepath.Join("..", "docs", "reference", page)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("docs/reference/%s differs from the server (%v); run go test ./cmd -run Reference -update", page, err)
		}
	}
}

// Every search of the page about REST is answered.
func TestReferenceOfREST(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	sent := 0
	for _, m := range regexp.MustCompile("`GET (/[^`{]*)`").FindAllStringSubmatch(document(t, "docs/reference/rest.md"), -1) {
		target := strings.NewReplacer(`\|`, "|", " ", "%20", `"`, "%22").Replace(m[1])
		if strings.HasPrefix(target, "/metadata") || strings.Contains(target, "…") {
			continue
		}
		resp, err := http.Get(base + target)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("GET %s: %d %s", target, resp.StatusCode, b)
		}
		sent++
	}
	if sent < 30 {
		t.Errorf("the page has %d searches", sent)
	}
}

// metricsPage lists every metric of the service, with its labels.
func metricsPage(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	described := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(described)
		close(described)
	}()
	field := regexp.MustCompile(`fqName: "([^"]*)", help: "([^"]*)".*variableLabels: \{([^}]*)\}`)
	var rows []string
	for d := range described {
		m := field.FindStringSubmatch(d.String())
		if m == nil {
			t.Errorf("a metric without a name: %s", d)
			continue
		}
		if !strings.HasPrefix(m[1], "service_") {
			continue
		}
		labels := ""
		if m[3] != "" {
			labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], labels, cell(strings.ReplaceAll(m[2], `\"`, `"`))))
	}
	slices.Sort(rows)
	rows = slices.Compact(rows)
	return "# Metrics\n\n" + generated +
		"`GET /metrics` answers these, and the metrics of Go and of the process (`go_*`, `process_*`), for Prometheus. The metrics of\n" +
		"standbys need `database.read_urls`. [operate.md](../operate.md) says how to scrape, and what to do about each alert.\n\n" +
		"| Metric | Labels | Meaning |\n|---|---|---|\n" + strings.Join(rows, "")
}

// definitionOfOperation is an OperationDefinition, as far as the page shows it.
type definitionOfOperation struct {
	Code, URL, Description string
	AffectsState           *bool
	System, Type, Instance bool
	Parameter              []struct {
		Name, Use, Type, Max, Documentation string
		Min                                 int
	}
	types []string
}

// operationsPage lists the operations of the CapabilityStatement, with the paths and the parameters of their definitions.
func operationsPage(t *testing.T, base string) string {
	t.Helper()
	type operation struct{ Name, Definition string }
	var capabilities struct {
		Rest []struct {
			Operation []operation
			Resource  []struct {
				Type      string
				Operation []operation
			}
		}
	}
	readJSON(t, base+"/metadata", &capabilities)
	types := make(map[string][]string)
	for _, o := range capabilities.Rest[0].Operation {
		types[o.Definition] = nil
	}
	for _, r := range capabilities.Rest[0].Resource {
		for _, o := range r.Operation {
			types[o.Definition] = append(types[o.Definition], r.Type)
		}
	}
	var all []definitionOfOperation
	for definition := range types {
		var found struct {
			Entry []struct{ Resource definitionOfOperation }
		}
		readJSON(t, base+"/OperationDefinition?url="+definition, &found)
		d := definitionOfOperation{URL: definition}
		switch {
		case len(found.Entry) == 1:
			d = found.Entry[0].Resource
		case strings.HasPrefix(definition, "http://hl7.org/fhir/uv/bulkdata/"): // not part of the server's packages
			d.Code, d.Description = "export", "See [Bulk data](../bulk.md)."
			d.System, d.Type, d.Instance = strings.HasSuffix(definition, "/export"), strings.HasSuffix(definition, "/patient-export"), strings.HasSuffix(definition, "/group-export")
		default:
			t.Fatalf("%d OperationDefinitions have the URL %s", len(found.Entry), definition)
		}
		d.types = types[definition]
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b definitionOfOperation) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.URL, b.URL))
	})
	var b strings.Builder
	b.WriteString("# Operations\n\n" + generated +
		"The operations of a server without Apps. `POST` with Parameters calls each; `GET` with query parameters calls those that\n" +
		"change nothing and whose parameters are simple. `GET /OperationDefinition?url=…` answers the whole definition.\n")
	for _, d := range all {
		fmt.Fprintf(&b, "\n## $%s%s\n\n", d.Code, ofType(d.types))
		if d.Description != "" && !strings.Contains(d.URL, "//hl7.org/fhir/OperationDefinition/") {
			fmt.Fprintf(&b, "%s\n\n", strings.Join(strings.Fields(d.Description), " "))
		}
		fmt.Fprintf(&b, "Paths: %s. Definition: `%s`.", strings.Join(operationPaths(d), ", "), d.URL)
		if d.AffectsState != nil && *d.AffectsState {
			b.WriteString(" It changes data.")
		}
		b.WriteString("\n")
		header := "\n| Parameter | Type | Number | Meaning |\n|---|---|---|---|\n"
		for _, p := range d.Parameter {
			if p.Use != "in" {
				continue
			}
			fmt.Fprintf(&b, "%s| `%s` | %s | %d..%s | %s |\n", header, p.Name, p.Type, p.Min, p.Max, cell(firstSentence(p.Documentation)))
			header = ""
		}
	}
	return b.String()
}

// ofType names the resource type of an operation that has one.
func ofType(types []string) string {
	if len(types) == 1 {
		return " of " + types[0]
	}
	return ""
}

// operationPaths are the paths of an operation below the base.
func operationPaths(d definitionOfOperation) (paths []string) {
	typ := "{Type}"
	if len(d.types) == 1 {
		typ = d.types[0]
	}
	if d.System {
		paths = append(paths, "`/$"+d.Code+"`")
	}
	if d.Type {
		paths = append(paths, "`/"+typ+"/$"+d.Code+"`")
	}
	if d.Instance {
		paths = append(paths, "`/"+typ+"/{id}/$"+d.Code+"`")
	}
	return paths
}

// firstSentence is the text up to its first full stop.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if i := strings.Index(text, ". "); i >= 0 {
		text = text[:i+1]
	}
	return text
}

func readJSON(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}
