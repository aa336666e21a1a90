package conformance

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server"
	"kiln/server/store/storetest"
)

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

// delivery is a request that a receiver got.
type delivery struct {
	header http.Header
	body   []byte
	json   map[string]any
	at     time.Time
}

// receiver is an endpoint. answer returns the status of an answer; nil is 200.
type receiver struct {
	t   testing.TB
	url string
	got chan delivery

	mu     sync.Mutex
	answer func(d delivery, w http.ResponseWriter)
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{t: t, got: make(chan delivery, 10_000)}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		d := delivery{header: req.Header.Clone(), body: body, at: time.Now()}
		_ = json.Unmarshal(body, &d.json)
		r.mu.Lock()
		answer := r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(d, w)
		}
		r.got <- d
	}))
	t.Cleanup(web.Close)
	r.url = web.URL
	return r
}

func (r *receiver) says(answer func(d delivery, w http.ResponseWriter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// next is the next notification; handshakes and heartbeats are passed over.
func (r *receiver) next() delivery {
	r.t.Helper()
	for {
		d := r.any()
		if d.json["resourceType"] != "SubscriptionStatus" {
			return d
		}
	}
}

func (r *receiver) any() delivery {
	r.t.Helper()
	select {
	case d := <-r.got:
		return d
	case <-time.After(patience):
		r.t.Fatal("nothing arrived")
		return delivery{}
	}
}

// quick makes retries immediate.
func quick(c *server.Config) {
	c.Notifications.Webhook.RetryBackoffSeconds = []int{0}
	c.Notifications.Webhook.TimeoutSeconds = 2
}

// subscription is the JSON of a rest-hook Subscription.
func subscription(criteria, endpoint string, more ...string) string {
	return fmt.Sprintf(`{"resourceType":"Subscription","status":"active","reason":"test","criteria":%q,
		"channel":{"type":"rest-hook","endpoint":%q,"payload":"application/fhir+json"%s}}`, criteria, endpoint, strings.Join(more, ""))
}

// subscribe creates a Subscription and waits until it is active.
func (s *service) subscribe(body string) string {
	s.t.Helper()
	a := s.do("POST", "/Subscription", body)
	if a.status != 201 {
		s.t.Fatalf("create a Subscription: %d %s", a.status, a.body)
	}
	id := a.json.(map[string]any)["id"].(string)
	s.awaitStatus(id, "active")
	return id
}

// awaitStatus waits for a status of a Subscription.
func (s *service) awaitStatus(id, want string) map[string]any {
	s.t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		a := s.do("GET", "/Subscription/"+id, "")
		m, _ := a.json.(map[string]any)
		if last, _ = m["status"].(string); last == want {
			return m
		}
	}
	s.t.Fatalf("Subscription/%s is %s, want %s", id, last, want)
	return nil
}

func patient(family string) string {
	return fmt.Sprintf(`{"resourceType":"Patient","name":[{"family":%q}],"active":true}`, family)
}

// Contract, Notifications 4: body and headers; 2: the new version matches, of a delete the
// last one did.
func TestWebhookDelivers(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.SigningSecret = "a secret" })
	r := newReceiver(t)
	id := s.subscribe(subscription("Patient?family=Match", r.url+"/hook?x=1", `,"header":["X-Own: yes","Authorization: Bearer 1"]`))
	if d := r.any(); d.json["type"] != "handshake" || d.json["subscription"] != "Subscription/"+id || d.header.Get("Content-Type") != "application/fhir+json" {
		t.Errorf("handshake %s %v", d.body, d.header)
	}
	s.do("POST", "/Patient", patient("Other"))
	a := s.do("POST", "/Patient", patient("Match"))
	pid := a.json.(map[string]any)["id"].(string)
	d := r.next()
	m := d.json
	if m["event"] != "create" || m["resourceType"] != "Patient" || m["resourceId"] != pid || m["versionId"] != "1" || m["subscription"] != "Subscription/"+id {
		t.Errorf("message %s", d.body)
	}
	if got, _ := m["resource"].(map[string]any); got["id"] != pid {
		t.Errorf("resource %v", m["resource"])
	}
	if _, err := time.Parse(time.RFC3339, fmt.Sprint(m["timestamp"])); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/fhir+json", "X-Notification-Id": m["id"].(string), "X-Subscription-Id": "Subscription/" + id,
		"X-Own": "yes", "Authorization": "Bearer 1", "Webhook-Id": m["id"].(string),
	} {
		if got := d.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	checkSignature(t, d, []byte("a secret"))

	// An update that matches, one that no longer does, and a delete of what no longer did.
	s.do("PUT", "/Patient/"+pid, strings.Replace(patient("Match"), `"name"`, `"id":"`+pid+`","gender":"male","name"`, 1))
	if d := r.next(); d.json["event"] != "update" || d.json["versionId"] != "2" {
		t.Errorf("update %s", d.body)
	}
	s.do("PUT", "/Patient/"+pid, strings.Replace(patient("Else"), `"name"`, `"id":"`+pid+`","name"`, 1))
	s.do("DELETE", "/Patient/"+pid, "")
	// A PUT that creates is a create, after a delete too; then a delete of what matched.
	s.do("PUT", "/Patient/"+pid, strings.Replace(patient("Match"), `"name"`, `"id":"`+pid+`","name"`, 1))
	if d := r.next(); d.json["event"] != "create" || d.json["versionId"] != "5" {
		t.Errorf("create after a delete %s", d.body)
	}
	s.do("DELETE", "/Patient/"+pid, "")
	d = r.next()
	if _, has := d.json["resource"]; d.json["event"] != "delete" || d.json["versionId"] != "6" || has {
		t.Errorf("delete %s", d.body)
	}
	st := s.do("GET", "/Subscription/"+id+"/$status", "").json.(map[string]any)
	if st["resourceType"] != "SubscriptionStatus" || st["type"] != "query-status" || st["status"] != "active" || st["eventsSinceSubscriptionStart"] != "4" ||
		st["subscription"] != "Subscription/"+id {
		t.Errorf("$status %v", st)
	}
	// AuditEvents of the deliveries: found by search, and raise no events.
	for deadline := time.Now().Add(patience); ; {
		a := s.do("GET", "/AuditEvent?entity=Subscription/"+id, "").json.(map[string]any)
		if fmt.Sprint(a["total"]) == "4" {
			e := a["entry"].([]any)[0].(map[string]any)["resource"].(map[string]any)
			if e["action"] != "R" || e["outcome"] != "0" || e["type"].(map[string]any)["code"] != "rest" ||
				e["subtype"].([]any)[0].(map[string]any)["code"] != "notification" || len(e["entity"].([]any)) != 2 {
				t.Errorf("AuditEvent %v", e)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v AuditEvents, want 4", a["total"])
		}
	}
}

// checkSignature checks both signatures.
func checkSignature(t *testing.T, d delivery, key []byte) {
	t.Helper()
	if !signed(d, key) {
		t.Errorf("X-Signature %q is not of this key", d.header.Get("X-Signature"))
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(d.header.Get("Webhook-Id") + "." + d.header.Get("Webhook-Timestamp") + "."))
	mac.Write(d.body)
	if got, want := d.header.Get("Webhook-Signature"), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)); !slices.Contains(strings.Fields(got), want) {
		t.Errorf("webhook-signature %q, want %q", got, want)
	}
}

// signed tells whether X-Signature is the signature of d's body with key.
func signed(d delivery, key []byte) bool {
	mac := hmac.New(sha256.New, key)
	mac.Write(d.body)
	return d.header.Get("X-Signature") == "sha256="+hex.EncodeToString(mac.Sum(nil))
}

// Contract, Notifications 2 and 4: Subscriptions that are rejected when they are written.
func TestSubscriptionIsChecked(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) {
		c.Notifications.MaxSubscriptions = 2
		c.Notifications.Webhook.AllowPrivateNetworks = "false"
	})
	ok := "https://receiver.example/hook"
	for _, c := range []struct{ name, body, want string }{
		{"an unknown parameter, in the words of a search", subscription("Patient?nonsense=1", ok), "nonsense"},
		{"a bad value", subscription("Patient?birthdate=soon", ok), "birthdate"},
		{"an unknown type", subscription("Nonsense?x=1", ok), "Nonsense"},
		{"a result parameter", subscription("Patient?_count=3", ok), "_count"},
		{"another channel", strings.Replace(subscription("Patient?", ok), "rest-hook", "email", 1), "email"},
		{"no endpoint", subscription("Patient?", ""), ""},
		{"an endpoint that is no URL", subscription("Patient?", "ftp://x/y"), "endpoint"},
		{"an endpoint with a port that is none", subscription("Patient?", "https://receiver.example:99999/"), "65535"},
		{"an endpoint without a host", subscription("Patient?", "https://:443/"), "host"},
		{"http", subscription("Patient?", "http://receiver.example/"), "http"},
		{"a private address", subscription("Patient?", "https://10.1.2.3/"), "private"},
		{"loopback", subscription("Patient?", "https://127.0.0.1/"), "loopback"},
		{"an IPv6 address of IPv4", subscription("Patient?", "https://[::ffff:10.0.0.1]/"), "private"},
		{"another media type", strings.Replace(subscription("Patient?", ok), `application/fhir+json`, `application/fhir+xml`, 1), "payload"},
		{"a header of ours", subscription("Patient?", ok, `,"header":["X-Signature: x"]`), "X-Signature"},
		{"a header of the connection", subscription("Patient?", ok, `,"header":["Host: x"]`), "Host"},
		{"a header with a line break", subscription("Patient?", ok, `,"header":["X: a\r\nY: b"]`), "header"},
		{"an unknown topic", `{"resourceType":"Subscription","status":"requested","topic":"http://example.org/none","channel":{"type":"rest-hook","endpoint":"` + ok + `"}}`, "example.org/none"},
		{"no colon", subscription("Patient?", ok, `,"header":["nonsense"]`), "header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.in(t).do("POST", "/Subscription", c.body)
			if a.status != 422 || !strings.Contains(string(a.body), c.want) {
				t.Errorf("%d %s, want 422 that names %q", a.status, a.body, c.want)
			}
			a = s.in(t).do("PUT", "/Subscription/put", strings.Replace(c.body, `{`, `{"id":"put",`, 1))
			if a.status != 422 || !strings.Contains(string(a.body), c.want) {
				t.Errorf("by PUT %d %s, want 422 that names %q", a.status, a.body, c.want)
			}
		})
	}
	// One more than the limit: Subscriptions of one transaction count as well.
	var entries []string
	for range 3 {
		entries = append(entries, `{"resource":`+subscription("Patient?", ok)+`,"request":{"method":"POST","url":"Subscription"}}`)
	}
	if a := s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[`+strings.Join(entries, ",")+`]}`); a.status != 422 || !strings.Contains(string(a.body), "too-costly") {
		t.Errorf("a transaction of 3 subscriptions of 2: %d %s", a.status, a.body)
	}
	// Subscriptions that are off do not count.
	off := strings.Replace(subscription("Patient?", ok), `"active"`, `"off"`, 1)
	for i, body := range []string{subscription("Patient?", ok), off, subscription("Patient?", ok), subscription("Patient?", ok)} {
		want := 201
		if i == 3 {
			want = 422
		}
		a := s.do("POST", "/Subscription", body)
		if a.status != want {
			t.Errorf("subscription %d of 2: %d %s", i+1, a.status, a.body)
		}
		if m := a.json.(map[string]any); i == 0 && m["status"] != "requested" {
			t.Errorf("the status is %v although the client sent active; want requested", m["status"])
		} else if i == 1 && m["status"] != "off" {
			t.Errorf("the status is %v, want off", m["status"])
		}
	}
	// In a transaction the entry is named; a patch is checked as well.
	a := s.do("POST", "/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":`+patient("x")+`,"request":{"method":"POST","url":"Patient"}},
		{"resource":`+subscription("Patient?nonsense=1", ok)+`,"request":{"method":"POST","url":"Subscription"}}]}`)
	if a.status != 422 || !strings.Contains(string(a.body), "nonsense") {
		t.Errorf("transaction: %d %s", a.status, a.body)
	}
}

// Contract, Notifications 3 and 4: retries, the dead letter, error, and the way back.
func TestWebhookFailsAndRecovers(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	r := newReceiver(t)
	id := s.subscribe(subscription("Patient?", r.url))
	r.any()
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
	s.do("POST", "/Patient", patient("One"))
	first := r.next()
	for range 3 {
		if d := r.next(); d.header.Get("X-Notification-Id") != first.header.Get("X-Notification-Id") {
			t.Errorf("a retry under another id: %s, %s", d.body, first.body)
		}
	}
	m := s.awaitStatus(id, "error")
	if text, _ := m["error"].(string); !strings.Contains(text, "500") {
		t.Errorf("Subscription.error is %q, want the reason", text)
	}
	st := s.do("GET", "/Subscription/"+id+"/$status", "").json.(map[string]any)
	if st["status"] != "error" || st["error"] == nil {
		t.Errorf("$status %v", st)
	}
	// What came of an attempt is written with others, a moment later.
	var list map[string]any
	var entries []any
	for deadline := time.Now().Add(patience); len(entries) == 0 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		list = s.do("GET", s.server()+"/admin/notifications/deliveries?subscription="+id+"&status=failed", "").json.(map[string]any)
		entries = list["deliveries"].([]any)
	}
	if len(entries) != 1 {
		t.Fatalf("dead letters %v", list)
	}
	e := entries[0].(map[string]any)
	if e["notificationId"] != first.json["id"] || e["status"] != "failed" || len(e["attempts"].([]any)) != 4 || e["subscription"] != "Subscription/"+id {
		t.Errorf("delivery %v", e)
	}
	// Events are kept; a PUT with requested tries again at once; then they go out in order.
	s.do("POST", "/Patient", patient("Two"))
	s.do("POST", "/Patient", patient("Three"))
	r.says(nil)
	m["status"] = "requested"
	b, _ := json.Marshal(m)
	if a := s.do("PUT", "/Subscription/"+id, string(b)); a.status != 200 {
		t.Fatalf("PUT: %d %s", a.status, a.body)
	}
	s.awaitStatus(id, "active")
	for _, want := range []string{"Two", "Three"} {
		if d := r.next(); !strings.Contains(string(d.body), want) {
			t.Errorf("%s, want %s", d.body, want)
		}
	}
	// Redelivery of the dead letter.
	if a := s.do("POST", strings.TrimSuffix(s.base, "/fhir")+"/admin/notifications/deliveries/"+e["id"].(string)+"/redeliver", ""); a.status != 202 {
		t.Errorf("redeliver: %d %s", a.status, a.body)
	}
	if d := r.next(); d.header.Get("X-Notification-Id") != first.header.Get("X-Notification-Id") {
		t.Errorf("redelivered %s", d.body)
	}
	// 410 Gone: off.
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(410) })
	s.do("POST", "/Patient", patient("Four"))
	r.next()
	s.awaitStatus(id, "off")
}

// Contract, Notifications 4: redirects are not followed, an endpoint that hangs holds up
// nobody, Retry-After is kept to.
func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.MaxConcurrentDeliveries = 4 })
	good, redirecting, hanging, closing, lying, later := newReceiver(t), newReceiver(t), newReceiver(t), newReceiver(t), newReceiver(t), newReceiver(t)
	forbidden := newReceiver(t)
	all := []*receiver{good, redirecting, hanging, closing, lying, later}
	for _, r := range all {
		s.subscribe(subscription("Patient?", r.url))
		r.any()
	}
	release := make(chan struct{})
	defer close(release)
	redirecting.says(func(_ delivery, w http.ResponseWriter) {
		w.Header().Set("Location", forbidden.url)
		w.WriteHeader(307)
	})
	hanging.says(func(delivery, http.ResponseWriter) { <-release })
	closing.says(func(_ delivery, w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	lying.says(func(_ delivery, w http.ResponseWriter) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write([]byte("short"))
	})
	times := make(chan time.Time, 10)
	later.says(func(_ delivery, w http.ResponseWriter) {
		times <- time.Now()
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(503)
	})
	for i := range 5 {
		s.do("POST", "/Patient", patient(fmt.Sprint("p", i)))
	}
	for i := range 5 {
		if d := good.next(); !strings.Contains(string(d.body), fmt.Sprint("p", i)) {
			t.Errorf("%s, want p%d", d.body, i)
		}
	}
	redirecting.next()
	closing.next()
	for range 5 { // an answer that is shorter than it says was an answer
		lying.next()
	}
	select {
	case d := <-forbidden.got:
		t.Errorf("a redirect was followed: %s", d.body)
	default:
	}
	seen := map[string]time.Time{}
	for {
		d := later.next()
		at := <-times
		id := d.header.Get("X-Notification-Id")
		if before, ok := seen[id]; ok {
			if at.Sub(before) < 1900*time.Millisecond {
				t.Errorf("tried again after %s, the receiver asked for 2 s", at.Sub(before))
			}
			break
		}
		seen[id] = at
	}
}

// Contract, Notifications 4: secrets, rotation, test delivery.
func TestSecretsAndTestDelivery(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	r := newReceiver(t)
	id := s.subscribe(subscription("Patient?", r.url))
	secret := func() []byte {
		a := s.do("POST", "/Subscription/"+id+"/$secret", "")
		text, _ := a.json.(map[string]any)["secret"].(string)
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
		if a.status != 200 || !strings.HasPrefix(text, "whsec_") || err != nil || len(key) < 24 {
			t.Fatalf("$secret: %d %s", a.status, a.body)
		}
		return key
	}
	first := secret()
	s.do("POST", "/Patient", patient("One"))
	checkSignature(t, r.next(), first)
	second := secret()
	s.do("POST", "/Patient", patient("Two"))
	d := r.next()
	checkSignature(t, d, second)
	if n := len(strings.Fields(d.header.Get("Webhook-Signature"))); n != 2 {
		t.Errorf("%d signatures for a day after a change, want both", n)
	}
	r.says(func(_ delivery, w http.ResponseWriter) {
		w.WriteHeader(418)
		_, _ = w.Write([]byte("short and stout"))
	})
	a := s.do("POST", "/Subscription/"+id+"/$test", "")
	if a.status != 200 || !strings.Contains(string(a.body), "short and stout") || !strings.Contains(string(a.body), "418") {
		t.Errorf("$test: %d %s", a.status, a.body)
	}
	s.awaitStatus(id, "active") // a test changes nothing
}

// Contract, Notifications 2: what needs other resources, before and after.
func TestSubscriptionCriteriaOfOtherResources(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	r := newReceiver(t)
	s.do("PUT", "/Patient/a", `{"resourceType":"Patient","id":"a","name":[{"family":"Chain"}]}`)
	s.do("PUT", "/Patient/b", `{"resourceType":"Patient","id":"b","name":[{"family":"Other"}]}`)
	s.subscribe(subscription("Observation?subject:Patient.family=chain&status=final", r.url))
	observation := func(id, patient string) {
		if a := s.do("PUT", "/Observation/"+id, fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":"final","code":{"text":"x"},"subject":{"reference":"Patient/%s"}}`, id, patient)); a.status >= 300 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	observation("one", "b")
	observation("two", "a")
	if d := r.next(); d.json["resourceId"] != "two" || d.json["event"] != "create" {
		t.Errorf("%s", d.body)
	}
	s.do("DELETE", "/Observation/one", "")
	s.do("DELETE", "/Observation/two", "")
	if d := r.next(); d.json["resourceId"] != "two" || d.json["event"] != "delete" {
		t.Errorf("%s", d.body)
	}
}

// sse reads server-sent events.
type sse struct {
	t      testing.TB
	resp   *http.Response
	events chan sseEvent
	cancel context.CancelFunc
}

type sseEvent struct{ name, id, data string }

func (s *service) stream(path string, headers ...string) *sse {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	u := path
	if !strings.HasPrefix(path, "http") {
		u = s.base + path
	}
	req, err := http.NewRequestWithContext(ctx, "GET", u, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Accept-Encoding", "gzip")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	e := &sse{t: s.t, resp: resp, events: make(chan sseEvent, 100_000), cancel: cancel}
	s.t.Cleanup(e.close)
	if resp.StatusCode == 200 {
		go func() {
			defer close(e.events)
			var now sseEvent
			in := bufio.NewReaderSize(resp.Body, 1<<20)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				line = strings.TrimSuffix(line, "\n")
				name, value, _ := strings.Cut(line, ": ")
				switch name {
				case "event":
					now.name = value
				case "id":
					now.id = value
				case "data":
					now.data = value
				case "":
					if now.data != "" {
						e.events <- now
					}
					now.name, now.data = "", ""
				}
			}
		}()
	}
	return e
}

func (e *sse) close() {
	e.cancel()
	e.resp.Body.Close()
}

func (e *sse) next() sseEvent {
	e.t.Helper()
	deadline := time.After(patience) // heartbeats do not move it
	for {
		select {
		case ev, ok := <-e.events:
			if !ok {
				e.t.Fatal("the stream ended")
			}
			if ev.name != "heartbeat" {
				return ev
			}
		case <-deadline:
			e.t.Fatal("no event")
		}
	}
}

func (s *service) server() string { return strings.TrimSuffix(s.base, "/fhir") }

// Contract, Notifications 6: names, headers, search, exact resumption.
func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	s := start(t)
	all := s.stream(s.server() + "/notifications/events?resourceType=Patient,Observation&events=create,delete")
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Cache-Control": "no-cache"} {
		if got := all.resp.Header.Get(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := all.resp.Header.Get("Content-Encoding"); got != "" { // RFC 9110 8.4.1: identity neither
		t.Error("the stream is compressed")
	}
	some := s.stream("/Patient/$events?family=Match")
	other := s.do("POST", "/Patient", patient("Other")).json.(map[string]any)["id"].(string)
	id := s.do("POST", "/Patient", patient("Match")).json.(map[string]any)["id"].(string)
	first := some.next()
	var m map[string]any
	if err := json.Unmarshal([]byte(first.data), &m); err != nil || first.name != "patient-created" || m["resourceId"] != id || first.id == "" || m["cursor"] != first.id {
		t.Errorf("%+v, %v", first, err)
	}
	s.do("PUT", "/Patient/"+id, strings.Replace(patient("Match"), `"name"`, `"id":"`+id+`","gender":"male","name"`, 1))
	if ev := some.next(); ev.name != "patient-updated" {
		t.Errorf("%+v", ev)
	}
	some.close()
	s.do("DELETE", "/Patient/"+id, "")
	for _, want := range []string{other, id, id} {
		if ev := all.next(); !strings.Contains(ev.data, `"resourceId":"`+want+`"`) {
			t.Errorf("%+v, want %s", ev, want)
		}
	}
	// Back at the cursor: what came after it, once, then live.
	again := s.stream("/Patient/$events?family=Match", "Last-Event-ID", first.id)
	if ev := again.next(); ev.name != "patient-updated" {
		t.Errorf("%+v, want the update", ev)
	}
	if ev := again.next(); ev.name != "patient-deleted" {
		t.Errorf("%+v, want the deletion", ev)
	}
	s.do("POST", "/Patient", patient("Match"))
	if ev := again.next(); ev.name != "patient-created" {
		t.Errorf("%+v, want the live one", ev)
	}
	// By an instant.
	since := s.stream("/Patient/$events?family=Match&_since=" + url.QueryEscape(m["timestamp"].(string)))
	if ev := since.next(); ev.id != first.id {
		t.Errorf("%+v, want the first", ev)
	}
	for _, c := range []struct {
		path   string
		status int
	}{
		{"/Patient/$events?nonsense=1", 400}, {"/Patient/$events?_since=never", 400}, {s.server() + "/notifications/events?resourceType=Nonsense", 404},
		{s.server() + "/notifications/events?events=explode", 400},
	} {
		if e := s.stream(c.path); e.resp.StatusCode != c.status {
			t.Errorf("%s: %d, want %d", c.path, e.resp.StatusCode, c.status)
		}
	}
}

// ws is a WebSocket client.
type ws struct {
	t    testing.TB
	conn *websocket.Conn
}

func (s *service) socket(query string) *ws {
	s.t.Helper()
	conn, resp, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws"+query, nil)
	if err != nil {
		var body []byte
		if resp != nil {
			body, _ = io.ReadAll(resp.Body) // of a refused handshake: its first kilobyte
		}
		s.t.Fatalf("dial: %v %s", err, body)
	}
	s.t.Cleanup(func() { conn.Close() })
	return &ws{s.t, conn}
}

func (w *ws) send(text string) {
	w.t.Helper()
	if err := w.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		w.t.Fatal(err)
	}
}

// text is the next message, heartbeats left out.
func (w *ws) text() string {
	w.t.Helper()
	for {
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
		_, b, err := w.conn.ReadMessage()
		if err != nil {
			w.t.Fatal(err)
		}
		if !strings.Contains(string(b), "SubscriptionStatus") {
			return string(b)
		}
	}
}

func (w *ws) json() map[string]any {
	w.t.Helper()
	text := w.text()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		w.t.Fatalf("%s: %v", text, err)
	}
	return m
}

// Contract, Notifications 5: messages, replay, errors that leave the connection, limits.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) {
		c.Notifications.WebSocket.MaxMessageSizeBytes = 4096
		c.Notifications.WebSocket.MaxConnections = 2
	})
	w := s.socket("")
	w.send(`{"type":"ping","ref":7}`)
	if m := w.json(); m["type"] != "pong" || m["ref"] != float64(7) {
		t.Errorf("%v", m)
	}
	for _, c := range []struct{ text, code string }{
		{`nonsense`, "structure"}, {`{"type":"dance","ref":"r"}`, "not-supported"}, {`{"type":"subscribe"}`, "required"},
		{`{"type":"subscribe","resourceType":"Nonsense"}`, "not-supported"}, {`{"type":"subscribe","resourceType":"Patient","events":["x"]}`, "invalid"},
		{`{"type":"subscribe","resourceType":"Patient","criteria":"Patient?nonsense=1"}`, "not-supported"},
		{`{"type":"unsubscribe","subscriptionId":"x"}`, "not-found"}, {`{"type":"subscribe","resourceType":"Patient","since":"x"}`, "invalid"},
	} {
		w.send(c.text)
		if m := w.json(); m["type"] != "error" || m["message"] == "" || m["code"] == "" {
			t.Errorf("%s: %v, want an error %s", c.text, m, c.code)
		}
	}
	w.send(`{"type":"subscribe","resourceType":"Patient","events":["create","update"],"criteria":"Patient?family=Match","ref":"a"}`)
	m := w.json()
	if m["type"] != "subscribed" || m["resourceType"] != "Patient" || m["ref"] != "a" || m["subscriptionId"] == "" || fmt.Sprint(m["events"]) != "[create update]" {
		t.Errorf("%v", m)
	}
	sub := m["subscriptionId"].(string)
	s.do("POST", "/Patient", patient("Other"))
	id := s.do("POST", "/Patient", patient("Match")).json.(map[string]any)["id"].(string)
	m = w.json()
	if m["event"] != "create" || m["resourceId"] != id || m["subscription"] != "Subscription/"+sub || m["cursor"] == nil || m["resource"] == nil {
		t.Errorf("%v", m)
	}
	first := m
	w.send(fmt.Sprintf(`{"type":"unsubscribe","subscriptionId":%q}`, sub))
	if m := w.json(); m["type"] != "unsubscribed" || m["subscriptionId"] != sub {
		t.Errorf("%v", m)
	}
	for i := range 5 {
		s.do("POST", "/Patient", patient(fmt.Sprint("Match", i)))
	}
	// Replay, then live, nothing twice; notifications have the same id each time.
	w.send(fmt.Sprintf(`{"type":"subscribe","resourceType":"Patient","criteria":"family=Match","events":["create","update"],"since":%q}`, first["cursor"]))
	if m := w.json(); m["type"] != "subscribed" {
		t.Errorf("%v", m)
	}
	for range 5 {
		s.do("POST", "/Patient", patient("Match-live"))
	}
	for i := range 10 {
		want := "Match-live"
		if i < 5 {
			want = fmt.Sprint("Match", i)
		}
		if text := w.text(); !strings.Contains(text, `"`+want+`"`) {
			t.Errorf("message %d is %s, want %s", i, text, want)
		}
	}
	w.send(fmt.Sprintf(`{"type":"subscribe","resourceType":"Patient","criteria":"family=Match","events":["create","update"],"since":%q}`, first["timestamp"]))
	w.json()
	if m := w.json(); m["id"] != first["id"] {
		t.Errorf("%v, want the first again under its id", m)
	}
	// The third connection: 503 before the upgrade.
	other := s.socket("")
	_, resp, err := websocket.DefaultDialer.Dial(strings.Replace(s.server(), "http", "ws", 1)+"/notifications/ws", nil)
	if err == nil || resp == nil || resp.StatusCode != 503 {
		t.Errorf("a connection over the limit: %v %v, want 503", resp, err)
	}
	// Too large: 1009.
	other.send(`"` + strings.Repeat("x", 5000) + `"`)
	if _, _, err := other.conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("%v, want 1009", err)
	}
	// R4's channel: bind, bound, ping.
	sid := s.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Observation?code=x","channel":{"type":"websocket"}}`)
	b := s.socket("")
	b.send("bind " + sid)
	if text := b.text(); text != "bound "+sid {
		t.Errorf("%q, want bound", text)
	}
	s.do("POST", "/Observation", `{"resourceType":"Observation","status":"final","code":{"coding":[{"code":"x"}]}}`)
	if text := b.text(); text != "ping "+sid {
		t.Errorf("%q, want ping", text)
	}
	// The end of the server: 1001.
	go s.stop()
	for {
		_ = b.conn.SetReadDeadline(time.Now().Add(patience))
		if _, _, err := b.conn.ReadMessage(); err != nil {
			if !websocket.IsCloseError(err, websocket.CloseGoingAway) {
				t.Errorf("%v, want 1001", err)
			}
			break
		}
	}
}

// Contract, Notifications 1: two servers on one database. Each notification is delivered by
// one, and connections of each see the writes of both.
func TestTwoServersNotify(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url, quick), startOn(t, url, quick)
	r := newReceiver(t)
	id := a.subscribe(subscription("Patient?", r.url))
	r.any()
	onA, onB := a.stream("/Patient/$events"), b.stream("/Patient/$events")
	const n = 20
	for i := range n {
		s := a
		if i%2 == 1 {
			s = b
		}
		s.do("POST", "/Patient", patient(fmt.Sprint("p", i)))
	}
	seen := map[string]int{}
	for range n {
		seen[r.next().header.Get("X-Notification-Id")]++
		onA.next()
		onB.next()
	}
	if len(seen) != n {
		t.Errorf("%d notifications, want %d", len(seen), n)
	}
	// The one that dies hands on.
	onA.close()
	onB.close()
	a.stop()
	b.do("POST", "/Patient", patient("after"))
	if d := r.next(); !strings.Contains(string(d.body), "after") || d.json["subscription"] != "Subscription/"+id {
		t.Errorf("%s", d.body)
	}
}

// Contract, Notifications 6: $events-history is paged, newest first, with the ids of the
// notifications.
func TestEventsHistory(t *testing.T) {
	t.Parallel()
	s := start(t)
	live := s.stream("/Patient/$events?family=Match")
	for i := range 5 {
		s.do("PUT", "/Patient/p", strings.Replace(patient(fmt.Sprint("Match", i)), `"name"`, `"id":"p","name"`, 1))
		s.do("POST", "/Patient", patient("Other"))
	}
	s.do("DELETE", "/Patient/p", "")
	var want []string
	for range 6 {
		var m map[string]any
		_ = json.Unmarshal([]byte(live.next().data), &m)
		want = append([]string{m["id"].(string)}, want...)
	}
	page := func(url string) (ids []string, a *answer) {
		a = s.do("GET", url, "").want(200).equal("type", "history")
		for i := range a.len("entry") {
			ids = append(ids, a.str(fmt.Sprintf("entry.%d.id", i)))
		}
		return ids, a
	}
	got, a := page("/Patient/$events-history?_count=2&family=Match")
	if a.link("previous") != "" {
		t.Errorf("the first page has previous %s", a.link("previous"))
	}
	last := got
	for a.link("next") != "" {
		last, a = page(a.link("next"))
		got = append(got, last...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("history\n%v, want\n%v", got, want)
	}
	for got = last; a.link("previous") != ""; got = append(last, got...) {
		last, a = page(a.link("previous"))
	}
	if !slices.Equal(got, want) || a.link("next") == "" {
		t.Errorf("on the way back\n%v, want\n%v", got, want)
	}
}

// Contract, Notifications 1: vread is an event only with notifications.vread.
func TestVReadIsAnEvent(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Notifications.VRead = true })
	id := s.do("POST", "/Patient", patient("Read")).json.(map[string]any)["id"].(string)
	e := s.stream("/Patient/$events?events=vread")
	s.do("GET", "/Patient/"+id, "")
	s.do("GET", "/Patient/"+id+"/_history/1", "")
	if ev := e.next(); ev.name != "patient-viewed" || !strings.Contains(ev.data, `"event":"vread"`) || !strings.Contains(ev.data, id) {
		t.Errorf("%+v", ev)
	}
	e.close()
	without := start(t)
	id = without.do("POST", "/Patient", patient("Read")).want(201).str("id")
	e = without.stream("/Patient/$events?events=vread,update,delete")
	without.do("GET", "/Patient/"+id+"/_history/1", "").want(200)
	without.do("DELETE", "/Patient/"+id, "").want(204)
	if ev := e.next(); ev.name != "patient-deleted" {
		t.Errorf("%+v, want no event of the read", ev)
	}
}

// topicJSON is a topic of Observations that become final.
const topicJSON = `{"resourceType":"SubscriptionTopic","url":"http://example.org/topic/final","status":"active","resourceTrigger":[{"resource":"Observation",
	"supportedInteraction":["create","update"],"queryCriteria":{"previous":"status:not=final","resultForCreate":"test-passes","current":"status=final","requireBoth":true}}],
	"canFilterBy":[{"resource":"Observation","filterParameter":"subject"}],"notificationShape":[{"resource":"Observation","include":["Observation:subject"]}]}`

// Contract, Notifications 2: topic and filterBy, and the Backport IG's form of the same.
func TestTopics(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	if a := s.do("POST", "/SubscriptionTopic", topicJSON); a.status != 201 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	plain, backport := newReceiver(t), newReceiver(t)
	filter := `"filterBy":[{"resourceType":"Observation","filterParameter":"subject","value":"Patient/a"}]`
	of := func(filter, endpoint string) string {
		return `{"resourceType":"Subscription","status":"requested","topic":"http://example.org/topic/final",` + filter +
			`,"channel":{"type":"rest-hook","endpoint":"` + endpoint + `","payload":"application/fhir+json"}}`
	}
	if a := s.do("POST", "/Subscription", of(strings.Replace(filter, `"subject"`, `"code"`, 1), plain.url)); a.status != 422 || !strings.Contains(string(a.body), "code") {
		t.Errorf("a filter that the topic does not offer: %d %s", a.status, a.body)
	}
	s.subscribe(of(filter, plain.url))
	plain.any()
	ig := "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"
	s.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"http://example.org/topic/final","_criteria":{"extension":[{"url":"` + ig +
		`backport-filter-criteria","valueString":"Observation?subject=Patient/a"}]},"channel":{"extension":[{"url":"` + ig + `backport-heartbeat-period","valueUnsignedInt":3600}],
		"type":"rest-hook","endpoint":"` + backport.url + `","payload":"application/fhir+json","_payload":{"extension":[{"url":"` + ig + `backport-payload-content","valueCode":"full-resource"}]}}}`)
	if d := backport.any(); d.json["resourceType"] != "Bundle" || d.json["type"] != "history" || !strings.Contains(string(d.body), `"valueCode":"handshake"`) {
		t.Errorf("handshake %s", d.body)
	}
	s.do("PUT", "/Patient/a", `{"resourceType":"Patient","id":"a"}`)
	put := func(id, patient, status string) {
		if a := s.do("PUT", "/Observation/"+id, fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":%q,"code":{"text":"x"},"subject":{"reference":"Patient/%s"}}`, id, status, patient)); a.status >= 300 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	s.do("PUT", "/Patient/b", `{"resourceType":"Patient","id":"b"}`)
	put("other", "b", "final")     // another subject
	put("one", "a", "preliminary") // not final yet
	put("one", "a", "final")       // this one
	put("one", "a", "final")       // was final before
	put("two", "a", "final")       // created as final: the test of the previous version passes
	for _, want := range []string{"one/2", "two/1"} {
		if d := plain.next(); fmt.Sprint(d.json["resourceId"], "/", d.json["versionId"]) != want {
			t.Errorf("%s, want %s", d.body, want)
		}
	}
	var d delivery
	for d = backport.next(); !strings.Contains(string(d.body), "event-notification"); d = backport.next() {
	}
	entries := d.json["entry"].([]any)
	first := entries[0].(map[string]any)["resource"].(map[string]any)
	if first["resourceType"] != "Parameters" || len(entries) != 3 || !strings.Contains(string(d.body), `"id":"one"`) || !strings.Contains(string(d.body), "Patient/a") {
		t.Errorf("%d entries: %s", len(entries), d.body)
	}
}

// Contract, Notifications 3: heartbeats when nothing else was sent; off past its end.
func TestHeartbeatsAndEnd(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.HeartbeatIntervalSeconds = 1 })
	r := newReceiver(t)
	end := time.Now().Add(5 * time.Second).UTC().Format(time.RFC3339)
	id := s.subscribe(strings.Replace(subscription("Patient?", r.url), `"reason"`, `"end":"`+end+`","reason"`, 1))
	r.any()
	d := r.any()
	if d.json["type"] != "heartbeat" || d.json["status"] != "active" || d.header.Get("Content-Type") != "application/fhir+json" {
		t.Errorf("%s", d.body)
	}
	s.awaitStatus(id, "off")
	list := s.do("GET", "/Subscription/$status?id="+id, "").json.(map[string]any)
	if entries, _ := list["entry"].([]any); list["type"] != "searchset" || len(entries) != 1 {
		t.Errorf("$status of the type: %v", list)
	}
}
