package web

import (
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are the addresses whose forwarding headers are believed.
type Proxies []netip.Prefix

// Trusts reports whether a request that came from remote may say by forwarding
// headers how the client sees the service.
func (p Proxies) Trusts(remote string) bool {
	if len(p) == 0 {
		return false
	}
	at, err := netip.ParseAddrPort(remote)
	return err == nil && p.trusts(at.Addr())
}

func (p Proxies) trusts(a netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(a.Unmap()) {
			return true
		}
	}
	return false
}

// ClientAddress is the address of the client: the last one in X-Forwarded-For that is no
// trusted proxy, the other end of the connection without one.
func (p Proxies) ClientAddress(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := at.Addr().Unmap()
	if len(p) == 0 || !p.trusts(client) {
		return client
	}
	list := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for i := len(list) - 1; i >= 0; i-- {
		a, ok := parseForwarded(strings.TrimSpace(list[i]))
		if !ok {
			break
		}
		if client = a.Unmap(); !p.trusts(client) {
			break
		}
	}
	return client
}

// parseForwarded reads an element of X-Forwarded-For: an address, which some proxies
// write with its port or in brackets.
func parseForwarded(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr(), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		text = strings.TrimSuffix(inner, "]")
	}
	a, err := netip.ParseAddr(text)
	return a, err == nil
}

// isLoopback reports whether a connection comes from the server's own machine; one
// over a unix socket has no address.
func isLoopback(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	return err == nil && at.Addr().Unmap().IsLoopback() || remote == "" || remote == "@"
}
