package conformance

import (
	"encoding/base64"
	"net/url"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/store/storetest"
)

// replicatedAccess starts two servers with authorization on a primary and its standby, which has a Patient.
func replicatedAccess(t *testing.T, change ...func(*server.Config)) (a, b *service, primary, standby *storetest.Instance) {
	t.Helper()
	primary = storetest.NewCluster(t)
	standby = primary.Standby("standby")
	open := startOn(t, primary.URL(), func(*server.Config) {})
	open.put("/Patient/a", `{"resourceType":"Patient","id":"a"}`).want(201)
	open.stop()
	change = append(change, func(c *server.Config) {
		c.Auth.Issuer = "http://127.0.0.1:7777"                                    // of both
		c.Database.ReadURLs, c.Database.ReadWaitMS = []string{standby.URL()}, 1000 // a busy machine may be late
	})
	a, b = withAuthorizationOn(t, primary.URL(), change...), withAuthorizationOn(t, primary.URL(), change...)
	standby.Follows(primary)
	awaitReplica(t, a, "streaming")
	awaitReplica(t, b, "streaming")
	return a, b, primary, standby
}

func revoke(s *service, token string) {
	s.t.Helper()
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("backend:"+url.QueryEscape(clientSecret)))
	s.form("/auth/revoke", url.Values{"token": {token}}, "Authorization", basic).want(200)
}

// soonRefused waits until a read has a status, for the second that changes of access may take and a second of a busy machine.
func soonRefused(t *testing.T, what string, s *service, status int) {
	t.Helper()
	began := time.Now()
	eventually(t, what, func() bool {
		a := s.get("/Patient/a")
		if a.status != status && a.status != 200 {
			t.Errorf("%s: status %d", what, a.status)
		}
		return a.status == status
	})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%s: %v, want a second", what, took)
	}
}

// TestAccessBesideStoppedReplicas has replay stopped on the replica that serves the rows: a revoked token, a narrower policy and a
// disabled client hold on another server all the same. Reads of the replica are audited.
func TestAccessBesideStoppedReplicas(t *testing.T) {
	t.Parallel()
	a, b, _, standby := replicatedAccess(t, func(c *server.Config) { c.Audit.Rest = "all" })
	operator := a.atRoot().bearer(a.backendToken("operator", "admin"))
	one, two := a.backendToken("backend", "system/*.rs"), a.backendToken("backend", "system/*.rs")
	standby.Exec("kiln", "SELECT pg_wal_replay_pause()")
	standby.Await("SELECT pg_get_wal_replay_pause_state() = 'paused'")
	reader := func(token string) *service {
		t.Helper()
		s := b.bearer(token)
		if got := source(t, s.get("/Patient/a").want(200)); got != "replica-1" {
			t.Errorf("a read comes from %q", got)
		}
		return s
	}
	s := reader(one)
	revoke(a, one)
	soonRefused(t, "a revoked token", s, 401)
	s = reader(two)
	audited := func() string {
		return s.get("/AuditEvent?type=rest&subtype=read&entity=Patient/a&_summary=count").want(200).str("total")
	}
	if before := audited(); source(t, s.get("/Patient/a").want(200)) == "replica-1" && audited() == before {
		t.Errorf("a read of the replica is not audited: still %s", before)
	}
	operator.post("/admin/policies", `{"name":"closed","effect":"deny","matcher":{"resourceTypes":["Patient"]}}`).want(201)
	soonRefused(t, "a narrower policy", s, 403)
	operator.do("DELETE", "/admin/policies/closed", "")
	eventually(t, "the policy is gone", func() bool { return s.get("/Patient/a").status == 200 })
	operator.do("PATCH", "/admin/clients/backend", `{"active":false}`, "Content-Type", "application/merge-patch+json").want(200)
	soonRefused(t, "a disabled client", s, 401)
	standby.Exec("kiln", "SELECT pg_wal_replay_resume()")
}

// TestAccessWithoutAPrimary stops the primary of servers with authorization: a token that the server knows reads from the replica, a
// new one is 503, and one that another server has revoked before is refused.
func TestAccessWithoutAPrimary(t *testing.T) {
	t.Parallel()
	a, b, primary, standby := replicatedAccess(t, func(c *server.Config) { c.Database.ReadWithoutPrimarySeconds = 120 })
	known, unused, ended := a.backendToken("backend", "system/*.rs"), a.backendToken("backend", "system/*.rs"), a.backendToken("backend", "system/*.rs")
	a.bearer(known).get("/Patient/a").want(200)
	a.bearer(ended).get("/Patient/a").want(200)
	revoke(b, ended)
	standby.Follows(primary)
	primary.Stop()
	lostPrimary(t, a.bearer(known), a, "/Patient/a")
	for _, path := range []string{"/Patient/a", "/Patient?_id=a", "/Patient/a/_history"} {
		if got := source(t, a.bearer(known).get(path).want(200)); got != "replica-1" {
			t.Errorf("%s comes from %q", path, got)
		}
	}
	soonRefused(t, "a token that was revoked before", a.bearer(ended), 401)
	for range 3 {
		if r := a.bearer(unused).get("/Patient/a"); r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("a new token without the primary: %d %s", r.status, r.body)
		}
	}
	a.bearer(known).get("/Patient/a").want(200)
	primary.Start()
	eventually(t, "the new token", func() bool { return a.bearer(unused).get("/Patient/a").status == 200 })
}
