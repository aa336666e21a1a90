package outbound_test

import (
	"net/netip"
	"testing"

	"kiln/server/outbound"
)

// Addresses that are not one host's on the Internet, IPv4 inside of IPv6 among them.
// Spec: RFC 6890 §2.2; RFC 6052 §2.1; RFC 8215.
func TestPublic(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		addr string
		want bool
	}{
		{"8.8.8.8", true},
		{"2606:4700::1111", true},
		{"::ffff:8.8.8.8", true},
		{"10.0.0.1", false},
		{"::ffff:10.0.0.1", false},
		{"127.0.0.1", false},
		{"::1", false},
		{"0.0.0.0", false},
		{"0.1.2.3", false},
		{"100.64.0.1", false},
		{"169.254.169.254", false},
		{"fe80::1%eth0", false},
		{"fd00::1", false},
		{"fec0::1%eth0", false},
		{"224.0.0.1", false},
		{"240.0.0.1", false},
		{"255.255.255.255", false},
		{"64:ff9b::a00:1", false},
		{"64:ff9b:1::a00:1", false},
		{"2002:a00:1::", false},
		{"ff02::1", false},
	} {
		if got := outbound.Public(netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("Public(%s) = %t, want %t", tt.addr, got, tt.want)
		}
	}
	if outbound.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}
