package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract, Notifications 6: $notify reaches each recipient's sockets and streams on any server, and waits for absent
// recipients.
func TestNotifyUsers(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	on := func() *service {
		return startWith(t, database, server.Options{Authorization: func(context.Context, *server.Server) (server.Authorization, error) { return tokens{}, nil }},
			notifying, func(c *server.Config) { c.Auth.Enabled, c.Audit.Rest = true, "off" })
	}
	s, another := on(), on()
	back := s.as(systemClient("system/*.cruds"))
	id := back.do("POST", "/Patient", patient("About")).want(201).str("id")
	anna := claims{Subject: "anna", Client: "app", Scope: "user/*.rs"}
	stream := another.as(anna).stream("/Patient/$events", "Authorization", another.as(anna).token)
	service := another.as(claims{Subject: "anna", Client: "anna", Scope: "system/*.rs"}) // a client of the user's name
	others := service.stream("/Patient/$events", "Authorization", service.token)
	key := another.as(claims{Subject: "anna", Client: "apikey:anna", APIKey: true, Scope: "system/*.rs"}) // an API key of the user's name
	keyed := key.stream("/Patient/$events", "Authorization", key.token)
	conn, _, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", http.Header{"Authorization": {anna.token()}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"recipients":["anna","away"],"message":"Please look"}`
	back.do("POST", "/Patient/"+id+"/$notify", body).issue(403, "forbidden")
	admin := s.as(claims{Subject: "root", Client: "root", Scope: "admin system/*.rs"})
	admin.do("POST", "/Patient/none/$notify", body).want(404)
	for _, bad := range []string{`{}`, `{"recipients":["anna"]}`, `{"message":"x"}`, `[]`, `nonsense`} {
		if a := admin.do("POST", "/Patient/"+id+"/$notify", bad); a.status != 400 {
			t.Errorf("%s: %d %s", bad, a.status, a.body)
		}
	}
	admin.do("POST", "/Patient/"+id+"/$notify", body).want(202)
	check := func(what string, m map[string]any) {
		t.Helper()
		if m["event"] != "notify" || m["resourceType"] != "Patient" || m["resourceId"] != id || m["message"] != "Please look" || m["id"] == nil || m["timestamp"] == nil {
			t.Errorf("%s: %v", what, m)
		}
	}
	check("socket", (&ws{t, conn}).json())
	if ev := stream.next(); ev.name != "notify" || !strings.Contains(ev.data, "Please look") {
		t.Errorf("stream: %+v", ev)
	}
	marker := back.do("POST", "/Patient", patient("Marker")).want(201).str("id")
	if ev := others.next(); ev.name == "notify" || !strings.Contains(ev.data, marker) {
		t.Errorf("the client of the user's name: %+v", ev)
	}
	if ev := keyed.next(); ev.name == "notify" || !strings.Contains(ev.data, marker) {
		t.Errorf("the API key of the user's name: %+v", ev)
	}
	away := s.as(claims{Subject: "away", Client: "app", Scope: "user/*.rs"})
	if ev := away.stream("/notifications/events", "Authorization", away.token).next(); ev.name != "notify" || !strings.Contains(ev.data, id) {
		t.Errorf("what was kept: %+v", ev)
	}
}

// Contract, Notifications 4: dead letters are redelivered all at once, of one subscription or of all;
// 7: metrics count by channel and by subscription.
func TestDeadLettersAndMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.MaxRetries = 1 })
	r := newReceiver(t)
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(204) })
	id := s.subscribe(subscription("Patient?", r.url))
	r.any()
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
	s.do("POST", "/Patient", patient("one")).want(201)
	first := r.next().json["id"]
	s.awaitStatus(id, "error")
	list := func(query string) []any {
		l, _ := s.do("GET", s.server()+"/admin/notifications/deliveries"+query, "").want(200).at("deliveries").([]any)
		return l
	}
	soon(t, "a dead letter", func() bool { return len(list("?status=failed&subscription=Subscription/"+id)) == 1 })
	r.says(nil)
	a := s.do("POST", s.server()+"/admin/notifications/dead-letters/redeliver?subscription="+id, "").want(202)
	if fmt.Sprint(a.at("redelivered")) != "1" {
		t.Errorf("redelivered: %s", a.body)
	}
	if a := s.do("GET", s.server()+"/metrics", "").want(200); !strings.Contains(string(a.body), "service_notifications_oldest_transaction_seconds ") {
		t.Error("/metrics has no age of the oldest transaction")
	}
	m := s.do("GET", "/Subscription/"+id, "").json.(map[string]any)
	m["status"] = "requested"
	b := fmt.Sprintf(`{"resourceType":"Subscription","id":%q,"status":"requested","reason":"test","criteria":"Patient?","channel":{"type":"rest-hook","endpoint":%q,"payload":"application/fhir+json"}}`, id, r.url)
	s.do("PUT", "/Subscription/"+id, b).want(200)
	if d := r.next(); d.json["id"] != first {
		t.Errorf("redelivered %v, want %v", d.json["id"], first)
	}
	soon(t, "delivered", func() bool { return len(list("?status=delivered&_since=2020-01-01T00:00:00Z")) == 1 })
	for _, bad := range []string{"?status=nonsense", "?_since=never", "?_count=0", "?x=1", "?_cursor=x"} {
		s.do("GET", s.server()+"/admin/notifications/deliveries"+bad, "").want(400)
	}
	s.do("POST", s.server()+"/admin/notifications/deliveries/none/redeliver", "").want(404)
	stream := s.stream("/Patient/$events")
	s.do("POST", "/Patient", patient("two")).want(201)
	stream.next()
	r.next()
	soon(t, "metrics", func() bool {
		text := string(s.do("GET", s.server()+"/metrics", "").want(200).body)
		for _, line := range []string{
			`service_notifications_sent_total{channel="webhook"} 2`, `service_notifications_sent_total{channel="sse"} 1`,
			`service_notifications_failed_total{subscription="Subscription/` + id + `"} 1`, "service_notifications_sse_connections 1",
			"service_notifications_websocket_connections 0", `service_notifications_latency_seconds{quantile="0.5"}`,
			`service_notifications_latency_seconds{quantile="0.9"}`, `service_notifications_latency_seconds{quantile="0.99"}`,
			`service_notifications_queue_depth{status="pending"} 0`, `service_notifications_queue_age_seconds{status="pending"} 0`,
		} {
			if !strings.Contains(text, line) {
				return false
			}
		}
		return true
	})
}

// Contract, Notifications 6: a cursor or an instant that is older than the log is 410 with an
// OperationOutcome that says from when on there are events.
func TestCursorThatIsTooOld(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := startOn(t, database)
	e := s.stream("/Patient/$events")
	s.do("POST", "/Patient", patient("old")).want(201)
	old := e.next()
	s.do("POST", "/Patient", patient("trimmed")).want(201)
	e.next()
	sql(t, onDatabase(t, database), `UPDATE change_trim SET xid = pg_snapshot_xmin(pg_current_snapshot()), written = now()`)
	s.do("GET", "/Patient/$events", "", "Last-Event-ID", old.id).issue(410, "deleted", "before 20")
	s.do("GET", "/Patient/$events?_since=2020-01-01", "").issue(410, "deleted", "before 20")
	s.do("GET", s.server()+"/notifications/events?_since="+url.QueryEscape(old.id), "").issue(410, "deleted")
	w := s.socket("")
	w.send(`{"type":"subscribe","resourceType":"Patient","since":"` + old.id + `"}`)
	if m := w.json(); m["type"] != "error" || m["code"] != "deleted" {
		t.Errorf("%v", m)
	}
}

// Contract, Notifications 5: a client that reads too slowly is closed with 4008 and its cursor as the
// reason, and loses nothing when it comes back with that. An Origin that is not allowed is refused.
func TestSlowSocketResumes(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Server.AllowedOrigins = []string{"https://good.example"} })
	for origin, want := range map[string]int{"https://good.example": 101, "https://evil.example": 403, s.server(): 101} {
		conn, resp, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", http.Header{"Origin": {origin}})
		if resp == nil || resp.StatusCode != want {
			t.Errorf("Origin %s: %v %v, want %d", origin, resp, err, want)
		}
		if conn != nil {
			conn.Close()
		}
	}
	// One that index entries decide, and one that needs the database and so comes later.
	s.do("PUT", "/Patient/chained", `{"resourceType":"Patient","id":"chained","active":true}`).want(201)
	subscribe := []string{`{"type":"subscribe","resourceType":"Basic","events":["create"]`, `{"type":"subscribe","resourceType":"Basic","events":["create"],"criteria":"subject:Patient.active=true"`}
	w := s.socket("")
	for _, text := range subscribe {
		w.send(text + `}`)
		w.json()
	}
	const bundles, each = 12, 100
	big := strings.Repeat("x", 20_000)
	for range bundles {
		var entries []string
		for range each {
			entries = append(entries, `{"resource":{"resourceType":"Basic","code":{"text":"`+big+`"},"subject":{"reference":"Patient/chained"}},"request":{"method":"POST","url":"Basic"}}`)
		}
		s.do("POST", "/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	}
	seen := make(map[string]int)
	// Events already received by one of the two come again under their id. The replay may be more than a busy machine reads in
	// time: then it resumes at the next cursor.
	for cursor := w.untilSlow(seen, 2*bundles*each); cursor != ""; {
		again := s.socket("")
		for _, text := range subscribe {
			again.send(text + `,"since":"` + cursor + `"}`)
		}
		cursor = again.untilSlow(seen, 2*bundles*each)
	}
	if len(seen) != 2*bundles*each {
		t.Errorf("%d notifications, want %d", len(seen), 2*bundles*each)
	}
}

// Contract, Notifications 5: a client with one subscription that goes on from its cursor has heard of
// nothing twice.
func TestSlowSocketHearsNothingTwice(t *testing.T) {
	t.Parallel()
	s := start(t)
	w := s.socket("")
	w.send(`{"type":"subscribe","resourceType":"Basic","events":["create"]}`)
	w.json()
	const bundles, each = 12, 100
	big := strings.Repeat("x", 20_000)
	for range bundles {
		var entries []string
		for range each {
			entries = append(entries, `{"resource":{"resourceType":"Basic","code":{"text":"`+big+`"}},"request":{"method":"POST","url":"Basic"}}`)
		}
		s.do("POST", "/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	}
	seen := make(map[string]int)
	for cursor := w.untilSlow(seen, bundles*each); cursor != ""; {
		again := s.socket("")
		again.send(`{"type":"subscribe","resourceType":"Basic","events":["create"],"since":"` + cursor + `"}`)
		again.json()
		cursor = again.untilSlow(seen, bundles*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// Contract, Notifications 5 and 6: a transaction brings much at once, and nobody who reads is too slow for it.
func TestLargeTransactionIsHeardWhole(t *testing.T) {
	t.Parallel()
	s := start(t)
	const size = 1500
	w, e := s.socket(""), s.stream("/Basic/$events")
	w.send(`{"type":"subscribe","resourceType":"Basic"}`)
	w.json()
	var entries []string
	for i := range size {
		entries = append(entries, fmt.Sprintf(`{"resource":{"resourceType":"Basic","code":{"text":"%d"}},"request":{"method":"POST","url":"Basic"}}`, i))
	}
	s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	for i := range size {
		want := fmt.Sprintf(`"code":{"text":"%d"}`, i)
		if m := w.json(); !strings.Contains(fmt.Sprint(m["resource"]), fmt.Sprintf("map[text:%d]", i)) {
			t.Fatalf("the socket tells of %v, want %s", m, want)
		}
		if m := e.next(); !strings.Contains(m.data, want) {
			t.Fatalf("the stream tells of %s, want %s", m.data, want)
		}
	}
}

// untilSlow reads messages, counted by their ids, until the server closes with 4008, and
// returns its cursor; "" when all have been seen.
func (w *ws) untilSlow(seen map[string]int, all int) (cursor string) {
	w.t.Helper()
	for len(seen) < all {
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
		_, b, err := w.conn.ReadMessage()
		if err != nil {
			closed, ok := err.(*websocket.CloseError)
			if !ok || closed.Code != 4008 || !strings.HasPrefix(closed.Text, "cursor=") {
				w.t.Fatalf("%v, want 4008 with a cursor", err)
			}
			return strings.TrimPrefix(closed.Text, "cursor=")
		}
		if id, _, ok := strings.Cut(strings.TrimPrefix(string(b), `{"id":"`), `"`); ok && strings.HasPrefix(string(b), `{"id"`) {
			seen[id]++
		}
	}
	return ""
}

// Contract, Notifications 2 and 4: the Backport IG's payloads.
func TestBackportPayloads(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	s.do("POST", "/SubscriptionTopic", topicJSON).want(201)
	s.do("PUT", "/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	const ig = "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"
	receivers := make(map[string]*receiver)
	for _, content := range []string{"empty", "id-only", "full-resource"} {
		r := newReceiver(t)
		receivers[content] = r
		s.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"http://example.org/topic/final","channel":{"extension":[{"url":"` + ig +
			`backport-heartbeat-period","valueUnsignedInt":86400}],"type":"rest-hook","endpoint":"` + r.url + `","payload":"application/fhir+json","_payload":{"extension":[{"url":"` + ig +
			`backport-payload-content","valueCode":"` + content + `"}]}}}`)
		r.any()
	}
	s.do("POST", "/Observation", `{"resourceType":"Observation","id":"x","status":"final","code":{"text":"secret"},"subject":{"reference":"Patient/a"}}`).want(201)
	for content, want := range map[string]struct {
		entries         int
		focus, resource bool
	}{"empty": {1, false, false}, "id-only": {2, true, false}, "full-resource": {3, true, true}} {
		d := receivers[content].next()
		entries, _ := d.json["entry"].([]any)
		if d.json["type"] != "history" || len(entries) != want.entries || strings.Contains(string(d.body), `"focus"`) != want.focus || strings.Contains(string(d.body), "secret") != want.resource ||
			strings.Contains(string(d.body), `"name":"topic"`) != want.focus || !strings.Contains(string(d.body), "event-notification") || !strings.Contains(string(d.body), `"name":"events-since-subscription-start","valueString":"1"`) {
			t.Errorf("%s: %s", content, d.body)
		}
	}
	if a := s.do("POST", "/Subscription", `{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"http://example.org/topic/final","channel":{"type":"rest-hook","endpoint":"`+
		receivers["empty"].url+`","payload":"application/fhir+json","_payload":{"extension":[{"url":"`+ig+`backport-payload-content","valueCode":"all"}]}}}`); a.status != 422 {
		t.Errorf("an unknown payload-content: %d", a.status)
	}
}

// Contract, Notifications 1: each entry of a bundle is one event; 5: frames of every wrong kind leave
// the server, and where they can, the connection.
func TestBundleEntriesAndWrongFrames(t *testing.T) {
	t.Parallel()
	s := start(t)
	e := s.stream("/Patient/$events")
	s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":`+patient("a")+`,"request":{"method":"POST","url":"Patient"}},
		{"resource":{"resourceType":"Patient","id":"put"},"request":{"method":"PUT","url":"Patient/put"}}]}`).want(200)
	got := []string{e.next().name, e.next().name}
	if !slices.Equal(got, []string{"patient-created", "patient-created"}) {
		t.Errorf("%v", got)
	}
	s.do("PATCH", "/Patient/put", `[{"op":"add","path":"/active","value":true}]`, "Content-Type", "application/json-patch+json").want(200)
	if ev := e.next(); ev.name != "patient-updated" {
		t.Errorf("a PATCH is %s, want an update", ev.name)
	}
	for _, c := range []struct {
		name  string
		bytes []byte
		code  int // 0: it ends without one
	}{
		{"an unmasked frame", []byte{0x81, 0x02, 'h', 'i'}, 1002},
		{"a reserved bit", []byte{0xf1, 0x80, 0, 0, 0, 0}, 1002},
		{"an unknown opcode", []byte{0x83, 0x80, 0, 0, 0, 0}, 1002},
		{"a control frame in pieces", []byte{0x09, 0x80, 0, 0, 0, 0}, 1002},
		{"a control frame that is too long", []byte{0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0}, 1002},
		{"a continuation of nothing", []byte{0x80, 0x80, 0, 0, 0, 0}, 1002},
		{"a length of 2^63", []byte{0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0},
		{"a text frame that is not UTF-8 (RFC 6455 §8.1)", []byte{0x81, 0x83, 0, 0, 0, 0, '"', 0xff, '"'}, 1007},
		{"text whose pieces together are not UTF-8", []byte{0x01, 0x81, 0, 0, 0, 0, 0xc3, 0x80, 0x81, 0, 0, 0, 0, 'x'}, 1007},
		{"a length over the limit", []byte{0x81, 0xff, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0, 0, 0, 0}, 1009},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := s.in(t).socket("")
			if _, err := w.conn.NetConn().Write(c.bytes); err != nil {
				t.Fatal(err)
			}
			_ = w.conn.SetReadDeadline(time.Now().Add(patience))
			_, _, err := w.conn.ReadMessage()
			closed, ok := err.(*websocket.CloseError)
			if err == nil || c.code != 0 && (!ok || closed.Code != c.code && closed.Code != websocket.CloseAbnormalClosure) {
				t.Errorf("%v, want the end with %d", err, c.code)
			}
		})
	}
	w := s.socket("")
	if err := w.conn.WriteMessage(websocket.BinaryMessage, []byte{0, 1, 2}); err != nil {
		t.Fatal(err)
	}
	if m := w.json(); m["type"] != "error" {
		t.Errorf("a binary frame: %v", m)
	}
	// A character that two frames share is whole.
	var pieces []byte
	for i, piece := range []string{`{"type":"ping","ref":"` + "\xc3", "\xa9" + `"}`} {
		pieces = append(pieces, []byte{0x01, 0x80}[i], 0x80|byte(len(piece)), 0, 0, 0, 0)
		pieces = append(pieces, piece...)
	}
	if _, err := w.conn.NetConn().Write(pieces); err != nil {
		t.Fatal(err)
	}
	if m := w.json(); m["ref"] != "é" {
		t.Errorf("%v, want a pong for é", m)
	}
	w.send(`{"type":"ping"}`)
	if m := w.json(); m["type"] != "pong" {
		t.Errorf("%v", m)
	}
}
