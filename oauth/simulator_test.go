package oauth_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kiln/oauth/simulator"
	"kiln/server/access"
)

// The launch simulator in a real browser, by keyboard alone: app, patient and encounter are
// chosen, launched from the EHR and standalone; the page shows the token answer.
// Contract: docs/contract.md, Authorization, Shape (kiln serve --demo). Contract,
// Authorization 1: `kiln serve --demo`: a launch simulator at `/launch`.
func TestLaunchSimulatorInABrowser(t *testing.T) {
	t.Parallel()
	c := openChromium(t)
	s := start(t)
	s.app()
	(&simulator.Part{Server: s.server, Logger: slog.New(slog.DiscardHandler), Principal: access.Open}).Mount(s.mux)
	s.client(map[string]any{"clientId": simulator.AppID, "name": "Demo app", "scopes": []string{simulator.AppScopes},
		"launchUri": s.base + simulator.LaunchPath, "redirectUris": []string{s.base + simulator.CallbackPath}})
	choose := func(selector string) {
		t.Helper()
		c.run(chromedp.ScrollIntoView(chromedp.CSS(selector)), chromedp.Click(chromedp.CSS(selector)))
		if !script[bool](c, `document.querySelector("`+selector+`").checked`) {
			t.Errorf("%s is not chosen", selector)
		}
	}
	// submit goes on by a button, to a page that has an element.
	submit := func(button, selector string) {
		t.Helper()
		c.tab(button)
		c.press(kb.Enter, selector)
	}
	app := func(what string, words ...string) {
		t.Helper()
		c.look(what)
		text := script[string](c, `document.querySelector("main").innerText`)
		for _, word := range append(words, "access_token", `"patient": "p1"`, "The patient's record") {
			if !strings.Contains(text, word) {
				t.Errorf("%s: the app does not show %q: %s", what, word, text)
			}
		}
	}

	// 1. From the EHR.
	c.run(chromedp.Navigate(s.base+"/launch"), chromedp.WaitVisible(chromedp.CSS("#patient-p1")))
	c.look("simulator")
	choose("#patient-p1")
	submit("button[value=encounters]", "#encounter-e1")
	c.look("simulator-encounters")
	choose("#encounter-e1")
	submit("button[value=launch]", "#username")
	c.run(chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent(password))
	c.press(kb.Enter, "[name=scope]")
	submit("button[value=authorize]", "pre")
	app("simulator-app", `"encounter": "e1"`)

	// 2. Standalone: the sign-in is remembered, the consent is for other scopes, and the
	// patient is picked.
	c.run(chromedp.Navigate(s.base+"/launch"), chromedp.WaitVisible(chromedp.CSS("#kind-standalone")))
	choose("#kind-standalone")
	submit("button[value=launch]", "[name=patient]")
	choose("[name=patient][value=p1]")
	submit("button[value=select_patient]", "[name=scope]")
	submit("button[value=authorize]", "pre")
	app("simulator-standalone")
}
