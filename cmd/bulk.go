package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/cobra"
)

// bulkRemote is a server that a command exports from or imports into.
type bulkRemote struct {
	server, token string
	client, key   string // of a backend service, in place of a token
	scope         string
	quiet         bool

	mu      sync.Mutex
	until   time.Time // the token of the client is good until then
	current string
}

// flags adds the flags of the server, the token and the progress bar.
func (b *bulkRemote) flags(c *cobra.Command, scope string) {
	f := c.Flags()
	f.StringVar(&b.server, "server", "", "base URL of the server (default the configured one)")
	f.StringVar(&b.token, "token", "", "bearer token")
	f.StringVar(&b.client, "client", "", "id of a client that gets tokens with --key (SMART Backend Services)")
	f.StringVar(&b.key, "key", "", "file with the private key of --client, a JWK")
	f.StringVar(&b.scope, "scope", scope, "scopes that --client asks for")
	f.BoolVar(&b.quiet, "quiet", false, "no progress bar")
}

// open checks the flags and finds the server.
func (b *bulkRemote) open(c *cobra.Command) error {
	switch {
	case b.token != "" && b.client != "":
		return errors.New("--token and --client are both given: expected one of them")
	case (b.client == "") != (b.key == ""):
		return errors.New("--client and --key are given together, or not at all")
	}
	if b.server == "" {
		cfg, err := loadConfig(c)
		if err != nil {
			return err
		}
		if b.server = cfg.Server.BaseURL; b.server == "" {
			b.server = cfg.Server.Scheme() + "://" + cfg.Server.Listen
		}
	}
	u, err := url.Parse(b.server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--server is %q: expected a URL that starts with http:// or https://", b.server)
	}
	b.server = strings.TrimRight(b.server, "/")
	return nil
}

// bearer returns the access token, "" for none.
func (b *bulkRemote) bearer(ctx context.Context) (string, error) {
	if b.client == "" {
		return b.token, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.until) {
		return b.current, nil
	}
	token, life, err := b.requestToken(ctx)
	if err != nil {
		return "", fmt.Errorf("get a token for the client %s: %w", b.client, err)
	}
	b.current, b.until = token, time.Now().Add(life*3/4)
	return token, nil
}

// requestToken gets an access token by private_key_jwt.
// Spec: https://hl7.org/fhir/smart-app-launch/backend-services.html.
func (b *bulkRemote) requestToken(ctx context.Context) (string, time.Duration, error) {
	var known struct {
		TokenEndpoint string `json:"token_endpoint"`
	}
	if err := askJSON(ctx, http.MethodGet, b.server+"/.well-known/smart-configuration", nil, &known); err != nil {
		return "", 0, err
	}
	assertion, err := b.assertion(known.TokenEndpoint)
	if err != nil {
		return "", 0, err
	}
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {b.scope}, "client_assertion": {assertion},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}}
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if err := askJSON(ctx, http.MethodPost, known.TokenEndpoint, form, &answer); err != nil {
		return "", 0, err
	}
	return answer.AccessToken, time.Duration(answer.ExpiresIn) * time.Second, nil
}

// askJSON sends a form, or nothing, and reads the JSON of the answer.
func askJSON(ctx context.Context, method, address string, form url.Values, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var failure struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		_ = json.Unmarshal(body, &failure) // else only the status is told
		return fmt.Errorf("%s answers %s %s", address, resp.Status, strings.TrimSpace(failure.Error+" "+failure.Description))
	}
	return json.Unmarshal(body, into)
}

// assertion signs a JWT of the client.
func (b *bulkRemote) assertion(audience string) (string, error) {
	key, err := readPrivateKey(b.key)
	if err != nil {
		return "", err
	}
	algorithm := jose.SignatureAlgorithm(key.Algorithm)
	if algorithm == "" {
		switch key.Key.(type) {
		case *rsa.PrivateKey:
			algorithm = jose.RS384
		case *ecdsa.PrivateKey:
			algorithm = jose.ES384
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("the key in %s: %w", b.key, err)
	}
	claims, err := json.Marshal(map[string]any{"iss": b.client, "sub": b.client, "aud": audience, "jti": rand.Text(), "exp": time.Now().Add(4 * time.Minute).Unix()})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// readPrivateKey reads a JWK, or the first private one of a set.
func readPrivateKey(path string) (*jose.JSONWebKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var set jose.JSONWebKeySet
	if json.Unmarshal(text, &set) != nil || len(set.Keys) == 0 {
		set.Keys = make([]jose.JSONWebKey, 1)
		if err := json.Unmarshal(text, &set.Keys[0]); err != nil {
			return nil, fmt.Errorf("%s is no JWK: %w", path, err)
		}
	}
	for i := range set.Keys {
		if !set.Keys[i].IsPublic() {
			return &set.Keys[i], nil
		}
	}
	return nil, fmt.Errorf("%s has no private key", path)
}

// send makes a request of the server. The caller closes the body of the answer.
func (b *bulkRemote) send(ctx context.Context, method, address string, body io.Reader, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	// The token is for the server alone, and not for an object store that has files.
	if address == b.server || strings.HasPrefix(address, b.server+"/") || sameOrigin(address, b.server) {
		token, err := b.bearer(ctx)
		if err != nil {
			return nil, err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(r)
}

func sameOrigin(a, b string) bool {
	x, err := url.Parse(a)
	y, other := url.Parse(b)
	return err == nil && other == nil && x.Scheme == y.Scheme && x.Host == y.Host
}

// kickOff starts a job and returns its status URL. It waits while the server has too many jobs.
func (b *bulkRemote) kickOff(ctx context.Context, method, address string, body func() (io.Reader, error), headers ...string) (string, error) {
	for {
		var in io.Reader
		if body != nil {
			var err error
			if in, err = body(); err != nil {
				return "", err
			}
		}
		resp, err := b.send(ctx, method, address, in, append([]string{"Accept", "application/fhir+json", "Prefer", "respond-async"}, headers...)...)
		if err != nil {
			return "", err
		}
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusAccepted && resp.Header.Get("Content-Location") != "":
			return resp.Header.Get("Content-Location"), nil
		case resp.StatusCode == http.StatusTooManyRequests:
			if err := pauseFor(ctx, resp); err != nil {
				return "", err
			}
		default:
			return "", answerError(resp.Status, answer)
		}
	}
}

// errGone says that the server has no such job any more.
var errGone = errors.New("the server no longer has the job")

// await polls a status URL until the job is done, and returns the manifest.
func (b *bulkRemote) await(ctx context.Context, status string, told func(progress string)) ([]byte, error) {
	for failures := 0; ; {
		resp, err := b.send(ctx, http.MethodGet, status, nil, "Accept", "application/json")
		var answer []byte
		if err == nil {
			answer, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusBadGateway:
			// The server may be starting again; the job goes on.
			if failures++; failures > 60 {
				if err == nil {
					err = answerError(resp.Status, answer)
				}
				return nil, err
			}
			if err := pauseTime(ctx, time.Second); err != nil {
				return nil, err
			}
			continue
		case resp.StatusCode == http.StatusOK:
			return answer, nil
		case resp.StatusCode == http.StatusNotFound:
			return nil, errGone
		case resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusTooManyRequests:
			return nil, answerError(resp.Status, answer)
		}
		failures = 0
		if told != nil {
			told(resp.Header.Get("X-Progress"))
		}
		if err := pauseFor(ctx, resp); err != nil {
			return nil, err
		}
	}
}

// remove deletes the results of a job.
func (b *bulkRemote) remove(ctx context.Context, status string) error {
	resp, err := b.send(ctx, http.MethodDelete, status, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted && resp.StatusCode != http.StatusNotFound {
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return answerError(resp.Status, answer)
	}
	return nil
}

// pauseFor waits as long as Retry-After says, a minute at most.
func pauseFor(ctx context.Context, resp *http.Response) error {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil {
		seconds = 5
	}
	return pauseTime(ctx, time.Duration(min(max(seconds, 1), 60))*time.Second)
}

func pauseTime(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// answerError is the error of an answer, with the diagnostics of its OperationOutcome.
func answerError(status string, body []byte) error {
	var outcome struct {
		Issue []struct{ Diagnostics string }
	}
	var texts []string
	if json.Unmarshal(body, &outcome) == nil {
		for _, i := range outcome.Issue {
			texts = append(texts, i.Diagnostics)
		}
	}
	if len(texts) == 0 {
		return fmt.Errorf("the server answers %s", status)
	}
	return fmt.Errorf("the server answers %s: %s", status, strings.Join(texts, "\n"))
}

// bulkResult is the summary of an export or import.
type bulkResult struct {
	Resources int64   `json:"resources"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Errors    int64   `json:"errors"`
}

// print writes the summary.
func (r bulkResult) print(c *cobra.Command) error {
	if wantsJSON(c) {
		return printJSON(c.OutOrStdout(), r)
	}
	rate := float64(r.Resources) / max(r.Seconds, 0.001)
	_, err := fmt.Fprintf(c.OutOrStdout(), "%d resources, %d bytes, %.1f s, %.0f resources/s; %d errors\n", r.Resources, r.Bytes, r.Seconds, rate, r.Errors)
	return err
}

// writeState replaces a state file.
func writeState(path string, state any) error {
	text, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readState reads a state file; ok is false where there is none.
func readState(path string, into any) (ok bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(into); err != nil {
		return false, fmt.Errorf("%s is no state file: %w", path, err)
	}
	return true, nil
}

// newKey is `kiln token key`.
func newKey() *cobra.Command {
	return &cobra.Command{
		Use: "key FILE", Short: "Create a key pair for a backend service: the private JWK in FILE, the public set on the output", Args: cobra.ExactArgs(1),
		Long: `Make a key pair (ES384) for a client that authenticates with private_key_jwt. FILE gets the private
key as a JWK, readable for its owner alone; there must be no such file. The output is the public
JWK set, for kiln admin client create --jwks.`,
		Example: `  kiln token key nightly.jwk > nightly.jwks.json`,
		RunE: func(c *cobra.Command, args []string) error {
			private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
			if err != nil {
				return err
			}
			key := jose.JSONWebKey{Key: private, KeyID: rand.Text(), Algorithm: string(jose.ES384), Use: "sig"}
			text, err := json.Marshal(key)
			if err != nil {
				return err
			}
			file, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = file.Write(append(text, '\n'))
			if err = errors.Join(err, file.Close()); err != nil {
				return err
			}
			return printJSON(c.OutOrStdout(), jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
		},
	}
}
