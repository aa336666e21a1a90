package admission

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// Searches with few rows come before broad ones, but one of broadTurn places goes to a broad search.
// A search that gives up neither loses a place nor adds one.
func TestShortPlaces(t *testing.T) {
	p := &shortPlaces{free: 1}
	if err := p.takePlace(t.Context(), false); err != nil || !p.isFull() {
		t.Fatal("a free place is not given", err)
	}
	admitted := make(chan string)
	wait := func(ctx context.Context, broad bool, name string) {
		count := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.waiting[0]) + len(p.waiting[1])
		}
		before := count()
		go func() {
			if p.takePlace(ctx, broad) != nil {
				name += " gave up"
			}
			admitted <- name
		}()
		for count() == before {
			runtime.Gosched()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, name := range []string{"broad 1", "broad 2"} {
		wait(t.Context(), true, name)
	}
	wait(ctx, false, "impatient")
	want := []string{"impatient gave up"}
	for i := range broadTurn {
		name := fmt.Sprint("few ", i)
		wait(t.Context(), false, name)
		if want = append(want, name); i == broadTurn-2 {
			want = append(want, "broad 1")
		}
	}
	want = append(want, "broad 2")
	cancel()
	got := []string{<-admitted}
	for range len(want) - 1 {
		p.returnPlace()
		got = append(got, <-admitted)
	}
	if !slices.Equal(got, want) {
		t.Errorf("admitted %v, want %v", got, want)
	}
	if p.returnPlace(); p.isFull() || p.free != 1 {
		t.Errorf("%d places are free, want 1", p.free)
	}
}
