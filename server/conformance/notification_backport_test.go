package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"kiln/server/store/storetest"
)

const encounterTopic = `{"resourceType":"SubscriptionTopic","id":"topic","url":"http://example.org/encounters","status":"active","resourceTrigger":[{"resource":"Encounter"}],
	"canFilterBy":[{"resource":"Encounter","filterParameter":"patient"},{"resource":"Encounter","filterParameter":"status"}],
	"notificationShape":[{"resource":"Encounter","include":["Encounter:patient"]}]}`

func encounter(id, patient, status string) string {
	return fmt.Sprintf(`{"resourceType":"Encounter","id":%q,"status":%q,"class":{"code":"AMB"},"subject":{"reference":"Patient/%s"}}`, id, status, patient)
}

// filtered is backportSubscription with filters.
func filtered(endpoint string, filters ...string) string {
	var list []string
	for _, f := range filters {
		list = append(list, fmt.Sprintf(`{"url":"%sbackport-filter-criteria","valueString":%q}`, backportIG, f))
	}
	return strings.Replace(backportSubscription("http://example.org/encounters", endpoint), `"channel"`,
		`"_criteria":{"extension":[`+strings.Join(list, ",")+`]},"channel"`, 1)
}

// Contract, Notifications 2: a topic is found where the search index lacks it, as while that is rebuilt.
func TestTopicsWithoutIndex(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	old, r := startOn(t, url, quick), newReceiver(t)
	old.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	id := old.subscribe(filtered(r.url, "Encounter?patient=Patient/a"))
	r.any()
	old.stop()
	conn := onDatabase(t, url)
	sql(t, conn, `UPDATE resource SET terms = '{}' WHERE id = 'topic'`)
	s := startOn(t, url, quick)
	s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	s.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	if d := r.next(); !strings.Contains(string(d.body), "Encounter/e") {
		t.Errorf("%s, want the event of Encounter/e", d.body)
	}
	s.awaitStatus(id, "active")
	other := newReceiver(t)
	s.subscribe(filtered(other.url, "Encounter?patient=Patient/a"))
}

// Contract, Notifications 2: the forms of filters in the Backport IG.
func TestBackportFilters(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	s.put("/Patient/b", `{"resourceType":"Patient","id":"b"}`).want(201)
	receivers := make(map[string]*receiver)
	for _, f := range []string{"Encounter?patient=Patient/a", "patient=Patient/a", "Encounter.patient=Patient/a", "patient:not=Patient/b", "Encounter?patient=Patient/a&status=planned",
		"status:not=finished&patient=Patient/a", "Encounter.status:not=finished"} {
		r := newReceiver(t)
		if a := s.do("POST", "/Subscription", filtered(r.url, f)); a.status == 201 {
			s.awaitStatus(a.str("id"), "active")
			receivers[f] = r
			r.any()
		} else if !strings.HasPrefix(f, "patient:not") { // what search refuses is refused
			t.Errorf("%s: %d %s", f, a.status, a.body)
		}
	}
	for _, f := range []string{"Encounter?class=AMB", "class=AMB", "Encounter.class=AMB", "Observation.patient=Patient/a", "nonsense", "?", ""} {
		if a := s.do("POST", "/Subscription", filtered("http://127.0.0.1:9/", f)); a.status != 422 {
			t.Errorf("%s: %d %s", f, a.status, a.body)
		}
	}
	s.put("/Encounter/no", encounter("no", "b", "finished")).want(201)
	s.put("/Encounter/yes", encounter("yes", "a", "planned")).want(201)
	for f, r := range receivers {
		if d := r.next(); !strings.Contains(string(d.body), "Encounter/yes") {
			t.Errorf("%s: %s, want Encounter/yes", f, d.body)
		}
	}
}

// Contract, Notifications 2: a Subscription with unsupported requests is rejected.
func TestBackportFormIsChecked(t *testing.T) {
	t.Parallel()
	s := start(t, quick)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	whole := filtered("http://127.0.0.1:9/", "patient=Patient/a")
	plain := subscription("Encounter?", "http://127.0.0.1:9/")
	for name, body := range map[string]string{
		"no payload":                 strings.Replace(whole, `"payload":"application/fhir+json",`, "", 1),
		"no payload-content":         strings.Replace(whole, "backport-payload-content", "other", 1),
		"an unknown channel type":    strings.Replace(whole, `"type":"rest-hook"`, `"type":"rest-hook","_type":{"extension":[{"url":"`+backportIG+`backport-channel-type","valueCoding":{"code":"zulip"}}]}`, 1),
		"another fhirVersion":        strings.Replace(whole, `application/fhir+json"`, `application/fhir+json; fhirVersion=5.0"`, 1),
		"another fhirVersion, plain": strings.Replace(plain, `application/fhir+json"`, `application/fhir+json; fhirVersion=4.3"`, 1),
		"an unknown extension":       strings.Replace(whole, "backport-filter-criteria", "backport-filter", 1),
		"an extension, plain":        strings.Replace(plain, `"channel"`, `"_criteria":{"extension":[{"url":"http://example.org/narrow","valueString":"x"}]},"channel"`, 1),
		"a filter, plain":            strings.Replace(plain, `"channel"`, `"_criteria":{"extension":[{"url":"`+backportIG+`backport-filter-criteria","valueString":"patient=x"}]},"channel"`, 1),
		"a filter that is no string": strings.Replace(whole, `"valueString":"patient=Patient/a"`, `"valueCode":"x"`, 1),
		"a modifier extension":       strings.Replace(plain, `"channel"`, `"modifierExtension":[{"url":"http://example.org/not","valueBoolean":true}],"channel"`, 1),
	} {
		if a := s.do("POST", "/Subscription", body); a.status != 422 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for name, body := range map[string]string{
		"fhirVersion 4.0":  strings.Replace(whole, `application/fhir+json"`, `application/fhir+json; fhirVersion=4.0"`, 1),
		"the same channel": strings.Replace(whole, `"type":"rest-hook"`, `"type":"rest-hook","_type":{"extension":[{"url":"`+backportIG+`backport-channel-type","valueCoding":{"code":"rest-hook"}}]}`, 1),
	} {
		if a := s.do("POST", "/Subscription", body); a.status != 201 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

// Contract, Notifications 4: a notification of the Backport IG has the media type of channel.payload, the
// number of its event, and the resources that the version of its event refers to, at each attempt.
func TestBackportRetryIsTheSame(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	s.put("/SubscriptionTopic/topic", encounterTopic).want(201)
	s.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	s.put("/Patient/b", `{"resourceType":"Patient","id":"b"}`).want(201)
	s.subscribe(strings.Replace(backportSubscription("http://example.org/encounters", r.url), `"application/fhir+json"`, `"application/json"`, 1))
	if d := r.any(); d.header.Get("Content-Type") != "application/json" {
		t.Errorf("the handshake is %s", d.header.Get("Content-Type"))
	}
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	failed := false
	r.says(func(_ delivery, w http.ResponseWriter) {
		arrived <- struct{}{}
		<-release
		if !failed {
			failed = true
			w.WriteHeader(500)
		}
	})
	s.put("/Encounter/e", encounter("e", "a", "planned")).want(201)
	<-arrived
	s.put("/Encounter/e", encounter("e", "b", "planned")).want(200)
	s.put("/Encounter/e", encounter("e", "b", "finished")).want(200)
	s.put("/Patient/a", `{"resourceType":"Patient","id":"a","active":false}`).want(200)
	s.do("DELETE", "/Patient/b", "")
	close(release)
	for i, want := range []string{"a", "a", "b", "b"} {
		d := r.next()
		number := fmt.Sprintf(`"name":"events-since-subscription-start","valueString":"%d"`, max(1, i))
		other := "b"
		if want == "b" {
			other = "a"
		}
		if !strings.Contains(string(d.body), `"id":"`+want+`"`) || strings.Contains(string(d.body), `"id":"`+other+`"`) || !strings.Contains(string(d.body), number) {
			t.Errorf("request %d: %s, want Patient/%s and %s", i+1, d.body, want, number)
		}
		if strings.Contains(string(d.body), `"active":false`) || strings.Count(string(d.body), `"resourceType":"Patient"`) != 1 {
			t.Errorf("request %d: %s, want the Patient as it was", i+1, d.body)
		}
		if d.header.Get("Content-Type") != "application/json" {
			t.Errorf("request %d is %s", i+1, d.header.Get("Content-Type"))
		}
	}
}

// Contract, Notifications 3: an event during `off` is never delivered, however soon the Subscription is active again.
func TestOffMissesEvents(t *testing.T) {
	t.Parallel()
	s, r := start(t, quick), newReceiver(t)
	id := s.subscribe(subscription("Device?", r.url))
	r.any()
	for i := range 5 {
		s.putSubscription(id, func(m map[string]any) { m["status"] = "off" })
		s.post("/Device", `{"resourceType":"Device","lotNumber":"while-off"}`).want(201)
		s.putSubscription(id, func(m map[string]any) { m["status"] = "requested" })
		s.awaitStatus(id, "active")
		s.post("/Device", fmt.Sprintf(`{"resourceType":"Device","lotNumber":"again-%d"}`, i)).want(201)
		if d := r.next(); !strings.Contains(string(d.body), fmt.Sprint("again-", i)) {
			t.Errorf("%s, want what was written when it was active again", d.body)
		}
	}
}
