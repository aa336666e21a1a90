package conformance

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kiln/server"
	"kiln/server/postgres"
	"kiln/server/store/storetest"
)

// Kill -9 of the server in the middle of an operation and of an App's event: the
// caller is told, a transaction is whole or not there, nothing claims to be whole that is
// not, and the event is delivered again under its id.
func TestKillOfTheServerInAnApp(t *testing.T) {
	url := storetest.New(t)
	s, cmd := spawn(t, url)
	r := newReceiver(t)
	begun, hang := make(chan string, 10), make(chan struct{})
	defer close(hang)
	r.says(func(d delivery, _ http.ResponseWriter) {
		begun <- d.header.Get("X-Notification-Id")
		<-hang
	})
	s.put("/App/work", app("work", "active", "execute", "Patient", "work", `async (c) => {
		await fhir.transaction({resourceType: "Bundle", type: "transaction", entry: [1, 2, 3].map(() => ({resource: {resourceType: "Basic", code: {text: "of the script"}}, request: {method: "POST", url: "Basic"}}))});
		await fhir.create({resourceType: "Patient", id: "x", name: [{family: "Event"}]});
		for (;;) {}
	}`)).want(201)
	s.put("/App/hook", eventApp("hook", "Patient", `"create"`, "", `{"type":"webhook","url":"`+r.url+`"}`)).want(201)
	told := make(chan error, 1)
	go func() {
		a, err := s.try("POST", "/Patient/$work", "")
		if err == nil {
			err = fmt.Errorf("the caller is told %d", a.status)
		} else {
			err = nil // the connection broke
		}
		told <- err
	}()
	id := <-begun // the script has written, and its event is on its way
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	r.says(func(d delivery, _ http.ResponseWriter) { begun <- d.header.Get("X-Notification-Id") })
	next, _ := spawn(t, url)
	if again := <-begun; again != id {
		t.Errorf("the event comes again as %s, not %s", again, id)
	}
	next.get("/Basic").want(200).equal("total", "3")
	if a := next.get("/AuditEvent?subtype=operation&entity:missing=true").want(200); a.str("total") != "0" {
		t.Errorf("an AuditEvent tells of the operation that did not end: %s", clip(a.body))
	}
	next.post("/Patient/$nothing", "").want(404)
}

// Kill -9 of PostgreSQL in the middle of operations and events of Apps.
func TestKillOfPostgreSQLInAnApp(t *testing.T) {
	dir := t.TempDir()
	pg, err := postgres.Start(context.Background(), postgres.Options{DataDir: dir})
	if err != nil {
		if strings.Contains(err.Error(), "not installed") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	defer pg.Stop()
	s := startOn(t, pg.URL, func(c *server.Config) { c.Notifications.Queue.PollIntervalSeconds = 1 })
	r := newReceiver(t)
	s.put("/App/hook", eventApp("hook", "Patient", `"create"`, "", `{"type":"webhook","url":"`+r.url+`"}`)).want(201)
	s.put("/App/pair", app("pair", "active", "execute", "Patient", "pair", `async (c) => fhir.transaction({resourceType: "Bundle", type: "transaction", entry: [
		{resource: {resourceType: "Patient", id: c.parameters.id}, request: {method: "PUT", url: "Patient/" + c.parameters.id}},
		{resource: {resourceType: "Basic", id: c.parameters.id, code: {text: "pair"}}, request: {method: "PUT", url: "Basic/" + c.parameters.id}}]})`)).want(201)
	kill := func() {
		b, err := os.ReadFile(filepath.Join(dir, "postgres", "data", "postmaster.pid"))
		if err != nil {
			t.Error(err)
			return
		}
		pid, err := strconv.Atoi(strings.SplitN(string(b), "\n", 2)[0])
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Error(err)
		}
	}
	var acknowledged []string
	// A kill between two operations fails none: the next one waits. Then there is another.
	failed, kills := 0, 0
	for i := 0; len(acknowledged) < 60 || failed == 0; i++ {
		id := fmt.Sprint("p", i)
		if failed == 0 && len(acknowledged) == 20*(kills+1) {
			if kills++; kills > 10 {
				t.Fatal("no operation failed: PostgreSQL was never killed in the middle")
			}
			go kill()
		}
		a, err := s.try("POST", "/Patient/$pair", `{"parameters":{"id":"`+id+`"}}`)
		switch {
		case err != nil:
			t.Fatal(err)
		case a.status == 200:
			acknowledged = append(acknowledged, id)
		default:
			if failed++; a.status < 500 || failed > 3000 {
				t.Fatalf("the caller is told %d %s", a.status, clip(a.body))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	// Reads have connections of their own, which may still be those to the killed one.
	eventually(t, "reads are answered again", func() bool { return s.get("/Patient/"+acknowledged[0]).status == 200 })
	want := make(map[string]bool)
	for _, id := range acknowledged {
		s.get("/Patient/" + id).want(200)
		s.get("/Basic/" + id).want(200)
		want[id] = true
	}
	if p, b := s.get("/Patient?_summary=count").want(200).str("total"), s.get("/Basic?_summary=count").want(200).str("total"); p != b {
		t.Errorf("%s patients and %s others: a transaction is there in part", p, b)
	}
	for deadline := time.After(patience); len(want) > 0; {
		select {
		case d := <-r.got:
			delete(want, fmt.Sprint(d.json["resourceId"]))
		case <-deadline:
			t.Fatalf("%d events were not delivered", len(want))
		}
	}
}
