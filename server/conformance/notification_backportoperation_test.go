package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"kiln/server"
	"kiln/server/store/storetest"
)

// parametersOf are the values of Parameters by name.
func parametersOf(resource any) map[string][]any {
	out := make(map[string][]any)
	m, _ := resource.(map[string]any)
	list, _ := m["parameter"].([]any)
	for _, p := range list {
		p := p.(map[string]any)
		name := p["name"].(string)
		for key, v := range p {
			if key != "name" {
				out[name] = append(out[name], v)
			}
		}
	}
	return out
}

// entriesOf are the resources of a Bundle.
func entriesOf(bundle any) []any {
	m, _ := bundle.(map[string]any)
	var out []any
	list, _ := m["entry"].([]any)
	for _, e := range list {
		out = append(out, e.(map[string]any)["resource"])
	}
	return out
}

// Contract, Notifications 3: $status is the specification's SubscriptionStatus for a plain Subscription. It is
// a searchset of Parameters for a Backport Subscription, and on the type for all.
func TestBackportStatus(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	id := s.subscribe(backportSubscription("http://example.org/encounters", r.url))
	plain := s.subscribe(subscription("Encounter?", r.url))
	s.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	soon(t, "the event", func() bool {
		return strings.Contains(string(s.get("/Subscription/"+id+"/$status").body), `"valueString":"1"`)
	})
	for path, want := range map[string]int{"/Subscription/" + id + "/$status": 1, "/Subscription/$status": 2, "/Subscription/$status?id=" + id: 1, "/Subscription/$status?id=" + id + "," + plain + "&status=active": 2} {
		a := s.get(path).want(200)
		list := entriesOf(a.json)
		if a.str("resourceType") != "Bundle" || a.str("type") != "searchset" || len(list) != want || fmt.Sprint(a.at("total")) != fmt.Sprint(want) {
			t.Errorf("%s: %s", path, a.body)
			continue
		}
		for i, resource := range list {
			p := parametersOf(resource)
			if a.str(fmt.Sprintf("entry.%d.resource.meta.profile.0", i)) != backportIG+"backport-subscription-status-r4" || !strings.HasPrefix(a.str(fmt.Sprintf("entry.%d.fullUrl", i)), "urn:uuid:") ||
				fmt.Sprint(p["type"]) != "[query-status]" || fmt.Sprint(p["status"]) != "[active]" || a.str(fmt.Sprintf("entry.%d.search.mode", i)) != "match" {
				t.Errorf("%s: %s", path, a.body)
			}
			reference := p["subscription"][0].(map[string]any)["reference"].(string)
			topic := "[http://example.org/encounters]"
			if strings.HasSuffix(reference, "/Subscription/"+plain) {
				topic = "[]"
			}
			if !strings.HasPrefix(reference, "http") || fmt.Sprint(p["topic"]) != topic {
				t.Errorf("%s: the status of %s has the topic %v", path, reference, p["topic"])
			}
		}
	}
	if a := s.get("/Subscription/" + plain + "/$status").want(200); a.str("resourceType") != "SubscriptionStatus" || a.str("subscription") != "Subscription/"+plain {
		t.Errorf("of a plain one: %s", a.body)
	}
	r.says(func(_ delivery, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) })
	s.put("/Encounter/e", encounter("e", "a", "finished")).want(200)
	s.awaitStatus(id, "off")
	if p := parametersOf(entriesOf(s.get("/Subscription/" + id + "/$status").want(200).json)[0]); fmt.Sprint(p["status"]) != "[off]" || !strings.Contains(fmt.Sprint(p["error"]), "410 Gone") {
		t.Errorf("$status of one that is off: %v", p)
	}
}

// Contract, Notifications 4: a Backport Subscription has heartbeats only where it names a period.
func TestBackportHeartbeatNeedsAPeriod(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	s, r := startOn(t, url, quick, func(c *server.Config) { c.Notifications.Webhook.HeartbeatIntervalSeconds = 3600 }), newReceiver(t)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	without := s.subscribe(backportSubscription("http://example.org/encounters", r.url))
	with := s.subscribe(strings.Replace(backportSubscription("http://example.org/encounters", r.url), `"type":"rest-hook"`,
		`"type":"rest-hook","extension":[{"url":"`+backportIG+`backport-heartbeat-period","valueUnsignedInt":600}]`, 1))
	plain := s.subscribe(subscription("Encounter?", r.url))
	conn := onDatabase(t, url)
	for id, want := range map[string]bool{without: false, with: true, plain: true} {
		var due bool
		if err := conn.QueryRow(t.Context(), `SELECT due IS NOT NULL FROM notification_subscription WHERE id = $1`, id).Scan(&due); err != nil || due != want {
			t.Errorf("Subscription/%s has a heartbeat: %v %v, want %v", id, due, err, want)
		}
	}
}

// Contract, Notifications 2: R4B's example of a topic and the example of the Backport IG can be stored and
// subscribed to. Notifications leave out parameters that R4 lacks.
func TestOfficialTopics(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	for _, topic := range []string{
		`{"resourceType":"SubscriptionTopic","id":"admission","url":"http://example.org/FHIR/R4B/SubscriptionTopic/admission","title":"admission","status":"active","description":"Example admission topic",
			"resourceTrigger":[{"description":"Encounter resource moving to state 'in-progress'","resource":"http://hl7.org/fhir/StructureDefinition/Encounter","supportedInteraction":["create","update"],
				"queryCriteria":{"previous":"status:not=in-progress","resultForCreate":"test-passes","current":"status=in-progress","resultForDelete":"test-fails","requireBoth":true},
				"fhirPathCriteria":"%previous.status!='in-progress' and %current.status='in-progress'"}],
			"eventTrigger":[{"description":"Patient admission is covered by HL7v2 ADT^A01","event":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v2-0003","code":"A01","display":"ADT/ACK - Admit/visit notification"}]},
				"resource":"http://hl7.org/fhir/StructureDefinition/Encounter"}],
			"canFilterBy":[{"description":"Matching based on the Patient","resource":"Encounter","filterParameter":"patient","modifier":["=","in","not-in"]}],
			"notificationShape":[{"resource":"Encounter","include":["Encounter:patient","Encounter:practitioner","Encounter:service-provider","Encounter:account","Encounter:diagnosis","Encounter:observation","Encounter:location"]}]}`,
		`{"resourceType":"SubscriptionTopic","id":"r4b-encounter-complete","url":"http://hl7.org/SubscriptionTopic/encounter-complete","version":"1.2.0","title":"Encounter complete","status":"active",
			"resourceTrigger":[{"description":"Triggered when an encounter is completed","resource":"http://hl7.org/fhir/StructureDefinition/Encounter","supportedInteraction":["create","update"],
				"queryCriteria":{"previous":"status:not=finished","resultForCreate":"test-passes","current":"status=finished","resultForDelete":"test-fails","requireBoth":true},
				"fhirPathCriteria":"(%previous.id.empty() or (%previous.status != 'finished')) and (%current.status = 'finished')"}],
			"canFilterBy":[{"description":"Exact match to a patient resource","filterParameter":"patient","modifier":["="]}],
			"notificationShape":[{"resource":"Encounter","include":["Encounter:patient&iterate=Patient.link","Encounter:observation"]}]}`,
	} {
		a := s.post("/SubscriptionTopic", topic).want(201)
		s.subscribe(backportSubscription(a.str("url"), r.url))
		r.any()
	}
	s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	s.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	for _, status := range []string{"in-progress", "finished"} {
		s.put("/Encounter/e", encounter("e", "a", status)).want(200)
		if d := r.next(); !strings.Contains(string(d.body), `"status":"`+status+`"`) || !strings.Contains(string(d.body), `"resourceType":"Patient"`) {
			t.Errorf("%s: %s", status, d.body)
		}
	}
}

// Contract, Notifications 2: /metadata names the Backport IG, its profile and the topics in force.
func TestTopicDiscovery(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	s.get("/metadata").want(200)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	s.post("/SubscriptionTopic", strings.NewReplacer(`"id":"topic",`, "", "encounters", "old", `"active"`, `"retired"`).Replace(encounterTopic)).want(201)
	topics := func() string {
		for _, r := range s.get("/metadata").want(200).at("rest.0.resource").([]any) {
			m := r.(map[string]any)
			if m["type"] != "Subscription" {
				continue
			}
			if !strings.Contains(fmt.Sprint(m["supportedProfile"]), backportIG+"backport-subscription") {
				t.Errorf("supportedProfile: %v", m["supportedProfile"])
			}
			var list []string
			extensions, _ := m["extension"].([]any)
			for _, x := range extensions {
				if x := x.(map[string]any); x["url"] == backportIG+"capabilitystatement-subscriptiontopic-canonical" {
					list = append(list, x["valueCanonical"].(string))
				}
			}
			return strings.Join(list, " ")
		}
		return "no Subscription"
	}
	if got := topics(); got != "http://example.org/encounters" {
		t.Errorf("topics: %s", got)
	}
	if a := s.get("/metadata"); !strings.Contains(fmt.Sprint(a.at("instantiates")), "http://hl7.org/fhir/uv/subscriptions-backport/CapabilityStatement/backport-subscription-server-r4") {
		t.Errorf("instantiates: %v", a.at("instantiates"))
	}
	s.do("DELETE", "/SubscriptionTopic/topic", "")
	if got := topics(); got != "" {
		t.Errorf("topics after the deletion: %s", got)
	}
	if a := s.post("/CapabilityStatement/$validate", string(s.get("/metadata").body)).want(200); strings.Contains(string(a.body), "subscriptiontopic-canonical") {
		t.Errorf("%s", a.body)
	}
}

// Contract, Notifications 3: $events of a Subscription returns its events by their numbers, at the content that
// is asked for, to its owner alone.
func TestBackportEvents(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	owner, other := s.as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"}), s.as(claims{Subject: "two", Client: "two", Scope: "system/*.cruds"})
	r := newReceiver(t)
	owner.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	hook := owner.subscribe(backportSubscription("http://example.org/encounters", r.url))
	socket := owner.subscribe(strings.Replace(backportSubscription("http://example.org/encounters", ""), `"type":"rest-hook","endpoint":""`, `"type":"websocket"`, 1))
	for _, id := range []string{"e1", "e2", "e3"} {
		owner.put("/Encounter/"+id, encounter(id, "a", "planned")).want(201)
	}
	for _, id := range []string{hook, socket} {
		path := "/Subscription/" + id + "/$events"
		soon(t, "three events", func() bool { return len(entriesOf(owner.get(path).json)) == 4 })
		a := owner.get(path + "?eventsSinceNumber=2&eventsUntilNumber=2").want(200)
		p := parametersOf(entriesOf(a.json)[0])
		if a.str("type") != "history" || len(entriesOf(a.json)) != 2 || fmt.Sprint(p["type"]) != "[query-event]" || fmt.Sprint(p["events-since-subscription-start"]) != "[3]" ||
			len(p["notification-event"]) != 1 || a.str("entry.1.resource.id") != "e2" || a.str("entry.1.request.method") != "POST" {
			t.Errorf("%s", a.body)
		}
		if a := owner.get(path + "?content=id-only").want(200); len(a.at("entry").([]any)) != 4 || a.at("entry.1.resource") != nil || !strings.HasSuffix(a.str("entry.3.fullUrl"), "/Encounter/e3") {
			t.Errorf("id-only: %s", a.body)
		}
		if a := owner.get(path + "?content=empty").want(200); len(a.at("entry").([]any)) != 1 || strings.Contains(string(a.body), `"topic"`) || strings.Contains(string(a.body), "focus") {
			t.Errorf("empty: %s", a.body)
		}
		owner.post(path, `{"resourceType":"Parameters","parameter":[{"name":"eventsSinceNumber","valueString":"3"}]}`).want(200).equal("entry.1.resource.id", "e3")
		owner.get(path + "?content=all").want(400)
		owner.get(path + "?eventsSinceNumber=x").want(400)
		other.get(path).want(403)
	}
	owner.get("/Subscription/none/$events").want(404)
	// A Subscription that starts again counts anew.
	owner.putSubscription(socket, func(m map[string]any) { m["status"] = "off" })
	owner.putSubscription(socket, func(m map[string]any) { m["status"] = "requested" })
	owner.awaitStatus(socket, "active")
	owner.get("/Subscription/"+socket+"/$events").want(200).equal("entry.0.resource.parameter.4.valueString", "0")
	owner.put("/Encounter/e4", encounter("e4", "a", "planned")).want(201)
	soon(t, "the event after the start", func() bool { return len(entriesOf(owner.get("/Subscription/"+socket+"/$events").json)) == 2 })
	owner.get("/Subscription/"+socket+"/$events").equal("entry.1.resource.id", "e4")
}

// Contract, Notifications 5: a binding token binds a WebSocket to Backport Subscriptions, with or without an
// access token. They are told by handshakes, and by notifications at the content that they name.
func TestBackportWebSocket(t *testing.T) {
	t.Parallel()
	s := authorized(t, notifying)
	owner, other := s.as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"}), s.as(claims{Subject: "two", Client: "two", Scope: "system/*.cruds"})
	owner.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	create := func(content string) string {
		return owner.subscribe(strings.NewReplacer(`"type":"rest-hook","endpoint":""`, `"type":"websocket"`, "full-resource", content).Replace(backportSubscription("http://example.org/encounters", "")))
	}
	ids := map[string]string{}
	for _, content := range []string{"full-resource", "id-only", "empty"} {
		ids[create(content)] = content
	}
	plain := owner.subscribe(`{"resourceType":"Subscription","status":"requested","reason":"r","criteria":"Encounter?","channel":{"type":"websocket"}}`)
	var one string
	for id := range ids {
		one = id
	}
	token := func(by *service, path string) map[string][]any {
		return parametersOf(by.get(path).want(200).json)
	}
	for _, path := range []string{"/Subscription/" + plain + "/$get-ws-binding-token", "/Subscription/$get-ws-binding-token?id=" + plain} {
		owner.get(path).want(422)
	}
	other.get("/Subscription/" + one + "/$get-ws-binding-token").want(403)
	other.get("/Subscription/$get-ws-binding-token").want(404)
	if p := token(owner, "/Subscription/"+one+"/$get-ws-binding-token"); fmt.Sprint(p["subscription"]) != "["+one+"]" {
		t.Errorf("of one: %v", p)
	}
	all := token(owner, "/Subscription/$get-ws-binding-token")
	address, _ := all["websocket-url"][0].(string)
	until, err := time.Parse(time.RFC3339, all["expiration"][0].(string))
	if len(all["subscription"]) != 3 || !strings.HasPrefix(address, "ws://") || err != nil || time.Until(until) < time.Minute {
		t.Fatalf("of all: %v", all)
	}
	address = strings.Replace(owner.server(), "http", "ws", 1) + address[strings.Index(address, "/notifications/"):]
	conn, _, err := websocket.DefaultDialer.Dial(address, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w := &ws{t, conn}
	w.send(`{"type":"subscribe","resourceType":"Encounter"}`)
	if m := w.json(); m["type"] != "error" || m["code"] != "forbidden" {
		t.Errorf("subscribe without an access token: %v", m)
	}
	w.send("bind-with-token: nonsense")
	if m := w.json(); m["type"] != "error" || m["code"] != "login" {
		t.Errorf("a token that nobody has given out: %v", m)
	}
	w.send("bind-with-token: " + all["token"][0].(string))
	for range ids {
		if m := w.json(); fmt.Sprint(parametersOf(entriesOf(m)[0])["type"]) != "[handshake]" {
			t.Errorf("%v, want a handshake", m)
		}
	}
	for number := 1; number <= 2; number++ {
		owner.put("/Encounter/e", encounter("e", "a", "planned"))
		seen := make(map[string]bool)
		for range ids {
			m := w.json()
			p := parametersOf(entriesOf(m)[0])
			reference := p["subscription"][0].(map[string]any)["reference"].(string)
			id := reference[strings.LastIndex(reference, "/")+1:]
			list := m["entry"].([]any)
			want := map[string]int{"full-resource": 2, "id-only": 2, "empty": 1}[ids[id]]
			whole := len(list) == 2 && list[1].(map[string]any)["resource"] != nil
			if seen[id] || fmt.Sprint(p["type"]) != "[event-notification]" || fmt.Sprint(p["events-since-subscription-start"]) != fmt.Sprintf("[%d]", number) || len(list) != want ||
				whole != (ids[id] == "full-resource") {
				t.Errorf("event %d, %s: %v", number, ids[id], m)
			}
			seen[id] = true
		}
	}
	// On the ordinary socket too, of an access token.
	also := owner.socket("?token=" + strings.TrimPrefix(owner.token, "Bearer "))
	also.send("bind-with-token " + token(owner, "/Subscription/"+one+"/$get-ws-binding-token")["token"][0].(string))
	if m := also.json(); fmt.Sprint(parametersOf(entriesOf(m)[0])["type"]) != "[handshake]" {
		t.Errorf("%v, want a handshake", m)
	}
	// A Subscription that ends is no longer told of.
	owner.putSubscription(one, func(m map[string]any) { m["status"] = "off" })
	for _, w := range []*ws{w, also} {
		if m := w.json(); m["type"] != "error" {
			t.Errorf("%v, want an error", m)
		}
	}
}

// Contract, Notifications 3: a Subscription that a release stored which carried out none becomes effective with
// the upgrade; with authorization it goes off, with the reason.
func TestSubscriptionsOfAnOlderRelease(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	old, r := startOn(t, url, quick), newReceiver(t)
	id := old.subscribe(subscription("Encounter?", r.url))
	off := old.subscribe(subscription("Encounter?", r.url))
	old.putSubscription(off, func(m map[string]any) { m["status"] = "off" })
	old.stop()
	conn := onDatabase(t, url)
	forget := func() { sql(t, conn, `DELETE FROM notification_subscription`, `DELETE FROM notification_subscriber`) }
	forget()
	s := startOn(t, url, quick)
	soon(t, "the Subscription is effective", func() bool {
		var n int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM notification_subscription WHERE id = $1 AND status = 'active' OR id = $2 AND status = 'off'`, id, off).Scan(&n)
		return err == nil && n == 2
	})
	s.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	if d := r.next(); !strings.Contains(string(d.body), "Encounter") {
		t.Errorf("%s", d.body)
	}
	if a := s.get("/Subscription/" + off).want(200); a.str("status") != "off" || a.str("meta.versionId") != "3" {
		t.Errorf("the one that was off: %s", a.body)
	}
	s.stop()
	forget()
	broken := func() { // one that cannot be read does not keep the others
		sql(t, conn, `UPDATE resource SET body = convert_to('{"resourceType":"Subscription","nonsense":1}', 'UTF8') WHERE id = '`+off+`' AND typ = (SELECT typ FROM resource_type WHERE name = 'Subscription')`)
	}
	broken()
	guarded := authorizedOn(t, url, notifying).as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"})
	if m := guarded.awaitStatus(id, "off"); !strings.Contains(fmt.Sprint(m["error"]), "no owner") {
		t.Errorf("%v", m)
	}
}

// Contract, Notifications 3: a Subscription that was written without authorization has no owner. A server with
// authorization sends it nothing, and sets it off with the reason.
func TestSubscriptionsWithoutAnOwner(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	open, r := startOn(t, url, quick), newReceiver(t)
	id := open.subscribe(subscription("Encounter?", r.url))
	open.stop()
	guarded := authorizedOn(t, url, notifying).as(claims{Subject: "one", Client: "one", Scope: "system/*.cruds"})
	own := guarded.subscribe(subscription("Encounter?", r.url))
	if m := guarded.awaitStatus(id, "off"); !strings.Contains(fmt.Sprint(m["error"]), "no owner") {
		t.Errorf("%v", m)
	}
	for i := range 2 {
		guarded.put(fmt.Sprintf("/Encounter/e%d", i), encounter(fmt.Sprintf("e%d", i), "a", "planned")).want(201)
		if d := r.next(); d.header.Get("X-Subscription-Id") != "Subscription/"+own {
			t.Errorf("the event went to %s, want %s alone", d.header.Get("X-Subscription-Id"), own)
		}
	}
	// The next author becomes the owner.
	guarded.putSubscription(id, func(m map[string]any) { m["status"] = "requested"; delete(m, "error") })
	guarded.awaitStatus(id, "active")
}
