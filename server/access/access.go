package access

import (
	"fmt"
	"net"
	"net/netip"

	"kiln/server/smart"
)

// Interaction is a caller's intent, in the words of the capability statement.
// Spec: https://hl7.org/fhir/R4/valueset-restful-interaction.html.
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

// Permission is the letter of a scope that allows the interaction; 0 for those that
// are decided otherwise: an operation by itself, admin by the scope of that name.
func (i Interaction) Permission() smart.Permissions {
	switch i {
	case Read:
		return smart.Read
	case Search, History:
		return smart.Search
	case Create:
		return smart.Create
	case Update, Patch:
		return smart.Update
	case Delete:
		return smart.Delete
	}
	return 0
}

// CheckListen refuses to serve everyone without authorization: with auth off,
// address, the value of the key, must be a loopback address. The error says what to
// change.
func CheckListen(key, address string, authEnabled bool) error {
	if authEnabled {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: %q is not host:port: %w", key, address, err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s: %s can be reached from other machines and auth.enabled is false, so everyone could use it; "+
		"listen on 127.0.0.1 and put a proxy with authentication in front", key, address)
}
