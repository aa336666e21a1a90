package server

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kiln/definitions"
	"kiln/server/terminology"
)

// terminology builds the terminology service on the definitions of this program and
// the stored resources. It reads none of them yet.
func (s *Server) terminology() (*terminology.Service, error) {
	c := s.now().Terminology
	if at := strings.TrimRight(c.ServerURL, "/"); at != "" && slices.Contains(s.Config.baseURLs(), at) {
		return nil, fmt.Errorf("terminology.server_url is %q, this server itself: leave it empty to answer from local definitions", c.ServerURL)
	}
	t, err := terminology.New(terminology.Config{
		Disabled:  !c.Enabled,
		Packages:  definitions.Embedded,
		Resources: s.Store,
		Server:    s.terminologyServer(c),
		Answers:   s.Store,
		Sets:      s.Store,
		Logger:    s.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.runInBackground(t.Run)
	return t, nil
}

// terminologyServer is the terminology server that is asked; the calls are told in the
// traces of their requests.
func (s *Server) terminologyServer(c TerminologyConfig) terminology.ServerConfig {
	out := c.server()
	if out.URL != "" {
		out.Client = s.terminologyClient
	}
	return out
}

// server is the terminology server that is asked.
func (c TerminologyConfig) server() terminology.ServerConfig {
	if !c.External {
		return terminology.ServerConfig{}
	}
	return terminology.ServerConfig{
		URL:      c.ServerURL,
		CacheTTL: time.Duration(c.CacheTTLSecs) * time.Second,
		Timeout:  time.Duration(c.TimeoutSeconds) * time.Second,
		Token:    c.Token, Username: c.Username, Password: c.Password,
	}
}
