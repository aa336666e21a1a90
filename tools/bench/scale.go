package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// copiesWorkload imports copies of the corpus from first on, each with ids of its own;
// copy 0 is the corpus itself.
func copiesWorkload(first, copies int) Workload {
	w := importWorkload
	w.Prepare = func(ctx context.Context, b *Bench) (Task, error) {
		bundles, err := b.Corpus.Load(ctx)
		if err != nil {
			return Task{}, err
		}
		var taken atomic.Int64
		return Task{Op: func(_ context.Context, w *Worker) error {
			i := int(taken.Add(1)) - 1
			if i >= copies*len(bundles) {
				return io.EOF
			}
			bundle := bundles[i%len(bundles)]
			if w.Do("bundle", Request{Method: "POST", Path: "", Body: copyBundle(bundle.JSON, first+i/len(bundles)), Minimal: true}) {
				w.Moved(bundle.Entries)
			}
			return nil
		}}, nil
	}
	return w
}

const (
	uuidFirstHyphen = 8 // its place in a UUID
	uuidLength      = 36
)

// copyBundle returns a bundle with other UUIDs of resources and identifiers. Equal UUIDs stay equal.
func copyBundle(bundle []byte, n int) []byte {
	if n == 0 {
		return bundle
	}
	out := bytes.Clone(bundle)
	for at := 0; ; {
		hyphen := bytes.IndexByte(out[at:], '-')
		if hyphen < 0 {
			return out
		}
		at += hyphen + 1
		begin := at - 1 - uuidFirstHyphen
		if begin < 0 || begin+uuidLength > len(out) || !isUUID(out[begin:begin+uuidLength]) {
			continue
		}
		at = begin + uuidLength
		var last [4]byte
		_, _ = hex.Decode(last[:], out[at-8:at])
		for i := range last {
			last[i] ^= byte(n >> (8 * i))
		}
		hex.Encode(out[at-8:at], last[:])
	}
}

// isUUID reports whether b, of a UUID's length, is one in lower case.
func isUUID(b []byte) bool {
	for i, c := range b {
		switch i {
		case uuidFirstHyphen, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

func copiesCommand(s *settings) *cobra.Command {
	var first, copies int
	c := &cobra.Command{
		Use:   "copies",
		Short: "Import copies of the corpus with other ids, to fill a server",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			r, err := t.measure(c.Context(), copiesWorkload(first, copies), Load{Clients: 4, Seed: s.seed}, 1)
			if err != nil {
				return err
			}
			return s.report(c.OutOrStdout(), []Result{r})
		},
	}
	c.Flags().IntVar(&first, "first", 0, "the first copy; 0 is the corpus itself")
	c.Flags().IntVar(&copies, "copies", 1, "how many copies")
	return c
}

func scaleCommand(s *settings) *cobra.Command {
	var size int
	c := &cobra.Command{
		Use:   "scale",
		Short: "Measure the rows of the design among many resources, and the slope",
		Long: `Import the corpus into a server of its own, measure, import copies of it with other
ids until there are --size resources, and measure again. The last column is the
second figure as a part of the first; what is asked of a server of each size comes
behind them. What reads, CRUD and the import are to be as a part of a small server's is
measured beside another small one, in turns: a machine's pace changes within minutes.
2 million resources take about 3 GB of disk and ten minutes, 20 million about 35 GB and
an hour.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if s.corpus == "" || s.url != "" {
				return errors.New("the scale is measured on a server of its own: --corpus is needed, --url is not for it")
			}
			return s.scale(c, size)
		},
	}
	c.Flags().IntVar(&size, "size", 2_000_000, "resources to end with")
	return c
}

// scaleRow is one figure at both sizes.
type scaleRow struct {
	name string
	at   [2]float64
	unit string
}

// bounds are the goals for a server with a number of resources.
type bounds struct {
	upTo                    int     // resources
	live                    float64 // requests a second
	one, broad              float64 // p99 of searches of the live mix, in ms
	broadMedian, broadWorst float64 // of one client's broad searches beside 50 writes a second, in ms
	first                   float64 // the longest broad search that nobody has asked before, in ms
	part                    float64 // of the rates of reads, CRUD and imports on a small server beside it
	memory, start           float64 // in MB and s
}

var scaleBounds = []bounds{
	{upTo: 1_000_000, live: 3000, one: 25, broad: 80, broadMedian: 3, broadWorst: 30, first: 60, memory: 250, start: 0.3},
	{upTo: 5_000_000, live: 2000, one: 30, broad: 120, broadMedian: 5, broadWorst: 60, first: 200, part: 0.9, memory: 350, start: 0.3},
	{upTo: 1 << 60, live: 1500, one: 40, broad: 200, broadMedian: 8, broadWorst: 150, first: 800, part: 0.8, memory: 450, start: 0.5},
}

// scaled is the measurement at a number of resources.
type scaled struct {
	resources int
	of        map[string]Result // by workload
	started   time.Duration
	beside    []Goal // rates as a part of a small server's
}

// goals returns the goals for a server of this size.
func (m scaled) goals() []Goal {
	b := scaleBounds[slices.IndexFunc(scaleBounds, func(b bounds) bool { return m.resources <= b.upTo })]
	live := m.of["live"]
	one, _ := slowest(live, func(name string) bool { return name == "reference" || name == "string" })
	many, _ := slowest(live, func(name string) bool {
		return strings.HasPrefix(name, "date") || slices.Contains([]string{"quantity", "token", "composite", ":contains"}, name)
	})
	asked := func(name string) bool { return name != "create" && name != "update" }
	var median, worst float64
	for _, c := range m.of["broad"].Categories {
		if asked(c.Name) {
			median, worst = max(median, c.Latency.P50.Median), max(worst, c.Latency.Max.Max)
		}
	}
	var first Category
	for _, c := range m.of["first"].Categories {
		if c.Latency.Max.Max >= first.Latency.Max.Max {
			first = c
		}
	}
	var memory int64
	for _, r := range m.of {
		memory = max(memory, r.Memory["server"])
	}
	at := fmt.Sprintf(" at %s resources", number(float64(m.resources)))
	out := []Goal{
		rate("live mix"+at, b.live, live.Rate.Median, 0, 0, "/s"),
		atMost("  p99 of searches for one patient or a name ("+one.Name+")", b.one, one.Latency.P99.Median, " ms"),
		atMost("  p99 of broad searches ("+many.Name+")", b.broad, many.Latency.P99.Median, " ms"),
		atMost("broad searches, one client, 50 writes/s: p50 of the slowest kind", b.broadMedian, median, " ms"),
		atMost("  the longest", b.broadWorst, worst, " ms"),
		atMost("broad searches never asked before: the longest ("+first.Name+")", b.first, first.Latency.Max.Max, " ms"),
		atMost("server memory", b.memory, float64(memory)/1e6, " MB"),
		atMost("start", b.start, m.started.Seconds(), " s"),
	}
	for _, g := range m.beside {
		g.TargetRatio = b.part
		if g.Ratio < b.part {
			g.Missed = "ratio"
		}
		out = append(out, g)
	}
	return out
}

// start starts a second server on the same database, and returns how long that took.
func (t *target) start(ctx context.Context, binary string) (time.Duration, error) {
	k, err := StartKiln(ctx, binary, t.url)
	if err != nil {
		return 0, err
	}
	k.Stop()
	return k.Started, nil
}

// beside compares a large server with a small one: reads and CRUD of both in turns, and the rate of the long import with
// the rates of the corpus, before and after it.
func (s *settings) beside(ctx context.Context, large *target, at [2]scaled, out io.Writer) ([]Goal, error) {
	own := *s
	own.databaseURL = ""
	small, err := own.target(ctx)
	if err != nil {
		return nil, err
	}
	defer small.close()
	imported, err := small.measure(ctx, copiesWorkload(0, 1), Load{Clients: 4, Seed: s.seed}, 1)
	if err != nil {
		return nil, err
	}
	if err := small.settle(ctx, out); err != nil {
		return nil, err
	}
	// It is searched and written as the large one was: the search cache follows the writes.
	for _, w := range []Workload{searchWorkload, liveWorkload, crudWorkload} {
		if _, err := small.measure(ctx, w, Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}, 1); err != nil {
			return nil, err
		}
	}
	var goals []Goal
	for _, w := range []Workload{readWorkload, crudWorkload} {
		on := func(t *target) func(context.Context, Load) (*Measured, error) {
			return func(ctx context.Context, l Load) (*Measured, error) { return t.bench.Run(ctx, w, l) }
		}
		this, floor, err := pair{on(large), on(small), []Watched{large.bench.Watched, small.bench.Watched}}.measure(ctx,
			Load{Clients: 32, Duration: 4 * s.duration, WarmUp: s.warmUp, Seed: s.seed + 2}, 1) // searches that are new to both
		if err != nil {
			return nil, err
		}
		goals = append(goals, pairedGoal(w.Name+" beside a small server", this, floor, 0))
	}
	long, before, after := at[1].of[importWorkload.Name].Resources.Median, at[0].of[importWorkload.Name].Resources.Median, imported.Resources.Median
	return append(goals, Goal{Workload: "import beside a small server's", This: number(long) + "/s", Floor: number(before) + ", " + number(after) + "/s",
		Ratio: 2 * long / (before + after)}), nil
}

func (s *settings) scale(c *cobra.Command, size int) error {
	ctx := c.Context()
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	entries := 0
	if err := t.bench.Corpus.Each(ctx, func(b Bundle) error { entries += b.Entries; return nil }); err != nil {
		return err
	}
	copies := max(2, (size+entries-1)/entries)
	var rows []scaleRow
	add := func(step int, name string, v float64, unit string) {
		for i := range rows {
			if rows[i].name == name {
				rows[i].at[step] = v
				return
			}
		}
		r := scaleRow{name: name, unit: unit}
		r.at[step] = v
		rows = append(rows, r)
	}
	var results []Result
	var failed error // of rows: filling the server has taken longer than the others do
	at := [2]scaled{{resources: entries, of: map[string]Result{}}, {resources: copies * entries, of: map[string]Result{}}}
	for step, part := range []struct{ first, copies int }{{0, 1}, {1, copies - 1}} {
		keep := func(r Result) {
			results = append(results, r)
			at[step].of[r.Workload] = r
			add(step, r.Workload+" memory", float64(r.Memory["server"])/1e6, "MB")
		}
		fmt.Fprintf(c.ErrOrStderr(), "import of %d × %d resources\n", part.copies, entries)
		imported, err := t.measure(ctx, copiesWorkload(part.first, part.copies), Load{Clients: 4, Seed: s.seed}, 1)
		if err != nil {
			return err
		}
		add(step, "import", imported.Resources.Median, "res/s")
		keep(imported)
		if err := t.settle(ctx, c.ErrOrStderr()); err != nil {
			return err
		}
		t.bench.forgetSamples()
		for _, of := range []struct {
			w       Workload
			clients int
		}{{firstWorkload, 1}, {readWorkload, 32}, {searchWorkload, 32}, {liveWorkload, 32}, {behindWorkload, 32}, {broadWorkload, 2}, {crudWorkload, 32}, {transactionWorkload, 32}, {pageAllWorkload, 4}} {
			fmt.Fprintf(c.ErrOrStderr(), "%s, %d clients\n", of.w.Name, of.clients)
			r, err := t.measure(ctx, of.w, Load{Clients: of.clients, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed + uint64(step)}, s.runs)
			if err != nil {
				fmt.Fprintln(c.ErrOrStderr(), err)
				failed = errors.Join(failed, err)
				continue
			}
			if of.w.Name == pageAllWorkload.Name {
				add(step, r.Workload, r.Resources.Median, "res/s")
			} else {
				add(step, r.Workload, r.Rate.Median, "/s")
			}
			for _, category := range r.Categories {
				add(step, r.Workload+" "+category.Name+" p99", category.Latency.P99.Median, "ms")
				if of.w.Name == broadWorkload.Name || of.w.Name == firstWorkload.Name {
					add(step, r.Workload+" "+category.Name+" longest", category.Latency.Max.Max, "ms")
				}
			}
			keep(r)
		}
		if at[step].started, err = t.start(ctx, s.kiln); err != nil {
			return err
		}
		add(step, "start", at[step].started.Seconds(), "s")
	}
	fmt.Fprintln(c.ErrOrStderr(), "beside a small server")
	if at[1].beside, err = s.beside(ctx, t, at, c.ErrOrStderr()); err != nil {
		return err
	}
	if t.db != nil {
		f, done, err := t.openFloor(ctx, Corpus{Path: s.corpus, Limit: 20})
		if err != nil {
			return err
		}
		defer done()
		if f.Samples, err = t.bench.Samples(ctx); err != nil {
			return err
		}
		for _, p := range floorParts {
			if p.workload != "read" && p.workload != "search" && p.workload != "live" {
				continue
			}
			m, err := f.Run(ctx, p, Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed})
			if err != nil {
				return err
			}
			r := summarise("floor "+p.workload, Load{Clients: 32}, []*Measured{m})
			results = append(results, r)
			add(1, "floor of "+p.workload, r.Rate.Median, "/s")
		}
	}
	if s.jsonFile != "-" {
		fmt.Fprintf(c.OutOrStdout(), "\n%s, %s\n", machine(), time.Now().UTC().Format(time.RFC3339))
		w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "row\t%s\t%s\t\tpart\t\n", number(float64(entries)), number(float64(copies*entries)))
		for _, r := range rows {
			ratio := ""
			if r.at[0] > 0 {
				ratio = fmt.Sprintf("%.2f", r.at[1]/r.at[0])
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.name, number(r.at[0]), number(r.at[1]), r.unit, ratio)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		goals := slices.Concat(at[0].goals(), at[1].goals())
		if err := writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals}); err != nil {
			return err
		}
	}
	return errors.Join(failed, s.writeJSON(c.OutOrStdout(), results))
}
