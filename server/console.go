package server

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"kiln/gen/db"
	"kiln/server/admin"
	"kiln/server/console"
	"kiln/server/fhir"
)

// queries asks the database.
func (s *Server) queries() *db.Queries { return db.New(s.Store.Pool()) }

// traffic counts the requests of this server.
func (s *Server) traffic() *admin.Traffic {
	return &admin.Traffic{DB: s.queries, Server: fhir.NewID(), Now: time.Now, Logger: s.Logger}
}

// console builds the console, nil where the authorization server keeps no sessions for it.
func (s *Server) console(ctx context.Context) (*console.Console, error) {
	c := &console.Console{
		Service: s.Service, Registry: s.Parameters.Current, DB: s.queries, Ready: s.ready, Streams: s.Streams, Metrics: s.Metrics, Version: s.version, Logger: s.Logger,
		Settings: func() console.Settings {
			now := s.now()
			return console.Settings{Enabled: s.Settings.Enabled("console", ""), Times: now.Console.times(), Name: now.Auth.Pages.DisplayName(), Explain: s.Settings.Enabled("search.explain", ""),
				BaseURL: now.Server.BaseURL, MaxBody: now.Server.MaxBodyBytes}
		},
	}
	if s.authorizationServer != nil {
		sessions, ok := s.authorizationServer.(console.Authorization)
		if !ok {
			return nil, nil
		}
		c.Auth = sessions
	}
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // never fails
	if err := s.queries().AddConsoleKey(ctx, fresh); err != nil {
		return nil, fmt.Errorf("store the key of the console: %w", err)
	}
	var err error
	if c.Key, err = s.queries().ReadConsoleKey(ctx); err != nil {
		return nil, fmt.Errorf("read the key of the console: %w", err)
	}
	return c, nil
}
