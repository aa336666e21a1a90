package jobs

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The pace of jobs while requests come. A slice of an export or import of full size holds a processor for
// 20 to 50 ms, and two parts hold two: requests would wait that long. With a request always in flight, an import
// stores 300 resources/s in place of 7,600, and an export writes 11,000/s in place of 55,000 (2 cores).
const (
	sliceTime    = 2 * time.Millisecond // the size of slices is chosen for this time
	leastSlice   = 25                   // a slice has at least one in so many of its full size: a transaction has costs of its own
	restFactor   = 9                    // under full load a rest is so many times as long as its slice: jobs have a tenth of the time of one worker
	longestRest  = time.Second          // also the longest wait for the slices of other parts
	lookForQuiet = 5 * time.Millisecond // between two looks for whether requests still come
)

// How many requests are in flight, on average over loadWindow. A thousand requests a second that take a millisecond
// are one.
const (
	loadWindow = 100 * time.Millisecond
	leastLoad  = 0.05 // below it jobs have their full speed
	fullLoad   = 0.5  // from it on rests have their full length
)

// pace makes the jobs of this server give way to its requests.
type pace struct {
	load  func() float64 // of requests: 0 below leastLoad, 1 from fullLoad on
	now   func() time.Time
	sleep func(ctx context.Context, d time.Duration)
	turn  chan struct{} // has room for one: the part that works while requests come
	after atomic.Int64  // the next slice beside requests does not begin before, Unix nanoseconds
	// rested counts the time of rests in seconds.
	rested prometheus.Counter
}

// newPace returns the pace beside requests that have been in flight for a time so far, added up; nil has none.
func newPace(requests func() time.Duration) *pace {
	p := &pace{
		load: func() float64 { return 0 },
		now:  time.Now,
		sleep: func(ctx context.Context, d time.Duration) {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		},
		turn:   make(chan struct{}, 1),
		rested: prometheus.NewCounter(prometheus.CounterOpts{Name: "service_job_rest_seconds_total", Help: "Time that parts of jobs have rested because requests came, in seconds."}),
	}
	if requests != nil {
		p.load = (&loadMeter{total: requests}).measure
	}
	return p
}

// loadMeter measures the load of requests.
type loadMeter struct {
	total func() time.Duration // that requests have been in flight so far, added up

	mu   sync.Mutex
	at   time.Time // the end of the last window
	last time.Duration
	load float64 // of the last window
}

// measure returns the load of the last window that has ended.
func (m *loadMeter) measure() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if passed := now.Sub(m.at); passed >= loadWindow {
		total := m.total()
		m.load = loadOf(float64(total-m.last) / float64(passed))
		m.at, m.last = now, total
	}
	return m.load
}

// loadOf is the load of so many requests in flight.
func loadOf(requests float64) float64 {
	if requests < leastLoad {
		return 0
	}
	return min(requests/fullLoad, 1)
}

func (p *pace) busy() bool { return p.load() > 0 }

// takeTurn waits until no other part works, at most for longestRest.
func (p *pace) takeTurn(ctx context.Context) (leave func(), err error) {
	timer := time.NewTimer(longestRest)
	defer timer.Stop()
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-timer.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// endOfRest is the time until which jobs rest that have worked for a while: under full load restFactor times as long,
// at most longestRest.
func (p *pace) endOfRest(worked time.Duration) time.Time {
	return p.now().Add(min(time.Duration(restFactor*p.load()*float64(worked)), longestRest))
}

// restUntil waits until a time while requests come.
func (p *pace) restUntil(ctx context.Context, end time.Time) error {
	for ctx.Err() == nil && p.busy() {
		left := end.Sub(p.now())
		if left <= 0 {
			break
		}
		d := min(left, lookForQuiet)
		p.sleep(ctx, d)
		p.rested.Add(d.Seconds())
	}
	return ctx.Err()
}

// Pacer divides some work of a job into slices, so that the job gives way to requests:
//
//	without requests   |    slice    |    slice    |    slice    |     each part for itself
//	with requests      |slice|       rest       |slice|       rest     one part at a time
//
// While requests come, slices are short; the more are in flight, the longer are the rests, until jobs have a tenth of
// the time of one worker: see the constants. A nil Pacer has the full speed. Several goroutines can use one Pacer; a slice must not contain
// another one.
type Pacer struct {
	pace *pace

	mu   sync.Mutex
	size int           // of the last slice; 0 before
	took time.Duration // by it
}

// NewPacer returns a Pacer for some work of the part.
func (t *Task) NewPacer() *Pacer {
	if t.pace == nil {
		return nil
	}
	return &Pacer{pace: t.pace}
}

// NewPacer returns a Pacer for work outside of parts, as on an upload.
func (c *Core) NewPacer() *Pacer { return &Pacer{pace: c.pace} }

// Busy reports whether requests come.
func (p *Pacer) Busy() bool { return p != nil && p.pace.busy() }

// Size returns the size of the next slice, of which most is the full size: with requests the one that the
// last slice would have had for sliceTime, at most twice its size.
func (p *Pacer) Size(most int) int {
	if !p.Busy() {
		return most
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	if p.size > 0 {
		n = int(min(float64(p.size)*float64(sliceTime)/float64(max(p.took, 1)), 2*float64(p.size)))
	}
	return min(most, max(n, most/leastSlice, 1))
}

// Slice does work of a size. While requests come, it waits before it until jobs have rested after their last slice.
// It returns the error of work or ctx.
func (p *Pacer) Slice(ctx context.Context, size int, work func() error) error {
	if p == nil {
		return work()
	}
	if p.pace.busy() {
		leave, err := p.pace.takeTurn(ctx)
		if err != nil {
			return err
		}
		defer leave()
		if err := p.pace.restUntil(ctx, time.Unix(0, p.pace.after.Load())); err != nil {
			return err
		}
	}
	began := p.pace.now()
	if err := work(); err != nil {
		return err
	}
	took := p.pace.now().Sub(began)
	p.pace.after.Store(p.pace.endOfRest(took).UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size, p.took = size, took
	return nil
}

// Reader returns r with rests between its reads while requests come, by the time of the work between reads.
func (p *Pacer) Reader(ctx context.Context, r io.Reader) io.Reader {
	if p == nil {
		return r
	}
	return &pacedReader{p: p.pace, ctx: ctx, r: r}
}

type pacedReader struct {
	p      *pace
	ctx    context.Context
	r      io.Reader
	since  time.Time // the end of the last read; zero before
	worked time.Duration
}

// Read implements io.Reader.
func (r *pacedReader) Read(b []byte) (int, error) {
	if !r.since.IsZero() {
		r.worked += r.p.now().Sub(r.since)
	}
	if r.worked >= sliceTime {
		if err := r.p.restUntil(r.ctx, r.p.endOfRest(r.worked)); err != nil {
			return 0, err
		}
		r.worked = 0
	}
	n, err := r.r.Read(b)
	r.since = r.p.now()
	return n, err
}
