package conformance

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// The contract, Operations, Ends: a server that is told to stop is not ready at once, serves for
// server.drain_delay_seconds, and only then closes its listener.
func TestStoppingServerServesForAWhile(t *testing.T) {
	cfg := server.Default()
	cfg.Database.URL, cfg.Server.Listen, cfg.Server.DrainDelay = storetest.New(t), "127.0.0.1:0", 3
	ctx, stop := context.WithCancel(t.Context())
	var address string
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, cfg, server.Options{Logger: slog.New(slog.DiscardHandler), Sandbox: sandboxCommand(),
			Listening: func(a string) { address = a }, Ready: func(*server.Server) { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	status := func(path string) int {
		resp, err := client.Get("http://" + address + path)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status("/health/ready"); got != 200 {
		t.Fatalf("ready before: %d", got)
	}
	stop()
	told := time.Now()
	comes(t, "not ready", func() bool { return status("/health/ready") == 503 })
	for time.Since(told) < 2*time.Second {
		if live, read := status("/health/live"), status("/fhir/Patient?_summary=count"); live != 200 || read != 200 {
			t.Fatalf("while it drains: live %d, search %d", live, read)
		}
		time.Sleep(20 * time.Millisecond) // a client now and then
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(told); took < 3*time.Second {
		t.Errorf("it ended after %s", took)
	}
	if got := status("/health/live"); got != 0 {
		t.Errorf("after its end: %d", got)
	}
}
