package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// Figure is a measured number as the median of several runs.
type Figure struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Spread is the distance between the extremes, as a part of the median.
func (f Figure) Spread() float64 {
	if f.Median == 0 {
		return 0
	}
	return (f.Max - f.Min) / f.Median
}

// figureOf sums up values; of an even number the lower middle is the median, so
// that it is a value that was measured.
func figureOf(values []float64) Figure {
	if len(values) == 0 {
		return Figure{}
	}
	v := slices.Sorted(slices.Values(values))
	return Figure{Median: v[(len(v)-1)/2], Min: v[0], Max: v[len(v)-1]}
}

// Latency is in milliseconds.
type Latency struct {
	Mean Figure `json:"mean_ms"`
	P50  Figure `json:"p50_ms"`
	P95  Figure `json:"p95_ms"`
	P99  Figure `json:"p99_ms"`
	Max  Figure `json:"max_ms"`
}

// Category is a part of a workload's requests.
type Category struct {
	Name     string  `json:"name"`
	Requests int64   `json:"requests"` // in all runs
	Errors   int64   `json:"errors"`
	Latency  Latency `json:"latency"`
	// Curve is the distribution of the last run: pairs of milliseconds and the
	// fraction of requests that took no longer.
	Curve [][2]float64 `json:"curve,omitempty"`
}

// Result is a workload under one load, summed up over its runs.
type Result struct {
	Workload   string            `json:"workload"`
	Clients    int               `json:"clients"`
	TargetRate float64           `json:"target_rate,omitempty"` // operations a second; 0 is a closed loop
	Runs       int               `json:"runs"`
	Seconds    Figure            `json:"seconds"`
	Rate       Figure            `json:"requests_per_second"`
	Resources  Figure            `json:"resources_per_second"`
	All        Category          `json:"all"`
	Categories []Category        `json:"categories,omitempty"`
	Messages   map[string]int64  `json:"error_messages,omitempty"`
	CPU        map[string]Figure `json:"cpu_seconds_per_run"`
	Memory     map[string]int64  `json:"peak_rss_bytes"`
	// Pace is how fast the machine was: the microseconds of a fixed piece of work.
	Pace Figure `json:"pace_us"`
	// WAL and Disk are bytes for each resource moved; nil where the database is
	// not known.
	WAL    *float64           `json:"wal_bytes_per_resource,omitempty"`
	Disk   *float64           `json:"disk_bytes_per_resource,omitempty"`
	Tables map[string]float64 `json:"table_bytes_per_resource,omitempty"`
	// Statements are the dearest SQL statements, with --statements.
	Statements []Statement `json:"statements,omitempty"`
}

// summarise makes a result of the runs of one workload.
func summarise(name string, l Load, runs []*Measured) Result {
	r := Result{Workload: name, Clients: l.Clients, TargetRate: l.Rate, Runs: len(runs),
		CPU: map[string]Figure{}, Memory: map[string]int64{}, Messages: map[string]int64{}}
	var seconds, rates, resources, paces []float64
	cpu := map[string][]float64{}
	names := map[string]bool{}
	for _, m := range runs {
		s := m.Elapsed.Seconds()
		seconds = append(seconds, s)
		rates = append(rates, m.rate())
		resources = append(resources, float64(m.Resources)/s)
		paces = append(paces, float64(m.Pace)/1e3)
		for group, u := range m.Usage {
			cpu[group] = append(cpu[group], u.CPU)
			r.Memory[group] = max(r.Memory[group], u.PeakRSS)
		}
		for category := range m.Series {
			names[category] = true
		}
		for text, n := range m.Messages {
			r.Messages[text] += n
		}
	}
	r.Seconds, r.Rate, r.Resources = figureOf(seconds), figureOf(rates), figureOf(resources)
	r.Pace = figureOf(paces)
	for group, values := range cpu {
		r.CPU[group] = figureOf(values)
	}
	r.All = categoryOf("all", runs, (*Measured).Total)
	if len(names) > 1 {
		for _, category := range slices.Sorted(maps.Keys(names)) {
			r.Categories = append(r.Categories, categoryOf(category, runs, func(m *Measured) *Series {
				if s := m.Series[category]; s != nil {
					return s
				}
				return &Series{}
			}))
		}
	}
	return r
}

func categoryOf(name string, runs []*Measured, pick func(*Measured) *Series) Category {
	c := Category{Name: name}
	var mean, p50, p95, p99, most []float64
	for i, m := range runs {
		s := pick(m)
		c.Requests += s.Latency.N()
		c.Errors += s.Errors
		if s.Latency.N() == 0 {
			continue
		}
		mean = append(mean, milliseconds(s.Latency.Mean()))
		p50 = append(p50, milliseconds(s.Latency.Quantile(0.50)))
		p95 = append(p95, milliseconds(s.Latency.Quantile(0.95)))
		p99 = append(p99, milliseconds(s.Latency.Quantile(0.99)))
		most = append(most, milliseconds(s.Latency.Max()))
		if i == len(runs)-1 {
			s.Latency.Each(func(upTo time.Duration, fraction float64) {
				c.Curve = append(c.Curve, [2]float64{milliseconds(upTo), fraction})
			})
		}
	}
	c.Latency = Latency{figureOf(mean), figureOf(p50), figureOf(p95), figureOf(p99), figureOf(most)}
	return c
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// writeResults prints results as a table, one line a workload and one for each
// of its categories.
func writeResults(out io.Writer, results []Result) error {
	width := len("workload")
	for _, r := range results {
		width = max(width, len(r.Workload))
		for _, c := range r.Categories {
			width = max(width, utf8.RuneCountInString(c.Name)+2)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%-*s", width, "workload")
	fmt.Fprintln(w, "\tload\treq/s\t±\tres/s\tp50 ms\tp95\tp99\tmax\terrors\tCPU s server\tpg\ttool\tMB server\tpg\tB/res WAL\tdisk\t")
	for _, r := range results {
		load := fmt.Sprintf("%d cl", r.Clients)
		if r.TargetRate > 0 {
			load = fmt.Sprintf("%.0f/s", r.TargetRate)
		}
		l := r.All.Latency
		fmt.Fprintf(w, "%-*s\t%s\t%s\t%.0f%%\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			width, r.Workload, load, number(r.Rate.Median), 100*r.Rate.Spread(), dash(r.Resources.Median),
			number(l.P50.Median), number(l.P95.Median), number(l.P99.Median), number(l.Max.Median), r.All.Errors,
			dash(r.CPU["server"].Median), dash(r.CPU["postgres"].Median), dash(r.CPU["tool"].Median),
			dash(float64(r.Memory["server"])/1e6), dash(float64(r.Memory["postgres"])/1e6), pointer(r.WAL), pointer(r.Disk))
		for _, c := range r.Categories {
			fmt.Fprintf(w, "%-*s\t\t%s\t\t\t%s\t%s\t%s\t%s\t%d\t\t\t\t\t\t\t\t\n", width, "· "+c.Name,
				number(float64(c.Requests)/max(r.Seconds.Median*float64(r.Runs), 1e-9)),
				number(c.Latency.P50.Median), number(c.Latency.P95.Median), number(c.Latency.P99.Median), number(c.Latency.Max.Median), c.Errors)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		texts := slices.SortedFunc(maps.Keys(r.Messages), func(a, b string) int { return cmp.Compare(r.Messages[b], r.Messages[a]) })
		for _, text := range texts {
			fmt.Fprintf(out, "%s: %d× %s\n", r.Workload, r.Messages[text], text)
		}
		if len(r.Tables) > 0 {
			var parts []string
			for _, name := range sortedKeys(r.Tables) {
				if size := r.Tables[name]; size >= 0.5 {
					parts = append(parts, fmt.Sprintf("%s %.0f", name, size))
				}
			}
			fmt.Fprintf(out, "%s: disk bytes per resource: %s\n", r.Workload, strings.Join(parts, ", "))
		}
	}
	for _, r := range results {
		for _, st := range r.Statements {
			fmt.Fprintf(out, "%s: %.0f ms, %d × %.3f ms, %.0f blocks, %.1f rows: %s\n", r.Workload, st.Total, st.Calls, st.Mean, st.Blocks, st.Rows, strings.Join(strings.Fields(st.SQL), " "))
		}
	}
	return nil
}

// number prints three significant digits, and whole numbers from 100 up.
func number(v float64) string {
	switch {
	case v >= 100 || v <= -100 || v == 0:
		return group(fmt.Sprintf("%.0f", v))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// group puts commas between thousands.
func group(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// dash prints a number, or a dash for a value that was not measured.
func dash(v float64) string {
	if v == 0 {
		return "–"
	}
	return number(v)
}

func pointer(v *float64) string {
	if v == nil {
		return "–"
	}
	return number(*v)
}
