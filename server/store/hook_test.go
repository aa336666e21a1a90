package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"kiln/server/store"
)

// Parts begin to follow writes while others write.
func TestFollowWhileWriting(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	var told atomic.Int64
	hook := store.Hook{InTx: func(context.Context, *store.Tx, []*store.Write) (bool, error) { told.Add(1); return true, nil }}
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 10 {
				if err := s.Write(t.Context(), put(t, "Basic", "b", "x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, typ := range []string{"App", "Subscription", "SearchParameter", "Basic"} {
		s.Follow(typ, hook)
	}
	writers.Wait()
	before := told.Load()
	if err := s.Write(t.Context(), put(t, "Basic", "b", "y")); err != nil || told.Load() != before+1 {
		t.Errorf("%v, told %d times of one write", err, told.Load()-before)
	}
}
