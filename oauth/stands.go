package oauth

import (
	"context"
	"strings"

	"kiln/oauth/storage"
	"kiln/server/outcome"
)

// standing identifies the authorization that Stands checks.
type standing struct{ subject, client, token, session string }

// standsFor is how long an answer of Stands that allows is kept: what another server
// revokes is known here as soon as it is for requests.
const standsFor = readEvery

// Stands reports whether a principal that is remembered beside a resource, such as the
// owner of a Subscription, would still be let in, but for the time: its token may have
// expired, but neither the token, nor the authorization that it comes from, nor its
// client or API key may have been revoked, nor its user disabled. It fails with login,
// 401, where one of them was; an API key that has expired is over like a revoked one.
// A token of a trusted issuer stands as long as nobody revokes it here.
func (s *Server) Stands(ctx context.Context, subject, client, token, session string) error {
	q := standing{subject, client, token, session}
	if _, ok := s.standing.GetIfPresent(q); ok {
		return nil
	}
	if err := s.stands(ctx, q); err != nil {
		return err
	}
	s.standing.Set(q, struct{}{})
	return nil
}

func (s *Server) stands(ctx context.Context, q standing) error {
	st, err := s.Store.Standing(ctx, storage.StandingParams{Client: q.client, Username: q.subject, Token: q.token, Grant: q.session})
	if err != nil {
		return err
	}
	gone := func(what string) error { return outcome.New(outcome.CodeLogin, "%s", what) }
	switch {
	case strings.HasPrefix(q.client, apiKeyClient):
		if !st.APIKey {
			return gone("the API key is revoked or has expired")
		}
		return nil
	case st.Revoked:
		return gone("the access token is revoked")
	case st.ClientKnown && !st.ClientActive, !st.ClientKnown && (st.ClientRevoked || len(s.others.Load().trusted) == 0):
		return gone("the client is disabled")
	case st.ClientRevoked && q.session+q.token != "" && !issuedAt(q.token, 0).After(st.ClientBefore):
		return gone("the client was disabled") // and enabled again: its earlier tokens have ended
	case q.session != "" && !st.UserActive:
		return gone("the user is disabled")
	}
	return nil
}
