package oauth

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ory/fosite"
	"github.com/ory/fosite/handler/oauth2"
	"github.com/ory/fosite/handler/pkce"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// codeLifetime is how long a code is good.
const codeLifetime = time.Minute

// refreshScopes are the scopes that a refresh token is given for.
var refreshScopes = []string{"offline_access", "online_access"}

// liveConfig is fosite's configuration with the lifetimes in force.
type liveConfig struct {
	*fosite.Config
	s *Server
}

// GetAccessTokenLifespan is auth.oauth.access_token_lifetime.
func (c *liveConfig) GetAccessTokenLifespan(context.Context) time.Duration {
	return parseLifetime(c.s.Config().OAuth.AccessTokenLifetime)
}

// GetRefreshTokenLifespan is auth.oauth.refresh_token_lifetime.
func (c *liveConfig) GetRefreshTokenLifespan(context.Context) time.Duration {
	return parseLifetime(c.s.Config().OAuth.RefreshTokenLifetime)
}

// compose puts fosite together: its grants for codes, refresh tokens and clients,
// its PKCE and revocation, each on our storage and tokens.
func (s *Server) compose() {
	t := tokens{s}
	config := &liveConfig{s: s, Config: &fosite.Config{
		AuthorizeCodeLifespan:       codeLifetime,
		IDTokenLifespan:             idTokenLifetime,
		EnforcePKCEForPublicClients: true,
		RefreshTokenScopes:          refreshScopes,
		OmitRedirectScopeParam:      true,
		SanitationWhiteList:         []string{"code_challenge", "code_challenge_method", "redirect_uri"},
		ScopeStrategy:               covers,
		AudienceMatchingStrategy:    func([]string, []string) error { return nil }, // aud is always our FHIR base
		RedirectSecureChecker:       func(context.Context, *url.URL) bool { return true },
		// A client that authenticates has been looked up already.
		ClientAuthenticationStrategy: s.authenticateClient,
	}}
	code := &oauth2.AuthorizeExplicitGrantHandler{
		AccessTokenStrategy: t, RefreshTokenStrategy: t, AuthorizeCodeStrategy: t,
		CoreStorage: s.Store, TokenRevocationStorage: s.Store, Config: config,
	}
	proof := &pkce.Handler{AuthorizeCodeStrategy: t, Storage: s.Store, Config: config}
	refresh := &refreshGrant{&oauth2.RefreshTokenGrantHandler{
		AccessTokenStrategy: t, RefreshTokenStrategy: t, TokenRevocationStorage: s.Store, Config: config,
	}}
	service := &serviceGrant{ClientCredentialsGrantHandler: &oauth2.ClientCredentialsGrantHandler{
		HandleHelper: &oauth2.HandleHelper{AccessTokenStrategy: t, AccessTokenStorage: s.Store, Config: config},
		Config:       config,
	}}
	config.AuthorizeEndpointHandlers = fosite.AuthorizeEndpointHandlers{code, proof}
	config.TokenEndpointHandlers = fosite.TokenEndpointHandlers{code, proof, refresh, service, &launchAnswer{s}}
	config.RevocationHandlers = fosite.RevocationHandlers{&oauth2.TokenRevocationHandler{
		TokenRevocationStorage: s.Store, RefreshTokenStrategy: t, AccessTokenStrategy: t,
	}}
	s.provider = fosite.NewOAuth2Provider(s.Store, config)
}

// covers is fosite's ScopeStrategy: a registered scope covers narrower ones.
func covers(registered []string, scope string) bool {
	wider, err := smart.Parse(strings.Join(registered, " "))
	return err == nil && wider.Covers(scope)
}

// grantableScopes returns the requested scopes that a client may be granted. It leaves out scopes
// about types or search parameters that this server does not have: they would give nothing.
func (s *Server) grantableScopes(ctx context.Context, c *storage.Client, asked smart.Scopes) smart.Scopes {
	registered, err := smart.Parse(strings.Join(c.Scopes, " "))
	if err != nil {
		return smart.Scopes{}
	}
	supported, limited := s.supportedScopes()
	may := func(text string) bool {
		return registered.Covers(text) && (!limited || supported.Covers(text))
	}
	var out smart.Scopes
	for _, r := range asked.Resource {
		if s.Records != nil && !s.Records.Means(ctx, r) {
			continue
		}
		if may(r.String()) {
			out.Resource = append(out.Resource, r)
			continue
		}
		// Of several letters those that are allowed are granted.
		var left smart.Permissions
		for p := smart.Create; p <= smart.Search; p <<= 1 {
			one := r
			one.Permissions = p
			if r.Permissions&p != 0 && may(one.String()) {
				left |= p
			}
		}
		if r.Permissions = left; left != 0 {
			out.Resource = append(out.Resource, r)
		}
	}
	for _, o := range asked.Other {
		refreshes := !slices.Contains(refreshScopes, o) || slices.Contains(c.GrantTypes, grantRefreshToken)
		if slices.Contains(smart.Known, o) && may(o) && s.scopeEnabled(o) && refreshes {
			out.Other = append(out.Other, o)
		}
	}
	return out
}

// scopeEnabled reports whether the feature behind a scope about no resource type is on.
func (s *Server) scopeEnabled(scope string) bool {
	c := s.Config()
	switch scope {
	case "openid", "fhirUser", "profile":
		return c.Smart.OpenIDEnabled
	case "launch":
		return c.Smart.LaunchEHREnabled
	case "launch/patient", "launch/encounter":
		return c.Smart.LaunchStandaloneEnabled
	case "offline_access", "online_access":
		return slices.Contains(c.OAuth.GrantTypes, grantRefreshToken)
	}
	return true
}

func (s *Server) supportedScopes() (scopes smart.Scopes, limited bool) {
	if len(s.Config().Smart.SupportedScopes) == 0 {
		return smart.Scopes{}, false
	}
	scopes, _ = smart.Parse(strings.Join(s.Config().Smart.SupportedScopes, " ")) // Check has parsed each
	return scopes, true
}

// serviceGrant is client_credentials. RFC 6749 §4.4, SMART Backend Services.
type serviceGrant struct {
	*oauth2.ClientCredentialsGrantHandler
}

// HandleTokenEndpointRequest grants the requested scopes that the client may have.
func (g *serviceGrant) HandleTokenEndpointRequest(ctx context.Context, r fosite.AccessRequester) error {
	if !g.CanHandleTokenEndpointRequest(ctx, r) {
		return fosite.ErrUnknownRequest
	}
	client, ok := r.GetClient().(*storage.Client)
	if !ok || client.IsPublic() {
		return fosite.ErrUnauthorizedClient.WithHint("A public client cannot use client_credentials.")
	}
	if !r.GetClient().GetGrantTypes().Has(grantClientCredentials) {
		return fosite.ErrUnauthorizedClient.WithHint("The client is not registered for client_credentials.")
	}
	s := fromContext(ctx)
	asked, err := smart.Parse(r.GetRequestForm().Get("scope"))
	if err != nil {
		return fosite.ErrInvalidScope.WithHint(err.Error())
	}
	if asked.Empty() {
		return fosite.ErrInvalidScope.WithHint("The parameter scope is missing: name system scopes.")
	}
	granted := s.grantableScopes(ctx, client, asked)
	granted.Resource = slices.DeleteFunc(granted.Resource, func(x smart.Scope) bool { return x.Context != smart.System })
	granted.Other = slices.DeleteFunc(granted.Other, func(x string) bool { return !smart.WithoutUser(x) })
	if granted.Empty() {
		return fosite.ErrInvalidScope.WithHint("Nothing of the scope asked for is allowed to the client: client_credentials gives scopes of system/, admin, metrics and launch/context that the client is registered with.")
	}
	r.SetRequestedScopes(strings.Fields(granted.String()))
	for _, scope := range r.GetRequestedScopes() {
		r.GrantScope(scope)
	}
	r.SetSession(&storage.Session{Subject: client.ID})
	return g.ClientCredentialsGrantHandler.HandleTokenEndpointRequest(ctx, r)
}

// refreshGrant is refresh_token. RFC 6749 §6.
type refreshGrant struct {
	*oauth2.RefreshTokenGrantHandler
}

// HandleTokenEndpointRequest narrows the scope if the request asks for less.
func (g *refreshGrant) HandleTokenEndpointRequest(ctx context.Context, r fosite.AccessRequester) error {
	if err := g.RefreshTokenGrantHandler.HandleTokenEndpointRequest(ctx, r); err != nil {
		return err
	}
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return fosite.ErrServerError
	}
	session.Granted = slices.Clone(r.GetGrantedScopes())
	form := r.GetRequestForm()
	if !form.Has("scope") {
		return nil
	}
	asked, err := smart.Parse(form.Get("scope"))
	if err != nil {
		return fosite.ErrInvalidScope.WithHint(err.Error())
	}
	granted, err := smart.Parse(strings.Join(session.Granted, " "))
	if err != nil {
		return err
	}
	if asked.Empty() || !asked.Within(granted) {
		return fosite.ErrInvalidScope.WithHint("The scope is wider than the granted scope.")
	}
	request, ok := r.(*fosite.AccessRequest)
	if !ok {
		return fosite.ErrServerError
	}
	request.GrantedScope = strings.Fields(asked.String())
	return nil
}

// How long a refresh token is good without offline_access: for as long as the app is in
// use, which shows by its access tokens, not by the ten minutes of the browser's sign-in.
// SMART App Launch 2.2, scopes for requesting a refresh token.
const (
	onlineIdle = 10 * time.Minute // from the end of the access token that came with it
	onlineMost = 24 * time.Hour   // from the sign-in
)

// refreshEnds is when a refresh token of a request is over, of which fosite has set how
// long it and the access token beside it are good.
func refreshEnds(session *storage.Session, granted fosite.Arguments) time.Time {
	ends := session.GetExpiresAt(fosite.RefreshToken)
	if granted.Has("offline_access") {
		return ends
	}
	if at := session.GetExpiresAt(fosite.AccessToken).Add(onlineIdle); at.Before(ends) {
		ends = at
	}
	return ends
}

// usableUntil is when a stored refresh token is over.
func usableUntil(r fosite.Requester) time.Time {
	ends := r.GetSession().GetExpiresAt(fosite.RefreshToken)
	if session, ok := r.GetSession().(*storage.Session); ok && !r.GetGrantedScopes().Has("offline_access") {
		if at := session.AuthTime.Add(onlineMost); at.Before(ends) {
			ends = at
		}
	}
	return ends
}

// launchAnswer adds to the token answer what SMART App Launch and OpenID Connect
// put there.
type launchAnswer struct{ s *Server }

// CanSkipClientAuth is false.
func (a *launchAnswer) CanSkipClientAuth(context.Context, fosite.AccessRequester) bool { return false }

// CanHandleTokenEndpointRequest is true where there is a user.
func (a *launchAnswer) CanHandleTokenEndpointRequest(_ context.Context, r fosite.AccessRequester) bool {
	return r.GetGrantTypes().ExactOne(grantCode) || r.GetGrantTypes().ExactOne(grantRefreshToken)
}

// HandleTokenEndpointRequest asks about the user again, for a code and for a refresh token. It
// fails with invalid_grant if the user is disabled, or may no longer see the patient in context.
func (a *launchAnswer) HandleTokenEndpointRequest(ctx context.Context, r fosite.AccessRequester) error {
	if !a.CanHandleTokenEndpointRequest(ctx, r) {
		return fosite.ErrUnknownRequest
	}
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return fosite.ErrServerError
	}
	u, err := a.s.Store.User(ctx, session.Username)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !u.Active {
		return fosite.ErrInvalidGrant.WithHint("The user is disabled.")
	}
	if err != nil {
		return err
	}
	sees, err := a.s.mayStillSee(ctx, u, r.GetClient(), session.Context)
	if err == nil && !sees {
		err = fosite.ErrInvalidGrant.WithHint("The user may no longer see the patient.")
	}
	return err
}

// PopulateTokenEndpointResponse adds the launch context and the ID token.
func (a *launchAnswer) PopulateTokenEndpointResponse(ctx context.Context, r fosite.AccessRequester, to fosite.AccessResponder) error {
	session, ok := r.GetSession().(*storage.Session)
	if !ok {
		return fosite.ErrServerError
	}
	for name, value := range launchParameters(session.Context) {
		to.SetExtra(name, value)
	}
	if !r.GetGrantedScopes().Has("openid") {
		return nil
	}
	token, err := tokens(*a).idToken(ctx, r, to.GetAccessToken())
	if err != nil {
		return fosite.ErrServerError.WithWrap(err)
	}
	to.SetExtra("id_token", token)
	return nil
}

// launchParameters are a launch context as the answers to an app have it: those that it
// has. SMART App Launch 2.2, launch context arrives with your access token.
func launchParameters(c storage.Context) map[string]any {
	out := make(map[string]any)
	for name, value := range map[string]string{
		"patient": c.Patient, "encounter": c.Encounter, "intent": c.Intent, "smart_style_url": c.SmartStyleURL, "tenant": c.Tenant,
	} {
		if value != "" {
			out[name] = value
		}
	}
	if c.NeedPatientBanner != nil {
		out["need_patient_banner"] = *c.NeedPatientBanner
	}
	if len(c.FHIRContext) > 0 {
		out["fhirContext"] = c.FHIRContext
	}
	return out
}

type serverKey struct{}

// fromContext is the server that a request to the token endpoint came to.
func fromContext(ctx context.Context) *Server {
	s, _ := ctx.Value(serverKey{}).(*Server)
	return s
}
