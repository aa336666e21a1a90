package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// Goal is one row of the design's section on speed.
type Goal struct {
	Workload string `json:"workload"`
	Target   string `json:"target"`
	This     string `json:"this_run"`
	Floor    string `json:"floor,omitempty"`
	// Ratio is this run as a part of the floor; 0 where there is no floor.
	Ratio       float64 `json:"ratio,omitempty"`
	TargetRatio float64 `json:"target_ratio,omitempty"`
	// Missed says what does not hold: "absolute", "ratio", both or neither.
	Missed string `json:"missed,omitempty"`
}

// rate makes a goal of requests or resources a second.
func rate(workload string, target, this, floor, ratio float64, unit string) Goal {
	g := Goal{Workload: workload, Target: number(target) + unit, This: number(this) + unit, TargetRatio: ratio}
	var missed []string
	if this < target {
		missed = append(missed, "absolute")
	}
	if floor > 0 {
		g.Floor, g.Ratio = number(floor)+unit, this/floor
		if g.Ratio < ratio {
			missed = append(missed, "ratio")
		}
	}
	g.Missed = strings.Join(missed, ", ")
	return g
}

// atMost makes a goal that a figure stays below.
func atMost(workload string, target, this float64, unit string) Goal {
	g := Goal{Workload: workload, Target: "<= " + number(target) + unit, This: number(this) + unit}
	if this > target {
		g.Missed = "absolute"
	}
	return g
}

// Section7 is everything the design says about speed, measured.
type Section7 struct {
	Machine string   `json:"machine"`
	Goals   []Goal   `json:"goals"`
	Results []Result `json:"results"`
}

func section7Command(s *settings) *cobra.Command {
	var soak time.Duration
	c := &cobra.Command{
		Use:   "section7",
		Short: "Measure every speed goal of the design, with its floor",
		Long: `Measure every speed goal of the design, with its floor, on a server of its own
(--kiln) and a private PostgreSQL with durable commits, or on --url, which should
be empty. Takes five minutes, and as long as --soak on top.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.section7(c, soak) },
	}
	c.Flags().DurationVar(&soak, "soak", 0, "also keep up a mixed load at 80% of its peak for so long")
	return c
}

func (s *settings) section7(c *cobra.Command, soak time.Duration) error {
	ctx := c.Context()
	if s.corpus == "" {
		return errors.New("no transaction bundles: set KILN_SHARED_DATA to the folder that holds the Synthea archive, or name a folder or archive with --corpus")
	}
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	say := func(format string, args ...any) { fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }
	out := Section7{Machine: machine()}

	var idle int64
	if t.bench.Watched.Server != 0 {
		wait(ctx, time.Now().Add(time.Second))
		idle = t.bench.Watched.memory()["server"]
	}
	byName := map[string]Result{}
	run := func(w Workload, clients int) (Result, error) {
		say("%s, %d clients", w.Name, clients)
		l := Load{Clients: clients, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
		runs := s.runs
		if w.Name == "import" {
			runs = 1
		}
		r, err := t.measure(ctx, w, l, runs)
		out.Results = append(out.Results, r)
		byName[w.Name] = r
		return r, err
	}
	if _, err := run(importWorkload, 4); err != nil {
		return err
	}
	if err := t.settle(ctx, c.ErrOrStderr()); err != nil {
		return err
	}
	for _, m := range []struct {
		w       Workload
		clients int
	}{{readWorkload, 64}, {searchWorkload, 30}, {pageAllWorkload, 4}, {crudWorkload, 32}, {transactionWorkload, 32}, {stormWorkload, 32}, {behindWorkload, 32}, {liveWorkload, 32}} {
		if _, err := run(m.w, m.clients); err != nil {
			return err
		}
	}
	busy, err := run(mixWorkload, 300)
	if err != nil {
		return err
	}
	beside, err := t.besideTransactions(ctx, s)
	if err != nil {
		return err
	}
	out.Results = append(out.Results, beside)

	floors := map[string]Result{}
	if t.db == nil {
		say("no floor: --database-url is not set")
	} else {
		f, done, err := t.openFloor(ctx, t.bench.Corpus)
		if err != nil {
			return err
		}
		defer done()
		if f.Samples, err = t.bench.Samples(ctx); err != nil {
			return err
		}
		for _, p := range floorParts {
			say("floor of %s", p.workload)
			l := Load{Clients: byName[p.workload].Clients, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
			var runs []*Measured
			for i := range max(s.runs, 1) {
				if i > 0 && p.workload == "import" {
					break // the rows are there
				}
				m, err := f.Run(ctx, p, l)
				if err != nil {
					return err
				}
				runs = append(runs, m)
			}
			floors[p.workload] = summarise("floor "+p.workload, l, runs)
			out.Results = append(out.Results, floors[p.workload])
		}
	}
	validate, err := validateCost(ctx, t.bench.Corpus)
	if err != nil {
		return err
	}
	out.Goals = goals(byName, floors, idle, busy, beside, validate)
	if t.kiln != nil {
		say("authorization")
		l := Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
		guarded, g, err := t.access(ctx, s, l, max(s.runs, 2))
		if err != nil {
			return err
		}
		out.Results, out.Goals = append(out.Results, guarded...), append(out.Goals, g...)
	}
	if t.kiln != nil {
		say("bulk data")
		r, g, err := t.bulk(ctx, s)
		if err != nil {
			return err
		}
		out.Results, out.Goals = append(out.Results, r...), append(out.Goals, g...)
	}
	if soak > 0 {
		say("mixed load for %s", soak)
		r, g, err := t.soak(ctx, s, soak, 0.8, say)
		if err != nil {
			return err
		}
		out.Results, out.Goals = append(out.Results, r), append(out.Goals, g...)
	}
	if s.jsonFile != "-" {
		if err := writeResults(c.OutOrStdout(), out.Results); err != nil {
			return err
		}
		if err := writeGoals(c.OutOrStdout(), out); err != nil {
			return err
		}
	}
	if s.plots != "" {
		if err := drawPlots(s.plots, out.Results); err != nil {
			return err
		}
	}
	return s.writeJSON(c.OutOrStdout(), out)
}

// goals are the rows of the design's section 7.
func goals(m, floors map[string]Result, idle int64, busy, beside Result, validate time.Duration) []Goal {
	read, crud, imported, search, tx2, page := m["read"], m["crud"], m["import"], m["search"], m["tx2"], m["page-all"]
	worst := slices.MaxFunc(append(search.Categories, search.All), func(a, b Category) int {
		return int(1000 * (a.Latency.P99.Median - b.Latency.P99.Median))
	})
	live, behind := m["live"], m["behind"]
	patient, _ := slowest(behind, func(name string) bool { return name != "broad" })
	out := []Goal{
		rate("read by id, 64 clients", 20000, read.Rate.Median, floors["read"].Rate.Median, 0.9, "/s"),
		atMost("  p99", 8, read.All.Latency.P99.Median, " ms"),
		rate("create / CRUD cycle, 32 clients", 8000, crud.Rate.Median, floors["crud"].Rate.Median, 0.8, "/s"),
		rate("import, 4 uploaders", 20000, imported.Resources.Median, floors["import"].Resources.Median, 0.9, " res/s"),
		rate("search mix with exact totals, 30 clients", 6000, search.Rate.Median, floors["search"].Rate.Median, 0.45, "/s"),
		atMost("  p99 of the slowest category ("+worst.Name+")", 12, worst.Latency.P99.Median, " ms"),
		rate("2-entry transactions, 32 clients", 4500, tx2.Rate.Median, floors["tx2"].Rate.Median, 0.5, "/s"),
		rate("page through everything, 4 clients", 250000, page.Resources.Median, floors["page-all"].Resources.Median, 0.4, " res/s"),
	}
	if live.Workload != "" {
		one, _ := slowest(live, func(name string) bool { return name == "reference" || name == "string" })
		broad, _ := slowest(live, func(name string) bool {
			return strings.HasPrefix(name, "date") || name == "quantity" || name == "token"
		})
		out = append(out,
			rate("live mix with 15% writes, 32 clients", 3000, live.Rate.Median, floors["live"].Rate.Median, 0.35, "/s"),
			atMost("  p99 of searches for one patient or a name ("+one.Name+")", 25, one.Latency.P99.Median, " ms"),
			atMost("  p99 of broad searches ("+broad.Name+")", 80, broad.Latency.P99.Median, " ms"),
			atMost("  p99 of searches for one patient behind broad ones ("+patient.Name+")", 25, patient.Latency.P99.Median, " ms"))
	}
	if imported.Disk != nil {
		out = append(out, atMost("disk for each imported resource", 1400, *imported.Disk, " B"), atMost("WAL for each imported resource", 2400, *imported.WAL, " B"))
	}
	if idle > 0 {
		out = append(out, atMost("server memory, idle", 60, float64(idle)/1e6, " MB"),
			atMost("server memory, 300 clients", 200, float64(busy.Memory["server"])/1e6, " MB"))
	}
	out = append(out, atMost("p99 of 32 readers beside long transactions", 25, beside.All.Latency.P99.Median, " ms"))
	if validate > 0 {
		out = append(out, atMost("validate one Synthea Observation", 20, float64(validate)/1e3, " us"))
	}
	var errs int64
	for _, r := range m {
		errs += r.All.Errors
	}
	return append(out, atMost("errors in all workloads", 0, float64(errs), ""))
}

// slowest returns the category with the longest p99 among some names.
func slowest(r Result, of func(name string) bool) (c Category, ok bool) {
	for _, some := range r.Categories {
		if of(some.Name) && (!ok || some.Latency.P99.Median > c.Latency.P99.Median) {
			c, ok = some, true
		}
	}
	return c, ok
}

// besideTransactions reads with 32 clients while one client posts the largest
// bundles of the corpus, one after the other.
func (t *target) besideTransactions(ctx context.Context, s *settings) (Result, error) {
	var largest []Bundle
	err := t.bench.Corpus.Each(ctx, func(b Bundle) error {
		largest = append(largest, b)
		slices.SortFunc(largest, func(a, b Bundle) int { return b.Entries - a.Entries })
		largest = largest[:min(len(largest), 8)]
		return nil
	})
	if err != nil {
		return Result{}, err
	}
	reading, err := readWorkload.Prepare(ctx, t.bench)
	if err != nil {
		return Result{}, err
	}
	const readers = 32
	l := Load{Clients: readers + 1, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
	refused := ""
	n := 0
	m, err := drive(ctx, l, t.bench.Watched, t.bench.Client.NewExchange, func(ctx context.Context, w *Worker) error {
		if w.Number < readers {
			return reading.Op(ctx, w)
		}
		// Not among the figures: they are the readers'.
		if err := w.x.Do(Request{Method: "POST", Body: largest[n%len(largest)].JSON, Minimal: true}); err != nil || w.x.Status > 299 {
			refused = fmt.Sprintf("%v %d %s", err, w.x.Status, excerpt(w.x.Body))
			return io.EOF
		}
		n++
		return nil
	})
	if err == nil && refused != "" {
		err = fmt.Errorf("a long transaction failed: %s", refused)
	}
	return summarise("read beside transactions", Load{Clients: readers}, []*Measured{m}), err
}

// settle waits until PostgreSQL has vacuumed and analysed the imported tables, as it does by itself within a minute or
// two; it does not hurry it. Kiln's tables are analysed after a fifth of them has changed.
func (t *target) settle(ctx context.Context, out io.Writer) error {
	if t.db == nil {
		return nil
	}
	fmt.Fprintln(out, "waiting for autovacuum to have seen the data")
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		var waiting int
		err := t.db.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_user_tables
			WHERE n_mod_since_analyze > 50 + 0.2 * n_live_tup OR n_ins_since_vacuum > 1000 + 0.2 * n_live_tup`).Scan(&waiting)
		if err != nil {
			return err
		}
		var running int
		if err := t.db.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'`).Scan(&running); err != nil {
			return err
		}
		if waiting == 0 && running == 0 {
			return nil
		}
		wait(ctx, time.Now().Add(500*time.Millisecond))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// writeGoals prints the table of goals.
func writeGoals(out io.Writer, s Section7) error {
	fmt.Fprintf(out, "\n%s\n", s.Machine)
	var paces []float64
	for _, r := range s.Results {
		paces = append(paces, r.Pace.Min, r.Pace.Max)
	}
	if len(paces) > 0 {
		f := figureOf(paces)
		fmt.Fprintf(out, "a fixed piece of work took %.0f to %.0f us of a processor in the workloads\n", f.Min, f.Max)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "workload\ttarget\tthis run\tfloor\tratio\ttarget ratio\tmissed\t")
	for _, g := range s.Goals {
		floor, ratio, of := "", "", ""
		if g.Ratio > 0 {
			floor, ratio, of = g.Floor, fmt.Sprintf("%.0f%%", 100*g.Ratio), fmt.Sprintf(">= %.0f%%", 100*g.TargetRatio)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", g.Workload, g.Target, g.This, floor, ratio, of, g.Missed)
	}
	return w.Flush()
}

// machine describes the machine of the measurements.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	memory := ""
	if bytes := memoryBytes(); bytes > 0 {
		memory = fmt.Sprintf(", %d GB", bytes>>30)
	}
	load := ""
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = ", load average before " + strings.Join(strings.Fields(string(b))[:3], " ")
	}
	return fmt.Sprintf("%d × %s%s, %s/%s%s", runtime.NumCPU(), model, memory, runtime.GOOS, runtime.GOARCH, load)
}

// memoryBytes is how much memory the machine has, 0 where that is not known.
func memoryBytes() int64 {
	var kb int64
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		_, _ = fmt.Sscanf(string(b), "MemTotal: %d kB", &kb)
	}
	return kb << 10
}
