package strategy

import (
	"context"
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
		if ok, _ := l.enter(ctx, nil); ok {
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
	if !l.try() || l.try() {
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
		l.leave()
		got = append(got, <-in)
	}
	l.leave()
	if want := []string{"b gave up", "a", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("let in %v, want %v", got, want)
	}
	if !l.try() || l.try() {
		t.Error("a place was lost or made")
	}
}

// Places are neither lost nor made by those who give up.
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
				if ok, _ := l.enter(ctx, needless); ok {
					mu.Lock()
					if inside++; inside > room {
						t.Error("more are inside than there is room for")
					}
					mu.Unlock()
					runtime.Gosched()
					mu.Lock()
					inside--
					mu.Unlock()
					l.leave()
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

// Who learns in the line that it need not wait leaves it, and takes no place.
func TestLineIsLeft(t *testing.T) {
	l := &line{room: 1}
	l.try()
	news, asked, left := make(chan struct{}), make(chan struct{}, 2), make(chan bool)
	go func() {
		known := false
		in, err := l.enter(t.Context(), func() (bool, <-chan struct{}) {
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
	l.leave()
	if !l.try() || l.try() {
		t.Error("a place was lost or made")
	}
}
