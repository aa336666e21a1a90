package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kiln/server"
	"kiln/server/admin"
	"kiln/server/postgres"
	"kiln/server/settings"
	"kiln/server/store"
)

// anyServerFlag makes a command work on a database that the server at server.listen does
// not use.
const anyServerFlag = "any-server"

func addAnyServerFlag(f *pflag.FlagSet) {
	f.Bool(anyServerFlag, false, "work on the database even if the server at server.listen uses another one")
}

// onDatabase runs a command on the configured database, which is started for it when it is a
// private one. It names the database on standard error. It refuses to run while a server on
// another database listens at server.listen, as kiln serve --demo does: the command would
// change a database that nobody looks at.
func onDatabase(run func(c *cobra.Command, url string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error { return runOnDatabase(c, run, false) }
}

// runOnDatabase is onDatabase; with anyServer it runs whatever server listens.
func runOnDatabase(c *cobra.Command, run func(c *cobra.Command, url string) error, anyServer bool) error {
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	name := databaseName(cfg.Database)
	fmt.Fprintf(c.ErrOrStderr(), "database: %s\n", name)
	if given, err := c.Flags().GetBool(anyServerFlag); err == nil && given {
		anyServer = true
	}
	instance := ""
	if !anyServer {
		if instance, err = findServer(c.Context(), cfg.Server); err != nil {
			return err
		}
	}
	refusal := fmt.Errorf("a server listens on %s and uses another database than %s: name the server's database with --database-url or --data-dir, or give --%s",
		cfg.Server.Listen, name, anyServerFlag)
	if instance != "" && cfg.Database.URL == "" && !postgres.Running(cfg.Database.DataDir) {
		return refusal // without making a database that nobody wants
	}
	database, url, err := server.StartDatabase(c.Context(), cfg)
	if err != nil {
		return err
	}
	if database != nil {
		defer database.Stop()
	}
	conn, err := server.Connect(c.Context(), url)
	if err != nil {
		return err
	}
	if err := conn.Close(c.Context()); err != nil {
		return err
	}
	if instance != "" {
		there, err := waitForInstance(c.Context(), url, instance)
		if err != nil {
			return err
		}
		if !there {
			return refusal
		}
	}
	return run(c, url)
}

// databaseName names a database without its password.
func databaseName(c server.DatabaseConfig) string {
	if c.URL != "" {
		return settings.Redact(c.URL)
	}
	dir := c.DataDir
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return dir + " (a private PostgreSQL)"
}

// The times of a command that looks for a server.
const (
	serverAnswers   = 2 * time.Second        // of a server that runs on this machine
	serverStarts    = 30 * time.Second       // until it has read its database
	serverRegisters = 3 * time.Second        // until it is in the table of servers
	serverPause     = 100 * time.Millisecond // between two looks
)

// findServer returns the id of the Kiln that listens at server.listen, "" where none does. It
// waits for one that starts.
func findServer(ctx context.Context, c server.ServerConfig) (string, error) {
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "0" {
		return "", nil
	}
	client, at := localClient(serverAnswers), localURL(c)+"/health/live"
	for end := time.Now().Add(serverStarts); ; {
		id := readInstance(ctx, client, at)
		if id != admin.InstanceStarting {
			return id, nil
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the server at %s has been starting for %s: which database it uses is not known; give --%s to go on", c.Listen, serverStarts, anyServerFlag)
		}
		if err := pause(ctx, serverPause); err != nil {
			return "", err
		}
	}
}

// readInstance asks a server for its id; "" where no Kiln answers.
func readInstance(ctx context.Context, client *http.Client, url string) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	resp, err := client.Do(r)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var health struct {
		Status string `json:"status"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&health); err != nil || resp.StatusCode != http.StatusOK || health.Status != "ok" {
		return ""
	}
	return resp.Header.Get(admin.InstanceHeader)
}

// waitForInstance reports whether a server uses a database. A server registers itself right
// after it has become ready.
func waitForInstance(ctx context.Context, url, instance string) (bool, error) {
	for end := time.Now().Add(serverRegisters); ; {
		there, err := store.HasInstance(ctx, url, instance)
		if there || err != nil || time.Now().After(end) {
			return there, err
		}
		if err := pause(ctx, serverPause); err != nil {
			return false, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
