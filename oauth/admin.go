package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"kiln/oauth/storage"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// Admin manages clients, users, signing keys and API keys, on the database alone:
// /admin/clients and kiln admin work by it alike.
type Admin struct {
	Store *storage.Store
	// Config is the configuration in force. It is read at each use, because parts of it can
	// change while a server runs.
	Config func() Config
	// Records answers whether a user's FHIR resource exists, and whether a scope can match a resource;
	// nil does not ask.
	Records interface {
		Exists(ctx context.Context, reference string) (bool, error)
		Means(ctx context.Context, scope smart.Scope) bool
	}
	Now func() time.Time
	// Revoked is called after something was revoked, so that the server that did it
	// knows at once; nil where there is none.
	Revoked func(ctx context.Context)

	keys *keyring
}

// NewAdmin returns an Admin on a store, with a configuration that stays.
func NewAdmin(store *storage.Store, c Config) *Admin {
	a := &Admin{Store: store, Config: func() Config { return c }, Now: time.Now}
	a.keys = &keyring{
		store: store, sealing: c.Signing.EncryptionKey, now: func() time.Time { return a.Now() },
		rotation: func() time.Duration { return time.Duration(a.Config().Signing.KeyRotationDays) * 24 * time.Hour },
	}
	a.keys.keys.Store(new([]*signingKey))
	return a
}

func (a *Admin) announceChange(ctx context.Context) {
	if a.Revoked != nil {
		a.Revoked(ctx)
	}
}

// invalidRequest is a field that is not acceptable.
func invalidRequest(format string, args ...any) error {
	return outcome.New(outcome.CodeInvalid, format, args...)
}

// ClientAnswer is a client as it is shown; ClientSecret only once, when it is new.
type ClientAnswer struct {
	*storage.Client
	ClientSecret string    `json:"clientSecret,omitempty"`
	Created      time.Time `json:"created,omitzero"`
	Updated      time.Time `json:"updated,omitzero"`
	// Hides a fact that is not shown.
	AnySecretMethod bool `json:"anySecretMethod,omitempty"`
}

func showClient(c *storage.Client, secret string) *ClientAnswer {
	return &ClientAnswer{Client: c, ClientSecret: secret, Created: c.Created, Updated: c.Updated}
}

// CreateClient makes a client. It fails with conflict where the id is taken.
func (a *Admin) CreateClient(ctx context.Context, body []byte) (*ClientAnswer, error) {
	var b clientBody
	if err := decodeStrict(body, &b); err != nil {
		return nil, invalidRequest("%s", err)
	}
	if err := errConsoleClient(b.ClientID); err != nil {
		return nil, err
	}
	if strings.HasPrefix(b.ClientID, appClientID("")) {
		return nil, invalidRequest("clientId is %q: %s stands before the ids of Apps, whose clients Kiln makes", b.ClientID, appClientID(""))
	}
	c, err := a.client(b)
	if err == nil {
		err = a.checkUsable(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	secret, err := a.newSecret(ctx, c, b.ClientSecret)
	if err != nil {
		return nil, err
	}
	err = a.Store.CreateClient(ctx, c)
	if errors.Is(err, storage.ErrExists) {
		return nil, outcome.New(outcome.CodeConflict, "there is a client %q already", c.ID)
	}
	if err != nil {
		return nil, err
	}
	if c, err = a.Store.Client(ctx, c.ID); err != nil {
		return nil, err
	}
	return showClient(c, secret), nil
}

// newSecret gives a client that needs one a secret: the chosen one, or a made one.
func (a *Admin) newSecret(ctx context.Context, c *storage.Client, chosen string) (secret string, err error) {
	if c.TokenEndpointAuthMethod != storage.MethodBasic && c.TokenEndpointAuthMethod != storage.MethodPost {
		c.Secret = ""
		return "", nil
	}
	if chosen != "" {
		c.Secret, err = hashPassword(ctx, chosen)
		return chosen, err
	}
	secret = randomText()
	c.Secret = hashMade(secret)
	return secret, nil
}

// Client returns a client.
func (a *Admin) Client(ctx context.Context, id string) (*ClientAnswer, error) {
	c, err := a.Store.Client(ctx, id)
	if err != nil {
		return nil, noSuch(err, "client", id)
	}
	return showClient(c, ""), nil
}

func noSuch(err error, what, id string) error {
	if errors.Is(err, storage.ErrNotFound) {
		return outcome.New(outcome.CodeNotFound, "there is no %s %q", what, id)
	}
	return err
}

// Clients returns every client.
func (a *Admin) Clients(ctx context.Context) ([]*ClientAnswer, error) {
	list, err := a.Store.Clients(ctx)
	out := make([]*ClientAnswer, len(list))
	for i, c := range list {
		out[i] = showClient(c, "")
	}
	return out, err
}

// ReplaceClient replaces a client. Its secret stays where it needs one and body has
// none.
func (a *Admin) ReplaceClient(ctx context.Context, id string, body []byte) (*ClientAnswer, error) {
	if err := errConsoleClient(id); err != nil {
		return nil, err
	}
	old, err := a.Store.Client(ctx, id)
	if err != nil {
		return nil, noSuch(err, "client", id)
	}
	var b clientBody
	if err := decodeStrict(body, &b); err != nil {
		return nil, invalidRequest("%s", err)
	}
	if b.ClientID != "" && b.ClientID != id {
		return nil, invalidRequest("clientId is %q, but the path has %q", b.ClientID, id)
	}
	b.ClientID = id
	c, err := a.client(b)
	if err == nil && !isSameReach(c, old) {
		err = a.checkUsable(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	if c.TokenEndpointAuthMethod == storage.MethodBasic && old.AnySecretMethod && b.TokenEndpointAuthMethod == storage.MethodBasic {
		c.AnySecretMethod = true // the answer named the default, and comes back
	}
	secret := ""
	c.Secret = old.Secret
	secretMethod := c.TokenEndpointAuthMethod == storage.MethodBasic || c.TokenEndpointAuthMethod == storage.MethodPost
	if !secretMethod || b.ClientSecret != "" || old.Secret == "" {
		if secret, err = a.newSecret(ctx, c, b.ClientSecret); err != nil {
			return nil, err
		}
	}
	if err := a.Store.UpdateClient(ctx, c); err != nil {
		return nil, noSuch(err, "client", id)
	}
	if !slices.Equal(old.AllowedOrigins, c.AllowedOrigins) {
		if err := a.Store.Revoke(ctx, storage.KindChanged, []string{id}); err != nil {
			return nil, err
		}
		a.announceChange(ctx)
	}
	was, err1 := smart.Parse(strings.Join(old.Scopes, " "))
	is, err2 := smart.Parse(strings.Join(c.Scopes, " "))
	if old.Active && !c.Active || err1 != nil || err2 != nil || !was.Within(is) {
		if err := a.revokeClient(ctx, id); err != nil {
			return nil, err
		}
	}
	if c, err = a.Store.Client(ctx, id); err != nil {
		return nil, err
	}
	return showClient(c, secret), nil
}

func (a *Admin) revokeClient(ctx context.Context, id string) error {
	_, err := a.Store.RevokeClient(ctx, id)
	a.announceChange(ctx)
	return err
}

// PatchClient changes a client by a JSON merge patch. RFC 7396.
func (a *Admin) PatchClient(ctx context.Context, id string, patch []byte) (*ClientAnswer, error) {
	old, err := a.Client(ctx, id)
	if err != nil {
		return nil, err
	}
	merged, err := mergePatch(old, patch)
	if err != nil {
		return nil, err
	}
	return a.ReplaceClient(ctx, id, merged)
}

func mergePatch(v any, patch []byte) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var target, changes map[string]json.RawMessage
	if err := json.Unmarshal(b, &target); err != nil {
		return nil, err
	}
	if json.Unmarshal(patch, &changes) != nil || changes == nil {
		return nil, invalidRequest("expected a JSON object of the fields to change")
	}
	for field, value := range changes {
		if string(value) == "null" {
			delete(target, field)
			continue
		}
		target[field] = value
	}
	return json.Marshal(target)
}

// DeleteClient deletes a client; its tokens are no longer good.
func (a *Admin) DeleteClient(ctx context.Context, id string) error {
	if err := errConsoleClient(id); err != nil {
		return err
	}
	if err := a.Store.DeleteClient(ctx, id); err != nil {
		return noSuch(err, "client", id)
	}
	return a.revokeClient(ctx, id)
}

// NewClientSecret gives a client another secret: chosen, or a made one where that
// is "".
func (a *Admin) NewClientSecret(ctx context.Context, id, chosen string) (*ClientAnswer, error) {
	if err := errConsoleClient(id); err != nil {
		return nil, err
	}
	c, err := a.Store.Client(ctx, id)
	if err != nil {
		return nil, noSuch(err, "client", id)
	}
	secret, err := a.newSecret(ctx, c, chosen)
	if err != nil {
		return nil, err
	}
	if secret == "" {
		return nil, invalidRequest("the client %q has no secret: its tokenEndpointAuthMethod is %s", id, c.TokenEndpointAuthMethod)
	}
	if err := a.Store.UpdateClient(ctx, c); err != nil {
		return nil, noSuch(err, "client", id)
	}
	return showClient(c, secret), nil
}

// UserAnswer is a user as it is shown; Password only once, when it was made.
type UserAnswer struct {
	*storage.User
	Password string    `json:"password,omitempty"`
	Created  time.Time `json:"created,omitzero"`
	Updated  time.Time `json:"updated,omitzero"`
}

func showUser(u *storage.User, password string) *UserAnswer {
	return &UserAnswer{User: u, Password: password, Created: u.Created, Updated: u.Updated}
}

type userBody struct {
	Username string   `json:"username"`
	Password string   `json:"password"`
	Name     string   `json:"name"`
	Email    string   `json:"email"`
	FHIRUser string   `json:"fhirUser"`
	Roles    []string `json:"roles"`
	Active   *bool    `json:"active"`
	Created  any      `json:"created"`
	Updated  any      `json:"updated"`
}

var (
	fhirUserSyntax = regexp.MustCompile(`^(Practitioner|Patient|RelatedPerson|Person)/[A-Za-z0-9\-.]{1,64}$`)
	roleSyntax     = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
)

// Bounds of a password, in characters and bytes.
const (
	minPassword = 12
	maxPassword = 1024
)

func checkPassword(username, password string) error {
	switch {
	case utf8.RuneCountInString(password) < minPassword:
		return invalidRequest("password: expected at least %d characters", minPassword)
	case len(password) > maxPassword:
		return invalidRequest("password: expected at most %d bytes", maxPassword)
	case strings.EqualFold(password, username):
		return invalidRequest("password: expected something else than the username")
	}
	return nil
}

func (a *Admin) user(ctx context.Context, b userBody, bootstrap bool) (*storage.User, error) {
	u := &storage.User{Username: b.Username, Name: b.Name, Email: b.Email, FHIRUser: b.FHIRUser, Roles: orEmpty(b.Roles), Active: b.Active == nil || *b.Active}
	if n := len(u.Username); n == 0 || n > 200 || !utf8.ValidString(u.Username) || strings.TrimSpace(u.Username) != u.Username || strings.ContainsFunc(u.Username, unicode.IsControl) {
		return nil, invalidRequest("username is %q: expected 1 to 200 bytes of text without control characters and outer spaces", u.Username)
	}
	for field, text := range map[string]string{"name": u.Name, "email": u.Email} {
		if len(text) > 200 || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return nil, invalidRequest("%s: expected up to 200 bytes of text without control characters", field)
		}
	}
	if u.Email != "" && strings.Count(u.Email, "@") != 1 {
		return nil, invalidRequest("email is %q: expected an address such as name@example.org", u.Email)
	}
	for _, role := range u.Roles {
		if !roleSyntax.MatchString(role) {
			return nil, invalidRequest("roles has %q: expected up to 64 letters, digits and . _ : -", role)
		}
	}
	if u.FHIRUser != "" {
		if !fhirUserSyntax.MatchString(u.FHIRUser) {
			return nil, invalidRequest("fhirUser is %q: expected Practitioner/id, Patient/id, RelatedPerson/id or Person/id", u.FHIRUser)
		}
		if a.Records != nil && !bootstrap {
			ok, err := a.Records.Exists(ctx, u.FHIRUser)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, invalidRequest("fhirUser is %q, which does not exist", u.FHIRUser)
			}
		}
	}
	return u, nil
}

// CreateUser makes a user, with a made password where body has none.
func (a *Admin) CreateUser(ctx context.Context, body []byte) (*UserAnswer, error) {
	return a.createUser(ctx, body, false)
}

func (a *Admin) createUser(ctx context.Context, body []byte, bootstrap bool) (*UserAnswer, error) {
	var b userBody
	if err := decodeStrict(body, &b); err != nil {
		return nil, invalidRequest("%s", err)
	}
	u, err := a.user(ctx, b, bootstrap)
	if err != nil {
		return nil, err
	}
	made := ""
	if b.Password == "" {
		b.Password = randomText()[:24]
		made = b.Password
	}
	if err := checkPassword(u.Username, b.Password); err != nil {
		return nil, err
	}
	if u.Password, err = hashPassword(ctx, b.Password); err != nil {
		return nil, err
	}
	err = a.Store.CreateUser(ctx, u)
	if errors.Is(err, storage.ErrExists) {
		return nil, outcome.New(outcome.CodeConflict, "there is a user %q already", u.Username)
	}
	if err != nil {
		return nil, err
	}
	if u, err = a.Store.User(ctx, u.Username); err != nil {
		return nil, err
	}
	return showUser(u, made), nil
}

// User returns a user.
func (a *Admin) User(ctx context.Context, username string) (*UserAnswer, error) {
	u, err := a.Store.User(ctx, username)
	if err != nil {
		return nil, noSuch(err, "user", username)
	}
	return showUser(u, ""), nil
}

// Users returns every user.
func (a *Admin) Users(ctx context.Context) ([]*UserAnswer, error) {
	list, err := a.Store.Users(ctx)
	out := make([]*UserAnswer, len(list))
	for i, u := range list {
		out[i] = showUser(u, "")
	}
	return out, err
}

// ReplaceUser replaces a user; the password stays where body has none. The user's
// tokens end when the user is disabled, or may see something else.
func (a *Admin) ReplaceUser(ctx context.Context, username string, body []byte) (*UserAnswer, error) {
	old, err := a.Store.User(ctx, username)
	if err != nil {
		return nil, noSuch(err, "user", username)
	}
	var b userBody
	if err := decodeStrict(body, &b); err != nil {
		return nil, invalidRequest("%s", err)
	}
	if b.Username != "" && b.Username != username {
		return nil, invalidRequest("username is %q, but the path has %q", b.Username, username)
	}
	b.Username = username
	u, err := a.user(ctx, b, b.FHIRUser == old.FHIRUser)
	if err != nil {
		return nil, err
	}
	u.Password, u.Federation = old.Password, old.Federation
	if b.Password != "" {
		if err := checkPassword(username, b.Password); err != nil {
			return nil, err
		}
		if u.Password, err = hashPassword(ctx, b.Password); err != nil {
			return nil, err
		}
	}
	if err := a.Store.UpdateUser(ctx, u); err != nil {
		return nil, noSuch(err, "user", username)
	}
	if old.Active && !u.Active || u.Password != old.Password || u.FHIRUser != old.FHIRUser || !slices.Equal(u.Roles, old.Roles) {
		if err := a.revokeUser(ctx, username); err != nil {
			return nil, err
		}
	}
	if u, err = a.Store.User(ctx, username); err != nil {
		return nil, err
	}
	return showUser(u, ""), nil
}

func (a *Admin) revokeUser(ctx context.Context, username string) error {
	_, err := a.Store.RevokeUser(ctx, username)
	a.announceChange(ctx)
	return err
}

// PatchUser changes a user by a JSON merge patch.
func (a *Admin) PatchUser(ctx context.Context, username string, patch []byte) (*UserAnswer, error) {
	old, err := a.User(ctx, username)
	if err != nil {
		return nil, err
	}
	merged, err := mergePatch(old, patch)
	if err != nil {
		return nil, err
	}
	return a.ReplaceUser(ctx, username, merged)
}

// DeleteUser deletes a user; the user's tokens are no longer good.
func (a *Admin) DeleteUser(ctx context.Context, username string) error {
	if err := a.Store.DeleteUser(ctx, username); err != nil {
		return noSuch(err, "user", username)
	}
	return a.revokeUser(ctx, username)
}

// NewPassword gives a user another password: chosen, or a made one where that is "",
// which is answered. It ends a lockout and the user's tokens.
func (a *Admin) NewPassword(ctx context.Context, username, chosen string) (*UserAnswer, error) {
	u, err := a.Store.User(ctx, username)
	if err != nil {
		return nil, noSuch(err, "user", username)
	}
	made := ""
	if chosen == "" {
		made = randomText()[:24]
		chosen = made
	}
	if err := checkPassword(username, chosen); err != nil {
		return nil, err
	}
	if u.Password, err = hashPassword(ctx, chosen); err != nil {
		return nil, err
	}
	if err := a.Store.UpdateUser(ctx, u); err != nil {
		return nil, noSuch(err, "user", username)
	}
	if err := a.Store.ClearAllFailures(ctx, failureSubject(username)); err != nil {
		return nil, err
	}
	return showUser(u, made), a.revokeUser(ctx, username)
}

// APIKeyAnswer is an API key as it is shown; Key only once, when it is made.
type APIKeyAnswer struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Scope   string     `json:"scope"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"` // null for never
	Revoked bool       `json:"revoked"`
	Key     string     `json:"key,omitempty"`
}

func showAPIKey(k storage.APIKey, key string) *APIKeyAnswer {
	a := &APIKeyAnswer{ID: k.ID, Name: k.Name, Scope: k.Scope, Created: k.Created, Revoked: k.Revoked, Key: key}
	if k.Expires.Before(storage.Never) {
		a.Expires = &k.Expires
	}
	return a
}

// CreateAPIKey makes an API key. expires "" means never.
func (a *Admin) CreateAPIKey(ctx context.Context, name, scope, expires string) (*APIKeyAnswer, error) {
	scopes, err := smart.Parse(scope)
	if err != nil {
		return nil, invalidRequest("scope: %s", err)
	}
	if scopes.Empty() {
		return nil, invalidRequest("scope is empty: expected system scopes, admin or metrics")
	}
	for _, r := range scopes.Resource {
		if r.Context != smart.System {
			return nil, invalidRequest("scope has %s: an API key has no user and no patient, so expected system/…", r)
		}
	}
	for _, o := range scopes.Other {
		if !smart.WithoutUser(o) {
			return nil, invalidRequest("scope has %s: expected system/…, admin, metrics or launch/context", o)
		}
	}
	if name == "" {
		name = "unnamed"
	}
	if len(name) > 200 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return nil, invalidRequest("name: expected up to 200 bytes of text without control characters")
	}
	d, err := storage.ParseLifetime(expires)
	if err != nil {
		return nil, invalidRequest("expires: %s", err)
	}
	key := APIKeyPrefix + randomText()
	hash := storage.Hash(key)
	k := storage.APIKey{ID: apiKeyID(hash), Hash: hash, Name: name, Scope: scopes.String(), Created: a.Now(), Expires: storage.Never}
	if d > 0 {
		k.Expires = a.Now().Add(d)
	}
	if err := a.Store.CreateAPIKey(ctx, k); err != nil {
		return nil, err
	}
	return showAPIKey(k, key), nil
}

// APIKeys returns every API key.
func (a *Admin) APIKeys(ctx context.Context) ([]*APIKeyAnswer, error) {
	list, err := a.Store.APIKeys(ctx)
	out := make([]*APIKeyAnswer, len(list))
	for i, k := range list {
		out[i] = showAPIKey(k, "")
	}
	return out, err
}

// RevokeAPIKey revokes an API key, by its id or by the key itself.
func (a *Admin) RevokeAPIKey(ctx context.Context, id string) error {
	if strings.HasPrefix(id, APIKeyPrefix) {
		id = apiKeyID(storage.Hash(id))
	}
	if err := a.Store.RevokeAPIKey(ctx, id); err != nil {
		return noSuch(err, "API key", id)
	}
	a.announceChange(ctx)
	return nil
}

// DeleteAPIKey ends an API key that was made for one question, and leaves nothing of it
// in the list.
func (a *Admin) DeleteAPIKey(ctx context.Context, key string) error {
	if err := a.Store.DeleteAPIKey(ctx, apiKeyID(storage.Hash(key))); err != nil {
		return err
	}
	a.announceChange(ctx)
	return nil
}

// KeyAnswer is a signing key as it is shown.
type KeyAnswer struct {
	ID             string     `json:"kid"`
	Algorithm      string     `json:"algorithm"`
	State          string     `json:"state"` // next, signing, retired
	Sealed         bool       `json:"sealed"`
	Created        time.Time  `json:"created"`
	SignsFrom      time.Time  `json:"signsFrom"`
	PublishedUntil *time.Time `json:"publishedUntil"`
}

// SigningKeys returns the published signing keys, after making those that are
// missing.
func (a *Admin) SigningKeys(ctx context.Context) ([]*KeyAnswer, error) {
	if err := a.EnsureKeys(ctx); err != nil {
		return nil, err
	}
	now := a.Now()
	out := []*KeyAnswer{}
	for _, k := range *a.keys.keys.Load() {
		if !k.PublishedUntil.After(now) {
			continue
		}
		answer := &KeyAnswer{ID: k.Kid, Algorithm: k.Algorithm, Sealed: k.Sealed, Created: k.Created, SignsFrom: k.SignsFrom, State: "retired"}
		if k.PublishedUntil.Before(storage.Never) {
			until := k.PublishedUntil
			answer.PublishedUntil = &until
		}
		switch {
		case k.SignsFrom.After(now):
			answer.State = "next"
		case a.keys.findSigningKey(k.Algorithm) == k:
			answer.State = "signing"
		}
		out = append(out, answer)
	}
	return out, nil
}

// EnsureKeys makes the signing keys that are missing, and the next of old ones.
func (a *Admin) EnsureKeys(ctx context.Context) error {
	algs := []string{a.Config().Signing.Algorithm}
	if algs[0] != "RS256" {
		algs = append(algs, "RS256") // OpenID Connect demands it of ID tokens
	}
	return a.keys.ensureKey(ctx, algs...)
}

// RotateKeys makes the next signing keys. They sign after a day, or at once: then the keys
// until now are withdrawn, and their tokens end.
func (a *Admin) RotateKeys(ctx context.Context, atOnce bool) error {
	if err := a.EnsureKeys(ctx); err != nil {
		return err
	}
	if err := a.keys.rotateKeys(ctx, atOnce); err != nil {
		return err
	}
	return a.tellKeys(ctx)
}

// RevokeKey withdraws a signing key from verification and publication, on every server; its
// tokens end. Another key signs instead. It fails with not-found for a key that is not published.
func (a *Admin) RevokeKey(ctx context.Context, kid string) error {
	if err := a.keys.revokeKey(ctx, kid); err != nil {
		return noSuch(err, "signing key", kid)
	}
	return a.tellKeys(ctx)
}

// tellKeys makes every server read the signing keys again.
func (a *Admin) tellKeys(ctx context.Context) error {
	err := a.Store.Revoke(ctx, storage.KindChanged, []string{storage.ChangedKeys})
	a.announceChange(ctx)
	return err
}

// Bootstrap makes the clients and users of the configuration that are absent.
func (s *Server) Bootstrap(ctx context.Context) error {
	for i, entry := range s.Config().Bootstrap.Clients {
		body, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		if id, ok := entry["clientId"].(string); ok {
			if _, err := s.Store.Client(ctx, id); err == nil {
				continue
			}
		} else {
			return fmt.Errorf("auth.bootstrap.clients[%d]: clientId is missing", i)
		}
		if _, err := s.CreateClient(ctx, body); err != nil && !isConflict(err) {
			return fmt.Errorf("auth.bootstrap.clients[%d]: %w", i, err)
		}
	}
	for i, entry := range s.Config().Bootstrap.Users {
		body, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		name, _ := entry["username"].(string)
		if _, err := s.Store.User(ctx, name); err == nil {
			continue
		}
		if password, _ := entry["password"].(string); password == "" {
			return fmt.Errorf("auth.bootstrap.users[%d]: password is missing", i)
		}
		u, err := s.createUser(ctx, body, true)
		if err != nil && !isConflict(err) {
			return fmt.Errorf("auth.bootstrap.users[%d]: %w", i, err)
		}
		// On an empty database it may be stored later.
		if err == nil && u.FHIRUser != "" && s.Records != nil {
			if ok, err := s.Records.Exists(ctx, u.FHIRUser); err == nil && !ok {
				s.Logger.WarnContext(ctx, "auth.bootstrap has made a user whose fhirUser does not exist yet",
					slog.String("username", u.Username), slog.String("fhirUser", u.FHIRUser))
			}
		}
	}
	return nil
}

func isConflict(err error) bool {
	return outcome.Is(err, outcome.CodeConflict)
}
