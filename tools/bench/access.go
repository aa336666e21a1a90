package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

func accessCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "access",
		Short: "Measure reads, searches and tokens with authorization, beside those without",
		Long: `Measure reads, searches and tokens with authorization: two servers of --kiln on one
database, one of them open. Each figure stands beside its floor of the same run: the open
server, or for tokens the work that no server can leave out.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			if s.corpus != "" {
				if _, err := t.measure(c.Context(), importWorkload, Load{Clients: 4, Seed: s.seed}, 1); err != nil {
					return err
				}
			}
			l := Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
			if len(s.clients) > 0 {
				l.Clients = s.clients[0]
			}
			results, goals, err := t.access(c.Context(), s, l, max(s.runs, 2))
			if err != nil {
				return err
			}
			if err := s.report(c.OutOrStdout(), results); err != nil {
				return err
			}
			return writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: results})
		},
	}
}

// record contains the resources that a patient's token reads.
type record struct {
	patient, token, bearer string   // bearer is the header with the token
	observations           []string // references
}

// guardedPatients is how many patients have a token.
const guardedPatients = 20

// access measures what authorization costs, on a server with it beside an open one, both as
// new.
func (t *target) access(ctx context.Context, s *settings, l Load, runs int) ([]Result, []Goal, error) {
	if t.kiln == nil {
		return nil, nil, errors.New("authorization is measured on servers of --kiln: leave --url out")
	}
	// 1. A client with a key, tokens of patients and of the client itself.
	dir, err := os.MkdirTemp("", "kiln-bench-access-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	jwks := filepath.Join(dir, "jwks.json")
	if err := os.WriteFile(jwks, publicJWKS(key), 0o600); err != nil {
		return nil, nil, err
	}
	guarded, err := startKiln(ctx, s.kiln, t.url, []string{"KILN_AUTH__ENABLED=true", "KILN_AUTH__RATE_LIMITING__TOKEN_REQUESTS_PER_MINUTE=0",
		"KILN_AUTH__RATE_LIMITING__TOKEN_REQUESTS_PER_HOUR=0", "KILN_AUTH__RATE_LIMITING__AUTH_REQUESTS_PER_MINUTE=0"})
	if err != nil {
		return nil, nil, err
	}
	defer guarded.Stop()
	// The floor is measured on a server as new as the other.
	unguarded, err := startKiln(ctx, s.kiln, t.url, nil)
	if err != nil {
		return nil, nil, err
	}
	defer unguarded.Stop()
	openClient, err := NewClient(unguarded.URL, "")
	if err != nil {
		return nil, nil, err
	}
	open := &Bench{Client: openClient, Watched: Watched{Server: unguarded.PID, Postmaster: t.bench.Watched.Postmaster}, Seed: s.seed}
	admin := func(args ...string) (string, error) { return guarded.admin(ctx, s.kiln, t.url, args...) }
	if _, err := admin("admin", "client", "create", "bench", "--confidential", "--token-endpoint-auth-method", "private_key_jwt", "--jwks", jwks,
		"--grant-types", "client_credentials", "--scopes", "system/*.rs patient/*.rs", "--may-introspect"); err != nil {
		return nil, nil, err
	}
	system, err := admin("token", "mint", "--client", "bench", "--scope", "system/*.rs", "--expires", "8h")
	if err != nil {
		return nil, nil, err
	}
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, nil, err
	}
	var records []record
	x := t.bench.Client.NewExchange()
	for _, p := range samples.Patients {
		if err := x.Do(Request{Method: "GET", Path: "Observation?patient=" + p + "&_count=20"}); err != nil {
			return nil, nil, err
		}
		r := record{patient: p}
		for _, id := range gjson.GetBytes(x.Body, "entry.#.resource.id").Array() {
			r.observations = append(r.observations, "Observation/"+id.Str)
		}
		if len(r.observations) == 0 {
			continue
		}
		if r.token, err = admin("token", "mint", "--client", "bench", "--patient", p, "--scope", "patient/*.rs", "--expires", "8h"); err != nil {
			return nil, nil, err
		}
		r.bearer = "Bearer " + r.token
		if records = append(records, r); len(records) == guardedPatients {
			break
		}
	}
	if len(records) == 0 {
		return nil, nil, errors.New("no patient has observations")
	}
	client, err := NewClient(guarded.URL, system)
	if err != nil {
		return nil, nil, err
	}
	bench := &Bench{Client: client, Watched: Watched{Server: guarded.PID, Postmaster: t.bench.Watched.Postmaster}, Seed: s.seed}

	// 2. The rows, each with its floor.
	reading := func(bearer func(r record) string) Op {
		return func(_ context.Context, w *Worker) error {
			r := pick(w.Rand, records)
			if w.Do("read", Request{Method: "GET", Path: pick(w.Rand, r.observations), Authorization: bearer(r)}) {
				w.Moved(1)
			}
			return nil
		}
	}
	none := func(record) string { return "" }
	own := func(r record) string { return r.bearer }
	named := func(_ context.Context, w *Worker) error {
		w.Do("search", Request{Method: "GET", Path: "Observation?patient=" + pick(w.Rand, records).patient + "&_count=20"})
		return nil
	}
	scoped := func(_ context.Context, w *Worker) error {
		w.Do("search", Request{Method: "GET", Path: "Observation?_count=20", Authorization: pick(w.Rand, records).bearer})
		return nil
	}
	// Assertions hold for five minutes: they are signed when their row begins.
	var assertions []string
	signAll := func() (err error) {
		assertions, err = signAssertions(key, guarded.URL+"/auth/token", int((l.WarmUp+time.Duration(runs)*(l.Duration+pairs*rewarming)).Seconds()*2500)+1000)
		return err
	}
	var used atomic.Int64
	granting := func(_ context.Context, w *Worker) error {
		n := int(used.Add(1)) - 1
		if n >= len(assertions) {
			return io.EOF
		}
		w.Do("grant", Request{Method: "POST", Path: guarded.URL + "/auth/token", ContentType: "application/x-www-form-urlencoded", Body: []byte(url.Values{
			"grant_type": {"client_credentials"}, "scope": {"system/*.rs"}, "client_assertion": {assertions[n]},
			"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}}.Encode())})
		return nil
	}
	// The necessary work of a grant by RS384: verify one signature, make one.
	digest := sha512.Sum384([]byte("floor"))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA384, digest[:])
	if err != nil {
		return nil, nil, err
	}
	signing := func(_ context.Context, w *Worker) error {
		start := time.Now()
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA384, digest[:], signature); err != nil {
			return err
		}
		if _, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA384, digest[:]); err != nil {
			return err
		}
		w.record("sign", time.Since(start), "")
		return nil
	}
	// An administrator's API key, so that the figure is of introspection and not of signatures.
	adminKey, err := admin("admin", "apikey", "create", "--name", "bench", "--scope", "admin", "--expires", "8h")
	if err != nil {
		return nil, nil, err
	}
	introspecting := func(_ context.Context, w *Worker) error {
		w.Do("introspect", Request{Method: "POST", Path: guarded.URL + "/auth/introspect", ContentType: "application/x-www-form-urlencoded", Authorization: "Bearer " + adminKey,
			Body: []byte("token=" + pick(w.Rand, records).token)})
		return nil
	}
	alive := func(_ context.Context, w *Worker) error {
		w.Do("live", Request{Method: "GET", Path: guarded.URL + "/health/live"})
		return nil
	}

	rows := []struct {
		name      string
		on        *Bench
		op        Op
		floorName string
		floorOn   *Bench
		floor     Op
		target    float64 // a second
		ratio     float64 // of the floor; 0 names none
		before    func() error
	}{
		{"read, system token", bench, reading(none), "read, open", open, reading(none), 0, 0.95, nil},
		{"read, patient token", bench, reading(own), "read, open", open, reading(none), 0, 0.90, nil},
		{"search, patient token", bench, scoped, "search, patient named", open, named, 0, 0.85, nil},
		{"client_credentials, RS384", bench, granting, "floor of RS384 signatures", bench, signing, 800, 0, signAll},
		{"introspection", bench, introspecting, "floor of a request", bench, alive, 3000, 0, nil},
	}
	var results []Result
	var goals []Goal
	for _, row := range rows {
		if row.before != nil {
			if err := row.before(); err != nil {
				return nil, nil, err
			}
		}
		on := func(b *Bench, op Op) func(context.Context, Load) (*Measured, error) {
			return func(ctx context.Context, l Load) (*Measured, error) {
				return drive(ctx, l, b.Watched, b.Client.NewExchange, op)
			}
		}
		this, floor, err := pair{on(row.on, row.op), on(row.floorOn, row.floor), []Watched{row.on.Watched, row.floorOn.Watched}}.measure(ctx, l, runs)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", row.name, err)
		}
		f, r := summarise(row.floorName, l, floor), summarise(row.name, l, this)
		if r.All.Errors > 0 {
			fmt.Fprintf(os.Stderr, "%s: %d errors; the server's log ends with\n%s\n", row.name, r.All.Errors, guarded.Log())
		}
		results = append(results, f, r)
		if row.ratio > 0 {
			goals = append(goals, pairedGoal(row.name, this, floor, row.ratio))
		} else {
			goals = append(goals, rate(row.name, row.target, r.Rate.Median, f.Rate.Median, 0, "/s"))
		}
		g := goals[len(goals)-1]
		fmt.Fprintf(os.Stderr, "%s: %s, floor %s, %.1f%%\n", g.Workload, g.This, g.Floor, 100*g.Ratio)
	}
	return results, goals, nil
}

// admin runs a command of the binary on the server's database, and returns the last line of its output.
func (k *Kiln) admin(ctx context.Context, binary, databaseURL string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, binary, append(args, "--database-url", databaseURL)...)
	c.Env = append(os.Environ(), "KILN_SERVER__LISTEN="+strings.TrimPrefix(k.URL, "http://"))
	var problem strings.Builder
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("kiln %s: %w: %s", strings.Join(args, " "), err, problem.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

var rawURL = base64.RawURLEncoding

// publicJWKS is the JWK set of a key. RFC 7517.
func publicJWKS(key *rsa.PrivateKey) []byte {
	b, _ := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "RSA", "use": "sig", "alg": "RS384", "kid": "bench",
		"n": rawURL.EncodeToString(key.N.Bytes()), "e": rawURL.EncodeToString(big.NewInt(int64(key.E)).Bytes()),
	}}})
	return b
}

// signAssertions makes n client assertions before the clock starts. RFC 7523 §2.2.
func signAssertions(key *rsa.PrivateKey, audience string, n int) ([]string, error) {
	out := make([]string, n)
	run := time.Now().UnixNano()
	for i := range out {
		claims, err := json.Marshal(map[string]any{"iss": "bench", "sub": "bench", "aud": audience, "jti": fmt.Sprintf("%d-%d", run, i),
			"exp": time.Now().Add(290 * time.Second).Unix(), "iat": time.Now().Unix()})
		if err != nil {
			return nil, err
		}
		signed := rawURL.EncodeToString([]byte(`{"alg":"RS384","kid":"bench","typ":"JWT"}`)) + "." + rawURL.EncodeToString(claims)
		digest := sha512.Sum384([]byte(signed))
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA384, digest[:])
		if err != nil {
			return nil, err
		}
		out[i] = signed + "." + rawURL.EncodeToString(signature)
	}
	return out, nil
}
