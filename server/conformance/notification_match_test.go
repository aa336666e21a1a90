package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract, Notifications 2: what needs other resources is decided by what is read once for all events
// and subscriptions of a moment: of many subscriptions with chains, _has, and chains of chains, those
// fire whose search finds the new version, and no other.
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

// Contract, Notifications 2: criteria that cost seconds are bounded and told: the Subscription goes off
// with the reason, a socket gets an error. Those who are not about other resources do not wait.
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
	if m := s.awaitStatus(costlyID, "off"); !strings.Contains(fmt.Sprint(m["error"]), "cost more than") {
		t.Errorf("the reason is %v", m["error"])
	}
	if st := s.do("GET", "/Subscription/"+costlyID+"/$status", "").want(200); st.str("status") != "off" || !strings.Contains(st.str("error"), "cost more than") {
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
