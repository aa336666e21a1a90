package access

import (
	"fmt"
	"net"
	"net/netip"

	"kiln/server/outcome"
)

// Interaction is what a caller wants to do, in the words of the capability
// statement. Spec: https://hl7.org/fhir/R4/valueset-restful-interaction.html.
type Interaction string

// The interactions that are decided on.
const (
	Read      Interaction = "read" // vread and instance history too
	Search    Interaction = "search"
	History   Interaction = "history" // of a type or of everything
	Create    Interaction = "create"
	Update    Interaction = "update"
	Patch     Interaction = "patch"
	Delete    Interaction = "delete"
	Operation Interaction = "operation"
	Admin     Interaction = "admin"
)

// Request is what May is asked. ResourceType and ID are "" where the interaction
// has none.
type Request struct {
	Interaction  Interaction
	ResourceType string
	ID           string
}

// May returns nil when p may do what r says. It fails with login where there is
// no principal, and with forbidden where the principal's rights do not reach.
func (p *Principal) May(r Request) error {
	switch {
	case p == nil:
		return outcome.New(outcome.CodeLogin, "%s needs an access token", r.Interaction)
	case p.open:
		return nil
	}
	return outcome.New(outcome.CodeForbidden, "%s is not allowed to %s %s", p.Subject, r.Interaction, r.ResourceType)
}

// CheckListen refuses to serve everyone without authorization: with auth off,
// address must be a loopback address or a unix socket. The error says what to
// change.
func CheckListen(address string, authEnabled bool) error {
	if authEnabled {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("server.listen: %q is not host:port: %w", address, err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("server.listen: %s can be reached from other machines and auth.enabled is false, so everyone could read and write everything; "+
		"listen on 127.0.0.1 and put a proxy with authentication in front", address)
}
