package oauth

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/ory/fosite"

	"kiln/oauth/storage"
)

// endLogin ends the sign-in of a browser with its tokens, except those with offline_access.
// The event names its user; it is nil if nobody was signed in.
func (s *Server) endLogin(w http.ResponseWriter, r *http.Request) (ended *Event, err error) {
	ctx := r.Context()
	if cookie := sessionCookie(r); cookie != "" {
		login, err := s.login(r)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return nil, err
		}
		signedIn := err == nil
		grants, err := s.Store.RevokeLogin(ctx, storage.Hash(cookie))
		if err != nil {
			return nil, err
		}
		s.readRevocations(ctx)
		if signedIn || len(grants) > 0 {
			ended = &Event{Kind: EventLogout, User: login.Username}
			if u, err := s.Store.User(ctx, login.Username); err == nil {
				ended.FHIRUser = u.FHIRUser
			}
		}
	}
	http.SetCookie(w, s.cookie("", -1))
	return ended, nil
}

// holderOf is an event with the user and client of an access or refresh token of this
// server; nil for an invalid one.
func (s *Server) holderOf(ctx context.Context, kind, token string) (*Event, error) {
	v, err := s.verify(ctx, token)
	switch {
	case err == nil && !v.own:
		return nil, nil
	case err == nil:
		e := &Event{Kind: kind, Client: v.principal.ClientID, FHIRUser: v.principal.FHIRUser}
		if v.principal.SessionID != "" {
			e.User = v.principal.Subject
		}
		return e, nil
	case !errors.Is(err, errToken):
		return nil, err
	}
	request, err := s.Store.GetRefreshTokenSession(ctx, storage.Hash(token), nil)
	if err != nil {
		if isNotFound(err) || errors.Is(err, fosite.ErrInactiveToken) {
			return nil, nil
		}
		return nil, err
	}
	e := &Event{Kind: kind, Client: request.GetClient().GetID(), User: request.GetSession().GetUsername()}
	if session, ok := request.GetSession().(*storage.Session); ok {
		e.FHIRUser = session.Context.FHIRUser
	}
	return e, nil
}

// logout is POST /auth/logout: it revokes the token of the form or of the header
// with all of its grant, and ends the browser's sign-in. It never tells whether the
// token was good, but refuses one that is good and that it cannot revoke. A browser gets
// a page, others JSON.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	token := ""
	if r.Header.Get("Content-Type") != "" {
		if err := readForm(w, r); err != nil {
			s.oauthError(w, r, err)
			return
		}
		token = r.PostForm.Get("token")
	}
	if scheme, sent, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") && token == "" {
		token = strings.TrimSpace(sent)
	}
	ctx := r.Context()
	holder, err := s.holderOf(ctx, EventLogout, token)
	if err != nil {
		s.oauthError(w, r, err)
		return
	}
	revoked, err := s.revokeToken(r, token)
	if err != nil {
		s.oauthError(w, r, err)
		return
	}
	// A form of another site comes without the cookie (SameSite): only with a token of ours
	// does it end the sign-in.
	var login *Event
	if revoked || sessionCookie(r) != "" || !crossOrigin(r) {
		if login, err = s.endLogin(w, r); err != nil {
			s.oauthError(w, r, err)
			return
		}
	}
	s.readRevocations(ctx)
	switch {
	case revoked && holder != nil:
		s.audit(r, *holder)
	case token != "" && login == nil:
		s.audit(r, Event{Kind: EventLogout, Failed: true, Detail: "invalid_token"}) // nothing has ended
	}
	if login != nil && (holder == nil || login.User != holder.User) {
		s.audit(r, *login)
	}
	if wantsPage(r) {
		to, problem := s.afterLogout(ctx, logoutRequest{Client: r.PostForm.Get("client_id"), To: r.PostForm.Get("post_logout_redirect_uri"), State: r.PostForm.Get("state")})
		if problem != "" {
			to = ""
		}
		s.signedOut(w, r, to)
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"success": true})
}

// crossOrigin reports whether a page of another origin had the browser send a form.
func crossOrigin(r *http.Request) bool { return new(http.CrossOriginProtection).Check(r) != nil }

// revokeToken revokes an access or refresh token with all of its grant; false is for one
// that is no good. RFC 7009 §2.2.1: it fails with unsupported_token_type for one that
// belongs to no authorization of this server.
func (s *Server) revokeToken(r *http.Request, token string) (revoked bool, err error) {
	if token == "" {
		return false, nil
	}
	ctx := r.Context()
	v, err := s.verify(ctx, token)
	switch {
	case err == nil && !v.own:
		return false, errUnsupportedToken
	case err == nil && v.principal.SessionID != "":
		return true, s.Store.RevokeRefreshToken(ctx, v.principal.SessionID)
	case err == nil:
		return true, s.Store.Revoke(ctx, storage.KindToken, []string{v.principal.TokenID})
	case !errors.Is(err, errToken):
		return false, err
	}
	request, err := s.Store.GetRefreshTokenSession(ctx, storage.Hash(token), nil)
	if err != nil {
		return false, nil //nolint:nilerr // a token that is no good has nothing to revoke
	}
	return true, s.Store.RevokeRefreshToken(ctx, request.GetID())
}

var errUnsupportedToken = &fosite.RFC6749Error{
	ErrorField: "unsupported_token_type", CodeField: http.StatusBadRequest,
	DescriptionField: "The token is an API key or another authorization server's: no sign-in here gave it, and it stays good.",
}

// logoutPage is GET /auth/logout: OpenID Connect RP-Initiated Logout 1.0. With an ID
// token of ours as id_token_hint the sign-in ends at once; otherwise the user is
// asked, so that no link of another site signs anybody out.
func (s *Server) logoutPage(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if err := checkOnce(q); err != nil {
		s.errorPage(w, r, http.StatusBadRequest, wrongLogout, hintOf(err))
		return
	}
	leave := logoutRequest{Client: q.Get("client_id"), To: q.Get("post_logout_redirect_uri"), State: q.Get("state")}
	hinted := false
	if hint := q.Get("id_token_hint"); hint != "" {
		audience, sub, ok := s.readIDToken(r, hint)
		if !ok || leave.Client != "" && leave.Client != audience {
			s.errorPage(w, r, http.StatusBadRequest, wrongLogout, "id_token_hint is no ID token of this server for that client.")
			return
		}
		leave.Client = audience
		if login, err := s.login(r); err == nil && login.Username == sub {
			hinted = true
		}
	}
	to, problem := s.afterLogout(r.Context(), leave)
	if problem != "" {
		s.errorPage(w, r, http.StatusBadRequest, wrongLogout, problem)
		return
	}
	if login, err := s.login(r); err == nil && !hinted {
		p := s.newPage(r, "Sign out")
		p.Signed, p.Leave, p.redirect = login.Username, leave, leave.To
		if u, err := s.Store.User(r.Context(), login.Username); err == nil {
			p.User = u
		}
		s.render(w, r, http.StatusOK, "logout", p)
		return
	}
	ended, err := s.endLogin(w, r)
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if ended != nil {
		ended.Client = leave.Client
		s.audit(r, *ended)
	}
	s.signedOut(w, r, to)
}

const wrongLogout = "The app has asked to sign out in a wrong way. You may still be signed in."

// logoutRequest says where an app wants the browser after a sign-out.
type logoutRequest struct{ Client, To, State string }

// afterLogout is where the browser goes after a sign-out, "" for a page of ours. problem
// says why the app may not have it there.
func (s *Server) afterLogout(ctx context.Context, q logoutRequest) (to, problem string) {
	if q.To == "" {
		return "", ""
	}
	c, err := s.activeClient(ctx, q.Client)
	if err != nil || !slices.Contains(c.PostLogoutRedirectURIs, q.To) {
		return "", "post_logout_redirect_uri is not registered for the client."
	}
	if q.State == "" {
		return q.To, ""
	}
	if to, err = withValues(q.To, url.Values{"state": {q.State}}); err != nil {
		return "", "post_logout_redirect_uri cannot be read."
	}
	return to, ""
}

// signedOut leads to the app, or shows the page that ends a sign-out.
func (s *Server) signedOut(w http.ResponseWriter, r *http.Request, to string) {
	if to != "" {
		noStore(w)
		http.Redirect(w, r, to, http.StatusSeeOther)
		return
	}
	p := s.newPage(r, "Signed out")
	p.Message = p.T("You are signed out.")
	s.render(w, r, http.StatusOK, "message", p)
}

// wantsPage reports whether a person's browser sent a request: it names text/html, and no
// JSON that it would rather have. RFC 9110 §12.5.1.
func wantsPage(r *http.Request) bool {
	best := map[string]float64{}
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		typ, parameters, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, ok := parameters["q"]; ok {
			if quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		best[typ] = max(best[typ], quality)
	}
	return best["text/html"] > 0 && best["text/html"] >= best["application/json"]
}

// readIDToken reads an ID token of ours, expired ones too.
func (s *Server) readIDToken(r *http.Request, token string) (client, sub string, ok bool) {
	if len(token) > maxToken {
		return "", "", false
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.ES256, jose.ES384})
	if err != nil || len(signed.Signatures) != 1 {
		return "", "", false
	}
	header := signed.Signatures[0].Protected
	if typ, _ := header.ExtraHeaders[jose.HeaderType].(string); typ != "JWT" {
		return "", "", false
	}
	key := s.keys.findKey(r.Context(), header.KeyID)
	if key == nil || key.Algorithm != header.Algorithm {
		return "", "", false
	}
	payload, err := signed.Verify(key.public.Key)
	if err != nil {
		return "", "", false
	}
	var c idClaims
	if !readClaims(payload, &c) || c.Issuer != s.Issuer {
		return "", "", false
	}
	return c.Audience, c.Subject, true
}
