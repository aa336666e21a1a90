package server

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Contract, Errors: every early refusal is an OperationOutcome, also those by net/http.
func TestEarlyRefusals(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, t.TempDir(), 1)
	for _, c := range []struct {
		name  string
		files *certificateFiles
		dial  func(address string) (net.Conn, error)
	}{
		{"plain", &certificateFiles{}, func(at string) (net.Conn, error) { return net.Dial("tcp", at) }},
		{"TLS", &certificateFiles{config: TLSConfig{CertFile: cert, KeyFile: key}}, func(at string) (net.Conn, error) {
			return tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plain, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if err := c.files.load(); err != nil {
				t.Fatal(err)
			}
			s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request")
				if (r.TLS != nil) != (c.name == "TLS") {
					t.Errorf("Request.TLS is %v", r.TLS)
				}
			}), slog.New(slog.DiscardHandler))
			go s.Serve(listenRefusing(c.files.secureListener(newConnectionLimit(10).listen(plain))))
			t.Cleanup(func() { s.Close() })
			for request, want := range map[string]struct {
				status int
				code   string
			}{
				"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 80<<10) + "\r\n\r\n": {431, "too-long"},
				"GET /" + strings.Repeat("x", 300<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n":            {431, "too-long"},
				"GET / HTTP/1.1\r\n\r\n":                                                       {400, "structure"},
				"GET / HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n":                           {400, "structure"},
				"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n":                                         {400, "structure"},
				"nonsense\r\n\r\n":                                                             {400, "structure"},
				"GET / HTTP/3.0\r\nHost: x\r\n\r\n":                                            {505, "not-supported"},
				"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n":                {501, "not-supported"},
				"GET / HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n":                            {417, "not-supported"},
				"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n":                     {400, "structure"},
				"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": {400, "structure"},
				"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 66<<10) + "\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n": {431, "too-long"},
			} {
				name := request[:min(len(request), 40)]
				conn, err := c.dial(plain.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				go io.WriteString(conn, request)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Errorf("%q: %v", name, err)
					continue
				}
				body, err := io.ReadAll(resp.Body)
				conn.Close()
				var o struct {
					ResourceType string
					Issue        []struct{ Code, Severity, Diagnostics string }
				}
				if err != nil || resp.StatusCode != want.status || json.Unmarshal(body, &o) != nil || o.ResourceType != "OperationOutcome" || o.Issue[0].Code != want.code ||
					!strings.HasSuffix(string(body), "}\n") || resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Content-Type") != refusalType {
					t.Errorf("%q: %v %v %v %s", name, err, resp.StatusCode, resp.Header, body)
				}
			}
			// A handler's own text is no refusal.
			conn, err := c.dial(plain.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			if body, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(body), "\r\n\r\n400 Bad Request") {
				t.Errorf("a handler's answer: %v %s", err, body)
			}
		})
	}
	t.Run("HTTP/2 and plain HTTP below TLS", func(t *testing.T) {
		t.Parallel()
		plain, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		files := &certificateFiles{config: TLSConfig{CertFile: cert, KeyFile: key}}
		if err := files.load(); err != nil {
			t.Fatal(err)
		}
		s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) }), slog.New(slog.DiscardHandler))
		go s.Serve(listenRefusing(files.secureListener(plain)))
		defer s.Close()
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		for long, want := range map[int]string{10: "HTTP/2.0", 80 << 10: `"resourceType":"OperationOutcome"`} {
			r, _ := http.NewRequest("GET", "https://"+plain.Addr().String(), nil)
			r.Header.Set("X-Long", strings.Repeat("x", long))
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if !strings.Contains(string(body), want) {
				t.Errorf("a header of %d bytes: %s", long, body)
			}
		}
		conn, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if got, _ := io.ReadAll(conn); !strings.Contains(string(got), "OperationOutcome") {
			t.Errorf("plain HTTP: %s", got)
		}
	})
}

// A request whose header begins and does not arrive in time gets 408. A connection that is idle between
// requests ends without an answer.
// Contract, table of answers: early refusals.
func TestLateHeadersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }), slog.New(slog.DiscardHandler))
	s.ReadHeaderTimeout, s.IdleTimeout = 200*time.Millisecond, 200*time.Millisecond
	go s.Serve(listenRefusing(newConnectionLimit(10).listen(l)))
	t.Cleanup(func() { s.Close() })
	const whole = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, tt := range []struct {
		name, sent string
		statuses   []int
	}{
		{"nothing", "", nil},
		{"a part of a header", "GET / HTTP/1.1\r\nHost: x\r\n", []int{408}},
		{"a part of the first line", "GET", []int{408}},
		{"a request", whole, []int{200}},
		{"requests in one packet", whole + whole + whole, []int{200, 200, 200}},
		{"a request, then a part of one", whole + "GET / HTTP/1.1\r\nHo", []int{200, 408}},
		{"a body", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", []int{200}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(conn, tt.sent)
			r := bufio.NewReader(conn)
			var got []int
			for {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				body, _ := io.ReadAll(resp.Body)
				if got = append(got, resp.StatusCode); resp.StatusCode == 408 && (!strings.Contains(string(body), `"timeout"`) || resp.Header.Get("Content-Type") != refusalType) {
					t.Errorf("%v %s", resp.Header, body)
				}
			}
			if !slices.Equal(got, tt.statuses) {
				t.Errorf("answers %v, want %v", got, tt.statuses)
			}
		})
	}
}
