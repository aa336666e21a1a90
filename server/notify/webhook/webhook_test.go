package webhook

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server/notify/config"
)

// Contract, Notifications 4: which endpoints may be called.
func TestEndpointsThatMayBeCalled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint           string
		http, private, may bool
	}{
		{"https://receiver.example/hook", false, false, true},
		{"http://receiver.example/hook", false, false, false},
		{"http://receiver.example/hook", true, false, true},
		{"http://localhost:9000/", false, true, true},
		{"http://127.0.0.1:9000/", false, true, true},
		{"http://127.0.0.1:9000/", false, false, false},
		{"https://8.8.8.8/", false, false, true},
		{"https://10.0.0.1/", false, false, false},
		{"https://172.16.0.1/", false, false, false},
		{"https://192.168.1.1/", false, false, false},
		{"https://169.254.169.254/latest/meta-data", false, false, false},
		{"https://100.64.0.1/", false, false, false},
		{"https://0.0.0.0/", false, false, false},
		{"https://[::1]/", false, false, false},
		{"https://[fe80::1]/", false, false, false},
		{"https://[fd00::1]/", false, false, false},
		{"https://[::ffff:127.0.0.1]/", false, false, false},
		{"https://[64:ff9b::a00:1]/", false, false, false},
		{"https://[2001:4860:4860::8888]/", false, false, true},
		{"https://10.0.0.1/", false, true, true},
	} {
		s := NewSender(func() *config.Config {
			return &config.Config{Webhook: config.WebhookConfig{AllowHTTP: c.http, AllowPrivate: c.private}}
		}, nil)
		u, err := url.Parse(c.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CheckEndpoint(u); (err == nil) != c.may {
			t.Errorf("%s with http %t, private %t: %v, want allowed %t", c.endpoint, c.http, c.private, err, c.may)
		}
	}
}

// Contract, Notifications 4: the dialled address is checked, even if the name resolved to
// another address before.
func TestDialledAddressIsChecked(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	defer web.Close()
	at, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	settings := config.Config{Webhook: config.WebhookConfig{AllowHTTP: true, Timeout: 10 * time.Second, MaxConcurrent: 1,
		Lookup: func(string) ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil }}}
	s := NewSender(func() *config.Config { return &settings }, nil)
	endpoint, err := url.Parse("http://rebinding.example:" + at.Port() + "/")
	if err != nil {
		t.Fatal(err)
	}
	m := Message{Method: http.MethodPost, URL: endpoint, Header: http.Header{}, ID: "id", Subscriber: "Subscription/1", ContentType: "text/plain", Timeout: 10 * time.Second}
	if r, _ := s.Send(t.Context(), m, Keys{}); r.OK() || !strings.Contains(r.Err, "127.0.0.1") {
		t.Errorf("%+v, want a refusal of the address", r)
	}
}

// RFC 9110 §10.2.3.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999": 0, "9999999": maxRetryAfter,
		"Thu, 01 Jan 2026 00:01:00 GMT": time.Minute, "Wed, 31 Dec 2025 00:00:00 GMT": 0,
	} {
		if text == "99999999999" {
			want = maxRetryAfter
		}
		if got := parseRetryAfter(text, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Contract, Notifications 4: attempts at once, after 10, 30 and 60 seconds, then none; after
// Retry-After where that is longer.
func TestRetrySchedule(t *testing.T) {
	t.Parallel()
	p := Policy{MaxAttempts: 4, Backoff: []time.Duration{10 * time.Second, 30 * time.Second, 60 * time.Second, 120 * time.Second}}
	for attempts, want := range map[int]time.Duration{1: 10 * time.Second, 2: 30 * time.Second, 3: 60 * time.Second, 4: -1} {
		got, again := p.NextAttempt(attempts, Result{})
		if !again {
			got = -1
		}
		if got != want {
			t.Errorf("after %d attempts %s, want %s", attempts, got, want)
		}
	}
	for asked, want := range map[time.Duration]time.Duration{5 * time.Second: 10 * time.Second, 15 * time.Second: 15 * time.Second} {
		if got, again := p.NextAttempt(1, Result{RetryAfter: asked}); got != want || !again {
			t.Errorf("Retry-After %s: %s %t, want %s", asked, got, again, want)
		}
	}
	if got, again := (Policy{MaxAttempts: 2}).NextAttempt(1, Result{RetryAfter: time.Second}); got != time.Second || !again {
		t.Errorf("without a backoff: %s %t", got, again)
	}
	if _, again := p.NextAttempt(4, Result{RetryAfter: time.Minute}); again {
		t.Error("Retry-After asks for an attempt after the last one")
	}
}
