package oauth

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
)

// token is POST /auth/token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if err := readForm(w, r); err != nil {
		s.oauthError(w, r, err)
		return
	}
	grant := r.PostForm.Get("grant_type")
	switch {
	case grant == "":
		s.oauthError(w, r, fosite.ErrInvalidRequest.WithHint("The parameter grant_type is missing."))
		return
	case !slices.Contains(s.Config().OAuth.GrantTypes, grant):
		s.oauthError(w, r, fosite.ErrUnsupportedGrantType.WithHintf("The grant types served are %s.", strings.Join(s.Config().OAuth.GrantTypes, ", ")))
		return
	}
	for _, name := range map[string][]string{grantCode: {"code", "redirect_uri"}, grantRefreshToken: {"refresh_token"}}[grant] {
		if r.PostForm.Get(name) == "" {
			s.oauthError(w, r, fosite.ErrInvalidRequest.WithHintf("The parameter %s is missing.", name))
			return
		}
	}
	ctx := context.WithValue(r.Context(), serverKey{}, s)
	request, err := s.provider.NewAccessRequest(ctx, r, new(storage.Session))
	var answer fosite.AccessResponder
	if err == nil {
		answer, err = s.provider.NewAccessResponse(ctx, request)
	}
	if err != nil {
		if errors.Is(err, storage.ErrUsed) || errors.Is(err, fosite.ErrInvalidatedAuthorizeCode) {
			// Somebody else used the code or the refresh token at the same moment.
			if grant == grantCode && request != nil {
				_ = s.Store.RevokeAccessToken(ctx, request.GetID())
			}
			err = fosite.ErrInvalidGrant.WithHint("It was used already.")
		}
		if grant == grantRefreshToken && errors.Is(err, fosite.ErrInvalidRequest) && !errors.Is(err, fosite.ErrInvalidGrant) && r.PostForm.Get("refresh_token") != "" && request != nil && request.GetClient() != nil {
			err = fosite.ErrInvalidGrant.WithHint("The refresh token is not good.")
		}
		s.readRevocations(ctx) // a second use revokes, here at once
		s.audit(r, Event{Kind: EventToken, Failed: true, Client: claimedClient(r), Detail: errorName(err)})
		s.oauthError(w, r, err)
		return
	}
	answer.SetTokenType("Bearer")
	session, _ := request.GetSession().(*storage.Session)
	// fosite cuts off the part of a second that the request has taken.
	answer.SetExpiresIn(time.Until(session.GetExpiresAt(fosite.AccessToken)).Round(time.Second))
	s.audit(r, Event{Kind: EventToken, Client: request.GetClient().GetID(), User: session.GetUsername(), FHIRUser: session.Context.FHIRUser, Detail: grant})
	s.allowOrigin(w, r, request.GetClient())
	writeJSON(w, http.StatusOK, answer.ToMap())
}

// revoke is POST /auth/revoke: 200 also for a token that is unknown or no longer good,
// invalid_grant for one of another client. RFC 7009.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	if err := readForm(w, r); err != nil {
		s.oauthError(w, r, err)
		return
	}
	if r.PostForm.Get("token") == "" {
		s.oauthError(w, r, fosite.ErrInvalidRequest.WithHint("The parameter token is missing."))
		return
	}
	holder, err := s.holderOf(r.Context(), EventRevoke, r.PostForm.Get("token"))
	if err != nil {
		s.oauthError(w, r, err)
		return
	}
	err = s.provider.NewRevocationRequest(r.Context(), r)
	if err != nil && errors.Is(err, fosite.ErrUnauthorizedClient) {
		// It stays good; whose it is is not told. RFC 7009 §2.1, RFC 6749 §5.2.
		err = fosite.ErrInvalidGrant.WithHint("The token was issued to another client.")
	}
	if err != nil {
		s.oauthError(w, r, err)
		return
	}
	s.readRevocations(r.Context())
	if holder == nil { // the client, which has authenticated, has revoked nothing
		holder = &Event{Kind: EventRevoke, Failed: true, Client: claimedClient(r), Detail: "invalid_token"}
	}
	s.audit(r, *holder)
	noStore(w)
	w.WriteHeader(http.StatusOK)
}
