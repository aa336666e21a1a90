package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kiln/server"
	"kiln/server/app/sandbox"
	"kiln/server/store/storetest"
)

// TestMain lets the test binary be a server of its own, so that it can be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "sandbox-worker" {
		memory, _ := strconv.ParseInt(os.Args[2], 10, 64)
		if err := sandbox.RunWorker(os.Stdin, os.Stdout, memory); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv("CONFORMANCE_SERVE"); url != "" {
		if err := serveAlone(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// sandboxCommand starts this program again as a worker of the sandbox.
func sandboxCommand() []string { return []string{os.Args[0], "sandbox-worker"} }

// serveAlone serves the database at url and writes the address to standard output.
func serveAlone(url string) error {
	cfg := server.Default()
	cfg.Database.URL = url
	cfg.Server.Listen = "127.0.0.1:0"
	if seconds, err := strconv.Atoi(os.Getenv("CONFORMANCE_WEBHOOK_TIMEOUT")); err == nil {
		cfg.Notifications.Webhook.TimeoutSeconds, cfg.Apps.WebhookTimeoutSeconds = seconds, seconds // the lease is a few times that
	}
	var address string
	return server.Run(context.Background(), cfg, server.Options{
		Logger:    slog.New(slog.DiscardHandler),
		Sandbox:   sandboxCommand(),
		Listening: func(a string) { address = a },
		Ready:     func(*server.Server) { fmt.Println(address) },
	})
}

// spawn runs a server in a process of its own.
func spawn(t *testing.T, url string) (*service, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "CONFORMANCE_SERVE="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	return &service{t: t, base: "http://" + strings.TrimSpace(address) + "/fhir"}, cmd
}

// contract: kill -9 under write load loses nothing that was acknowledged, and the
// next start needs no repair.
func TestKillLosesNothing(t *testing.T) {
	url := storetest.New(t)
	s, cmd := spawn(t, url)
	const writers, enough = 8, 400
	var (
		mu    sync.Mutex
		acked = make(map[string]string) // id -> family
		once  sync.Once
		wg    sync.WaitGroup
	)
	for w := range writers {
		wg.Go(func() {
			for i := 0; ; i++ {
				id, family := fmt.Sprintf("w%d-%d", w, i), fmt.Sprintf("Family%d", i)
				body := fmt.Sprintf(`{"resourceType":"Patient","id":%q,"name":[{"family":%q}]}`, id, family)
				if i%3 == 2 {
					body = bundle("transaction", entry("PUT", "Patient/"+id, "", body))
				}
				var a *answer
				var err error
				if i%3 == 2 {
					a, err = s.try("POST", "/", body)
				} else {
					a, err = s.try("PUT", "/Patient/"+id, body)
				}
				if err != nil || a.status > 299 {
					return // killed
				}
				mu.Lock()
				acked[id] = family
				if len(acked) >= enough {
					once.Do(func() { cmd.Process.Kill() })
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := cmd.Wait(); err == nil {
		t.Fatal("the server was not killed")
	} else if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatal(err)
	}

	again, _ := spawn(t, url)
	for id, family := range acked {
		again.get("/Patient/"+id).want(200).equal("name.0.family", family)
		again.get("/Patient/"+id+"/_history").want(200).equal("total", "1")
		again.get("/Patient?_id="+id+"&family="+family).want(200).equal("total", "1")
	}
	// An unacknowledged write is stored as a whole or not at all.
	a := again.get("/Patient?_summary=count").want(200)
	h := again.get("/Patient/_history?_count=0").want(200)
	if a.str("total") != h.str("total") {
		t.Errorf("%s resources, %s versions", a.str("total"), h.str("total"))
	}
}

// contract: two servers on one database at once stay correct.
func TestTwoServers(t *testing.T) {
	cfg := server.Default()
	cfg.Database.URL = storetest.New(t)
	var two [2]*service
	for i := range two {
		s, err := server.New(context.Background(), cfg, server.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Sandbox: sandboxCommand()})
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(s.Handler)
		t.Cleanup(func() { web.Close(); s.Close() })
		two[i] = &service{t: t, base: web.URL + "/fhir"}
	}
	a, b := two[0], two[1]

	t.Run("what one writes the other reads and finds", func(t *testing.T) {
		for i := range 20 {
			w, r := two[i%2].in(t), two[(i+1)%2].in(t)
			id := w.create(fmt.Sprintf(`{"resourceType":"Patient","name":[{"family":"Both%d"}]}`, i))
			r.get("/Patient/" + id).want(200)
			r.get(fmt.Sprintf("/Patient?family=Both%d", i)).want(200).equal("total", "1")
			r.put("/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"active":true}`, id), "If-Match", `W/"1"`).want(200)
			w.get("/Patient/"+id).want(200).equal("meta.versionId", "2")
			w.get(fmt.Sprintf("/Patient?family=Both%d", i)).want(200).equal("total", "0")
		}
	})
	t.Run("one If-Match wins", func(t *testing.T) {
		a.in(t).put("/Patient/race", `{"resourceType":"Patient","id":"race"}`).want(201)
		status := parallel(50, func(i int) int {
			r, err := two[i%2].try("PUT", "/Patient/race", `{"resourceType":"Patient","id":"race"}`, "If-Match", `W/"1"`)
			if err != nil {
				return -1
			}
			return r.status
		})
		if status[200] != 1 || status[409] != 49 {
			t.Errorf("statuses %v, want one 200 and 49 of 409", status)
		}
	})
	t.Run("one If-None-Exist creates", func(t *testing.T) {
		status := parallel(50, func(i int) int {
			r, err := two[i%2].try("POST", "/Patient", `{"resourceType":"Patient","identifier":[{"value":"both"}]}`, "If-None-Exist", "identifier=both")
			if err != nil {
				return -1
			}
			return r.status
		})
		if status[201] != 1 || status[200] != 49 {
			t.Errorf("statuses %v, want one 201 and 49 of 200", status)
		}
		b.in(t).get("/Patient?identifier=both").want(200).equal("total", "1")
	})
	t.Run("versions have no gaps", func(t *testing.T) {
		status := parallel(40, func(i int) int {
			r, err := two[i%2].try("PUT", "/Patient/gaps", `{"resourceType":"Patient","id":"gaps"}`)
			if err != nil {
				return -1
			}
			return r.status
		})
		if status[201] != 1 || status[200] != 39 {
			t.Errorf("statuses %v, want one 201 and 39 of 200", status)
		}
		b.in(t).get("/Patient/gaps").want(200).equal("meta.versionId", "40")
		a.in(t).get("/Patient/gaps/_history?_count=0").want(200).equal("total", "40")
	})
}
