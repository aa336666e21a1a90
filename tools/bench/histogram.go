package main

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are at most 1.6% wide, from a
// microsecond to hours. The zero value is empty. It is not safe for concurrent
// use: every client has its own and they are merged at the end.
type Histogram struct {
	counts [buckets]int64
	n      int64
	sum    time.Duration
	max    time.Duration
	min    time.Duration
}

// Values below 64 us have a bucket each; above, every power of two has 64.
const (
	subBits = 6
	sub     = 1 << subBits
	buckets = sub * 32
)

// Add counts one duration; a negative one counts as zero.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(d)]++
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.n++
	h.sum += d
	h.max = max(h.max, d)
}

func bucketOf(d time.Duration) int {
	us := uint64(d / time.Microsecond)
	if us < sub {
		return int(us)
	}
	exp := bits.Len64(us) - subBits // at least 1
	i := exp*sub + int(us>>(exp-1)) - sub
	return min(i, buckets-1)
}

// upper is the largest duration, in whole microseconds, that falls into bucket i.
func upper(i int) time.Duration {
	if i < sub {
		return time.Duration(i) * time.Microsecond
	}
	exp, rest := i/sub, i%sub
	return time.Duration((uint64(sub+rest+1)<<(exp-1))-1) * time.Microsecond
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// N is how many durations were counted.
func (h *Histogram) N() int64 { return h.n }

// Quantile returns the duration that the fraction q of all durations does not
// exceed, 0 when nothing was counted. It is exact to 1.6% and never above Max.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := int64(q*float64(h.n) + 0.999999)
	rank = min(max(rank, 1), h.n)
	var seen int64
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			return max(min(upper(i), h.max), h.min)
		}
	}
	return h.max
}

// Mean is the arithmetic mean, 0 when nothing was counted.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return h.sum / time.Duration(h.n)
}

// Max is the longest duration.
func (h *Histogram) Max() time.Duration { return h.max }

// Each calls f for every bucket that is not empty, in ascending order, with the
// bucket's upper end and the fraction of durations up to it.
func (h *Histogram) Each(f func(upTo time.Duration, fraction float64)) {
	var seen int64
	for i, c := range h.counts {
		if c == 0 {
			continue
		}
		seen += c
		f(min(upper(i), h.max), float64(seen)/float64(h.n))
	}
}
