package recent

import (
	"sync"
	"time"

	"kiln/server/search/plan"
)

// SortedMatchBytes is the size in bytes of one match in an order of a few keys, including the memory for sorting.
const SortedMatchBytes = 24

// Order contains the matches of a search in their order.
type Order struct {
	Order    *plan.Order
	Snapshot string    // in which the matches were read, or last verified
	Used     time.Time // for the last time
}

// Orders are the orders of recent searches, within a limit of bytes. The zero value is empty and has a limit of 0. It is safe
// for concurrent use.
type Orders struct {
	mu      sync.Mutex
	entries map[Key]*Order
	bytes   int
	limit   int
}

// Limit returns the limit in bytes.
func (o *Orders) Limit() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.limit
}

// SetLimit changes the limit in bytes. It removes all orders if they need more.
func (o *Orders) SetLimit(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.limit = bytes; o.bytes > bytes {
		o.entries, o.bytes = nil, 0
	}
}

// FindOrder returns an order; nil if there is none that was used within the last minute.
func (o *Orders) FindOrder(k Key, now time.Time) *Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.entries[k]
	if found == nil || now.Sub(found.Used) > maxAge {
		return nil
	}
	return found
}

// StoreOrder stores an order in place of the present one. It stores none if the snapshot does not last, or the order is
// larger than the limit.
func (o *Orders) StoreOrder(k Key, order *Order) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removeOrder(k)
	bytes := order.Order.Bytes()
	if bytes > o.limit || !plan.IsLasting(order.Snapshot) {
		return
	}
	for other, old := range o.entries {
		if o.bytes+bytes > o.limit || order.Used.Sub(old.Used) > maxAge {
			o.removeOrder(other)
		}
	}
	if o.entries == nil {
		o.entries = make(map[Key]*Order)
	}
	o.entries[k] = order
	o.bytes += bytes
}

// RemoveOrder removes an order.
func (o *Orders) RemoveOrder(k Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removeOrder(k)
}

// removeOrder removes an order. The caller holds mu.
func (o *Orders) removeOrder(k Key) {
	if old := o.entries[k]; old != nil {
		o.bytes -= old.Order.Bytes()
		delete(o.entries, k)
	}
}

// Clear removes all orders.
func (o *Orders) Clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries, o.bytes = nil, 0
}

// Size returns the number of the orders, and their size in bytes.
func (o *Orders) Size() (n, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.entries), o.bytes
}
