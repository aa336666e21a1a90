package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// notificationSize is how much of each thing the rows of notifications have.
type notificationSize struct {
	Subscriptions, Sockets, Streams, Deliveries, Replay int
	Duration                                            time.Duration
}

func notificationsCommand(s *settings) *cobra.Command {
	size := notificationSize{}
	c := &cobra.Command{
		Use:   "notifications",
		Short: "Measure subscriptions, webhooks, WebSockets and event streams",
		Long: `Measure writes among many Subscriptions, the latency and rate of webhooks, the memory and
fan-out of WebSockets and event streams, reads beside them, and a replay, on a server of
--kiln; the receiver runs in this process. The goals are those for two processors.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Those that stay from the first row are as many as are allowed by default.
			if err := os.Setenv("KILN_NOTIFICATIONS__MAX_SUBSCRIPTIONS", strconv.Itoa(2*max(size.Subscriptions, 1000))); err != nil {
				return err
			}
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			size.Duration = s.duration
			goals, results, err := t.notifications(c.Context(), s, size)
			if err != nil {
				return err
			}
			if err := s.report(c.OutOrStdout(), results); err != nil {
				return err
			}
			return writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: results})
		},
	}
	f := c.Flags()
	f.IntVar(&size.Subscriptions, "subscriptions", 100_000, "active Subscriptions beside the writes")
	f.IntVar(&size.Sockets, "sockets", 10_000, "WebSockets that are open")
	f.IntVar(&size.Streams, "streams", 5_000, "event streams that are open")
	f.IntVar(&size.Deliveries, "deliveries", 60_000, "webhook deliveries")
	f.IntVar(&size.Replay, "replay", 100_000, "events of the replay")
	return c
}

// smokeNotifications is a size for a moment.
var smokeNotifications = notificationSize{Subscriptions: 20, Sockets: 10, Streams: 10, Deliveries: 40, Replay: 50, Duration: 300 * time.Millisecond}

// notifications measures the rows of docs/contract.md, Notifications, section 8, that need no
// killing; those are tests.
func (t *target) notifications(ctx context.Context, s *settings, size notificationSize) ([]Goal, []Result, error) {
	if t.kiln == nil {
		return nil, nil, errors.New("notifications are measured on a server of --kiln: leave --url out")
	}
	n := &notificationBench{t: t, s: s, size: size}
	for _, row := range []struct {
		name string
		run  func(context.Context) error
	}{{"writes among subscriptions", n.writes}, {"webhooks", n.webhooks}, {"replay", n.replay}, {"connections", n.connections}} {
		within, cancel := context.WithTimeout(ctx, rowBound)
		err := row.run(within)
		if within.Err() != nil && ctx.Err() == nil {
			err = errors.Join(fmt.Errorf("not done within %s", rowBound), err)
		}
		cancel()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", row.name, err)
		}
	}
	return n.goals, n.results, nil
}

// rowBound is how long a row may take; the dearest part is to make 100,000 Subscriptions active, each of
// which is a version of its own.
const rowBound = 15 * time.Minute

type notificationBench struct {
	t       *target
	s       *settings
	size    notificationSize
	goals   []Goal
	results []Result
}

// run measures one operation for the duration.
func (n *notificationBench) run(ctx context.Context, name string, rate float64, op Op) (Result, error) {
	l := Load{Clients: 32, Rate: rate, Duration: n.size.Duration, WarmUp: n.size.Duration / 10, Seed: n.s.seed}
	m, err := drive(ctx, l, n.t.bench.Watched, n.t.bench.Client.NewExchange, op)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", name, err)
	}
	r := summarise(name, l, []*Measured{m})
	n.results = append(n.results, r)
	return r, nil
}

func (n *notificationBench) send(method, path, body string, want int) ([]byte, error) {
	x := n.t.bench.Client.NewExchange()
	if err := x.Do(Request{Method: method, Path: path, Body: []byte(body)}); err != nil {
		return nil, err
	}
	if x.Status != want {
		return nil, fmt.Errorf("%s %s: %d %s", method, path, x.Status, x.Body)
	}
	return slices.Clone(x.Body), nil
}

// batches sends resources in batches of a hundred, several at a time.
func (n *notificationBench) batches(count int, typ string, resource func(i int) string) error {
	var failed error
	var mu sync.Mutex
	var next atomic.Int64
	var sending sync.WaitGroup
	for range 4 {
		sending.Go(func() {
			for {
				from := int(next.Add(100)) - 100
				if from >= count {
					return
				}
				var entries []string
				for i := from; i < min(from+100, count); i++ {
					entries = append(entries, `{"resource":`+resource(i)+`,"request":{"method":"POST","url":"`+typ+`"}}`)
				}
				body, err := n.send("POST", "", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`, 200)
				if err == nil && bytes.Count(body, []byte(`"status":"201`)) != len(entries) {
					err = fmt.Errorf("of %d entries not all were stored: %.300s", len(entries), body)
				}
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
			}
		})
	}
	sending.Wait()
	return failed
}

// writes are of Observations, without Subscriptions and among many active ones of the form
// Observation?patient=X&code=Y.
func (n *notificationBench) writes(ctx context.Context) error {
	op := func(_ context.Context, w *Worker) error {
		body := fmt.Appendf(nil, `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"c%d"}]},"subject":{"reference":"Patient/p%d"},"valueQuantity":{"value":%d}}`,
			w.Rand.IntN(50), w.Rand.IntN(100_000), w.Rand.IntN(1000))
		if w.Do("create", Request{Method: "POST", Path: "Observation", Body: body, Minimal: true}) {
			w.Moved(1)
		}
		return nil
	}
	without, err := n.run(ctx, "writes without subscriptions", 0, op)
	if err != nil {
		return err
	}
	err = n.batches(n.size.Subscriptions, "Subscription", func(i int) string {
		return fmt.Sprintf(`{"resourceType":"Subscription","status":"requested","reason":"bench","criteria":"Observation?patient=p%d&code=http://loinc.org|c%d","channel":{"type":"websocket"}}`, i, i%50)
	})
	if err != nil {
		return err
	}
	var last []byte
	for at := time.Now(); ; wait(ctx, time.Now().Add(100*time.Millisecond)) { // all are active
		body, err := n.send("GET", "Subscription?status=requested&_summary=count", "", 200)
		if err != nil {
			return err
		}
		_, rest, _ := bytes.Cut(body, []byte(`"total":`))
		left, _, _ := bytes.Cut(bytes.Trim(rest, "} "), []byte(","))
		if string(left) == "0" {
			break
		}
		if !bytes.Equal(left, last) {
			last, at = slices.Clone(left), time.Now()
		}
		if ctx.Err() != nil || time.Since(at) > time.Minute {
			return fmt.Errorf("%s of %d subscriptions do not become active", left, n.size.Subscriptions)
		}
	}
	among, err := n.run(ctx, fmt.Sprintf("writes among %d subscriptions", n.size.Subscriptions), 0, op)
	if err != nil {
		return err
	}
	n.goals = append(n.goals, rate(among.Workload, 0, among.Rate.Median, without.Rate.Median, 0.85, "/s"))
	return nil
}

// hook is a receiver in this process.
type hook struct {
	url      string
	received atomic.Int64
	mu       sync.Mutex
	delays   []time.Duration // from the instant of the version to its receipt
}

func newHook(ctx context.Context) (*hook, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &hook{url: "http://" + l.Addr().String()}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		now := time.Now()
		_, rest, ok := bytes.Cut(body, []byte(`"timestamp":"`))
		if at, _, _ := bytes.Cut(rest, []byte(`"`)); ok {
			if written, err := time.Parse(time.RFC3339Nano, string(at)); err == nil {
				h.mu.Lock()
				h.delays = append(h.delays, now.Sub(written))
				h.mu.Unlock()
			}
			h.received.Add(1)
		}
	})}
	go func() { _ = s.Serve(l) }()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return h, nil
}

// await waits until so many notifications have come.
func (h *hook) await(ctx context.Context, count int64) error {
	for last, at := int64(-1), time.Now(); h.received.Load() < count; wait(ctx, time.Now().Add(time.Millisecond)) {
		if now := h.received.Load(); now != last {
			last, at = now, time.Now()
		}
		if ctx.Err() != nil || time.Since(at) > time.Minute {
			return fmt.Errorf("%d of %d notifications came", h.received.Load(), count)
		}
	}
	return nil
}

// subscribe makes webhook Subscriptions on codes, and waits until they are active.
func (n *notificationBench) subscribe(ctx context.Context, h *hook, count int, codeOf func(i int) string) error {
	for i := range count {
		body, err := n.send("POST", "Subscription", fmt.Sprintf(
			`{"resourceType":"Subscription","status":"requested","reason":"bench","criteria":"Basic?code=%s","channel":{"type":"rest-hook","endpoint":"%s/%d","payload":"application/fhir+json"}}`, codeOf(i), h.url, i), 201)
		if err != nil {
			return err
		}
		_, rest, _ := bytes.Cut(body, []byte(`"id":"`))
		id, _, _ := bytes.Cut(rest, []byte(`"`))
		for ctx.Err() == nil {
			body, err := n.send("GET", "Subscription/"+string(id), "", 200)
			if err != nil {
				return err
			}
			if bytes.Contains(body, []byte(`"status":"active"`)) {
				break
			}
			wait(ctx, time.Now().Add(20*time.Millisecond))
		}
	}
	return ctx.Err()
}

func basic(code string) string {
	return `{"resourceType":"Basic","code":{"coding":[{"code":"` + code + `"}]}}`
}

// webhooks are how long they take from the version to the receipt at 500 events a second, and
// how many a second there are, with their AuditEvents. The floor is the same request by a Go
// client with as many connections, without a server behind it.
func (n *notificationBench) webhooks(ctx context.Context) error {
	h, err := newHook(ctx)
	if err != nil {
		return err
	}
	const subscriptions = 20
	code := func(i int) string { return fmt.Sprint("latency-", i) }
	if err := n.subscribe(ctx, h, subscriptions, code); err != nil {
		return err
	}
	var sent atomic.Int64
	if _, err := n.run(ctx, "events for webhooks", 500, func(_ context.Context, w *Worker) error {
		if w.Do("create", Request{Method: "POST", Path: "Basic", Body: []byte(basic(code(w.Rand.IntN(subscriptions)))), Minimal: true}) {
			sent.Add(1)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := h.await(ctx, sent.Load()); err != nil {
		return err
	}
	slices.Sort(h.delays)
	at := func(q float64) float64 { return milliseconds(h.delays[int(q*float64(len(h.delays)-1))]) }
	n.goals = append(n.goals, atMost("commit to webhook receipt, p50", 20, at(0.5), " ms"), atMost("commit to webhook receipt, p99", 150, at(0.99), " ms"))

	flood, err := newHook(ctx)
	if err != nil {
		return err
	}
	if err := n.subscribe(ctx, flood, subscriptions, func(int) string { return "flood" }); err != nil {
		return err
	}
	start := time.Now()
	if err := n.batches(n.size.Deliveries/subscriptions, "Basic", func(int) string { return basic("flood") }); err != nil {
		return err
	}
	total := n.size.Deliveries / subscriptions * subscriptions
	if err := flood.await(ctx, int64(total)); err != nil {
		return err
	}
	this := float64(total) / time.Since(start).Seconds()
	alone, err := n.posts(ctx, total)
	if err != nil {
		return err
	}
	n.goals = append(n.goals, rate("webhook deliveries with AuditEvents", 3000, this, alone, 0, "/s"))
	return nil
}

// posts is the rate of POSTs of a notification by a Go client.
func (n *notificationBench) posts(ctx context.Context, count int) (float64, error) {
	h, err := newHook(ctx)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20}}
	body := `{"id":"2e6ef438-99db-5485-a651-d1b7ee0c0912","timestamp":"2026-01-01T00:00:00Z","event":"create","resourceType":"Basic","resourceId":"1","versionId":"1","resource":` + basic("flood") + `}`
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var sending sync.WaitGroup
	start := time.Now()
	for range 20 {
		sending.Go(func() {
			for next.Add(1) <= int64(count) {
				resp, err := client.Post(h.url, "application/fhir+json", strings.NewReader(body))
				if err != nil {
					failed.Store(&err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	sending.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(count) / time.Since(start).Seconds(), nil
}

// replay is of many events over one stream. The floor is the rate at which PostgreSQL gives
// their bodies to one connection.
func (n *notificationBench) replay(ctx context.Context) error {
	since := time.Now().UTC().Format(time.RFC3339Nano)
	if err := n.batches(n.size.Replay, "Basic", func(int) string { return basic("replay") }); err != nil {
		return err
	}
	before, err := readMemory(n.t.kiln.PID)
	if err != nil {
		return err
	}
	start := time.Now()
	c, err := n.open("/Basic/$events?code=replay&_since="+url.QueryEscape(since), "Accept: text/event-stream\r\n", 200)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	for got := 0; got < n.size.Replay; {
		line, err := c.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("the replay ended after %d events: %w", got, err)
		}
		if bytes.HasPrefix(line, []byte("event: basic-created")) {
			got++
		}
	}
	this := float64(n.size.Replay) / time.Since(start).Seconds()
	after, err := readMemory(n.t.kiln.PID)
	if err != nil {
		return err
	}
	start, read := time.Now(), 0
	rows, err := n.t.db.Query(ctx, `SELECT r.body FROM resource r ORDER BY r.rid DESC LIMIT $1`, n.size.Replay)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		read++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	floor := float64(read) / time.Since(start).Seconds()
	n.goals = append(n.goals, rate(fmt.Sprintf("replay of %d events over SSE", n.size.Replay), 30_000, this, floor, 0, "/s"),
		atMost("memory that a replay adds", 64, float64(after.anon-before.anon)/(1<<20), " MiB"))
	return nil
}

// wire is a connection by hand: ten thousand of them are to cost this process little.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
}

// open sends a GET, and returns the connection behind the header of the answer.
func (n *notificationBench) open(path, header string, want int) (*wire, error) {
	address := strings.TrimPrefix(n.t.kiln.URL, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(rowBound))
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, address, header); err != nil {
		conn.Close()
		return nil, err
	}
	w := &wire{conn: conn, in: bufio.NewReaderSize(conn, 4096)}
	status, err := w.in.ReadString('\n')
	if err == nil && !strings.Contains(status, fmt.Sprintf(" %d ", want)) {
		err = fmt.Errorf("GET %s: %s", path, strings.TrimSpace(status))
	}
	for line := status; err == nil && line != "\r\n"; {
		line, err = w.in.ReadString('\n')
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// until reads until a text comes.
func (w *wire) until(text string) error {
	var tail []byte
	for {
		if _, err := w.in.Peek(1); err != nil {
			return err
		}
		b, _ := w.in.Peek(w.in.Buffered())
		tail = append(tail, b...)
		_, _ = w.in.Discard(len(b))
		if bytes.Contains(tail, []byte(text)) {
			return nil
		}
		tail = append([]byte(nil), tail[max(0, len(tail)-len(text)):]...)
	}
}

// frame is a masked text frame of a client with a mask of zeros. RFC 6455 §5.2.
func frame(text string) []byte {
	return append([]byte{0x81, 0x80 | 126, byte(len(text) >> 8), byte(len(text)), 0, 0, 0, 0}, text...)
}

// connections are WebSockets and then event streams: the memory and descriptors of each in the
// server, one event to all, and reads beside them.
func (n *notificationBench) connections(ctx context.Context) error {
	const upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
	if _, err := n.send("PUT", "Patient/bench-read", `{"resourceType":"Patient","id":"bench-read","active":true}`, 201); err != nil {
		return err
	}
	reading := func(_ context.Context, w *Worker) error {
		if w.Do("read", Request{Method: "GET", Path: "Patient/bench-read"}) {
			w.Moved(1)
		}
		return nil
	}
	alone, err := n.run(ctx, "reads", 0, reading)
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		name  string
		count int
		dial  func() (*wire, error)
	}{
		{"WebSockets", n.size.Sockets, func() (*wire, error) {
			w, err := n.open("/notifications/ws", upgrade, 101)
			if err == nil {
				_, err = w.conn.Write(frame(`{"type":"subscribe","resourceType":"Basic","events":["create"],"criteria":"code=all"}`))
			}
			if err == nil {
				err = w.until(`"subscribed"`)
			}
			return w, err
		}},
		{"event streams", n.size.Streams, func() (*wire, error) {
			return n.open("/Basic/$events?code=all", "Accept: text/event-stream\r\n", 200)
		}},
	} {
		before, err := readMemory(n.t.kiln.PID)
		if err != nil {
			return err
		}
		var open []*wire
		for range kind.count {
			w, err := kind.dial()
			if err != nil {
				return fmt.Errorf("after %d %s: %w", len(open), kind.name, err)
			}
			open = append(open, w)
		}
		after, err := readMemory(n.t.kiln.PID)
		if err != nil {
			return err
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.t.kiln.PID))
		if err != nil {
			return err
		}
		beside, err := n.run(ctx, fmt.Sprintf("reads beside %d %s", kind.count, kind.name), 0, reading)
		if err != nil {
			return err
		}
		var failed atomic.Int64
		var hearing sync.WaitGroup
		for _, w := range open {
			hearing.Go(func() {
				_ = w.conn.SetReadDeadline(time.Now().Add(time.Minute))
				if w.until(`"event":"create"`) != nil {
					failed.Add(1)
				}
			})
		}
		if _, err := n.send("POST", "Basic", basic("all"), 201); err != nil {
			return err
		}
		start := time.Now()
		hearing.Wait()
		took := milliseconds(time.Since(start))
		for _, w := range open {
			w.conn.Close()
		}
		if failed.Load() > 0 {
			return fmt.Errorf("%d of %d %s did not hear of the event", failed.Load(), kind.count, kind.name)
		}
		n.goals = append(n.goals,
			atMost(fmt.Sprintf("memory of each of %d %s (%d descriptors in all)", kind.count, kind.name, len(files)), 40, float64(after.anon-before.anon)/float64(kind.count)/1000, " kB"),
			atMost(fmt.Sprintf("one event to %d %s", kind.count, kind.name), 300, took, " ms"),
			rate(beside.Workload, 0, beside.Rate.Median, alone.Rate.Median, 0.95, "/s"))
	}
	return nil
}
