package notify

import (
	"kiln/gen/r4"
	"kiln/server/notify/config"
	"testing"
	"time"
)

// Contract, Notifications 4: heartbeats are spread evenly: Subscriptions that become active at one time
// do not have them at one time.
func TestHeartbeatsAreSpread(t *testing.T) {
	t.Parallel()
	s := New(Parts{Settings: func() *config.Config {
		return &config.Config{Webhook: config.WebhookConfig{Enabled: true, Heartbeat: 30 * time.Second}}
	}})
	r := &r4.Subscription{Channel: &r4.SubscriptionChannel{}}
	r.Channel.Type_.Text = "rest-hook"
	now := time.Now()
	const n = 2000
	var quarters [4]int
	for range n {
		after := s.nextHeartbeat(now, time.Time{}, r).Sub(now)
		if after < 15*time.Second || after > 30*time.Second {
			t.Fatalf("a heartbeat after %s", after)
		}
		quarters[min(3, int(4*(after-15*time.Second)/(15*time.Second)))]++
	}
	for i, q := range quarters {
		if q < n/8 {
			t.Errorf("of %d heartbeats %d are in quarter %d of their time", n, q, i+1)
		}
	}
	if at := s.nextHeartbeat(now, now.Add(time.Second), r); at.After(now.Add(time.Second)) {
		t.Error("the end of a Subscription waits for its heartbeat")
	}
}
