package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// TLSConfig is about HTTPS. The files are read again when they change.
type TLSConfig struct {
	CertFile     string `koanf:"cert_file" doc:"certificate chain as PEM; empty serves plain HTTP"`
	KeyFile      string `koanf:"key_file" doc:"its private key as PEM"`
	ClientCAFile string `koanf:"client_ca_file" doc:"authorities as PEM, of which clients must show a certificate; empty asks for none"`
}

func (c TLSConfig) check() error {
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("server.tls.cert_file and server.tls.key_file belong together: one is set and the other is not")
	case c.ClientCAFile != "" && c.CertFile == "":
		return errors.New("server.tls.client_ca_file needs server.tls.cert_file and server.tls.key_file")
	}
	return nil
}

// CheckFiles reads the files as a start does.
func (c TLSConfig) CheckFiles() error { return (&certificateFiles{config: c}).load() }

// checkFile refuses a name of key's that is of no such file. The certificate and its key
// change one after the other: whether they belong together is seen when they are used.
func (c TLSConfig) checkFile(key string) error {
	name, holds := "", func([]byte) error { return nil }
	switch key {
	case "server.tls.cert_file":
		name, holds = c.CertFile, func(pem []byte) error { return holdsCertificate(c.CertFile, pem) }
	case "server.tls.client_ca_file":
		name, holds = c.ClientCAFile, func(pem []byte) error { return holdsCertificate(c.ClientCAFile, pem) }
	case "server.tls.key_file":
		name = c.KeyFile
	}
	if name == "" {
		return nil
	}
	text, err := os.ReadFile(name)
	if err == nil {
		err = holds(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func holdsCertificate(file string, pem []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", file)
	}
	return nil
}

// secureListener is the listener with TLS while it is configured. TLS 1.2 is the oldest
// version spoken.
func (f *certificateFiles) secureListener(l net.Listener) net.Listener { return secureListener{l, f} }

// secureListener accepts connections with TLS, or without, as is configured when they
// come.
type secureListener struct {
	net.Listener
	files *certificateFiles
}

// Accept waits for the next connection.
func (l secureListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if config := l.files.current(); config != nil {
		return tls.Server(&refusingConn{Conn: conn}, config), nil // plain HTTP is refused below TLS
	}
	return conn, nil
}

// certificateFiles keeps the TLS configuration as new as its files.
type certificateFiles struct {
	config TLSConfig
	logger *slog.Logger // is told of files that cannot be used; nil is told nothing

	mu      sync.Mutex
	looked  time.Time
	changed [3]time.Time // of each file in use
	failed  [3]time.Time // of the files that were last told of
	now     *tls.Config
}

// lookAtFiles is how often the files are looked at, at most.
const lookAtFiles = time.Second

// current is the configuration of the files as they are, nil without TLS. While new ones cannot be
// used, as half-written ones, the old ones serve on.
func (f *certificateFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config.CertFile == "" {
		return nil
	}
	if time.Since(f.looked) >= lookAtFiles {
		f.looked = time.Now()
		if f.times() != f.changed {
			f.reloadLocked()
		}
	}
	return f.now
}

// setFiles makes other files those in use. While they cannot be, the old certificate serves
// on.
func (f *certificateFiles) setFiles(c TLSConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config != c {
		f.config, f.looked = c, time.Time{}
	}
}

// load reads the files, where there are any.
func (f *certificateFiles) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config.CertFile == "" {
		return nil
	}
	f.looked = time.Now()
	return f.loadLocked()
}

// reloadLocked loads the files, and logs once of each change that cannot be used: an
// administrator is to know before the old certificate is over.
func (f *certificateFiles) reloadLocked() {
	times := f.times()
	if err := f.loadLocked(); err == nil {
		f.failed = [3]time.Time{}
	} else if f.logger != nil && times != f.failed {
		f.failed = times
		f.logger.Error("the files of server.tls cannot be used: those before serve on", slog.Any("error", err))
	}
}

func (f *certificateFiles) times() (out [3]time.Time) {
	for i, name := range []string{f.config.CertFile, f.config.KeyFile, f.config.ClientCAFile} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			out[i] = info.ModTime()
		}
	}
	return out
}

func (f *certificateFiles) loadLocked() error {
	times := f.times()
	pair, err := tls.LoadX509KeyPair(f.config.CertFile, f.config.KeyFile)
	if err != nil {
		return fmt.Errorf("server.tls: %w", err)
	}
	next := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{pair}}
	if f.config.ClientCAFile != "" {
		pem, err := os.ReadFile(f.config.ClientCAFile)
		if err != nil {
			return fmt.Errorf("server.tls.client_ca_file: %w", err)
		}
		next.ClientCAs, next.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if err := holdsCertificate(f.config.ClientCAFile, pem); err != nil {
			return fmt.Errorf("server.tls.client_ca_file: %w", err)
		}
		next.ClientCAs.AppendCertsFromPEM(pem)
	}
	f.now, f.changed = next, times
	return nil
}

// Scheme is http or https: of the URLs at which the server listens.
func (c ServerConfig) Scheme() string {
	if c.TLS.CertFile != "" {
		return "https"
	}
	return "http"
}
