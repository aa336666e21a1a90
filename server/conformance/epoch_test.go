package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server/backup"
	"kiln/server/postgres"
	"kiln/server/store/storetest"
)

// restoreElsewhere backs a database up, and returns the URL of a restored one in a new cluster. Transaction numbers
// begin again there.
func restoreElsewhere(t *testing.T, from string) string {
	t.Helper()
	for _, program := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "backup.zip")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = backup.Write(t.Context(), from, "test", f)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := postgres.Start(t.Context(), postgres.Options{DataDir: filepath.Join(dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := backup.Restore(t.Context(), p.URL, file, true); err != nil {
		t.Fatal(err)
	}
	return p.URL
}

// eventOf reads the Notification message of an event of a stream.
func eventOf(t *testing.T, e sseEvent) (id, resource string) {
	t.Helper()
	var m struct{ ID, ResourceID, VersionID string }
	if err := json.Unmarshal([]byte(e.data), &m); err != nil {
		t.Fatalf("%+v: %v", e, err)
	}
	return m.ID, m.ResourceID + "/" + m.VersionID
}

// Contract, Epochs: after kiln restore into a new cluster, Subscriptions, Apps, streams and WebSockets continue exactly
// behind the last change that they have seen. Nothing is delivered twice. Two servers share the restored database.
func TestRestoreContinuesNotifications(t *testing.T) {
	t.Parallel()
	const writes = 300
	database := storetest.New(t)
	hook, handler := newReceiver(t), newReceiver(t)
	old := startOn(t, database, quick)
	old.subscribe(subscription("Patient?active=true", hook.url))
	old.put("/App/w", eventApp("w", "Patient", `"create","update"`, "", `{"type":"webhook","url":"`+handler.url+`"}`)).want(201)
	person := func(id string) string {
		return `{"resourceType":"Patient","id":"` + id + `","active":true}`
	}
	live := old.stream("/Patient/$events")
	var cursors, ids []string
	for i := range writes {
		old.put(fmt.Sprintf("/Patient/p%d", i), person(fmt.Sprintf("p%d", i))).want(201)
	}
	for i := range writes {
		e := live.next()
		id, resource := eventOf(t, e)
		if resource != fmt.Sprintf("p%d/1", i) {
			t.Fatalf("event %d is of %s", i, resource)
		}
		cursors, ids = append(cursors, e.id), append(ids, id)
		hook.next()
		handler.next()
	}
	comes(t, "the end of the deliveries", func() bool {
		return len(old.deliveries("?status=pending")) == 0 && len(old.deliveries("?status=processing")) == 0
	})
	restored := restoreElsewhere(t, database)
	old.put("/Patient/new", person("new")).want(201)
	lost := live.next()
	lostID, _ := eventOf(t, lost)
	lostHook, lostHandler := hook.next(), handler.next()
	highest := number(t, onDatabase(t, database), "SELECT max(xid::text::bigint) FROM change")
	lowest := number(t, onDatabase(t, restored), "SELECT pg_current_xact_id()::text::bigint")
	if lowest >= highest {
		t.Fatalf("transaction %d of the new cluster does not lie below transaction %d of the old one", lowest, highest)
	}
	live.close()
	old.stop()

	s := startOn(t, restored, quick)
	other := startOn(t, restored, quick)
	stream := s.stream("/Patient/$events", "Last-Event-ID", cursors[writes-3])
	socket := other.socket("")
	socket.send(`{"type":"subscribe","resourceType":"Patient","since":"` + cursors[writes-3] + `"}`)
	if m := socket.json(); m["type"] != "subscribed" {
		t.Fatalf("%v", m)
	}
	began := time.Now()
	s.put("/Patient/new", person("new")).want(201)
	for what, r := range map[string]*receiver{"Subscription": hook, "App": handler} {
		d := r.next()
		if d.json["resourceId"] != "new" || d.json["versionId"] != "1" {
			t.Errorf("%s: the first notification is %s", what, d.body)
		}
		if d.json["id"] == lostHook.json["id"] || d.json["id"] == lostHandler.json["id"] {
			t.Errorf("%s: a version number that was given twice has one notification id", what)
		}
		if took := d.at.Sub(began); took > 20*time.Second {
			t.Errorf("%s: the notification took %v", what, took)
		}
	}
	other.put("/Patient/newer", person("newer")).want(201)
	for what, r := range map[string]*receiver{"Subscription": hook, "App": handler} {
		if d := r.next(); d.json["resourceId"] != "newer" {
			t.Errorf("%s: the second notification is %s", what, d.body)
		}
	}
	for i, want := range []string{fmt.Sprintf("p%d/1", writes-2), fmt.Sprintf("p%d/1", writes-1), "new/1", "newer/1"} {
		id, resource := eventOf(t, stream.next())
		if resource != want {
			t.Errorf("event %d of the stream is of %s, want %s", i, resource, want)
		}
		if i < 2 && id != ids[writes-2+i] {
			t.Errorf("%s has another notification id after the restore", resource)
		}
		if i == 2 && id == lostID {
			t.Error("a version number that was given twice has one notification id in streams")
		}
		m := socket.json()
		if got := fmt.Sprint(m["resourceId"], "/", m["versionId"]); got != want {
			t.Errorf("message %d of the WebSocket is %v, want %s", i, m, want)
		}
		ids = append(ids, id)
	}
	// The history has the ids of the streams.
	var history []string
	for next := "/Patient/$events-history?_count=200"; next != ""; {
		a := s.get(next).want(200)
		list, _ := a.at("entry").([]any)
		for _, e := range list {
			history = append(history, e.(map[string]any)["id"].(string))
		}
		next = a.link("next")
	}
	want := append(slices.Clone(ids[:writes]), ids[len(ids)-2:]...)
	slices.Reverse(want)
	if !slices.Equal(history, want) {
		t.Errorf("the history has %d events, the first are %q, want %d, %q", len(history), history[:3], len(want), want[:3])
	}
	// The cursor of the lost event is refused, and the instant of the answer works.
	for _, at := range []*service{s, other} {
		a := at.do("GET", "/Patient/$events", "", "Last-Event-ID", lost.id).issue(410, "deleted", "_since=")
		instant := regexp.MustCompile(`_since=([0-9TZ:.-]+)`).FindStringSubmatch(string(a.body))
		if instant == nil {
			t.Fatalf("no instant in %s", a.body)
		}
		again := at.stream("/Patient/$events?_since=" + url.QueryEscape(strings.TrimRight(instant[1], ".")))
		for {
			if _, resource := eventOf(t, again.next()); resource == "newer/1" {
				break
			}
		}
	}
	socket.send(`{"type":"subscribe","resourceType":"Patient","since":"` + lost.id + `"}`)
	if m := socket.json(); m["type"] != "error" || m["code"] != "deleted" {
		t.Errorf("the WebSocket answers %v to a lost cursor", m)
	}
	socket.send(`{"type":"ping"}`)
	if m := socket.json(); m["type"] != "pong" {
		t.Errorf("the WebSocket after the error: %v", m)
	}
	checkEpochReports(t, other, 2, "copy")
}

// checkEpochReports checks what health, metrics and statistics say of the epoch and of the readers.
func checkEpochReports(t *testing.T, s *service, number int, cause string) {
	t.Helper()
	s.get(s.server()+"/health").want(200).equal("database.epoch", fmt.Sprint(number)).equal("database.readers", "ok").equal("status", "ok")
	statistics := s.get(s.server()+"/admin/db/stats").want(200).equal("epoch.number", fmt.Sprint(number)).equal("epoch.cause", cause)
	readers, _ := statistics.at("readers").([]any)
	if len(readers) == 0 {
		t.Error("the statistics name no reader")
	}
	for _, r := range readers {
		if r := r.(map[string]any); r["ahead"] != false || r["epoch"] == nil || r["name"] == "" {
			t.Errorf("reader %v", r)
		}
	}
	resp, err := http.Get(s.server() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), fmt.Sprintf("\nservice_database_epoch %d\n", number)) ||
		!regexp.MustCompile(`(?m)^service_change_reader_ahead\{reader="[^"]+"\} 0$`).Match(text) || regexp.MustCompile(`(?m)^service_change_reader_ahead.* 1$`).Match(text) {
		t.Errorf("metrics: %s", regexp.MustCompile(`(?m)^service_(database_epoch|change_reader).*$`).FindAllString(string(text), -1))
	}
}
