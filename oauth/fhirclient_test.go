package oauth_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"kiln/oauth"
)

// The unmodified browser bundle of the npm package fhirclient 2.6.3 launches as apps do: one
// launch page for both launches, a short state, a PKCE challenge, the code exchanged by the
// browser.
// Contract, Authorization 3: with an S256 challenge a shorter state is accepted; one launch page serves both
// launches.
func TestFHIRClientLibraryInABrowser(t *testing.T) {
	t.Parallel()
	packed, err := os.ReadFile("testdata/fhirclient/fhir-client-2.6.3.min.js.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	library, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	c := openChromium(t)
	s := start(t)
	s.app()
	const head = `<!DOCTYPE html><link rel="icon" href="data:,"><script src="/fhir-client.js"></script>`
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/fhir-client.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(library)
		case "/launch":
			fmt.Fprintf(w, head+`<script>FHIR.oauth2.authorize({clientId: "library", scope: "openid fhirUser launch launch/patient patient/*.rs", redirectUri: "/app", iss: new URLSearchParams(location.search).get("iss")})</script>`)
		case "/app":
			fmt.Fprint(w, head+`<script>FHIR.oauth2.ready().then(client => {
				const p = document.createElement("p");
				p.id = "arrived";
				p.innerText = [client.patient.id, client.user.fhirUser, client.state.tokenResponse.scope, client.state.tokenResponse.need_patient_banner].join("; ");
				document.body.append(p);
			}, error => { document.body.innerHTML = "<p id='arrived'></p>"; document.querySelector("#arrived").innerText = "failed: " + error; })</script>`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer app.Close()
	s.client(map[string]any{"clientId": "library", "name": "Library", "redirectUris": []string{app.URL + "/app"}, "launchUri": app.URL + "/launch",
		"scopes": []string{appScopes}, "allowedOrigins": []string{app.URL}})

	arrived := func(launch, want string) {
		t.Helper()
		if got := script[string](c, `document.querySelector("#arrived").innerText`); got != want {
			t.Errorf("%s: the app has %q, want %q", launch, got, want)
		}
	}
	submit := func(button, next string) {
		t.Helper()
		c.tab(button)
		c.press(kb.Enter, next)
	}

	// 1. Standalone: the scope launch is left out, the user picks the patient.
	c.run(chromedp.Navigate(app.URL+"/launch?iss="+s.base+"/fhir"), chromedp.WaitVisible(chromedp.CSS("#username")), chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent(password))
	c.press(kb.Enter, "[name=patient]")
	c.tab("[name=patient]")
	c.run(chromedp.KeyEvent(" "))
	submit("button[value=select_patient]", "[name=scope]")
	submit("button[value=authorize]", "#arrived")
	arrived("standalone", "p1; Practitioner/1; openid fhirUser launch/patient patient/*.rs;")

	// 2. From the EHR: the launch says which patient.
	launch, err := s.server.NewLaunch(t.Context(), oauth.LaunchRequest{Patient: "p2"})
	if err != nil {
		t.Fatal(err)
	}
	c.run(chromedp.Navigate(app.URL+"/launch?iss="+s.base+"/fhir&launch="+launch), chromedp.WaitVisible(chromedp.CSS("[name=scope]")))
	submit("button[value=authorize]", "#arrived")
	arrived("from the EHR", "p2; Practitioner/1; openid fhirUser launch launch/patient patient/*.rs; true")
}
