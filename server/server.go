package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/definitions"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/admin"
	"kiln/server/app"
	"kiln/server/audit"
	"kiln/server/bulk"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify"
	"kiln/server/operation"
	"kiln/server/outbound"
	"kiln/server/outcome"
	"kiln/server/postgres"
	"kiln/server/ratelimit"
	"kiln/server/rest"
	"kiln/server/retention"
	"kiln/server/searchparam"
	"kiln/server/searchshape"
	"kiln/server/settings"
	"kiln/server/store"
	"kiln/server/telemetry"
	"kiln/server/terminology"
	"kiln/server/validate"
	"kiln/server/view/operate"
	"kiln/server/view/table"
	"kiln/server/web"
)

// Server is the service with all its parts.
type Server struct {
	Config      Config // at the start; that of Settings is in force
	Settings    *settings.Settings[Config]
	Logger      *slog.Logger
	Database    *postgres.Server // the private PostgreSQL; nil with database.url
	Store       *store.Store
	Terminology *terminology.Service
	Validator   *validate.Validator
	Parameters  *searchparam.Service // the search parameters in force
	Service     *interaction.Service
	Operations  *operation.Set
	Apps        *app.Platform
	Metrics     *prometheus.Registry
	Streams     *web.OpenStreams
	Handler     http.Handler // every path

	derived atomic.Pointer[derived]
	tracing telemetry.Tracing
	// terminologyClient calls the terminology server.
	terminologyClient *http.Client
	limiter           *ratelimit.Limiter
	audit             *audit.Recorder
	recorder          *searchshape.Recorder
	policies          *access.PolicySource
	notifier          *notify.Service
	bulk              *bulk.Service
	views             *operate.Service
	retention         *retention.Service
	admin             *admin.Part
	version           string
	instance          string       // the id of this process among those of the database
	served            atomic.Int64 // requests
	inFlight          web.InFlight
	profiles          *profiles // that are stored
	guides            *guides   // of packages
	heap              heap
	leaving           atomic.Bool // it serves until its drain delay is over, and is not ready
	closers           []func()    // in the order of building; Close runs them backwards

	authorizationServer Authorization // nil with auth.enabled false
}

// Options are the parameters of a Server beside its configuration.
type Options struct {
	// Sandbox starts a process that scripts of Apps run in: a program and its
	// arguments, behind which the limit of memory stands. Without it there are none.
	Sandbox []string
	Version string // of the software
	Logger  *slog.Logger
	// LogLevel is the level of Logger, which follows the configuration; may be nil.
	LogLevel *slog.LevelVar
	// LogFormat makes Logger write text or json; may be nil.
	LogFormat func(format string)
	// Origin says of each key of the configuration that was set where:
	// settings.SourceFlag, settings.SourceEnvironment, or the name of a file.
	Origin map[string]string
	// Authorization builds the authorization server on the parts that exist already:
	// database, store and interactions. It is called with auth.enabled; nil builds the one
	// of package oauth.
	Authorization func(ctx context.Context, s *Server) (Authorization, error)
	// Listening is called with the address as soon as requests are taken, Ready
	// when they are served. Both may be nil.
	Listening func(address string)
	Ready     func(*Server)
	// ListeningMetrics is Listening of server.metrics_listen; may be nil.
	ListeningMetrics func(address string)
}

// Authorization is the authorization server: it has paths of its own, and knows the
// tokens that it gave out.
type Authorization interface {
	web.Part
	access.Verifier
	Close()
}

// New builds the parts of the service, each complete, from the bottom up: no part is
// changed by a later one. Close stops them.
func New(ctx context.Context, c Config, o Options) (_ *Server, err error) {
	s := &Server{Config: c, Logger: o.Logger, version: o.Version, instance: fhir.NewID(), Metrics: prometheus.NewRegistry(), tracing: telemetry.Tracing{Logger: o.Logger}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.Store, err = s.openStore(ctx, o); err != nil {
		return nil, err
	}
	epoch := s.Store.Epoch()
	s.onClose(s.tracing.Close)
	if err := s.openSettings(ctx, o); err != nil { // administrators' settings
		return nil, err
	}
	c = s.Config
	s.terminologyClient = &http.Client{Transport: telemetry.Transport{Base: outbound.WithoutUpgrade{Base: http.DefaultTransport}, Tracing: &s.tracing, Name: "terminology"}}
	if s.Terminology, err = s.terminology(); err != nil { // what codes mean
		return nil, err
	}
	s.Validator = s.validator() // what content may be
	if s.Parameters, err = s.parameters(ctx); err != nil {
		return nil, err
	}
	s.recorder = s.searchRecorder()
	s.policies = s.policySource() // rights by policy
	s.Service = s.interactions(o) // what FHIR means
	s.audit = s.auditRecorder()   // audit trail
	s.limiter = s.rateLimiter()
	s.Streams = &web.OpenStreams{Enter: func(w http.ResponseWriter, r *http.Request) (func(), error) {
		return s.limiter.Enter(r.Context(), w.Header(), r, ratelimit.Stream)
	}}
	if c.Auth.Enabled {
		if err := s.startPolicies(ctx); err != nil {
			return nil, err
		}
		if s.authorizationServer, err = s.authorization(ctx, o); err != nil {
			return nil, err
		}
	}
	if s.Operations, err = s.operations(); err != nil {
		return nil, err
	}
	if s.bulk, err = s.bulkData(); err != nil {
		return nil, err
	}
	s.views = s.viewOperations()
	tables := s.viewTables()
	s.retention = s.retentionJobs()
	s.bulk.Jobs.Kinds = append(s.bulk.Jobs.Kinds, searchshape.BuildKind(s.Store, s.Logger))
	s.Parameters.ReindexOn(s.bulk.Jobs)
	fhir := s.fhir()
	s.notifier = s.notifications(fhir)
	s.Apps = s.apps(o)
	if err := s.startNotifications(); err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}

	// The paths, each part its own; FHIR has all that is left.
	s.admin = s.administration()
	parts := []web.Part{s.admin, &admin.Access{Decider: s.Service.Access, Policies: s.policies, Store: s.Store, Changed: s.administratorChanged}}
	if s.authorizationServer != nil {
		parts = append(parts, s.authorizationServer)
	}
	mux := s.mux()
	traffic := s.traffic()
	mux.Observed = traffic.Observe
	parts = append(parts, s.notifier, s.Apps, s.bulk, traffic, &table.Admin{Service: tables, Base: fhir.Base, Changed: s.administratorChanged})
	if c, err := s.console(ctx); err != nil {
		return nil, err
	} else if c != nil {
		parts = append(parts, c)
	}
	parts = append(parts, fhir)
	for _, p := range parts {
		p.Mount(mux)
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.served.Add(1)
		mux.ServeHTTP(w, r)
	})
	s.Store.OnEpoch(s.forgetDatabase)
	if s.Store.Epoch() != epoch { // meanwhile
		s.forgetDatabase()
	}
	s.Store.ReadAhead()
	s.runInBackground(s.bulk.Jobs.Run)
	s.runInBackground(tables.Run)
	s.runInBackground(traffic.Run)
	s.runInBackground(s.retention.Run)
	s.runInBackground(s.keepUp)
	s.onClose(s.endStreams)
	return s, nil
}

// onClose makes Close run f, before it closes the parts built earlier.
func (s *Server) onClose(f func()) { s.closers = append(s.closers, f) }

// runInBackground runs a part's own work until Close.
func (s *Server) runInBackground(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { run(ctx) })
	s.onClose(func() {
		cancel()
		done.Wait()
	})
}

// Close stops what New started, last things first.
func (s *Server) Close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
	s.closers = nil
}

// endStreams tells WebSockets and event streams to end, and waits for them.
func (s *Server) endStreams() {
	ctx, cancel := context.WithTimeout(context.Background(), s.Config.drain())
	defer cancel()
	if err := s.Streams.End(ctx); err != nil {
		s.Logger.Warn("streams did not end in time", slog.Int("streams", s.Streams.Len()))
	}
}

// openStore starts the private PostgreSQL where that is wanted, brings the schema up
// to date, and opens the store.
func (s *Server) openStore(ctx context.Context, o Options) (*store.Store, error) {
	c := s.Config.Database
	database, url, err := StartDatabase(ctx, s.Config)
	if err != nil {
		return nil, err
	}
	if s.Database = database; database != nil {
		s.onClose(func() {
			if err := database.Stop(); err != nil {
				s.Logger.Error("stop the private PostgreSQL", slog.Any("error", err))
			}
		})
	}
	// A PostgreSQL that answers can stop right after that, as one whose server was killed: each
	// step is repeated while the database is not up.
	var st *store.Store
	err = whileUp(ctx, url, time.Duration(c.WaitSeconds)*time.Second, s.Logger, func() (err error) {
		st, err = s.openDatabase(ctx, url, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.onClose(st.Close)
	return st, nil
}

// openDatabase brings the schema up to date and opens the store.
func (s *Server) openDatabase(ctx context.Context, url string, o Options) (*store.Store, error) {
	url, err := store.PreferLatest(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx, url); err != nil {
		return nil, fmt.Errorf("bring the database's schema up to date: %w", err)
	}
	// The administrators' settings of the connections hold from now on.
	list, err := store.ReadSettings(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	stored, _ := settings.Overlay(s.settingsConfig(o), list)
	c := stored.Database
	st, err := store.Open(ctx, store.Config{URL: url, MaxConns: c.MaxConnections, KeepChanges: s.Config.notifications().Retention, Timeout: time.Duration(c.TimeoutSeconds) * time.Second,
		Replicas:     replicaConfig(c),
		SearchMemory: searchMemory(s.Config.Search), ReportCacheBytes: s.heap.setCacheSize, Logger: s.Logger})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return st, nil
}

// searchMemory is what store.Config.SearchMemory is for search.memory_mb.
func searchMemory(c SearchConfig) int64 {
	if c.MemoryMB == 0 {
		return -1
	}
	return int64(c.MemoryMB) << 20
}

// interactions builds the FHIR interactions. Parts that are built later are looked up when
// a request needs them.
func (s *Server) interactions(o Options) *interaction.Service {
	c := s.Config
	return &interaction.Service{
		Model:          r4.Model,
		Store:          s.Store,
		Parameters:     s.Parameters,
		Now:            time.Now,
		NewID:          fhir.NewID,
		Settings:       func() *interaction.Settings { return &s.derived.Load().interaction },
		BaseURLs:       c.baseURLs(),
		CheckContent:   checkView,
		Validator:      writesValidator{s},
		Terminology:    s.Terminology,
		Definition:     s.definition,
		Resolve:        s.resolve,
		BuiltIn:        builtIn,
		Operations:     func() interaction.Operations { return s.Apps },
		StoredProfiles: s.profiles.profilesByType,
		Facts: interaction.Facts{Version: o.Version, Date: time.Now().UTC().Format(time.DateOnly), URL: c.baseURL(), Profiles: index.Profiles,
			OAuthURIs: s.oauthURIs, Export: func() bool { return s.now().Bulk.Export.Enabled }, Import: func() bool { return s.now().Bulk.Import.Enabled },
			CORS:   func() bool { return len(s.now().Server.AllowedOrigins) > 0 },
			Guides: s.guides.of, Instantiates: func() []string { return s.now().Server.Instantiates },
			Topics: func(ctx context.Context) ([]string, error) { return s.notifier.Topics(ctx) }},
		Access:   s.policies.Decider,
		LogRead:  s.logRead,
		Masks:    map[string]interaction.Mask{"Subscription": func(ctx context.Context, list []fhir.Version) error { return s.notifier.Mask(ctx, list) }},
		Searched: s.recorder.Ran,
		Settle:   func(ctx context.Context) error { return s.audit.Settle(ctx) },
		Logger:   s.Logger,
	}
}

// operations builds the server's own operations.
func (s *Server) operations() (*operation.Set, error) {
	set, err := operation.New(s.Service, index.Operations)
	if err != nil {
		return nil, err
	}
	if err := set.Register(index.Operations, operate.Listed(s.now().Views.SQL.DatabaseURL != "")...); err != nil {
		return nil, err
	}
	return set, set.RegisterValidate(index.Operations, s.Validator, s.validation())
}

// rateLimiter bounds the requests of clients.
func (s *Server) rateLimiter() *ratelimit.Limiter {
	return &ratelimit.Limiter{Limits: func() ratelimit.Limits { return s.derived.Load().limits }, Store: s.Store, Now: time.Now,
		Proxies: func() web.Proxies { return s.derived.Load().web.Proxies }}
}

// mux is the root of all paths, with the handling that all share.
func (s *Server) mux() *web.Mux {
	m := &web.Mux{
		Limiter:  s.limiter,
		Settings: func() *web.Settings { return &s.derived.Load().web },
		Metrics:  web.NewMetrics(s.Metrics),
		InFlight: &s.inFlight,
		Tracing:  &s.tracing,
		Logger:   s.Logger,
	}
	if s.authorizationServer != nil {
		m.Verifier, m.Decided = s.authorizationServer, s.recordAccessDecision
	}
	return m
}

// auditRecorder records interactions and what administrators do.
func (s *Server) auditRecorder() *audit.Recorder {
	a := &audit.Recorder{Rest: func() string { return s.now().auditRest() }, Store: s.Store, Now: time.Now, Logger: s.Logger,
		Proxies: func() web.Proxies { return s.derived.Load().web.Proxies },
		Make:    func(body []byte) (*store.Write, error) { return s.Service.NewWrite("AuditEvent", body) }}
	a.Start()
	s.onClose(a.Close)
	return a
}

// administration answers for the state of this server.
func (s *Server) administration() *admin.Part {
	admin.RegisterProcess(s.Metrics)
	admin.RegisterPools(s.Metrics, s.Store.Pools)
	s.registerEpochMetrics()
	s.registerReplicaMetrics()
	caches := s.caches()
	s.registerStateMetrics(caches)
	return &admin.Part{Instance: s.instance, Ready: s.ready, Health: s.databaseHealth, Replicas: s.Store.ReplicaStatistics, Metrics: s.Metrics, Pprof: func() bool { return s.now().Server.Pprof },
		Searches: s.searches(), SortIndexes: s.Parameters, StartRetention: s.startRetention, Jobs: []admin.JobSource{reindexJobs{s.Store}, coreJobs{s.bulk.Jobs, s.Store}},
		Settings: s.Settings, Caches: caches, Pools: s.Store.Pools, Database: s.Store.Statistics,
		ClearEverywhere: func(ctx context.Context, names string) error {
			return s.Store.RaiseSignal(ctx, store.SignalCaches, names)
		},
		Instances: func(ctx context.Context) ([]store.Instance, error) {
			return s.Store.Instances(ctx, time.Now().Add(-instanceDead))
		},
		Changed: s.administratorChanged,
	}
}

// administratorChanged records an administrator's change.
func (s *Server) administratorChanged(ctx context.Context, r *http.Request, x *web.Exchange, what, to string) {
	e := s.audit.EventOf(ctx, x, r)
	e.Interaction, e.Action, e.Description = "configure", "U", what+": "+to
	s.audit.Record(e)
}

// clearCaches empties the caches of this server: those named, with commas between,
// or all.
func (s *Server) clearCaches(names string) {
	if names == "" {
		s.admin.ClearCaches(nil)
		return
	}
	s.admin.ClearCaches(strings.Split(names, ","))
}

// authorization builds the authorization server.
func (s *Server) authorization(ctx context.Context, o Options) (Authorization, error) {
	build := o.Authorization
	if build == nil {
		build = func(ctx context.Context, s *Server) (Authorization, error) { return NewAuthorization(ctx, s) }
	}
	a, err := build(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	s.onClose(a.Close)
	return a, nil
}

// fhir answers FHIR's paths.
func (s *Server) fhir() *rest.Handler {
	return &rest.Handler{
		Service:             s.Service,
		BaseURL:             s.Config.baseURL(),
		MaxBodyBytes:        func() int64 { return s.now().Server.MaxBodyBytes },
		AllowSkipValidation: func(ctx context.Context) bool { return s.enabled(ctx, "validation.skip") },
		Audit:               s.audit,
		Proxies:             func() web.Proxies { return s.derived.Load().web.Proxies },
		Attribute:           func(ctx context.Context) context.Context { return s.Apps.Attribute(ctx) },
		Enter:               s.limiter.Enter,
		Background:          s.bulk,
		Streamed:            s.views,
	}
}

// StartDatabase returns the URL of the configured database, after starting it
// when it is a private one; database is nil otherwise.
func StartDatabase(ctx context.Context, c Config) (database *postgres.Server, url string, err error) {
	if c.Database.URL != "" {
		return nil, c.Database.URL, nil
	}
	database, err = postgres.Start(ctx, postgres.Options{DataDir: c.Database.DataDir, Wait: time.Duration(c.Database.WaitSeconds) * time.Second})
	if err != nil {
		return nil, "", err
	}
	return database, database.URL, nil
}

// errLeaving says that a server that still serves is about to stop.
var errLeaving = outcome.Unavailable("the server is stopping")

// ready is why the server cannot serve, nil when it can.
func (s *Server) ready(ctx context.Context) error {
	if s.leaving.Load() {
		return errLeaving
	}
	if s.Store.ReadsContinue() {
		return nil
	}
	if err := s.Store.Ping(ctx); err != nil {
		if s.Store.ReadsContinue() { // it was lost meanwhile
			return nil
		}
		return err
	}
	return s.Parameters.Err()
}

// Run serves until ctx ends, then lets running requests finish. The address is
// taken first, so that /health/live answers while the database starts.
func Run(ctx context.Context, c Config, o Options) error {
	if err := c.CheckServe(); err != nil {
		return err
	}
	files := &certificateFiles{config: c.Server.TLS, logger: o.Logger}
	if err := files.load(); err != nil {
		return err
	}
	served := make(chan error, 2) // why listeners have ended
	main := newFront("server.listen", o.Listening, c.Server.MaxConnections, files, served, o.Logger)
	defer main.server.Close()
	if err := main.listen(c.Server.Listen); err != nil {
		return err
	}
	metrics := newFront("server.metrics_listen", o.ListeningMetrics, metricsConnections, files, served, o.Logger)
	defer metrics.server.Close()
	if err := metrics.listen(c.Server.MetricsListen); err != nil {
		return err
	}
	s, err := New(ctx, c, o)
	if err != nil {
		return err
	}
	defer s.Close()
	s.heap.paceCollections(ctx)
	files.setFiles(s.Config.Server.TLS)
	main.connections.set(s.Config.Server.MaxConnections)
	observed := serveObservation(s.Handler)
	metrics.handler.Store(&observed)
	s.Settings.OnChange(func(c Config) {
		files.setFiles(c.Server.TLS)
		main.connections.set(c.Server.MaxConnections)
		if err := metrics.listen(c.Server.MetricsListen); err != nil {
			o.Logger.Error("change a listener", slog.Any("error", err))
		}
	})
	// An administrator can have set other addresses.
	if err := errors.Join(main.listen(s.Config.Server.Listen), metrics.listen(s.Config.Server.MetricsListen)); err != nil {
		return err
	}
	main.handler.Store(&s.Handler)
	if o.Ready != nil {
		o.Ready(s)
	}
	// The definitions are opened in the background: otherwise the first write with a bound
	// code, an extension or a profile would wait for it. An error comes back in the
	// requests that need them. Memory of the start is given back then: an idle server takes
	// a sixth less.
	go func() {
		_, _ = definitions.Embedded()
		debug.FreeOSMemory()
	}()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	if delay := time.Duration(s.now().Server.DrainDelay) * time.Second; delay > 0 {
		s.leaving.Store(true)
		o.Logger.Info("stopping: not ready from now on, and serving for a while", slog.Duration("delay", delay))
		select {
		case err := <-served:
			return err
		case <-time.After(delay):
		}
	}
	o.Logger.Info("stopping: running requests are finished first")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.drain())
	defer cancel()
	var streams sync.WaitGroup
	streams.Go(s.endStreams)
	if err := main.server.Shutdown(drain); err != nil { // metrics are served until the end
		o.Logger.Warn("requests were cut off", slog.Any("error", err))
		main.server.Close()
	}
	streams.Wait()
	metrics.server.Close()
	return nil
}
