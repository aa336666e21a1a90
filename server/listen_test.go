package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate writes a certificate for localhost with a serial number.
func certificate(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "kiln"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(serial) * time.Minute) // file systems count coarsely
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Operations, TLS: the files are reloaded when they change; TLS 1.2 and newer.
// Contract, Operations: TLS: `server.tls.cert_file`, `key_file`, reloaded when they change; TLS 1.2+.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir, 1)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logged := new(strings.Builder)
	files := &certificateFiles{config: TLSConfig{CertFile: cert, KeyFile: key}, logger: slog.New(slog.NewTextHandler(logged, nil))}
	if err := files.load(); err != nil {
		t.Fatal(err)
	}
	l := files.secureListener(plain)
	s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }), slog.New(slog.DiscardHandler))
	go s.Serve(l)
	defer s.Close()
	dial := func(max uint16) (*x509.Certificate, error) {
		c, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: max})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0], nil
	}
	got, err := dial(0)
	if err != nil || got.SerialNumber.Int64() != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := dial(tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if _, err := dial(tls.VersionTLS12); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	certificate(t, dir, 2)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if got, err := dial(0); err == nil && got.SerialNumber.Int64() == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new certificate is not served")
		}
	}
	if err := os.WriteFile(cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := dial(0); err != nil || got.SerialNumber.Int64() != 2 {
		t.Errorf("while the file is damaged: %v, %v", got, err)
	}
	for range 3 { // looked at again: the log says so once
		files.mu.Lock()
		files.looked = time.Time{}
		files.mu.Unlock()
		files.current()
	}
	if n := strings.Count(logged.String(), "server.tls cannot be used"); n != 1 {
		t.Errorf("the log says %d times that the files cannot be used: %s", n, logged)
	}
}

// Contract, Operations: TLS: optional client CA.
func TestTLSClientCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir, 1)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	files := &certificateFiles{config: TLSConfig{CertFile: cert, KeyFile: key, ClientCAFile: cert}}
	if err := files.load(); err != nil {
		t.Fatal(err)
	}
	l := files.secureListener(plain)
	s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), slog.New(slog.DiscardHandler))
	go s.Serve(l)
	defer s.Close()
	get := func(certs ...tls.Certificate) error {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}}
		resp, err := c.Get("https://" + plain.Addr().String())
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if get() == nil {
		t.Error("a client without a certificate is served")
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := get(own); err != nil {
		t.Errorf("a client with one: %v", err)
	}
}

// Contract, Operations: TLS: what of `server.tls` is refused.
func TestTLSConfig(t *testing.T) {
	for name, c := range map[string]TLSConfig{
		"a certificate alone":      {CertFile: "x"},
		"a key alone":              {KeyFile: "x"},
		"authorities alone":        {ClientCAFile: "x"},
		"files that there are not": {CertFile: "/nonexistent", KeyFile: "/nonexistent"},
	} {
		if err := (&certificateFiles{config: c}).load(); c.check() == nil && err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// Contract, Operations: `PUT /admin/config`: checked like the file. A file that a start
// would refuse is refused; a certificate may come before its key.
func TestTLSFileOfSetting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir, 1)
	good := TLSConfig{CertFile: cert, KeyFile: key, ClientCAFile: cert}
	for _, name := range []string{"server.tls.cert_file", "server.tls.key_file", "server.tls.client_ca_file", "search.max_count"} {
		if err := good.checkFile(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := (TLSConfig{}).checkFile(name); err != nil {
			t.Errorf("%s taken back: %v", name, err)
		}
	}
	for name, c := range map[string]TLSConfig{
		"server.tls.cert_file":      {CertFile: key},
		"server.tls.key_file":       {KeyFile: filepath.Join(dir, "none")},
		"server.tls.client_ca_file": {ClientCAFile: key},
	} {
		if err := c.checkFile(name); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Operations: request headers are at most 64 kB, connections are bounded.
// Contract, Operations: request headers within 10 s and 64 kB, idle connections end after 120 s, connections
// are bounded.
func TestBounds(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout != 10*time.Second || s.IdleTimeout != 120*time.Second {
		t.Errorf("header within %v, idle for %v", s.ReadHeaderTimeout, s.IdleTimeout)
	}
	limit := newConnectionLimit(2)
	go s.Serve(limit.listen(plain))
	defer s.Close()
	at := plain.Addr().String()
	r, err := http.NewRequest("GET", "http://"+at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Long", strings.Repeat("x", 80<<10))
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 80 kB: %v, %v", resp, err)
	}
	if err == nil {
		resp.Body.Close()
	}
	ask := func() net.Conn {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		return c
	}
	answered := func(c net.Conn, within time.Duration) bool {
		c.SetReadDeadline(time.Now().Add(within))
		n, _ := c.Read(make([]byte, 1))
		return n == 1
	}
	first, second := ask(), ask()
	defer second.Close()
	if !answered(first, 10*time.Second) || !answered(second, 10*time.Second) {
		t.Fatal("two connections are not served")
	}
	third := ask()
	defer third.Close()
	if answered(third, 100*time.Millisecond) {
		t.Error("a third connection is served beside two")
	}
	first.Close()
	if !answered(third, 10*time.Second) {
		t.Error("the third is not served when the first has ended")
	}
	fourth := ask()
	defer fourth.Close()
	if answered(fourth, 100*time.Millisecond) {
		t.Error("a fourth connection is served beside two")
	}
	limit.set(3)
	if !answered(fourth, 10*time.Second) {
		t.Error("the fourth is not served when three may be")
	}
}
