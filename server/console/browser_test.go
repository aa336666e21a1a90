package console_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// chromium is a tab of a real browser, which reaches nothing but this machine.
type chromium struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	problems []string // errors in the console of the browser, refusals of the Content-Security-Policy among them
	foreign  []string // requests to another origin
	bytes    float64  // received since forget
}

// openChromium starts the system's Chromium; the test is skipped where there is none.
func openChromium(t *testing.T, base string) *chromium {
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
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		closeTab()
	})
	c := &chromium{t: t, ctx: ctx, base: base}
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
		case *network.EventRequestWillBeSent:
			if url := e.Request.URL; !strings.HasPrefix(url, base) && !strings.HasPrefix(url, "about:") && !strings.HasPrefix(url, "data:") {
				c.foreign = append(c.foreign, url)
			}
		case *network.EventLoadingFinished:
			c.bytes += e.EncodedDataLength
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
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

// open loads a page.
func (c *chromium) open(path string) {
	c.t.Helper()
	c.run(chromedp.Navigate(c.base + path))
}

// forget drops the recorded problems.
func (c *chromium) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems, c.foreign, c.bytes = nil, nil, 0
}

// quiet fails the test if the browser has reported a problem.
func (c *chromium) quiet(page string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.problems {
		c.t.Errorf("%s: the browser says: %s", page, p)
	}
	for _, u := range c.foreign {
		c.t.Errorf("%s: a request to %s", page, u)
	}
	c.problems, c.foreign = nil, nil
}

// treeRoles are the roles of Chromium's accessibility tree, by the names that these tests have for them.
var treeRoles = map[string][]string{"image": {"image", "img", "graphics-document"}, "field": {"textbox", "searchbox", "combobox", "checkbox", "radio", "spinbutton", "listbox"}, "progressbar": {"progressbar", "progressIndicator"}}

// found returns how many elements have a role and a name in the accessibility tree of the page, which lacks hidden ones. A
// status and an alert are found by their text: their names are not made of it. So are the labels of files, to which
// Chromium adds the name of the file.
func (c *chromium) found(role, name string) int {
	c.t.Helper()
	selector := map[string]string{"status": "[role=status]", "alert": "[role=alert]"}[role]
	if selector != "" {
		return script[int](c, fmt.Sprintf(`[...document.querySelectorAll(%q)].filter(e => e.checkVisibility() && e.innerText.trim().replace(/\s+/g, " ") == %q).length`, selector, name))
	}
	roles := treeRoles[role]
	if roles == nil {
		roles = []string{role}
	}
	tree, err := chromedp.Call(c.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		c.t.Fatal(err)
	}
	n := 0
	text := func(v *accessibility.Value) (s string) {
		if v != nil {
			_ = json.Unmarshal(v.Value, &s) // other values are no names
		}
		return s
	}
	for _, e := range tree.Nodes {
		if !e.Ignored && slices.Contains(roles, text(e.Role)) && strings.Join(strings.Fields(text(e.Name)), " ") == name {
			n++
		}
	}
	if role == "field" {
		n += script[int](c, fmt.Sprintf(`[...document.querySelectorAll("input[type=file]")].filter(e => e.checkVisibility() && e.labels.length && e.labels[0].innerText.trim() == %q).length`, name))
	}
	return n
}

// must fails the test where no element has a role and a name.
func (c *chromium) must(role string, names ...string) {
	c.t.Helper()
	for _, name := range names {
		if c.found(role, name) == 0 {
			c.t.Errorf("%s: no %s %q", script[string](c, "location.pathname"), role, name)
		}
	}
}

// press clicks a link or a button by its name, and waits for the page that follows.
func (c *chromium) press(role, name string) {
	c.t.Helper()
	selector := map[string]string{"link": "a[href]", "button": "button"}[role]
	if !script[bool](c, fmt.Sprintf(`(() => { const e = [...document.querySelectorAll(%q)].find(e => e.innerText.trim().replace(/\s+/g, " ") == %q); if (e) { document.documentElement.dataset.old = "1"; e.click(); } return !!e; })()`, selector, name)) {
		c.t.Fatalf("%s: no %s %q", script[string](c, "location.pathname"), role, name)
	}
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
		ready, err := chromedp.Run(c.ctx, chromedp.Evaluate[bool](`document.documentElement.dataset.old === undefined && document.readyState == "complete"`))
		if err == nil && ready {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s %q leads to no other page", role, name)
		}
	}
}

// fill writes into a field by its name.
func (c *chromium) fill(name, value string) {
	c.t.Helper()
	if !script[bool](c, fmt.Sprintf(`(() => { const l = [...document.querySelectorAll("label")].find(e => e.textContent.trim() == %q); const e = l && document.getElementById(l.htmlFor); if (e) { e.value = %q; e.dispatchEvent(new Event("change", {bubbles: true})); } return !!e; })()`, name, value)) {
		c.t.Fatalf("%s: no field %q", script[string](c, "location.pathname"), name)
	}
}

// text is the text of an element.
func (c *chromium) text(selector string) string {
	c.t.Helper()
	return script[string](c, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// survey checks a page by axe-core, light and dark, on a phone and on a wide screen. If KILN_SCREENSHOTS is a folder,
// survey writes pictures there.
func (c *chromium) survey(page string) {
	c.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		p := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
		if _, err := chromedp.Call(c.ctx, emulation.SetEmulatedMedia, p); err != nil {
			c.t.Fatal(err)
		}
		for _, width := range []int64{390, 1280} {
			c.run(chromedp.EmulateViewport(width, 844))
			at := fmt.Sprintf("%s-%s-%d", page, scheme, width)
			c.axe(at)
			if folder := os.Getenv("KILN_SCREENSHOTS"); folder != "" {
				picture, err := chromedp.Run(c.ctx, chromedp.FullScreenshot(100))
				if err != nil {
					c.t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(folder, at+".png"), picture, 0o600); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
	c.run(chromedp.EmulateViewport(320, 640))
	if script[bool](c, `document.documentElement.scrollWidth > innerWidth`) {
		c.t.Errorf("%s: wider than a screen of 320 pixels: %v", page, script[[]string](c, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll, pre")).slice(0, 3).map(e => e.outerHTML.slice(0, 100))`))
	}
	c.run(chromedp.EmulateViewport(1280, 844))
	c.quiet(page)
}

// axeCore reads axe-core's axe.min.js of its npm package, unmodified.
var axeCore = sync.OnceValues(func() (string, error) {
	packed, err := os.ReadFile("../../oauth/testdata/axe-core/axe-4.14.1.min.js.gz")
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
	for _, v := range script[[]string](c, `window.found.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + " " + n.failureSummary).join(" | "))`) {
		c.t.Errorf("%s: %s", page, v)
	}
}
