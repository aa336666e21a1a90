package oauth_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// chromium is a tab of a real browser, which reaches nothing but this machine.
type chromium struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // errors of the console, refusals of the Content-Security-Policy among them
}

// openChromium starts the system's Chromium; the test is skipped where there is none.
func openChromium(t *testing.T) *chromium {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium on this machine: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute),
		chromedp.DisableGPU, chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-domain-reliability", true), chromedp.Flag("disable-sync", true), chromedp.Flag("no-pings", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE ::1"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		closeTab()
	})
	c := &chromium{t: t, ctx: ctx}
	c.run(chromedp.Navigate("about:blank"))
	if err := chromedp.Listen(ctx, func(event any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			c.problems = append(c.problems, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		case *runtime.EventExceptionThrown:
			c.problems = append(c.problems, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			c.problems = append(c.problems, "console."+string(e.Type))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chromium) run(actions ...chromedp.Action[chromedp.Void]) {
	c.t.Helper()
	if err := chromedp.Do(c.ctx, actions...); err != nil {
		c.t.Fatal(err)
	}
}

// script evaluates an expression.
func script[T any](c *chromium, expression string) T {
	c.t.Helper()
	value, err := chromedp.Run(c.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		c.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// tab presses Tab until an element has the focus, as people without a mouse do.
func (c *chromium) tab(selector string) {
	c.t.Helper()
	for range 30 {
		if script[bool](c, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			if !script[bool](c, "document.activeElement.matches(':focus-visible') && getComputedStyle(document.activeElement).outlineStyle !== 'none'") {
				c.t.Errorf("%s: the focus cannot be seen", selector)
			}
			return
		}
		c.run(chromedp.KeyEvent(kb.Tab))
	}
	c.t.Fatalf("Tab does not reach %s", selector)
}

// press sends a key that leads to another page, which has an element.
func (c *chromium) press(key, selector string) {
	c.t.Helper()
	if _, err := chromedp.RunResponse(c.ctx, chromedp.KeyEvent(key)); err != nil {
		c.t.Fatal(err)
	}
	c.run(chromedp.WaitVisible(chromedp.CSS(selector)))
}

// quiet fails the test for any message on the console.
func (c *chromium) quiet(page string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.problems {
		c.t.Errorf("%s: the console says: %s", page, p)
	}
	c.problems = nil
}

// look checks a page for phones and screen readers.
func (c *chromium) look(page string) {
	c.t.Helper()
	for _, screen := range []struct {
		name          string
		width, height int64
	}{{"phone", 320, 640}, {"desktop", 1280, 800}} {
		c.run(chromedp.EmulateViewport(screen.width, screen.height))
		for problem, found := range map[string]string{
			"wider than the screen":                        `document.documentElement.scrollWidth > innerWidth ? ["page"] : []`,
			"too small to be touched":                      `[...document.querySelectorAll("button, input:not([type=hidden]):not([type=checkbox]):not([type=radio]), .choices label")].filter(e => e.getBoundingClientRect().height < 44)`,
			"text that phones zoom into":                   `[...document.querySelectorAll("input")].filter(e => e.type != "hidden" && parseFloat(getComputedStyle(e).fontSize) < 16 && e.type != "checkbox" && e.type != "radio")`,
			"without a label":                              `[...document.querySelectorAll("input:not([type=hidden])")].filter(e => e.labels.length != 1 || !e.labels[0].innerText.trim())`,
			"a button without a name":                      `[...document.querySelectorAll("button")].filter(e => !e.innerText.trim())`,
			"an id that is not the only one":               `[...document.querySelectorAll("[id]")].filter(e => document.querySelectorAll("#" + CSS.escape(e.id)).length > 1)`,
			"without language, title, main or one heading": `document.documentElement.lang && document.title && document.querySelectorAll("main").length == 1 && document.querySelectorAll("h1").length == 1 ? [] : ["page"]`,
			"not styled":                                   `getComputedStyle(document.querySelector("main")).maxWidth == "none" ? ["page"] : []`,
			"a script":                                     `[...document.scripts]`,
			"text of low contrast": `(() => {
				const rgb = c => c.match(/[\d.]+/g).map(Number);
				const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
				const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if ((rgb(c)[3] ?? 1) > 0) return c; } return "rgb(255, 255, 255)"; };
				return [...document.querySelectorAll("h1, p, label, legend, span, small, code, button, strong")].filter(e => { const a = light(getComputedStyle(e).color), b = light(ground(e)); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5; });
			})()`,
		} {
			if list := script[[]string](c, "("+found+").map(e => e.outerHTML ? e.outerHTML.slice(0, 120) : String(e))"); len(list) > 0 {
				c.t.Errorf("%s, %s: %s: %s", page, screen.name, problem, strings.Join(list, "\n"))
			}
		}
	}
	c.quiet(page)
}

// survey checks a page by axe-core, light and dark, on a phone and on a wide screen. If
// KILN_SCREENSHOTS is a folder, survey writes pictures there.
func (c *chromium) survey(page string) {
	c.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		c.scheme(scheme)
		for _, width := range []int64{390, 1280} {
			c.run(chromedp.EmulateViewport(width, 844))
			at := fmt.Sprintf("%s-%s-%d", page, scheme, width)
			c.axe(at)
			if script[bool](c, `document.documentElement.scrollWidth > innerWidth`) {
				c.t.Errorf("%s: wider than the screen", at)
			}
			folder := os.Getenv("KILN_SCREENSHOTS")
			if folder == "" {
				continue
			}
			picture, err := chromedp.Run(c.ctx, chromedp.FullScreenshot(100))
			if err != nil {
				c.t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, at+".png"), picture, 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.quiet(page)
}

// axeCore reads axe-core's axe.min.js of its npm package, unmodified.
var axeCore = sync.OnceValues(func() (string, error) {
	packed, err := os.ReadFile("testdata/axe-core/axe-4.14.1.min.js.gz")
	if err != nil {
		return "", err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	rules, err := io.ReadAll(z)
	return string(rules), err
})

// axe checks a page by the rules of axe-core for WCAG 2.2 A and AA, target-size among them.
func (c *chromium) axe(page string) {
	c.t.Helper()
	if !script[bool](c, `"axe" in window`) {
		rules, err := axeCore()
		if err != nil {
			c.t.Fatal(err)
		}
		script[bool](c, rules+`; true`)
	}
	const run = `{
		runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"], rules: {"target-size": {enabled: true}}, resultTypes: ["violations"]
	}`
	script[bool](c, `window.found = null; axe.run(`+run+`).then(r => { window.found = r; }, e => { window.found = {violations: [{id: "error", help: String(e), nodes: []}], passes: []}; }); true`)
	for deadline := time.Now().Add(time.Minute); !script[bool](c, `window.found !== null`); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: axe-core does not answer", page)
		}
	}
	for _, v := range script[[]string](c, `window.found.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 120) + " " + n.failureSummary).join(" | "))`) {
		c.t.Errorf("%s: %s", page, v)
	}
	if n := script[int](c, `window.found.passes.length`); n < 10 {
		c.t.Errorf("%s: axe-core has checked only %d rules", page, n)
	}
}

// scheme makes the browser prefer light or dark pages.
func (c *chromium) scheme(name string) {
	c.t.Helper()
	p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}}
	if _, err := chromedp.Call(c.ctx, emulation.SetEmulatedMedia, p); err != nil {
		c.t.Fatal(err)
	}
}

// language makes the browser ask for pages in a language.
func (c *chromium) language(tag string) {
	c.t.Helper()
	p := network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": tag}}
	if _, err := chromedp.Call(c.ctx, network.SetExtraHTTPHeaders, p); err != nil {
		c.t.Fatal(err)
	}
}

// Authorization, Endpoints: the pages in a real browser, by keyboard alone and
// without a word in the console; the policy of the pages lets the browser go on to
// the app.
// Contract, Authorization 3: forms work without script; readable on a phone and by keyboard.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	c := openChromium(t)
	s := start(t)
	s.app()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!DOCTYPE html><link rel="icon" href="data:,"><p id="arrived">The app.</p>`)
	}))
	defer app.Close()
	callback := app.URL + "/cb"
	request := s.request("redirect_uri", callback, "scope", "openid fhirUser launch/patient launch/encounter patient/*.rs patient/Observation.cruds?category=laboratory user/Patient.r offline_access")

	// 1. Signing in: the name has the focus; a wrong password is told.
	c.run(chromedp.Navigate(s.base+"/auth/authorize?"+request.Encode()), chromedp.WaitVisible(chromedp.CSS("#username")))
	c.look("login")
	if !script[bool](c, `document.activeElement.id == "username"`) {
		t.Error("the user name does not have the focus")
	}
	c.run(chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent("not the password"))
	c.press(kb.Enter, "#problem")
	c.mu.Lock()
	c.problems = nil // the status 401
	c.mu.Unlock()
	c.look("login-failed")
	if !script[bool](c, `document.activeElement.id == "password" && document.querySelector("#username").value == "doctor"`) {
		t.Error("after a wrong password, the password does not have the focus")
	}
	c.run(chromedp.KeyEvent(password))
	c.press(kb.Enter, "#q")

	// 2. The patient: searched, none found, found.
	c.look("patient")
	c.tab("#q")
	c.run(chromedp.KeyEvent("Nobody"))
	c.press(kb.Enter, "[role=status]")
	c.look("patient-none")
	c.tab("#q")
	c.run(chromedp.KeyEvent("Ada")) // Tab has selected what stood there
	c.press(kb.Enter, "[name=patient]")
	if n := script[int](c, `document.querySelectorAll("[name=patient]").length`); n != 1 {
		t.Errorf("the picker shows %d patients, want 1", n)
	}
	c.tab("[name=patient]")
	c.run(chromedp.KeyEvent(" "))
	c.tab("button[value=select_patient]")
	c.press(kb.Enter, "[name=encounter]")

	// 3. The encounter.
	c.look("encounter")
	c.tab("[name=encounter]")
	c.run(chromedp.KeyEvent(" "))
	c.tab("button[value=select_encounter]")
	c.press(kb.Enter, "[name=scope]")

	// 4. Consent: one scope is unticked; the browser goes on to the app.
	c.look("consent")
	c.tab(`[value="user/Patient.r"]`)
	c.run(chromedp.KeyEvent(" "))
	c.tab("button[value=authorize]")
	c.press(kb.Enter, "#arrived")
	c.quiet("the app")
	to, err := url.Parse(script[string](c, "location.href"))
	if err != nil || to.Query().Get("code") == "" {
		t.Fatalf("sent to %s", to)
	}
	tokens := s.exchange(to.Query().Get("code"), "redirect_uri", callback)
	// 5. What goes wrong is told on a page; signing out asks, and is done.
	c.run(chromedp.Navigate(s.base+"/auth/authorize?client_id=nobody"), chromedp.WaitVisible(chromedp.CSS("h1")))
	c.mu.Lock()
	c.problems = nil // the status 400
	c.mu.Unlock()
	c.look("error")
	c.run(chromedp.Navigate(s.base+"/auth/logout"), chromedp.WaitVisible(chromedp.CSS("h1")))
	c.look("logout")

	if got := tokens.text("scope"); tokens.status != 200 || tokens.text("patient") != "p1" || tokens.text("encounter") != "e1" || strings.Contains(got, "user/Patient.r") || !strings.Contains(got, "patient/*.rs") {
		t.Errorf("tokens: %d %s", tokens.status, tokens.body)
	}
}

// RFC 8252 §7.3: a native app may listen on the IPv6 loopback address, which a policy of
// pages has no word for; the browser goes on to it nevertheless.
// Contract, Authorization 3: strict CSP: `form-action` must allow the client's redirect origin.
func TestRedirectToIPv6InABrowser(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no address ::1: %v", err)
	}
	app := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!DOCTYPE html><link rel="icon" href="data:,"><p id="arrived">The app.</p>`)
	})}}
	app.Start()
	defer app.Close()
	c := openChromium(t)
	s := start(t)
	s.app()
	s.client(map[string]any{"clientId": "native", "redirectUris": []string{"http://[::1]/cb"}, "scopes": []string{"openid"}})
	request := s.request("client_id", "native", "redirect_uri", "http://"+l.Addr().String()+"/cb", "scope", "openid")
	c.run(chromedp.Navigate(s.base+"/auth/authorize?"+request.Encode()), chromedp.WaitVisible(chromedp.CSS("#username")), chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent(password))
	c.press(kb.Enter, "[name=scope]")
	c.tab("button[value=authorize]")
	c.press(kb.Enter, "#arrived")
	c.quiet("the app")
}

// Another site has the browser send its forms here: the sign-in stays, though the cookie
// does not come along.
// Contract, Authorization 3: `oauth_session`; `GET|POST /auth/authorize`; `/auth/logout` POST.
func TestFormsOfAnotherSiteInABrowser(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no address ::1: %v", err)
	}
	s := start(t)
	s.app()
	request := s.request("scope", "openid", "redirect_uri", "http://127.0.0.1/cb")
	site := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!DOCTYPE html><link rel="icon" href="data:,"><form method="post" action="%s"><button autofocus>Go</button>`, s.base+r.URL.Path)
		for name := range request {
			fmt.Fprintf(w, `<input type="hidden" name="%s" value="%s">`, name, html.EscapeString(request.Get(name)))
		}
		fmt.Fprint(w, `</form>`)
	})}}
	site.Start()
	defer site.Close()
	c := openChromium(t)
	c.run(chromedp.Navigate(s.base+"/auth/authorize?"+request.Encode()), chromedp.WaitVisible(chromedp.CSS("#username")), chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent(password))
	c.press(kb.Enter, "[name=scope]")
	for _, path := range []string{"/auth/logout", "/auth/authorize"} {
		c.run(chromedp.Navigate("http://"+l.Addr().String()+path), chromedp.WaitVisible(chromedp.CSS("button")))
		c.press(kb.Enter, map[string]string{"/auth/logout": "h1", "/auth/authorize": "[name=scope]"}[path])
		c.run(chromedp.Navigate(s.base+"/auth/authorize?"+request.Encode()), chromedp.WaitVisible(chromedp.CSS("button")))
		if !script[bool](c, `document.querySelector("[name=scope]") !== null && document.querySelector("#username") === null`) {
			t.Errorf("a form of another site at %s has ended the sign-in", path)
		}
	}
}
