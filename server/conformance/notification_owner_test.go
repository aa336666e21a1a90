package conformance

import (
	"net/http"
	"strings"
	"testing"

	"kiln/server"
)

// Contract, Notifications 2, Access: an event is delivered only if the owner may read the resource
// now. While a policy denies it, it is withheld, which the log tells; what the policy is not about,
// and what comes when it has gone, is delivered. When a client may ask for fewer scopes than it could,
// or a user is disabled, what they have goes off.
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
	soon(t, "the log says that it was withheld", func() bool {
		for _, d := range admin.admin("GET", "/admin/notifications/deliveries?subscription="+id, "").want(200).at("deliveries").([]any) {
			d := d.(map[string]any)
			if attempts := d["attempts"].([]any); d["resourceId"] == hidden && len(attempts) == 1 {
				a := attempts[0].(map[string]any)
				reason, _ := a["error"].(string)
				return a["status"] == nil && strings.Contains(reason, "may not read")
			}
		}
		return false
	})
	other := observe("final")
	if d := r.next(); d.json["resourceId"] != other {
		t.Errorf("%s, want Observation/%s", d.body, other)
	}
	admin.admin("DELETE", "/admin/policies/hide", "").want(204)
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
