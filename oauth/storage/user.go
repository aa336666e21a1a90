package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"kiln/gen/db"
)

// User is somebody who can sign in, in the words of /admin/users.
type User struct {
	Username string   `json:"username"`
	Name     string   `json:"name"`
	Email    string   `json:"email,omitempty"`
	FHIRUser string   `json:"fhirUser,omitempty"`
	Roles    []string `json:"roles"`
	Active   bool     `json:"active"`

	// Federation is what another OpenID provider has said of the user, nil for nothing.
	Federation *Federation `json:"-"`

	// Password is the argon2id hash; "" cannot sign in by password.
	Password string    `json:"-"`
	Created  time.Time `json:"-"`
	Updated  time.Time `json:"-"`
}

// Federation is what another OpenID provider has said of a user.
type Federation struct {
	// Unbound says that the user reaches nothing through user/ without a fhirUser: a sign-in
	// made the user, or the provider has withdrawn the fhirUser.
	Unbound bool `json:"unbound,omitempty"`
	// Roles and FHIRUser are those that the provider gave at the last sign-in.
	Roles    []string `json:"roles,omitempty"`
	FHIRUser string   `json:"fhirUser,omitempty"`
}

// Unbound reports whether the user reaches nothing through user/ scopes: nobody here has
// created or linked the user, and no provider names a FHIR resource.
func (u *User) Unbound() bool {
	return u.FHIRUser == "" && u.Federation != nil && u.Federation.Unbound
}

// userProfile is a user as it is stored.
type userProfile struct {
	*User
	Federation *Federation `json:"federation,omitempty"`
}

func readUser(row db.OauthUser) (*User, error) {
	u := new(User)
	p := userProfile{User: u}
	if err := json.Unmarshal(row.Profile, &p); err != nil {
		return nil, fmt.Errorf("read the profile of a user: %w", err)
	}
	u.Federation = p.Federation
	u.Username, u.Password, u.Active, u.Created, u.Updated = row.Username, row.Password, row.Active, row.Created, row.Updated
	return u, nil
}

// User returns a user, disabled ones too.
func (s *Store) User(ctx context.Context, username string) (*User, error) {
	row, err := s.q.OAuthUser(ctx, username)
	if err != nil {
		return nil, wrapNotFound(err, "read user")
	}
	return readUser(row)
}

// Users returns every user, by name.
func (s *Store) Users(ctx context.Context) ([]*User, error) {
	rows, err := s.q.OAuthUsers(ctx)
	if err != nil {
		return nil, fmt.Errorf("read users: %w", err)
	}
	out := make([]*User, len(rows))
	for i, row := range rows {
		if out[i], err = readUser(row); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// CreateUser fails with ErrExists where the name is taken.
func (s *Store) CreateUser(ctx context.Context, u *User) error {
	profile, err := json.Marshal(userProfile{u, u.Federation})
	if err != nil {
		return err
	}
	n, err := s.q.InsertOAuthUser(ctx, db.InsertOAuthUserParams{Username: u.Username, Password: u.Password, Profile: profile, Active: u.Active, Now: s.Now()})
	if err != nil {
		return fmt.Errorf("create user: %w", err)
	}
	if n == 0 {
		return ErrExists
	}
	return nil
}

// UpdateUser replaces a user.
func (s *Store) UpdateUser(ctx context.Context, u *User) error {
	profile, err := json.Marshal(userProfile{u, u.Federation})
	if err != nil {
		return err
	}
	n, err := s.q.UpdateOAuthUser(ctx, db.UpdateOAuthUserParams{Username: u.Username, Password: u.Password, Profile: profile, Active: u.Active, Now: s.Now()})
	return expectOneRow(n, err, "update user")
}

// DeleteUser deletes a user, the user's consents and identities elsewhere.
func (s *Store) DeleteUser(ctx context.Context, username string) error {
	n, err := s.q.DeleteOAuthUser(ctx, username)
	if err := expectOneRow(n, err, "delete user"); err != nil {
		return err
	}
	if err := s.q.DeleteOAuthIdentities(ctx, username); err != nil {
		return err
	}
	return s.q.DeleteOAuthConsents(ctx, db.DeleteOAuthConsentsParams{Username: username})
}

// UserOfIdentity returns the name of the user who signs in with another provider.
func (s *Store) UserOfIdentity(ctx context.Context, issuer, subject string) (string, error) {
	name, err := s.q.OAuthIdentity(ctx, db.OAuthIdentityParams{Issuer: issuer, Subject: subject})
	return name, wrapNotFound(err, "read identity")
}

// ChangeUser changes a user while nobody else does: change gets the user as stored, and
// reports whether to store it again.
func (s *Store) ChangeUser(ctx context.Context, username string, change func(ctx context.Context, u *User) (bool, error)) error {
	return s.InTx(ctx, func(ctx context.Context) error {
		row, err := s.q.LockOAuthUser(ctx, username)
		if err != nil {
			return wrapNotFound(err, "lock user")
		}
		u, err := readUser(row)
		if err != nil {
			return err
		}
		again, err := change(ctx, u)
		if err != nil || !again {
			return err
		}
		return s.UpdateUser(ctx, u)
	})
}

// HasIdentity reports whether a user signs in with another provider already.
func (s *Store) HasIdentity(ctx context.Context, username string) (bool, error) {
	return s.q.OAuthUserHasIdentity(ctx, username)
}

// AddIdentity remembers who of another provider is which user; the first stays.
func (s *Store) AddIdentity(ctx context.Context, issuer, subject, username string) error {
	_, err := s.q.InsertOAuthIdentity(ctx, db.InsertOAuthIdentityParams{Issuer: issuer, Subject: subject, Username: username})
	return err
}

// Consent returns the scopes that a user has granted to a client before, "" for none.
func (s *Store) Consent(ctx context.Context, username, client string) (string, error) {
	c, err := s.q.OAuthConsent(ctx, db.OAuthConsentParams{Username: username, ClientID: client})
	if err = wrapNotFound(err, "read consent"); err == ErrNotFound {
		return "", nil
	}
	return c.Scope, err
}

// PutConsent stores the scopes that a user grants to a client.
func (s *Store) PutConsent(ctx context.Context, username, client, scope string) error {
	return s.q.PutOAuthConsent(ctx, db.PutOAuthConsentParams{Username: username, ClientID: client, Scope: scope, Granted: s.Now()})
}

// LockedUntil is when a name may be tried again from an address.
func (s *Store) LockedUntil(ctx context.Context, name, address string) (time.Time, error) {
	return s.q.OAuthLockedUntil(ctx, db.OAuthLockedUntilParams{Subject: name, Address: address})
}

// CountFailure counts a sign-in that may fail and returns how many there were; at
// most of them it locks the name. address "" counts it from anywhere.
func (s *Store) CountFailure(ctx context.Context, name, address string, most int, lockout time.Duration) (failures int, err error) {
	now := s.Now()
	row, err := s.q.CountOAuthFailure(ctx, db.CountOAuthFailureParams{Subject: name, Address: address, Now: now, Forget: now.Add(-lockout), Most: int32(most), Until: now.Add(lockout)})
	return int(row.Failures), err
}

// CountFailureUntil counts a failure of a subject that is over at a time; at most of them
// it locks the subject until then.
func (s *Store) CountFailureUntil(ctx context.Context, subject, address string, most int, ends time.Time) error {
	now := s.Now()
	_, err := s.q.CountOAuthFailure(ctx, db.CountOAuthFailureParams{
		Subject: subject, Address: address, Now: now, Forget: now.Add(-keep), Most: int32(most), Until: ends,
	})
	return err
}

// ClearFailures forgets the failures of a name from an address, and from anywhere.
func (s *Store) ClearFailures(ctx context.Context, name, address string) error {
	return s.q.ClearOAuthFailures(ctx, db.ClearOAuthFailuresParams{Subject: name, Address: address})
}

// ClearAllFailures forgets the failures of a name, wherever they came from.
func (s *Store) ClearAllFailures(ctx context.Context, name string) error {
	return s.q.ClearAllOAuthFailures(ctx, name)
}

// Access is the access of a client to a user's data.
type Access struct {
	Username, ClientID string
	Scope              string // of the stored consent, or of the authorizations where none is stored
	Since              time.Time
	Used               time.Time // when a token was last given; the epoch where none was
}

// AccessParams filter Access by user and client; "" matches all. A page begins after a
// user and a client.
type AccessParams struct {
	Username, ClientID           string
	AfterUsername, AfterClientID string
	Most                         int
}

// Access lists the access of clients to users' data, by user and client.
func (s *Store) Access(ctx context.Context, p AccessParams) ([]Access, error) {
	rows, err := s.q.OAuthAccess(ctx, db.OAuthAccessParams{
		Now: s.Now(), Username: p.Username, ClientID: p.ClientID, AfterUsername: p.AfterUsername, AfterClientID: p.AfterClientID, Most: int32(p.Most),
	})
	if err != nil {
		return nil, fmt.Errorf("read grants of users: %w", err)
	}
	out := make([]Access, len(rows))
	for i, r := range rows {
		out[i] = Access{Username: r.Username, ClientID: r.ClientID, Scope: r.Scope, Since: r.Since, Used: r.Used}
	}
	return out, nil
}

// WithdrawAccess ends the access of a client to a user's data: the stored consent, sign-ins
// under way, unused codes, and all tokens. It fails with ErrNotFound where there was
// neither a consent nor an authorization.
func (s *Store) WithdrawAccess(ctx context.Context, username, client string) error {
	// In the order of creation: the next step finds objects that a request makes in
	// between.
	consents, err := s.q.DeleteOAuthConsent(ctx, db.DeleteOAuthConsentParams{Username: username, ClientID: client})
	if isUnstorable(err) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	if err := s.q.DeleteOAuthFlowsOfUserAndClient(ctx, db.DeleteOAuthFlowsOfUserAndClientParams{Username: username, ClientID: client}); err != nil {
		return err
	}
	if err := s.q.DeleteOAuthCodesOfUserAndClient(ctx, db.DeleteOAuthCodesOfUserAndClientParams{Username: username, ClientID: client}); err != nil {
		return err
	}
	grants, err := s.q.RevokeOAuthGrantsOfUserAndClient(ctx, db.RevokeOAuthGrantsOfUserAndClientParams{Username: username, ClientID: client})
	if err != nil {
		return err
	}
	if consents == 0 && len(grants) == 0 {
		return ErrNotFound
	}
	return s.revoke(ctx, grants)
}
