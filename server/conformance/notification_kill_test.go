package conformance

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kiln/server/postgres"
	"kiln/server/store"
)

// Contract, Notifications 8 and 1: kill -9 ends servers and PostgreSQL at random during notifications. Each notification
// is received at least once, and duplicates have one id. A stream and a socket that resume get each event once, in
// the order of the log. The first request of a webhook for each event comes in that order too, because its endpoint
// rejects none. NOTIFICATION_KILLS is the number of notifications (20000 in the contract; 200 by default),
// NOTIFICATION_KILL_SECONDS the shortest time of kills (3).
func TestNotificationsSurviveKills(t *testing.T) {
	count, seconds := environment("NOTIFICATION_KILLS", 200), environment("NOTIFICATION_KILL_SECONDS", 3)
	dir, err := os.MkdirTemp("", "kiln")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	pg, err := postgres.Start(t.Context(), postgres.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop() })
	if err := store.Migrate(t.Context(), pg.URL); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONFORMANCE_WEBHOOK_TIMEOUT", "1") // the lease is a few times that

	const servers, topics = 2, 16
	var alive [servers]atomic.Pointer[service]
	var process [servers]*exec.Cmd
	run := func(i int) {
		s, cmd := spawn(t, pg.URL)
		process[i] = cmd
		alive[i].Store(s)
	}
	for i := range servers {
		run(i)
	}
	any := func() *service { return alive[rand.N(servers)].Load() }

	// The receivers: a webhook, and a stream that resumes.
	type version struct{ id, version string }
	var mu sync.Mutex
	byHook, byStream, bySocket := make(map[version]map[string]bool), make(map[version]int), make(map[version]int)
	var hookOrder, streamOrder, socketOrder []version // as they came first
	acked := make(map[string]bool)
	requests := 0
	r := newReceiver(t)
	r.says(func(d delivery, _ http.ResponseWriter) {
		if d.json["resourceType"] != "Basic" {
			return
		}
		v := version{fmt.Sprint(d.json["resourceId"]), fmt.Sprint(d.json["versionId"])}
		mu.Lock()
		defer mu.Unlock()
		requests++
		if byHook[v] == nil {
			byHook[v] = make(map[string]bool)
			hookOrder = append(hookOrder, v)
		}
		byHook[v][d.header.Get("X-Notification-Id")] = true
	})
	go func() {
		for range r.got { // nobody else takes them
		}
	}()
	for i := range topics {
		any().subscribe(subscription(fmt.Sprintf("Basic?code=%d", i), r.url))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	connected := make(chan struct{})
	clients.Go(func() {
		last := ""
		var once sync.Once
		for ctx.Err() == nil {
			last = follow(ctx, any(), last, func() { once.Do(func() { close(connected) }) }, func(id, versionID string) {
				mu.Lock()
				byStream[version{id, versionID}]++
				streamOrder = append(streamOrder, version{id, versionID})
				mu.Unlock()
			})
		}
	})
	clients.Go(func() { // from the beginning of the log, and then from its cursor
		for cursor := ""; ctx.Err() == nil; {
			cursor = followSocket(ctx, any(), cursor, func() {}, func(id, versionID string) {
				mu.Lock()
				bySocket[version{id, versionID}]++
				socketOrder = append(socketOrder, version{id, versionID})
				mu.Unlock()
			})
		}
	})
	<-connected

	// Who writes.
	var next atomic.Int64
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for {
				i := int(next.Add(1))
				if i > count {
					return
				}
				id := fmt.Sprintf("n%d", i)
				body := fmt.Sprintf(`{"resourceType":"Basic","id":%q,"code":{"coding":[{"code":"%d"}]}}`, id, i%topics)
				for ctx.Err() == nil {
					if a, err := any().try("PUT", "/Basic/"+id, body); err == nil && a.status < 300 {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
				mu.Lock()
				acked[id] = true
				mu.Unlock()
			}
		})
	}
	finished := make(chan struct{})
	go func() { writers.Wait(); close(finished) }()
	kills, end := 0, time.Now().Add(time.Duration(seconds)*time.Second)
	for writing := true; writing || time.Now().Before(end); {
		select {
		case <-finished:
			writing = false
		case <-time.After(time.Duration(300+rand.N(1500)) * time.Millisecond):
		}
		if !time.Now().Before(end) {
			continue
		}
		kills++
		if i := rand.N(servers + 1); i < servers {
			_ = process[i].Process.Kill()
			_ = process[i].Wait()
			run(i)
		} else if pid := postmaster(dir); pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it is started again by its supervisor
		}
	}

	missing := func() (hook, stream, socket int) {
		mu.Lock()
		defer mu.Unlock()
		hooked, streamed, socketed := make(map[string]bool), make(map[string]bool), make(map[string]bool)
		for v := range byHook {
			hooked[v.id] = true
		}
		for v := range byStream {
			streamed[v.id] = true
		}
		for v := range bySocket {
			socketed[v.id] = true
		}
		for id := range acked {
			if !socketed[id] {
				socket++
			}
			if !hooked[id] {
				hook++
			}
			if !streamed[id] {
				stream++
			}
		}
		return hook, stream, socket
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		hook, stream, socket := missing()
		if hook+stream+socket == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d events %d are lost to the webhook, %d to the stream and %d to the socket after %d kills", len(acked), hook, stream, socket, kills)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for v, ids := range byHook {
		if len(ids) != 1 {
			t.Errorf("%v came under the ids %v", v, ids)
		}
	}
	for v, n := range byStream {
		if n != 1 {
			t.Errorf("the stream told %d times of %v", n, v)
		}
	}
	for v, n := range bySocket {
		if n != 1 {
			t.Errorf("the socket told %d times of %v", n, v)
		}
	}
	place := make(map[version]int)
	for i, v := range socketOrder {
		place[v] = i
	}
	late := 0
	// A write repeated after a lost answer may have reached only one of them yet.
	known := func(list []version) []version {
		return slices.DeleteFunc(list, func(v version) bool { _, ok := place[v]; return !ok })
	}
	streamOrder, hookOrder = known(streamOrder), known(hookOrder)
	for i := 1; i < len(streamOrder); i++ {
		if place[streamOrder[i]] < place[streamOrder[i-1]] {
			t.Errorf("the stream told of %v before %v, the socket after it", streamOrder[i-1], streamOrder[i])
		}
	}
	last := make(map[int]version) // of each subscription
	for _, v := range hookOrder {
		n, _ := strconv.Atoi(strings.TrimPrefix(v.id, "n"))
		if before, ok := last[n%topics]; ok && place[v] < place[before] {
			late++
			continue
		}
		last[n%topics] = v
	}
	t.Logf("%d events, %d kills: %d requests for %d versions, none lost, %d after a later one of their subscription",
		len(acked), kills, requests, len(byHook), late)
}

// environment is a number from the environment.
func environment(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// postmaster is the process of the PostgreSQL below a data directory, 0 when it is not up.
func postmaster(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

// follow reads a stream of events on Basic from the last one, and returns where it ended.
func follow(ctx context.Context, s *service, last string, open func(), event func(id, version string)) string {
	req, err := http.NewRequestWithContext(ctx, "GET", s.base+"/Basic/$events", nil)
	if err != nil {
		return last
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		time.Sleep(20 * time.Millisecond)
		return last
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		time.Sleep(20 * time.Millisecond)
		return last
	}
	// An event counts when it has come whole, as in a browser.
	id, data := last, ""
	for in := bufio.NewReader(resp.Body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return last
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			id = value
		case "data":
			data = value
		case "":
			last = id
			open()
			if _, rest, ok := strings.Cut(data, `"resourceId":"`); ok {
				resource, rest, _ := strings.Cut(rest, `"`)
				_, rest, _ = strings.Cut(rest, `"versionId":"`)
				versionID, _, _ := strings.Cut(rest, `"`)
				event(resource, versionID)
			}
			data = ""
		}
	}
}
