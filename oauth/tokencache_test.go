package oauth

import (
	"testing"
	"time"
)

// A token whose verification began before the cache was cleared is not kept: what it was verified by may have changed.
func TestTokenCacheKeepsNothingOfBefore(t *testing.T) {
	t.Parallel()
	c, err := newTokenCache()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	since := c.cleared.Load()
	c.clear()
	c.set("before", &verified{}, now, since)
	c.set("after", &verified{}, now, c.cleared.Load())
	for token, want := range map[string]bool{"before": false, "after": true} {
		if _, ok := c.get(token, now); ok != want {
			t.Errorf("the token %q is in the cache: %v, want %v", token, ok, want)
		}
	}
}
