package admission

import (
	"context"
	"slices"
	"sync"
)

// shortPlaces are the places of short searches. Waiting searches with few rows, such as those of one patient, are
// admitted before broad ones. Within each kind the order is that of arrival. At least one of broadTurn places goes to
// a broad search.
type shortPlaces struct {
	mu      sync.Mutex
	free    int
	given   int                // number of places that were returned so far
	waiting [2][]chan struct{} // searches with few rows, broad searches
}

// broadTurn gives broad searches about their share of a typical mix. With a larger number they wait
// longer than others even while nobody writes.
const broadTurn = 4

// takePlace waits for a place.
func (p *shortPlaces) takePlace(ctx context.Context, broad bool) error {
	kind := 0
	if broad {
		kind = 1
	}
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	p.waiting[kind] = append(p.waiting[kind], mine)
	p.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiting[kind], mine)
	if i >= 0 {
		p.waiting[kind] = slices.Delete(p.waiting[kind], i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // the place was given meanwhile
		p.returnPlace()
	}
	return ctx.Err()
}

// returnPlace gives the place to the next search.
func (p *shortPlaces) returnPlace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := 0
	if p.given++; len(p.waiting[0]) == 0 || p.given%broadTurn == 0 && len(p.waiting[1]) > 0 {
		kind = 1
	}
	if len(p.waiting[kind]) == 0 {
		p.free++
		return
	}
	close(p.waiting[kind][0])
	p.waiting[kind] = slices.Delete(p.waiting[kind], 0, 1)
}

// isFull reports whether no place is free.
func (p *shortPlaces) isFull() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free == 0
}
