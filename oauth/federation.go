package oauth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"kiln/oauth/storage"
)

// provider is an OpenID provider to sign in with.
type provider struct {
	Name         string   `json:"name"`
	Issuer       string   `json:"issuer"`
	ClientID     string   `json:"client_id"`
	ClientSecret string   `json:"client_secret"`
	Scopes       []string `json:"scopes"` // beside openid
	// Claims names the claims that hold username, name, email, fhirUser and roles.
	Claims map[string]string `json:"claims"`
	// AutoProvision makes a user for somebody who signs in for the first time;
	// otherwise an administrator must have made one with that username.
	AutoProvision bool `json:"auto_provision"`

	mu   sync.Mutex
	oidc *oidc.Provider
}

func readProviders(c FederationConfig) ([]*provider, error) {
	var out []*provider
	for i, entry := range c.Providers {
		p := new(provider)
		at := fmt.Sprintf("auth.federation.providers[%d]", i)
		if err := decodeEntry(entry, p); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		for name, value := range map[string]string{"name": p.Name, "issuer": p.Issuer, "client_id": p.ClientID} {
			if value == "" {
				return nil, fmt.Errorf("%s: %s is missing", at, name)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// elsewhere is the state of a flow while its user signs in with a provider.
type elsewhere struct {
	Name, State, Nonce, Verifier string
	Used                         bool // the user came back, and is signed in
}

// federation is the other authorization servers that are known.
type federation struct {
	providers []*provider               // to sign in with
	trusted   map[string]*trustedIssuer // whose tokens are taken, by issuer
}

// useFederation makes c the other authorization servers that are known. Tokens that were
// taken before are looked at anew.
func (s *Server) useFederation(c FederationConfig) error {
	var f federation
	var err error
	if f.trusted, err = readTrustedIssuers(c); err != nil {
		return err
	}
	if f.providers, err = readProviders(c); err != nil {
		return err
	}
	s.others.Store(&f)
	s.ClearCache()
	return nil
}

func (s *Server) providerOf(name string) *provider {
	for _, p := range s.others.Load().providers {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// discover reads the provider's discovery document once it can be.
func (p *provider) discover(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.oidc != nil {
		return p.oidc, nil
	}
	found, err := oidc.NewProvider(ctx, p.Issuer)
	if err == nil {
		p.oidc = found
	}
	return found, err
}

func (s *Server) oauthConfig(p *provider, at oauth2.Endpoint) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: at, RedirectURL: s.Issuer + "/auth/callback",
		Scopes: append([]string{oidc.ScopeOpenID}, p.Scopes...),
	}
}

// federate sends the browser to another provider, with code, PKCE and nonce.
func (s *Server) federate(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, name string) {
	p := s.providerOf(name)
	if p == nil {
		s.errorPage(w, r, http.StatusBadRequest, "There is no such provider to sign in with.", "")
		return
	}
	// The provider keeps the client for its keys, beyond this request.
	ctx := oidc.ClientContext(context.WithoutCancel(r.Context()), s.remote)
	found, err := p.discover(ctx)
	if err != nil {
		s.Logger.WarnContext(ctx, "OpenID provider", "name", p.Name, "error", err)
		page := s.newPage(r, "Sign in")
		page.Problem = page.T("%s does not answer. Try again, or sign in another way.", p.Name)
		if err := s.showPage(w, r, f, c, http.StatusBadGateway, "login", page); err != nil {
			s.failUnexpected(w, r, err)
		}
		return
	}
	f.Provider = &elsewhere{Name: p.Name, State: randomText(), Nonce: randomText(), Verifier: oauth2.GenerateVerifier()}
	if err := s.Store.PutFlow(ctx, f.ID, f.Browser, f, false, s.Now().Add(flowLifetime)); err != nil {
		s.flowGone(w, r, err)
		return
	}
	options := []oauth2.AuthCodeOption{oidc.Nonce(f.Provider.Nonce), oauth2.S256ChallengeOption(f.Provider.Verifier)}
	if f.LoginHint != "" {
		options = append(options, oauth2.SetAuthURLParam("login_hint", f.LoginHint))
	}
	if strings.Contains(f.Prompt, "login") {
		options = append(options, oauth2.SetAuthURLParam("prompt", "login"))
	}
	noStore(w)
	http.Redirect(w, r, s.oauthConfig(p, found.Endpoint()).AuthCodeURL(f.ID+"."+f.Provider.State, options...), http.StatusSeeOther)
}

// callback is GET /auth/callback: the browser comes back from another provider.
func (s *Server) callback(w http.ResponseWriter, r *http.Request) {
	ctx := oidc.ClientContext(r.Context(), s.remote)
	q := r.URL.Query()
	if checkOnce(q) != nil {
		s.errorPage(w, r, http.StatusBadRequest, "The answer of the sign-in provider cannot be read. Go back to the app and begin again.", "")
		return
	}
	id, state, _ := strings.Cut(q.Get("state"), ".")
	f := &flow{ID: id}
	browser, done, err := s.Store.Flow(ctx, id, f)
	if err != nil {
		s.flowGone(w, r, err)
		return
	}
	f.Browser, f.Cookie = browser, sessionCookie(r)
	refused := f.Provider == nil && f.Username == "" // the page that tells it is loaded again
	if f.Cookie == "" || storage.Hash(f.Cookie) != browser || !refused && (f.Provider == nil || subtle.ConstantTimeCompare([]byte(state), []byte(f.Provider.State)) != 1) {
		s.errorPage(w, r, http.StatusForbidden, "This sign-in belongs to another browser. Go back to the app and begin again.", "")
		return
	}
	c, err := s.clientOf(ctx, f)
	if err != nil {
		s.flowGone(w, r, err)
		return
	}
	switch {
	case done:
		s.writeEndedFlow(w, r, f, c)
		return
	case refused || f.Provider.Used:
		s.advanceFlow(w, r, f, c) // the page that came of it is loaded again
		return
	}
	again := func(problem string, cause error, values ...any) {
		s.Logger.WarnContext(ctx, "sign-in with another provider", "name", f.Provider.Name, "error", cause)
		s.audit(r, Event{Kind: EventLogin, Failed: true, Client: c.ID, Detail: page{}.T(problem, values...)})
		f.Provider = nil
		p := s.newPage(r, "Sign in")
		p.Problem = p.T(problem, values...)
		if err := s.showPage(w, r, f, c, http.StatusUnauthorized, "login", p); err != nil {
			s.failUnexpected(w, r, err)
		}
	}
	p := s.providerOf(f.Provider.Name)
	if p == nil {
		again("There is no such provider to sign in with.", nil)
		return
	}
	if q.Get("error") != "" || q.Get("code") == "" {
		again("%s did not sign you in.", errors.New(printableText(q.Get("error"))), p.Name)
		return
	}
	u, err := s.userOf(ctx, p, f.Provider, q)
	if errors.Is(err, errNoAccount) {
		again("You are signed in with %s, but have no account here.", err, p.Name)
		return
	}
	if errors.Is(err, errFHIRUser) {
		again("You are signed in with %s, but the record that it names as yours (fhirUser) is not here.", err, p.Name)
		return
	}
	if err != nil {
		again("%s did not sign you in.", err, p.Name)
		return
	}
	s.signedIn(w, r, f, c, u)
}

var (
	errNoAccount = errors.New("there is no user for this identity")
	errFHIRUser  = errors.New("the fhirUser claim names no resource here")
)

// userOf exchanges the code of a provider's answer and finds, or makes, the user.
func (s *Server) userOf(ctx context.Context, p *provider, e *elsewhere, answer url.Values) (*storage.User, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*fetchTimeout)
	defer cancel()
	found, err := p.discover(oidc.ClientContext(context.WithoutCancel(ctx), s.remote))
	if err != nil {
		return nil, err
	}
	var promises struct {
		NamesItself bool `json:"authorization_response_iss_parameter_supported"`
	}
	if err := found.Claims(&promises); err != nil {
		return nil, err
	}
	if iss := answer.Get("iss"); iss != p.Issuer && (answer.Has("iss") || promises.NamesItself) {
		return nil, fmt.Errorf("the answer is of issuer %q", printableText(iss)) // RFC 9207 §2.4
	}
	token, err := s.oauthConfig(p, found.Endpoint()).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(e.Verifier))
	if err != nil {
		return nil, err
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return nil, errors.New("the provider gave no ID token")
	}
	id, err := found.Verifier(&oidc.Config{ClientID: p.ClientID, Now: s.Now}).Verify(ctx, raw)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(e.Nonce)) != 1 {
		return nil, errors.New("the ID token has another nonce")
	}
	if id.Subject == "" || len(id.Subject) > 255 || strings.ContainsRune(id.Subject, 0) {
		return nil, errors.New("the ID token has no sub of 1 to 255 characters") // OpenID Connect Core §2
	}
	// OpenID Connect Core §3.1.3.7, 3 to 5: other audiences are not ours to trust, unless
	// the token was made for us.
	var party struct {
		Authorized *string `json:"azp"`
	}
	if err := id.Claims(&party); err != nil {
		return nil, err
	}
	if party.Authorized == nil && len(id.Audience) > 1 || party.Authorized != nil && *party.Authorized != p.ClientID {
		return nil, errors.New("the ID token was made for another client (azp)")
	}
	name, err := s.Store.UserOfIdentity(ctx, id.Issuer, id.Subject)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, err
	}
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return nil, err
	}
	c := providerClaims{p, claims}
	if name == "" {
		if name, err = s.linkByName(ctx, id, c); err != nil {
			return nil, err
		}
	}
	if name != "" {
		return s.applyClaims(ctx, name, c)
	}
	return s.provision(ctx, id, c)
}
