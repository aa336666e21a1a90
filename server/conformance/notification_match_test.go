package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract, Notifications 2: one read decides criteria on other resources for all events and subscriptions of a moment:
// of many subscriptions with chains, _has, and chains of chains, exactly those fire whose search finds the new
// version.
func TestManyCriteriaOfOtherResources(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	s.do("PUT", "/Organization/o", `{"resourceType":"Organization","id":"o","name":"Clinic"}`).want(201)
	s.do("PUT", "/Patient/a", `{"resourceType":"Patient","id":"a","name":[{"family":"F7"}],"gender":"female","managingOrganization":{"reference":"Organization/o"}}`).want(201)
	s.do("PUT", "/Patient/b", `{"resourceType":"Patient","id":"b","name":[{"family":"F8"}],"gender":"male"}`).want(201)
	socket := s.socket("")
	listen := make(map[string]string) // subscriptionId -> criteria
	criteria := []string{
		"subject:Patient.family=f7", "subject:Patient.organization.name=clinic", "subject:Patient.gender:not=male", "subject:Patient.family:missing=false",
		"subject:Patient._has:Observation:subject:code=known", "code=now&subject:Patient.family=f7,f9", "subject.gender=male",
		"_has:DiagnosticReport:result:status=final", "subject:Patient.birthdate=gt1900",
	}
	for i := range 150 {
		criteria = append(criteria, fmt.Sprintf("subject:Patient.family=f%d", 100+i))
	}
	for _, c := range criteria {
		socket.send(fmt.Sprintf(`{"type":"subscribe","resourceType":"Observation","events":["create"],"criteria":%q}`, c))
		listen[socket.json()["subscriptionId"].(string)] = c
	}
	observe := func(patient, code string) string {
		return s.do("POST", "/Observation", fmt.Sprintf(`{"resourceType":"Observation","status":"final","code":{"coding":[{"code":%q}]},"subject":{"reference":"Patient/%s"}}`, code, patient)).want(201).str("id")
	}
	observe("b", "known")
	var ids []string
	for range 3 {
		ids = append(ids, observe("a", "now"), observe("b", "now"))
	}
	want := make(map[string]bool)
	for _, c := range criteria {
		for _, id := range s.do("GET", "/Observation?_count=50&"+c, "").want(200).ids() {
			want[id+" "+c] = true
		}
	}
	socket.send(`{"type":"subscribe","resourceType":"Basic","events":["create"]}`)
	got := make(map[string]bool)
	for len(got) < len(want) {
		m := socket.json()
		switch m["type"] {
		case "error":
			t.Fatalf("%v", m)
		case "subscribed":
			continue
		}
		id, _ := m["resourceId"].(string)
		_, sub, _ := strings.Cut(fmt.Sprint(m["subscription"]), "/")
		found := id + " " + listen[sub]
		if got[found] || !want[found] {
			t.Errorf("%s fired (before: %t), the search finds it: %t", found, got[found], want[found])
		}
		got[found] = true
	}
	if len(ids) == 0 || len(want) < 20 {
		t.Errorf("only %d matches", len(want))
	}
}

// Contract, Notifications 2: expensive criteria are limited and reported: the Subscription goes off with the reason, a
// socket gets an error. Subscriptions without conditions on other resources do not wait.
func TestCostlyCriteria(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := startOn(t, database, quick, func(c *server.Config) { c.Notifications.Webhook.HeartbeatIntervalSeconds = 0 })
	costly, cheap := newReceiver(t), newReceiver(t)
	costlyID := s.subscribe(subscription("Patient?_content=match", costly.url))
	cheapID := s.subscribe(subscription("Patient?family=match", cheap.url))
	w := s.socket("")
	w.send(`{"type":"subscribe","resourceType":"Patient","criteria":"_content=match"}`)
	w.json()
	stream := s.stream("/Patient/$events?family=match")
	s.do("POST", "/Patient", patient("match")).want(201)
	costly.next()
	cheap.next()
	w.json()
	stream.next()

	// From now on the database takes a minute for it.
	sql(t, onDatabase(t, database), `CREATE OR REPLACE FUNCTION resource_body(stored bytea) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS
		$$ BEGIN PERFORM pg_sleep(60); RETURN '{}'; END $$`)
	start := time.Now()
	s.do("POST", "/Patient", patient("match")).want(201)
	cheap.next()
	stream.next()
	alone := time.Since(start)
	if st := s.do("GET", "/Subscription/"+costlyID, "").str("status"); st != "active" {
		t.Logf("the costly one is %s after %s: this machine is slow, and nothing is said about who waits", st, alone)
	}
	if m := s.awaitStatus(costlyID, "off"); !strings.Contains(fmt.Sprint(m["error"]), "took more than") {
		t.Errorf("the reason is %v", m["error"])
	}
	if st := s.do("GET", "/Subscription/"+costlyID+"/$status", "").want(200); st.str("status") != "off" || !strings.Contains(st.str("error"), "took more than") {
		t.Errorf("$status: %s", st.body)
	}
	for {
		m := w.json()
		if m["type"] == "error" {
			if m["code"] != "too-costly" {
				t.Errorf("%v", m)
			}
			break
		}
	}
	s.do("POST", "/Patient", patient("match")).want(201)
	cheap.next()
	stream.next()
	s.awaitStatus(cheapID, "active")
	if len(costly.got) > 0 {
		t.Errorf("delivered: %s", (<-costly.got).body)
	}
}

// Contract, Notifications 2 and 5: criteria mean what search means by them, also where a SearchParameter
// is changed while somebody listens; those that cannot be carried out any more are told of at once.
func TestCriteriaFollowSearchParameters(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.HeartbeatIntervalSeconds = 0 })
	parameter := func(url string) string {
		return fmt.Sprintf(`{"resourceType":"SearchParameter","id":"nick","url":"http://example.org/SearchParameter/nick","name":"nick","status":"active","description":"x",
			"code":"nick","base":["Basic"],"type":"string","expression":"Basic.extension.where(url='%s').value.ofType(string)"}`, url)
	}
	basic := func(url string) string {
		return s.post("/Basic", fmt.Sprintf(`{"resourceType":"Basic","code":{"text":"x"},"extension":[{"url":%q,"valueString":"joe"}]}`, url)).want(201).str("id")
	}
	s.stores(parameter("http://example.org/one"))
	r := newReceiver(t)
	id := s.subscribe(subscription("Basic?nick=joe", r.url))
	w := s.socket("")
	w.send(`{"type":"subscribe","resourceType":"Basic","events":["create"],"criteria":"nick=joe","ref":"mine"}`)
	if m := w.json(); m["type"] != "subscribed" {
		t.Fatal(m)
	}
	e := s.stream("/Basic/$events?nick=joe")
	told := func(what, id string) {
		t.Helper()
		if d := r.next(); d.json["resourceId"] != id {
			t.Errorf("%s: the webhook is told of %v, want %s", what, d.json["resourceId"], id)
		}
		if m := w.json(); m["resourceId"] != id {
			t.Errorf("%s: the WebSocket is told of %v, want %s", what, m, id)
		}
		if ev := e.next(); !strings.Contains(ev.data, id) {
			t.Errorf("%s: the stream is told of %+v, want %s", what, ev, id)
		}
	}
	one := basic("http://example.org/one")
	told("as it was", one)
	s.stores(parameter("http://example.org/two"))
	basic("http://example.org/one")
	told("with another expression", basic("http://example.org/two"))

	s.do("DELETE", "/SearchParameter/nick", "").want(204)
	if m := w.json(); m["type"] != "error" || m["ref"] != "mine" || !strings.Contains(fmt.Sprint(m["message"]), "nick") {
		t.Errorf("without the parameter: %v, want an error", m)
	}
	select {
	case ev, more := <-e.events:
		if more {
			t.Errorf("without the parameter the stream has %+v, want its end", ev)
		}
	case <-time.After(patience):
		t.Error("without the parameter the stream goes on")
	}
	if text := fmt.Sprint(s.awaitStatus(id, "error")["error"]); !strings.Contains(text, "nick") {
		t.Errorf("Subscription.error is %q", text)
	}
	s.stores(parameter("http://example.org/one"))
	again := s.get("/Subscription/" + id).want(200).json.(map[string]any)
	again["status"] = "requested"
	body, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	s.do("PUT", "/Subscription/"+id, string(body)).want(200)
	s.awaitStatus(id, "active")
	last := basic("http://example.org/one")
	if d := r.next(); d.json["resourceId"] != last {
		t.Errorf("with the parameter again: %v, want %s", d.json["resourceId"], last)
	}
}

// Contract, Notifications 3: a Subscription in error goes off at its end as an active one does.
func TestErrorLastsUntilTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t, quick, func(c *server.Config) { c.Notifications.Webhook.MaxRetries = 1 })
	r := newReceiver(t)
	end := time.Now().Add(5 * time.Second).UTC().Truncate(time.Second)
	id := s.subscribe(strings.Replace(subscription("Patient?", r.url), `"reason"`, `"end":"`+end.Format(time.RFC3339)+`","reason"`, 1))
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(500) })
	s.do("POST", "/Patient", patient("x")).want(201)
	s.awaitStatus(id, "off")
	// Without the end it would be looked at again a minute after it went into error.
	at, err := time.Parse(time.RFC3339, s.get("/Subscription/"+id).want(200).str("meta.lastUpdated"))
	if err != nil || at.Sub(end) > 40*time.Second {
		t.Errorf("off at %v (%v), want soon after %v", at, err, end)
	}
}
