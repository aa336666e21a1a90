package oauth

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"kiln/server/outcome"
	"kiln/server/smart"
)

var errNoOpenID = outcome.New(outcome.CodeNotFound, "OpenID Connect is off (auth.smart.openid_enabled)")

// Discovery is the content of the discovery documents: SMART App Launch 2.2 (conformance),
// OpenID Connect Discovery §3, RFC 8414 §2. It lists only capabilities that are on.
func (s *Server) Discovery() map[string]any {
	c := s.Config()
	url := func(path string) string { return s.Issuer + path }
	code := slices.Contains(c.OAuth.GrantTypes, grantCode)
	algs := signingAlgorithms
	methods := []string{"client_secret_basic", "client_secret_post", "private_key_jwt"}
	tokenMethods := methods
	if c.Smart.PublicClientsAllowed {
		tokenMethods = append([]string{"none"}, methods...)
	}
	d := map[string]any{
		"issuer":                                                   s.Issuer,
		"jwks_uri":                                                 url("/.well-known/jwks.json"),
		"authorization_endpoint":                                   url("/auth/authorize"),
		"token_endpoint":                                           url("/auth/token"),
		"revocation_endpoint":                                      url("/auth/revoke"),
		"introspection_endpoint":                                   url("/auth/introspect"),
		"grant_types_supported":                                    c.OAuth.GrantTypes,
		"response_types_supported":                                 []string{"code"},
		"response_modes_supported":                                 []string{"query"},
		"scopes_supported":                                         s.scopesSupported(),
		"code_challenge_methods_supported":                         []string{"S256"},
		"token_endpoint_auth_methods_supported":                    tokenMethods,
		"token_endpoint_auth_signing_alg_values_supported":         algs,
		"revocation_endpoint_auth_methods_supported":               tokenMethods,
		"revocation_endpoint_auth_signing_alg_values_supported":    algs,
		"introspection_endpoint_auth_methods_supported":            methods,
		"introspection_endpoint_auth_signing_alg_values_supported": algs,
		"authorization_response_iss_parameter_supported":           true,
		"request_parameter_supported":                              false,
		"request_uri_parameter_supported":                          false,
		"capabilities":                                             s.capabilities(),
		"service_documentation":                                    "https://hl7.org/fhir/smart-app-launch/STU2.2/",
		"associated_endpoints":                                     nil,
	}
	delete(d, "associated_endpoints")
	if !code {
		delete(d, "authorization_endpoint")
	}
	if s.Config().Smart.DynamicRegistrationEnabled {
		d["registration_endpoint"] = url("/auth/register")
	}
	if c.Smart.OpenIDEnabled {
		d["userinfo_endpoint"] = url("/auth/userinfo")
		d["end_session_endpoint"] = url("/auth/logout")
		d["subject_types_supported"] = []string{"public"}
		d["id_token_signing_alg_values_supported"] = algs
		d["claims_supported"] = []string{"iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "sid", "fhirUser", "profile", "name", "preferred_username", "email"}
		d["prompt_values_supported"] = []string{"none", "login", "consent", "select_account"}
	}
	return d
}

// scopesSupported are the scopes of auth.smart.supported_scopes, or all, that are on.
func (s *Server) scopesSupported() []string {
	list := s.Config().Smart.SupportedScopes
	if len(list) == 0 {
		list = slices.Concat(smart.Known, []string{"patient/*.cruds", "user/*.cruds", "system/*.cruds"})
	}
	return slices.DeleteFunc(slices.Clone(list), func(scope string) bool { return !s.scopeEnabled(scope) })
}

// capabilities are the capabilities of SMART App Launch 2.2 that are on and that a
// grantable scope leads to.
func (s *Server) capabilities() []string {
	c := s.Config().Smart
	supported, limited := s.supportedScopes()
	scope := func(name string) bool { return s.scopeEnabled(name) && (!limited || supported.Has(name)) }
	about := func(context smart.Context) bool { return !limited || supported.HasContext(context) }
	code := slices.Contains(s.Config().OAuth.GrantTypes, grantCode)
	out := []string{}
	add := func(on bool, names ...string) {
		if on {
			out = append(out, names...)
		}
	}
	add(code && scope("launch"), "launch-ehr")
	add(code && c.LaunchStandaloneEnabled, "launch-standalone")
	add(code, "authorize-post")
	add(code && c.PublicClientsAllowed, "client-public")
	add(true, "client-confidential-symmetric", "client-confidential-asymmetric")
	add(code && scope("openid"), "sso-openid-connect")
	add(code && scope("launch"), "context-banner", "context-style", "context-ehr-patient", "context-ehr-encounter")
	add(code && scope("launch/patient"), "context-standalone-patient")
	add(code && scope("launch/encounter"), "context-standalone-encounter")
	add(code && scope("offline_access"), "permission-offline")
	add(code && scope("online_access"), "permission-online")
	add(code && about(smart.Patient) && (c.LaunchStandaloneEnabled || c.LaunchEHREnabled), "permission-patient")
	add(code && about(smart.User), "permission-user")
	add(!limited || len(supported.Resource) > 0, "permission-v1", "permission-v2")
	return out
}

func (s *Server) discovery(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/openid-configuration") && !s.Config().Smart.OpenIDEnabled {
		s.fail(w, r, errNoOpenID)
		return
	}
	writeCached(w, r, s.Discovery())
}

// publicKeys is GET /.well-known/jwks.json. It has the keys that other servers of the
// database have just begun to sign with; those known here where the database does not
// answer.
func (s *Server) publicKeys(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if err := s.keys.loadKeys(ctx); err != nil {
		s.Logger.WarnContext(ctx, "the signing keys of other servers cannot be read", "error", err)
	}
	writeCached(w, r, s.keys.publishedKeys())
}
