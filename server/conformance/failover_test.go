package conformance

import (
	"cmp"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// TestPromotionUnderWriters kills the primary of two servers under writers, and promotes its synchronous standby. No
// acknowledged write is lost, none is there twice, and nobody gets another status than 200, 201 and 503. KILN_PROMOTIONS is the number
// of rounds, 1 without it.
func TestPromotionUnderWriters(t *testing.T) {
	t.Parallel()
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("KILN_PROMOTIONS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range rounds {
		t.Run(strconv.Itoa(n+1), promoteUnderWriters)
	}
}

func promoteUnderWriters(t *testing.T) {
	primary := storetest.NewCluster(t, "synchronous_commit = on")
	standby := primary.Standby("standby")
	primary.Exec("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	primary.Exec("postgres", "SELECT pg_reload_conf()")
	primary.Await("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
	url := storetest.URLOf(primary, standby)
	servers := []*service{startOn(t, url, func(*server.Config) {}), startOn(t, url, func(*server.Config) {})}

	const writers = 12
	var mu sync.Mutex
	acknowledged := make(map[string]string) // the text by id
	unknown := 0
	var promoted, writable atomic.Int64 // nanoseconds
	stop := make(chan struct{})
	var writing sync.WaitGroup
	for n := range writers {
		s := servers[n%len(servers)]
		writing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				a, err := s.try("POST", "/Patient", `{"resourceType":"Patient","active":true}`)
				if err != nil {
					t.Errorf("a create broke off: %v", err)
					return
				}
				var r struct {
					ID    string
					Issue []struct{ Code string }
				}
				if err := json.Unmarshal(a.body, &r); err != nil {
					t.Errorf("%d %s", a.status, a.body)
					return
				}
				switch a.status {
				case http.StatusCreated:
					mu.Lock()
					acknowledged[r.ID] = "1"
					mu.Unlock()
					if at := promoted.Load(); at != 0 {
						writable.CompareAndSwap(0, time.Now().UnixNano()-at)
					}
					if i%4 == 0 {
						a, err := s.try("PUT", "/Patient/"+r.ID, `{"resourceType":"Patient","id":"`+r.ID+`","active":false}`)
						if err == nil && a.status == http.StatusOK {
							mu.Lock()
							acknowledged[r.ID] = "2"
							mu.Unlock()
						} else if err != nil || a.status != http.StatusServiceUnavailable {
							t.Errorf("an update: %v, %+v", err, a)
						}
					}
				case http.StatusServiceUnavailable:
					if a.header.Get("Retry-After") == "" {
						t.Error("503 without Retry-After")
					}
					switch code := r.Issue[0].Code; {
					case code == "timeout" && a.header.Get("Location") != "":
						mu.Lock()
						unknown++
						mu.Unlock()
					case code != "transient":
						t.Errorf("503 %s, Location %q", a.body, a.header.Get("Location"))
					}
					time.Sleep(20 * time.Millisecond)
				default:
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
		})
	}
	enough := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			mu.Lock()
			have := len(acknowledged)
			mu.Unlock()
			if have >= n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d writes, want %d", have, n)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	enough(100)
	primary.Stop()
	standby.Exec("kiln", "ALTER SYSTEM RESET synchronous_standby_names")
	standby.Exec("kiln", "SELECT pg_reload_conf()")
	standby.Promote()
	promoted.Store(time.Now().UnixNano())
	mu.Lock()
	before := len(acknowledged)
	mu.Unlock()
	enough(before + 100)
	close(stop)
	writing.Wait()
	t.Logf("%d acknowledged, %d unknown; writable %v after the promotion", len(acknowledged), unknown, time.Duration(writable.Load()))
	for _, s := range servers {
		for id, version := range acknowledged {
			a := s.get("/Patient/" + id).want(200)
			if got := a.str("meta.versionId"); got < version {
				t.Errorf("Patient/%s has version %s, want %s", id, got, version)
			}
		}
		var total struct{ Total int }
		if err := json.Unmarshal(s.get("/Patient?_summary=count").want(200).body, &total); err != nil || total.Total < len(acknowledged) || total.Total > len(acknowledged)+unknown {
			t.Errorf("%d patients, want %d and at most %d more", total.Total, len(acknowledged), unknown)
		}
		s.get("/health").want(200).equal("database.epoch", "2").equal("database.readers", "ok")
	}
}
