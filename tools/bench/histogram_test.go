package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistogramQuantilesAreWithinTwoPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(2*time.Hour/time.Microsecond)), 1, 300).Draw(t, "microseconds")
		q := rapid.Float64Range(0, 1).Draw(t, "quantile")
		var h Histogram
		for _, v := range values {
			h.Add(time.Duration(v) * time.Microsecond)
		}
		slices.Sort(values)
		rank := int(math.Ceil(q*float64(len(values))-1e-6)) - 1
		want := float64(values[min(max(rank, 0), len(values)-1)])
		got := float64(h.Quantile(q) / time.Microsecond)
		if got < want || got > want*1.02+1 {
			t.Fatalf("Quantile(%v) = %v us, want %v us or up to 2%% more", q, got, want)
		}
		if top := time.Duration(values[len(values)-1]) * time.Microsecond; h.Max() != top || h.Quantile(1) != top {
			t.Fatalf("Max() = %v and Quantile(1) = %v, want %v", h.Max(), h.Quantile(1), top)
		}
	})
}

func TestHistogramMergeCountsLikeOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var one, a, b, merged Histogram
	for i := range 10000 {
		d := time.Duration(r.ExpFloat64() * float64(3*time.Millisecond))
		one.Add(d)
		if i%3 == 0 {
			a.Add(d)
		} else {
			b.Add(d)
		}
	}
	merged.Merge(&a)
	merged.Merge(&b)
	merged.Merge(&Histogram{})
	if merged != one {
		t.Errorf("merged histogram differs: n %d and %d, mean %v and %v", merged.N(), one.N(), merged.Mean(), one.Mean())
	}
	last := 0.0
	merged.Each(func(_ time.Duration, fraction float64) {
		if fraction <= last {
			t.Errorf("fractions do not ascend: %v after %v", fraction, last)
		}
		last = fraction
	})
	if last != 1 {
		t.Errorf("the last fraction is %v, want 1", last)
	}
}

func TestHistogramBucketsMeet(t *testing.T) {
	for i := 1; i < buckets-1; i++ {
		first := upper(i-1) + time.Microsecond
		if bucketOf(first) != i || bucketOf(upper(i)) != i {
			t.Fatalf("bucket %d is not [%v, %v]: those are in %d and %d", i, first, upper(i), bucketOf(first), bucketOf(upper(i)))
		}
	}
}

func TestEmptyHistogram(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.Max() != 0 {
		t.Errorf("an empty histogram has quantile %v, mean %v, max %v, want zeros", h.Quantile(0.5), h.Mean(), h.Max())
	}
}
