package conformance

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"kiln/server"
)

// traces is a collector that takes OTLP over HTTP.
type traces struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string]map[string]int // by trace, by name
	texts []string                  // attributes
}

func collect(t *testing.T) *traces {
	c := &traces{spans: make(map[string]map[string]int)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var in collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
			t.Errorf("%s %s is no export of traces (%v)", r.Method, r.URL.Path, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range in.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					id := hex.EncodeToString(s.TraceId)
					if c.spans[id] == nil {
						c.spans[id] = make(map[string]int)
					}
					c.spans[id][s.Name]++
					for _, a := range s.Attributes {
						c.texts = append(c.texts, a.Key+"="+a.Value.GetStringValue())
					}
				}
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// has waits for spans of a trace.
func (c *traces) has(t *testing.T, trace string, names ...string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		c.mu.Lock()
		missing := ""
		for _, n := range names {
			if c.spans[trace][n] == 0 {
				missing = n
			}
		}
		got := c.spans[trace]
		if missing == "" {
			c.mu.Unlock()
			return
		}
		if time.Now().After(deadline) {
			defer c.mu.Unlock()
			t.Fatalf("trace %s has no span %q: %v", trace, missing, got)
		}
		c.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

const (
	traceA = "0af7651916cd43dd8448eb211c80319c"
	traceB = "1af7651916cd43dd8448eb211c80319c"
	traceC = "2af7651916cd43dd8448eb211c80319c"
)

func traceparent(trace string) string { return "00-" + trace + "-b7ad6b7169203331-01" }

// Operations, Telemetry: traces with spans for request, search, statements, validation
// and terminology; traceparent is taken in and sent on; metrics have exemplars; spans
// have no values.
// Contract, Operations: telemetry: spans, W3C traceparent taken in and sent on.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := collect(t)
	var mu sync.Mutex
	seen := "" // traceparent at the terminology server
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Get("Traceparent")
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(other.Close)
	s := start(t, func(cfg *server.Config) {
		cfg.Telemetry.OTLPEndpoint = c.URL
		cfg.Terminology.ServerURL = other.URL
	})
	s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"Secretname"}]}`, "Traceparent", traceparent(traceA)).want(201)
	s.get("/Patient?name=Secretname", "Traceparent", traceparent(traceB)).want(200)
	s.get("/ValueSet/$expand?url=http://example.org/unknown", "Traceparent", traceparent(traceC))
	c.has(t, traceA, "POST create", "validation")
	c.has(t, traceB, "GET search-type", "search", "db")
	c.has(t, traceC, "GET operation", "terminology")
	mu.Lock()
	if !strings.HasPrefix(seen, "00-"+traceC+"-") {
		t.Errorf("the terminology server got traceparent %q", seen)
	}
	mu.Unlock()
	c.mu.Lock()
	for _, text := range c.texts {
		if strings.Contains(strings.ToLower(text), "secretname") {
			t.Errorf("a span has a value: %s", text)
		}
	}
	c.mu.Unlock()
	metrics := string(s.get(s.root("/metrics"), "Accept", "application/openmetrics-text").want(200).body)
	if !regexp.MustCompile(`service_request_duration_seconds_bucket\{route="search-type".*# \{trace_id="` + traceB + `"\}`).MatchString(metrics) {
		t.Error("no exemplar has the trace of the search")
	}
}

// Operations, Telemetry: traces and Server-Timing are off by default, and switched
// while the server runs; a traceparent is sent on all the same.
// Contract, Operations: telemetry: `Server-Timing` with `telemetry.server_timing`.
func TestServerTiming(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.get("/Patient").want(200).has("Server-Timing", "")
	s.do("PUT", s.root("/admin/config/telemetry/server_timing"), `true`).want(200).equal("restart_required", "false")
	got := s.get("/Patient?name=x").want(200).header.Get("Server-Timing")
	if !regexp.MustCompile(`^total;dur=[\d.]+, .*search;dur=[\d.]+`).MatchString(got) || !strings.Contains(got, "db;dur=") {
		t.Errorf("Server-Timing is %q", got)
	}
	c := collect(t)
	s.do("PUT", s.root("/admin/config/telemetry/otlp_endpoint"), `"`+c.URL+`"`).want(200)
	s.get("/metadata", "Traceparent", traceparent(traceA)).want(200)
	c.has(t, traceA, "GET capabilities")
	s.do("PUT", s.root("/admin/config/telemetry/otlp_endpoint"), `"nonsense"`).issue(400, "invalid", "telemetry.otlp_endpoint")
}

// Contract, Operations: telemetry: W3C traceparent taken in, and sent on to webhooks and Apps.
func TestTraceparentIsSentOn(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := start(t, quick, func(cfg *server.Config) { cfg.Telemetry.OTLPEndpoint = c.URL })
	hook, app := newReceiver(t), newReceiver(t)
	s.subscribe(subscription("Patient?family=Traced", hook.url))
	app.says(func(_ delivery, w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	})
	s.put("/App/probe", `{"resourceType":"App","id":"probe","name":"probe","status":"active","operations":[
		{"type":"execute","resourceType":"Patient","name":"probe","handler":{"type":"http","url":"`+app.url+`"}}]}`).want(201)
	s.post("/Patient/$probe", `{"parameters":{}}`, "Traceparent", traceparent(traceA)).want(200)
	if got := app.any().header.Get("Traceparent"); !strings.HasPrefix(got, "00-"+traceA+"-") {
		t.Errorf("the App got traceparent %q", got)
	}
	s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"Traced"}]}`, "Traceparent", traceparent(traceB)).want(201)
	if got := hook.next().header.Get("Traceparent"); !strings.HasPrefix(got, "00-"+traceB+"-") || got == traceparent(traceB) {
		t.Errorf("the webhook got traceparent %q, want a span of its own in %s", got, traceB)
	}
	s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"Traced"}]}`).want(201)
	if got := hook.next().header.Get("Traceparent"); !regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$`).MatchString(got) || strings.Contains(got, traceB) {
		t.Errorf("of a request without trace the webhook got traceparent %q", got)
	}
}

// A caller's trace goes on to webhooks where this server traces nothing, too: also of a bundle,
// and not into the deliveries of neighbours.
func TestTraceparentWithoutTracing(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	hook := newReceiver(t)
	s.subscribe(subscription("Patient?family=Traced", hook.url))
	traced := func(id string) string {
		return `{"resource":{"resourceType":"Patient","id":"` + id + `","name":[{"family":"Traced"}]},"request":{"method":"PUT","url":"Patient/` + id + `"}}`
	}
	s.post("", `{"resourceType":"Bundle","type":"transaction","entry":[`+traced("a")+`,`+traced("b")+`]}`, "Traceparent", traceparent(traceA)).want(200)
	s.put("/Patient/c", `{"resourceType":"Patient","id":"c","name":[{"family":"Traced"}]}`).want(201)
	s.do("DELETE", "/Patient/c", "", "Traceparent", traceparent(traceB)).want(204)
	got := map[string][]string{}
	for range 4 {
		d := hook.next()
		id, _ := d.json["resourceId"].(string)
		got[id] = append(got[id], d.header.Get("Traceparent"))
	}
	want := map[string][]string{"a": {traceparent(traceA)}, "b": {traceparent(traceA)}, "c": {"", traceparent(traceB)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("traceparent by resource:\n%s", diff)
	}
}
