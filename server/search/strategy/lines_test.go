package strategy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"kiln/server/search/searchtest"
)

// TestCheapSearchesDoNotWaitForDearOnes holds every place of the dear line: a search
// for one patient is answered, one that has to count waits, and is answered when
// there is a place.
func TestCheapSearchesDoNotWaitForDearOnes(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(31, 40, 400)
	c.Load(t, s)
	limitSearches(s, 50) // more matches than that are counted
	release, err := holdDearSearches(s, context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dear := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status:not", "unknown")}
	waits, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Search(waits, dear.ParseQuery(t)); err == nil || !errors.Is(waits.Err(), context.DeadlineExceeded) {
		t.Errorf("the dear search did not wait: %v", err)
	}
	for range 50 {
		cheap := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("patient", "p1")}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if _, err := s.Search(ctx, cheap.ParseQuery(t)); err != nil {
			t.Fatalf("a cheap search beside a dear one: %v", err)
		}
		cancel()
	}
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			_, err := s.Search(context.Background(), dear.ParseQuery(t))
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
