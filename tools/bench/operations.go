package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func operationsCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "operations",
		Short: "Measure the cost of rate limits and audit for reads and writes, and a client at ten times its rate",
		Long: `Measure what rate limits and audit cost: servers of --kiln on one database, one for each
setting, beside one with nothing of it in the same run.`,
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
			results, goals, err := t.operations(c.Context(), s, l, max(s.runs, 2))
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

// The settings of operations.
const (
	requestsPerMinute = "KILN_AUTH__RATE_LIMITING__REQUESTS_PER_MINUTE="
	auditRest         = "KILN_AUDIT__REST="
)

// operations measures each setting on a server of its own beside one without it, both as
// new. Their runs take turns, so that both have the same weather.
func (t *target) operations(ctx context.Context, s *settings, l Load, runs int) ([]Result, []Goal, error) {
	if t.kiln == nil {
		return nil, nil, errors.New("operations are measured on servers of --kiln: leave --url out")
	}
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, nil, err
	}
	reading := func(_ context.Context, w *Worker) error {
		if w.Do("read", Request{Method: "GET", Path: "Patient/" + pick(w.Rand, samples.Patients)}) {
			w.Moved(1)
		}
		return nil
	}
	rows := []struct {
		name    string
		setting [2]string // of the server of the floor, and of the other
		op      Op
		ratio   float64 // of the floor
	}{
		{"read, rate limit", [2]string{requestsPerMinute + "0", requestsPerMinute + "1000000000"}, reading, 0.97},
		{"read, audit.rest all", [2]string{auditRest + "off", auditRest + "all"}, reading, 0.85},
	}
	var results []Result
	var goals []Goal
	for _, row := range rows {
		var sides [2]*Kiln // without the setting, and with it
		stop := func() {
			for _, k := range sides {
				if k != nil {
					k.Stop()
				}
			}
		}
		for i := range sides {
			var err error
			if sides[i], err = startKiln(ctx, s.kiln, t.url, []string{row.setting[i]}); err != nil {
				stop()
				return nil, nil, err
			}
		}
		on := func(k *Kiln) func(context.Context, Load) (*Measured, error) {
			return func(ctx context.Context, l Load) (*Measured, error) { return t.drive(ctx, l, k, row.op) }
		}
		this, floor, err := pair{this: on(sides[1]), floor: on(sides[0])}.measure(ctx, l, runs)
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("%s: %w", row.name, err)
		}
		f, r := summarise(row.name+": without", l, floor), summarise(row.name, l, this)
		if r.All.Errors > 0 {
			fmt.Fprintf(os.Stderr, "%s: %d errors; the server's log ends with\n%s\n", row.name, r.All.Errors, sides[1].Log())
		}
		stop()
		results = append(results, f, r)
		goals = append(goals, pairedGoal(row.name, this, floor, row.ratio))
	}
	// What writes leave behind, AuditEvents still to be made and work for autovacuum, would
	// slow the next run: each has a database of its own.
	if t.cluster != nil {
		const name = "CRUD, audit.rest writes"
		on := func(setting string) func(context.Context, Load) (*Measured, error) {
			return func(ctx context.Context, l Load) (*Measured, error) {
				return t.driveAnew(ctx, s, l, auditRest+setting, crudWorkload)
			}
		}
		this, floor, err := pair{this: on("writes"), floor: on("off")}.measure(ctx, l, runs)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, summarise(name+": without", l, floor), summarise(name, l, this))
		goals = append(goals, pairedGoal(name, this, floor, 0.90))
	}
	goals = append(goals, inProcess()...)
	limited, more, err := flooded(ctx, s, t, l, samples, runs)
	return append(results, limited...), append(goals, more...), err
}

// drive measures op on a server, and waits for the end of the work behind its answers.
func (t *target) drive(ctx context.Context, l Load, k *Kiln, op Op) (*Measured, error) {
	client, err := NewClient(k.URL, "")
	if err != nil {
		return nil, err
	}
	m, err := drive(ctx, l, Watched{Server: k.PID, Postmaster: t.bench.Watched.Postmaster}, client.NewExchange, op)
	return m, errors.Join(err, t.audited(ctx))
}

// driveAnew measures a workload on a new server and an empty database.
func (t *target) driveAnew(ctx context.Context, s *settings, l Load, setting string, w Workload) (*Measured, error) {
	url, err := t.cluster.CreateDatabase(ctx, "kiln_bench_anew")
	if err != nil {
		return nil, err
	}
	k, err := startKiln(ctx, s.kiln, url, []string{setting})
	if err != nil {
		return nil, err
	}
	defer k.Stop()
	client, err := NewClient(k.URL, "")
	if err != nil {
		return nil, err
	}
	b := &Bench{Client: client, Watched: Watched{Server: k.PID, Postmaster: t.bench.Watched.Postmaster}, Seed: l.Seed}
	task, err := w.Prepare(ctx, b)
	if err != nil {
		return nil, err
	}
	return drive(ctx, l, b.Watched, client.NewExchange, task.Op)
}

// audited waits until AuditEvents are made of all that was recorded: servers do that when
// fewer requests come, which would be in the next run.
func (t *target) audited(ctx context.Context) error {
	for deadline := time.Now().Add(5 * time.Minute); ; wait(ctx, time.Now().Add(100*time.Millisecond)) {
		var left bool
		err := t.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM audit_pending) OR EXISTS (SELECT FROM audit_of_write)`).Scan(&left)
		if err != nil || !left {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("AuditEvents of recorded events are not made within 5 minutes")
		}
	}
}

// The rates of flooded, in requests a second. They are small, so that the limit is measured and not the machine.
const (
	allowedRate = 100              // of one address
	othersRate  = 80               // of well-behaved clients
	floodRate   = 10 * allowedRate // of one who does not
)

// flooded measures well-behaved clients, alone and beside an address that sends ten times its limit, and the time of a
// refusal.
func flooded(ctx context.Context, s *settings, t *target, l Load, samples *Samples, runs int) ([]Result, []Goal, error) {
	server, err := startKiln(ctx, s.kiln, t.url, []string{fmt.Sprint(requestsPerMinute, 60*allowedRate)})
	if err != nil {
		return nil, nil, err
	}
	defer server.Stop()
	others, err := NewClient(server.URL, "")
	if err != nil {
		return nil, nil, err
	}
	flood, err := NewClient(server.URL, "")
	if err != nil {
		return nil, nil, err
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	flood.host.Dial = func(address string) (net.Conn, error) { return dialer.Dial("tcp", address) }
	// reading asks for patients at the rates of both, each request of one of them.
	reading := func(floodRate int) Op {
		return func(_ context.Context, w *Worker) error {
			if w.State == nil {
				w.State = [2]*Exchange{others.NewExchange(), flood.NewExchange()}
			}
			x, kind := w.State.([2]*Exchange)[0], "others"
			if w.Rand.IntN(othersRate+floodRate) >= othersRate {
				x, kind = w.State.([2]*Exchange)[1], "flood, served"
			}
			start := w.start()
			err := x.Do(Request{Method: "GET", Path: "Patient/" + pick(w.Rand, samples.Patients)})
			message := ""
			switch {
			case err != nil:
				message = err.Error()
			case x.Status == 429 && kind != "others":
				kind = "flood, refused"
			case x.Status != 200:
				message = fmt.Sprintf("GET %s: %d %s", kind, x.Status, excerpt(x.Body))
			}
			w.record(kind, time.Since(start), message)
			return nil
		}
	}
	l.Clients = 32
	var alone, beside []*Measured
	for i := range runs {
		l.Seed = s.seed + uint64(i)
		for _, side := range []struct {
			flood int
			into  *[]*Measured
		}{{0, &alone}, {floodRate, &beside}} {
			l.Rate = float64(othersRate + side.flood)
			m, err := drive(ctx, l, Watched{Server: server.PID, Postmaster: t.bench.Watched.Postmaster}, others.NewExchange, reading(side.flood))
			if err != nil {
				return nil, nil, fmt.Errorf("ten times the rate: %w", err)
			}
			*side.into = append(*side.into, m)
		}
	}
	f, r := summarise("others, alone", l, alone), summarise("others, beside ten times the rate", l, beside)
	p99 := f.All.Latency.P99.Median
	kinds := make(map[string]Latency)
	for _, c := range r.Categories {
		kinds[c.Name] = c.Latency
	}
	return []Result{f, r}, []Goal{
		atMost("refused at ten times the rate, p50", 1, kinds["flood, refused"].P50.Median, " ms"),
		atMost("others beside ten times the rate, p99 above "+number(p99)+" ms", 1, kinds["others"].P99.Median-p99, " ms"),
	}, nil
}
