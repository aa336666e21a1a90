package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/tidwall/gjson"
)

// How a client names its writes, and the kinds of its requests.
var (
	positionWays = []string{"header", "cookie", "caller"}
	ownKinds     = []string{"write", "read", "search", "history", "deleted"}
)

// tally counts requests of one way and kind.
type tally struct {
	requests, stale, errors  int64
	fromReplica, fromPrimary int64
	latency                  Histogram
}

func (t *tally) merge(o *tally) {
	t.requests += o.requests
	t.stale += o.stale
	t.errors += o.errors
	t.fromReplica += o.fromReplica
	t.fromPrimary += o.fromPrimary
	t.latency.Merge(&o.latency)
}

// ownWriter is a client that writes one Patient after the other, and reads each version on a server.
type ownWriter struct {
	way           string
	bearer        string
	home          int // the server of a caller without position
	servers       []*Exchange
	position      string
	cookie        string
	id, mark      string // of the present Patient; mark is its identifier
	version       int
	deleted       bool
	tallies       map[string]*tally // by kind
	messages      []string
	number, round int
}

// changes is how many versions a Patient gets before its delete.
const changes = 3

// server is where the next request goes.
func (c *ownWriter) server(r *rand.Rand) *Exchange {
	if c.way == "caller" {
		return c.servers[c.home]
	}
	return pick(r, c.servers)
}

// do sends a request with the client's position and records it. judge says about an answer whether it is as expected.
func (c *ownWriter) do(x *Exchange, kind string, r Request, judge func(x *Exchange) verdict) verdict {
	r.Authorization = c.bearer
	switch c.way {
	case "header":
		r.Position = c.position
	case "cookie":
		r.Cookie = c.cookie
	}
	t := c.tallies[kind]
	begin := time.Now()
	err := x.Do(r)
	t.latency.Add(time.Since(begin))
	t.requests++
	if err != nil {
		t.errors++
		c.note("%s %s: %v", r.Method, r.Path, err)
		return failed
	}
	switch source := x.Header("X-Kiln-Source"); {
	case source == "primary":
		t.fromPrimary++
	case source != "":
		t.fromReplica++
	}
	v := judge(x)
	switch v {
	case stale:
		t.stale++
	case failed:
		t.errors++
	}
	if v != right {
		c.note("%s, version %d: %s %s from %q: %d %s", c.way, c.version, r.Method, r.Path, x.Header("X-Kiln-Source"), x.Status, excerpt(x.Body))
	}
	if p := x.Header("X-Kiln-Position"); p != "" {
		c.position = p
	}
	if cookie, _, _ := strings.Cut(x.Header("Set-Cookie"), ";"); strings.HasPrefix(cookie, "kiln_position=") {
		c.cookie = cookie
	}
	return v
}

// note keeps the first unexpected answers.
func (c *ownWriter) note(format string, args ...any) {
	if len(c.messages) < maxMessages {
		c.messages = append(c.messages, fmt.Sprintf(format, args...))
	}
}

// verdict compares an answer with the expected one.
type verdict int

const (
	right verdict = iota
	stale
	failed
)

func expect(status int) func(*Exchange) verdict {
	return func(x *Exchange) verdict {
		if x.Status != status {
			return failed
		}
		return right
	}
}

// write makes the next version: a create, updates, a delete.
func (c *ownWriter) write(r *rand.Rand) error {
	x := c.server(r)
	body := func() []byte {
		id := ""
		if c.id != "" {
			id = `"id":"` + c.id + `",`
		}
		return fmt.Appendf(nil, `{"resourceType":"Patient",%s"identifier":[{"system":"urn:bench:own","value":"%s"}],"name":[{"family":"Version%d"}]}`, id, c.mark, c.version)
	}
	var v verdict
	switch {
	case c.version == 0 || c.deleted:
		c.round++
		c.id, c.mark, c.version, c.deleted = "", fmt.Sprintf("%d-%d", c.number, c.round), 1, false
		if v = c.do(x, "write", Request{Method: "POST", Path: "Patient", Body: body()}, expect(201)); v == right {
			c.id, _ = idFrom(x.Location, "Patient")
		}
	case c.version < changes:
		c.version++
		v = c.do(x, "write", Request{Method: "PUT", Path: "Patient/" + c.id, Body: body()}, expect(200))
	default:
		c.version++
		c.deleted = true
		v = c.do(x, "write", Request{Method: "DELETE", Path: "Patient/" + c.id}, func(x *Exchange) verdict {
			if x.Status != 200 && x.Status != 204 {
				return failed
			}
			return right
		})
	}
	if v != right || c.id == "" {
		c.version = 0 // the next write begins with a new Patient
		return errors.New("a write failed")
	}
	return nil
}

// read reads the Patient in one of the ways in which it can be seen.
func (c *ownWriter) read(r *rand.Rand, kind string) {
	request := Request{Method: "GET", Path: "Patient/" + c.id}
	judge := c.judgeRead
	switch {
	case kind == "search":
		request.Path, judge = "Patient?identifier=urn:bench:own%7C"+c.mark+"&_total=accurate", c.judgeSearch
	case kind == "history":
		request.Path, judge = request.Path+"/_history", c.judgeHistory
	case c.deleted:
		kind = "deleted"
	}
	c.do(c.server(r), kind, request, judge)
}

func (c *ownWriter) judgeRead(x *Exchange) verdict {
	switch {
	case c.deleted && x.Status == 410, !c.deleted && x.Status == 200 && gjson.GetBytes(x.Body, "meta.versionId").Int() == int64(c.version):
		return right
	case x.Status == 200, x.Status == 404:
		return stale
	}
	return failed
}

func (c *ownWriter) judgeSearch(x *Exchange) verdict {
	if x.Status != 200 {
		return failed
	}
	b := gjson.ParseBytes(x.Body)
	total, entries := b.Get("total"), b.Get("entry.#").Int()
	if c.deleted && total.Exists() && total.Int() == 0 && entries == 0 {
		return right
	}
	if !c.deleted && total.Int() == 1 && entries == 1 && b.Get("entry.0.resource.meta.versionId").Int() == int64(c.version) {
		return right
	}
	return stale
}

func (c *ownWriter) judgeHistory(x *Exchange) verdict {
	if x.Status != 200 {
		if x.Status == 404 {
			return stale
		}
		return failed
	}
	b := gjson.ParseBytes(x.Body)
	last := b.Get("entry.0.request.method").Str == "DELETE"
	if b.Get("total").Int() != int64(c.version) || b.Get("entry.#").Int() != int64(c.version) || last != c.deleted {
		return stale
	}
	return right
}

// readOwnWrites reads so often after own writes, on three servers, while one standby replays late and the other pauses. It
// prints a table and fails if an answer is not as expected.
func (s *settings) readOwnWrites(ctx context.Context, t *target, standbys []*Cluster, reads int, out io.Writer) error {
	environment := []string{"KILN_AUTH__ENABLED=true", "KILN_AUTH__RATE_LIMITING__REQUESTS_PER_MINUTE=0", readURLs(standbys)}
	var servers []*Kiln
	var clients []*Client
	defer func() {
		for _, k := range servers {
			k.Stop()
		}
	}()
	for i := range readers {
		k, err := startKiln(ctx, s.kiln, t.url, environment)
		if err != nil {
			return err
		}
		if i == 0 { // its tokens hold on the others
			environment = append(environment, "KILN_AUTH__ISSUER="+k.URL)
		}
		servers = append(servers, k)
		c, err := NewClient(k.URL, "")
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	l := Load{Clients: 12, Seed: s.seed}
	if len(s.clients) > 0 {
		l.Clients = s.clients[0]
	}
	writers, err := s.newOwnWriters(ctx, t.url, servers[0], clients, l.Clients)
	if err != nil {
		return err
	}
	if err := replayLate(ctx, lateReplay, standbys[0]); err != nil {
		return err
	}
	pausing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- pauseAgainAndAgain(pausing, standbys[1], s.seed) }()
	var left atomic.Int64
	left.Store(int64(reads))
	m, err := drive(ctx, l, Watched{Postmaster: t.cluster.Postmaster}, nil, func(_ context.Context, w *Worker) error {
		c := writers[w.Number]
		if left.Load() <= 0 {
			return io.EOF
		}
		if c.write(w.Rand) != nil {
			left.Add(-1) // a server that refuses every write ends the run too
			return nil
		}
		kinds := []string{"read", "search", "history"}
		w.Rand.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			if left.Add(-1) < 0 {
				return io.EOF
			}
			c.read(w.Rand, kind)
		}
		return nil
	})
	stop()
	if err = errors.Join(err, <-ended, replayLate(ctx, 0, standbys[0])); err != nil {
		return err
	}
	return writeTallies(out, writers, m.Elapsed)
}

// newOwnWriters makes n clients with a token each, in turns for each way.
func (s *settings) newOwnWriters(ctx context.Context, databaseURL string, issuer *Kiln, clients []*Client, n int) ([]*ownWriter, error) {
	writers := make([]*ownWriter, n)
	for i := range writers {
		c := &ownWriter{way: positionWays[i%len(positionWays)], home: i / len(positionWays) % readers, number: i, tallies: map[string]*tally{}}
		for _, kind := range ownKinds {
			c.tallies[kind] = &tally{}
		}
		for _, client := range clients {
			c.servers = append(c.servers, client.NewExchange())
		}
		name := fmt.Sprintf("bench-own-%d", i)
		if _, err := issuer.admin(ctx, s.kiln, databaseURL, "admin", "client", "create", name, "--confidential", "--grant-types", "client_credentials", "--scopes", "system/*.cruds"); err != nil {
			return nil, err
		}
		token, err := issuer.admin(ctx, s.kiln, databaseURL, "token", "mint", "--client", name, "--scope", "system/*.cruds", "--expires", "8h")
		if err != nil {
			return nil, err
		}
		c.bearer = "Bearer " + token
		writers[i] = c
	}
	return writers, nil
}

// pauseAgainAndAgain pauses and resumes the replay of a standby until ctx ends. The standby replays then.
func pauseAgainAndAgain(ctx context.Context, standby *Cluster, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 2))
	for ctx.Err() == nil {
		for _, do := range []string{"SELECT pg_wal_replay_pause()", "SELECT pg_wal_replay_resume()"} {
			if err := standby.Exec(context.WithoutCancel(ctx), do); err != nil {
				return err
			}
			wait(ctx, time.Now().Add(time.Duration(r.Int64N(int64(longestPause)))))
		}
	}
	return nil
}

// writeTallies prints a line for each way and kind, and fails if an answer was not as expected.
func writeTallies(out io.Writer, writers []*ownWriter, elapsed time.Duration) error {
	all := map[[2]string]*tally{}
	sum := &tally{}
	writes := int64(0)
	var messages []string
	for _, c := range writers {
		messages = append(messages, c.messages...)
		for kind, t := range c.tallies {
			key := [2]string{c.way, kind}
			if all[key] == nil {
				all[key] = &tally{}
			}
			all[key].merge(t)
			if kind == "write" {
				writes += t.requests
				sum.errors += t.errors
			} else {
				sum.merge(t)
			}
		}
	}
	fmt.Fprintf(out, "\n%s\n%s reads after %s own writes in %.0f s: %d stale, %d errors\n", machine(), group(strconv.FormatInt(sum.requests, 10)), group(strconv.FormatInt(writes, 10)), elapsed.Seconds(), sum.stale, sum.errors)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "way\tkind\trequests\tstale\terrors\treplica\tprimary\tp50 ms\tp99\t")
	line := func(way, kind string, t *tally) {
		share := func(n int64) string {
			if t.fromPrimary+t.fromReplica == 0 {
				return "–"
			}
			return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(t.requests))
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t\n", way, kind, t.requests, t.stale, t.errors, share(t.fromReplica), share(t.fromPrimary),
			number(milliseconds(t.latency.Quantile(0.5))), number(milliseconds(t.latency.Quantile(0.99))))
	}
	for _, way := range positionWays {
		for _, kind := range ownKinds {
			if t := all[[2]string{way, kind}]; t != nil && t.requests > 0 {
				line(way, kind, t)
			}
		}
	}
	line("all", "reads", sum)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range messages[:min(len(messages), maxMessages)] {
		fmt.Fprintln(out, text)
	}
	if sum.stale+sum.errors > 0 {
		return fmt.Errorf("%d stale answers and %d errors", sum.stale, sum.errors)
	}
	return nil
}
