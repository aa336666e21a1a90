package main

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kiln/server/store/storetest"
)

// shellBlocks returns the shell blocks of a page as one script, as a reader pastes them.
func shellBlocks(t *testing.T, page string) string {
	t.Helper()
	var script strings.Builder
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(document(t, page), -1) {
		script.WriteString(m[1] + "\n")
	}
	return script.String()
}

// pasteBlocks runs a script in an empty folder with bin/kiln and the examples, and returns its output. replace are
// pairs of an address in the script and the address in the test.
func pasteBlocks(t *testing.T, script string, env []string, replace ...string) string {
	t.Helper()
	for _, tool := range []string{"bash", "curl", "sed"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("there is no %s", tool)
		}
	}
	dir := t.TempDir()
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(examples, filepath.Join(dir, "examples")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	wrapper := "#!/bin/sh\nRUN_AS_KILN=1 exec '" + os.Args[0] + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "bin", "kiln"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-eu", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+strings.NewReplacer(replace...).Replace(script))
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// showsAll reports each text that the output lacks; spaces behind the colons of JSON do not count.
func showsAll(t *testing.T, output string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(strings.ReplaceAll(output, `": "`, `":"`), w) {
			t.Errorf("the output lacks %s:\n%s", w, output)
		}
	}
}

// The tutorial of webhooks works when a reader pastes it from top to bottom.
func TestWebhookTutorial(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3")
	}
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	out := pasteBlocks(t, shellBlocks(t, "docs/tutorials/webhook.md"), nil,
		"http://127.0.0.1:8080/fhir", base, "127.0.0.1:9001", address, `("127.0.0.1", 9001)`, `("127.0.0.1", `+port+`)`)
	showsAll(t, out, "handshake", "create Observation")
	if n := strings.Count(out, "create Observation"); n != 1 {
		t.Errorf("%d notifications arrived, want 1:\n%s", n, out)
	}
}

// The tutorial of Apps works when a reader pastes it from top to bottom.
func TestAppTutorial(t *testing.T) {
	t.Parallel()
	base := realServer(t, func(next http.Handler) http.Handler { return next })
	out := pasteBlocks(t, shellBlocks(t, "docs/tutorials/app.md"), nil, "http://127.0.0.1:8080/fhir", base)
	showsAll(t, out, "hello.test.json", `"greeting":"Hello, Ada"`, `"observations":0`, "counted 0")
}

// The SMART tutorial works: its commands in a shell, and its two pages, with the library that they name, in a browser.
func TestSMARTAppTutorial(t *testing.T) {
	t.Parallel()
	browser := chromiumPath(t)
	database, address := storetest.New(t), freeAddress(t)
	s := startProcess(t, database, address, "http://"+address)

	pages := map[string]string{}
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch page, ok := pages[r.URL.Path]; {
		case ok:
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, page)
		case r.URL.Path == "/fhir-client.min.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(fhirClientLibrary(t))
		default:
			http.NotFound(w, r)
		}
	}))
	defer app.Close()
	addresses := []string{"http://127.0.0.1:8080", s.base, "http://127.0.0.1:9000", app.URL}
	html := regexp.MustCompile("(?s)```html\n(.*?)```").FindAllStringSubmatch(document(t, "docs/tutorials/smart-app.md"), -1)
	if len(html) != 2 {
		t.Fatalf("the tutorial has %d pages, want 2", len(html))
	}
	pages["/launch.html"] = strings.NewReplacer(addresses...).Replace(html[0][1])
	pages["/index.html"] = strings.NewReplacer(addresses...).Replace(html[1][1])

	out := pasteBlocks(t, shellBlocks(t, "docs/tutorials/smart-app.md"),
		[]string{"KILN_DATABASE__URL=" + database, "KILN_SERVER__LISTEN=" + address, "KILN_AUTH__SIGNING__ALGORITHM=ES384"}, addresses...)
	password := regexp.MustCompile(`(?m)^([A-Za-z0-9_-]{12,})$`).FindStringSubmatch(out)
	if password == nil {
		t.Fatalf("no line is the password:\n%s", out)
	}

	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		closeTab()
	}()
	err := chromedp.Do(ctx,
		chromedp.Navigate(app.URL+"/launch.html"),
		chromedp.SendKeys(chromedp.CSS("#username"), "doctor"),
		chromedp.SendKeys(chromedp.CSS("#password"), password[1]+kb.Enter),
		chromedp.Click(chromedp.CSS("[name=patient]")),
		chromedp.Click(chromedp.CSS("button[value=select_patient]")),
		chromedp.Click(chromedp.CSS("button[value=authorize]")),
		chromedp.WaitVisible(chromedp.CSS("#conditions li")),
	)
	if err != nil {
		t.Fatal(err)
	}
	name, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("#name")))
	if err != nil {
		t.Fatal(err)
	}
	if name == "" || strings.HasPrefix(name, "Failed") {
		t.Errorf("the page shows the name %q", name)
	}
}

// chromiumPath finds Chromium, or skips the test.
func chromiumPath(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium")
	return ""
}

// fhirClientLibrary is the browser bundle of the npm package fhirclient 2.6.3.
func fhirClientLibrary(t *testing.T) []byte {
	f, err := os.Open("../oauth/testdata/fhirclient/fhir-client-2.6.3.min.js.gz")
	if err != nil {
		t.Error(err)
		return nil
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Error(err)
		return nil
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Error(err)
	}
	return b
}
