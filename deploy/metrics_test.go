package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"kiln/server"
	"kiln/server/store/storetest"
)

var (
	metricName = regexp.MustCompile(`\b(?:service|process|go)_[a-z_]+\b`)
	label      = regexp.MustCompile(`\{\{\s*\$labels\.`)
)

// balanced reports whether an expression's brackets and quotes close.
func balanced(expr string) bool {
	var open []rune
	quoted := false
	for _, c := range expr {
		if c == '"' {
			quoted = !quoted
		}
		if quoted {
			continue
		}
		switch c {
		case '(', '[', '{':
			open = append(open, map[rune]rune{'(': ')', '[': ']', '{': '}'}[c])
		case ')', ']', '}':
			if len(open) == 0 || open[len(open)-1] != c {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0 && !quoted
}

// Every metric that the dashboard and the alert rules name is one that a server has,
// and every alert is explained in docs/operate.md. (Prometheus as a library would be the
// largest dependency: expressions are checked for their names and brackets here, and by
// promtool in TestAlertsFire.)
// Contract, Operations: telemetry: a Grafana dashboard and alert rules in `deploy/`.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	operate, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	var exprs []string
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			exprs = append(exprs, r.Expr)
			if r.Alert == "" || r.For == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("the alert %q has no name, for, severity or summary", r.Alert)
			}
			if !strings.Contains(string(operate), r.Alert) {
				t.Errorf("docs/operate.md does not explain %s", r.Alert)
			}
			if strings.Contains(r.Annotations["summary"], "{{") && !label.MatchString(r.Annotations["summary"]) {
				t.Errorf("%s: the summary %q", r.Alert, r.Annotations["summary"])
			}
		}
	}
	var board struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if text, err = os.ReadFile("dashboard.json"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, x := range p.Targets {
			exprs = append(exprs, x.Expr)
		}
	}

	c := server.Default()
	c.Database.URL = storetest.New(t)
	s, err := server.New(context.Background(), c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := httptest.NewRecorder()
	s.Handler.ServeHTTP(w, local("GET", "/metadata"))
	w = httptest.NewRecorder()
	s.Handler.ServeHTTP(w, local("GET", "/metrics"))
	there := w.Body.String()
	var source []byte // of counters with labels that nothing has happened to yet
	for _, file := range []string{"../server/notify/metrics.go", "../server/app/metrics.go", "../server/epoch.go", "../server/replicas.go", "../server/jobs/metrics.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	for _, e := range exprs {
		if !balanced(e) {
			t.Errorf("%s: brackets or quotes do not close", e)
		}
		for _, name := range metricName.FindAllString(e, -1) {
			if !strings.Contains(there, "\n"+name) && !strings.Contains(string(source), `"`+strings.TrimSuffix(name, "_bucket")+`"`) {
				t.Errorf("%s: there is no metric %s", e, name)
			}
		}
	}
}

// Each alert fires on its failure: alerts_test.yaml.
// Contract, Operations: telemetry: alert rules in `deploy/`.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: it is in Debian's package prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func local(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:1"
	return r
}
