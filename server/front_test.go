package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// frontServer is a running server with two listeners.
type frontServer struct {
	t             *testing.T
	main, metrics string // base URLs
	client        *http.Client
}

// startFronts runs a server with authorization, TLS and server.metrics_listen.
func startFronts(t *testing.T, change func(*Config)) *frontServer {
	t.Helper()
	cfg := Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Server.MetricsListen = storetest.New(t), freeAddress(t), "127.0.0.1:0"
	cfg.Bulk.Directory = t.TempDir()
	cfg.Auth.Enabled, cfg.Auth.Signing.Algorithm = true, "ES384"
	client := func(id, scope string) map[string]any {
		return map[string]any{"clientId": id, "confidential": true, "clientSecret": id + "-secret-0123456789-abcdef",
			"grantTypes": []any{"client_credentials"}, "scopes": []any{scope}}
	}
	cfg.Auth.Bootstrap.Clients = []map[string]any{client("scraper", "metrics"), client("operator", "admin"), client("reader", "system/*.rs")}
	if change != nil {
		change(&cfg)
	}
	s := &frontServer{t: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Run(ctx, cfg, Options{Logger: slog.New(slog.DiscardHandler),
			Listening:        func(a string) { s.main = cfg.Server.Scheme() + "://" + a },
			ListeningMetrics: func(a string) { s.metrics = cfg.Server.Scheme() + "://" + a },
			Ready:            func(*Server) { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// freeAddress is an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// send returns the status, the header and the body of an answer.
func (s *frontServer) send(method, url, token, contentType, body string) (int, http.Header, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func (s *frontServer) get(url, token string) (int, http.Header, string) {
	s.t.Helper()
	return s.send("GET", url, token, "", "")
}

// token is an access token of a client of startFronts.
func (s *frontServer) token(client, scope string) string {
	s.t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "client_secret": {client + "-secret-0123456789-abcdef"}, "scope": {scope}}
	status, _, body := s.send("POST", s.main+"/auth/token", "", "application/x-www-form-urlencoded", form.Encode())
	var out struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(body), &out); err != nil || status != 200 {
		s.t.Fatalf("token of %s: %d %s", client, status, body)
	}
	return out.AccessToken
}

// Contract, Operations: `/metrics` needs the scope `metrics` or `admin`;
// `server.metrics_listen` serves it on a listener of its own.
func TestMetricsListener(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, t.TempDir(), 1)
	s := startFronts(t, func(c *Config) {
		c.Server.TLS = TLSConfig{CertFile: cert, KeyFile: key}
		c.Auth.Issuer = "https://" + c.Server.Listen
		c.Server.MaxConnections = 8
	})
	admin := s.token("operator", "admin")
	status, _, body := s.send("POST", s.main+"/admin/apikeys", admin, "application/json", `{"name":"prometheus","scope":"metrics"}`)
	var made struct{ Key string }
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != 201 {
		t.Fatalf("an API key: %d %s", status, body)
	}
	client, reader := s.token("scraper", "metrics"), s.token("reader", "system/*.rs")
	for _, base := range []string{s.main, s.metrics} {
		for name, token := range map[string]string{"admin": admin, "API key": made.Key, "client": client} {
			if status, header, body := s.get(base+"/metrics", token); status != 200 || !strings.Contains(body, "service_requests_total") || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
				t.Errorf("%s with the token of %s: %d %.200s", base, name, status, body)
			}
		}
		if status, header, _ := s.get(base+"/metrics", ""); status != 401 || header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s without a token: %d", base, status)
		}
		if status, header, body := s.get(base+"/metrics", reader); status != 403 || !strings.Contains(header.Get("WWW-Authenticate"), `scope="metrics"`) {
			t.Errorf("%s with another scope: %d %s", base, status, body)
		}
		for _, path := range []string{"/health", "/health/live", "/health/ready", "/fhir/health/ready"} {
			if status, _, body := s.get(base+path, ""); status != 200 {
				t.Errorf("%s: %d %s", base+path, status, body)
			}
		}
	}
	for _, path := range []string{"/fhir/Patient", "/admin/config", "/metadata", "/auth/token", "/", "/debug/pprof/", "/metrics/x"} {
		if status, header, body := s.get(s.metrics+path, admin); status != 404 || !strings.Contains(body, "OperationOutcome") || !strings.Contains(header.Get("Content-Type"), "fhir+json") {
			t.Errorf("%s on the second listener: %d %s", path, status, body)
		}
	}
	for _, token := range []string{made.Key, client} { // the scope metrics reads nothing else
		for _, path := range []string{"/admin/config", "/fhir/Patient", "/fhir/AuditEvent"} {
			if status, _, body := s.get(s.main+path, token); status != 403 {
				t.Errorf("%s with the scope metrics: %d %s", path, status, body)
			}
		}
	}
	// An administrator can move it while the server runs.
	before, next := s.metrics, freeAddress(t)
	if status, _, body := s.send("PUT", s.main+"/admin/config/server/metrics_listen", admin, "application/json", `{"value":"`+next+`"}`); status != 200 {
		t.Fatalf("move the listener: %d %s", status, body)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", next); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new address is not served")
		}
	}
	s.metrics = "https://" + next
	if conn, err := net.Dial("tcp", strings.TrimPrefix(before, "https://")); err == nil {
		conn.Close()
		t.Error("the previous address is still served")
	}
	if status, _, body := s.send("PUT", s.main+"/admin/config/server/metrics_listen", admin, "application/json", `{"value":"nowhere"}`); status != 400 {
		t.Errorf("an address without a port: %d %s", status, body)
	}
	// Clients that hold all of server.max_connections do not keep the scraper out.
	for range 8 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.main, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if status, _, _ := s.get(s.metrics+"/metrics", made.Key); status != 200 {
		t.Errorf("while every connection is taken: %d", status)
	}
}

func TestMetricsListenIsChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, at string
		auth     bool
		want     string // in the error; "" for none
	}{
		{"none", "", false, ""},
		{"loopback", "127.0.0.1:9090", false, ""},
		{"every address without authorization", "0.0.0.0:9090", false, "server.metrics_listen: 0.0.0.0:9090 can be reached"},
		{"no port", "127.0.0.1", false, `server.metrics_listen: "127.0.0.1" is not host:port`},
		{"the address of the first listener", "127.0.0.1:8080", false, "server.metrics_listen and server.listen are both 127.0.0.1:8080"},
		{"every address with authorization", "0.0.0.0:9090", true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Default()
			c.Server.MetricsListen, c.Auth.Enabled = tt.at, tt.auth
			if err := c.checkMetricsListen(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := Default()
	c.Server.Listen, c.Server.MetricsListen = "127.0.0.1:0", taken.Addr().String()
	if err := Run(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "server.metrics_listen is "+c.Server.MetricsListen) {
		t.Errorf("an address that another program has: %v", err)
	}
}
