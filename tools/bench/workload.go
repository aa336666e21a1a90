package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Bench is one server under measurement.
type Bench struct {
	Client  *Client
	Watched Watched
	Corpus  Corpus
	Seed    uint64
	// SampleSize is how many patients are drawn to take search values from.
	SampleSize int

	once    sync.Once
	samples *Samples
	failed  error
}

// Workload is something to measure. Prepare runs before the clock starts and may
// read from or write to the server.
type Workload struct {
	Name  string
	About string
	// Finite says that the workload ends by itself.
	Finite bool
	// Writes says that WAL and disk for each resource mean something.
	Writes  bool
	Prepare func(ctx context.Context, b *Bench) (Task, error)
}

// Task is a prepared workload.
type Task struct {
	Op Op
	// Check looks at the server afterwards; nil where there is nothing to check.
	Check func(ctx context.Context, b *Bench) error
}

// workloads in the order they are listed and run.
var workloads = []Workload{
	importWorkload,
	readWorkload,
	crudWorkload,
	transactionWorkload,
	searchWorkload,
	chainWorkload,
	includeWorkload,
	everythingWorkload,
	historyWorkload,
	pageAllWorkload,
	viewCSVWorkload,
	viewParquetWorkload,
	viewWhereWorkload,
	viewTableWorkload,
	stormWorkload,
	mixWorkload,
	liveWorkload,
	behindWorkload,
	broadWorkload,
	firstWorkload,
	besideWorkload,
	appWorkload,
	appScriptWorkload,
	appsWorkload,
}

// findWorkloads returns the workloads of a comma-separated list; "all" is every
// one.
func findWorkloads(list string) ([]Workload, error) {
	if list == "all" {
		return workloads, nil
	}
	var out []Workload
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == strings.TrimSpace(name) })
		if i < 0 {
			var known []string
			for _, w := range workloads {
				known = append(known, w.Name)
			}
			return nil, fmt.Errorf("no workload is named %q; there are: %s", name, strings.Join(known, ", "))
		}
		out = append(out, workloads[i])
	}
	return out, nil
}

// Run measures one workload once.
func (b *Bench) Run(ctx context.Context, w Workload, l Load) (*Measured, error) {
	task, err := w.Prepare(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("%s: prepare: %w", w.Name, err)
	}
	if w.Finite {
		l.Duration, l.WarmUp = 0, 0
	}
	m, err := drive(ctx, l, b.Watched, b.Client.NewExchange, task.Op)
	if err != nil {
		return m, fmt.Errorf("%s: %w", w.Name, err)
	}
	if task.Check != nil {
		if err := task.Check(ctx, b); err != nil {
			return m, fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	return m, nil
}

// Samples draws values from the server's data, once.
func (b *Bench) Samples(ctx context.Context) (*Samples, error) {
	b.once.Do(func() { b.samples, b.failed = drawSamples(ctx, b.Client, b.SampleSize, b.Seed) })
	return b.samples, b.failed
}

// forgetSamples makes the next workload draw samples from the data present then.
func (b *Bench) forgetSamples() { b.once, b.samples, b.failed = sync.Once{}, nil, nil }
