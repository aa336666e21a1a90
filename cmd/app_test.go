package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// The contract, Apps section 6: the worked Apps of the guide pass their own tests.
func TestWorkedApps(t *testing.T) {
	t.Parallel()
	apps, err := filepath.Glob("../docs/apps/*/app.json")
	if err != nil || len(apps) < 3 {
		t.Fatalf("the guide has %d Apps, %v", len(apps), err)
	}
	for _, file := range apps {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			if out, err := runCommand(t, "app", "test", dir, "--database-url", storetest.New(t)); err != nil || !strings.Contains(out, "all as expected") {
				t.Errorf("%v\n%s", err, out)
			}
			if !strings.Contains(document(t, "docs/apps.md"), "apps/"+filepath.Base(dir)) {
				t.Error("the guide does not tell of it")
			}
		})
	}
}

// lockedBuffer is written by a command while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) waitFor(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		l.mu.Lock()
		got := l.b.String()
		l.mu.Unlock()
		if strings.Contains(got, text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q did not come: %s", text, got)
		}
	}
}

// The contract, Apps section 6: the loop of an App's author.
func TestAppLoop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "greet")
	if out, err := runCommand(t, "app", "init", dir); err != nil || !strings.Contains(out, "$hello") {
		t.Fatal(err, out)
	}
	if _, err := runCommand(t, "app", "init", dir); err == nil {
		t.Error("a folder that is there is begun again")
	}
	if out, err := runCommand(t, "app", "test", dir, "--database-url", storetest.New(t)); err != nil {
		t.Fatal(err, out)
	}
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	if out, err := runCommand(t, "app", "deploy", dir, "--server", base); err != nil || !strings.Contains(out, "App/greet is deployed, version 1") {
		t.Fatal(err, out)
	}
	put := func(id, body string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, base+"/"+id, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/fhir+json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode >= 300 {
			t.Fatal(err, resp)
		}
		resp.Body.Close()
	}
	put("Patient/ada", `{"resourceType":"Patient","id":"ada","name":[{"given":["Ada"]}]}`)
	hello := func() {
		t.Helper()
		resp, err := http.Get(base + "/Patient/ada/$hello")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	hello()
	var out string
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out, "hello ada"); time.Sleep(20 * time.Millisecond) {
		var err error
		if out, err = runCommand(t, "app", "logs", "greet", "--server", base); err != nil || time.Now().After(deadline) {
			t.Fatal(err, out)
		}
	}
	if !strings.Contains(out, "$hello  Patient/ada  ok 200") {
		t.Errorf("the log is %s", out)
	}

	// dev deploys on each save and follows the log.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var shown lockedBuffer
	c := root()
	c.SetOut(&shown)
	c.SetArgs([]string{"app", "dev", dir, "--server", base})
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()
	shown.waitFor(t, "App/greet is deployed")
	if err := os.WriteFile(filepath.Join(dir, "hello.js"), []byte("() => {\n  return ]"), 0o600); err != nil {
		t.Fatal(err)
	}
	shown.waitFor(t, "line 2")
	if err := os.WriteFile(filepath.Join(dir, "hello.js"), []byte(`(c) => { console.warn("changed"); return c.event ? fhir.create({resourceType: "Basic", code: {text: c.event}}) : 1 }`), 0o600); err != nil {
		t.Fatal(err)
	}
	app := `{"resourceType":"App","id":"greet","name":"greet","status":"active","subscriptions":[{"resourceType":"Patient","events":["update"],"handler":{"type":"javascript","codeFile":"hello.js"}}],
		"operations":[{"name":"hello","type":"read","resourceType":"Patient","handler":{"type":"javascript","codeFile":"hello.js"}}]}`
	if err := os.WriteFile(filepath.Join(dir, "app.json"), []byte(app), 0o600); err != nil {
		t.Fatal(err)
	}
	shown.waitFor(t, "version 3")
	hello()
	shown.waitFor(t, "changed")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	// replay writes nothing.
	put("Patient/ada", `{"resourceType":"Patient","id":"ada","gender":"female"}`)
	var err error
	// The change log is read up to the oldest transaction that runs anywhere in PostgreSQL.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err = runCommand(t, "app", "replay", "--subscription", "App/greet/0", "--since", "2020-01-01", "--server", base)
		if err != nil || !strings.HasPrefix(out, "0 events") || time.Now().After(deadline) {
			break
		}
	}
	if err != nil || !strings.Contains(out, "update of Patient/ada/2") || !strings.Contains(out, `would create {"resource":{"resourceType":"Basic"`) || !strings.Contains(out, "1 events") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := runCommand(t, "app", "replay", "--subscription", "7", "greet", "--since", "2020", "--server", base); err == nil {
		t.Error("a subscription that there is not is replayed")
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{`{"a":1}`, `{"a":1,"b":2}`, true}, {`{"a":"*"}`, `{"a":[1]}`, true}, {`{"a":1}`, `{}`, false}, {`[1]`, `[1,2]`, false},
		{`[{"x":1}]`, `[{"x":1,"y":2}]`, true}, {`1.0`, `1`, false}, {`null`, `null`, true}, {`{}`, `[]`, false},
	} {
		if err := matches("body", []byte(c.want), []byte(c.got)); (err == nil) != c.ok {
			t.Errorf("%s of %s: %v", c.want, c.got, err)
		}
	}
}
