package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// clientBody are the fields that make a client.
type clientBody struct {
	ClientID                string          `json:"clientId"`
	Name                    string          `json:"name"`
	Confidential            *bool           `json:"confidential"`
	TokenEndpointAuthMethod string          `json:"tokenEndpointAuthMethod"`
	ClientSecret            string          `json:"clientSecret"`
	JWKS                    json.RawMessage `json:"jwks"`
	JWKSURI                 string          `json:"jwksUri"`
	RedirectURIs            []string        `json:"redirectUris"`
	PostLogoutRedirectURIs  []string        `json:"postLogoutRedirectUris"`
	LaunchURI               string          `json:"launchUri"`
	GrantTypes              []string        `json:"grantTypes"`
	Scopes                  []string        `json:"scopes"`
	AccessTokenLifetime     string          `json:"accessTokenLifetime"`
	RefreshTokenLifetime    string          `json:"refreshTokenLifetime"`
	PKCERequired            bool            `json:"pkceRequired"`
	AllowedOrigins          []string        `json:"allowedOrigins"`
	MayIntrospect           bool            `json:"mayIntrospect"`
	Trusted                 bool            `json:"trusted"`
	IDTokenSigningAlg       string          `json:"idTokenSigningAlg"`
	Active                  *bool           `json:"active"`
	// Shown, never taken.
	Created any `json:"created"`
	Updated any `json:"updated"`
}

var methods = []string{storage.MethodNone, storage.MethodBasic, storage.MethodPost, storage.MethodJWT}

// clientRules check the fields of a registration, in this order, and fill the client. A rule may
// use the fields of those before it. Each fails with invalid, 400, and names its field.
var clientRules = []func(*Admin, *clientBody, *storage.Client) error{
	checkClientID,
	checkClientName,
	chooseAuthMethod,
	checkClientSecret,
	checkClientKeys,
	checkGrantTypes,
	checkClientScopes,
	checkClientURIs,
	checkTokenLifetimes,
	checkIDTokenSigningAlg,
}

// client turns a body into a client, or says which field is wrong.
func (a *Admin) client(b clientBody) (*storage.Client, error) {
	c := &storage.Client{
		ID: b.ClientID, Name: b.Name, JWKSURI: b.JWKSURI, LaunchURI: b.LaunchURI,
		RedirectURIs: orEmpty(b.RedirectURIs), PostLogoutRedirectURIs: orEmpty(b.PostLogoutRedirectURIs), GrantTypes: b.GrantTypes,
		AccessTokenLifetime: b.AccessTokenLifetime, RefreshTokenLifetime: b.RefreshTokenLifetime, PKCERequired: b.PKCERequired,
		AllowedOrigins: orEmpty(b.AllowedOrigins), MayIntrospect: b.MayIntrospect, Trusted: b.Trusted,
		IDTokenSigningAlg: b.IDTokenSigningAlg, Active: b.Active == nil || *b.Active, Scopes: []string{},
	}
	if len(b.JWKS) > 0 && string(b.JWKS) != "null" {
		c.JWKS = b.JWKS
	}
	for _, rule := range clientRules {
		if err := rule(a, &b, c); err != nil {
			return nil, err
		}
	}
	c.PKCERequired = c.PKCERequired || !c.Confidential
	return c, nil
}

func checkClientID(_ *Admin, _ *clientBody, c *storage.Client) error {
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	if len(c.ID) > 200 || strings.ContainsFunc(c.ID, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		return invalidRequest("clientId is %q: expected up to 200 printable ASCII characters without spaces, quotes and backslashes", c.ID)
	}
	if strings.HasPrefix(c.ID, apiKeyClient) {
		return invalidRequest("clientId is %q: %s stands before the names of API keys", c.ID, apiKeyClient)
	}
	return nil
}

func checkClientName(_ *Admin, _ *clientBody, c *storage.Client) error {
	if len(c.Name) > 200 || !utf8.ValidString(c.Name) || strings.ContainsFunc(c.Name, unicode.IsControl) {
		return invalidRequest("name: expected up to 200 bytes of text without control characters")
	}
	return nil
}

// chooseAuthMethod decides how the client authenticates at the token endpoint: as the body says, else
// by its keys and its secret.
func chooseAuthMethod(_ *Admin, b *clientBody, c *storage.Client) error {
	method := b.TokenEndpointAuthMethod
	confidential := b.Confidential != nil && *b.Confidential
	open := b.Confidential == nil
	switch {
	case method == "" && (c.JWKS != nil || c.JWKSURI != "") && (open || confidential):
		method = storage.MethodJWT
	case method == "" && (confidential || open && b.ClientSecret != ""):
		method, c.AnySecretMethod = storage.MethodBasic, true
	case method == "":
		method = storage.MethodNone
	case !slices.Contains(methods, method):
		return invalidRequest("tokenEndpointAuthMethod is %q: expected %s", method, strings.Join(methods, ", "))
	}
	c.TokenEndpointAuthMethod, c.Confidential = method, method != storage.MethodNone
	if !open && confidential != c.Confidential {
		return invalidRequest("confidential is %t and tokenEndpointAuthMethod is %q: a confidential client authenticates, a public one (none) does not", confidential, method)
	}
	return nil
}

func checkClientSecret(_ *Admin, b *clientBody, c *storage.Client) error {
	method := c.TokenEndpointAuthMethod
	if b.ClientSecret != "" && method != storage.MethodBasic && method != storage.MethodPost {
		return invalidRequest("clientSecret: a client with tokenEndpointAuthMethod %q has none", method)
	}
	if len(b.ClientSecret) > 1024 {
		return invalidRequest("clientSecret: expected up to 1024 bytes")
	}
	return nil
}

func checkClientKeys(a *Admin, _ *clientBody, c *storage.Client) error {
	switch {
	case c.JWKS != nil && c.JWKSURI != "": // RFC 7591 §2
		return invalidRequest("jwks, jwksUri: expected one of them, not both")
	case c.TokenEndpointAuthMethod == storage.MethodJWT && c.JWKS == nil && c.JWKSURI == "":
		return invalidRequest("jwks, jwksUri: expected one of them with tokenEndpointAuthMethod private_key_jwt")
	}
	if c.JWKS != nil {
		if err := checkJWKS(c.JWKS); err != nil {
			return invalidRequest("jwks: %s", err)
		}
	}
	if c.JWKSURI != "" {
		if err := checkRemote(c.JWKSURI, a.Config().AllowPrivateNetworks); err != nil {
			return invalidRequest("jwksUri is %q: %s", c.JWKSURI, err)
		}
	}
	return nil
}

func checkGrantTypes(_ *Admin, _ *clientBody, c *storage.Client) error {
	if len(c.GrantTypes) == 0 {
		c.GrantTypes = []string{grantCode, grantRefreshToken}
		if len(c.RedirectURIs) == 0 && c.Confidential {
			c.GrantTypes = []string{grantClientCredentials}
		}
	}
	for _, g := range c.GrantTypes {
		if !slices.Contains(grantTypes, g) {
			return invalidRequest("grantTypes has %q: expected %s", g, strings.Join(grantTypes, ", "))
		}
	}
	if !c.Confidential && slices.Contains(c.GrantTypes, grantClientCredentials) {
		return invalidRequest("grantTypes has client_credentials: a public client cannot authenticate")
	}
	return nil
}

func checkClientScopes(_ *Admin, b *clientBody, c *storage.Client) error {
	for _, text := range b.Scopes {
		scopes, err := smart.Parse(text)
		if err != nil {
			return invalidRequest("scopes: %s", err)
		}
		for _, scope := range strings.Fields(scopes.String()) {
			if !slices.Contains(c.Scopes, scope) {
				c.Scopes = append(c.Scopes, scope)
			}
		}
	}
	return nil
}

// checkUsable refuses a client that could never get a token, and scopes that no resource can match. A
// client that introspects tokens needs no token of its own. The client of an App gets its scopes later.
func (a *Admin) checkUsable(ctx context.Context, c *storage.Client) error {
	code, own := slices.Contains(c.GrantTypes, grantCode), slices.Contains(c.GrantTypes, grantClientCredentials)
	if code && len(c.RedirectURIs) == 0 {
		return invalidRequest("redirectUris is empty: expected at least one with the grant type %s", grantCode)
	}
	scopes, err := smart.Parse(strings.Join(c.Scopes, " "))
	if err != nil {
		return invalidRequest("scopes: %s", err)
	}
	for _, r := range scopes.Resource {
		if a.Records != nil && !a.Records.Means(ctx, r) {
			return invalidRequest("scopes has %q: no resource can match it, because this server lacks its resource type or a search parameter", r.String())
		}
	}
	switch {
	case c.MayIntrospect || strings.HasPrefix(c.ID, appClientID("")):
		return nil
	case !code && !own:
		return invalidRequest("grantTypes is %s: expected %s or %s too, because a refresh token comes with another grant", strings.Join(c.GrantTypes, ", "), grantCode, grantClientCredentials)
	case scopes.Empty():
		return invalidRequest("scopes is empty: the client could ask for nothing")
	}
	for _, r := range scopes.Resource {
		if r.Context == smart.System && own || r.Context != smart.System && code {
			return nil
		}
	}
	for _, name := range scopes.Other {
		if smart.WithoutUser(name) || name == "openid" && code {
			return nil
		}
	}
	want := "system/ scopes, admin, metrics or launch/context"
	if code {
		want = "patient/ or user/ scopes, or openid"
	}
	return invalidRequest("scopes is %s: the grant types %s need %s", strings.Join(c.Scopes, " "), strings.Join(c.GrantTypes, ", "), want)
}

// isSameReach reports whether two registrations have the same scopes, grant types and redirect URIs.
func isSameReach(a, b *storage.Client) bool {
	return slices.Equal(a.Scopes, b.Scopes) && slices.Equal(a.GrantTypes, b.GrantTypes) && slices.Equal(a.RedirectURIs, b.RedirectURIs)
}

func checkClientURIs(a *Admin, _ *clientBody, c *storage.Client) error {
	for _, list := range []struct {
		field string
		uris  []string
	}{{"redirectUris", c.RedirectURIs}, {"postLogoutRedirectUris", c.PostLogoutRedirectURIs}} {
		for _, u := range list.uris {
			if err := checkRedirect(u, a.Config().AllowHTTP); err != nil {
				return invalidRequest("%s has %q: %s", list.field, u, err)
			}
		}
	}
	if c.LaunchURI != "" {
		if u, err := url.Parse(c.LaunchURI); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return invalidRequest("launchUri is %q: expected a URL that starts with https:// or http://", c.LaunchURI)
		}
	}
	for _, o := range c.AllowedOrigins {
		if u, err := url.Parse(o); err != nil || u.Scheme+"://"+u.Host != o || u.Host == "" {
			return invalidRequest("allowedOrigins has %q: expected an origin such as https://app.example.org", o)
		}
	}
	return nil
}

func checkTokenLifetimes(_ *Admin, _ *clientBody, c *storage.Client) error {
	for _, l := range []struct{ field, text string }{{"accessTokenLifetime", c.AccessTokenLifetime}, {"refreshTokenLifetime", c.RefreshTokenLifetime}} {
		d, err := storage.ParseLifetime(l.text)
		if err != nil {
			return invalidRequest("%s: %s", l.field, err)
		}
		if d > 0 && d < minLifetime {
			return invalidRequest("%s is %s: expected a second at least", l.field, l.text)
		}
	}
	if parseLifetime(c.AccessTokenLifetime) > maxAccess {
		return invalidRequest("accessTokenLifetime is %s: expected a year at most", c.AccessTokenLifetime)
	}
	return nil
}

func checkIDTokenSigningAlg(_ *Admin, _ *clientBody, c *storage.Client) error {
	if c.IDTokenSigningAlg == "" {
		c.IDTokenSigningAlg = "RS256"
	}
	if !slices.Contains(signingAlgorithms, c.IDTokenSigningAlg) {
		return invalidRequest("idTokenSigningAlg is %q: expected %s", c.IDTokenSigningAlg, strings.Join(signingAlgorithms, ", "))
	}
	return nil
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// checkJWKS refuses a set without public keys that can verify signatures here.
func checkJWKS(raw json.RawMessage) error {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil || len(set.Keys) == 0 {
		return errors.New("expected an object with keys")
	}
	if len(set.Keys) > maxKeys {
		return fmt.Errorf("expected at most %d keys", maxKeys)
	}
	usable := false
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if err := k.UnmarshalJSON(raw); err != nil {
			return errors.New("a key cannot be read")
		}
		if !k.IsPublic() {
			return errors.New("a key is private or symmetric: register public keys alone")
		}
		switch key := k.Key.(type) {
		case *rsa.PublicKey:
			if key.N.BitLen() < 2048 {
				return errors.New("an RSA key is shorter than 2048 bits")
			}
			usable = true
		case *ecdsa.PublicKey:
			usable = usable || key.Params().BitSize == 256 || key.Params().BitSize == 384
		}
	}
	if !usable {
		return errors.New("no key can verify RS256, RS384, ES256 or ES384")
	}
	return nil
}

// checkRedirect refuses URIs that a code must not be sent to. RFC 6749 §3.1.2,
// RFC 8252 §7.
func checkRedirect(text string, allowHTTP bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || len(text) > 2000 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("expected an absolute URI")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return errors.New("expected no fragment")
	case u.User != nil:
		return errors.New("expected no user")
	case strings.Contains(text, "*"):
		return errors.New("expected no wildcard: redirect URIs are compared as they stand")
	}
	switch u.Scheme {
	case "https":
		if u.Host == "" {
			return errors.New("expected a host")
		}
	case "http":
		if u.Host == "" || !isLoopback(u.Hostname()) && !allowHTTP {
			return errors.New("http is for loopback addresses: expected https")
		}
	case "javascript", "data", "vbscript", "file", "blob", "about", "view-source", "filesystem", "ws", "wss", "ftp":
		return fmt.Errorf("the scheme %s cannot take a code", u.Scheme)
	default:
		if !strings.Contains(u.Scheme, ".") {
			return errors.New("a scheme of an app's own holds a dot, as a domain name turned round: com.example.app")
		}
	}
	return nil
}
