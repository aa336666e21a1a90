package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	exactjson "github.com/go-jose/go-jose/v4/json"
	"github.com/google/uuid"
	"github.com/ory/fosite"

	"kiln/oauth/storage"
)

// accessClaims are the claims of an access token. RFC 9068 §2.2; no personal data.
type accessClaims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expires   int64    `json:"exp"`
	NotBefore int64    `json:"nbf,omitempty"`
	Issued    int64    `json:"iat"`
	ID        string   `json:"jti"`
	ClientID  string   `json:"client_id"`
	Scope     string   `json:"scope"`
	Patient   string   `json:"patient,omitempty"`
	Encounter string   `json:"encounter,omitempty"`
	FHIRUser  string   `json:"fhirUser,omitempty"`
	SessionID string   `json:"sid,omitempty"`
}

// audience is one text or a list. RFC 7519 §4.1.3.
type audience []string

// MarshalJSON writes one as a text.
func (a audience) MarshalJSON() ([]byte, error) {
	if len(a) == 1 {
		return json.Marshal(a[0])
	}
	return json.Marshal([]string(a))
}

// UnmarshalJSON reads a text or a list.
func (a *audience) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// readClaims reads the claims of a JWT by their names as they stand, each once: RFC 7519
// §4, §7.3. The decoder of the standard library takes ISS for iss.
func readClaims(payload []byte, into any) bool { return exactjson.Unmarshal(payload, into) == nil }

const accessType = "at+jwt"

// maxAccess bounds the lifetime of an access token: for longer it is known which are revoked.
const maxAccess = 365 * 24 * time.Hour

// minLifetime is the least lifetime of a token, which is told in seconds.
const minLifetime = time.Second

// tokens makes and reads tokens. It is fosite's CoreStrategy: codes and refresh
// tokens are 256 random bits that are stored as SHA-256, access tokens JWTs that
// are their own signature.
type tokens struct {
	s *Server
}

// sign makes a JWT that is good until expires, in seconds as in its exp.
func (t tokens) sign(ctx context.Context, alg string, typ jose.ContentType, expires int64, claims any) (string, error) {
	key, err := t.s.keys.currentKey(ctx, alg, time.Unix(expires, 0))
	if err != nil {
		return "", err
	}
	signer, err := key.signer(typ)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(b)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return signed.CompactSerialize()
}

// AccessTokenSignature is the token itself.
func (t tokens) AccessTokenSignature(_ context.Context, token string) string { return token }

// GenerateAccessToken makes the JWT of a request.
func (t tokens) GenerateAccessToken(ctx context.Context, r fosite.Requester) (string, string, error) {
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return "", "", fmt.Errorf("the session is a %T", r.GetSession())
	}
	// fosite reckons by the clock of the machine.
	expires := t.s.Now().Add(time.Until(session.GetExpiresAt(fosite.AccessToken)).Round(time.Second))
	c := accessClaims{
		Subject: session.Subject, Expires: expires.Unix(),
		ClientID: r.GetClient().GetID(), Scope: strings.Join(r.GetGrantedScopes(), " "),
	}
	if session.Username != "" {
		c.SessionID = r.GetID()
		c.Patient, c.Encounter = session.Context.Patient, session.Context.Encounter
		c.FHIRUser = session.Context.FHIRUser
	}
	token, err := t.accessToken(ctx, c)
	return token, token, err
}

// accessToken fills in what every access token says, and signs it.
func (t tokens) accessToken(ctx context.Context, c accessClaims) (string, error) {
	c.Issuer, c.Audience = t.s.Issuer, audience{t.s.FHIRBase}
	c.Issued, c.ID = t.s.Now().Unix(), newTokenID(t.s.Now())
	return t.sign(ctx, t.s.Config().Signing.Algorithm, accessType, c.Expires, c)
}

// newTokenID is a UUID of version 7 in base64url, which is shorter in every request: it says
// to the millisecond when the token was made, which iat does to the second.
func newTokenID(now time.Time) string {
	id := uuid.Must(uuid.NewRandom())
	ms := now.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i)))
	}
	id[6] = 0x70 | id[6]&0x0F
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// issuedAt is when a token id was made, or iat.
func issuedAt(jti string, iat int64) time.Time {
	var id uuid.UUID
	b, err := base64.RawURLEncoding.DecodeString(jti)
	if err == nil {
		id, err = uuid.FromBytes(b)
	}
	if err != nil { // a token of a server before this one has the UUID as text
		id, err = uuid.Parse(jti)
	}
	if err != nil || id.Version() != 7 {
		return time.Unix(iat, 0)
	}
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}

// ValidateAccessToken is not asked: the Verifier verifies.
func (t tokens) ValidateAccessToken(ctx context.Context, _ fosite.Requester, token string) error {
	_, err := t.s.verify(ctx, token)
	return err
}

// RefreshTokenSignature is how a refresh token is stored.
func (t tokens) RefreshTokenSignature(_ context.Context, token string) string {
	return storage.Hash(token)
}

// GenerateRefreshToken makes a refresh token, and bounds its lifetime if the request lacked
// offline_access.
func (t tokens) GenerateRefreshToken(_ context.Context, r fosite.Requester) (string, string, error) {
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return "", "", fmt.Errorf("the session is a %T", r.GetSession())
	}
	granted := r.GetGrantedScopes()
	if len(session.Granted) > 0 {
		granted = session.Granted // of the family, however narrow this request is
	}
	session.SetExpiresAt(fosite.RefreshToken, refreshEnds(session, granted))
	token := randomText()
	return token, storage.Hash(token), nil
}

// ValidateRefreshToken fails for one that has expired.
func (t tokens) ValidateRefreshToken(_ context.Context, r fosite.Requester, _ string) error {
	if at := usableUntil(r); !at.IsZero() && !at.After(t.s.Now()) {
		return fosite.ErrTokenExpired
	}
	return nil
}

// AuthorizeCodeSignature is how a code is stored.
func (t tokens) AuthorizeCodeSignature(_ context.Context, token string) string {
	return storage.Hash(token)
}

// GenerateAuthorizeCode makes a code.
func (t tokens) GenerateAuthorizeCode(context.Context, fosite.Requester) (string, string, error) {
	token := randomText()
	return token, storage.Hash(token), nil
}

// ValidateAuthorizeCode looks at the code's own session: fosite asks before it has
// given it to the request.
func (t tokens) ValidateAuthorizeCode(ctx context.Context, _ fosite.Requester, code string) error {
	r, err := t.s.Store.GetAuthorizeCodeSession(ctx, storage.Hash(code), nil)
	if err != nil && !errors.Is(err, fosite.ErrInvalidatedAuthorizeCode) {
		return err
	}
	return t.unexpired(r, fosite.AuthorizeCode)
}

func (t tokens) unexpired(r fosite.Requester, kind fosite.TokenType) error {
	if at := r.GetSession().GetExpiresAt(kind); !at.IsZero() && !at.After(t.s.Now()) {
		return fosite.ErrTokenExpired
	}
	return nil
}

// idClaims are the claims of an ID token. OpenID Connect Core §2.
type idClaims struct {
	Issuer          string `json:"iss"`
	Subject         string `json:"sub"`
	Audience        string `json:"aud"`
	Expires         int64  `json:"exp"`
	Issued          int64  `json:"iat"`
	ID              string `json:"jti"`
	AuthTime        int64  `json:"auth_time,omitempty"`
	Nonce           string `json:"nonce,omitempty"`
	AccessTokenHash string `json:"at_hash,omitempty"`
	SessionID       string `json:"sid,omitempty"`
	AuthorizedParty string `json:"azp,omitempty"`
	FHIRUser        string `json:"fhirUser,omitempty"`
	Profile         string `json:"profile,omitempty"`
	Name            string `json:"name,omitempty"`
	Username        string `json:"preferred_username,omitempty"`
	Email           string `json:"email,omitempty"`
}

// idTokenLifetime is how long an ID token is good.
const idTokenLifetime = time.Hour

// idToken makes the ID token that goes with an access token.
func (t tokens) idToken(ctx context.Context, r fosite.Requester, access string) (string, error) {
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return "", fmt.Errorf("the session is a %T", r.GetSession())
	}
	client, ok := r.GetClient().(*storage.Client)
	if !ok {
		return "", fmt.Errorf("the client is a %T", r.GetClient())
	}
	alg := client.IDTokenSigningAlg
	if alg == "" {
		alg = "RS256"
	}
	now := t.s.Now()
	c := idClaims{
		Issuer: t.s.Issuer, Subject: session.Subject, Audience: client.ID,
		Expires: now.Add(idTokenLifetime).Unix(), Issued: now.Unix(), ID: newTokenID(now),
		AuthTime: session.AuthTime.Unix(), Nonce: session.Nonce, AccessTokenHash: accessTokenHash(alg, access), SessionID: r.GetID(),
	}
	scopes := r.GetGrantedScopes()
	if scopes.Has("fhirUser") {
		c.FHIRUser = session.Context.FHIRUser
	}
	if scopes.Has("profile") {
		if c.Profile = session.Context.FHIRUser; c.FHIRUser == "" {
			c.FHIRUser = c.Profile
		}
		u, err := t.s.Store.User(ctx, session.Username)
		if err != nil {
			return "", err
		}
		c.Name, c.Username, c.Email = u.Name, u.Username, u.Email
	}
	return t.sign(ctx, alg, "JWT", c.Expires, c)
}

// accessTokenHash is at_hash: the left half of the hash that the ID token's
// algorithm uses. OpenID Connect Core §3.1.3.6.
func accessTokenHash(alg, access string) string {
	var h hash.Hash = sha256.New()
	if strings.HasSuffix(alg, "384") {
		h = sha512.New384()
	}
	h.Write([]byte(access))
	sum := h.Sum(nil)
	return base64.RawURLEncoding.EncodeToString(sum[:len(sum)/2])
}
