package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/smart"
)

// Minting are the claims of a token that an administrator makes.
type Minting struct {
	ClientID, Username string
	Scope              string
	Patient, Encounter string
	Lifetime           string
}

// Mint makes an access token without a sign-in, of a client or of a user of it. It
// can be revoked like any other.
func (a *Admin) Mint(ctx context.Context, issuer, baseURL string, m Minting) (string, error) {
	scopes, err := smart.Parse(m.Scope)
	if err != nil {
		return "", invalidRequest("scope: %s", err)
	}
	if scopes.Empty() {
		return "", invalidRequest("scope is empty")
	}
	c, err := a.Store.Client(ctx, m.ClientID)
	if err != nil {
		return "", noSuch(err, "client", m.ClientID)
	}
	if !c.Active {
		return "", invalidRequest("the client %q is disabled", c.ID)
	}
	if err := mintable(c, scopes, m); err != nil {
		return "", err
	}
	d, err := storage.ParseLifetime(m.Lifetime)
	if err != nil || d == 0 {
		return "", invalidRequest("expires is %q: expected a lifetime such as 1h", m.Lifetime)
	}
	if d < minLifetime {
		return "", invalidRequest("expires is %s: expected a second at least", m.Lifetime)
	}
	if d > maxAccess {
		return "", invalidRequest("expires is %s: expected a year at most", m.Lifetime)
	}
	claims := accessClaims{Subject: c.ID, ClientID: c.ID, Scope: scopes.String(), Expires: a.Now().Add(d).Unix()}
	if claims.Patient, err = bareID("patient", "Patient", m.Patient); err != nil {
		return "", err
	}
	if claims.Encounter, err = bareID("encounter", "Encounter", m.Encounter); err != nil {
		return "", err
	}
	if m.Username != "" {
		u, err := a.Store.User(ctx, m.Username)
		if err != nil {
			return "", noSuch(err, "user", m.Username)
		}
		if !u.Active {
			return "", invalidRequest("the user %q is disabled", u.Username)
		}
		for _, o := range []string{"admin", "metrics"} {
			if scopes.Has(o) && !slices.Contains(u.Roles, "admin") {
				return "", invalidRequest("scope has %s, and the user %q has not the role admin", o, u.Username)
			}
		}
		claims.Subject, claims.FHIRUser, claims.SessionID = u.Username, u.FHIRUser, uuid.NewString()
		if err := a.Store.CreateGrant(ctx, claims.SessionID, c.ID, u.Username, claims.Scope, a.Now().Add(d)); err != nil {
			return "", err
		}
	}
	if err := a.EnsureKeys(ctx); err != nil {
		return "", err
	}
	s := &Server{Admin: a, Issuer: issuer, FHIRBase: FHIRBaseOf(issuer, baseURL)}
	return tokens{s}.accessToken(ctx, claims)
}

// mintable fails for scopes that no sign-in and no grant would give to the client.
func mintable(c *storage.Client, scopes smart.Scopes, m Minting) error {
	registered, err := smart.Parse(strings.Join(c.Scopes, " "))
	if err != nil {
		return err
	}
	for _, scope := range strings.Fields(scopes.String()) {
		if !registered.Covers(scope) {
			return invalidRequest("scope has %s, which the client %q is not registered for: it may have %q", scope, c.ID, strings.Join(c.Scopes, " "))
		}
	}
	for _, scope := range scopes.Resource {
		switch {
		case scope.Context == smart.Patient && m.Patient == "" && m.Username == "":
			return invalidRequest("scope has %s, and there is neither a patient nor a user", scope)
		case scope.Context == smart.User && m.Username == "":
			return invalidRequest("scope has %s, and there is no user", scope)
		}
	}
	return nil
}

// Explanation names the user and the client of a token, and its rights.
type Explanation struct {
	Active    bool       `json:"active"`
	Subject   string     `json:"subject,omitempty"`
	Client    string     `json:"client,omitempty"`
	User      string     `json:"user,omitempty"`
	FHIRUser  string     `json:"fhirUser,omitempty"`
	Patient   string     `json:"patient,omitempty"`
	Encounter string     `json:"encounter,omitempty"`
	Roles     []string   `json:"roles,omitempty"`
	Scope     string     `json:"scope,omitempty"`
	Expires   *time.Time `json:"expires,omitempty"`
	Request   string     `json:"request,omitempty"`
	// Warnings name weaknesses of the client's requests.
	Warnings []string `json:"warnings,omitempty"`
	// Decision is the decision of access on the request, or, without one, on the types of
	// the scopes.
	Decision any `json:"decision,omitempty"`
}

// explain is POST /admin/token/explain: {token, method, path}.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var in struct {
		Token  string `json:"token"`
		Method string `json:"method"`
		Path   string `json:"path"`
	}
	if err := decodeStrict(body, &in); err != nil {
		s.fail(w, r, invalidRequest("%s", err))
		return
	}
	if in.Token == "" || (in.Method == "") != (in.Path == "") {
		s.fail(w, r, invalidRequest("expected token, or token, method and path"))
		return
	}
	v, err := s.verify(r.Context(), strings.TrimSpace(in.Token))
	if errors.Is(err, errToken) {
		writeJSON(w, http.StatusOK, Explanation{})
		return
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	e := explainPrincipal(v.principal)
	if v.own && v.principal.SessionID != "" {
		launch, err := s.launchOf(r.Context(), v)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if launch.ShortState {
			e.Warnings = append(e.Warnings, fmt.Sprintf("the client %q sent a state of less than %d bits; it was accepted because the request had a PKCE challenge", e.Client, minStateBits))
		}
	}
	if in.Method != "" {
		e.Request = in.Method + " " + in.Path
	}
	if s.options.Explain != nil {
		if e.Decision, err = s.options.Explain(r.Context(), v.principal, in.Method, in.Path); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, e)
}

func explainPrincipal(p *access.Principal) Explanation {
	e := Explanation{
		Active: true, Subject: p.Subject, Client: p.ClientID, FHIRUser: p.FHIRUser, Patient: p.Patient, Encounter: p.Encounter,
		Roles: p.Roles, Scope: p.Scopes.String(),
	}
	if p.SessionID != "" {
		e.User = p.Subject
	}
	if !p.Expires.IsZero() {
		at := p.Expires.UTC()
		e.Expires = &at
	}
	return e
}
