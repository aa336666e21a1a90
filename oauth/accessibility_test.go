package oauth_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kiln/oauth"
	"kiln/oauth/simulator"
	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/web"
)

// refuseAll is a limiter that has no more requests left for a path.
type refuseAll string

func (path refuseAll) Limit(x *web.Exchange, r *http.Request, _ web.Group, _ *access.Principal) error {
	if r.URL.Path != string(path) {
		return nil
	}
	x.Header().Set("Retry-After", "42")
	return outcome.New(outcome.CodeThrottled, "too many requests")
}

// axe-core finds nothing on any page, light and dark, on a phone and on a wide screen, in both languages.
// Contract, Authorization 3: readable on a phone and by keyboard; English and German by Accept-Language.
func TestPagesByAxeInABrowser(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"en", "de"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			surveyPages(t, language)
		})
	}
}

func surveyPages(t *testing.T, language string) {
	c := openChromium(t)
	logo := filepath.Join(t.TempDir(), "logo.svg")
	if err := os.WriteFile(logo, []byte(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 40" width="40" height="40"><circle cx="20" cy="20" r="18" fill="#0b7a75"/></svg>`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *oauth.Options) {
		o.Config.Pages.Name, o.Config.Pages.Logo = "St. Mary's Hospital", logo
		o.Config.Federation.Providers = []map[string]any{{"name": "Hospital", "issuer": "http://127.0.0.1:9", "client_id": "kiln", "client_secret": "a secret of theirs"}}
	})
	s.app()
	(&simulator.Part{Server: s.server, Logger: slog.New(slog.DiscardHandler), Principal: access.Open}).Mount(s.mux)
	s.client(map[string]any{"clientId": simulator.AppID, "name": "Demo app", "scopes": []string{simulator.AppScopes},
		"launchUri": s.base + simulator.LaunchPath, "redirectUris": []string{s.base + simulator.CallbackPath}})
	request := s.request("redirect_uri", s.base+simulator.CallbackPath, "client_id", simulator.AppID, "scope",
		"openid fhirUser launch/patient launch/encounter offline_access patient/Patient.rs patient/Condition.rs patient/Observation.rs patient/MedicationRequest.rs")
	c.language(language)
	survey := func(page string) {
		t.Helper()
		if got := script[string](c, "document.documentElement.lang"); got != language && !strings.HasPrefix(page, "simulator") {
			t.Errorf("%s: language %q, want %q", page, got, language)
		}
		c.survey(page + "-" + language)
	}
	open := func(path, selector string) {
		t.Helper()
		c.run(chromedp.Navigate(s.base+path), chromedp.WaitVisible(chromedp.CSS(selector)))
	}
	submit := func(button, selector string) {
		t.Helper()
		c.run(chromedp.Focus(chromedp.CSS(button)))
		c.press(kb.Enter, selector)
	}
	choose := func(selector string) {
		t.Helper()
		c.run(chromedp.Focus(chromedp.CSS(selector)), chromedp.KeyEvent(" "))
	}
	// A page with a status of 400 or more leaves an entry in the console.
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.problems = nil
	}

	open("/launch", "#patient-p1")
	survey("simulator")
	choose("#patient-p1")
	submit("button[value=encounters]", "#encounter-e1")
	survey("simulator-encounters")

	open("/auth/authorize?"+request.Encode(), "#username")
	survey("login")
	c.run(chromedp.Focus(chromedp.CSS("#username")), chromedp.KeyEvent("doctor"), chromedp.Focus(chromedp.CSS("#password")), chromedp.KeyEvent("not the password"))
	c.press(kb.Enter, "#problem")
	forget()
	survey("login-failed")
	c.run(chromedp.Focus(chromedp.CSS("#password")), chromedp.KeyEvent(password))
	c.press(kb.Enter, "#q")
	survey("picker")
	c.run(chromedp.Focus(chromedp.CSS("#q")), chromedp.KeyEvent("Nobody"))
	c.press(kb.Enter, "[role=status]")
	survey("picker-none")
	c.run(chromedp.Focus(chromedp.CSS("#q")), chromedp.KeyEvent(kb.End+strings.Repeat(kb.Backspace, 6)))
	c.press(kb.Enter, "[name=patient]")
	choose("[name=patient]")
	submit("button[value=select_patient]", "[name=encounter]")
	survey("encounter")
	choose("[name=encounter]")
	submit("button[value=select_encounter]", "[name=scope]")
	survey("consent")
	script[bool](c, `document.querySelectorAll("details").forEach(d => { d.open = true; }); true`)
	survey("consent-parts")
	submit("button[value=authorize]", ".problem") // the simulator began no such launch
	forget()
	survey("simulator-problem")

	open("/launch", "#kind-standalone")
	choose("#kind-standalone")
	submit("button[value=launch]", "[name=patient]")
	choose("[name=patient]")
	submit("button[value=select_patient]", "[name=scope]")
	submit("button[value=authorize]", "pre")
	survey("simulator-app")

	open("/auth/grants", "table")
	survey("grants")
	submit("button[value=revoke]", "[role=status]")
	survey("grants-none")
	open("/auth/logout", "button.first")
	survey("sign-out")
	submit("button.first", "[role=status]")
	survey("signed-out")
	open("/auth/grants", "#username")
	survey("login-own")

	open("/auth/authorize?client_id=nobody", ".problem")
	forget()
	survey("error")
	s.mux.Limiter = refuseAll("/auth/authorize")
	open("/auth/authorize", ".problem")
	forget()
	survey("throttled")
	if text := script[string](c, `document.querySelector("main").innerText`); !strings.Contains(text, "42") {
		t.Errorf("the 429 page does not say how long to wait: %s", text)
	}
}
