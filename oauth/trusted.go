package oauth

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"kiln/server/access"
	"kiln/server/smart"
)

// trustedIssuer is another authorization server whose access tokens are taken.
type trustedIssuer struct {
	Issuer   string `json:"issuer"`
	JWKSURI  string `json:"jwks_uri"` // "" asks its discovery document
	Audience string `json:"audience"` // "" is our FHIR base
	// Scopes maps a scope of theirs to scopes of ours, with spaces between. Without
	// it, theirs are taken as they are.
	Scopes map[string]string `json:"scopes"`
	// Allow bounds what their tokens may do here; "" is all but admin.
	Allow  string            `json:"allow"`
	Claims map[string]string `json:"claims"` // fhirUser, patient, encounter, roles: the claim that holds it

	allow smart.Scopes
}

func readTrustedIssuers(c FederationConfig) (map[string]*trustedIssuer, error) {
	out := make(map[string]*trustedIssuer)
	for i, entry := range c.TrustedIssuers {
		t := new(trustedIssuer)
		at := fmt.Sprintf("auth.federation.trusted_issuers[%d]", i)
		if err := decodeEntry(entry, t); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if t.Issuer == "" {
			return nil, fmt.Errorf("%s: issuer is missing", at)
		}
		var err error
		if t.allow, err = smart.Parse(t.Allow); err != nil {
			return nil, fmt.Errorf("%s.allow: %w", at, err)
		}
		for _, scope := range t.Scopes {
			if _, err := smart.Parse(scope); err != nil {
				return nil, fmt.Errorf("%s.scopes: %w", at, err)
			}
		}
		out[t.Issuer] = t
	}
	return out, nil
}

// verifyTrusted verifies a token of a trusted issuer: its signature by their keys,
// exp, nbf, and aud.
func (s *Server) verifyTrusted(ctx context.Context, issuer string, signed *jose.JSONWebSignature) (*verified, error) {
	t := s.others.Load().trusted[issuer]
	if t == nil {
		return nil, errToken
	}
	address := t.JWKSURI
	if address == "" {
		var err error
		if address, err = s.jwks.discover(ctx, issuer); err != nil {
			s.Logger.WarnContext(ctx, "discovery document of a trusted issuer", "issuer", issuer, "error", err)
			return nil, errToken
		}
	}
	header := signed.Signatures[0].Protected
	keys, err := s.jwks.keys(ctx, address, header.KeyID)
	if err != nil {
		s.Logger.WarnContext(ctx, "keys of a trusted issuer", "issuer", issuer, "error", err)
		return nil, errToken
	}
	var payload []byte
	for _, k := range keys {
		if (header.KeyID == "" || k.KeyID == header.KeyID) && keyFitsAlgorithm(k, header.Algorithm) {
			if payload, err = signed.Verify(k.Key); err == nil {
				break
			}
		}
	}
	if payload == nil || err != nil {
		return nil, errToken
	}
	if typ, _ := header.ExtraHeaders[jose.HeaderType].(string); strings.EqualFold(typ, "id_token") {
		return nil, errToken
	}
	var claims map[string]any
	var standard struct {
		Subject   string   `json:"sub"`
		Audience  audience `json:"aud"`
		Expires   *float64 `json:"exp"`
		NotBefore *float64 `json:"nbf"`
		Issued    float64  `json:"iat"`
		ID        string   `json:"jti"`
		ClientID  string   `json:"client_id"`
		Party     string   `json:"azp"`
		Scope     any      `json:"scope"`
		Scp       any      `json:"scp"`
		Nonce     string   `json:"nonce"`
	}
	if !readClaims(payload, &claims) || !readClaims(payload, &standard) {
		return nil, errToken
	}
	want := t.Audience
	if want == "" {
		want = s.FHIRBase
	}
	now := s.Now()
	if !slices.Contains(standard.Audience, want) || standard.Expires == nil || !timeOfSeconds(*standard.Expires).After(now) ||
		standard.NotBefore != nil && timeOfSeconds(*standard.NotBefore).After(now.Add(leeway)) || standard.Subject == "" {
		return nil, errToken
	}
	text := scopeClaim(standard.Scope)
	if text == "" {
		text = scopeClaim(standard.Scp)
	}
	scopes := t.scopes(text)
	if standard.ClientID == "" {
		standard.ClientID = standard.Party
	}
	expires := timeOfSeconds(*standard.Expires)
	p := &access.Principal{
		Subject: standard.Subject, Issuer: issuer, ClientID: standard.ClientID, Scopes: scopes, Admin: scopes.Has("admin"),
		TokenID: standard.ID, Expires: expires,
	}
	claim := func(name string) any { return claims[cmp.Or(t.Claims[name], name)] }
	// A token that names its user or patient in a way that cannot be read here is not
	// taken as one that names none, which may reach more. An encounter bounds nothing.
	var ok bool
	if p.FHIRUser, ok = s.claimedUser(claim("fhirUser")); !ok {
		return nil, errToken
	}
	p.Unbound = p.FHIRUser == "" // nobody here has created or linked the user
	if p.Patient, ok = claimedID("Patient", claim("patient")); !ok {
		return nil, errToken
	}
	p.Encounter, _ = claimedID("Encounter", claim("encounter"))
	if name := t.Claims["roles"]; name != "" {
		p.Roles = stringList(claims[name])
	}
	return &verified{
		principal: p, claims: accessClaims{Issuer: issuer, Audience: standard.Audience}, issued: timeOfSeconds(standard.Issued), expires: expires,
	}, nil
}

// scopes are the scopes of a token that this server knows. Admin and metrics are only
// granted if the configuration names them.
func (t *trustedIssuer) scopes(text string) smart.Scopes {
	var list []string
	for _, theirs := range strings.Fields(text) {
		if t.Scopes == nil {
			list = append(list, theirs)
		} else if ours, ok := t.Scopes[theirs]; ok {
			list = append(list, ours)
		}
	}
	var out smart.Scopes
	for _, one := range list {
		s, err := smart.Parse(one)
		if err != nil {
			continue // a scope of theirs that is none of ours
		}
		out.Resource = append(out.Resource, s.Resource...)
		for _, o := range s.Other {
			if (o != "admin" && o != "metrics" || t.Scopes != nil || t.allow.Has(o)) && !slices.Contains(out.Other, o) {
				out.Other = append(out.Other, o)
			}
		}
	}
	if t.Allow == "" {
		return out
	}
	out.Resource = slices.DeleteFunc(out.Resource, func(r smart.Scope) bool { return !t.allow.Covers(r.String()) })
	out.Other = slices.DeleteFunc(out.Other, func(o string) bool { return !t.allow.Has(o) })
	return out
}

func scopeClaim(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		return strings.Join(stringList(v), " ")
	}
	return ""
}

// stringList are the texts of a claim: one, or a list.
func stringList(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			if t, ok := e.(string); ok {
				out = append(out, t)
			}
		}
		return out
	}
	return nil
}

// claimedUser is a fhirUser claim as we write it, a relative reference; "" where there is
// none. ok is false for one that is there and names no user of this server: a URL names
// one only below its base, Patient/1 elsewhere is somebody else.
func (s *Server) claimedUser(claim any) (user string, ok bool) {
	if claim == nil || claim == "" {
		return "", true
	}
	text, _ := claim.(string)
	if !strings.Contains(text, ":") {
		return text, fhirUserSyntax.MatchString(text)
	}
	parts := strings.Split(text, "/")
	n := max(0, len(parts)-2)
	user = strings.Join(parts[n:], "/")
	base := strings.Join(parts[:n], "/")
	if !fhirUserSyntax.MatchString(user) || !s.ownBase(base) && !s.onLoopback(base) {
		return "", false
	}
	return user, true
}

// onLoopback reports whether a base URL is another name of this server on its machine.
func (s *Server) onLoopback(base string) bool {
	own, err := url.Parse(s.Issuer)
	if err != nil || !isLoopback(own.Hostname()) {
		return false
	}
	u, err := url.Parse(bareBase(base))
	return err == nil && isLoopback(u.Hostname()) && u.Scheme == own.Scheme && u.Port() == own.Port() && u.User == nil && u.Path == ""
}

// claimedID is the logical id in a claim that is one, or a reference to a typ; "" where
// there is none. ok is false for a claim that is there and has no id.
func claimedID(typ string, claim any) (id string, ok bool) {
	if claim == nil || claim == "" {
		return "", true
	}
	text, _ := claim.(string)
	if id = strings.TrimPrefix(text, typ+"/"); !logicalID.MatchString(id) {
		return "", false
	}
	return id, true
}

// discover returns the address of an issuer's keys. OpenID Connect Discovery §4,
// RFC 8414 §3.
func (r *remoteKeys) discover(ctx context.Context, issuer string) (string, error) {
	r.mu.Lock()
	known, at := r.addresses[issuer], r.discovered[issuer]
	r.mu.Unlock()
	if known != "" && r.now().Sub(at) < time.Hour {
		return known, nil
	}
	if !at.IsZero() && r.now().Sub(at) < keysAgain {
		return "", fmt.Errorf("the discovery document could not be read %s ago", r.now().Sub(at).Round(time.Second))
	}
	address, err := r.discoverNow(ctx, issuer)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.discovered[issuer] = r.now()
	if err != nil {
		return known, err
	}
	r.addresses[issuer] = address
	return address, nil
}

func (r *remoteKeys) discoverNow(ctx context.Context, issuer string) (string, error) {
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	err := fetchJSON(ctx, r.client, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", &doc)
	if err != nil {
		err = fetchJSON(ctx, r.client, strings.TrimSuffix(issuer, "/")+"/.well-known/oauth-authorization-server", &doc)
	}
	if err != nil {
		return "", err
	}
	if doc.Issuer != issuer || doc.JWKSURI == "" {
		return "", fmt.Errorf("the document is of issuer %q, or has no jwks_uri", doc.Issuer)
	}
	return doc.JWKSURI, nil
}
