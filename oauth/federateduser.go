package oauth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/coreos/go-oidc/v3/oidc"

	"kiln/oauth/storage"
	"kiln/server/outcome"
)

// providerClaims are the claims of an ID token, read by the names that the operator has
// configured for the provider.
type providerClaims struct {
	*provider
	sent map[string]any
}

func (c providerClaims) value(field, otherwise string) any {
	return c.sent[cmp.Or(c.Claims[field], otherwise)]
}

// text is a claim that is a text, "" for any other.
func (c providerClaims) text(field, otherwise string) string {
	v, _ := c.value(field, otherwise).(string)
	return v
}

// roles returns the roles that the provider sends and that users here can have. There are
// none without a configured claim.
func (c providerClaims) roles() []string {
	name := c.Claims["roles"]
	if name == "" {
		return nil
	}
	roles := slices.DeleteFunc(stringList(c.sent[name]), func(role string) bool { return !roleSyntax.MatchString(role) })
	slices.Sort(roles)
	return slices.Compact(roles)
}

// fhirUserOf returns the fhirUser claim, "" if the provider sends none. It fails with
// errFHIRUser if the claim names no resource of this server.
func (s *Server) fhirUserOf(ctx context.Context, c providerClaims) (string, error) {
	fhirUser, ok := s.claimedUser(c.value("fhirUser", "fhirUser"))
	if !ok {
		return "", errFHIRUser
	}
	if fhirUser == "" || s.Records == nil {
		return fhirUser, nil
	}
	exists, err := s.Records.Exists(ctx, fhirUser)
	if err == nil && !exists {
		err = fmt.Errorf("%w: %s", errFHIRUser, fhirUser)
	}
	return fhirUser, err
}

// linkByName links somebody who signs in for the first time to a user of the same name, and
// returns the name, "" for none. It does so only if the operator says which claim is the
// username, and if the user has no identity yet: the name of a user who has one is not free.
func (s *Server) linkByName(ctx context.Context, id *oidc.IDToken, c providerClaims) (name string, err error) {
	claimed := c.text("username", "preferred_username")
	if c.Claims["username"] == "" || claimed == "" {
		return "", nil
	}
	err = s.Store.ChangeUser(ctx, claimed, func(ctx context.Context, u *storage.User) (bool, error) {
		if !u.Active || u.Password != "" && c.AutoProvision {
			return false, nil
		}
		linked, err := s.Store.HasIdentity(ctx, claimed)
		if err != nil || linked {
			return false, err
		}
		name = claimed
		return false, s.Store.AddIdentity(ctx, id.Issuer, id.Subject, claimed)
	})
	if isNotFound(err) {
		return "", nil
	}
	return name, err
}

// applyClaims applies the roles and the fhirUser of a sign-in to a user, and returns the
// user. Roles that the provider gave before and no longer sends are withdrawn; an
// administrator's roles stay. Each change ends the user's tokens. It fails with
// errNoAccount for a disabled user, and with errFHIRUser, after the withdrawal, for a claim
// without a resource here.
func (s *Server) applyClaims(ctx context.Context, name string, c providerClaims) (*storage.User, error) {
	fhirUser, failed := s.fhirUserOf(ctx, c)
	if failed != nil {
		if !errors.Is(failed, errFHIRUser) {
			return nil, failed
		}
		fhirUser = ""
	}
	var user *storage.User
	changed := false
	err := s.Store.ChangeUser(ctx, name, func(_ context.Context, u *storage.User) (bool, error) {
		if !u.Active {
			return false, errNoAccount
		}
		user = u
		var before storage.Federation
		if u.Federation != nil {
			before = *u.Federation
		}
		is := storage.Federation{Unbound: before.Unbound, Roles: c.roles(), FHIRUser: fhirUser}
		roles := slices.DeleteFunc(slices.Clone(u.Roles), func(role string) bool {
			return slices.Contains(before.Roles, role) && !slices.Contains(is.Roles, role)
		})
		for _, role := range is.Roles {
			if !slices.Contains(roles, role) {
				roles = append(roles, role)
			}
		}
		resource := u.FHIRUser
		switch {
		case fhirUser != "":
			resource = fhirUser
		case before.FHIRUser != "":
			is.Unbound = true
			if u.FHIRUser == before.FHIRUser {
				resource = ""
			}
		}
		changed = resource != u.FHIRUser || !slices.Equal(sorted(roles), sorted(u.Roles))
		same := !changed && u.Federation != nil && is.Unbound == before.Unbound && is.FHIRUser == before.FHIRUser && slices.Equal(is.Roles, before.Roles)
		u.Roles, u.FHIRUser, u.Federation = roles, resource, &is
		return !same, nil
	})
	if isNotFound(err) {
		return nil, errNoAccount
	}
	if err != nil {
		return nil, err
	}
	if changed {
		if err := s.revokeUser(ctx, name); err != nil {
			return nil, err
		}
	}
	if failed != nil {
		return nil, failed
	}
	return user, nil
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// provision makes a user for somebody who signs in for the first time. It fails with
// errNoAccount if only administrators make users. It fails with errFHIRUser, and makes no
// user, if the fhirUser claim is there and not acceptable.
func (s *Server) provision(ctx context.Context, id *oidc.IDToken, c providerClaims) (*storage.User, error) {
	if !c.AutoProvision {
		return nil, errNoAccount
	}
	own := c.Name + ":" + id.Subject
	username := cmp.Or(c.text("username", "preferred_username"), id.Subject)
	if _, err := s.Store.User(ctx, username); err == nil {
		username = own // the name is somebody else's
	}
	body := userBody{Username: username}
	if _, err := s.user(ctx, body, false); err != nil {
		body.Username = own // the claim is no name that users have here
		if _, err := s.user(ctx, body, false); err != nil {
			return nil, err
		}
	}
	fhirUser, err := s.fhirUserOf(ctx, c)
	if err != nil {
		return nil, err
	}
	body.FHIRUser, body.Roles = fhirUser, c.roles()
	u, err := s.user(ctx, body, false)
	if err != nil {
		if outcome.Is(err, outcome.CodeInvalid) {
			return nil, fmt.Errorf("%w: %w", errFHIRUser, err)
		}
		return nil, err
	}
	// Another claim that is not acceptable is left out.
	for _, add := range []func(*userBody){
		func(b *userBody) { b.Name = c.text("name", "name") },
		func(b *userBody) { b.Email = c.text("email", "email") },
	} {
		more := body
		add(&more)
		if found, err := s.user(ctx, more, false); err == nil {
			body, u = more, found
		}
	}
	u.Federation = &storage.Federation{Unbound: true, Roles: u.Roles, FHIRUser: u.FHIRUser}
	if err := s.Store.CreateUser(ctx, u); err != nil {
		return nil, err
	}
	if err := s.Store.AddIdentity(ctx, id.Issuer, id.Subject, u.Username); err != nil {
		return nil, err
	}
	return s.Store.User(ctx, u.Username)
}
