package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server/store/storetest"
)

// Contract, Notifications 1: of three servers on one database one delivers each notification, and sockets on each see all
// writes. After the lease of a killed server another one delivers its notifications, under the same id.
func TestThreeServersNotify(t *testing.T) {
	t.Setenv("CONFORMANCE_WEBHOOK_TIMEOUT", "5")
	database := storetest.New(t)
	var servers []*service
	var processes []*exec.Cmd
	for range 3 {
		s, cmd := spawn(t, database)
		servers, processes = append(servers, s), append(processes, cmd)
	}
	r := newReceiver(t)
	const subscriptions, events = 6, 30
	for i := range subscriptions {
		servers[i%3].subscribe(subscription(fmt.Sprintf("Basic?code=%d", i), r.url))
	}
	var sockets []*ws
	for _, s := range servers {
		w := s.socket("")
		w.send(`{"type":"subscribe","resourceType":"Basic","events":["create"]}`)
		w.json()
		sockets = append(sockets, w)
	}
	written := make(map[string]bool)
	write := func(s *service, code int) string {
		id := s.do("POST", "/Basic", fmt.Sprintf(`{"resourceType":"Basic","code":{"coding":[{"code":"%d"}]}}`, code)).want(201).str("id")
		written[id] = true
		return id
	}
	for i := range events {
		write(servers[i%3], i%subscriptions)
	}
	requests := make(map[string]int)
	for len(requests) < events {
		requests[fmt.Sprint(r.next().json["resourceId"])]++
	}
	for _, w := range sockets {
		seen := make(map[string]bool)
		for len(seen) < events {
			seen[fmt.Sprint(w.json()["resourceId"])] = true
		}
		for id := range seen {
			if !written[id] {
				t.Errorf("a socket heard of Basic/%s, which nobody wrote", id)
			}
		}
	}
	soon(t, "the log has all", func() bool {
		list, _ := servers[0].do("GET", servers[0].server()+"/admin/notifications/deliveries?status=delivered&_count=1000", "").want(200).at("deliveries").([]any)
		return len(list) == events
	})
	for len(r.got) > 0 {
		if d := <-r.got; d.json["resourceType"] == "Basic" {
			requests[fmt.Sprint(d.json["resourceId"])]++
		}
	}
	for id, n := range requests {
		if n != 1 {
			t.Errorf("Basic/%s was delivered %d times", id, n)
		}
	}

	// Two of three die, the one with the delivery under way maybe among them.
	began, release := make(chan string, 10), make(chan struct{})
	r.says(func(d delivery, _ http.ResponseWriter) {
		if d.json["resourceType"] == "Basic" {
			began <- d.header.Get("X-Notification-Id")
			<-release
		}
	})
	id := write(servers[2], 0)
	var first string
	select {
	case first = <-began:
	case <-time.After(patience):
		t.Fatal("no attempt began")
	}
	for _, p := range processes[:2] {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
	r.says(nil)
	close(release)
	soon(t, "the delivery by the one that is left", func() bool {
		list, _ := servers[2].do("GET", servers[2].server()+"/admin/notifications/deliveries?status=delivered&_count=1", "").want(200).at("deliveries").([]any)
		return len(list) == 1 && list[0].(map[string]any)["resourceId"] == id
	})
	for again := false; !again; {
		d := r.next()
		if d.json["resourceId"] == id && d.header.Get("X-Notification-Id") != first {
			t.Errorf("delivered again as %s, first as %s", d.header.Get("X-Notification-Id"), first)
		}
		again = d.json["resourceId"] == id
	}
}

// followSocket reads events on Basic from a cursor over a WebSocket, and returns the cursor where it ended.
func followSocket(ctx context.Context, s *service, cursor string, open func(), event func(id, version string)) string {
	conn, resp, err := websocket.DefaultDialer.DialContext(ctx, strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", nil)
	if err != nil {
		if resp != nil {
			resp.Body.Close()
		}
		time.Sleep(20 * time.Millisecond)
		return cursor
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	request, _ := json.Marshal(map[string]string{"type": "subscribe", "resourceType": "Basic", "since": cursor})
	if cursor == "" {
		request = []byte(`{"type":"subscribe","resourceType":"Basic","since":"2020-01-01"}`)
	}
	if conn.WriteMessage(websocket.TextMessage, request) != nil {
		return cursor
	}
	for {
		var m struct{ Type, ResourceID, VersionID, Cursor string }
		if conn.ReadJSON(&m) != nil || m.Type == "error" {
			return cursor
		}
		if m.Type == "subscribed" {
			open()
		}
		if m.Cursor != "" {
			cursor = m.Cursor
			event(m.ResourceID, m.VersionID)
		}
	}
}

// Contract, Notifications 5: half-open sockets, which send a part of a header and then
// nothing, are closed by the server when the header does not come, and slow nobody meanwhile.
// HALF_OPEN_SOCKETS is how many (500).
func TestHalfOpenSockets(t *testing.T) {
	t.Parallel()
	s, _ := spawn(t, storetest.New(t))
	address := strings.TrimPrefix(s.server(), "http://")
	listener := s.socket("")
	listener.send(`{"type":"subscribe","resourceType":"Basic","events":["create"]}`)
	listener.json()
	var mu sync.Mutex
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var dialling sync.WaitGroup
	places := make(chan struct{}, 50)
	for range environment("HALF_OPEN_SOCKETS", 500) {
		places <- struct{}{}
		dialling.Go(func() {
			defer func() { <-places }()
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "GET /notifications/ws HTTP/1.1\r\nHost: x\r\nUpgrade: webs")
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
		})
	}
	dialling.Wait()
	var slowest time.Duration
	for range 50 {
		start := time.Now()
		id := s.do("POST", "/Basic", `{"resourceType":"Basic","code":{"text":"x"}}`).want(201).str("id")
		if m := listener.json(); m["resourceId"] != id {
			t.Errorf("%v, want Basic/%s", m, id)
		}
		slowest = max(slowest, time.Since(start))
	}
	for _, c := range open {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("the server keeps a connection whose header does not come: %v", err)
		}
	}
	t.Logf("%d half-open sockets; the slowest write with its notification took %s", len(open), slowest)
}
