package audit

import (
	"testing"
	"time"

	"kiln/server/store"
)

// Making AuditEvents waits while many events come, to this server or another.
func TestPressure(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	for _, c := range []struct {
		name    string
		came    store.AuditKept
		within  time.Duration
		ofWrite int64
		high    bool
	}{
		{"nothing", store.AuditKept{}, look, 1, false},
		{"one group at once", store.AuditKept{Groups: 1}, time.Millisecond, 1, false},
		{"two groups at once", store.AuditKept{Groups: 2}, time.Millisecond, 1, true},
		{"two groups slowly", store.AuditKept{Groups: 2}, 2 * pause, 1, false},
		{"few writes", store.AuditKept{OfWrites: group}, pause, 1, false},
		{"many writes", store.AuditKept{OfWrites: group + 1}, pause, 1, true},
		{"few transactions of many writes", store.AuditKept{OfWrites: 2}, pause, 100, true},
		{"many writes slowly", store.AuditKept{OfWrites: 10 * group}, look, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := store.AuditKept{Groups: 1_000_000, OfWrites: 5_000_000}
			var p pressure
			p.look(start, before, c.ofWrite) // what came before the server began is not new
			now := start.Add(c.within)
			p.look(now, store.AuditKept{Groups: before.Groups + c.came.Groups, OfWrites: before.OfWrites + c.came.OfWrites}, c.ofWrite)
			if p.high(now) != c.high {
				t.Errorf("high: %v", !c.high)
			}
			if p.high(now.Add(calm)) {
				t.Error("still high when nothing more has come")
			}
		})
	}
}
