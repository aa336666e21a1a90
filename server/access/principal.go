package access

import (
	"context"
	"sync/atomic"
	"time"

	"kiln/server/smart"
)

// Principal is on whose behalf a request runs. The Verifier sets its fields once;
// nobody changes them afterwards.
type Principal struct {
	Subject   string       // the username, the client id of a backend service, or the name of an API key; "" for Open
	Issuer    string       // the authorization server elsewhere whose token it is, and whose are Subject and ClientID; "" for this one
	ClientID  string       // the client that the token was given to
	Scopes    smart.Scopes // granted
	Patient   string       // logical id of the launch context's patient, "" without one
	Encounter string       // logical id of the launch context's encounter, "" without one
	FHIRUser  string       // "Practitioner/1", "Patient/7"; "" without one
	Unbound   bool         // user/ scopes reach nothing: nobody here has linked the user to a FHIR resource
	Roles     []string
	Admin     bool      // the scope admin was granted
	APIKey    bool      // the token is an API key, which has no user
	TokenID   string    // the token's jti, or the id of the API key
	KeyID     string    // the kid of the signing key of a token of this server
	SessionID string    // of the authorization that the token comes from
	Origins   []string  // origins whose pages may read answers to the token; none: the server's list
	Expires   time.Time // zero: never (API key)
	open      bool
	// rights are the rights of earlier requests of the principal, used again while they are
	// the same.
	rights atomic.Pointer[rememberedRights]
}

// Open is the principal of a server without authorization. It may do everything.
var Open = &Principal{open: true}

// IsOpen reports whether p is the principal of a server without authorization.
func (p *Principal) IsOpen() bool { return p != nil && p.open }

// User is the username of the person on whose behalf p runs, "" for an API key and for a
// client that runs on its own behalf.
func (p *Principal) User() string {
	if p.APIKey || p.Subject == p.ClientID && p.SessionID == "" && p.FHIRUser == "" {
		return ""
	}
	return p.Subject
}

// Verifier turns a bearer token into its principal. It fails with login, 401, for
// a token that is unknown, expired or revoked.
type Verifier interface {
	Verify(ctx context.Context, token string) (*Principal, error)
}
