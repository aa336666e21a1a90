package oauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/maypok86/otter/v2"
	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/smart"
	"kiln/server/web"
)

// Records are the authorization server's questions to the FHIR side.
type Records interface {
	// Exists reports whether a reference such as Practitioner/1 has a target.
	Exists(ctx context.Context, reference string) (bool, error)
	// Patients returns patients that p may see: whose name or identifier begins
	// with text, born on birthDate; "" matches everyone.
	Patients(ctx context.Context, p *access.Principal, text, birthDate string) ([]Patient, error)
	// Encounters returns the encounters of a patient that p may see, latest first.
	Encounters(ctx context.Context, p *access.Principal, patient string) ([]Encounter, error)
	// Means reports whether a scope is about resources that there can be: a type and
	// search parameters of this server.
	Means(ctx context.Context, scope smart.Scope) bool
	// PatientOf returns the id of the patient of an encounter, "" for none.
	PatientOf(ctx context.Context, encounter string) (string, error)
	// ActsFor reports whether RelatedPerson/id is related to a patient now.
	ActsFor(ctx context.Context, relatedPerson, patient string) (bool, error)
	// Patient describes a patient whom p may see; of one whom p may not, it has the id.
	Patient(ctx context.Context, p *access.Principal, id string) (Patient, error)
	// Sees reports whether p may see a resource.
	Sees(ctx context.Context, p *access.Principal, typ, id string) (bool, error)
}

// Patient is a patient as the picker shows one.
type Patient struct{ ID, Name, BirthDate, Gender, Identifier string }

// Encounter is an encounter as the picker shows one.
type Encounter struct{ ID, Description, Period, Status string }

// Options are the parts of a Server.
type Options struct {
	Config Config
	// Current returns the configuration in force, for the keys that can change while the
	// server runs; nil is Config.
	Current func() Config
	BaseURL string // server.base_url
	Listen  string // server.listen
	// URL of the database, with the current schema. MaxConns bounds the connections.
	URL      string
	MaxConns int
	// Watch bounds how long the connections of a pool wait for a database that hangs;
	// nil leaves them as they are. Translate makes errors of the database those that
	// callers may know; nil knows none.
	Watch     func(*pgxpool.Config)
	Translate func(error) error
	// Replica returns the connections to a standby while reads continue without a primary, else nil; may be nil.
	Replica func() *pgxpool.Pool
	Records Records
	Proxies web.Proxies
	Logger  *slog.Logger
	// Audit records each event; nil keeps no record.
	Audit func(Event)
	// Explain says what allows or denies a principal a request; nil says nothing.
	Explain func(ctx context.Context, p *access.Principal, method, path string) (any, error)
	// Console returns the bounds of sessions of the console; nil has no console.
	Console func() ConsoleTimes
	Now     func() time.Time // nil is time.Now
}

// Server is the authorization server.
type Server struct {
	*Admin
	Issuer   string
	FHIRBase string // the audience of access tokens
	Records  Records
	Proxies  web.Proxies
	Logger   *slog.Logger

	options  Options
	pool     *pgxpool.Pool
	provider fosite.OAuth2Provider
	secrets  *secrets
	jwks     *remoteKeys
	remote   *http.Client
	revoked  *revoked
	reading  sync.Mutex  // one reader of revocations
	forgets  atomic.Bool // everything is to be read anew
	cache    *tokenCache
	standing *otter.Cache[standing, struct{}]
	others   atomic.Pointer[federation]
	logo     atomic.Pointer[picture] // auth.pages.logo; nil is none
	stop     context.CancelFunc
	stopped  sync.WaitGroup
}

// The intervals at which a server reads revocations, looks for new keys, and deletes
// expired rows.
const (
	readEvery  = 300 * time.Millisecond
	keysEvery  = 10 * time.Second
	sweepEvery = 10 * time.Minute
)

// New builds the authorization server and starts its background work; Close stops it.
func New(ctx context.Context, o Options) (_ *Server, err error) {
	c := o.Config
	issuer := IssuerOf(c, o.BaseURL, o.Listen)
	if err := c.CheckServe(issuer); err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, err
	}
	pc.MaxConns = 8
	if o.MaxConns > 0 {
		pc.MaxConns = int32(max(2, o.MaxConns))
	}
	if o.Watch != nil {
		o.Watch(pc)
	}
	if o.Translate == nil {
		o.Translate = func(err error) error { return err }
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, err
	}
	store := storage.New(pool)
	store.Replica = o.Replica
	s := &Server{
		Admin: NewAdmin(store, c), Issuer: issuer, FHIRBase: FHIRBaseOf(issuer, o.BaseURL), Records: o.Records, Proxies: o.Proxies, Logger: o.Logger,
		options: o, pool: pool, secrets: newSecrets(), revoked: newRevoked(),
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	if o.Now != nil {
		s.Admin.Now = o.Now
		store.Now = o.Now
	}
	s.Admin.Records, s.Admin.Revoked = o.Records, s.readRevocations
	if o.Current != nil {
		s.Admin.Config = o.Current
	}
	store.LookupGrant = s.lookupGrant
	s.remote = newHTTPClient(func() bool { return s.Config().AllowPrivateNetworks })
	s.jwks = newRemoteKeys(s.remote, func() time.Time { return s.Now() })
	if s.cache, err = newTokenCache(); err != nil {
		return nil, err
	}
	if s.standing, err = otter.New(&otter.Options[standing, struct{}]{
		MaximumSize: maxCached, ExpiryCalculator: otter.ExpiryWriting[standing, struct{}](standsFor),
	}); err != nil {
		return nil, err
	}
	if err := s.useFederation(c.Federation); err != nil {
		return nil, err
	}
	if err := s.useLogo(c.Pages); err != nil {
		return nil, fmt.Errorf("auth.pages.logo: %w", err)
	}
	s.compose()
	if err := s.EnsureKeys(ctx); err != nil {
		return nil, err
	}
	if err := s.Bootstrap(ctx); err != nil {
		return nil, err
	}
	if o.Console != nil {
		if err := s.ensureConsoleClient(ctx); err != nil {
			return nil, fmt.Errorf("store the client of the console: %w", err)
		}
	}
	if _, err := s.revoked.readRevocations(ctx, store); err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.stopped.Go(func() { s.run(background) })
	return s, nil
}

// Reconfigure applies the parts of a new configuration that are not read at each use: keys
// of another algorithm, other providers and issuers, absent clients and users. A failure is
// logged, and the rest is applied.
func (s *Server) Reconfigure(ctx context.Context, was, is Config) {
	attempt := func(section string, do func() error) {
		if err := do(); err != nil {
			s.Logger.ErrorContext(ctx, "authorization server: the new configuration", slog.String("section", section), slog.Any("error", err))
		}
	}
	if was.Signing.Algorithm != is.Signing.Algorithm || was.Signing.KeyRotationDays != is.Signing.KeyRotationDays {
		attempt("auth.signing", func() error { return s.EnsureKeys(ctx) })
	}
	if !reflect.DeepEqual(was.Federation, is.Federation) {
		attempt("auth.federation", func() error { return s.useFederation(is.Federation) })
	}
	if was.Pages.Logo != is.Pages.Logo {
		attempt("auth.pages", func() error { return s.useLogo(is.Pages) })
	}
	if !reflect.DeepEqual(was.Bootstrap, is.Bootstrap) {
		attempt("auth.bootstrap", func() error { return s.Bootstrap(ctx) })
	}
}

// Close stops the server's own work.
func (s *Server) Close() {
	s.stop()
	s.stopped.Wait()
	s.pool.Close()
}

// run reads changes of other servers, until ctx ends.
func (s *Server) run(ctx context.Context) {
	read, keys, sweep := time.NewTicker(readEvery), time.NewTicker(keysEvery), time.NewTicker(sweepEvery)
	defer read.Stop()
	defer keys.Stop()
	defer sweep.Stop()
	failing := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-read.C:
			err = s.readChanges(ctx)
		case <-keys.C:
			err = s.keys.loadKeys(ctx)
		case <-sweep.C:
			s.revoked.deleteExpired(s.Now())
			if err = s.Store.Sweep(ctx); err == nil {
				err = s.EnsureKeys(ctx)
			}
			if c := s.options.Console; c != nil && err == nil {
				err = s.Store.SweepConsoleSessions(ctx, s.Now().Add(-c().Idle), s.Now().Add(-c().Lifetime))
			}
		}
		if err != nil && ctx.Err() == nil && !failing {
			s.Logger.Error("authorization server: changes of other servers cannot be read", slog.Any("error", err))
		}
		failing = err != nil
	}
}

// readRevocations reads the latest revocations at once.
func (s *Server) readRevocations(ctx context.Context) {
	s.standing.InvalidateAll()
	if err := s.readChanges(context.WithoutCancel(ctx)); err != nil {
		s.Logger.ErrorContext(ctx, "read revocations", slog.Any("error", err))
	}
}

// Forget makes the server read anew what it remembers of the database: revocations, keys and
// verified tokens. It does not wait for that.
func (s *Server) Forget() {
	s.ClearCache()
	s.forgets.Store(true)
}

// readChanges applies what any server has recorded since the last time.
func (s *Server) readChanges(ctx context.Context) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.forgets.Swap(false) {
		err := errors.Join(s.revoked.reread(ctx, s.Store), s.keys.loadKeys(ctx))
		if err != nil {
			s.forgets.Store(true)
		}
		s.ClearCache()
		return err
	}
	changed, err := s.revoked.readRevocations(ctx, s.Store)
	if changed {
		// The keys come first: a token verified in between by a withdrawn key must not stay in the cache.
		err = errors.Join(err, s.keys.loadKeys(ctx))
		s.cache.clear()
	}
	return err
}

// Mount adds the paths of the authorization server.
func (s *Server) Mount(m *web.Mux) {
	pages, endpoints := web.Public, web.Public
	pages.Throttled, endpoints.Throttled = s.throttledPage, s.writeThrottled
	logout := endpoints
	logout.Throttled = s.throttledLogout
	for _, path := range []string{"/.well-known/smart-configuration", "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"} {
		m.HandleFunc(web.Public, "GET "+path, s.discovery)
	}
	m.HandleFunc(web.Public, "GET /.well-known/jwks.json", s.publicKeys)
	m.HandleFunc(pages, "GET /auth/authorize", s.authorize)
	m.HandleFunc(pages, "POST /auth/authorize", s.authorizePost)
	m.HandleFunc(pages, "GET /auth/callback", s.callback)
	m.HandleFunc(web.Public, "GET /auth/style.css", s.serveStyle)
	m.HandleFunc(web.Public, "GET "+stylePath, s.serveSmartStyle)
	m.HandleFunc(web.Public, "GET "+faviconPath, s.serveFavicon)
	m.HandleFunc(web.Public, "GET "+logoPath, s.serveLogo)
	m.HandleFunc(endpoints, "POST /auth/token", s.token)
	m.HandleFunc(endpoints, "POST /auth/revoke", s.revoke)
	m.HandleFunc(endpoints, "POST /auth/introspect", s.introspect)
	m.HandleFunc(pages, "GET /auth", s.goToGrants)
	m.HandleFunc(pages, "GET /auth/{$}", s.goToGrants)
	m.HandleFunc(pages, "GET "+grantsPath, s.grantsPage)
	m.HandleFunc(pages, "POST "+grantsPath, s.withdrawGrant)
	m.HandleFunc(pages, "GET /auth/logout", s.logoutPage)
	m.HandleFunc(logout, "POST /auth/logout", s.logout)
	m.HandleFunc(web.FHIR, "POST /auth/launch", s.createLaunch)
	m.HandleFunc(web.FHIR, "GET /auth/userinfo", s.userinfo)
	m.HandleFunc(web.FHIR, "POST /auth/userinfo", s.userinfo)
	m.HandleFunc(endpoints, "POST /auth/register", s.register)
	s.mountAdmin(m)
}
