package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// ConsoleClient is the client of the console: built in, first-party and immutable.
const ConsoleClient = "kiln-console"

// ConsoleScopes are the scopes that the console asks for. The sign-in leaves out scopes that the person may not have.
const ConsoleScopes = "openid fhirUser user/*.cruds admin"

// ConsoleCallback is the path that a sign-in to the console returns to.
const ConsoleCallback = "/console/callback"

// ConsoleTimes bound sessions of the console.
type ConsoleTimes struct {
	Idle     time.Duration // from the last page
	Lifetime time.Duration // from the sign-in
}

// errConsoleClient refuses a change of the console's client.
func errConsoleClient(id string) error {
	if id != ConsoleClient {
		return nil
	}
	return outcome.New(outcome.CodeConflict, "the client %q is built in and cannot be changed", ConsoleClient)
}

// ensureConsoleClient stores the client of the console. Nobody knows its secret: the token endpoint refuses it.
func (s *Server) ensureConsoleClient(ctx context.Context) error {
	c := &storage.Client{
		ID: ConsoleClient, Name: "Kiln console", Confidential: true, TokenEndpointAuthMethod: storage.MethodBasic, Secret: hashMade(randomText()),
		RedirectURIs: []string{originOf(s.Issuer) + ConsoleCallback}, PostLogoutRedirectURIs: []string{}, GrantTypes: []string{grantCode},
		Scopes: strings.Fields(ConsoleScopes), PKCERequired: true, AllowedOrigins: []string{}, Trusted: true, IDTokenSigningAlg: "RS256", Active: true,
	}
	err := s.Store.CreateClient(ctx, c)
	if errors.Is(err, storage.ErrExists) {
		return s.Store.UpdateClient(ctx, c)
	}
	return err
}

// ConsoleOrigin returns the origin that the browser reaches the console at: that of the issuer, or, where both are on
// loopback, that of the request.
func (s *Server) ConsoleOrigin(r *http.Request) string {
	u, err := url.Parse(s.Issuer)
	if err == nil && isLoopback(u.Hostname()) && isLoopback(hostOf(r.Host)) {
		return u.Scheme + "://" + r.Host
	}
	return originOf(s.Issuer)
}

// consoleRedirect reports whether a redirect URI belongs to the console.
func (s *Server) consoleRedirect(asked string) bool {
	own, err := url.Parse(s.Issuer)
	to, err2 := url.Parse(asked)
	if err != nil || err2 != nil || to.Path != ConsoleCallback || to.RawQuery != "" || to.Fragment != "" || to.User != nil {
		return false
	}
	return asked == originOf(s.Issuer)+ConsoleCallback || to.Scheme == own.Scheme && isLoopback(own.Hostname()) && isLoopback(to.Hostname())
}

// BeginConsole returns the address at which a person signs in to the console. verifier is the code verifier of the
// browser (RFC 7636 §4.1).
func (s *Server) BeginConsole(r *http.Request, state, verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	origin := s.ConsoleOrigin(r)
	values := url.Values{
		"response_type": {"code"}, "client_id": {ConsoleClient}, "redirect_uri": {origin + ConsoleCallback}, "scope": {ConsoleScopes}, "state": {state},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"}, "aud": {s.FHIRBase},
	}
	return "/auth/authorize?" + values.Encode()
}

// FinishConsole redeems the code of a sign-in and opens a session. It returns the value of the session's cookie, and
// fails with login, 401, for a code that is no good.
func (s *Server) FinishConsole(r *http.Request, code, verifier string, times ConsoleTimes) (cookie string, err error) {
	ctx := r.Context()
	refused := outcome.New(outcome.CodeLogin, "the sign-in has ended or is too old")
	signature := storage.Hash(code)
	request, err := s.Store.GetAuthorizeCodeSession(ctx, signature, nil)
	if err != nil {
		if request != nil { // used before: its session ends, RFC 6749 §4.1.2
			_ = s.Store.RevokeAccessToken(ctx, request.GetID())
			s.readRevocations(ctx)
			return "", refused
		}
		if isNotFound(err) {
			return "", refused
		}
		return "", s.options.Translate(err)
	}
	session, ok := request.GetSession().(*storage.Session)
	sum := sha256.Sum256([]byte(verifier))
	form := request.GetRequestForm()
	if !ok || request.GetClient().GetID() != ConsoleClient || !s.consoleRedirect(form.Get("redirect_uri")) ||
		subtle.ConstantTimeCompare([]byte(form.Get("code_challenge")), []byte(base64.RawURLEncoding.EncodeToString(sum[:]))) != 1 ||
		!session.GetExpiresAt("authorize_code").After(s.Now()) {
		return "", refused
	}
	u, err := s.Store.User(ctx, session.Username)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !u.Active {
		return "", refused
	}
	if err != nil {
		return "", s.options.Translate(err)
	}
	cookie = randomText()
	now := s.Now()
	err = s.Store.InTx(ctx, func(ctx context.Context) error {
		if err := s.Store.InvalidateAuthorizeCodeSession(ctx, signature); err != nil {
			return err
		}
		return s.Store.CreateConsoleSession(ctx, storage.ConsoleSession{
			ID: storage.Hash(cookie), Grant: request.GetID(), Username: u.Username, Started: now, LastActive: now, Address: s.Proxies.ClientAddress(r).String(),
			Scope: strings.Join(request.GetGrantedScopes(), " "),
		}, ConsoleClient, session.Login, now.Add(times.Lifetime))
	})
	if errors.Is(err, storage.ErrUsed) {
		return "", refused
	}
	if err != nil {
		return "", s.options.Translate(err)
	}
	s.audit(r, Event{Kind: EventToken, Client: ConsoleClient, User: u.Username, FHIRUser: u.FHIRUser, Detail: grantCode})
	return cookie, nil
}

// ConsoleVisit is a session of the console in a request.
type ConsoleVisit struct {
	Principal *access.Principal
	Session   string // the id that administrators see
	Name      string // of the person
}

// touchEvery is how exact the time of the last page is.
const touchEvery = 5 * time.Second

// VisitConsole returns the session of a cookie. extend says that the request shows activity of a person. It fails with
// login, 401, where the session is over.
func (s *Server) VisitConsole(ctx context.Context, cookie string, times ConsoleTimes, extend bool) (*ConsoleVisit, error) {
	over := outcome.New(outcome.CodeLogin, "the session has ended")
	if !cookieSyntax.MatchString(cookie) {
		return nil, over
	}
	c, err := s.Store.FindConsoleSession(ctx, storage.Hash(cookie))
	switch now := s.Now(); {
	case errors.Is(err, storage.ErrNotFound):
		return nil, over
	case err != nil:
		return nil, s.options.Translate(err)
	case now.Sub(c.LastActive) >= times.Idle || now.Sub(c.Started) >= times.Lifetime:
		return nil, over
	case extend && now.Sub(c.LastActive) >= min(touchEvery, times.Idle/4):
		if err := s.Store.TouchConsoleSession(ctx, c.ID); err != nil {
			return nil, s.options.Translate(err)
		}
	}
	scopes, err := smart.Parse(c.Scope)
	if err != nil {
		return nil, over
	}
	v := &ConsoleVisit{Session: c.Grant, Name: c.User.Name, Principal: &access.Principal{
		Subject: c.Username, ClientID: ConsoleClient, Scopes: scopes, FHIRUser: c.User.FHIRUser, Unbound: c.User.Unbound(), Roles: c.User.Roles,
		Admin: scopes.Has("admin") && slices.Contains(c.User.Roles, "admin"), TokenID: c.ID, SessionID: c.Grant, Expires: c.Started.Add(times.Lifetime),
	}}
	if v.Name == "" {
		v.Name = c.Username
	}
	return v, nil
}

// LeaveConsole ends the session of a request with the sign-in that it came from.
func (s *Server) LeaveConsole(r *http.Request, session string) error {
	ctx := r.Context()
	username, err := s.Store.EndConsoleSession(ctx, session)
	if errors.Is(err, storage.ErrNotFound) {
		return nil // a second click
	}
	if err != nil {
		return s.options.Translate(err)
	}
	s.readRevocations(ctx)
	s.audit(r, Event{Kind: EventLogout, User: username, Client: ConsoleClient})
	return nil
}

// LeaveConsoleEverywhere ends every session of a user.
func (s *Server) LeaveConsoleEverywhere(r *http.Request, username string) error {
	list, err := s.Store.ConsoleSessions(r.Context(), storage.ConsoleSessionsParams{Username: username, Most: maxSessions})
	if err != nil {
		return s.options.Translate(err)
	}
	for _, c := range list {
		if err := s.LeaveConsole(r, c.Grant); err != nil {
			return err
		}
	}
	return nil
}

// ChangeOwnPassword gives a user a password that the user has chosen. It fails with forbidden where current is not the
// password; failures count as those of the sign-in. The sessions and tokens of the user end.
func (s *Server) ChangeOwnPassword(r *http.Request, username, current, chosen string) error {
	ctx := r.Context()
	address := s.Proxies.ClientAddress(r).String()
	limits := s.Config().RateLimiting
	key := failureSubject(username)
	tooMany := outcome.New(outcome.CodeThrottled, "too many passwords were wrong: wait a few minutes")
	until, err := s.Store.LockedUntil(ctx, key, address)
	if err != nil {
		return s.options.Translate(err)
	}
	if until.After(s.Now()) {
		return tooMany
	}
	failures, err := s.Store.CountFailure(ctx, key, address, limits.MaxFailedAttempts, parseLifetime(limits.LockoutDuration))
	if err != nil {
		return s.options.Translate(err)
	}
	if failures > limits.MaxFailedAttempts {
		return tooMany
	}
	u, err := s.Store.User(ctx, username)
	if err != nil {
		return noSuch(err, "user", username)
	}
	ok, err := passwordMatches(ctx, u.Password, current)
	if err != nil {
		return err
	}
	if !ok || len(current) > maxPassword {
		s.audit(r, Event{Kind: EventLogin, Failed: true, User: username, Client: ConsoleClient, Detail: wrongPassword})
		return outcome.New(outcome.CodeForbidden, "the current password is wrong")
	}
	if chosen == "" {
		return invalidRequest("the new password is empty")
	}
	if _, err := s.NewPassword(ctx, username, chosen); err != nil {
		return err
	}
	s.audit(r, Event{Kind: EventManage, User: username, Client: ConsoleClient, Detail: "password", Object: username})
	return nil
}

// OwnGrant is the access of an app to the data of the person who asks.
type OwnGrant struct {
	Client, Name string
	Scopes       []string
	Since        time.Time
}

// OwnGrants lists the apps that a user has allowed something to.
func (s *Server) OwnGrants(ctx context.Context, username string) ([]OwnGrant, error) {
	list, err := s.Store.Access(ctx, storage.AccessParams{Username: username, Most: maxGrants})
	if err != nil {
		return nil, s.options.Translate(err)
	}
	var out []OwnGrant
	for _, x := range list {
		g := OwnGrant{Client: x.ClientID, Name: x.ClientID, Scopes: showGrant(x).Scopes, Since: x.Since}
		if c, err := s.Store.Client(ctx, x.ClientID); err == nil {
			g.Name = nameOf(c)
		}
		out = append(out, g)
	}
	return out, nil
}

// RevokeOwnGrant ends the access of an app to the data of the person who asks. An access that has ended is no error.
func (s *Server) RevokeOwnGrant(r *http.Request, username, client string) error {
	if err := s.WithdrawAccess(r.Context(), username, client); err != nil && !outcome.Is(err, outcome.CodeNotFound) {
		return err
	}
	s.audit(r, Event{Kind: EventRevoke, User: username, Client: client})
	return nil
}

// SessionAnswer is a session of the console, as /admin/sessions shows it.
type SessionAnswer struct {
	ID         string    `json:"id"`
	User       string    `json:"user"`
	Started    time.Time `json:"started"`
	LastActive time.Time `json:"lastActive"`
	Address    string    `json:"address"`
}

// maxSessions is how many sessions a list has at most.
const maxSessions = 1000

// Sessions lists the sessions of a user, "" for all users, newest first.
func (a *Admin) Sessions(ctx context.Context, username string, times ConsoleTimes) ([]SessionAnswer, error) {
	now := a.Now()
	list, err := a.Store.ConsoleSessions(ctx, storage.ConsoleSessionsParams{Username: username, IdleSince: now.Add(-times.Idle), StartedAfter: now.Add(-times.Lifetime), Most: maxSessions})
	if err != nil {
		return nil, err
	}
	out := make([]SessionAnswer, len(list))
	for i, c := range list {
		out[i] = SessionAnswer{c.Grant, c.Username, c.Started, c.LastActive, c.Address}
	}
	return out, nil
}

// EndSession ends a session by its id, on every server. It fails with not-found.
func (a *Admin) EndSession(ctx context.Context, id string) error {
	if _, err := uuid.Parse(id); err != nil {
		return noSuch(storage.ErrNotFound, "session", id)
	}
	if _, err := a.Store.EndConsoleSession(ctx, id); err != nil {
		return noSuch(err, "session", id)
	}
	a.announceChange(ctx)
	return nil
}

// listSessions is GET /admin/sessions.
func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	list, err := s.Sessions(r.Context(), r.URL.Query().Get("user"), s.options.Console())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"sessions": list})
}
