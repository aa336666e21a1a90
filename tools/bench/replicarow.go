package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// The goals of standbys.
const (
	primaryShare = 15.0  // % of the primary's processor time alone
	clusterShare = 115.0 // % of the same, all PostgreSQLs together
	writeRatio   = 0.95  // creates and updates, of those without positions
	behindIdle   = 5.0   // ms of p99 above the primary alone
	behindLate   = 70.0  // the same with late standbys: database.read_wait_ms and 20 ms
	rowDelay     = 300 * time.Millisecond
)

// cost is the processor time of each PostgreSQL in a row.
type cost struct {
	row      string
	requests int64
	cpu      map[string]float64 // seconds
	replicas float64            // part of the reads that standbys answered; below 0: answers do not say
}

// each is the processor time of a group for 10,000 requests, in seconds.
func (c cost) each(groups ...string) (seconds float64) {
	for _, group := range groups {
		seconds += c.cpu[group]
	}
	return seconds / float64(max(c.requests, 1)) * 10_000
}

// sources counts where reads were answered.
type sources struct{ replica, primary atomic.Int64 }

func (s *sources) note(x *Exchange) {
	switch source := x.Header("X-Kiln-Source"); {
	case source == "primary":
		s.primary.Add(1)
	case source != "":
		s.replica.Add(1)
	}
}

func (s *sources) share() float64 {
	r, p := s.replica.Load(), s.primary.Load()
	if r+p == 0 {
		return -1
	}
	return float64(r) / float64(r+p)
}

// replicaState is the memory of a client of the rows.
type replicaState struct {
	position, id string
}

// rowOps are the operations of the rows. They return positions that they got, so that on a server without standbys they send none.
type rowOps struct {
	samples *Samples
	from    *sources
}

// ask reads or searches.
func (o rowOps) ask(w *Worker, position string) {
	kind, path := "read", pick(w.Rand, o.samples.References)
	if w.Rand.IntN(2) == 0 {
		kind, path = "search", "Observation?patient="+pick(w.Rand, o.samples.Patients)+"&_count=20"
	}
	if w.Do(kind, Request{Method: "GET", Path: path, Position: position}) {
		w.Moved(1)
		o.from.note(w.X())
	}
}

func (o rowOps) read(_ context.Context, w *Worker) error {
	o.ask(w, "")
	return nil
}

func (o rowOps) state(w *Worker) *replicaState {
	st, ok := w.State.(*replicaState)
	if !ok {
		st = &replicaState{}
		w.State = st
	}
	return st
}

func (o rowOps) readPosition(_ context.Context, w *Worker) error {
	st := o.state(w)
	o.ask(w, st.position)
	st.position = w.X().Header("X-Kiln-Position")
	return nil
}

// write creates a Patient, or updates the one that the client created before.
func (o rowOps) write(_ context.Context, w *Worker) error {
	st := o.state(w)
	body := func(id string) []byte {
		return fmt.Appendf(nil, `{"resourceType":"Patient",%s"identifier":[{"system":"urn:bench:row","value":"%d"}],"name":[{"family":"Row%d"}]}`, id, w.Rand.Uint64(), w.Rand.IntN(1000))
	}
	r := Request{Method: "POST", Path: "Patient", Body: body(""), Position: st.position}
	kind := "create"
	if st.id != "" {
		kind, r.Method, r.Path, r.Body = "update", "PUT", "Patient/"+st.id, body(`"id":"`+st.id+`",`)
	}
	if !w.Do(kind, r) {
		st.id = ""
		return nil
	}
	st.position = w.X().Header("X-Kiln-Position")
	if kind == "create" {
		st.id, _ = idFrom(w.X().Location, "Patient")
	} else {
		st.id = ""
	}
	w.Moved(1)
	return nil
}

// behind reads or searches right after an own write.
func (o rowOps) behind(ctx context.Context, w *Worker) error {
	if err := o.write(ctx, w); err != nil {
		return err
	}
	o.ask(w, o.state(w).position)
	return nil
}

// replicaRows measures a server with standbys in turns with one that has none.
func (t *target) replicaRows(ctx context.Context, s *settings, standbys []*Cluster) ([]Result, []Goal, []cost, error) {
	samples, err := t.bench.Samples(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	with, err := startKiln(ctx, s.kiln, t.url, []string{"KILN_AUTH__ENABLED=false", readURLs(standbys)})
	if err != nil {
		return nil, nil, nil, err
	}
	defer with.Stop()
	alone := t.kiln
	watched := Watched{Postmaster: t.cluster.Postmaster}
	for _, standby := range standbys {
		watched.Standbys = append(watched.Standbys, standby.Postmaster)
	}
	clients := 8
	if len(s.clients) > 0 {
		clients = s.clients[0]
	}
	watched.Server = with.PID
	var results []Result
	var goals []Goal
	costs := []cost{idleCost(ctx, watched)}
	for _, row := range []struct {
		name    string
		clients int
		delay   time.Duration
		op      func(rowOps) Op
		goals   func(with, alone []*Measured, costs [2]cost) []Goal
	}{
		{"replica", clients, 0, func(o rowOps) Op { return o.read }, cpuGoals},
		{"position", clients, 0, func(o rowOps) Op { return o.readPosition }, nil},
		{"position, writes", clients, 0, func(o rowOps) Op { return o.write }, func(with, alone []*Measured, _ [2]cost) []Goal {
			return []Goal{pairedGoal("creates and updates with positions", with, alone, writeRatio)}
		}},
		{"behind", 2, 0, func(o rowOps) Op { return o.behind }, func(with, alone []*Measured, _ [2]cost) []Goal {
			return []Goal{behindGoal("read or search right after an own write: p99 above the primary alone", behindIdle, with, alone)}
		}},
		{"behind, 300 ms", 2, rowDelay, func(o rowOps) Op { return o.behind }, func(with, alone []*Measured, _ [2]cost) []Goal {
			return []Goal{behindGoal("the same with recovery_min_apply_delay = 300 ms", behindLate, with, alone)}
		}},
	} {
		fmt.Fprintln(os.Stderr, row.name)
		if err := replayLate(ctx, row.delay, standbys...); err != nil {
			return nil, nil, nil, err
		}
		var from [2]sources
		side := func(i int, k *Kiln) (func(context.Context, Load) (*Measured, error), Watched, error) {
			client, err := NewClient(k.URL, "")
			w := watched
			w.Server = k.PID
			return func(ctx context.Context, l Load) (*Measured, error) {
				return drive(ctx, l, w, client.NewExchange, row.op(rowOps{samples, &from[i]}))
			}, w, err
		}
		this, watchedWith, err := side(0, with)
		if err != nil {
			return nil, nil, nil, err
		}
		floor, watchedAlone, err := side(1, alone)
		if err != nil {
			return nil, nil, nil, err
		}
		l := Load{Clients: row.clients, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
		these, floors, err := pair{this, floor, []Watched{watchedWith, watchedAlone}}.measure(ctx, l, s.runs)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", row.name, err)
		}
		both := [2]cost{costOf(row.name, these, &from[0]), costOf(row.name+": alone", floors, &from[1])}
		costs = append(costs, both[1], both[0])
		results = append(results, summarise(row.name+": alone", l, floors), summarise(row.name, l, these))
		if row.goals != nil {
			goals = append(goals, row.goals(these, floors, both)...)
		}
	}
	return results, goals, costs, replayLate(ctx, 0, standbys...)
}

// Idle PostgreSQLs and servers are measured for idleFor, and told for 10 s.
const (
	idleFor = 5 * time.Second
	idleRow = "idle for 10 s"
)

// idleCost is the processor time of 10 s without a request: a slow row contains more of it.
func idleCost(ctx context.Context, watched Watched) cost {
	quiet(ctx, watched)
	monitor := StartMonitor(watched)
	wait(ctx, time.Now().Add(idleFor))
	c := cost{row: idleRow, requests: int64(1000 * idleFor.Seconds()), cpu: map[string]float64{}, replicas: -1}
	for group, u := range monitor.Stop() {
		c.cpu[group] = u.CPU
	}
	return c
}

func costOf(name string, runs []*Measured, from *sources) cost {
	c := cost{row: name, cpu: map[string]float64{}, replicas: from.share()}
	for _, m := range runs {
		c.requests += m.Total().Latency.N()
		for group, u := range m.Usage {
			c.cpu[group] += u.CPU
		}
	}
	return c
}

// standbyGroups are the groups of all standbys.
func standbyGroups() (groups []string) {
	for i := range replicas {
		groups = append(groups, standbyName(i))
	}
	return groups
}

func cpuGoals(_, _ []*Measured, costs [2]cost) []Goal {
	alone := costs[1].each("postgres")
	return []Goal{
		atMost("the primary's CPU for 10,000 reads and searches, of without standbys", primaryShare, 100*costs[0].each("postgres")/alone, " %"),
		atMost("CPU of all PostgreSQLs for them, of without standbys", clusterShare, 100*costs[0].each(append(standbyGroups(), "postgres")...)/alone, " %"),
	}
}

// behindGoal bounds the distance of the p99 of reads and searches.
func behindGoal(name string, most float64, with, alone []*Measured) Goal {
	return atMost(name, most, p99Of(with, "read", "search")-p99Of(alone, "read", "search"), " ms")
}

// p99Of is the p99 of some categories in all runs together, in ms.
func p99Of(runs []*Measured, categories ...string) float64 {
	var h Histogram
	for _, m := range runs {
		for _, name := range categories {
			if s := m.Series[name]; s != nil {
				h.Merge(&s.Latency)
			}
		}
	}
	return milliseconds(h.Quantile(0.99))
}

// writeCosts prints the processor time of each PostgreSQL.
func writeCosts(out io.Writer, costs []cost) error {
	fmt.Fprintln(out, "\nprocessor time for 10,000 requests, in seconds")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "row\trequests\tprimary\t")
	for i := range replicas {
		fmt.Fprintf(w, "%s\t", standbyName(i))
	}
	fmt.Fprintln(w, "PostgreSQLs\tserver\tfrom standbys\t")
	for _, c := range costs {
		requests := strconv.FormatInt(c.requests, 10)
		if c.row == idleRow {
			requests = "0"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t", c.row, requests, number(c.each("postgres")))
		for _, group := range standbyGroups() {
			fmt.Fprintf(w, "%s\t", number(c.each(group)))
		}
		share := "–"
		if c.replicas >= 0 {
			share = fmt.Sprintf("%.0f%%", 100*c.replicas)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", number(c.each(append(standbyGroups(), "postgres")...)), number(c.each("server")), share)
	}
	return w.Flush()
}
