package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"kiln/server"
)

// health is `kiln health`.
func health() *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Ask the server at server.listen whether it is ready; for health checks of containers",
		Long: `Ask the server at server.listen whether it is ready. The exit status is 0 where it is, and 1
where it is not or nobody answers.`,
		Example: "  kiln health --listen 127.0.0.1:9090",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := loadConfig(c)
			if err != nil {
				return err
			}
			body, err := askHealth(c.Context(), cfg.Server)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(body)
			return err
		},
	}
}

// healthAnswers is how long a server may take to answer.
const healthAnswers = 4 * time.Second

// askHealth returns the answer of /health/ready; an error where it is not 200.
func askHealth(ctx context.Context, c server.ServerConfig) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, localURL(c)+"/health/ready", nil)
	if err != nil {
		return nil, err
	}
	resp, err := localClient(healthAnswers).Do(r)
	if err != nil {
		return nil, fmt.Errorf("no server answers at %s: %w", c.Listen, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server at %s is not ready: %s", c.Listen, body)
	}
	return body, nil
}

// localURL is the URL of the server at server.listen, from this machine.
func localURL(c server.ServerConfig) string {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return c.Scheme() + "://" + c.Listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return c.Scheme() + "://" + net.JoinHostPort(host, port)
}

// localClient asks a server on this machine. Its certificate may be of another name, and
// nothing secret is sent.
func localClient(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}
