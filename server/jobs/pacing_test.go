package jobs

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// clock is a pace whose time passes by work and by rests alone.
type clock struct {
	*pace
	requests atomic.Bool // come
	at       time.Time
	rests    []time.Duration
}

func newClock() *clock {
	c := &clock{at: time.Unix(1000, 0)}
	c.pace = newPace(nil)
	c.load = func() float64 {
		if c.requests.Load() {
			return 1
		}
		return 0
	}
	c.now = func() time.Time { return c.at }
	c.sleep = func(_ context.Context, d time.Duration) {
		c.at = c.at.Add(d)
		c.rests = append(c.rests, d)
	}
	return c
}

// sumRests returns the time of all rests since the last call.
func (c *clock) sumRests() (sum time.Duration) {
	for _, d := range c.rests {
		sum += d
	}
	c.rests = nil
	return sum
}

// work does a part with slices of at most 1,000 items, of which each takes a time, and returns the size of each slice.
func (c *clock) work(t *testing.T, p *Pacer, items int, each time.Duration) (sizes []int) {
	t.Helper()
	for items > 0 {
		n := min(p.Size(1000), items)
		err := p.Slice(t.Context(), n, func() error {
			c.at = c.at.Add(time.Duration(n) * each)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		items -= n
		sizes = append(sizes, n)
	}
	return sizes
}

// Contract: Bulk data: while requests come, jobs have a tenth of the time of one worker; without requests they
// have their full speed.
func TestPaceOfJobs(t *testing.T) {
	c := newClock()
	p := &Pacer{pace: c.pace}
	if sizes := c.work(t, p, 3000, 20*time.Microsecond); !slices.Equal(sizes, []int{1000, 1000, 1000}) || c.sumRests() != 0 {
		t.Errorf("without requests the slices are %v", sizes)
	}
	c.requests.Store(true)
	began := c.at
	if sizes := c.work(t, p, 1000, 20*time.Microsecond); !slices.Equal(sizes, slices.Repeat([]int{100}, 10)) {
		t.Errorf("slices of 20 us an item are %v, want 100 items: 2 ms", sizes)
	}
	// The first slice follows one without requests, which needs no rest.
	if took, rests := c.at.Sub(began), c.sumRests(); rests != 162*time.Millisecond || took != 182*time.Millisecond {
		t.Errorf("20 ms of work take %s, with %s of rests, want a tenth of the time before the last slice", took, rests)
	}
	c.requests.Store(false)
	if sizes := c.work(t, p, 1000, 20*time.Microsecond); !slices.Equal(sizes, []int{1000}) || c.sumRests() != 0 {
		t.Errorf("when the requests have ended, the slices are %v", sizes)
	}
}

// The load is the average of requests in flight: below leastLoad jobs have their full speed, below fullLoad shorter rests.
func TestLoadOfRequests(t *testing.T) {
	for requests, want := range map[float64]float64{0: 0, 0.04: 0, 0.05: 0.1, 0.25: 0.5, 0.5: 1, 30: 1} {
		if got := loadOf(requests); got != want {
			t.Errorf("the load of %v requests in flight is %v, want %v", requests, got, want)
		}
	}
	var total atomic.Int64
	m := &loadMeter{total: func() time.Duration { return time.Duration(total.Load()) }}
	if got := m.measure(); got != 0 {
		t.Errorf("the load before any request is %v", got)
	}
	total.Store(int64(time.Hour))
	if got := m.measure(); got != 0 {
		t.Errorf("the load within the first window is %v", got)
	}
	m.at = m.at.Add(-time.Minute)
	if got := m.measure(); got != 1 {
		t.Errorf("the load of an hour within a minute is %v", got)
	}

	c := newClock()
	c.load = func() float64 { return 0.5 }
	c.work(t, &Pacer{pace: c.pace}, 80, 100*time.Microsecond)
	if d := c.sumRests(); d != 18*time.Millisecond {
		t.Errorf("under half the load a part rests %s after 4 ms of work", d)
	}
}

func TestSizeOfSlices(t *testing.T) {
	for _, x := range []struct {
		name string
		each time.Duration
		want []int
	}{
		{"the first slices are small, and double", time.Microsecond, []int{40, 80, 160, 320, 640, 760}},
		{"slow items have the least size", time.Second, []int{40, 40, 40}},
	} {
		c := newClock()
		c.requests.Store(true)
		items := 0
		for _, n := range x.want {
			items += n
		}
		if sizes := c.work(t, &Pacer{pace: c.pace}, items, x.each); !slices.Equal(sizes, x.want) {
			t.Errorf("%s: %v, want %v", x.name, sizes, x.want)
		}
	}
	c := newClock()
	c.requests.Store(true)
	if n := (&Pacer{pace: c.pace}).Size(10); n != 1 {
		t.Errorf("a slice of at most 10 has %d", n)
	}
}

// A job ends also where requests never do: rests are bounded, also after a slice that took long.
func TestRestsAreBounded(t *testing.T) {
	c := newClock()
	c.requests.Store(true)
	c.work(t, &Pacer{pace: c.pace}, 80, time.Second)
	if d := c.sumRests(); d != longestRest {
		t.Errorf("after 40 s of work a part rests %s, want %s", d, longestRest)
	}
}

// A rest ends when the requests do, and with the part.
func TestRestEnds(t *testing.T) {
	c := newClock()
	c.requests.Store(true)
	sleep := c.sleep
	c.sleep = func(ctx context.Context, d time.Duration) {
		sleep(ctx, d)
		if len(c.rests) == 2 {
			c.requests.Store(false)
		}
	}
	p := &Pacer{pace: c.pace}
	c.work(t, p, 40, 10*time.Millisecond)
	if d := c.sumRests(); d != 0 {
		t.Errorf("a part rests %s after its last slice", d)
	}
	c.work(t, p, 40, 10*time.Millisecond)
	if d := c.sumRests(); d != 2*lookForQuiet {
		t.Errorf("a part rests %s, want no more when the requests end after %s", d, 2*lookForQuiet)
	}

	c.requests.Store(true)
	c.sleep = sleep
	c.work(t, p, 40, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	c.sleep = func(context.Context, time.Duration) { cancel() }
	if err := p.Slice(ctx, 1, func() error { panic("a part works that is stopped") }); err != context.Canceled {
		t.Errorf("a part that is stopped in its rest: %v", err)
	}
}

// While requests come, one part works at a time; without them each part works for itself.
func TestPartsTakeTurns(t *testing.T) {
	c := newClock()
	inside, leave, ended := make(chan struct{}, 2), make(chan struct{}), make(chan error, 2)
	slice := func() {
		ended <- (&Pacer{pace: c.pace}).Slice(t.Context(), 1, func() error {
			inside <- struct{}{}
			<-leave
			return nil
		})
	}
	go slice()
	go slice()
	<-inside
	<-inside // both work
	leave <- struct{}{}
	leave <- struct{}{}
	<-ended
	<-ended

	c.requests.Store(true)
	go slice()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Pacer{pace: c.pace}).Slice(ctx, 1, func() error { panic("two parts work at a time") }); err != context.Canceled {
		t.Errorf("a part that waits for its turn and is stopped: %v", err)
	}
	leave <- struct{}{}
	if err := <-ended; err != nil || len(c.turn) != 0 {
		t.Errorf("%v, and %d parts have the turn after the slice", err, len(c.turn))
	}
}

func TestPacedReader(t *testing.T) {
	c := newClock()
	r := (&Pacer{pace: c.pace}).Reader(t.Context(), bytes.NewReader(make([]byte, 100)))
	read := func() {
		t.Helper()
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		c.at = c.at.Add(time.Millisecond) // work on the bytes
	}
	for range 5 {
		read()
	}
	if d := c.sumRests(); d != 0 {
		t.Errorf("without requests a reader rests %s", d)
	}
	c.requests.Store(true)
	for range 4 {
		read()
	}
	if d := c.sumRests(); d != 36*time.Millisecond {
		t.Errorf("a reader rests %s after 4 ms of work, want nine times as long", d)
	}
}

// A nil Pacer has the full speed.
func TestNilPacer(t *testing.T) {
	var p *Pacer
	if p.Size(5) != 5 || p.Busy() || p.Slice(t.Context(), 1, func() error { return nil }) != nil {
		t.Error("a nil Pacer gives way")
	}
}
