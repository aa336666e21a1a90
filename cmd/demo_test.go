package main

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// said is the output of a process so far.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// kiln serve --demo: authorization on an empty database, made-up patients, users with
// printed passwords, curl lines that work, and a launch simulator from the choice of the
// patient to the app. Contract: docs/contract.md, Authorization, Shape.
// Contract, Authorization 1: `kiln serve --demo`: users with one-time passwords, clients, the `curl` lines;
// refused on a non-empty database and off loopback.
func TestDemo(t *testing.T) {
	t.Parallel()
	database, address := storetest.New(t), freeAddress(t)
	bootstrap := "auth: {bootstrap: {clients: [{clientId: admin, confidential: true, scopes: [admin]}], users: [{username: mine, password: correct-horse-battery}]}}"
	serve := func(more ...string) (*exec.Cmd, *said) {
		c := exec.Command(os.Args[0], append([]string{"serve", "--demo", "--database-url", database}, more...)...)
		c.Dir, c.Env = t.TempDir(), append(os.Environ(), "RUN_AS_KILN=1")
		if err := os.WriteFile(filepath.Join(c.Dir, "kiln.yaml"), []byte(bootstrap), 0o600); err != nil {
			t.Fatal(err)
		}
		out := new(said)
		c.Stdout, c.Stderr = out, out
		return c, out
	}
	c, out := serve("--listen", address)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "Ctrl-C"); {
		if time.Now().After(deadline) {
			t.Fatalf("no banner: %s", out)
		}
		<-time.After(20 * time.Millisecond)
	}
	banner := out.String()
	base := "http://" + address

	// 1. The lines to try.
	command := banner[strings.Index(banner, "TOKEN=$("):strings.Index(banner, "  Read ")]
	for name, want := range map[string]string{"Read": `"resourceType":"Bundle"`, "Administer": `"demo-app"`, "Discovery": `"token_endpoint"`} {
		line := regexp.MustCompile(`(?m)^  ` + name + ` +(curl .*)$`).FindStringSubmatch(banner)
		if line == nil {
			t.Errorf("the banner has no line %s: %s", name, banner)
			continue
		}
		got, err := exec.Command("bash", "-c", command+"\n"+line[1]).Output()
		if err != nil || !strings.Contains(strings.ReplaceAll(string(got), `": "`, `":"`), want) {
			t.Errorf("%s: %v, %s", line[1], err, got)
		}
	}

	// An App has a client of its own, without rights.
	got, err := exec.Command("bash", "-c", strings.ReplaceAll(command, "*.rs", "*.cruds")+`
		curl -s -o /dev/null -X PUT -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/fhir+json' -d '{"resourceType":"App","id":"own","name":"own","version":"1","status":"active"}' `+base+`/fhir/App/own
		curl -s -H "Authorization: Bearer $TOKEN" `+base+`/admin/apps/own/grants`).Output()
	if err != nil || !strings.Contains(string(got), `"app-own"`) || !strings.Contains(string(got), `[]`) {
		t.Errorf("the grants of an App: %v, %s", err, got)
	}

	// 2. The simulator, from the EHR and standalone, for each user that may launch.
	for _, tt := range []struct{ user, kind, patient string }{
		{"clinician", "ehr", "demo-peter"}, {"clinician", "standalone", ""}, {"patient", "standalone", "demo-peter"},
	} {
		password := regexp.MustCompile(`(?m)\b` + tt.user + ` +(\S+)$`).FindStringSubmatch(banner)
		if password == nil {
			t.Fatalf("no password of %s: %s", tt.user, banner)
		}
		jar := make(map[string]string)
		p := browse(t, jar, "GET", base+"/launch", nil)
		if !strings.Contains(p, `value="demo-app"`) || !strings.Contains(p, `value="demo-peter"`) {
			t.Fatalf("nothing to choose: %s", p)
		}
		p = browse(t, jar, "POST", base+"/launch", url.Values{"client": {"demo-app"}, "patient": {tt.patient}, "kind": {tt.kind}, "action": {"launch"}})
		for range 6 {
			if strings.Contains(p, "Token answer") {
				break
			}
			v := (&page{body: p}).next()
			if v.Get("action") == "" {
				t.Fatalf("%v: no way on: %s", tt, p)
			}
			if v.Get("action") == "login" {
				v.Set("username", tt.user)
				v.Set("password", password[1])
			}
			p = browse(t, jar, "POST", base+"/auth/authorize", v)
		}
		p = strings.ReplaceAll(p, "&#34;", `"`)
		if !strings.Contains(p, `"access_token"`) || !strings.Contains(p, `"resourceType": "Patient"`) || tt.patient != "" && !strings.Contains(p, `"patient": "`+tt.patient+`"`) {
			t.Errorf("%v: the app shows %s", tt, p)
		}
	}

	// 3. Not on a database in use, not off loopback, not with an account of its own that
	// the configuration makes.
	own := strings.ReplaceAll(bootstrap, "username: mine", "username: admin")
	for _, refused := range []struct{ listen, bootstrap, word, more string }{
		{freeAddress(t), bootstrap, "empty database", ""}, {"0.0.0.0:0", bootstrap, "loopback", ""}, {freeAddress(t), own, `"admin"`, ""},
		{freeAddress(t), bootstrap, "server.base_url is https://fhir.example.org/fhir: --demo is for loopback", "--base-url=https://fhir.example.org/fhir"},
	} {
		bootstrap = refused.bootstrap
		c, out := serve(append([]string{"--listen", refused.listen}, strings.Fields(refused.more)...)...)
		if err := c.Run(); err == nil || !strings.Contains(out.String(), refused.word) {
			t.Errorf("--listen %s: %v, %s, want a refusal that says %q", refused.listen, err, out, refused.word)
		}
	}
}

// browse makes a request as a browser does, which follows redirects and keeps cookies.
func browse(t *testing.T, jar map[string]string, method, target string, form url.Values) string {
	t.Helper()
	for range 10 {
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader(form.Encode())
		}
		r, err := http.NewRequest(method, target, body)
		if err != nil {
			t.Fatal(err)
		}
		if body != nil {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for name, value := range jar {
			r.AddCookie(&http.Cookie{Name: name, Value: value})
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range resp.Cookies() {
			jar[c.Name] = c.Value
		}
		to, err := resp.Location()
		if err != nil {
			return string(b)
		}
		method, target = http.MethodGet, to.String()
	}
	t.Fatalf("too many redirects to %s", target)
	return ""
}
