package notify

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"kiln/gen/r4"
	"kiln/server/notify/config"
	"kiln/server/store"
	"kiln/server/store/storetest"
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

// serviceOn is a Service on a database, without work under way.
func serviceOn(t testing.TB, url string) *Service {
	t.Helper()
	data, err := store.Open(t.Context(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(data.Close)
	return New(Parts{Store: data, Settings: func() *config.Config {
		return &config.Config{Enabled: true, Webhook: config.WebhookConfig{Enabled: true, Timeout: time.Second}}
	}})
}

// Contract, Notifications 4: heartbeats are at most 100 a second in all, however many servers there
// are.
func TestHeartbeatsOfAllServersKeepToOneRate(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	servers := []*Service{serviceOn(t, url), serviceOn(t, url), serviceOn(t, url)}
	const due = 500
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO notification_subscription (id, status, owner, due)
			SELECT 's' || n, CASE WHEN n %% 2 = 0 THEN 'active' ELSE 'error' END, '{}', now() - interval '1 minute' FROM generate_series(1, %d) n`, due),
		`INSERT INTO notification_subscription (id, status, owner, due)
			SELECT 'r' || n, 'requested', '{}', now() - interval '1 minute' FROM generate_series(1, 40) n`,
	} {
		if _, err := servers[0].Store.Pool().Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	var mu sync.Mutex
	heartbeats, handshakes := make(map[string]int), make(map[string]int)
	var working sync.WaitGroup
	for _, s := range servers {
		working.Go(func() {
			for ctx.Err() == nil {
				rows, err := s.life.due(ctx)
				if err != nil {
					return // the end of the second
				}
				mu.Lock()
				for _, r := range rows {
					if r.ID[0] == 'r' {
						handshakes[r.ID]++
					} else {
						heartbeats[r.ID]++
					}
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	// One batch may be taken before its time is counted.
	if most := int(time.Since(start).Seconds()*heartbeatRate) + parallelHandshakes/2; len(heartbeats) > most || len(heartbeats) == 0 {
		t.Errorf("%d heartbeats in %s, want at most %d", len(heartbeats), time.Since(start), most)
	}
	for id, n := range heartbeats {
		if n != 1 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
	if len(handshakes) != 40 {
		t.Errorf("%d handshakes of 40: they do not wait for heartbeats", len(handshakes))
	}
}
