package admission

import "sync"

// computations are the values that are being computed. One search computes a value, and others wait for it.
type computations struct {
	mu   sync.Mutex
	done map[Key]chan struct{} // closed when the computation has ended
}

// begin starts the computation of a value, and returns how to end it. If another search computes the value, begin
// returns a nil end, and a channel that is closed when the other search has ended.
func (c *computations) begin(key Key) (end func(), ended <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.done[key]; other != nil {
		return nil, other
	}
	mine := make(chan struct{})
	if c.done == nil {
		c.done = make(map[Key]chan struct{})
	}
	c.done[key] = mine
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.done, key)
		close(mine)
	}, nil
}
