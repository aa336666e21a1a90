package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/ory/fosite"

	"kiln/oauth/storage"
)

const assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

// Bounds of a client assertion. RFC 7523 §3, SMART App Launch 2.2, asymmetric
// client authentication.
const (
	assertionLifetime = 5 * time.Minute
	leeway            = 30 * time.Second
	maxJTI            = 255
)

// badClient is the one answer to everything that is wrong with a client's
// authentication: it does not tell a wrong secret from an unknown client.
func badClient(hint string) error {
	e := *fosite.ErrInvalidClient
	return e.WithHint(hint)
}

func isNotFound(err error) bool {
	return errors.Is(err, fosite.ErrNotFound) || errors.Is(err, storage.ErrNotFound)
}

// authenticateClient finds out which client makes a request: by Basic, by a secret
// in the form, by an assertion, or, a public one, by its client_id. A request uses
// one way. RFC 6749 §2.3, RFC 7523 §2.2.
func (s *Server) authenticateClient(ctx context.Context, r *http.Request, form url.Values) (fosite.Client, error) {
	id, secret, basic, err := basicAuth(r)
	if err != nil {
		return nil, err
	}
	ways := 0
	for _, used := range []bool{basic, form.Get("client_secret") != "", form.Get("client_assertion") != "" || form.Get("client_assertion_type") != ""} {
		if used {
			ways++
		}
	}
	if ways > 1 {
		return nil, fosite.ErrInvalidRequest.WithHint("The client authenticates in more than one way.")
	}
	named := form.Get("client_id")
	switch {
	case basic:
		if named != "" && named != id {
			return nil, badClient("client_id is not the client of the Authorization header.")
		}
		return s.bySecret(ctx, id, secret, storage.MethodBasic)
	case form.Get("client_secret") != "":
		return s.bySecret(ctx, named, form.Get("client_secret"), storage.MethodPost)
	case ways == 1:
		return s.byAssertion(ctx, form)
	}
	if named == "" && form.Get("grant_type") == grantRefreshToken {
		// A public client may leave out its name: the token says it.
		if named, err = s.Store.ClientOfRefreshToken(ctx, storage.Hash(form.Get("refresh_token"))); err != nil {
			if isNotFound(err) {
				return nil, fosite.ErrInvalidGrant.WithHint("The refresh token is not good.")
			}
			return nil, err
		}
	}
	if named == "" {
		return nil, badClient("The request does not identify its client.")
	}
	c, err := s.activeClient(ctx, named)
	if err != nil {
		return nil, err
	}
	if !c.IsPublic() {
		return nil, badClient("The client does not authenticate.")
	}
	return c, nil
}

// basicAuth reads the Authorization header; name and secret are form-encoded.
// RFC 6749 §2.3.1.
func basicAuth(r *http.Request) (id, secret string, basic bool, err error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", "", false, nil
	}
	if len(values) > 1 {
		return "", "", false, fosite.ErrInvalidRequest.WithHint("There are several Authorization headers.")
	}
	if scheme, _, _ := strings.Cut(values[0], " "); !strings.EqualFold(scheme, "Basic") {
		return "", "", false, nil
	}
	id, secret, ok := r.BasicAuth()
	if ok {
		var err1, err2 error
		id, err1 = url.QueryUnescape(id)
		secret, err2 = url.QueryUnescape(secret)
		ok = err1 == nil && err2 == nil && id != ""
	}
	if !ok {
		return "", "", true, badClient("The Authorization header is malformed.")
	}
	return id, secret, true, nil
}

func (s *Server) activeClient(ctx context.Context, id string) (*storage.Client, error) {
	c, err := s.Store.Client(ctx, id)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !c.Active {
		return nil, badClient("The client is unknown, disabled, or did not authenticate as it should.")
	}
	if err == nil && c.IsPublic() && !s.Config().Smart.PublicClientsAllowed {
		return nil, badClient("Public clients are not allowed (auth.smart.public_clients_allowed).")
	}
	return c, err
}

func (s *Server) bySecret(ctx context.Context, id, secret, method string) (fosite.Client, error) {
	c, err := s.activeClient(ctx, id)
	if err != nil {
		return nil, err
	}
	secretMethod := c.TokenEndpointAuthMethod == storage.MethodBasic || c.TokenEndpointAuthMethod == storage.MethodPost
	if !secretMethod || c.TokenEndpointAuthMethod != method && !c.AnySecretMethod {
		return nil, badClient(fmt.Sprintf("The client is registered for %s.", c.TokenEndpointAuthMethod))
	}
	ok, err := s.secrets.matchSecret(ctx, c.Secret, secret)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, badClient("The client is unknown, disabled, or did not authenticate as it should.")
	}
	return c, nil
}

// byAssertion authenticates by private_key_jwt.
func (s *Server) byAssertion(ctx context.Context, form url.Values) (fosite.Client, error) {
	if form.Get("client_assertion_type") != assertionType {
		return nil, badClient("client_assertion_type must be " + assertionType + ".")
	}
	text := form.Get("client_assertion")
	if len(text) > maxToken {
		return nil, badClient("The assertion is too long.")
	}
	signed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{jose.RS384, jose.ES384, jose.RS256, jose.ES256})
	if err != nil || len(signed.Signatures) != 1 {
		return nil, badClient("The assertion is no JWT that is signed by RS384, ES384, RS256 or ES256.")
	}
	var claims struct {
		Issuer    string   `json:"iss"`
		Subject   string   `json:"sub"`
		Audience  audience `json:"aud"`
		Expires   *float64 `json:"exp"`
		Issued    *float64 `json:"iat"`
		NotBefore *float64 `json:"nbf"`
		ID        string   `json:"jti"`
	}
	if !readClaims(signed.UnsafePayloadWithoutVerification(), &claims) {
		return nil, badClient("The assertion's claims cannot be read.")
	}
	if claims.Issuer == "" || claims.Issuer != claims.Subject {
		return nil, badClient("iss and sub of the assertion must both be the client id.")
	}
	if named := form.Get("client_id"); named != "" && named != claims.Issuer {
		return nil, badClient("client_id is not the client of the assertion.")
	}
	c, err := s.activeClient(ctx, claims.Issuer)
	if err != nil {
		return nil, err
	}
	if c.TokenEndpointAuthMethod != storage.MethodJWT {
		return nil, badClient(fmt.Sprintf("The client is registered for %s.", c.TokenEndpointAuthMethod))
	}
	if err := s.verifyAssertion(ctx, c, signed); err != nil {
		return nil, err
	}

	// The claims are the client's own from here on.
	now := s.Now()
	switch {
	case !slices.Contains(claims.Audience, s.Issuer) && !slices.Contains(claims.Audience, s.Issuer+"/auth/token"):
		return nil, badClient("aud of the assertion must be " + s.Issuer + "/auth/token or " + s.Issuer + ".")
	case claims.Expires == nil:
		return nil, badClient("The assertion has no exp.")
	case !timeOfSeconds(*claims.Expires).After(now.Add(-leeway)):
		return nil, badClient("The assertion has expired.")
	case timeOfSeconds(*claims.Expires).After(now.Add(assertionLifetime + leeway)):
		return nil, badClient("The assertion is good for more than five minutes.")
	case claims.Issued != nil && timeOfSeconds(*claims.Issued).After(now.Add(leeway)), claims.NotBefore != nil && timeOfSeconds(*claims.NotBefore).After(now.Add(leeway)):
		return nil, badClient("The assertion is not good yet.")
	case claims.ID == "" || len(claims.ID) > maxJTI || strings.ContainsRune(claims.ID, 0):
		return nil, badClient(fmt.Sprintf("The assertion needs a jti of at most %d bytes.", maxJTI))
	}
	err = s.Store.UseAssertion(ctx, c.ID, claims.ID, timeOfSeconds(*claims.Expires).Add(leeway))
	if errors.Is(err, storage.ErrUsed) {
		return nil, badClient("The assertion was used already: jti must be new each time.")
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func timeOfSeconds(n float64) time.Time {
	if n != n || n > 1e11 || n < 0 {
		n = 0
	}
	return time.UnixMilli(int64(n * 1000))
}

// verifyAssertion holds the signature against the client's keys.
func (s *Server) verifyAssertion(ctx context.Context, c *storage.Client, signed *jose.JSONWebSignature) error {
	header := signed.Signatures[0].Protected
	wrong := badClient("The assertion is signed by no key of the client.")
	// SMART App Launch 2.2, signature verification: a jku is the registered one.
	if jku, ok := header.ExtraHeaders["jku"]; ok && (c.JWKSURI == "" || jku != c.JWKSURI) {
		return badClient("jku of the assertion is not the client's jwksUri.")
	}
	var keys []jose.JSONWebKey
	if c.JWKSURI != "" {
		var err error
		if keys, err = s.jwks.keys(ctx, c.JWKSURI, header.KeyID); err != nil {
			s.Logger.WarnContext(ctx, "keys of a client", "client", c.ID, "error", err)
			return badClient("The client's jwksUri could not be read.")
		}
	} else {
		var set jose.JSONWebKeySet
		if err := json.Unmarshal(c.JWKS, &set); err != nil {
			return wrong
		}
		keys = set.Keys
	}
	var candidates []jose.JSONWebKey
	for _, k := range keys {
		if (header.KeyID == "" || k.KeyID == header.KeyID) && keyFitsAlgorithm(k, header.Algorithm) {
			candidates = append(candidates, k)
		}
	}
	if header.KeyID == "" && len(candidates) > 1 {
		return badClient("The assertion's header needs a kid: the client has several keys.")
	}
	for _, k := range candidates {
		if _, err := signed.Verify(k.Key); err == nil {
			return nil
		}
	}
	return wrong
}

// keyFitsAlgorithm reports whether a public key can have made a signature of an algorithm.
func keyFitsAlgorithm(k jose.JSONWebKey, alg string) bool {
	if k.Use != "" && k.Use != "sig" || k.Algorithm != "" && k.Algorithm != alg {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") && key.N.BitLen() >= 2048
	case *ecdsa.PublicKey:
		return alg == "ES256" && key.Params().BitSize == 256 || alg == "ES384" && key.Params().BitSize == 384
	}
	return false
}
