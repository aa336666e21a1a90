package oauth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/access"
)

// introspect is POST /auth/introspect. RFC 7662. A client is told of its own tokens,
// one with mayIntrospect and an admin token of any; everything else is inactive.
func (s *Server) introspect(w http.ResponseWriter, r *http.Request) {
	if err := readForm(w, r); err != nil {
		s.oauthError(w, r, err)
		return
	}
	ctx := r.Context()
	var client *storage.Client // nil for an administrator
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		v, err := s.verify(ctx, strings.TrimSpace(token))
		if err != nil && !errors.Is(err, errToken) {
			s.oauthError(w, r, err)
			return
		}
		if err != nil || !v.principal.Admin {
			w.Header().Set("WWW-Authenticate", `Bearer realm="kiln", error="invalid_token"`)
			writeJSON(w, http.StatusUnauthorized, oauthProblem{"invalid_token", "expected client authentication, or a good token with the scope admin"})
			return
		}
	} else {
		c, err := s.authenticateClient(ctx, r, r.PostForm)
		if err == nil && c.IsPublic() {
			err = badClient("A public client cannot authenticate.")
		}
		if err != nil {
			s.oauthError(w, r, err)
			return
		}
		client, _ = c.(*storage.Client)
	}
	if r.PostForm.Get("token") == "" {
		s.oauthError(w, r, fosite.ErrInvalidRequest.WithHint("The parameter token is missing."))
		return
	}
	answer, err := s.tellToken(ctx, client, r.PostForm.Get("token"))
	if err != nil {
		s.oauthError(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

var inactive = map[string]any{"active": false}

func (s *Server) tellToken(ctx context.Context, client *storage.Client, token string) (map[string]any, error) {
	every := client == nil || client.MayIntrospect
	may := func(id string) bool { return every || client.ID == id }
	v, err := s.verify(ctx, token)
	if errors.Is(err, errToken) {
		return s.tellRefresh(ctx, may, token)
	}
	if err != nil {
		return nil, err
	}
	p := v.principal
	if !may(p.ClientID) || !every && !v.own {
		return inactive, nil // a client of another server's is not the one of that name here
	}
	out := map[string]any{"active": true, "scope": p.Scopes.String(), "sub": p.Subject, "token_type": "Bearer", "iss": s.Issuer}
	if len(v.claims.Audience) > 0 {
		out["aud"], out["iss"] = v.claims.Audience, v.claims.Issuer
	}
	issued := v.issued.Unix()
	if v.own {
		issued, out["scope"] = v.claims.Issued, v.claims.Scope
	}
	if issued > 0 {
		out["iat"] = issued
	}
	if !v.expires.IsZero() {
		out["exp"] = v.expires.Unix()
	}
	for name, value := range map[string]string{
		"client_id": p.ClientID, "jti": p.TokenID, "patient": p.Patient, "encounter": p.Encounter, "fhirUser": p.FHIRUser, "sid": p.SessionID,
	} {
		if value != "" {
			out[name] = value
		}
	}
	if p.SessionID == "" {
		return out, nil
	}
	out["username"] = p.Subject
	launch, err := s.launchOf(ctx, v)
	if err != nil {
		return nil, err
	}
	maps.Copy(out, launchParameters(*launch))
	return out, nil
}

// launchOf is the launch context that the answer with a token had: it says more than the
// token, and never changes. SMART App Launch 2.2, token introspection.
func (s *Server) launchOf(ctx context.Context, v *verified) (*storage.Context, error) {
	if known := v.launch.Load(); known != nil {
		return known, nil
	}
	c, err := s.Store.GrantContext(ctx, v.principal.SessionID)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, err
	}
	v.launch.Store(&c)
	return &c, nil
}

// tellRefresh tells of a refresh token.
func (s *Server) tellRefresh(ctx context.Context, may func(string) bool, token string) (map[string]any, error) {
	r, err := s.Store.GetRefreshTokenSession(ctx, storage.Hash(token), nil)
	if err != nil {
		if isNotFound(err) || errors.Is(err, fosite.ErrInactiveToken) {
			return inactive, nil
		}
		return nil, err
	}
	expires := usableUntil(r)
	if !may(r.GetClient().GetID()) || !expires.After(s.Now()) {
		return inactive, nil
	}
	switch good, err := s.refreshes(ctx, r); {
	case err != nil:
		return nil, err
	case !good:
		return inactive, nil
	}
	out := map[string]any{
		"active": true, "scope": strings.Join(r.GetGrantedScopes(), " "), "client_id": r.GetClient().GetID(), "sub": r.GetSession().GetSubject(),
		"username": r.GetSession().GetUsername(), "exp": expires.Unix(), "iss": s.Issuer,
	}
	if session, ok := r.GetSession().(*storage.Session); ok {
		maps.Copy(out, launchParameters(session.Context))
	}
	return out, nil
}

// refreshes reports whether the user of a refresh token would get tokens by it.
func (s *Server) refreshes(ctx context.Context, r fosite.Requester) (bool, error) {
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return false, nil
	}
	u, err := s.Store.User(ctx, session.Username)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !u.Active {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return s.mayStillSee(ctx, u, r.GetClient(), session.Context)
}

// userinfo is GET and POST /auth/userinfo. OpenID Connect Core §5.3.
func (s *Server) userinfo(w http.ResponseWriter, r *http.Request) {
	if !s.Config().Smart.OpenIDEnabled {
		s.fail(w, r, errNoOpenID)
		return
	}
	p := access.PrincipalFrom(r.Context())
	if p == nil || !p.Scopes.Has("openid") {
		s.bearerError(w, http.StatusForbidden, "insufficient_scope", "openid", "userinfo needs a token with the scope openid")
		return
	}
	// A client, an API key and somebody at a trusted issuer may have the name of a user here:
	// sub says who it is only beside iss. OpenID Connect Core §5.7.
	var u *storage.User
	err := storage.ErrNotFound
	if p.SessionID != "" {
		u, err = s.Store.User(r.Context(), p.Subject)
	}
	if errors.Is(err, storage.ErrNotFound) {
		s.bearerError(w, http.StatusUnauthorized, "invalid_token", "", "the token has no user of this server")
		return
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := map[string]any{"sub": p.Subject, "name": u.Name, "preferred_username": u.Username}
	if u.Name == "" {
		out["name"] = u.Username
	}
	if u.Email != "" {
		out["email"] = u.Email
	}
	if p.FHIRUser != "" && (p.Scopes.Has("fhirUser") || p.Scopes.Has("profile")) {
		out["fhirUser"] = p.FHIRUser
	}
	writeJSON(w, http.StatusOK, out)
}

// bearerError answers by RFC 6750 §3.
func (s *Server) bearerError(w http.ResponseWriter, status int, name, scope, description string) {
	challenge := `Bearer realm="kiln", error="` + name + `"`
	if scope != "" {
		challenge += `, scope="` + scope + `"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	writeJSON(w, status, oauthProblem{name, description})
}
