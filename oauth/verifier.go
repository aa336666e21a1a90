package oauth

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// verified is a token that was verified, as it is kept in memory.
type verified struct {
	principal *access.Principal
	claims    accessClaims // of a token of our own; of a trusted issuer's iss and aud
	issued    time.Time
	expires   time.Time
	apiKey    bool
	own       bool      // a token of this server, not of a trusted issuer
	until     time.Time // it is verified anew then
	// launch is the launch context of the token answer, once it has been read.
	launch atomic.Pointer[storage.Context]
	// good is the number of revocations that are known not to be about it.
	good atomic.Int64
}

// maxToken bounds the size of a token, in bytes.
const maxToken = 16 << 10

// APIKeyPrefix is how every API key begins.
const APIKeyPrefix = "kiln_"

// apiKeyClient stands before the name of an API key where a client is named.
const apiKeyClient = "apikey:"

var errToken = errors.New("the token is unknown, expired or revoked")

// Verify returns the principal of a bearer token: an access token of this server (RFC 9068
// §4), an API key, or a token of a trusted issuer. A signature is verified once; later the
// token is cached and checked against the revocations in memory, without a query. It fails
// with login.
func (s *Server) Verify(ctx context.Context, token string) (*access.Principal, error) {
	v, err := s.verify(ctx, token)
	if err != nil {
		if !errors.Is(err, errToken) {
			return nil, s.options.Translate(err)
		}
		return nil, outcome.New(outcome.CodeLogin, "%s", errToken.Error())
	}
	return v.principal, nil
}

// verify fails with errToken for a token that is no good, and with another error
// where that could not be found out.
func (s *Server) verify(ctx context.Context, token string) (*verified, error) {
	if len(token) == 0 || len(token) > maxToken {
		return nil, errToken
	}
	now := s.Now()
	v, ok := s.cache.get(token, now)
	if !ok {
		if s.options.Replica != nil && s.options.Replica() != nil {
			return nil, outcome.New(outcome.CodeTransient, "the database cannot be reached, and the access token is new to this server")
		}
		since := s.cache.cleared.Load()
		var err error
		if v, err = s.verifyAnew(ctx, token); err != nil {
			return nil, err
		}
		now = s.Now() // that may have taken a while
		s.cache.set(token, v, now, since)
	}
	if !v.expires.IsZero() && !v.expires.After(now) || s.revoked.isRevoked(v) {
		return nil, errToken
	}
	return v, s.checkProxy(ctx, v.principal.FHIRUser, v.principal.Patient)
}

func (s *Server) verifyAnew(ctx context.Context, token string) (*verified, error) {
	if strings.HasPrefix(token, APIKeyPrefix) {
		return s.verifyAPIKey(ctx, token)
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.ES256, jose.ES384})
	if err != nil || len(signed.Signatures) != 1 {
		return nil, errToken
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	if !readClaims(signed.UnsafePayloadWithoutVerification(), &unverified) {
		return nil, errToken
	}
	if unverified.Issuer != s.Issuer {
		return s.verifyTrusted(ctx, unverified.Issuer, signed)
	}
	header := signed.Signatures[0].Protected
	typ, _ := header.ExtraHeaders[jose.HeaderType].(string)
	if typ = strings.ToLower(typ); typ != accessType && typ != "application/"+accessType {
		return nil, errToken // an ID token is no access token
	}
	key := s.keys.findKey(ctx, header.KeyID)
	if key == nil || header.Algorithm != key.Algorithm {
		return nil, errToken
	}
	payload, err := signed.Verify(key.public.Key)
	if err != nil {
		return nil, errToken
	}
	var c accessClaims
	if !readClaims(payload, &c) {
		return nil, errToken
	}
	if time.Unix(c.NotBefore, 0).After(s.Now().Add(leeway)) {
		return nil, errToken
	}
	if !slices.Contains(c.Audience, s.FHIRBase) || c.ID == "" || c.ClientID == "" {
		return nil, errToken
	}
	v := &verified{claims: c, own: true, issued: issuedAt(c.ID, c.Issued), expires: time.Unix(c.Expires, 0)}
	if v.principal, err = s.principal(ctx, c); err != nil {
		return nil, err
	}
	v.principal.KeyID = key.Kid
	// Other servers may have revoked it while this one was not running.
	return v, s.stillGood(ctx, v)
}

// principal is on whose behalf a request with these claims runs.
func (s *Server) principal(ctx context.Context, c accessClaims) (*access.Principal, error) {
	scopes, err := smart.Parse(c.Scope)
	if err != nil {
		return nil, errToken
	}
	p := &access.Principal{
		Subject: c.Subject, ClientID: c.ClientID, Scopes: scopes, Patient: c.Patient, Encounter: c.Encounter, FHIRUser: c.FHIRUser,
		Admin: scopes.Has("admin"), TokenID: c.ID, SessionID: c.SessionID, Expires: time.Unix(c.Expires, 0),
	}
	if c.SessionID != "" {
		u, err := s.Store.User(ctx, c.Subject)
		switch {
		case errors.Is(err, storage.ErrNotFound) || err == nil && !u.Active:
			return nil, errToken
		case err != nil:
			return nil, err
		}
		p.Roles, p.Unbound = u.Roles, c.FHIRUser == "" && u.Unbound()
	}
	return p, nil
}

// stillGood reads the revocations before the first use of a token, and the client's
// origins: when they change, tokens leave the cache.
func (s *Server) stillGood(ctx context.Context, v *verified) error {
	c, err := s.Store.GetClient(ctx, v.principal.ClientID)
	if err != nil {
		if isNotFound(err) {
			return errToken
		}
		return err
	}
	if client, ok := c.(*storage.Client); ok {
		v.principal.Origins = client.AllowedOrigins
	}
	return nil
}

func (s *Server) verifyAPIKey(ctx context.Context, token string) (*verified, error) {
	hash := storage.Hash(token)
	// The id is the hash's beginning, so that a key is found by its own bytes.
	k, err := s.Store.APIKey(ctx, apiKeyID(hash))
	switch {
	case errors.Is(err, storage.ErrNotFound) || err == nil && (k.Hash != hash || k.Revoked):
		return nil, errToken
	case err != nil:
		return nil, err
	}
	scopes, err := smart.Parse(k.Scope)
	if err != nil {
		return nil, errToken
	}
	v := &verified{apiKey: true, issued: k.Created, principal: &access.Principal{
		Subject: k.Name, ClientID: apiKeyClient + k.Name, Scopes: scopes, Admin: scopes.Has("admin"), APIKey: true, TokenID: k.ID,
	}}
	if k.Expires.Before(storage.Never) {
		v.expires, v.principal.Expires = k.Expires, k.Expires
	}
	return v, nil
}

func apiKeyID(hash string) string { return hash[:16] }

// lookupGrant serves storage.Store: the grant of an access token of ours.
func (s *Server) lookupGrant(ctx context.Context, token string) (grant, client, jti string, err error) {
	v, err := s.verify(ctx, token)
	if errors.Is(err, errToken) || err == nil && !v.own {
		return "", "", "", storage.ErrNotFound
	}
	if err != nil {
		return "", "", "", err
	}
	return v.principal.SessionID, v.principal.ClientID, v.principal.TokenID, nil
}
