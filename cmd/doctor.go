package main

import (
	"errors"

	"github.com/spf13/cobra"

	"kiln/server"
	"kiln/server/access"
)

// doctor is `kiln doctor`.
func doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation for problems",
		Long: `Check the configuration, the address, the terminology server and the database: it can
be written, it keeps acknowledged writes in a crash, and it has the tables of this
build. A private PostgreSQL is started for the check. The exit status is not zero if a
check fails.`,
		Example: `  kiln doctor
  kiln doctor --database-url postgres://kiln@db/kiln --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			found := examine(c)
			if wantsJSON(c) {
				if err := printJSON(c.OutOrStdout(), found); err != nil {
					return err
				}
			} else {
				found.print(c.OutOrStdout())
			}
			if found.err() != nil {
				return reportedError{errors.New("something is wrong")}
			}
			return nil
		},
	}
}

// examine looks at everything, as far as one thing does not need another.
func examine(c *cobra.Command) findings {
	var out findings
	cfg, err := loadConfig(c)
	err = errors.Join(err, cfg.Check())
	if !out.add("configuration", "every key is known and has a value that works", err) {
		return out
	}
	out.checkSurroundings(c, cfg)
	if cfg.Database.URL != "" {
		out.checkDatabase(c.Context(), cfg.Database.URL, cfg.Auth.Enabled)
		out.checkReplicas(c.Context(), cfg.Database.URL, cfg.Database.ReadURLs)
		return out
	}
	database, url, err := server.StartDatabase(c.Context(), cfg)
	if !out.add("PostgreSQL", "it starts and answers", err) {
		return out
	}
	defer database.Stop()
	out.checkDatabase(c.Context(), url, cfg.Auth.Enabled)
	out.checkReplicas(c.Context(), url, cfg.Database.ReadURLs)
	return out
}

// checkSurroundings checks a server's address and the terminology server.
func (f *findings) checkSurroundings(c *cobra.Command, cfg server.Config) {
	f.add("address", cfg.Server.Listen+" is not reachable from other machines, or access is controlled", access.CheckListen("server.listen", cfg.Server.Listen, cfg.Auth.Enabled))
	f.checkPort(c.Context(), "port", cfg.Server.Listen)
	if at := cfg.Server.MetricsListen; at != "" {
		f.add("address of metrics", at+" is not reachable from other machines, or access is controlled", access.CheckListen("server.metrics_listen", at, cfg.Auth.Enabled))
		f.checkPort(c.Context(), "port of metrics", at)
	}
	if cfg.Server.TLS.CertFile != "" {
		f.add("TLS", "the certificate and its key can be used", cfg.Server.TLS.CheckFiles())
	}
	f.checkTerminology(c.Context(), cfg.Terminology)
}
