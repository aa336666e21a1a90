package strategy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"kiln/server/search/searchtest"
)

// TestShortSearchesDoNotWait takes every place of expensive searches. A search for one patient is answered. A search that has
// to count waits until a place is free.
func TestShortSearchesDoNotWait(t *testing.T) {
	s, _ := searchtest.Open(t)
	c := searchtest.NewCorpus(31, 40, 400)
	c.Load(t, s)
	limitSearches(s, 50) // more matches than that are counted
	release, err := holdExpensiveSearches(s, context.Background())
	if err != nil {
		t.Fatal(err)
	}
	expensive := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("status:not", "unknown")}
	waits, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Search(waits, expensive.ParseQuery(t)); err == nil || !errors.Is(waits.Err(), context.DeadlineExceeded) {
		t.Errorf("the expensive search did not wait: %v", err)
	}
	for range 50 {
		short := searchtest.Case{Type: "Observation", Values: searchtest.Parameters("patient", "p1")}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if _, err := s.Search(ctx, short.ParseQuery(t)); err != nil {
			t.Fatalf("a short search beside an expensive one: %v", err)
		}
		cancel()
	}
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			_, err := s.Search(context.Background(), expensive.ParseQuery(t))
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
