package conformance

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server"
)

// deliveries returns the deliveries of the log, newest first.
func (s *service) deliveries(query string) []map[string]any {
	s.t.Helper()
	list, _ := s.do("GET", s.server()+"/admin/notifications/deliveries"+query, "").want(200).at("deliveries").([]any)
	var out []map[string]any
	for _, d := range list {
		out = append(out, d.(map[string]any))
	}
	return out
}

// lastError returns the error of the last attempt of a delivery.
func lastError(d map[string]any) string {
	list, _ := d["attempts"].([]any)
	if len(list) == 0 {
		return ""
	}
	text, _ := list[len(list)-1].(map[string]any)["error"].(string)
	return text
}

// Contract, Notifications 4: no redirects, least of all into private networks; the answer's body is read
// to 64 KiB and forgotten; whsec_ in the configuration is the base64 of a key.
func TestAnswersOfEndpoints(t *testing.T) {
	t.Parallel()
	key := []byte("thirty-two bytes of a signing key")
	s := start(t, quick, func(c *server.Config) {
		c.Notifications.Webhook.MaxRetries = 1
		c.Notifications.Webhook.SigningSecret = "whsec_" + base64.StdEncoding.EncodeToString(key)
	})
	forbidden := newReceiver(t)
	forbidden.says(func(delivery, http.ResponseWriter) { t.Error("a redirect was followed") })
	_, port, _ := strings.Cut(strings.TrimPrefix(forbidden.url, "http://"), ":")
	ids := make(map[string]string)
	for _, c := range []struct {
		status   int
		location string
	}{
		{301, forbidden.url}, {302, "http://10.0.0.1/"}, {303, "http://localhost:" + port}, {307, "http://169.254.169.254/latest/meta-data/"},
		{308, "//[::1]:" + port + "/"}, {307, "/again"},
	} {
		r := newReceiver(t)
		id := s.subscribe(subscription("Patient?", r.url))
		checkSignature(t, r.any(), key)
		r.says(func(_ delivery, w http.ResponseWriter) {
			w.Header().Set("Location", c.location)
			w.WriteHeader(c.status)
		})
		ids[id] = fmt.Sprintf("%d to %s", c.status, c.location)
	}
	endless := newReceiver(t)
	endlessID := s.subscribe(subscription("Patient?", endless.url))
	endless.any()
	endless.says(func(_ delivery, w http.ResponseWriter) {
		for line := []byte(strings.Repeat("x", 32<<10)); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	})
	// A switch to another protocol, with a connection that stays open, is no answer that is waited for.
	switches := newReceiver(t)
	switchesID := s.subscribe(subscription("Patient?", switches.url))
	switches.any()
	switches.says(func(_ delivery, w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
		<-t.Context().Done()
	})
	s.do("POST", "/Patient", patient("x")).want(201)
	soon(t, "101 is a failure", func() bool {
		list := s.deliveries("?status=failed&subscription=" + switchesID)
		return len(list) == 1 && strings.Contains(lastError(list[0]), "101")
	})
	soon(t, "the answer that never ends was one", func() bool {
		list := s.deliveries("?status=delivered&subscription=" + endlessID)
		return len(list) == 1 && len(list[0]["attempts"].([]any)) == 1
	})
	for id, what := range ids {
		soon(t, what, func() bool { return len(s.deliveries("?status=failed&subscription="+id)) == 1 })
		if text := lastError(s.deliveries("?subscription=" + id)[0]); !strings.Contains(text, "redirects are not followed") {
			t.Errorf("%s: the attempt says %q", what, text)
		}
		s.awaitStatus(id, "error")
	}
}

// Contract, Notifications 4: one request of a subscription at a time, in the order of the events. While
// the oldest event fails, the newer ones wait behind it. webhook.max_in_flight_per_subscription allows
// several requests at a time.
func TestOrderOfDeliveries(t *testing.T) {
	t.Parallel()
	transaction := func(s *service, n int) {
		var entries []string
		for i := range n {
			entries = append(entries, fmt.Sprintf(`{"resource":{"resourceType":"Basic","code":{"text":"n%d"}},"request":{"method":"POST","url":"Basic"}}`, i))
		}
		s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	}
	t.Run("in order, and behind one that failed", func(t *testing.T) {
		t.Parallel()
		s, r := start(t, func(c *server.Config) { c.Notifications.Webhook.RetryBackoffSeconds = []int{1} }), newReceiver(t)
		id := s.subscribe(subscription("Basic?", r.url))
		r.any()
		var mu sync.Mutex
		under, most, failed := 0, 0, ""
		r.says(func(d delivery, w http.ResponseWriter) {
			mu.Lock()
			under++
			most = max(most, under)
			if failed == "" {
				failed = d.header.Get("X-Notification-Id")
				w.WriteHeader(500)
			}
			mu.Unlock()
			time.Sleep(5 * time.Millisecond) // others would come meanwhile
			mu.Lock()
			under--
			mu.Unlock()
		})
		const n = 8
		transaction(s, n)
		first := r.next()
		order := []delivery{r.next()}
		for range n - 1 {
			order = append(order, r.next())
		}
		if most != 1 {
			t.Errorf("%d requests at a time, want one", most)
		}
		for i, d := range order {
			if !strings.Contains(string(d.body), fmt.Sprintf(`"n%d"`, i)) {
				t.Errorf("request %d is %s, want n%d", i+1, d.body, i)
			}
		}
		if order[0].header.Get("X-Notification-Id") != failed || string(order[0].body) != string(first.body) {
			t.Errorf("the retry is %s under %s, want %s", order[0].body, order[0].header.Get("X-Notification-Id"), failed)
		}
		if wait := order[0].at.Sub(first.at); wait < time.Second {
			t.Errorf("tried again after %s, want a second at least", wait)
		}
		soon(t, "the log", func() bool { return len(s.deliveries("?status=delivered&subscription="+id)) == n })
		s.awaitStatus(id, "active")
	})
	t.Run("several at a time", func(t *testing.T) {
		t.Parallel()
		s, r := start(t, func(c *server.Config) { c.Notifications.Webhook.MaxInFlightPerSubscription = 3 }), newReceiver(t)
		s.subscribe(subscription("Basic?", r.url))
		r.any()
		arrived, together := make(chan struct{}, 10), make(chan struct{})
		r.says(func(delivery, http.ResponseWriter) {
			arrived <- struct{}{}
			<-together
		})
		transaction(s, 5)
		for range 3 {
			select {
			case <-arrived:
			case <-time.After(patience):
				t.Fatal("there are never three requests at a time")
			}
		}
		select {
		case <-arrived:
			t.Error("four requests at a time, want three")
		case <-time.After(100 * time.Millisecond):
		}
		close(together)
		for range 5 {
			r.next()
		}
	})
}

// Contract, Notifications 4: an endpoint that hangs is tried by its schedule while newer events wait. It
// is in error after the last attempt. It has one request at a time.
func TestHangingEndpointKeepsItsSchedule(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) {
		c.Notifications.Webhook.TimeoutSeconds, c.Notifications.Webhook.RetryBackoffSeconds = 1, []int{1}
		c.Notifications.Webhook.MaxRetries = 3
	})
	release := make(chan struct{})
	hanging := newReceiver(t)
	defer close(release)
	id := s.subscribe(subscription("Basic?", hanging.url))
	hanging.any()
	attempts := make(chan string, 1000)
	hanging.says(func(d delivery, _ http.ResponseWriter) {
		attempts <- d.header.Get("X-Notification-Id")
		<-release
	})
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				s.do("POST", "/Basic", fmt.Sprintf(`{"resourceType":"Basic","code":{"text":"n%d"}}`, i))
			}
		}
	})
	first := <-attempts
	start := time.Now()
	for i, want := range []time.Duration{2 * time.Second, 4 * time.Second} {
		if id := <-attempts; id != first {
			t.Errorf("attempt %d is of %s, want %s again", i+2, id, first)
		}
		if at := time.Since(start); at < want-500*time.Millisecond || at > want+1500*time.Millisecond {
			t.Errorf("attempt %d comes after %s, want %s", i+2, at, want)
		}
	}
	s.awaitStatus(id, "error")
	close(stop)
	writing.Wait()
	if n := len(attempts); n != 0 {
		t.Errorf("%d more requests, want three in all", n)
	}
}

// Contract, Notifications 4: more endpoints that hang than webhook.max_concurrent_deliveries do not hold
// up one that answers.
func TestHangingEndpointsHoldUpNobody(t *testing.T) {
	t.Parallel()
	const places = 8
	s := start(t, func(c *server.Config) {
		c.Notifications.Webhook.MaxConcurrentDeliveries = places
		c.Notifications.Webhook.TimeoutSeconds, c.Notifications.Webhook.RetryBackoffSeconds = 10, []int{0}
	})
	good := newReceiver(t)
	s.subscribe(subscription("Basic?", good.url+"/good"))
	good.any()
	s.post("/Basic", `{"resourceType":"Basic","code":{"text":"first"}}`).want(201)
	good.next()
	release, arrived := make(chan struct{}), make(chan struct{}, 100)
	hanging := newReceiver(t)
	defer close(release)
	for i := range 2 * places {
		s.subscribe(subscription("Basic?", fmt.Sprintf("%s/%d", hanging.url, i)))
		hanging.any()
	}
	hanging.says(func(delivery, http.ResponseWriter) {
		arrived <- struct{}{}
		<-release
	})
	s.post("/Basic", `{"resourceType":"Basic","code":{"text":"n0"}}`).want(201)
	for range places / 2 {
		<-arrived
	}
	for i := range 10 {
		if i > 0 {
			s.post("/Basic", fmt.Sprintf(`{"resourceType":"Basic","code":{"text":"n%d"}}`, i)).want(201)
		}
		start := time.Now()
		if d := good.next(); !strings.Contains(string(d.body), fmt.Sprintf(`"n%d"`, i)) || time.Since(start) > 3*time.Second {
			t.Errorf("after %s: %s, want n%d at once", time.Since(start), d.body, i)
		}
	}
}

// Contract, Notifications 4: at most webhook.max_concurrent_deliveries requests in all.
func TestConcurrentDeliveries(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Notifications.Webhook.MaxConcurrentDeliveries = 2 })
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	var receivers []*receiver
	for range 4 {
		r := newReceiver(t)
		s.subscribe(subscription("Basic?", r.url))
		r.any()
		r.says(func(delivery, http.ResponseWriter) {
			arrived <- struct{}{}
			<-release
		})
		receivers = append(receivers, r)
	}
	s.do("POST", "/Basic", `{"resourceType":"Basic","code":{"text":"x"}}`).want(201)
	for range 2 {
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatal("there are never two requests at a time")
		}
	}
	select {
	case <-arrived:
		t.Error("three requests at a time, want two")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	for _, r := range receivers {
		r.next()
	}
}

// Contract, Notifications 4: without channel.payload there is no resource; the log of deliveries has its
// keys and pages.
func TestPlainDeliveriesAndTheirLog(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	id := s.subscribe(strings.Replace(subscription("Patient?", r.url), `,"payload":"application/fhir+json"`, "", 1))
	r.any()
	var written []string
	for range 3 {
		written = append(written, s.do("POST", "/Patient", patient("x")).want(201).str("id"))
		d := r.next()
		if _, has := d.json["resource"]; has || d.json["event"] != "create" || d.json["resourceId"] != written[len(written)-1] || d.json["id"] != d.header.Get("X-Notification-Id") {
			t.Errorf("%s, want a message without a resource", d.body)
		}
	}
	soon(t, "the log", func() bool { return len(s.deliveries("?status=delivered")) == 3 })
	var seen []string
	next := "/admin/notifications/deliveries?subscription=Subscription/" + id + "&_count=2"
	for pages := 0; next != ""; pages++ {
		if pages == 2 {
			t.Fatalf("more pages than two: %s", next)
		}
		a := s.do("GET", s.server()+next, "").want(200)
		for _, d := range a.at("deliveries").([]any) {
			d := d.(map[string]any)
			seen = append(seen, d["resourceId"].(string))
			attempt := d["attempts"].([]any)[0].(map[string]any)
			if _, err := time.Parse(time.RFC3339, fmt.Sprint(attempt["at"])); err != nil {
				t.Error(err)
			}
			for _, c := range []struct {
				name      string
				got, want any
			}{
				{"subscription", d["subscription"], "Subscription/" + id}, {"event", d["event"], "create"}, {"resourceType", d["resourceType"], "Patient"},
				{"versionId", d["versionId"], "1"}, {"status", d["status"], "delivered"}, {"attempts", len(d["attempts"].([]any)), 1},
				{"attempt.status", fmt.Sprint(attempt["status"]), "200"}, {"attempt.error", attempt["error"], nil}, {"nextAttemptAt", d["nextAttemptAt"], nil},
			} {
				if c.got != c.want {
					t.Errorf("%s is %v, want %v", c.name, c.got, c.want)
				}
			}
			if attempt["durationMs"] == nil || d["id"] == nil || d["notificationId"] == nil || len(d) != 10 || len(attempt) != 4 {
				t.Errorf("%v", d)
			}
		}
		next, _ = a.at("next").(string)
	}
	slices.Reverse(seen)
	if !slices.Equal(seen, written) {
		t.Errorf("the log has %v, newest first want %v", seen, written)
	}
	r.says(func(_ delivery, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(503)
	})
	s.do("POST", "/Patient", patient("later")).want(201)
	r.next()
	soon(t, "what waits", func() bool {
		list := s.deliveries("?status=pending&subscription=" + id)
		if len(list) != 1 || list[0]["nextAttemptAt"] == nil || lastError(list[0]) == "" {
			return false
		}
		at, err := time.Parse(time.RFC3339, list[0]["nextAttemptAt"].(string))
		return err == nil && time.Until(at) > 50*time.Minute
	})
}

// Contract, Notifications 7: AuditEvents of deliveries are in search and history, and raise no events; AuditEvents of
// clients do.
func TestAuditEventsOfDeliveriesRaiseNoEvents(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	id := s.subscribe(subscription("Patient?", r.url))
	stream := s.stream("/AuditEvent/$events")
	everything := s.stream(s.server() + "/notifications/events")
	pid := s.do("POST", "/Patient", patient("x")).want(201).str("id")
	r.next()
	var event *answer
	soon(t, "the AuditEvent", func() bool {
		event = s.do("GET", "/AuditEvent?entity=Subscription/"+id+"&entity=Patient/"+pid, "").want(200)
		return fmt.Sprint(event.at("total")) == "1"
	})
	for path, want := range map[string]string{
		"type.code": "rest", "subtype.0.code": "notification", "action": "R", "outcome": "0", "outcomeDesc": "delivered", "agent.0.who.display": "Notification service",
		"entity.0.what.reference": "Subscription/" + id, "entity.1.what.reference": "Patient/" + pid,
	} {
		if got := event.str("entry.0.resource." + path); got != want {
			t.Errorf("AuditEvent.%s is %q, want %q", path, got, want)
		}
	}
	if a := s.do("GET", "/AuditEvent/"+event.str("entry.0.resource.id")+"/_history", "").want(200); a.len("entry") != 1 {
		t.Errorf("history: %s", a.body)
	}
	own := s.do("POST", "/AuditEvent", `{"resourceType":"AuditEvent","type":{"system":"http://example.org","code":"own"},"recorded":"2026-01-01T00:00:00Z",
		"agent":[{"requestor":true}],"source":{"observer":{"display":"me"}}}`).want(201).str("id")
	if ev := stream.next(); !strings.Contains(ev.data, own) {
		t.Errorf("%+v, want the client's own AuditEvent/%s", ev, own)
	}
	for _, want := range []string{pid, own} {
		if ev := everything.next(); !strings.Contains(ev.data, `"resourceId":"`+want+`"`) {
			t.Errorf("%+v, want %s", ev, want)
		}
	}
	if a := s.do("GET", "/AuditEvent/$events-history", "").want(200); a.len("entry") != 1 {
		t.Errorf("$events-history: %s", a.body)
	}
}

// Contract, Notifications 7: the server's own AuditEvents, of REST, of tokens and of administration, are in search and
// history, and raise no events for Subscriptions, streams and $events-history; AuditEvents of clients do.
func TestOwnAuditEventsRaiseNoEvents(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, notifying, func(c *server.Config) { c.Audit.Rest, c.Auth.Audit.LogAccessDecisions = "all", true })
	admin := s.bearer(s.backendToken("operator", "admin"))
	all := s.bearer(s.backendToken("backend", "system/*.cruds"))
	r := newReceiver(t)
	all.subscribe(subscription("AuditEvent?", r.url))
	stream := all.stream("/AuditEvent/$events", "Authorization", all.token)
	s.backendToken("backend", "system/Patient.rs")
	admin.put(admin.root("/admin/config/search/default_count"), `7`).want(200)
	all.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(200)
	all.get("/Patient/a").want(200)
	all.get("/Patient?name=nobody").want(200)
	for _, query := range []string{"type=110114", "subtype=configure", "subtype=update", "subtype=read", "subtype=search-type"} {
		all.events(query, 1)
	}
	id := all.get("/AuditEvent?subtype=configure").want(200).str("entry.0.resource.id")
	all.get("/AuditEvent/"+id+"/_history").want(200).equal("entry.0.request.method", "POST").equal("entry.0.request.url", "AuditEvent").
		equal("entry.0.response.status", "201 Created")
	own := all.post("/AuditEvent", `{"resourceType":"AuditEvent","type":{"system":"http://example.org","code":"own"},"recorded":"2026-01-01T00:00:00Z",
		"agent":[{"requestor":true}],"source":{"observer":{"display":"A client"}}}`).want(201).str("id")
	if ev := stream.next(); ev.name != "auditevent-created" || !strings.Contains(ev.data, own) {
		t.Errorf("stream: %s %s, want AuditEvent/%s", ev.name, clip([]byte(ev.data)), own)
	}
	if d := r.next(); d.json["resourceId"] != own {
		t.Errorf("webhook: %s, want AuditEvent/%s", clip(d.body), own)
	}
	if a := all.get("/AuditEvent/$events-history").want(200); a.len("entry") != 1 || a.str("entry.0.resource.id") != own {
		t.Errorf("$events-history: %s", clip(a.body))
	}
}

// Contract, Notifications 5: heartbeats and pings; unsubscribe by type; ref in answers and errors, whose codes are issue
// codes; the connection stays.
func TestWebSocketMessages(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Notifications.WebSocket.HeartbeatIntervalSeconds = 1 })
	w := s.socket("")
	pings := make(chan struct{}, 100)
	pong := w.conn.PingHandler()
	w.conn.SetPingHandler(func(data string) error {
		pings <- struct{}{}
		return pong(data)
	})
	for _, c := range []struct{ send, code string }{
		{`nonsense`, "structure"}, {`{"type":"dance","ref":"r"}`, "not-supported"}, {`{"type":"subscribe","ref":"r"}`, "required"},
		{`{"type":"subscribe","resourceType":"Nonsense","ref":"r"}`, "not-supported"}, {`{"type":"subscribe","resourceType":"Patient","events":["x"],"ref":"r"}`, "invalid"},
		{`{"type":"unsubscribe","subscriptionId":"x","ref":"r"}`, "not-found"}, {`{"type":"subscribe","resourceType":"Patient","since":"x","ref":"r"}`, "invalid"},
		{`{"type":"subscribe","resourceType":"Patient","criteria":"Observation?code=x","ref":"r"}`, "invalid"},
	} {
		w.send(c.send)
		m := w.json()
		if m["type"] != "error" || m["code"] != c.code || m["message"] == "" || strings.Contains(c.send, `"ref"`) && m["ref"] != "r" {
			t.Errorf("%s: %v, want the error %s", c.send, m, c.code)
		}
	}
	for _, criteria := range []string{`"criteria":"family=a"`, `"criteria":"Patient?family=b"`, `"events":["delete"]`} {
		w.send(`{"type":"subscribe","resourceType":"Patient",` + criteria + `}`)
		if m := w.json(); m["type"] != "subscribed" || m["resourceType"] != "Patient" || m["subscriptionId"] == nil || m["events"] == nil {
			t.Errorf("%v", m)
		}
	}
	w.send(`{"type":"unsubscribe","resourceType":"Patient","ref":{"n":1}}`)
	if m := w.json(); m["type"] != "unsubscribed" || m["resourceType"] != "Patient" || fmt.Sprint(m["ref"]) != "map[n:1]" {
		t.Errorf("%v", m)
	}
	w.send(`{"type":"unsubscribe","resourceType":"Patient"}`)
	if m := w.json(); m["type"] != "error" || m["code"] != "not-found" {
		t.Errorf("%v: all three have ended", m)
	}
	beats := 0
	for len(pings) == 0 || beats == 0 {
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
		kind, b, err := w.conn.ReadMessage()
		var m map[string]any
		if err != nil || kind != websocket.TextMessage || json.Unmarshal(b, &m) != nil {
			t.Fatalf("%d %s %v", kind, b, err)
		}
		if list, ok := m["notificationEvent"].([]any); m["resourceType"] != "SubscriptionStatus" || m["type"] != "heartbeat" || m["eventsSinceSubscriptionStart"] != "0" || !ok || len(list) != 0 {
			t.Errorf("%s, want a heartbeat", b)
		}
		beats++
	}
}

// Contract, Notifications 6: the wire of server-sent events: retry, ids, heartbeats, parameters by comma
// and by repetition; $events-history with _since.
func TestWireOfServerSentEvents(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Notifications.SSE.HeartbeatIntervalSeconds = 1 })
	resp, err := http.Get(s.server() + "/notifications/events?resourceType=Patient&resourceType=Device,Basic&events=create&events=delete,update")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("%v", resp.Header)
	}
	in := bufio.NewReader(resp.Body)
	block := func() map[string]string {
		t.Helper()
		fields := make(map[string]string)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\n" {
				return fields
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if fields[name] != "" {
				t.Errorf("%s comes twice in one event: the data is one line", name)
			}
			fields[name] = value
		}
	}
	first := block()
	if first["retry"] == "" || first["id"] == "" || first["data"] != "" {
		t.Errorf("the stream begins with %v, want retry and the id of where it is", first)
	}
	since := time.Now()
	s.do("POST", "/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"}}`).want(201)
	for typ, body := range map[string]string{"Device": `{"resourceType":"Device","lotNumber":"line\nbreak"}`, "Basic": `{"resourceType":"Basic","code":{"text":"x"}}`, "Patient": patient("x")} {
		id := s.do("POST", "/"+typ, body).want(201).str("id")
		ev := block()
		for ev["event"] == "heartbeat" {
			ev = block()
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(ev["data"]), &m); err != nil || ev["event"] != strings.ToLower(typ)+"-created" || m["resourceId"] != id || ev["id"] == "" || ev["id"] != m["cursor"] {
			t.Errorf("%v, want %s/%s", ev, typ, id)
		}
	}
	beat := block()
	if beat["event"] != "heartbeat" || beat["id"] != "" || !strings.Contains(beat["data"], `"eventsSinceSubscriptionStart":"3"`) || !strings.Contains(beat["data"], `"notificationEvent":[]`) {
		t.Errorf("%v, want a heartbeat without an id", beat)
	}
	// Where the stream began is where one goes on that has heard of nothing.
	again := s.stream("/Basic/$events?_since=" + url.QueryEscape(first["id"]))
	if ev := again.next(); ev.name != "basic-created" {
		t.Errorf("%+v", ev)
	}
	s.do("POST", "/Patient", patient("later")).want(201)
	all := s.do("GET", "/Patient/$events-history", "").want(200)
	if all.len("entry") != 2 || all.str("type") != "history" || all.str("entry.0.request.method") != "POST" || all.str("entry.0.response.status") == "" || all.str("entry.0.resource.name.0.family") != "later" {
		t.Errorf("$events-history: %s", all.body)
	}
	later := s.do("GET", "/Patient/$events-history?_since="+url.QueryEscape(all.str("entry.0.resource.meta.lastUpdated")), "").want(200)
	if later.len("entry") != 1 || s.do("GET", "/Patient/$events-history?_since="+url.QueryEscape(since.Add(-time.Hour).Format(time.RFC3339)), "").len("entry") != 2 {
		t.Errorf("$events-history since: %s", later.body)
	}
	head, err := http.Head(s.server() + "/notifications/events")
	if err != nil || head.StatusCode != 200 {
		t.Fatal(head, err)
	}
	if n, _ := io.Copy(io.Discard, head.Body); n != 0 {
		t.Errorf("%d bytes for HEAD", n)
	}
}
