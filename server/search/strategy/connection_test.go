package strategy

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// waits enters a line and tells who was let in.
func waits(l *line, ctx context.Context, name string, in chan<- string) {
	l.mu.Lock()
	before := len(l.waiting)
	l.mu.Unlock()
	go func() {
		if ok, _ := l.enter(ctx, totalKey{}, nil); ok {
			in <- name
		} else {
			in <- name + " gave up"
		}
	}()
	for {
		l.mu.Lock()
		queued := len(l.waiting)
		l.mu.Unlock()
		if queued > before {
			return
		}
	}
}

func TestLine(t *testing.T) {
	l := &line{room: 1}
	if !l.try(totalKey{}) || l.try(totalKey{}) {
		t.Fatal("a line of one has room for one")
	}
	in := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	waits(l, t.Context(), "a", in)
	waits(l, ctx, "b", in)
	waits(l, t.Context(), "c", in)
	waits(l, t.Context(), "d", in)
	cancel()
	got := []string{<-in}
	for range 3 {
		l.leave(totalKey{})
		got = append(got, <-in)
	}
	l.leave(totalKey{})
	if want := []string{"b gave up", "a", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("let in %v, want %v", got, want)
	}
	if !l.try(totalKey{}) || l.try(totalKey{}) {
		t.Error("a place was lost or made")
	}
}

// Waiting searches that give up neither lose places nor add any.
func TestLineKeepsItsRoom(t *testing.T) {
	const room = 3
	l := &line{room: room}
	var working sync.WaitGroup
	var mu sync.Mutex
	inside := 0
	for range 8 {
		working.Go(func() {
			for n := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if n%3 == 0 {
					go cancel()
				}
				needless := func() (bool, <-chan struct{}) { return n%7 == 0, nil }
				if ok, _ := l.enter(ctx, totalKey{}, needless); ok {
					mu.Lock()
					if inside++; inside > room {
						t.Error("more are inside than there is room for")
					}
					mu.Unlock()
					runtime.Gosched()
					mu.Lock()
					inside--
					mu.Unlock()
					l.leave(totalKey{})
				}
				cancel()
			}
		})
	}
	working.Wait()
	if l.room != room || len(l.waiting) > 0 {
		t.Errorf("room for %d, %d wait", l.room, len(l.waiting))
	}
}

// A waiting search that is answered otherwise leaves the line, and takes no place.
func TestLineIsLeft(t *testing.T) {
	l := &line{room: 1}
	l.try(totalKey{})
	news, asked, left := make(chan struct{}), make(chan struct{}, 2), make(chan bool)
	go func() {
		known := false
		in, err := l.enter(t.Context(), totalKey{}, func() (bool, <-chan struct{}) {
			asked <- struct{}{}
			select {
			case <-news:
				known = true
			default:
			}
			return known, news
		})
		left <- !in && err == nil
	}()
	<-asked
	close(news)
	if !<-left {
		t.Error("it waited on, or failed")
	}
	l.leave(totalKey{})
	if !l.try(totalKey{}) || l.try(totalKey{}) {
		t.Error("a place was lost or made")
	}
}

// Of one key one is inside, and those behind it with other keys go before its next.
func TestLineLetsInOneOfAKey(t *testing.T) {
	one, other := totalKey{1}, totalKey{2}
	l := &line{room: 2}
	if !l.try(one) || l.try(one) {
		t.Fatal("two of one key are inside")
	}
	in := make(chan error)
	go func() {
		_, err := l.enter(t.Context(), one, nil)
		in <- err
	}()
	for waiting := 0; waiting == 0; {
		l.mu.Lock()
		waiting = len(l.waiting)
		l.mu.Unlock()
	}
	if ok, err := l.enter(t.Context(), other, nil); !ok || err != nil {
		t.Fatalf("another key waits: %v", err)
	}
	select {
	case <-in:
		t.Fatal("two of one key are inside")
	default:
	}
	l.leave(one)
	if err := <-in; err != nil {
		t.Fatal(err)
	}
	l.leave(one)
	l.leave(other)
	if l.room != 2 || len(l.inside) > 0 {
		t.Errorf("room for %d, %d inside", l.room, len(l.inside))
	}
}

// Searches of few rows go before broad ones, of which one in broadTurn goes first all the same;
// a place is neither lost nor made by who gives up.
func TestShortPlaces(t *testing.T) {
	p := &shortPlaces{free: 1}
	if err := p.take(t.Context(), false); err != nil || !p.busy() {
		t.Fatal("a place that is free is not given", err)
	}
	in := make(chan string)
	wait := func(ctx context.Context, broad bool, name string) {
		count := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.waiting[0]) + len(p.waiting[1])
		}
		before := count()
		go func() {
			if p.take(ctx, broad) != nil {
				name += " gave up"
			}
			in <- name
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
	got := []string{<-in}
	for range len(want) - 1 {
		p.leave()
		got = append(got, <-in)
	}
	if !slices.Equal(got, want) {
		t.Errorf("let in %v, want %v", got, want)
	}
	if p.leave(); p.busy() || p.free != 1 {
		t.Errorf("%d places are free, want 1", p.free)
	}
}
