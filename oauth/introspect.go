package oauth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/outcome"
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
	may := func(id string) bool { return client == nil || client.MayIntrospect || client.ID == id }
	v, err := s.verify(ctx, token)
	if errors.Is(err, errToken) {
		return s.tellRefresh(ctx, may, token)
	}
	if err != nil {
		return nil, err
	}
	p := v.principal
	if !may(p.ClientID) {
		return inactive, nil
	}
	out := map[string]any{
		"active": true, "scope": p.Scopes.String(), "client_id": p.ClientID, "sub": p.Subject, "token_type": "Bearer",
		"iss": s.Issuer, "iat": v.issued.Unix(), "jti": p.TokenID,
	}
	if v.own {
		out["aud"], out["iat"], out["scope"] = s.FHIRBase, v.claims.Issued, v.claims.Scope
	}
	if !v.expires.IsZero() {
		out["exp"] = v.expires.Unix()
	}
	for name, value := range map[string]string{"patient": p.Patient, "encounter": p.Encounter, "fhirUser": p.FHIRUser, "sid": p.SessionID} {
		if value != "" {
			out[name] = value
		}
	}
	if p.SessionID != "" {
		out["username"] = p.Subject
	}
	return out, nil
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
	expires := r.GetSession().GetExpiresAt(fosite.RefreshToken)
	if !may(r.GetClient().GetID()) || !expires.After(s.Now()) {
		return inactive, nil
	}
	return map[string]any{
		"active": true, "scope": strings.Join(r.GetGrantedScopes(), " "), "client_id": r.GetClient().GetID(), "sub": r.GetSession().GetSubject(),
		"username": r.GetSession().GetUsername(), "exp": expires.Unix(), "iss": s.Issuer,
	}, nil
}

// userinfo is GET and POST /auth/userinfo. OpenID Connect Core §5.3.
func (s *Server) userinfo(w http.ResponseWriter, r *http.Request) {
	if !s.Config().Smart.OpenIDEnabled {
		s.fail(w, r, errNoOpenID)
		return
	}
	p := access.From(r.Context())
	if p == nil || !p.Scopes.Has("openid") {
		s.bearerError(w, http.StatusForbidden, "insufficient_scope", "openid", "userinfo needs a token with the scope openid")
		return
	}
	u, err := s.Store.User(r.Context(), p.Subject)
	if err != nil {
		if errors.Is(err, storage.ErrNotFound) {
			s.bearerError(w, http.StatusUnauthorized, "invalid_token", "", "the token has no user")
			return
		}
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

// LaunchRequest is what an EHR says when it launches an app.
type LaunchRequest struct {
	Patient           string `json:"patient"`
	Encounter         string `json:"encounter"`
	FHIRContext       []any  `json:"fhirContext"`
	Intent            string `json:"intent"`
	NeedPatientBanner *bool  `json:"needPatientBanner"`
	SmartStyleURL     string `json:"smartStyleUrl"`
	Tenant            string `json:"tenant"`
	ClientID          string `json:"client_id"`
	User              string `json:"user"`
}

// launchLifetime is how long a launch waits for its app.
const launchLifetime = 5 * time.Minute

// createLaunch is POST /auth/launch.
func (s *Server) createLaunch(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	p := access.From(ctx)
	if p == nil || !p.Admin && !p.Scopes.Has("launch/context") && !p.IsOpen() {
		s.bearerError(w, http.StatusForbidden, "insufficient_scope", "launch/context", "a launch needs a token with the scope launch/context or admin")
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var b LaunchRequest
	if err := decodeStrict(body, &b); err != nil {
		s.fail(w, r, invalid("%s", err))
		return
	}
	id, err := s.NewLaunch(ctx, b)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, map[string]any{"launch": id, "expiresIn": int(launchLifetime.Seconds())})
}

// NewLaunch stores a launch context and returns its identifier.
func (s *Server) NewLaunch(ctx context.Context, b LaunchRequest) (string, error) {
	c := storage.Context{
		Intent: b.Intent, NeedPatientBanner: b.NeedPatientBanner, SmartStyleURL: b.SmartStyleURL, Tenant: b.Tenant, ClientID: b.ClientID, User: b.User,
	}
	var err error
	if c.Patient, err = bareID("patient", "Patient", b.Patient); err != nil {
		return "", err
	}
	if c.Encounter, err = bareID("encounter", "Encounter", b.Encounter); err != nil {
		return "", err
	}
	for typ, id := range map[string]string{"Patient": c.Patient, "Encounter": c.Encounter} {
		if id == "" || s.Records == nil {
			continue
		}
		ok, err := s.Records.Exists(ctx, typ+"/"+id)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", invalid("there is no %s/%s", typ, id)
		}
	}
	if c.Patient != "" && c.Encounter != "" && s.Records != nil {
		of, err := s.Records.PatientOf(ctx, c.Encounter)
		if err != nil {
			return "", err
		}
		if of != "" && of != c.Patient {
			return "", invalid("Encounter/%s is not one of Patient/%s", c.Encounter, c.Patient)
		}
	}
	if b.FHIRContext != nil {
		for i, e := range b.FHIRContext {
			if !isContext(e) {
				return "", invalid("fhirContext[%d]: expected an object with reference, canonical or identifier, and texts for reference, canonical, type and role", i)
			}
		}
		if c.FHIRContext, err = jsonOf(b.FHIRContext); err != nil {
			return "", err
		}
	}
	if b.SmartStyleURL != "" {
		if err := checkRemote(b.SmartStyleURL, true); err != nil {
			return "", invalid("smartStyleUrl is %q: %s", b.SmartStyleURL, err)
		}
	}
	if b.ClientID != "" {
		if _, err := s.Store.GetClient(ctx, b.ClientID); err != nil {
			if isNotFound(err) {
				return "", invalid("client_id: there is no client %q", b.ClientID)
			}
			return "", err
		}
	}
	if b.User != "" {
		if _, err := s.Store.User(ctx, b.User); err != nil {
			if isNotFound(err) {
				return "", invalid("user: there is no user %q", b.User)
			}
			return "", err
		}
	}
	id := random()
	return id, s.Store.CreateLaunch(ctx, storage.Hash(id), c, s.Now().Add(launchLifetime))
}

// isContext reports whether a value is an element of fhirContext.
// SMART App Launch 2.2, fhirContext.
func isContext(e any) bool {
	object, ok := e.(map[string]any)
	if !ok {
		return false
	}
	for _, name := range []string{"reference", "canonical", "type", "role"} {
		if v, ok := object[name]; ok {
			if text, ok := v.(string); !ok || text == "" {
				return false
			}
		}
	}
	identifier, identified := object["identifier"]
	if _, ok := identifier.(map[string]any); identified && !ok {
		return false
	}
	return identified || object["reference"] != nil || object["canonical"] != nil
}

// bareID is the logical id of a bare id or a reference.
func bareID(field, typ, text string) (string, error) {
	id := strings.TrimPrefix(text, typ+"/")
	if text != "" && !logicalID.MatchString(id) {
		return "", outcome.New(outcome.CodeInvalid, "%s is %q: expected an id, or %s/ and an id", field, text, typ)
	}
	return id, nil
}
