package conformance

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// rollingServer is a server that can be stopped as by SIGTERM.
type rollingServer struct {
	base  string
	stop  context.CancelFunc
	ended chan error
}

func startRolling(t *testing.T, url string) *rollingServer {
	t.Helper()
	cfg := server.Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Server.DrainDelay = url, "127.0.0.1:0", 1
	cfg.Bulk.Directory = bulkDirectory(t, url)
	ctx, stop := context.WithCancel(context.Background())
	s := &rollingServer{stop: stop, ended: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		s.ended <- server.Run(ctx, cfg, server.Options{Logger: slog.New(slog.DiscardHandler), Sandbox: sandboxCommand(),
			Listening: func(a string) { s.base = "http://" + a }, Ready: func(*server.Server) { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-s.ended:
		t.Fatal(err)
	}
	return s
}

// Three servers are replaced one after the other while 32 clients read and write through a balancer
// that asks /health/ready: no request fails.
// Contract, Operations: Ends.
func TestRollingUpdate(t *testing.T) {
	url := storetest.New(t)
	var mu sync.Mutex
	var ready []string // base URLs that the balancer sends to
	servers := []*rollingServer{startRolling(t, url), startRolling(t, url), startRolling(t, url)}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	check := func() {
		mu.Lock()
		list := servers
		mu.Unlock()
		var next []string
		for _, s := range list {
			resp, err := client.Get(s.base + "/health/ready")
			if err != nil {
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == 200 {
				next = append(next, s.base)
			}
		}
		mu.Lock()
		ready = next
		mu.Unlock()
	}
	check()
	ctx, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			check()
			time.Sleep(100 * time.Millisecond) // as a balancer asks
		}
	})
	var sent, failed atomic.Int64
	var first atomic.Pointer[string]
	for n := range 32 {
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				mu.Lock()
				base := ready[i%len(ready)]
				mu.Unlock()
				method, path, body := "GET", "/fhir/Patient?_count=1", ""
				if i%2 == 0 {
					method, path, body = "PUT", fmt.Sprintf("/fhir/Patient/c%d", n), fmt.Sprintf(`{"resourceType":"Patient","id":"c%d","birthDate":"20%02d-01-01"}`, n, i%100)
				}
				r, err := http.NewRequest(method, base+path, strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/fhir+json")
				resp, err := client.Do(r)
				what := ""
				if err != nil {
					what = err.Error()
				} else {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode >= 400 {
						what = resp.Status
					}
				}
				if sent.Add(1); what != "" {
					failed.Add(1)
					what = method + " " + base + path + ": " + what
					first.CompareAndSwap(nil, &what)
				}
			}
		})
	}
	for i := range 3 {
		fresh := startRolling(t, url)
		mu.Lock()
		old := servers[i]
		servers = append(servers, fresh)
		mu.Unlock()
		comes(t, "the new server among the ready ones", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, base := range ready {
				if base == fresh.base {
					return true
				}
			}
			return false
		})
		old.stop()
		if err := <-old.ended; err != nil {
			t.Error(err)
		}
	}
	end()
	work.Wait()
	for _, s := range servers[3:] {
		s.stop()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d requests, %d failed", sent.Load(), failed.Load())
	if what := first.Load(); what != nil {
		t.Errorf("%d of %d requests failed, the first: %s", failed.Load(), sent.Load(), *what)
	}
	if sent.Load() < 100 {
		t.Errorf("only %d requests were sent", sent.Load())
	}
}
