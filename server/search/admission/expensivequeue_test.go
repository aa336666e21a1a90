package admission

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// startWaiting enters the queue in a goroutine, which sends the name after the admission. It returns once the search waits.
func startWaiting(q *queue, ctx context.Context, name string, admitted chan<- string) {
	before := q.countWaiting()
	go func() {
		if ok, _ := q.awaitAdmission(ctx, Key{}, nil); ok {
			admitted <- name
		} else {
			admitted <- name + " gave up"
		}
	}()
	for q.countWaiting() == before {
		runtime.Gosched()
	}
}

func TestQueueAdmitsInOrder(t *testing.T) {
	q := &queue{free: 1}
	if !q.tryAdmit(Key{}) || q.tryAdmit(Key{}) {
		t.Fatal("a queue with one place does not admit one search")
	}
	admitted := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	startWaiting(q, t.Context(), "a", admitted)
	startWaiting(q, ctx, "b", admitted)
	startWaiting(q, t.Context(), "c", admitted)
	startWaiting(q, t.Context(), "d", admitted)
	cancel()
	got := []string{<-admitted}
	for range 3 {
		q.end(Key{})
		got = append(got, <-admitted)
	}
	q.end(Key{})
	if want := []string{"b gave up", "a", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("admitted %v, want %v", got, want)
	}
	if !q.tryAdmit(Key{}) || q.tryAdmit(Key{}) {
		t.Error("a place was lost or added")
	}
}

// Waiting searches that give up neither lose places nor add any.
func TestQueueKeepsItsPlaces(t *testing.T) {
	const places = 3
	q := &queue{free: places}
	var working sync.WaitGroup
	var mu sync.Mutex
	running := 0
	for range 8 {
		working.Go(func() {
			for n := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if n%3 == 0 {
					go cancel()
				}
				answered := func() (bool, <-chan struct{}) { return n%7 == 0, nil }
				if ok, _ := q.awaitAdmission(ctx, Key{}, answered); ok {
					mu.Lock()
					if running++; running > places {
						t.Error("more searches run than there are places")
					}
					mu.Unlock()
					runtime.Gosched()
					mu.Lock()
					running--
					mu.Unlock()
					q.end(Key{})
				}
				cancel()
			}
		})
	}
	working.Wait()
	if q.free != places || len(q.waiting) > 0 {
		t.Errorf("%d places are free, %d searches wait", q.free, len(q.waiting))
	}
}

// A waiting search that finds its answer elsewhere leaves the queue without a place.
func TestQueueIsLeftWithAnAnswer(t *testing.T) {
	q := &queue{free: 1}
	q.tryAdmit(Key{})
	found, asked, left := make(chan struct{}), make(chan struct{}, 2), make(chan bool)
	go func() {
		known := false
		admitted, err := q.awaitAdmission(t.Context(), Key{}, func() (bool, <-chan struct{}) {
			asked <- struct{}{}
			select {
			case <-found:
				known = true
			default:
			}
			return known, found
		})
		left <- !admitted && err == nil
	}()
	<-asked
	close(found)
	if !<-left {
		t.Error("the search was admitted, or failed")
	}
	q.end(Key{})
	if !q.tryAdmit(Key{}) || q.tryAdmit(Key{}) {
		t.Error("a place was lost or added")
	}
}

// One search of a key runs at a time. Later searches with other keys come before the next search of that key.
func TestQueueAdmitsOneOfAKey(t *testing.T) {
	one, other := Key{1}, Key{2}
	q := &queue{free: 2}
	if !q.tryAdmit(one) || q.tryAdmit(one) {
		t.Fatal("two searches of one key run")
	}
	admitted := make(chan error)
	go func() {
		_, err := q.awaitAdmission(t.Context(), one, nil)
		admitted <- err
	}()
	for q.countWaiting() == 0 {
		runtime.Gosched()
	}
	if ok, err := q.awaitAdmission(t.Context(), other, nil); !ok || err != nil {
		t.Fatalf("another key waits: %v", err)
	}
	select {
	case <-admitted:
		t.Fatal("two searches of one key run")
	default:
	}
	q.end(one)
	if err := <-admitted; err != nil {
		t.Fatal(err)
	}
	q.end(one)
	q.end(other)
	if q.free != 2 || len(q.running) > 0 {
		t.Errorf("%d places are free, %d searches run", q.free, len(q.running))
	}
}
