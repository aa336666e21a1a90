package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/definitions"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/admin"
	"kiln/server/interaction"
	"kiln/server/operation"
	"kiln/server/postgres"
	"kiln/server/rest"
	"kiln/server/searchparam"
	"kiln/server/store"
)

// Server is the service with all its parts.
type Server struct {
	Config   Config
	Database *postgres.Server // the private PostgreSQL; nil with database.url
	Store    *store.Store
	Service  *interaction.Service
	// Parameters are the search parameters in force.
	Parameters *searchparam.Service
	Handler    *rest.Handler
	Logger     *slog.Logger

	operations      *operation.Set
	stopTerminology func()
	stopParameters  func()
}

// Options are what a Server gets beside its configuration.
type Options struct {
	Version string // of the software
	Logger  *slog.Logger
	// Listening is called with the address as soon as requests are taken, Ready
	// when they are served. Both may be nil.
	Listening func(address string)
	Ready     func(*Server)
}

// New builds every part of the service; what it starts, Close stops.
func New(ctx context.Context, c Config, o Options) (_ *Server, err error) {
	s := &Server{Config: c, Logger: o.Logger}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	proxies, err := c.trustedProxies()
	if err != nil {
		return nil, err
	}

	// The database, with its schema up to date.
	var url string
	if s.Database, url, err = StartDatabase(ctx, c); err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx, url); err != nil {
		return nil, fmt.Errorf("bring the database's schema up to date: %w", err)
	}
	if s.Store, err = store.Open(ctx, store.Config{URL: url, MaxConns: c.Database.MaxConnections, Logger: o.Logger}); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}

	// What FHIR means.
	s.Service = &interaction.Service{
		Model:              r4.Model,
		Extract:            index.Extract,
		Store:              s.Store,
		Now:                time.Now,
		NewID:              newID,
		DefaultCount:       c.Search.DefaultCount,
		MaxCount:           c.Search.MaxCount,
		RefuseUpdateCreate: !c.FHIR.UpdateCreate,
		BaseURLs:           c.baseURLs(),
		Explain:            c.Search.Explain,
		SearchTimeout:      time.Duration(c.Search.TimeoutSeconds) * time.Second,
		Facts:              interaction.Facts{Version: o.Version, Date: time.Now().UTC().Format(time.DateOnly), URL: c.baseURL(), Profiles: index.Profiles},
		Logger:             o.Logger,
	}

	if err := s.parameters(ctx); err != nil {
		return nil, err
	}

	// What codes mean.
	if s.Service.Terminology, err = s.terminology(); err != nil {
		return nil, err
	}
	s.operations = operation.New(s.Service)
	s.Service.Operations = s.operations

	// What content may be.
	s.validation()

	// HTTP.
	metrics := prometheus.NewRegistry()
	admin.RegisterProcess(metrics)
	admin.RegisterPools(metrics, s.Store.Pools)
	s.Handler = &rest.Handler{
		Service:             s.Service,
		BaseURL:             c.baseURL(),
		TrustedProxies:      proxies,
		MaxBodyBytes:        c.Server.MaxBodyBytes,
		AllowedOrigins:      c.Server.AllowedOrigins,
		AllowSkipValidation: c.Validation.AllowSkip,
		LogAccess:           rest.LogAccess(c.Log.Access),
		Logger:              o.Logger,
		Metrics:             rest.NewMetrics(metrics),
	}
	s.Handler.Mount(admin.Routes(admin.Options{Ready: s.ready, Metrics: metrics, Pprof: c.Server.Pprof}))
	return s, nil
}

// StartDatabase returns the URL of the configured database, after starting it
// when it is a private one; database is nil otherwise.
func StartDatabase(ctx context.Context, c Config) (database *postgres.Server, url string, err error) {
	if c.Database.URL != "" {
		return nil, c.Database.URL, nil
	}
	database, err = postgres.Start(ctx, postgres.Options{DataDir: c.Database.DataDir})
	if err != nil {
		return nil, "", err
	}
	return database, database.URL, nil
}

// ready is why the server cannot serve, nil when it can.
func (s *Server) ready(ctx context.Context) error {
	if err := s.Store.Ping(ctx); err != nil {
		return err
	}
	return s.Parameters.Err()
}

// newID makes logical ids: UUIDs of version 7, which sort by time of creation.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// Close stops what New started.
func (s *Server) Close() {
	if s.stopTerminology != nil {
		s.stopTerminology()
	}
	if s.stopParameters != nil {
		s.stopParameters()
	}
	if s.Store != nil {
		s.Store.Close()
	}
	if s.Database != nil {
		if err := s.Database.Stop(); err != nil {
			s.Logger.Error("stop the private PostgreSQL", slog.Any("error", err))
		}
	}
}

// gcPercent lets the heap grow to three times what is alive before it is collected:
// alive are some 20 MB, and requests leave pages of resources behind. It takes a
// tenth off the processor time of searches and pages, for 30 MB. GOGC overrides it.
const gcPercent = 200

// Run serves until ctx ends, then lets running requests finish. The address is
// taken first, so that /health/live answers while the database starts.
func Run(ctx context.Context, c Config, o Options) error {
	if err := c.CheckServe(); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	listener, err := net.Listen("tcp", c.Server.Listen)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	var handler atomic.Pointer[http.Handler]
	starting := admin.Starting()
	handler.Store(&starting)
	web := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       5 * time.Minute,
		WriteTimeout:      10 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    256 << 10,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	if o.Listening != nil {
		o.Listening(listener.Addr().String())
	}
	s, err := New(ctx, c, o)
	if err != nil {
		web.Close()
		return err
	}
	defer s.Close()
	var ready http.Handler = s.Handler
	handler.Store(&ready)
	if o.Ready != nil {
		o.Ready(s)
	}
	// The definitions are opened while nobody waits for them: the first write with a
	// bound code, an extension or a profile would. An error is told to whom it
	// concerns.
	go func() { _, _ = definitions.Embedded() }()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	o.Logger.Info("stopping: running requests are finished first")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.drain())
	defer cancel()
	if err := web.Shutdown(drain); err != nil {
		o.Logger.Warn("requests were cut off", slog.Any("error", err))
		web.Close()
	}
	return nil
}
