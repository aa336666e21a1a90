package store_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestCheapSearchesDoNotWaitForDearOnes holds every place of the dear line: a search
// for one patient is answered, one that has to count waits, and is answered when
// there is a place.
func TestCheapSearchesDoNotWaitForDearOnes(t *testing.T) {
	s, _ := open(t)
	c := newCorpus(31, 40, 400)
	c.load(t, s)
	s.SetSearchLimit(50) // more matches than that are counted
	release, err := s.HoldDearSearches(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dear := searchCase{typ: "Observation", values: params("status:not", "unknown")}
	waits, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Search(waits, dear.parse(t)); err == nil || !errors.Is(waits.Err(), context.DeadlineExceeded) {
		t.Errorf("the dear search did not wait: %v", err)
	}
	for range 50 {
		cheap := searchCase{typ: "Observation", values: params("patient", "p1")}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if _, err := s.Search(ctx, cheap.parse(t)); err != nil {
			t.Fatalf("a cheap search beside a dear one: %v", err)
		}
		cancel()
	}
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			_, err := s.Search(context.Background(), dear.parse(t))
			done <- err
		}()
	}
	release()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
