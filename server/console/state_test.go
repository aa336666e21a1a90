package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/app/sandbox"
	"kiln/server/store/storetest"
)

// json asks a server without authorization for JSON.
func (s *site) json(path string, into any) int {
	s.t.Helper()
	p := s.visitor().get(path, "Accept", "application/json")
	if p.status == http.StatusOK {
		if err := json.Unmarshal([]byte(p.body), into); err != nil {
			s.t.Fatalf("%s: %v: %s", path, err, p.body)
		}
	}
	return p.status
}

// The traffic of a server is kept by the minute, for all servers of the database; the backups are those that were written.
func TestTrafficAndBackups(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := start(t, database)
	for range 20 {
		s.visitor().get("/Patient/none", "Accept", "application/json").want(404)
	}
	s.stop() // a server that ends stores the minute that is under way
	s = start(t, database)
	type point struct {
		At               time.Time
		Server           *string
		Requests, Errors *int64
		P50              *float64 `json:"p50_ms"`
		P95              *float64 `json:"p95_ms"`
	}
	var traffic struct{ Points []point }
	if status := s.json("/admin/traffic?minutes=60", &traffic); status != 200 || len(traffic.Points) == 0 {
		t.Fatalf("/admin/traffic: %d, %d points", status, len(traffic.Points))
	}
	var requests int64
	for _, p := range traffic.Points {
		if p.Server == nil || *p.Server == "" || p.Requests == nil || p.Errors == nil || p.P50 == nil || p.P95 == nil || p.At.Second() != 0 || *p.P50 > *p.P95 {
			t.Errorf("a point is %+v", p)
			continue
		}
		if requests += *p.Requests; *p.Errors != 0 {
			t.Errorf("%d errors: a 404 is none", *p.Errors)
		}
	}
	if requests < 20 {
		t.Errorf("%d requests, of 20 at least", requests)
	}
	for _, minutes := range []string{"0", "-1", "x", "10081"} {
		if status := s.json("/admin/traffic?minutes="+minutes, nil); status != http.StatusBadRequest {
			t.Errorf("minutes=%s: %d", minutes, status)
		}
	}
	if status := s.json("/admin/traffic?minutes=10080", &traffic); status != 200 {
		t.Errorf("seven days: %d", status)
	}

	var answer struct{ Backups []map[string]any }
	if status := s.json("/admin/backups", &answer); status != 200 || answer.Backups == nil || len(answer.Backups) != 0 {
		t.Fatalf("/admin/backups: %d %v", status, answer)
	}
	v := s.visitor()
	v.get("/console").want(200).has(`<a href="#backups">No backup was written.</a>`)
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.Exec(t.Context(), "INSERT INTO backup_run (started, ended, bytes, verified) VALUES (now() - interval '30 days', now() - interval '30 days' + interval '1 minute', 4096, true)"); err != nil {
		t.Fatal(err)
	}
	if status := s.json("/admin/backups", &answer); status != 200 || len(answer.Backups) != 1 || answer.Backups[0]["bytes"] != 4096.0 || answer.Backups[0]["verified"] != true || answer.Backups[0]["started"] == nil || answer.Backups[0]["ended"] == nil {
		t.Errorf("/admin/backups: %d %v", status, answer)
	}
	v.get("/console").want(200).has(`<a href="#backups">The last backup is of `)
}

// Others than administrators get nothing of the endpoints that the console has brought.
func TestConsoleEndpointsNeedAdmin(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, withRESTClient)
	token := s.token("doctor")
	for _, path := range []string{"/admin/traffic", "/admin/backups", "/admin/grants", "/admin/sessions"} {
		if status, _ := s.rest(token, path); status != http.StatusForbidden {
			t.Errorf("%s as a doctor: %d", path, status)
		}
		if p := s.visitor().get(path, "Accept", "application/json"); p.status != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", path, p.status)
		}
	}
}

// An administrator who loses the role loses the screens within a second.
func TestWithdrawnRole(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t, func(c *server.Config) {
		c.Auth.Bootstrap.Users = append(c.Auth.Bootstrap.Users, map[string]any{"username": "second", "password": password, "name": "Second", "roles": []any{"admin"}})
	})
	admin, second := s.visitor(), s.visitor()
	admin.signIn("admin", "/console").want(200)
	second.signIn("second", "/console/settings").want(200)
	admin.post("/console/access/users/second", url.Values{"name": {"Second"}, "active": {"true"}}).want(http.StatusSeeOther)
	for deadline := time.Now().Add(time.Second); second.get("/console/settings").status == 200; {
		if time.Now().After(deadline) {
			t.Fatal("a withdrawn role gives the screens of administrators after a second")
		}
	}
}

// The address of a search, an open form and a session outlive a server that is killed, and work on the other servers; a sign-out
// on one of them ends all of that on every one.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	_, database := signedUp(t)
	killed := startKilled(t, database)
	v := killed.visitor()
	v.signIn("doctor", "/console").want(200)
	search := v.post("/console/search", url.Values{"type": {"Patient"}, "query": {"name:exact=Anna"}}).want(http.StatusSeeOther).location
	edit := v.get("/console/Patient/b/edit").want(200)
	form := url.Values{"csrf_token": {edit.hidden("csrf_token")}, "version": {"1"}, "resource": {`{"resourceType":"Patient","id":"b","gender":"female","name":[{"family":"After"}]}`}}
	killed.kill()

	one, two := start(t, database, withAuthorization, sameIssuer(killed.base)), start(t, database, withAuthorization, sameIssuer(killed.base))
	move := func(to *site) *visitor {
		w := to.visitor()
		from, _ := url.Parse(killed.base + "/console")
		there, _ := url.Parse(to.base + "/console")
		w.client.Jar.SetCookies(there, v.client.Jar.Cookies(from))
		return w
	}
	first, second := move(one), move(two)
	first.get(search).want(200).has("1 result", `href="/console/Patient/a"`)
	second.get(search).want(200).has("1 result")
	first.get(first.do(http.MethodPost, "/console/Patient/b/edit", form).want(http.StatusSeeOther).location).want(200).has("After")
	second.do(http.MethodPost, "/console/Patient/b/edit", form).want(http.StatusConflict).has("Compare") // a second click

	late := url.Values{"csrf_token": {second.get("/console/Patient/b/delete").want(200).hidden("csrf_token")}}
	first.post("/console/sign-out", url.Values{}).want(http.StatusSeeOther)
	for deadline := time.Now().Add(time.Second); second.get(search).status != http.StatusSeeOther; {
		if time.Now().After(deadline) {
			t.Fatal("a session outlives a sign-out on another server for more than a second")
		}
	}
	second.do(http.MethodPost, "/console/Patient/b/delete", late).want(http.StatusUnauthorized).has("<h1>Sign in again</h1>")
	other := two.visitor()
	other.signIn("anna", search).want(200).has("1 result") // with rights of their own
	other.get("/console/Patient/b").want(404)
}

// sameIssuer makes a server the issuer of the tokens of another one.
func sameIssuer(base string) func(*server.Config) {
	return func(c *server.Config) { c.Auth.Issuer = base }
}

// killable is a server in a process of its own.
type killable struct {
	site
	kill func()
}

// runAs is the variable by which the test program is told to be a server.
const runAs = "CONSOLE_TEST_SERVER"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "sandbox-worker" { // a server runs scripts in its own program
		memory, err := strconv.ParseInt(os.Args[2], 10, 64)
		if err == nil {
			err = sandbox.RunWorker(os.Stdin, os.Stdout, memory)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if database := os.Getenv(runAs); database != "" {
		serveUntilKilled(database)
		return
	}
	os.Exit(m.Run())
}

// serving is the line by which a server says its address.
var serving = regexp.MustCompile(`serving (http://\S+)`)

// startKilled starts a server that is killed as by kill -9.
func startKilled(t *testing.T, database string) *killable {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), runAs+"="+database)
	cmd.Dir = t.TempDir()
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	kill := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	}
	t.Cleanup(kill)
	var said strings.Builder
	for b := make([]byte, 1000); ; {
		n, err := out.Read(b)
		said.Write(b[:n])
		if m := serving.FindStringSubmatch(said.String()); m != nil {
			return &killable{site{t, m[1], kill}, kill}
		}
		if err != nil {
			t.Fatalf("the server says %s: %v: %s", said.String(), err, errors.String())
		}
	}
}

// serveUntilKilled is the program of that server.
func serveUntilKilled(database string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	cfg := server.Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Bulk.Directory = database, l.Addr().String(), "bulk"
	withAuthorization(&cfg)
	s, err := server.New(context.Background(), cfg, server.Options{Version: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	fmt.Printf("serving http://%s\n", l.Addr())
	panic(http.Serve(l, s.Handler))
}

// The cookie of a session is opaque and no page reads it; no token is in a page, an address or another cookie; pages have the policy.
func TestConsoleCookie(t *testing.T) {
	t.Parallel()
	const public = "https://fhir.example.org"
	for _, base := range []string{"", public} {
		s, _ := signedUp(t, func(c *server.Config) {
			c.Server.BaseURL = base
			if base != "" {
				c.Server.TrustedProxies = []string{"127.0.0.1/32"}
			}
		})
		v := s.visitor()
		if base != "" { // the sign-in page answers at the public address alone
			p := v.get("/console").want(http.StatusSeeOther)
			for _, c := range p.header.Values("Set-Cookie") {
				if !strings.Contains(c, "; Secure") {
					t.Errorf("a cookie with https: %s", c)
				}
			}
			continue
		}
		p := v.get("/console").want(http.StatusSeeOther)
		p = v.get(p.location).want(200)
		p = v.do(http.MethodPost, "/auth/authorize", url.Values{"session_id": {p.hidden("session_id")}, "csrf_token": {p.hidden("csrf_token")}, "action": {"login"}, "username": {"doctor"}, "password": {password}}).want(http.StatusSeeOther)
		p = v.get(p.location).want(http.StatusSeeOther)
		found := false
		for _, c := range p.header.Values("Set-Cookie") {
			if value, ok := strings.CutPrefix(c, "kiln_console="); ok {
				found = true
				if !regexp.MustCompile(`^[A-Za-z0-9_-]{43}; Path=/console; HttpOnly; SameSite=Lax$`).MatchString(value) {
					t.Errorf("the cookie is %s", c)
				}
			}
			if strings.Contains(c, "eyJ") {
				t.Errorf("a token in a cookie: %s", c)
			}
		}
		if !found {
			t.Errorf("a sign-in sets %v", p.header.Values("Set-Cookie"))
		}
		for _, path := range []string{"/console", "/console/account", "/console/Patient/a", "/console/requests"} {
			p := v.get(path).want(200).lacks("eyJ", "access_token", v.client.Jar.Cookies(&url.URL{Scheme: "http", Host: strings.TrimPrefix(s.base, "http://"), Path: "/console"})[0].Value)
			for name, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": "",
				"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"} {
				if got := p.header.Get(name); got != want {
					t.Errorf("%s: %s: %q, want %q", path, name, got, want)
				}
			}
		}
	}
}

// The metrics count pages by screen and status, their time, and the open sessions.
func TestConsoleMetrics(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	v := s.visitor()
	v.signIn("admin", "/console").want(200)
	v.get("/console/Patient/a").want(200)
	v.get("/console/Patient/none").want(404)
	token := v.made("/console/access/keys/new", url.Values{"name": {"metrics"}, "scopes": {"admin"}})
	v.get("/metrics", "Accept", "text/plain", "Authorization", "Bearer "+token).want(200).has(`service_console_requests_total{screen="resource",status="200"} 1`, `service_console_requests_total{screen="error",status="404"} 1`, `service_console_request_duration_seconds_count{screen="overview"} 1`,
		"service_console_sessions 1")
}

// Without the console, browsers get what programs get.
func TestConsoleOff(t *testing.T) {
	t.Parallel()
	s := start(t, "", func(c *server.Config) { c.Console.Enabled = false })
	s.put("Patient/a", `{"resourceType":"Patient","id":"a"}`)
	v := s.visitor()
	v.get("/console").want(404)
	if p := v.get("/Patient/a").want(200); !strings.Contains(p.header.Get("Content-Type"), "json") {
		t.Errorf("/Patient/a: %s", p.header.Get("Content-Type"))
	}
}

// A browser reads the content of a Binary, and its page where the address asks for HTML.
func TestBinaryOfABrowser(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.put("Binary/file", `{"resourceType":"Binary","id":"file","contentType":"text/plain","data":"aGVsbG8="}`)
	v := s.visitor()
	if p := v.get("/Binary/file").want(200); p.body != "hello" || !strings.HasPrefix(p.header.Get("Content-Type"), "text/plain") {
		t.Errorf("the content is %s %q", p.header.Get("Content-Type"), p.body)
	}
	if p := v.get("/Binary/file?_format=html").want(http.StatusSeeOther); p.location != "/console/Binary/file" {
		t.Errorf("_format=html leads to %s", p.location)
	}
}

// An administrator lists the sessions by REST, of all users or of one, and ends one.
func TestSessionsOfAdministrators(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	admin, doctor := s.visitor(), s.visitor()
	admin.signIn("admin", "/console").want(200)
	doctor.signIn("doctor", "/console").want(200)
	token := admin.made("/console/access/keys/new", url.Values{"name": {"tool"}, "scopes": {"admin"}})
	list := func(query string) (sessions []struct {
		ID, User, Address   string
		Started, LastActive *time.Time
	}) {
		t.Helper()
		status, body := s.rest(token, "/admin/sessions"+query)
		answer := struct{ Sessions any }{&sessions}
		if err := json.Unmarshal([]byte(body), &answer); status != 200 || err != nil {
			t.Fatalf("/admin/sessions%s: %d %v %s", query, status, err, body)
		}
		return sessions
	}
	if n := len(list("")); n != 2 {
		t.Errorf("%d sessions, not 2", n)
	}
	own := list("?user=doctor")
	if len(own) != 1 || own[0].User != "doctor" || own[0].Address != "127.0.0.1" || own[0].Started == nil || own[0].LastActive == nil {
		t.Fatalf("the sessions of the doctor are %+v", own)
	}
	r, err := http.NewRequest(http.MethodDelete, s.base+"/admin/sessions/"+own[0].ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	w, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %d", w.StatusCode)
	}
	doctor.get("/console").want(http.StatusSeeOther)
	admin.get("/console").want(200)
}
