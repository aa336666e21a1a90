package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Load says how a workload's operations are issued.
type Load struct {
	Clients int
	// Rate is operations a second in the open loop; 0 is the closed loop.
	Rate float64
	// Duration is how long to measure; 0 lets a finite workload run to its end.
	Duration time.Duration
	// WarmUp comes before and is not measured.
	WarmUp time.Duration
	Seed   uint64
}

// Op performs one operation: one or more requests. It returns io.EOF when there
// is nothing left to do. A refused or failed request is recorded by the worker
// and is not Op's error; another error ends the run.
type Op func(ctx context.Context, w *Worker) error

// Worker is one client: it records its requests in memory of its own.
type Worker struct {
	Number int
	Rand   *rand.Rand
	// State is for the workload to keep between operations.
	State any

	x       *Exchange
	due     time.Time // of the operation, in the open loop; zero once it is used
	rec     recorder
	collect *atomic.Bool // false during warm-up
}

// recorder contains the measurements of one worker.
type recorder struct {
	series    map[string]*Series
	resources int64
	messages  map[string]int64
}

// Series is the requests of one category.
type Series struct {
	Latency Histogram
	Errors  int64
}

// maxMessages bounds how many different error messages are kept.
const maxMessages = 8

// Do sends one request and records it under category. It reports whether the
// status was 2xx; the response is in w.X() until the next Do.
func (w *Worker) Do(category string, r Request) bool {
	start := w.start()
	err := w.x.Do(r)
	d := time.Since(start)
	switch {
	case err != nil:
		w.record(category, d, fmt.Sprintf("%s %s: %v", r.Method, category, err))
	case w.x.Status < 200 || w.x.Status > 299:
		w.record(category, d, fmt.Sprintf("%s %s: %d %s", r.Method, category, w.x.Status, excerpt(w.x.Body)))
		return false
	default:
		w.record(category, d, "")
		return true
	}
	return false
}

// start is when the time of the next request begins: when the operation was due,
// if this is its first request in the open loop.
func (w *Worker) start() time.Time {
	if w.due.IsZero() {
		return time.Now()
	}
	due := w.due
	w.due = time.Time{}
	return due
}

// record counts one request; message "" is success.
func (w *Worker) record(category string, d time.Duration, message string) {
	if !w.collect.Load() {
		return
	}
	s := w.rec.series[category]
	if s == nil {
		s = &Series{}
		w.rec.series[category] = s
	}
	s.Latency.Add(d)
	if message != "" {
		s.Errors++
		if len(w.rec.messages) < maxMessages || w.rec.messages[message] > 0 {
			w.rec.messages[message]++
		}
	}
}

// X is the exchange of the last Do.
func (w *Worker) X() *Exchange { return w.x }

// Moved counts resources written or read, for the resources-a-second figure.
func (w *Worker) Moved(n int) {
	if w.collect.Load() {
		w.rec.resources += int64(n)
	}
}

// Measured is the result of a run of a workload.
type Measured struct {
	Elapsed   time.Duration
	Series    map[string]*Series // by category
	Resources int64
	Messages  map[string]int64 // error message -> times
	Usage     map[string]Usage
	Pace      time.Duration
}

// Total is all categories together.
func (m *Measured) Total() *Series {
	t := &Series{}
	for _, s := range m.Series {
		t.Latency.Merge(&s.Latency)
		t.Errors += s.Errors
	}
	return t
}

// rate is operations a second.
func (m *Measured) rate() float64 { return float64(m.Total().Latency.N()) / m.Elapsed.Seconds() }

// drive runs op from l.Clients workers until the time is over, the work is done
// or an operation fails. newExchange may be nil for operations that need no
// server.
func drive(ctx context.Context, l Load, watched Watched, newExchange func() *Exchange, op Op) (*Measured, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var collect atomic.Bool
	var sent atomic.Int64
	workers := make([]*Worker, l.Clients)
	for i := range workers {
		workers[i] = &Worker{
			Number:  i,
			Rand:    rand.New(rand.NewPCG(l.Seed, uint64(i))),
			rec:     recorder{series: map[string]*Series{}, messages: map[string]int64{}},
			collect: &collect,
		}
		if newExchange != nil {
			workers[i].x = newExchange()
		}
	}

	if l.Rate > 0 {
		// One processor is enough to wait for due operations; a second one would compete with the server.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	collect.Store(l.WarmUp == 0)
	monitor := StartMonitor(watched)
	begin := time.Now()
	start := begin
	finish := begin.Add(l.WarmUp + l.Duration)
	endless := l.Duration == 0
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				if l.Rate > 0 {
					// On whole milliseconds: a timer for each request would take more of
					// the processor than sending it.
					due := begin.Add(time.Duration(float64(sent.Add(1)-1) / l.Rate * float64(time.Second)).Truncate(time.Millisecond))
					if !endless && due.After(finish) {
						return
					}
					wait(ctx, due)
					w.due = due
				} else if !endless && time.Now().After(finish) {
					return
				}
				if err := op(ctx, w); err != nil {
					if !errors.Is(err, io.EOF) {
						cancel(err)
					}
					return
				}
			}
		})
	}
	if l.WarmUp > 0 {
		wait(ctx, begin.Add(l.WarmUp))
		monitor.Stop()
		monitor = StartMonitor(watched)
		start = time.Now()
		collect.Store(true)
	}
	all.Wait()
	m := &Measured{Elapsed: time.Since(start), Series: map[string]*Series{}, Messages: map[string]int64{}}
	m.Usage = monitor.Stop()
	m.Pace = monitor.Pace()
	for _, w := range workers {
		for name, s := range w.rec.series {
			if m.Series[name] == nil {
				m.Series[name] = &Series{}
			}
			m.Series[name].Latency.Merge(&s.Latency)
			m.Series[name].Errors += s.Errors
		}
		for text, n := range w.rec.messages {
			m.Messages[text] += n
		}
		m.Resources += w.rec.resources
	}
	if err := context.Cause(ctx); err != nil {
		return m, err
	}
	return m, nil
}

// wait returns at t, or when ctx ends.
func wait(ctx context.Context, t time.Time) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
