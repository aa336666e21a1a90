package fill

import (
	"slices"
	"testing"

	"kiln/server/search/cache"
)

// A cache that lags catches up when writers are calm: at once if a search waits, else when they have
// been calm for a while. It is cleared if they never are and a search waits.
func TestCalmChecks(t *testing.T) {
	t.Parallel()
	const calm, busy, most = cache.MaxChanges / calmPart, cache.MaxChanges, 10 * cache.MaxChanges
	times := func(n, changed int) []int { return slices.Repeat([]int{changed}, n) }
	for _, tt := range []struct {
		name    string
		changed []int // between the checks
		awaited bool
		want    int // at the last check, -1 if the catch-up does not begin
	}{
		{"awaited, calm", times(1, calm), true, most},
		{"awaited, busy", times(maxBusyChecks-1, busy), true, -1},
		{"awaited, never calm", times(maxBusyChecks, busy), true, 0},
		{"calm for a moment", times(calmChecks-1, calm), false, -1},
		{"calm", times(calmChecks, calm), false, most},
		{"a pause of an import", slices.Concat(times(calmChecks-1, 0), times(1, busy), times(calmChecks-1, 0)), false, -1},
		{"after a pause of an import", slices.Concat(times(calmChecks-1, 0), times(1, busy), times(calmChecks, 0)), false, most},
		{"never calm", times(3*maxBusyChecks, busy), false, -1},
		{"more changes than reading everything takes", times(1, most), false, most},
	} {
		var c calmChecker
		for i, changed := range tt.changed {
			got, ready := c.checkWriters(changed, most, tt.awaited)
			if last := i == len(tt.changed)-1; ready && (!last || got != tt.want) || last && ready == (tt.want < 0) {
				t.Errorf("%s: check %d: %d, %v; want %d at check %d", tt.name, i+1, got, ready, tt.want, len(tt.changed))
				break
			}
		}
	}
}
