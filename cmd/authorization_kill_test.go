package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/server/store/storetest"
)

// killer stands between one server and PostgreSQL. Once armed it counts the statements
// on the tables of the authorization server, and kills the server at the one it is told,
// before PostgreSQL gets it or right after.
type killer struct {
	t        *testing.T
	listener net.Listener
	network  string // of PostgreSQL
	address  string
	left     atomic.Int64 // statements until the end; 0 counts nothing
	after    atomic.Bool
	fired    atomic.Bool
	process  atomic.Pointer[os.Process]
}

func newKiller(t *testing.T, database string) (*killer, string) {
	t.Helper()
	c, err := pgconn.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	k := &killer{t: t}
	k.network, k.address = pgconn.NetworkAddress(c.Host, c.Port)
	if k.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.listener.Close() })
	go func() {
		for {
			in, err := k.listener.Accept()
			if err != nil {
				return
			}
			go k.serve(in)
		}
	}()
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: k.listener.Addr().String(), Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	return k, u.String()
}

// counted are the statements between which a server may die, without the periodic reads of
// other servers' changes.
var counted = regexp.MustCompile(`(?i)oauth_(code|grant|refresh|flow|login|consent|launch|failure|user)\b|^\s*(begin|commit)`)

func (k *killer) serve(in net.Conn) {
	defer in.Close()
	out, err := net.Dial(k.network, k.address)
	if err != nil {
		return
	}
	defer out.Close()
	go func() { _, _ = io.Copy(in, out); in.Close() }()
	// The startup message has no type. PostgreSQL's protocol, message formats.
	head := make([]byte, 5)
	if _, err := io.ReadFull(in, head[:4]); err != nil {
		return
	}
	startup := make([]byte, binary.BigEndian.Uint32(head)-4)
	if _, err := io.ReadFull(in, startup); err != nil {
		return
	}
	if _, err := out.Write(append(bytes.Clone(head[:4]), startup...)); err != nil {
		return
	}
	statements := make(map[string]string) // prepared, by name
	for {
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		text := ""
		switch first, rest, _ := bytes.Cut(body, []byte{0}); head[0] {
		case 'P':
			sql, _, _ := bytes.Cut(rest, []byte{0})
			statements[string(first)] = string(sql)
		case 'B':
			name, _, _ := bytes.Cut(rest, []byte{0})
			text = statements[string(name)]
		case 'Q':
			text = string(first)
		}
		last := k.left.Load() > 0 && counted.MatchString(text) && k.left.Add(-1) == 0
		if last && !k.after.Load() {
			k.kill()
			return
		}
		if _, err := out.Write(append(bytes.Clone(head), body...)); err != nil {
			return
		}
		if last {
			if head[0] == 'B' { // the message that executes it follows
				if _, err := out.Write([]byte{'E', 0, 0, 0, 9, 0, 0, 0, 0, 0, 'S', 0, 0, 0, 4}); err != nil {
					return
				}
			}
			k.kill()
			return
		}
	}
}

func (k *killer) kill() {
	k.fired.Store(true)
	if p := k.process.Load(); p != nil {
		_ = p.Kill()
	}
}

// process is a server of its own process.
type process struct {
	base string
	cmd  *exec.Cmd
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func startProcess(t *testing.T, database, address, issuer string) *process {
	t.Helper()
	p := &process{base: "http://" + address, cmd: exec.Command(os.Args[0], "serve")}
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database, "KILN_SERVER__LISTEN="+address, "KILN_AUTH__ENABLED=true", "KILN_AUTH__ISSUER="+issuer,
		"KILN_AUTH__SIGNING__ALGORITHM=ES384", "KILN_AUTH__RATE_LIMITING__TOKEN_REQUESTS_PER_MINUTE=0", "KILN_AUTH__RATE_LIMITING__TOKEN_REQUESTS_PER_HOUR=0", "KILN_AUTH__RATE_LIMITING__AUTH_REQUESTS_PER_MINUTE=0")
	var said bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &said, &said
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var wait sync.Once
	ended := make(chan struct{})
	go wait.Do(func() { _ = p.cmd.Wait(); close(ended) })
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-ended })
	for deadline := time.Now().Add(time.Minute); ; {
		if resp, err := http.Get(p.base + "/health/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return p
			}
		}
		select {
		case <-ended:
			t.Fatalf("the server ended: %s", said.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server is not ready: %s", said.String())
		}
	}
}

// agent is a browser of one user: it keeps its cookie and follows no redirect.
type agent struct {
	t      *testing.T
	cookie string
}

type page struct {
	status   int
	location url.Values // of a redirect to the client
	body     string
}

// do is nil where the server died.
func (a *agent) do(method, target string, form url.Values) *page {
	a.t.Helper()
	r, err := http.NewRequest(method, target, strings.NewReader(form.Encode()))
	if err != nil {
		a.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if a.cookie != "" {
		r.Header.Set("Cookie", a.cookie)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	for _, c := range resp.Cookies() {
		a.cookie = c.Name + "=" + c.Value
	}
	p := &page{status: resp.StatusCode, body: string(b)}
	if to, err := url.Parse(resp.Header.Get("Location")); err == nil && to.Host != "" {
		p.location = to.Query()
	}
	return p
}

var fieldTag = regexp.MustCompile(`<(?:input|button)[^>]*\bname="([^"]*)"[^>]*\bvalue="([^"]*)"`)

// next is the form that goes on from a page.
func (p *page) next() url.Values {
	v := url.Values{}
	for _, m := range fieldTag.FindAllStringSubmatch(p.body, -1) {
		name, value := m[1], html.UnescapeString(m[2])
		switch {
		case name == "session_id" || name == "csrf_token", name == "patient" && !v.Has(name):
			v.Set(name, value)
		case name == "scope":
			v.Add(name, value)
		case name == "action" && value != "deny" && value != "search" && !v.Has(name):
			v.Set(name, value)
		}
	}
	if v.Get("action") == "login" {
		v.Set("username", "doctor")
		v.Set("password", killPassword)
	}
	return v
}

const (
	killPassword = "correct horse battery"
	killCallback = "https://app.example.org/cb"
	killVerifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk-0123"
)

// codeFlow is a code flow over two servers of one database; at names the step whose request
// goes to the first server, which may die of it. A request without an answer is repeated at
// the second.
type codeFlow struct {
	t           *testing.T
	dying, safe *process
	database    *pgx.Conn
}

// pages walks through the pages to a code.
func (f *codeFlow) pages(at string) string {
	f.t.Helper()
	a := &agent{t: f.t}
	sum := sha256.Sum256([]byte(killVerifier))
	query := url.Values{"response_type": {"code"}, "client_id": {"app"}, "redirect_uri": {killCallback}, "state": {"b2c1f3c4-9b1e-4a57-8d35-6f0c6d3f2a11"},
		"aud": {f.safe.base + "/fhir"}, "scope": {"launch/patient offline_access patient/*.rs"}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])},
		"code_challenge_method": {"S256"}, "prompt": {"consent"}}.Encode()
	on := func(step string) *process {
		if step == at {
			return f.dying
		}
		return f.safe
	}
	p := a.do("GET", on("request").base+"/auth/authorize?"+query, nil)
	if p == nil {
		p = a.do("GET", f.safe.base+"/auth/authorize?"+query, nil)
	}
	for range 8 {
		if code := p.location.Get("code"); code != "" {
			return code
		}
		v := p.next()
		if v.Get("action") == "" {
			f.t.Fatalf("no way on: %d %v %s", p.status, p.location, p.body)
		}
		if answered := a.do("POST", on(v.Get("action")).base+"/auth/authorize", v); answered != nil {
			p = answered
			continue
		}
		// A browser that got no answer sends its form again; where the server has gone on
		// and could not say so, the user begins anew.
		if p = a.do("POST", f.safe.base+"/auth/authorize", v); p.status >= 400 {
			a.cookie = ""
			p = a.do("GET", f.safe.base+"/auth/authorize?"+query, nil)
		}
	}
	f.t.Fatal("the pages do not end")
	return ""
}

type tokenAnswer struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	Error   string
}

// token is nil where the server died.
func (f *codeFlow) token(at *process, form url.Values) *tokenAnswer {
	f.t.Helper()
	p := (&agent{t: f.t}).do("POST", at.base+"/auth/token", form)
	if p == nil {
		return nil
	}
	out := new(tokenAnswer)
	if err := json.Unmarshal([]byte(p.body), out); err != nil || p.status >= 500 {
		f.t.Fatalf("token: %d %s", p.status, p.body)
	}
	return out
}

func codeForm(code string) url.Values {
	return url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {killCallback}, "client_id": {"app"}, "code_verifier": {killVerifier}}
}

func refreshForm(token string) url.Values {
	return url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": {"app"}}
}

func (f *codeFlow) works(token string) bool {
	r, err := http.NewRequest("GET", f.safe.base+"/fhir/Patient/p1", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode == 200
}

// once checks that a used code or token cannot be used again, and that the answer is valid.
func (f *codeFlow) once(first *tokenAnswer, form url.Values) {
	f.t.Helper()
	got := first
	if got == nil { // not answered: the client asks again
		got = f.token(f.safe, form)
	}
	if got.Access == "" {
		if first != nil || got.Error != "invalid_grant" {
			f.t.Errorf("answered with %+v", got)
		}
		return
	}
	if !f.works(got.Access) {
		f.t.Error("an access token that was answered is not good")
	}
	var active int
	if err := f.database.QueryRow(context.Background(), `SELECT count(*) FROM oauth_refresh r JOIN oauth_grant g ON g.id = r.grant_id WHERE r.active AND NOT g.revoked`).Scan(&active); err != nil || active != 1 {
		f.t.Errorf("%d refresh tokens are good, %v, want one", active, err)
	}
	next := f.token(f.safe, refreshForm(got.Refresh))
	if next.Access == "" {
		f.t.Errorf("a refresh token that was answered is not good: %+v", next)
	}
	if again := f.token(f.safe, form); again.Access != "" {
		f.t.Error("used twice")
	}
}

// kill -9 of a server between every two statements of the code flow and of refresh, real
// processes on one database: nothing is usable twice, nothing is lost that was answered,
// and the user can go on with the other server. KILN_KILLS=all takes every statement,
// before and after it; else a few are drawn.
// Contract, Authorization 3: codes and refresh tokens, one use, when a server is killed between two steps.
func TestKilledWithinTheCodeFlow(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	issuer := freeAddress(t)
	safe := startProcess(t, database, issuer, "http://"+issuer)
	run := func(args ...string) {
		t.Helper()
		c := exec.Command(os.Args[0], args...)
		c.Env = append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("kiln %v: %v\n%s", args, err, out)
		}
	}
	run("admin", "user", "create", "doctor", "--password", killPassword)
	run("admin", "client", "create", "app", "--redirect-uris", killCallback, "--scopes", "launch/patient offline_access patient/*.rs")
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	storePatient(t, safe.base, database, "p1")

	steps := []string{"request", "login", "authorize", "select_patient", "token", "refresh"}
	every := os.Getenv("KILN_KILLS") == "all"
	kills, answered := 0, 0
	for _, step := range steps {
		for n := 1; ; n++ {
			if !every && n%4 != len(step)%4 && n > 1 {
				if n > 40 {
					break
				}
				continue
			}
			fired := false
			for _, after := range []bool{false, true} {
				if !every && after != (n%2 == 0) {
					continue
				}
				if _, err := conn.Exec(t.Context(), `TRUNCATE oauth_refresh, oauth_grant, oauth_code, oauth_flow, oauth_login, oauth_failure`); err != nil {
					t.Fatal(err)
				}
				k, through := newKiller(t, database)
				dying := startProcess(t, through, freeAddress(t), "http://"+issuer)
				k.process.Store(dying.cmd.Process)
				f := &codeFlow{t: t, dying: dying, safe: safe, database: conn}
				arm := func() { k.after.Store(after); k.left.Store(int64(n)) }
				var first *tokenAnswer
				var form url.Values
				switch step {
				case "token":
					form = codeForm(f.pages(""))
					arm()
					first = f.token(dying, form)
				case "refresh":
					form = refreshForm(f.token(safe, codeForm(f.pages(""))).Refresh)
					arm()
					first = f.token(dying, form)
				default:
					arm()
					form = codeForm(f.pages(step))
					first = f.token(safe, form)
				}
				k.left.Store(0)
				if k.fired.Load() {
					fired = true
					kills++
				}
				if first != nil {
					answered++
				}
				f.once(first, form)
				_ = dying.cmd.Process.Kill()
				if t.Failed() {
					t.Fatalf("%s, statement %d, after it: %v", step, n, after)
				}
			}
			if !fired {
				t.Logf("%s has %d statements", step, n-1)
				break
			}
		}
	}
	t.Logf("%d kills, %d answers", kills, answered)
	if kills < len(steps) {
		t.Errorf("%d kills: the servers do not die", kills)
	}
}

// storePatient stores a patient.
func storePatient(t *testing.T, base, database, id string) {
	t.Helper()
	c := exec.Command(os.Args[0], "admin", "apikey", "create", "--scope", "system/*.cruds")
	c.Env = append(os.Environ(), "RUN_AS_KILN=1", "KILN_DATABASE__URL="+database)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	r, err := http.NewRequest("PUT", base+"/fhir/Patient/"+id, strings.NewReader(`{"resourceType":"Patient","id":"`+id+`","name":[{"family":"Lovelace"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+lines[len(lines)-1])
	r.Header.Set("Content-Type", "application/fhir+json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 201 {
		t.Fatal(fmt.Sprint("store the patient: ", resp.Status))
	}
}
