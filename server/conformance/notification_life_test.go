package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// putSubscription puts a Subscription with some elements changed.
func (s *service) putSubscription(id string, change func(m map[string]any)) *answer {
	s.t.Helper()
	m := s.do("GET", "/Subscription/"+id, "").want(200).json.(map[string]any)
	change(m)
	b, err := json.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do("PUT", "/Subscription/"+id, string(b)).want(200)
}

// statuses returns the statuses of a Subscription's versions, oldest first.
func (s *service) statuses(id string) string {
	s.t.Helper()
	a := s.do("GET", "/Subscription/"+id+"/_history?_count=50", "").want(200)
	var list []string
	for i := range a.len("entry") {
		list = append(list, a.str(fmt.Sprintf("entry.%d.resource.status", i)))
	}
	slices.Reverse(list)
	return strings.Join(list, " ")
}

// Contract, Notifications 3: the transitions of a Subscription, each of them a new version.
func TestSubscriptionLife(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := startOn(t, database, quick, func(c *server.Config) { c.Notifications.Webhook.HeartbeatIntervalSeconds = 0 })
	conn := onDatabase(t, database)
	fails := func(_ delivery, w http.ResponseWriter) { http.Error(w, "no", http.StatusTeapot) }

	t.Run("a handshake that fails is tried again by the schedule, then error", func(t *testing.T) {
		s, r := s.in(t), newReceiver(t)
		r.says(fails)
		a := s.do("POST", "/Subscription", subscription("Patient?", r.url)).want(201)
		id := a.str("id")
		if a.str("status") != "requested" {
			t.Errorf("the status is %q, want requested", a.str("status"))
		}
		for range 4 {
			if d := r.any(); d.json["type"] != "handshake" || d.json["status"] != "requested" || d.json["subscription"] != "Subscription/"+id || d.json["eventsSinceSubscriptionStart"] != "0" {
				t.Errorf("%s, want a handshake", d.body)
			}
		}
		m := s.awaitStatus(id, "error")
		if text, _ := m["error"].(string); !strings.Contains(text, "418") {
			t.Errorf("Subscription.error is %q, want the reason", text)
		}
		if st := s.do("GET", "/Subscription/"+id+"/$status", "").want(200); st.str("status") != "error" || !strings.Contains(st.str("error"), "418") || st.str("type") != "query-status" {
			t.Errorf("$status %s", st.body)
		}
		r.says(nil)
		if a := s.putSubscription(id, func(m map[string]any) { m["status"] = "requested" }); a.str("status") != "requested" || a.at("error") != nil {
			t.Errorf("%s, want requested without an error", a.body)
		}
		s.awaitStatus(id, "active")
		if got := s.statuses(id); got != "requested error requested active" {
			t.Errorf("the versions are %s", got)
		}
		if len(r.got) != 1 {
			t.Errorf("%d more requests, want one handshake", len(r.got))
		}
		s.do("DELETE", "/Subscription/"+id, "").want(204)
	})
	t.Run("a PUT of an active one", func(t *testing.T) {
		s, r, other := s.in(t), newReceiver(t), newReceiver(t)
		id := s.subscribe(subscription("Patient?family=a", r.url))
		r.any()
		if a := s.putSubscription(id, func(m map[string]any) { m["reason"] = "another" }); a.str("status") != "active" {
			t.Errorf("after another reason it is %s, want active", a.str("status"))
		}
		for what, change := range map[string]func(m map[string]any){
			"criteria": func(m map[string]any) { m["criteria"] = "Patient?family=b" },
			"channel":  func(m map[string]any) { m["channel"].(map[string]any)["endpoint"] = other.url },
		} {
			if a := s.putSubscription(id, change); a.str("status") != "requested" {
				t.Errorf("after another %s it is %s, want requested", what, a.str("status"))
			}
			s.awaitStatus(id, "active")
		}
		if d := other.any(); d.json["type"] != "handshake" {
			t.Errorf("%s, want a handshake at the new endpoint", d.body)
		}
		s.do("DELETE", "/Subscription/"+id, "").want(204)
	})
	t.Run("off keeps nothing", func(t *testing.T) {
		s, r, witness := s.in(t), newReceiver(t), newReceiver(t)
		id := s.subscribe(subscription("Device?", r.url))
		s.subscribe(subscription("Device?", witness.url))
		s.putSubscription(id, func(m map[string]any) { m["status"] = "off" })
		s.do("POST", "/Device", `{"resourceType":"Device","lotNumber":"while-off"}`).want(201)
		witness.next()
		s.putSubscription(id, func(m map[string]any) { m["status"] = "requested" })
		s.awaitStatus(id, "active")
		s.do("POST", "/Device", `{"resourceType":"Device","lotNumber":"again"}`).want(201)
		if d := r.next(); !strings.Contains(string(d.body), "again") {
			t.Errorf("%s, want what was written when it was active again", d.body)
		}
		if got := s.do("GET", "/Subscription/"+id+"/$status", "").str("eventsSinceSubscriptionStart"); got != "1" {
			t.Errorf("%s events since the start, want 1", got)
		}
		past := strings.Replace(subscription("Device?", r.url), `"reason"`, `"end":"2020-01-01T00:00:00Z","reason"`, 1)
		if a := s.do("POST", "/Subscription", past).want(201); a.str("status") != "off" {
			t.Errorf("past its end it is %s, want off", a.str("status"))
		}
	})
	t.Run("error ends by a heartbeat, and what waits goes out in order", func(t *testing.T) {
		s, r := s.in(t), newReceiver(t)
		id := s.subscribe(subscription("Basic?", r.url))
		r.any()
		r.says(fails)
		s.do("POST", "/Basic", `{"resourceType":"Basic","code":{"text":"lost"}}`).want(201)
		for range 4 {
			r.next()
		}
		s.awaitStatus(id, "error")
		s.do("POST", "/Basic", `{"resourceType":"Basic","code":{"text":"first"}}`).want(201)
		s.do("POST", "/Basic", `{"resourceType":"Basic","code":{"text":"second"}}`).want(201)
		var wait float64
		if err := conn.QueryRow(context.Background(), `SELECT extract(epoch FROM due - now()) FROM notification_subscription WHERE id = $1`, id).Scan(&wait); err != nil {
			t.Fatal(err)
		}
		if wait > 60 {
			t.Errorf("the next heartbeat is in %g s, want at most 60", wait)
		}
		r.says(nil)
		due := func() { sql(t, conn, `UPDATE notification_subscription SET due = now() WHERE id = '`+id+`'`) }
		due()
		if d := r.any(); d.json["type"] != "heartbeat" || d.json["status"] != "error" {
			t.Errorf("%s, want a heartbeat", d.body)
		}
		s.awaitStatus(id, "active")
		for _, want := range []string{"first", "second"} {
			if d := r.next(); !strings.Contains(string(d.body), want) {
				t.Errorf("%s, want %s", d.body, want)
			}
		}
		s.do("DELETE", "/Subscription/"+id, "").want(204)
	})
	t.Run("in error for webhook.max_error_hours: off", func(t *testing.T) {
		s, r := s.in(t), newReceiver(t)
		r.says(fails)
		id := s.do("POST", "/Subscription", subscription("Patient?", r.url)).want(201).str("id")
		s.awaitStatus(id, "error")
		age := func(hours int) {
			sql(t, conn, fmt.Sprintf(`UPDATE notification_subscription SET due = now(), failing = now() - interval '%d hours' WHERE id = '%s'`, hours, id))
		}
		for range 4 {
			r.any()
		}
		age(71)
		r.any()
		if a := s.do("GET", "/Subscription/"+id, ""); a.str("status") != "error" {
			t.Errorf("after 71 hours it is %s, want error", a.str("status"))
		}
		soon(t, "off", func() bool { // an attempt under way may set when the next is due
			age(73)
			return s.do("GET", "/Subscription/"+id, "").str("status") == "off"
		})
	})
}

// Contract, Notifications 2: what search would refuse is a 422 with the same words; 1: a reindex is no
// event, and a PATCH is an update.
func TestCriteriaAreThoseOfSearch(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	r := newReceiver(t)
	for _, query := range []string{"birthdate=soon", "nonsense=1", "family:nonsense=x", "general-practitioner.nonsense=1", "_has:Observation:subject:nonsense=1", "gender:in=http://example.org/none"} {
		search := s.do("GET", "/Patient?"+query, "")
		refused := s.do("POST", "/Subscription", subscription("Patient?"+query, r.url)).want(422)
		if words := search.str("issue.0.diagnostics"); search.status < 400 || words == "" || refused.str("issue.0.diagnostics") != words {
			t.Errorf("%s: search says %d %q, the Subscription %q", query, search.status, words, refused.str("issue.0.diagnostics"))
		}
	}
	s.stores(`{"resourceType":"ValueSet","id":"some","url":"http://example.org/some","status":"active","compose":{"include":[{"system":"http://hl7.org/fhir/administrative-gender","concept":[{"code":"female"}]}]}}`)
	s.subscribe(subscription("Patient?gender:in=http://example.org/some&_lastUpdated=gt2020", r.url))
	s.do("POST", "/Patient", `{"resourceType":"Patient","gender":"male"}`).want(201)
	id := s.do("POST", "/Patient", `{"resourceType":"Patient","gender":"female"}`).want(201).str("id")
	if d := r.next(); d.json["resourceId"] != id || d.json["event"] != "create" {
		t.Errorf("%s, want the one of the value set", d.body)
	}
	s.do("PATCH", "/Patient/"+id, `[{"op":"add","path":"/active","value":true}]`, "Content-Type", "application/json-patch+json").want(200)
	if d := r.next(); d.json["resourceId"] != id || d.json["event"] != "update" || d.json["versionId"] != "2" {
		t.Errorf("%s, want an update", d.body)
	}

	stream := s.stream("/Patient/$events")
	s.stores(`{"resourceType":"SearchParameter","id":"lively","url":"http://example.org/lively","name":"lively","status":"active","description":"x","code":"lively","base":["Patient"],"type":"token","expression":"Patient.active"}`)
	soon(t, "the index has the new parameter", func() bool {
		a := s.do("GET", "/Patient?lively=true", "")
		return a.status == 200 && fmt.Sprint(a.at("total")) == "1"
	})
	last := s.do("POST", "/Patient", patient("after")).want(201).str("id")
	if ev := stream.next(); !strings.Contains(ev.data, last) {
		t.Errorf("%+v, want Patient/%s: a reindex is no event", ev, last)
	}
}

// Contract, Notifications 2: resourceTrigger of topics: supportedInteraction, queryCriteria (previous,
// current, resultForCreate, resultForDelete, requireBoth), fhirPathCriteria; notificationShape with
// revInclude.
func TestTopicTriggers(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	// Each Observation o1 is created preliminary, made final, amended, and deleted.
	for i, c := range []struct{ name, trigger, want string }{
		{"every interaction", `{"resource":"Observation"}`, "create update update delete"},
		{"the canonical of the type", `{"resource":"http://hl7.org/fhir/StructureDefinition/Observation","supportedInteraction":["delete"]}`, "delete"},
		{"current", `{"resource":"Observation","queryCriteria":{"current":"status=final"}}`, "update"},
		{"current, a deletion that passes", `{"resource":"Observation","queryCriteria":{"previous":"status=amended","current":"status=final","resultForDelete":"test-passes","requireBoth":true}}`, "delete"},
		{"previous", `{"resource":"Observation","queryCriteria":{"previous":"status=preliminary"}}`, "update"},
		{"a creation that passes", `{"resource":"Observation","queryCriteria":{"previous":"status=amended","resultForCreate":"test-passes"}}`, "create delete"},
		{"a creation that fails", `{"resource":"Observation","queryCriteria":{"previous":"status:not=final","resultForCreate":"test-fails","current":"status=final,preliminary","requireBoth":true}}`, "update"},
		{"either", `{"resource":"Observation","queryCriteria":{"previous":"status=final","resultForCreate":"test-fails","current":"status=final","resultForDelete":"test-fails"}}`, "update update"},
		{"FHIRPath", `{"resource":"Observation","fhirPathCriteria":"%previous.status = 'preliminary' and %current.status = 'final'"}`, "update"},
		{"two triggers", `{"resource":"Observation","supportedInteraction":["create"]},{"resource":"Observation","supportedInteraction":["delete"]}`, "create delete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r := s.in(t), newReceiver(t)
			topic, code := fmt.Sprint("http://example.org/t", i), fmt.Sprint("c", i)
			s.do("POST", "/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"`+topic+`","status":"active","resourceTrigger":[`+c.trigger+
				`],"canFilterBy":[{"resource":"Observation","filterParameter":"code"}]}`).want(201)
			s.subscribe(`{"resourceType":"Subscription","status":"requested","topic":"` + topic + `","filterBy":[{"resourceType":"Observation","filterParameter":"code","value":"` + code +
				`"}],"channel":{"type":"rest-hook","endpoint":"` + r.url + `","payload":"application/fhir+json"}}`)
			for _, status := range []string{"preliminary", "final", "amended"} {
				s.do("PUT", "/Observation/"+code, fmt.Sprintf(`{"resourceType":"Observation","id":%q,"status":%q,"code":{"coding":[{"code":%q}]}}`, code, status, code))
			}
			s.do("DELETE", "/Observation/"+code, "").want(204)
			var got []string
			for range strings.Fields(c.want) {
				got = append(got, fmt.Sprint(r.next().json["event"]))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("%s, want %s", text, c.want)
			}
		})
	}
	const topic = "http://example.org/shape"
	s.do("POST", "/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"`+topic+`","status":"active","resourceTrigger":[{"resource":"Patient","supportedInteraction":["update"]}],
		"notificationShape":[{"resource":"Patient","revInclude":["Observation:subject"]}]}`).want(201)
	r := newReceiver(t)
	ig := "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"
	s.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"` + topic + `","channel":{"type":"rest-hook","endpoint":"` + r.url +
		`","payload":"application/fhir+json","_payload":{"extension":[{"url":"` + ig + `backport-payload-content","valueCode":"full-resource"}]}}}`)
	r.any()
	s.stores(`{"resourceType":"Patient","id":"shaped"}`, `{"resourceType":"Observation","id":"about","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/shaped"}}`,
		`{"resourceType":"Patient","id":"shaped","active":true}`)
	d := r.next()
	for !strings.Contains(string(d.body), "event-notification") {
		d = r.next()
	}
	if !strings.Contains(string(d.body), `"id":"about"`) || !strings.Contains(string(d.body), `"id":"shaped"`) {
		t.Errorf("%s, want the Patient and the Observation about it", d.body)
	}
}

// Contract, Notifications 2 and 4: the Backport IG's heartbeat period and timeout hold for the
// Subscription that has them.
func TestBackportHeartbeatAndTimeout(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) {
		c.Notifications.Webhook.HeartbeatIntervalSeconds, c.Notifications.Webhook.MaxRetries, c.Notifications.Webhook.TimeoutSeconds = 0, 1, 60
	})
	s.do("POST", "/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"http://example.org/t","status":"active","resourceTrigger":[{"resource":"Patient"}]}`).want(201)
	ig := "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"
	of := func(r *receiver, extension, value string) string {
		return `{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"http://example.org/t","channel":{"extension":[{"url":"` + ig + extension + `",` + value +
			`}],"type":"rest-hook","endpoint":"` + r.url + `","payload":"application/fhir+json","_payload":{"extension":[{"url":"` + ig +
			`backport-payload-content","valueCode":"full-resource"}]}}}`
	}
	beating, hanging := newReceiver(t), newReceiver(t)
	s.subscribe(of(beating, "backport-heartbeat-period", `"valueUnsignedInt":1`))
	if d := beating.any(); !strings.Contains(string(d.body), `"valueCode":"handshake"`) {
		t.Errorf("%s, want a handshake", d.body)
	}
	if d := beating.any(); d.json["resourceType"] != "Bundle" || d.json["type"] != "history" || !strings.Contains(string(d.body), `"valueCode":"heartbeat"`) {
		t.Errorf("%s, want a heartbeat of the IG", d.body)
	}
	id := s.subscribe(of(hanging, "backport-timeout", `"valueUnsignedInt":1`))
	hanging.any()
	release := make(chan struct{})
	defer close(release)
	hanging.says(func(delivery, http.ResponseWriter) { <-release })
	start := time.Now()
	s.do("POST", "/Patient", patient("x")).want(201)
	m := s.awaitStatus(id, "error")
	if text, _ := m["error"].(string); !strings.Contains(text, "no answer within 1s") {
		t.Errorf("the reason is %q after %s, want the timeout of one second", text, time.Since(start))
	}
}
