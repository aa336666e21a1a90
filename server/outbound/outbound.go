// Package outbound calls addresses that clients of the server choose: endpoints of
// Subscriptions and of Apps, sources of imports. It keeps the calls off the server's own network unless the
// configuration allows them.
//
// Rules decide which URLs are allowed. Check rejects http and forbidden addresses when a URL is
// stored. Client makes the HTTP client. It checks the address of each connection, so that a
// name cannot resolve to another address after the check. It follows no redirects. Callers
// limit the size of the answers that they read.
package outbound

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kiln/server/outcome"
	"kiln/server/telemetry"
)

// Rules say which addresses may be called. docs/contract.md, Notifications, section 4.
type Rules struct {
	// AllowHTTP allows http where the host is not loopback.
	AllowHTTP bool
	// AllowPrivate allows private, loopback and link-local addresses.
	AllowPrivate bool
	// Section is the part of the configuration that the rules are of, for errors; "" is notifications.webhook.
	Section string
	// Lookup resolves names; nil asks the system.
	Lookup  func(host string) ([]netip.Addr, error)
	MaxIdle int // connections kept open to one host
	// Tracing measures the calls and sends the trace on; nil does so only for calls within a request. Name is
	// the name of the spans.
	Tracing *telemetry.Tracing
	Name    string
}

// errAddress is of an endpoint at an address that the server does not call.
type errAddress struct {
	addr    netip.Addr
	section string
}

func (e errAddress) Error() string {
	return fmt.Sprintf("the address %s is private, loopback or link-local, and %s.allow_private_networks is off", e.addr, e.section)
}

func (r Rules) section() string { return cmp.Or(r.Section, "notifications.webhook") }

// Check rejects http and forbidden addresses in the URL. Names are checked when the client connects, by the
// addresses that they resolve to.
func (r Rules) Check(u *url.URL) error {
	if port := u.Port(); port != "" || u.Hostname() == "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || u.Hostname() == "" {
			return fmt.Errorf("the endpoint %q is no host with a port from 1 to 65535", outcome.Clip(u.Host))
		}
	}
	host := u.Hostname()
	addr, err := netip.ParseAddr(host)
	literal := err == nil
	if u.Scheme == "http" && !r.AllowHTTP && !(host == "localhost" || strings.HasSuffix(host, ".localhost") || literal && addr.Unmap().IsLoopback()) {
		return fmt.Errorf("the endpoint is http, and %s.allow_http is off: only loopback may be called without TLS", r.section())
	}
	if literal {
		return r.checkAddress(addr)
	}
	return nil
}

// checkAddress refuses addresses that are not public where only those are allowed.
func (r Rules) checkAddress(addr netip.Addr) error {
	if !r.AllowPrivate && !Public(addr) {
		return errAddress{addr.Unmap(), r.section()}
	}
	return nil
}

// Public reports whether an address is one host's on the Internet: not private, loopback,
// link-local, multicast or of another special network.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("") // networks contain no address with a zone
	return addr.IsGlobalUnicast() && !addr.IsPrivate() &&
		!slices.ContainsFunc(specialNetworks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// specialNetworks are further networks that are not the Internet: shared address space,
// documentation, benchmarking, reserved, and IPv4 inside of IPv6 by translation. RFC 6890.
var specialNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// Client returns an HTTP client without proxy and redirects. It checks every address when it connects.
func (r Rules) Client() *http.Client { return Client(func() Rules { return r }) }

// Client is Rules.Client by the rules of the moment: of AllowPrivate and Lookup each
// connection asks.
func Client(rules func() Rules) *http.Client {
	dialer := &net.Dialer{
		Timeout:   10 * time.Second,
		KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return rules().checkAddress(at.Addr())
		},
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		lookup := rules().Lookup
		if lookup == nil {
			return dialer.DialContext(ctx, network, address)
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		addrs, err := lookup(host)
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			var conn net.Conn
			if conn, err = dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port)); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
	at := rules()
	return &http.Client{
		Transport: telemetry.Transport{Tracing: at.Tracing, Name: at.Name, Base: WithoutUpgrade{&http.Transport{
			DialContext:            dial,
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           1000,
			MaxIdleConnsPerHost:    max(2, at.MaxIdle),
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		}}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// WithoutUpgrade is a RoundTripper that lets nobody switch protocols: of a 101, which no
// request here asks for, the connection is closed and the body is empty. The body that
// net/http gives it is the bare connection, and no deadline of the request ends its reading.
// RFC 9110 §7.8 and §15.2.2.
type WithoutUpgrade struct{ Base http.RoundTripper }

// RoundTrip makes a call.
func (t WithoutUpgrade) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Base.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body.Close()
		resp.Body = http.NoBody
	}
	return resp, err
}
