package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"kiln/server"
	"kiln/server/settings"
)

// serve is `kiln serve`.
func serve() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Run the server until it is interrupted.

With nothing configured it listens on 127.0.0.1:8080 and keeps its data in a
PostgreSQL of its own under .kiln/, which it starts from the system's binaries
and stops when it ends.`,
		Example: `  kiln serve
  kiln serve --listen 127.0.0.1:9090 --data-dir /var/lib/kiln
  kiln serve --database-url postgres://kiln@db/kiln --base-url https://fhir.example.org/fhir
  KILN_SERVER__LISTEN=127.0.0.1:9090 kiln serve`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readConfig(c.Flags(), os.Environ())
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			cfg, level := l.config, new(slog.LevelVar)
			log, format := logger(cfg.Log, level)
			o := server.Options{
				Version:  softwareVersion(),
				Sandbox:  []string{self, "sandbox-worker"},
				Logger:   log,
				LogLevel: level, LogFormat: format,
				Origin: l.origin,
				Ready:  func(s *server.Server) { banner(c.ErrOrStderr(), s) },
			}
			if show, _ := c.Flags().GetBool("demo"); show {
				if err := demoConfig(&cfg); err != nil {
					return err
				}
				var d *demo
				o.Authorization = func(ctx context.Context, s *server.Server) (_ server.Authorization, err error) {
					d, err = newDemo(ctx, s)
					return d, err
				}
				o.Ready = func(*server.Server) { d.banner(c.ErrOrStderr()) }
			}
			ready, show := false, o.Ready
			o.Ready = func(s *server.Server) { ready = true; show(s); notifySystemd("READY=1", log) }
			defer context.AfterFunc(c.Context(), func() { notifySystemd("STOPPING=1", log) })()
			err = server.Run(c.Context(), cfg, o)
			if err != nil && !ready && c.Context().Err() != nil {
				return errNotReady
			}
			return err
		},
	}
	c.Flags().Bool("demo", false, "on an empty database: authorization, made-up patients, users and apps, and a launch simulator at /launch")
	c.Flags().Bool("pprof", false, "serve /debug/pprof to clients on this machine (server.pprof)")
	return c
}

// consoleAddress is the address of the console, or why there is none.
func consoleAddress(s *server.Server, base string) string {
	if !s.Config.Console.Enabled {
		return "off (console.enabled: false)"
	}
	return strings.TrimSuffix(strings.TrimSuffix(base, "/"), "/fhir") + "/console"
}

// banner says on one screen where the server is and what to try.
func banner(w io.Writer, s *server.Server) {
	base := s.Config.Server.BaseURL
	if base == "" {
		base = s.Config.Server.Scheme() + "://" + s.Config.Server.Listen + "/fhir"
	}
	data := s.Config.Database.URL
	if s.Database != nil {
		data = s.Config.Database.DataDir
		if abs, err := filepath.Abs(data); err == nil {
			data = abs
		}
		data += " (a PostgreSQL of its own, stopped with the server)"
	} else {
		data = settings.Redact(data)
	}
	access := "open to everyone on this machine, without tokens (auth.enabled: false)"
	try := fmt.Sprintf(`curl -d '{"resourceType":"Patient","name":[{"family":"Chalmers"}]}' \
                    -H 'Content-Type: application/fhir+json' %s/Patient
               curl '%s/Patient?name=chal'`, base, base)
	if s.Config.Auth.Enabled {
		access = "by token (auth.enabled: true)"
		try = fmt.Sprintf(`curl -H "Authorization: Bearer $TOKEN" '%s/Patient?name=chal'`, base)
	}
	fmt.Fprintf(w, `
  Kiln %s, FHIR R4

  Listens on   %s
  Data         %s
  Access       %s
  Try          %s
  Console      %s
  Capabilities %s/metadata
  Stop         Ctrl-C

`, softwareVersion(), strings.TrimSuffix(base, "/"), data, access, try, consoleAddress(s, base), base)
}
