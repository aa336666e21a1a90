package oauth

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	exactjson "github.com/go-jose/go-jose/v4/json"

	"kiln/server/outcome"
	"kiln/server/smart"
)

// registration is the metadata of a client. RFC 7591 §2. Metadata that is not known
// is ignored.
type registration struct {
	RedirectURIs            []string        `json:"redirect_uris"`
	TokenEndpointAuthMethod string          `json:"token_endpoint_auth_method,omitempty"`
	GrantTypes              []string        `json:"grant_types,omitempty"`
	ResponseTypes           []string        `json:"response_types,omitempty"`
	ClientName              string          `json:"client_name,omitempty"`
	Scope                   string          `json:"scope,omitempty"`
	JWKSURI                 string          `json:"jwks_uri,omitempty"`
	JWKS                    json.RawMessage `json:"jwks,omitempty"`
	InitiateLoginURI        string          `json:"initiate_login_uri,omitempty"`
	PostLogoutRedirectURIs  []string        `json:"post_logout_redirect_uris,omitempty"`
	IDTokenSignedAlg        string          `json:"id_token_signed_response_alg,omitempty"`
}

// register is POST /auth/register. RFC 7591. A client that registers without an
// administrator gets neither system scopes nor admin, metrics or launch/context, and users
// are asked for consent.
func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	if !s.Config().Smart.DynamicRegistrationEnabled {
		s.fail(w, r, outcome.New(outcome.CodeNotFound, "clients do not register themselves here (auth.smart.dynamic_registration_enabled)"))
		return
	}
	body, err := readBody(w, r)
	var in registration
	if err != nil || exactjson.Unmarshal(body, &in) != nil {
		writeJSON(w, http.StatusBadRequest, oauthProblem{"invalid_client_metadata", "expected a JSON object of client metadata"})
		return
	}
	for _, t := range in.ResponseTypes {
		if t != "code" {
			writeJSON(w, http.StatusBadRequest, oauthProblem{"invalid_client_metadata", "response_types: expected code"})
			return
		}
	}
	if in.TokenEndpointAuthMethod == "" {
		in.TokenEndpointAuthMethod = "client_secret_basic" // RFC 7591 §2
	}
	if len(in.RedirectURIs) == 0 {
		writeJSON(w, http.StatusBadRequest, oauthProblem{"invalid_redirect_uri", "redirect_uris: expected at least one"})
		return
	}
	scopes, err := smart.Parse(in.Scope)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, oauthProblem{"invalid_client_metadata", describableText(err.Error())})
		return
	}
	var allowed []string
	for _, scope := range strings.Fields(scopes.String()) {
		if !strings.HasPrefix(scope, "system/") && !smart.WithoutUser(scope) {
			allowed = append(allowed, scope)
		}
	}
	b, err := json.Marshal(map[string]any{
		"name": in.ClientName, "tokenEndpointAuthMethod": in.TokenEndpointAuthMethod, "redirectUris": in.RedirectURIs, "grantTypes": in.GrantTypes,
		"jwks": in.JWKS, "jwksUri": in.JWKSURI, "launchUri": in.InitiateLoginURI, "postLogoutRedirectUris": in.PostLogoutRedirectURIs,
		"scopes": allowed, "idTokenSigningAlg": in.IDTokenSignedAlg, "pkceRequired": true,
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	c, err := s.CreateClient(r.Context(), b)
	if err != nil {
		o, ok := errors.AsType[*outcome.Error](err)
		if !ok || outcome.Ours(err) {
			s.fail(w, r, err)
			return
		}
		name := "invalid_client_metadata"
		if strings.HasPrefix(o.Error(), "redirectUris") {
			name = "invalid_redirect_uri"
		}
		writeJSON(w, http.StatusBadRequest, oauthProblem{name, describableText(o.Error())})
		return
	}
	out := map[string]any{
		"client_id": c.ID, "client_id_issued_at": c.Created.Unix(), "client_name": c.Name, "redirect_uris": c.RedirectURIs,
		"token_endpoint_auth_method": c.TokenEndpointAuthMethod, "grant_types": c.GrantTypes, "response_types": []string{"code"},
		"scope": strings.Join(c.Scopes, " "), "id_token_signed_response_alg": c.IDTokenSigningAlg,
	}
	if c.ClientSecret != "" {
		out["client_secret"], out["client_secret_expires_at"] = c.ClientSecret, 0
	}
	if c.JWKS != nil {
		out["jwks"] = c.JWKS
	}
	if c.JWKSURI != "" {
		out["jwks_uri"] = c.JWKSURI
	}
	if c.LaunchURI != "" {
		out["initiate_login_uri"] = c.LaunchURI
	}
	if len(c.PostLogoutRedirectURIs) > 0 {
		out["post_logout_redirect_uris"] = c.PostLogoutRedirectURIs
	}
	s.audit(r, Event{Kind: EventRegister, Client: c.ID})
	writeJSON(w, http.StatusCreated, out)
}
