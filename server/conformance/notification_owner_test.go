package conformance

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"kiln/server"
	"kiln/server/store/storetest"
)

// Contract, Notifications 2, Access: an event is delivered only if the owner may read the resource now. While a policy
// denies it, it is no event for the owner. If a policy comes between the event and its delivery, the delivery is
// withheld, the log says so, and its number is used up. Other resources, and events after the policies have gone, are
// delivered. If a client loses scopes, or a user is disabled, their Subscriptions go off.
func TestDeliveryFollowsTheOwnersRights(t *testing.T) {
	t.Parallel()
	s := withAuthorization(t, notifying, func(c *server.Config) {
		c.Auth.Bootstrap.Clients = append(c.Auth.Bootstrap.Clients, map[string]any{"clientId": "narrow", "name": "Narrow", "confidential": true, "clientSecret": clientSecret,
			"grantTypes": []any{"client_credentials"}, "scopes": []any{"system/*.cruds"}})
		c.Auth.Bootstrap.Clients[0]["scopes"] = []any{"openid fhirUser offline_access user/*.cruds"}
	})
	backend := s.bearer(s.backendToken("backend", "system/*.cruds"))
	admin := s.bearer(s.backendToken("operator", "admin"))
	narrow := s.bearer(s.backendToken("narrow", "system/*.cruds"))
	r := newReceiver(t)
	id := narrow.subscribe(subscription("Observation?", r.url))
	patientsID := narrow.subscribe(subscription("Patient?", r.url))
	observe := func(status string) string {
		return backend.do("POST", "/Observation", `{"resourceType":"Observation","status":"`+status+`","code":{"text":"x"}}`).want(201).str("id")
	}
	first := observe("final")
	if d := r.next(); d.json["resourceId"] != first {
		t.Fatalf("%s, want the Observation", d.body)
	}

	admin.admin("PUT", "/admin/policies/hide", `{"matcher":{"clients":["narrow"]},"effect":"deny","condition":"Observation?status=preliminary"}`).want(201)
	hidden := observe("preliminary")
	shown := backend.do("POST", "/Patient", patient("shown")).want(201).str("id")
	if d := r.next(); d.json["resourceId"] != shown {
		t.Errorf("%s, want Patient/%s", d.body, shown)
	}
	other := observe("final")
	if d := r.next(); d.json["resourceId"] != other {
		t.Errorf("%s, want Observation/%s", d.body, other)
	}
	counted := func(want string) {
		t.Helper()
		if n := backend.get("/Subscription/" + id + "/$status").str("eventsSinceSubscriptionStart"); n != want {
			t.Errorf("%s events, want %s", n, want)
		}
	}
	counted("2")
	deliveries := func() *answer {
		return admin.admin("GET", "/admin/notifications/deliveries?subscription="+id, "").want(200)
	}
	if a := deliveries(); strings.Contains(string(a.body), hidden) {
		t.Errorf("Observation/%s is among the deliveries: %s", hidden, a.body)
	}

	arrived, proceed := make(chan bool, 10), make(chan bool)
	r.says(func(_ delivery, w http.ResponseWriter) {
		arrived <- true
		<-proceed
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	late := observe("amended")
	<-arrived
	admin.admin("PUT", "/admin/policies/later", `{"matcher":{"clients":["narrow"]},"effect":"deny","condition":"Observation?status=amended"}`).want(201)
	close(proceed)
	soon(t, "the log says that it was withheld", func() bool {
		for _, d := range deliveries().at("deliveries").([]any) {
			d := d.(map[string]any)
			if attempts := d["attempts"].([]any); d["resourceId"] == late && len(attempts) > 1 {
				a := attempts[len(attempts)-1].(map[string]any)
				reason, _ := a["error"].(string)
				return a["status"] == nil && strings.Contains(reason, "may not read")
			}
		}
		return false
	})
	r.says(nil)
	r.next() // the attempt that was answered 503
	counted("3")
	for _, name := range []string{"hide", "later"} {
		admin.admin("DELETE", "/admin/policies/"+name, "").want(204)
	}
	again := observe("preliminary")
	if d := r.next(); d.json["resourceId"] != again {
		t.Errorf("%s, want Observation/%s: the policy has gone", d.body, again)
	}

	client := admin.admin("GET", "/admin/clients/narrow", "").want(200)
	admin.admin("PUT", "/admin/clients/narrow", strings.Replace(string(client.body), `"system/*.cruds"`, `"system/Patient.rs"`, 1)).want(200)
	for _, id := range []string{id, patientsID} {
		backend.awaitStatus(id, "off")
	}

	// A user.
	p := s.person("doctor")
	p.visit("scope", "openid fhirUser offline_access user/*.cruds")
	p.login()
	p.allow()
	doctor := s.bearer(p.tokens().str("access_token"))
	mine := newReceiver(t)
	mineID := doctor.subscribe(subscription("Patient?", mine.url))
	backend.do("POST", "/Patient", patient("before")).want(201)
	mine.next()
	user := admin.admin("GET", "/admin/users/doctor", "").want(200)
	admin.admin("PUT", "/admin/users/doctor", strings.Replace(string(user.body), `"active":true`, `"active":false`, 1)).want(http.StatusOK)
	backend.awaitStatus(mineID, "off")
	if reason := backend.do("GET", "/Subscription/"+mineID, "").str("error"); !strings.Contains(reason, "revoked") {
		t.Errorf("the reason is %q", reason)
	}
	last := newReceiver(t)
	backend.subscribe(subscription("Patient?", last.url))
	backend.do("POST", "/Patient", patient("after")).want(201)
	last.next()
	for len(mine.got) > 0 {
		if d := <-mine.got; strings.Contains(string(d.body), "after") {
			t.Errorf("delivered to a user who is disabled: %s", d.body)
		}
	}
}

// Contract, Notifications 2, Access: an event is matched, counted and numbered only if the owner may see its resource. A
// hidden resource leaves no gap, and no expression reveals it.
func TestHiddenEventsAreNotCounted(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	back := s.as(systemClient("system/*.cruds"))
	owner := s.as(claims{Subject: "dr", Client: "app", User: "Practitioner/dr",
		Scope: "user/Subscription.cruds user/SubscriptionTopic.cruds user/Observation.rs?category=laboratory"})
	put := func(id, category, value string) {
		back.put("/Observation/"+id, `{"resourceType":"Observation","id":"`+id+`","status":"final","code":{"text":"x"},"valueString":"`+value+`",
			"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"`+category+`"}]}]}`)
	}
	triggers := []struct {
		name, trigger, want string
		r                   *receiver
		ids                 []string
	}{
		{name: "no query", trigger: ``, want: "PUT POST DELETE PUT PUT"},
		{name: "test-passes", trigger: `,"queryCriteria":{"previous":"status=amended","resultForCreate":"test-passes","current":"status=amended","resultForDelete":"test-passes"}`, want: "POST DELETE"},
		{name: "FHIRPath", trigger: `,"fhirPathCriteria":"Observation.value.startsWith('HIV')"`, want: "POST DELETE PUT"},
		{name: "FHIRPath of the version before", trigger: `,"fhirPathCriteria":"%previous.value.startsWith('HIV') and %current.exists()"`, want: "PUT"},
		{name: "criteria", trigger: `,"queryCriteria":{"current":"status=final"}`, want: "PUT POST DELETE PUT PUT"},
	}
	for i := range triggers {
		c := &triggers[i]
		topic := fmt.Sprint("http://example.org/counted", i)
		owner.post("/SubscriptionTopic", `{"resourceType":"SubscriptionTopic","url":"`+topic+`","status":"active","resourceTrigger":[{"resource":"Observation"`+c.trigger+`}]}`).want(201)
		c.r = newReceiver(t)
		c.ids = append(c.ids, owner.subscribe(backportSubscription(topic, c.r.url)),
			owner.subscribe(`{"resourceType":"Subscription","status":"requested","topic":"`+topic+`","channel":{"type":"websocket"}}`))
	}
	// Hidden resources, and resources hidden earlier.
	for _, id := range []string{"h1", "h2", "h3"} {
		put(id, "vital-signs", "HIV positive")
		put(id, "vital-signs", "HIV negative")
		back.do("DELETE", "/Observation/"+id, "").want(204)
	}
	put("was", "vital-signs", "HIV positive")
	put("was", "laboratory", "nothing")
	put("was", "vital-signs", "HIV positive")
	back.do("DELETE", "/Observation/was", "").want(204)
	// Visible resources.
	put("seen", "laboratory", "HIV negative")
	back.do("DELETE", "/Observation/seen", "").want(204)
	put("last", "vital-signs", "x")
	put("last", "laboratory", "HIV")
	put("last", "laboratory", "x")
	number := regexp.MustCompile(`"event-number","valueString":"(\d+)"`)
	for _, c := range triggers {
		t.Run(c.name, func(t *testing.T) {
			want := strings.Fields(c.want)
			for i, method := range want {
				d := c.r.next()
				for !strings.Contains(string(d.body), "event-notification") {
					d = c.r.next()
				}
				if n := number.FindStringSubmatch(string(d.body)); n == nil || n[1] != fmt.Sprint(i+1) || !strings.Contains(string(d.body), `"method":"`+method+`"`) {
					t.Errorf("event number %v, want %d of %s: %s", n, i+1, method, d.body)
				}
			}
			for _, id := range c.ids {
				a := owner.get("/Subscription/" + id + "/$status").want(200)
				n := a.str("eventsSinceSubscriptionStart")
				if a.str("resourceType") == "Bundle" { // of a Backport Subscription
					n = fmt.Sprint(parametersOf(entriesOf(a.json)[0])["events-since-subscription-start"][0])
				}
				if n != fmt.Sprint(len(want)) {
					t.Errorf("$status has %s events, want %d", n, len(want))
				}
			}
		})
	}
}

// Contract, Notifications 2, Access: the event's own index shows whether the owner may see it, also while the index of
// stored resources is being built, which hides resources from granular scopes and policies.
func TestOwnersHearWhileAnIndexIsBuilt(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	old := authorizedOn(t, url, notifying)
	put := func(s *service, id, category string) {
		t.Helper()
		s.as(systemClient("system/*.cruds")).put("/Observation/"+id, `{"resourceType":"Observation","id":"`+id+`","status":"final","code":{"text":"x"},
			"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"`+category+`"}]}]}`).want(201)
	}
	put(old, "before", "vital-signs")
	old.as(systemClient("admin")).admin("PUT", "/admin/policies/hide", `{"matcher":{"clients":["narrow"]},"effect":"deny","condition":"Observation?category=vital-signs"}`).want(201)
	owners := map[string]claims{
		"a granular scope": {Subject: "dr", Client: "app", User: "Practitioner/dr", Scope: "user/Subscription.cruds user/Observation.rs?category=laboratory"},
		"a policy":         {Subject: "narrow", Client: "narrow", Scope: "system/*.cruds"},
	}
	receivers := make(map[string]*receiver)
	for name, owner := range owners {
		receivers[name] = newReceiver(t)
		old.as(owner).subscribe(subscription("Observation?", receivers[name].url))
	}
	old.stop()
	conn, older := onDatabase(t, url), onDatabase(t, url)
	sql(t, conn, `UPDATE index_fingerprint SET fingerprint = fingerprint + 1 WHERE resource_type = 'Observation'`, takeOver)
	sql(t, older, "BEGIN", "SELECT pg_current_xact_id()") // the work waits for it
	s := authorizedOn(t, url, notifying)
	building := func() bool {
		return strings.Contains(s.as(systemClient("system/*.cruds")).get("/Observation?category=laboratory").want(200).warning(), "still being built")
	}
	soon(t, "an index that is built", building)
	// Events wait for transactions that are older too: from now on the work waits for one that does not come.
	sql(t, conn, `UPDATE reindex_job SET horizon = '9223372036854775807'`)
	sql(t, older, "COMMIT")

	put(s, "hidden", "vital-signs")
	put(s, "laboratory", "laboratory")
	for name, r := range receivers {
		if d := r.next(); d.json["resourceId"] != "laboratory" {
			t.Errorf("%s: %s, want Observation/laboratory", name, d.body)
		}
	}
	if !building() {
		t.Error("the index was built meanwhile")
	}
}

// Contract, Notifications 2, Access: criteria on other resources see only resources that the owner may read now, also
// when policies come and go after the Subscription.
func TestCriteriaOfHiddenResources(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	admin, back := s.as(systemClient("admin")), s.as(systemClient("system/*.cruds"))
	back.put("/Patient/p", `{"resourceType":"Patient","id":"p","name":[{"family":"Secret"}]}`).want(201)
	r := newReceiver(t)
	narrow := s.as(claims{Subject: "narrow", Client: "narrow", Scope: "system/*.cruds"})
	narrow.subscribe(subscription("Observation?subject:Patient.family=secret", r.url))
	// Also by a chain, so that one reader of the log comes to both in turn.
	back.put("/Patient/mark", `{"resourceType":"Patient","id":"mark","name":[{"family":"Mark"}]}`).want(201)
	marks := newReceiver(t)
	narrow.subscribe(subscription("Basic?subject:Patient.family=mark", marks.url))
	observe := func(id string) {
		back.put("/Observation/"+id, `{"resourceType":"Observation","id":"`+id+`","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p"}}`).want(201)
	}
	heard := func(id string) {
		t.Helper()
		if d := r.next(); d.json["resourceId"] != id {
			t.Errorf("%s, want Observation/%s", d.body, id)
		}
	}
	observe("before")
	heard("before")
	admin.admin("PUT", "/admin/policies/hide", `{"matcher":{"clients":["narrow"]},"effect":"deny","condition":"Patient?family=secret"}`).want(201)
	observe("hidden")
	back.post("/Basic", `{"resourceType":"Basic","code":{"text":"x"},"subject":{"reference":"Patient/mark"}}`).want(201)
	marks.next()
	admin.admin("DELETE", "/admin/policies/hide", "").want(204)
	observe("after")
	heard("after")
}

// Contract, Notifications 2 and 5, Access: a socket that is bound to somebody else's Subscription hears of what
// its own token may see, chains included, also after the Subscription has changed.
func TestBoundSocketKeepsToItsRights(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	back := s.as(systemClient("system/*.cruds"))
	narrow := claims{Subject: "n", Client: "n", Scope: "system/Subscription.rs system/Observation.rs"}
	hidden := back.post("/Patient", patient("Hidden")).want(201).str("id")
	member := back.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"coding":[{"code":"z"}]}}`).want(201).str("id")
	w := s.socket("?token=" + strings.TrimPrefix(narrow.token(), "Bearer "))
	var ids []string
	for _, criteria := range []string{"Observation?subject:Patient.family=Hidden", "Observation?has-member:Observation.code=z"} {
		id := back.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"` + criteria + `","channel":{"type":"websocket"}}`)
		w.send("bind " + id)
		if text := w.text(); text != "bound "+id {
			t.Fatalf("%q, want bound", text)
		}
		ids = append(ids, id)
	}
	for range 2 {
		for _, rest := range []string{`"subject":{"reference":"Patient/` + hidden + `"}`, `"hasMember":[{"reference":"Observation/` + member + `"}]`} {
			back.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},`+rest+`}`).want(201)
		}
		if text := w.text(); text != "ping "+ids[1] {
			t.Errorf("%q, want that of the chain to an Observation alone", text)
		}
		back.do("PATCH", "/Subscription/"+ids[0], `[{"op":"replace","path":"/reason","value":"again"}]`, "Content-Type", "application/json-patch+json").want(200)
	}
}
