package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// verifier knows three tokens.
type verifier struct{}

func (verifier) Verify(_ context.Context, token string) (*access.Principal, error) {
	switch token {
	case "user":
		return &access.Principal{Subject: "user"}, nil
	case "scraper":
		return &access.Principal{Subject: "scraper", Scopes: smart.Scopes{Other: []string{"metrics"}}}, nil
	case "admin":
		return &access.Principal{Subject: "root", Admin: true}, nil
	}
	return nil, outcome.New(outcome.CodeLogin, "the access token is not valid")
}

// everything answers each path with the principal's name.
type everything struct{}

func (everything) ServeExchange(x *Exchange, r *http.Request) {
	io.WriteString(x, access.PrincipalFrom(x.Context()).Subject+" "+r.URL.Path+"?"+r.URL.RawQuery)
}

func newMux(v access.Verifier) *Mux {
	m := &Mux{Verifier: v, Logger: slog.New(slog.DiscardHandler)}
	say := func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if p := access.PrincipalFrom(r.Context()); p != nil {
			name = p.Subject
		}
		io.WriteString(w, name+" "+r.URL.Path+"?"+r.URL.RawQuery)
	}
	m.HandleFunc(Health, "GET /health", say)
	m.HandleFunc(Metric, "GET /metrics", say)
	m.HandleFunc(Admin, "GET /admin/x", say)
	m.HandleFunc(Public, "POST /auth/token", say)
	m.HandleFunc(Streams, "GET /notifications/events", say)
	m.HandleFunc(Public, "GET /panic", func(http.ResponseWriter, *http.Request) { panic("boom") })
	m.HandleRest(FHIR, everything{})
	return m
}

// A part serves its own paths in every spelling; all other paths are FHIR's.
func TestRoutes(t *testing.T) {
	t.Parallel()
	m := &Mux{Logger: slog.New(slog.DiscardHandler)}
	m.HandleFunc(Public, "GET /own/{id}/part", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "part "+r.PathValue("id")) })
	m.HandleRest(Public, handlerFunc(func(x *Exchange, _ *http.Request) { io.WriteString(x, "rest") }))
	for target, want := range map[string]string{
		"/own/1/part": "part 1", "/fhir/own/1/part": "part 1", "/own/1/part/": "part 1", "/%6Fwn/1/p%61rt": "part 1", "/own/a%2Fb/part": "part a/b",
		"/own": "rest", "/own/1": "rest", "/own/1/part/2": "rest", "/own%2F1/part": "rest", "/ownx/1/part": "rest", "/Patient/own/part": "rest", "/": "rest", "/fhir": "rest", "//own/1/part": "rest",
	} {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest("GET", "http://kiln.test"+target, nil))
		if got := w.Body.String(); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a pattern that begins with a wildcard is taken")
		}
	}()
	m.HandleFunc(Public, "GET /{any}/part", func(http.ResponseWriter, *http.Request) {})
}

type handlerFunc func(x *Exchange, r *http.Request)

func (f handlerFunc) ServeExchange(x *Exchange, r *http.Request) { f(x, r) }

// Authorization, Shape: every path but health, discovery and the authorization
// server needs a token, metrics and administration one of an administrator.
// Contract, Operations: all of `/admin/*` needs an admin token.
func TestGroups(t *testing.T) {
	for _, tt := range []struct {
		name, method, target, token string
		off                         bool
		wantStatus                  int
		want                        string // of the body, or of WWW-Authenticate
	}{
		{"health needs no token", "GET", "/health", "", false, 200, " /health?"},
		{"health under /fhir", "GET", "/fhir/health", "", false, 200, " /health?"},
		{"the token endpoint needs none", "POST", "/auth/token", "", false, 200, " /auth/token?"},
		{"FHIR needs one", "GET", "/Patient/1", "", false, 401, `Bearer realm="kiln"`},
		{"a token that is unknown", "GET", "/Patient/1", "x", false, 401, `Bearer error="invalid_token"`},
		{"a token that is good", "GET", "/fhir/Patient/1/", "user", false, 200, "user /Patient/1?"},
		{"metrics need a scope", "GET", "/metrics", "user", false, 403, `Bearer error="insufficient_scope", scope="metrics"`},
		{"metrics by their scope", "GET", "/metrics", "scraper", false, 200, "scraper /metrics?"},
		{"the scope metrics does not administer", "GET", "/admin/x", "scraper", false, 403, `Bearer error="insufficient_scope", scope="admin"`},
		{"metrics for an administrator", "GET", "/metrics", "admin", false, 200, "root /metrics?"},
		{"administration without a token", "GET", "/admin/x", "", false, 401, `Bearer realm="kiln"`},
		{"administration", "GET", "/admin/x", "admin", false, 200, "root /admin/x?"},
		{"a stream takes the token from the query and hides it", "GET", "/notifications/events?a=b&token=user&c=d", "", false, 200, "user /notifications/events?a=b&c=d"},
		{"other paths do not", "GET", "/Patient?token=user", "", false, 401, `Bearer realm="kiln"`},
		{"two tokens", "GET", "/notifications/events?token=user", "user", false, 401, `Bearer error="invalid_request"`},
		{"without authorization everyone may", "GET", "/Patient/1", "", true, 200, " /Patient/1?"},
		{"and administration is open on loopback", "GET", "/admin/x", "", true, 200, " /admin/x?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var v access.Verifier = verifier{}
			if tt.off {
				v = nil
			}
			r := httptest.NewRequest(tt.method, tt.target, nil)
			r.RemoteAddr = "127.0.0.1:1"
			if tt.token != "" {
				r.Header.Set("Authorization", "bearer "+tt.token)
			}
			w := httptest.NewRecorder()
			newMux(v).ServeHTTP(w, r)
			got := w.Body.String()
			if tt.wantStatus != 200 {
				got = w.Header().Get("WWW-Authenticate")
			}
			if w.Code != tt.wantStatus || got != tt.want {
				t.Errorf("%d %q, want %d %q", w.Code, got, tt.wantStatus, tt.want)
			}
		})
	}
}

// Contract, Operations: without authorization `/admin/*` is open on loopback.
func TestAdministrationFromAfarWithoutAuthorization(t *testing.T) {
	r := httptest.NewRequest("GET", "/admin/x", nil)
	r.RemoteAddr = "192.0.2.1:1"
	w := httptest.NewRecorder()
	newMux(nil).ServeHTTP(w, r)
	if w.Code != 403 {
		t.Errorf("status %d, want 403", w.Code)
	}
}

func TestPanicIsAnOutcome(t *testing.T) {
	w := httptest.NewRecorder()
	newMux(nil).ServeHTTP(w, httptest.NewRequest("GET", "/panic", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), `"exception"`) || strings.Contains(w.Body.String(), "boom") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// serve runs a real server with short timeouts.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.WriteTimeout, s.Config.ReadTimeout = 150*time.Millisecond, 150*time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// A stream outlives WriteTimeout, through every wrapper, and ends when the server
// does.
func TestStream(t *testing.T) {
	var streams OpenStreams
	m := &Mux{Logger: slog.New(slog.DiscardHandler)}
	opened := make(chan struct{})
	cause := make(chan error, 1)
	m.HandleFunc(Streams, "GET /events", func(w http.ResponseWriter, r *http.Request) {
		ctx, done, err := streams.Open(w, r)
		if err != nil {
			ExchangeOf(w).Fail(r, err)
			return
		}
		defer done()
		flusher := http.NewResponseController(w)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			if err := flusher.Flush(); err != nil {
				t.Error(err)
			}
			if i == 10 { // well after WriteTimeout
				close(opened)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				cause <- context.Cause(ctx)
				io.WriteString(w, "event: end\n\n")
				return
			}
		}
	})
	m.HandleRest(FHIR, everything{})
	s := serve(t, m)
	resp, err := http.Get(s.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-opened
	if streams.Len() != 1 {
		t.Errorf("%d streams, want 1", streams.Len())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := streams.End(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; !errors.Is(err, ErrEnding) {
		t.Errorf("the stream ended with %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(body), "data: 10\n\nevent: end\n\n") && !strings.HasSuffix(string(body), "event: end\n\n") {
		t.Errorf("the client read %q, %v", body, err)
	}
	again, err := http.Get(s.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	again.Body.Close()
	if again.StatusCode != 503 {
		t.Errorf("a stream that comes later: %d, want 503", again.StatusCode)
	}
}

// A connection can be taken over, as a WebSocket does it, and lives as long.
func TestHijack(t *testing.T) {
	var streams OpenStreams
	m := &Mux{Logger: slog.New(slog.DiscardHandler)}
	m.HandleFunc(Streams, "GET /ws", func(w http.ResponseWriter, r *http.Request) {
		ctx, done, err := streams.Open(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		defer done()
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		rw.Flush()
		go func() {
			<-ctx.Done()
			conn.Close()
		}()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			rw.WriteString(line)
			rw.Flush()
		}
	})
	m.HandleRest(FHIR, everything{})
	s := serve(t, m)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	time.Sleep(300 * time.Millisecond) // longer than the server's timeouts
	fmt.Fprint(conn, "hello\n")
	if line, err := in.ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("%q %v", line, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := streams.End(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadString('\n'); err == nil {
		t.Error("the connection lives on")
	}
}

func TestClient(t *testing.T) {
	p := Proxies{}
	for _, text := range []string{"10.0.0.0/8"} {
		p = append(p, mustPrefix(t, text))
	}
	for _, tt := range []struct{ name, remote, forwarded, want string }{
		{"no proxy", "192.0.2.1:1", "", "192.0.2.1"},
		{"a stranger's header is no proof", "192.0.2.1:1", "203.0.113.9", "192.0.2.1"},
		{"a proxy's is", "10.0.0.1:1", "203.0.113.9", "203.0.113.9"},
		{"what the client itself wrote before it is not", "10.0.0.1:1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"},
		{"an address with its port", "10.0.0.1:1", "1.1.1.1, 203.0.113.9:4711", "203.0.113.9"},
		{"an address of IPv6 with its port", "10.0.0.1:1", "[2001:db8::1]:4711", "2001:db8::1"},
		{"an address of IPv6 in brackets", "10.0.0.1:1", "[2001:db8::1]", "2001:db8::1"},
		{"what is no address", "10.0.0.1:1", "203.0.113.9, unknown", "10.0.0.1"},
		{"a proxy without the header", "10.0.0.1:1", "", "10.0.0.1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.remote
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		if got := p.ClientAddress(r).String(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func mustPrefix(t *testing.T, text string) netip.Prefix {
	t.Helper()
	p, err := netip.ParsePrefix(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A body that comes slower than 1 kB a second after some time is cut; one that comes
// fast enough is not.
// Contract, Operations: a body that comes slower than 1 kB/s after 30 s is cut.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	send := func(grace time.Duration, first, piece int, pause time.Duration) error {
		result := make(chan error, 1)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			paceBody(w, r, grace)
			_, err := io.Copy(io.Discard, r.Body)
			result <- err
		}))
		defer s.Close()
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", first+25*piece, make([]byte, first))
		for range 25 {
			if _, err := conn.Write(make([]byte, piece)); err != nil {
				break
			}
			time.Sleep(pause)
		}
		return <-result
	}
	if err := send(300*time.Millisecond, 0, 1, 100*time.Millisecond); err == nil {
		t.Error("a slow body is read to its end")
	}
	if err := send(300*time.Millisecond, 100_000, 1, 100*time.Millisecond); err == nil {
		t.Error("a body that begins quickly and then comes slowly is read to its end")
	}
	if err := send(2*time.Second, 0, 10_000, 100*time.Millisecond); err != nil {
		t.Errorf("a body that is fast enough: %v", err)
	}
}

// A body that nobody reads, as one without a token, holds neither the answer nor the
// connection.
// Contract, Operations: a body that comes slower than 1 kB/s after 30 s is cut.
func TestSlowBodyUnread(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paceBody(w, r, time.Hour)
		w.WriteHeader(http.StatusUnauthorized)
		r.Body.(*pacedBody).finishBody(100 * time.Millisecond)
	}))
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") {
		t.Errorf("%v, %q: want 401 and the end of the connection", err, answer)
	}
}

// The access log names the client, the user, their address, and the duration in seconds.
func TestAccessLog(t *testing.T) {
	var out bytes.Buffer
	m := &Mux{Logger: slog.New(slog.NewJSONHandler(&out, nil)), Settings: func() *Settings { return &Settings{LogAccess: LogAll} }}
	r := httptest.NewRequest("GET", "/Patient/1?name=secret", nil)
	r.RemoteAddr = "192.0.2.7:1234"
	for _, c := range []struct {
		name      string
		principal *access.Principal
		want      map[string]any
	}{
		{"a user of a client", &access.Principal{Subject: "u1", ClientID: "growth"}, map[string]any{"client": "growth", "user": "u1", "address": "192.0.2.7"}},
		{"a client by itself", &access.Principal{Subject: "batch", ClientID: "batch"}, map[string]any{"client": "batch", "user": nil}},
		{"nobody", nil, map[string]any{"client": nil, "user": nil, "address": "192.0.2.7"}},
	} {
		out.Reset()
		m.observeRequest(&Exchange{mux: m, ctx: r.Context(), path: "/Patient/1", start: time.Now().Add(-1500 * time.Millisecond), status: 200, ID: "x", Principal: c.principal}, r)
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		for field, want := range c.want {
			if line[field] != want {
				t.Errorf("%s: %s is %v, want %v", c.name, field, line[field], want)
			}
		}
		if seconds, _ := line["duration_seconds"].(float64); seconds < 1.5 || seconds > 60 {
			t.Errorf("%s: duration_seconds is %v", c.name, line["duration_seconds"])
		}
		if strings.Contains(out.String(), "secret") {
			t.Errorf("%s: %s", c.name, out.String())
		}
	}
}
