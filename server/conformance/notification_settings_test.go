package conformance

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server/store/storetest"
)

// set changes a key of the configuration, or a feature flag, at run time.
func (s *service) set(path, value string) {
	s.t.Helper()
	s.do("PUT", s.server()+"/admin/"+path, value).want(200)
}

// soon waits until f holds: what administrators change is in force everywhere within a second.
func soon(t testing.TB, what string, f func() bool) {
	t.Helper()
	for start := time.Now(); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%s: not so after %s", what, patience)
		}
	}
}

// dial opens a WebSocket and returns the status of the answer, 101 for an open one.
func (s *service) dial() (*websocket.Conn, int) {
	conn, resp, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", nil)
	if resp == nil {
		s.t.Fatal(err)
	}
	return conn, resp.StatusCode
}

// Contract, Operations: a feature flag of notifications is a real switch, at once and on every
// server.
func TestNotificationFlagsAtRunTime(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url, quick), startOn(t, url, quick)
	r := newReceiver(t)
	id := a.subscribe(subscription("Patient?", r.url))
	r.any()

	t.Run("notifications.websocket", func(t *testing.T) {
		open := b.in(t).socket("")
		a.in(t).set("features/notifications.websocket", `{"enabled":false}`)
		for _, s := range []*service{a, b} {
			soon(t, "no WebSocket", func() bool { _, status := s.in(t).dial(); return status == 404 })
		}
		_ = open.conn.SetReadDeadline(time.Now().Add(patience))
		if _, _, err := open.conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
			t.Errorf("an open WebSocket: %v, want 1001", err)
		}
		a.in(t).set("features/notifications.websocket", `{"enabled":true}`)
		for _, s := range []*service{a, b} {
			soon(t, "a WebSocket", func() bool {
				conn, status := s.in(t).dial()
				if conn != nil {
					conn.Close()
				}
				return status == 101
			})
		}
	})
	t.Run("notifications.sse", func(t *testing.T) {
		open := b.in(t).stream("/Patient/$events")
		a.in(t).set("features/notifications.sse", `{"enabled":false}`)
		for _, path := range []string{b.base + "/Patient/$events", b.server() + "/notifications/events"} {
			soon(t, "no stream", func() bool {
				e := b.in(t).stream(path)
				defer e.close()
				return e.resp.StatusCode == 404
			})
		}
		soon(t, "the end of an open stream", open.ended)
		a.in(t).set("config/notifications/sse.enabled", `{"value":true}`) // the same under its other name
		soon(t, "a stream", func() bool {
			e := b.in(t).stream("/Patient/$events")
			defer e.close()
			return e.resp.StatusCode == 200
		})
	})
	t.Run("notifications.webhook", func(t *testing.T) {
		a, b := a.in(t), b.in(t)
		a.set("features/notifications.webhook", `{"enabled":false}`)
		// A new Subscription waits for its handshake: that is how one sees that both know.
		fresh := newReceiver(t)
		time.Sleep(time.Second) // the promise: within a second
		body := subscription("Patient?", fresh.url)
		waiting := b.do("POST", "/Subscription", body).want(201).str("id")
		a.do("POST", "/Patient", patient("while-off")).want(201)
		select {
		case d := <-r.got:
			t.Errorf("sent while webhooks are off: %s", d.body)
		case d := <-fresh.got:
			t.Errorf("a handshake while webhooks are off: %s", d.body)
		case <-time.After(1500 * time.Millisecond):
		}
		a.set("features/notifications.webhook", `{"enabled":true}`)
		if d := r.next(); !strings.Contains(string(d.body), "while-off") {
			t.Errorf("%s, want what was written while webhooks were off", d.body)
		}
		b.awaitStatus(waiting, "active")
		b.do("DELETE", "/Subscription/"+waiting, "")
	})
	t.Run("notifications", func(t *testing.T) {
		a, b := a.in(t), b.in(t)
		a.set("features/notifications", `{"enabled":false}`)
		for _, s := range []*service{a, b} {
			soon(t, "nothing served", func() bool {
				_, status := s.in(t).dial()
				return status == 404 && s.in(t).do("GET", "/Patient/$events-history", "").status == 404
			})
		}
		b.do("POST", "/Patient", patient("all-off")).want(201)
		select {
		case d := <-r.got:
			t.Errorf("sent while notifications are off: %s", d.body)
		case <-time.After(time.Second):
		}
		a.do("DELETE", a.server()+"/admin/config/notifications/enabled", "").want(200)
		if d := r.next(); !strings.Contains(string(d.body), "all-off") {
			t.Errorf("%s, want what was written while notifications were off", d.body)
		}
	})
	a.awaitStatus(id, "active")
}

// Contract, Operations: keys of notifications are in force on every server within a second.
func TestNotificationKeysAtRunTime(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url, quick), startOn(t, url, quick)
	r := newReceiver(t)

	t.Run("websocket.max_connections", func(t *testing.T) {
		a.in(t).set("config/notifications/websocket.max_connections", `{"value":0}`)
		soon(t, "503", func() bool { _, status := b.in(t).dial(); return status == 503 })
		a.in(t).set("config/notifications/websocket.max_connections", `{"value":1000}`)
	})
	t.Run("sse.max_connections", func(t *testing.T) {
		a.in(t).set("config/notifications/sse.max_connections", `{"value":0}`)
		soon(t, "503 with Retry-After", func() bool {
			e := b.in(t).stream("/Patient/$events")
			defer e.close()
			return e.resp.StatusCode == 503 && e.resp.Header.Get("Retry-After") != ""
		})
		a.in(t).set("config/notifications/sse.max_connections", `{"value":1000}`)
	})
	t.Run("sse.heartbeat_interval_seconds", func(t *testing.T) {
		soon(t, "a stream", func() bool {
			e := b.in(t).stream("/Patient/$events")
			defer e.close()
			return e.resp.StatusCode == 200
		})
		e := b.in(t).stream("/Patient/$events")
		a.in(t).set("config/notifications/sse.heartbeat_interval_seconds", `{"value":1}`)
		if ev := e.raw(); ev.name != "heartbeat" || !strings.Contains(ev.data, "SubscriptionStatus") {
			t.Errorf("%+v, want a heartbeat", ev)
		}
	})
	t.Run("websocket.heartbeat_interval_seconds and max_message_size_bytes", func(t *testing.T) {
		w := b.in(t).socket("")
		a.in(t).set("config/notifications/websocket.heartbeat_interval_seconds", `{"value":1}`)
		a.in(t).set("config/notifications/websocket.max_message_size_bytes", `{"value":1024}`)
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
		if _, m, err := w.conn.ReadMessage(); err != nil || !strings.Contains(string(m), `"heartbeat"`) {
			t.Errorf("%s %v, want a heartbeat", m, err)
		}
		soon(t, "1009", func() bool {
			w := b.in(t).socket("")
			w.send(`"` + strings.Repeat("x", 2000) + `"`)
			for {
				_ = w.conn.SetReadDeadline(time.Now().Add(patience))
				_, m, err := w.conn.ReadMessage()
				if err != nil {
					return websocket.IsCloseError(err, websocket.CloseMessageTooBig)
				}
				if strings.Contains(string(m), `"error"`) {
					return false
				}
			}
		})
	})
	t.Run("max_subscriptions", func(t *testing.T) {
		a.in(t).set("config/notifications/max_subscriptions", `{"value":0}`)
		soon(t, "422", func() bool {
			return b.in(t).do("POST", "/Subscription", subscription("Patient?", r.url)).status == 422
		})
		a.in(t).set("config/notifications/max_subscriptions", `{"value":100}`)
		soon(t, "201", func() bool {
			return b.in(t).do("POST", "/Subscription", subscription("Device?", r.url)).status == 201
		})
	})
	t.Run("webhook.max_retries and signing_secret", func(t *testing.T) {
		a, b := a.in(t), b.in(t)
		a.set("config/notifications/webhook.max_retries", `{"value":1}`)
		a.set("config/notifications/webhook.signing_secret", `{"value":"later"}`)
		var failing *receiver
		var id string
		soon(t, "a handshake signed with the new secret", func() bool {
			failing = newReceiver(t)
			id = b.subscribe(subscription("Patient?", failing.url))
			return signed(failing.any(), []byte("later"))
		})
		failing.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
		a.do("POST", "/Patient", patient("once")).want(201)
		failing.next()
		b.awaitStatus(id, "error") // the first attempt was the last
	})
	t.Run("webhook.allow_private_networks", func(t *testing.T) {
		a.in(t).set("config/notifications/webhook.allow_private_networks", `{"value":"false"}`)
		soon(t, "422", func() bool {
			return b.in(t).do("POST", "/Subscription", subscription("Patient?", r.url)).status == 422
		})
	})
}

// raw is the next event, a heartbeat too.
func (e *sse) raw() sseEvent {
	e.t.Helper()
	select {
	case ev, ok := <-e.events:
		if !ok {
			e.t.Fatal("the stream ended")
		}
		return ev
	case <-time.After(patience):
		e.t.Fatal("no event")
	}
	return sseEvent{}
}

// ended reports whether the server has ended the stream.
func (e *sse) ended() bool {
	for {
		select {
		case _, ok := <-e.events:
			if !ok {
				return true
			}
		default:
			return false
		}
	}
}
