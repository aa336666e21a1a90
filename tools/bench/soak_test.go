package main

import (
	"errors"
	"testing"
)

func TestPeakOf(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name  string
		limit float64 // arrivals that are kept up with
		err   error   // of a run
		want  float64 // 0 for an error
	}{
		{name: "all", limit: 2000, want: 1000},
		{name: "some", limit: 860, want: 850},
		{name: "half", limit: 500, want: 500},
		{name: "less than half", limit: 499},
		{name: "a run fails", limit: 2000, err: refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := peakOf(1000, 100, func(rate float64) (float64, error) {
				if rate > c.limit {
					return 101, c.err
				}
				return 100, c.err
			})
			if failed := c.want == 0; failed != (err != nil) || !failed && got != c.want {
				t.Errorf("the peak is %v, %v; want %v", got, err, c.want)
			}
		})
	}
}
