package conformance

import (
	"net/http"
	"strings"
	"testing"
)

// deliveryOf is the only delivery of a Subscription.
func (s *service) deliveryOf(id string) map[string]any {
	s.t.Helper()
	a := s.do("GET", s.server()+"/admin/notifications/deliveries?subscription="+id, "").want(200)
	if a.len("deliveries") != 1 {
		s.t.Fatalf("%d deliveries of %s, want one: %s", a.len("deliveries"), id, a.body)
	}
	return a.at("deliveries.0").(map[string]any)
}

// Contract, Notifications 4: 410 Gone goes straight to dead letter and off. The dead letter is written
// before the Subscription is off, which removes what waits, and $status keeps the count until a new
// start.
func TestGoneLeavesADeadLetter(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	for range 5 {
		r.says(nil)
		id := s.subscribe(subscription("Patient?", r.url))
		r.any()
		r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) })
		s.do("POST", "/Patient", patient("one")).want(201)
		r.next()
		s.awaitStatus(id, "off")
		if d := s.deliveryOf(id); d["status"] != "failed" || len(d["attempts"].([]any)) != 1 {
			t.Fatalf("%v, want a dead letter after one attempt", d)
		}
		if got := s.do("GET", "/Subscription/"+id+"/$status", "").want(200).str("eventsSinceSubscriptionStart"); got != "1" {
			t.Errorf("%s events since the start, want 1", got)
		}
		r.says(nil)
		s.putSubscription(id, func(m map[string]any) { m["status"] = "requested" })
		s.awaitStatus(id, "active")
		if d := r.any(); d.json["type"] != "handshake" || d.json["eventsSinceSubscriptionStart"] != "0" {
			t.Errorf("%s, want a handshake that begins to count", d.body)
		}
		s.do("DELETE", "/Subscription/"+id, "").want(204)
	}
}

// Contract, Notifications 4: a redelivered dead letter is sent at once, also while its Subscription is in error, which
// ends when it arrives. If its Subscription is deleted, the answer is 409, and it stays a dead letter.
func TestRedeliveryInError(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	id := s.subscribe(subscription("Patient?", r.url))
	r.any()
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
	s.do("POST", "/Patient", patient("one")).want(201)
	first := r.next().json["id"]
	s.awaitStatus(id, "error")
	d := s.deliveryOf(id)
	if d["status"] != "failed" {
		t.Fatalf("the Subscription is in error, and its delivery is %v", d["status"])
	}
	for range len(d["attempts"].([]any)) - 1 {
		r.next()
	}
	r.says(nil)
	s.do("POST", s.server()+"/admin/notifications/deliveries/"+d["id"].(string)+"/redeliver", "").want(202).equal("id", d["id"].(string))
	if d := r.next(); d.json["id"] != first {
		t.Errorf("redelivered %v, want %v", d.json["id"], first)
	}
	s.awaitStatus(id, "active")
	soon(t, "delivered", func() bool { return s.deliveryOf(id)["status"] == "delivered" })
	s.do("DELETE", "/Subscription/"+id, "").want(204)
	s.do("POST", s.server()+"/admin/notifications/deliveries/"+d["id"].(string)+"/redeliver", "").issue(409, "conflict", "is deleted")
	if got := s.deliveryOf(id)["status"]; got != "delivered" {
		t.Errorf("it is %v now", got)
	}
}

// Contract, Notifications 4: X-Notification-Id is the same at each attempt, of a handshake too.
func TestHandshakeKeepsItsID(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
	id := s.do("POST", "/Subscription", subscription("Patient?", r.url)).want(201).str("id")
	ids := make(map[string]bool)
	for range 4 {
		ids[r.any().header.Get("X-Notification-Id")] = true
	}
	if len(ids) != 1 || ids[""] {
		t.Errorf("the attempts of one handshake have the ids %v", ids)
	}
	s.awaitStatus(id, "error")
	r.says(nil)
	s.putSubscription(id, func(m map[string]any) { m["status"] = "requested" })
	s.awaitStatus(id, "active")
	if again := r.any().header.Get("X-Notification-Id"); ids[again] {
		t.Error("the next handshake has the id of the first")
	}
}

// Contract, Notifications 5: an unreadable message is answered with an error that has the message's ref and JSON's
// words, and the connection stays.
func TestSocketErrorsBearTheRef(t *testing.T) {
	t.Parallel()
	w := start(t, notifying).socket("")
	for _, c := range []struct{ message, want string }{
		{`{"type":"subscribe","events":"create","ref":"one"}`, "events is JSON of kind string: expected array"},
		{`{"type":5,"ref":"two"}`, "type is JSON of kind number: expected string"},
		{`{"type":"subscribe","resourceType":{},"ref":"three"}`, "resourceType is JSON of kind object: expected string"},
		{`[]`, "it is JSON of kind array: expected object"},
	} {
		w.send(c.message)
		m := w.json()
		text, _ := m["message"].(string)
		if m["type"] != "error" || m["code"] != "structure" || !strings.Contains(text, c.want) || strings.Contains(text, "Go ") {
			t.Errorf("%s: %v", c.message, m)
		}
		if ref, ok := m["ref"].(string); ok != strings.Contains(c.message, "ref") || ok && !strings.Contains(c.message, ref) {
			t.Errorf("%s has the ref %v", c.message, m["ref"])
		}
	}
}
