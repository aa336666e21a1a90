package queue

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/webhook"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// second is Receivers without any: an attempt may take a second.
type second struct{}

func (second) FindReceiver(context.Context, string) (*Receiver, error) { return nil, ErrNoReceiver }
func (second) MaxTimeout() time.Duration                               { return time.Second }
func (second) AreOn() bool                                             { return true }

// queueOn is a Queue on a database, without work under way.
func queueOn(t testing.TB, url string) *Queue {
	t.Helper()
	data, err := store.Open(t.Context(), store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(data.Close)
	settings := &config.Watch{Current: func() *config.Config {
		return &config.Config{Enabled: true, Webhook: config.WebhookConfig{Enabled: true, Timeout: time.Second}}
	}}
	return New(Parts{Store: data, Settings: settings, Receivers: second{}, ReadVersions: data.ChangedVersions, Log: slog.New(slog.DiscardHandler)})
}

func (q *Queue) db() *db.Queries { return db.New(q.Store.Pool()) }

// addMessage stores a message to a user.
func (q *Queue) addMessage(t *testing.T, text string) {
	t.Helper()
	err := q.db().AddMessages(t.Context(), db.AddMessagesParams{Ids: []pgtype.UUID{{Bytes: uuid.New(), Valid: true}}, Recipients: []string{"anna"}, Bodies: []string{text}})
	if err != nil {
		t.Fatal(err)
	}
}

// enqueue queues n events for each of some subscribers, in one transaction.
func (s *Queue) enqueueEvents(t testing.TB, from, n, subscribers int) {
	t.Helper()
	for i := range subscribers {
		exec(t, s, fmt.Sprintf(`INSERT INTO notification_subscription (id, status, owner, started) VALUES ('%d', 'active', '{}', true) ON CONFLICT DO NOTHING`, i))
		exec(t, s, fmt.Sprintf(`INSERT INTO notification_subscriber (id) VALUES ('Subscription/%d') ON CONFLICT DO NOTHING`, i))
	}
	var hits []matching.Hit
	for i := from; i < from+n; i++ {
		e := &matching.Event{Kind: matching.Create, Version: fhir.Version{ResourceType: "Basic", ID: fmt.Sprint("b", i), VersionID: 1}, Written: time.Now(), Ref: int64(i),
			Position: store.ChangePosition{XID: int64(i), RID: int64(i), Version: 1}}
		hits = append(hits, matching.Hit{Subscriber: &matching.Subscriber{ID: fmt.Sprint("Subscription/", i%subscribers), Queued: true}, Event: e})
	}
	err := s.Store.InTx(t.Context(), func(tx *store.Tx) error { return AddDeliveries(t.Context(), tx.Conn(), hits) })
	if err != nil {
		t.Fatal(err)
	}
}

// work takes the due deliveries, and finishes them with a status.
func (s *Queue) work(t testing.TB, status byte) (done int) {
	t.Helper()
	for {
		claimed, err := s.db().ClaimSubscribers(t.Context(), db.ClaimSubscribersParams{
			Count: 100, Unproven: 100, Late: 100, Holder: s.recorder.holder, LeaseMs: 60_000, Webhooks: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, c := range claimed {
			ids = append(ids, c.ID)
		}
		if len(ids) == 0 {
			return done
		}
		rows, err := s.db().ClaimDeliveries(t.Context(), db.ClaimDeliveriesParams{Count: perClaim, Subscribers: ids, Holder: s.recorder.holder})
		if err != nil {
			t.Fatal(err)
		}
		var p db.FinishDeliveriesParams
		for _, r := range rows {
			p.Ids, p.Statuses, p.Tried = append(p.Ids, r.ID), append(p.Statuses, string(rune(status))), append(p.Tried, 1)
			p.RetryMs, p.Logs = append(p.RetryMs, 0), append(p.Logs, `[{"at": "2026-01-01T00:00:00Z", "status": 200, "durationMs": 1, "error": null}]`)
		}
		back := db.ReleaseSubscribersParams{Ids: ids, Sents: make([]bool, len(ids)), Answers: make([]string, len(ids)), Holder: s.recorder.holder}
		err = s.Store.InTx(t.Context(), func(tx *store.Tx) error {
			d := db.New(tx.Conn())
			if err := d.FinishDeliveries(t.Context(), p); err != nil {
				return err
			}
			if err := d.LockSubscribers(t.Context(), ids); err != nil {
				return err
			}
			return d.ReleaseSubscribers(t.Context(), back)
		})
		if err != nil {
			t.Fatal(err)
		}
		done += len(rows)
	}
}

// Contract, Notifications 4: queue.retention_days. Deliveries that succeeded or were given
// up are deleted after it, pending ones stay; so do messages to users.
func TestRetain(t *testing.T) {
	t.Parallel()
	s := queueOn(t, storetest.New(t))
	const n = 30
	s.enqueueEvents(t, 0, n, 3)
	if done := s.work(t, 'd'); done != n {
		t.Fatalf("%d deliveries, want %d", done, n)
	}
	s.enqueueEvents(t, n, n, 3)
	s.work(t, 'f')
	s.enqueueEvents(t, 2*n, n, 3) // these stay pending
	s.addMessage(t, "old")
	exec(t, s, `UPDATE notification_delivery SET queued = queued - interval '31 days'`)
	exec(t, s, `UPDATE notification_message SET created = created - interval '31 days'`)
	s.enqueueEvents(t, 3*n, 1, 1)
	s.addMessage(t, "new")
	removed, err := Retain(t.Context(), s.Store, time.Now().Add(-30*24*time.Hour))
	if err != nil || removed != 2*n {
		t.Errorf("%d removed, %v; want %d", removed, err, 2*n)
	}
	if got := count(t, s, `SELECT count(*) FROM notification_delivery WHERE status = 'p'`); got != n+1 {
		t.Errorf("%d are still to be sent, want %d", got, n+1)
	}
	if got := count(t, s, `SELECT count(*) FROM notification_message`); got != 1 {
		t.Errorf("%d messages to users, want the new one", got)
	}
}

// Contract, Notifications 8 and 4: a day of retention. In each of 24 hours as many deliveries come,
// are sent, and go after an hour; the tables of the queue stay as large as two hours need, and a
// vacuum leaves nothing dead. NOTIFICATION_DAY is how many deliveries a day has (4800).
func TestQueueDoesNotBloat(t *testing.T) {
	t.Parallel()
	perDay := 4800
	if n, err := strconv.Atoi(os.Getenv("NOTIFICATION_DAY")); err == nil {
		perDay = n
	}
	s := queueOn(t, storetest.New(t))
	perHour := perDay / 24
	size := func() int {
		return count(t, s, `SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relname IN ('notification_delivery', 'notification_subscriber')`)
	}
	var early, largest int
	hours := [24]time.Time{}
	for hour := range 24 {
		hours[hour] = time.Now()
		for done := 0; done < perHour; done += 100 {
			s.enqueueEvents(t, hour*perHour+done, min(100, perHour-done), 20)
			s.work(t, 'd')
		}
		if hour > 0 {
			if _, err := Retain(t.Context(), s.Store, hours[hour]); err != nil {
				t.Fatal(err)
			}
		}
		// Autovacuum comes by the number of changes; here it comes once an hour.
		exec(t, s, `VACUUM notification_delivery, notification_subscriber`)
		if now := size(); hour < 3 {
			early = max(early, now)
		} else {
			largest = max(largest, now)
		}
	}
	rows := count(t, s, `SELECT count(*) FROM notification_delivery`)
	exec(t, s, `SELECT pg_stat_force_next_flush()`)
	dead := count(t, s, `SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname IN ('notification_delivery', 'notification_subscriber')`)
	t.Logf("%d deliveries in a day: %d rows at its end, %d dead; %d bytes after three hours, %d at most later", perDay, rows, dead, early, largest)
	if rows > perHour {
		t.Errorf("%d deliveries are kept, want those of the last hour, %d", rows, perHour)
	}
	// Without reuse they would be eight times as large. Others of the same PostgreSQL may hold
	// a vacuum back for a while.
	if largest > 3*early {
		t.Errorf("the tables have grown to %d bytes, after three hours they had %d", largest, early)
	}
}

// Contract, Notifications 1: another server takes over the deliveries of a dead server when
// their lease has run out, and not before; until then they are pending or processing.
func TestLeasesRunOut(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	dead, living := queueOn(t, url), queueOn(t, url)
	dead.enqueueEvents(t, 0, 5, 1)
	claimed, err := dead.db().ClaimSubscribers(t.Context(), db.ClaimSubscribersParams{Count: 10, Unproven: 10, Late: 10, Holder: dead.recorder.holder, LeaseMs: time.Hour.Milliseconds(), Webhooks: true})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%v %v", claimed, err)
	}
	ids := []string{claimed[0].ID}
	taken, err := dead.db().ClaimDeliveries(t.Context(), db.ClaimDeliveriesParams{Count: perClaim, Subscribers: ids, Holder: dead.recorder.holder})
	if err != nil || len(taken) != 5 {
		t.Fatalf("%d deliveries, %v", len(taken), err)
	}
	if n := living.work(t, 'd'); n != 0 {
		t.Errorf("%d deliveries were taken from a server that has them", n)
	}
	exec(t, living, `UPDATE notification_subscriber SET leased_until = now() - interval '1 second'`)
	if n := living.work(t, 'd'); n != 5 {
		t.Errorf("%d deliveries were taken over, want 5", n)
	}
	// The server that was thought dead may not give back deliveries that it has lost.
	if err := dead.db().ReleaseSubscribers(t.Context(), db.ReleaseSubscribersParams{Ids: ids, Sents: []bool{true}, Holder: dead.recorder.holder}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, living, `SELECT count(*) FROM notification_delivery WHERE status = 'd'`); n != 5 {
		t.Errorf("%d delivered, want 5", n)
	}
}

// Contract, Notifications 4 and 3: while the oldest delivery of a subscriber waits for its retry, the
// newer ones wait behind it. While the Subscription is in error only those go out that were tried
// before. When it is active again, what waits goes out in order, up to one that the endpoint put off.
func TestRetriesHoldTheirPlace(t *testing.T) {
	t.Parallel()
	s := queueOn(t, storetest.New(t))
	s.enqueueEvents(t, 0, 6, 1)
	pause := func(paused bool) {
		t.Helper()
		if err := s.db().PauseSubscriber(t.Context(), db.PauseSubscriberParams{ID: "Subscription/0", Paused: paused}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want ...int64) {
		t.Helper()
		subscribers, lists, err := s.claimDeliveries(t.Context(), freePlaces{1, 1, 1})
		if err != nil {
			t.Fatal(err)
		}
		var order []int64
		for _, d := range lists["Subscription/0"] {
			order = append(order, d.Number)
		}
		if !slices.Equal(order, want) {
			t.Errorf("the events %v go out, want %v", order, want)
		}
		var back []finished
		for _, d := range lists["Subscription/0"] {
			back = append(back, finished{delivery: d, status: 'p'})
		}
		for _, sub := range subscribers {
			back = append(back, finished{subscriber: sub.ID})
		}
		if err := s.recorder.flush(t.Context(), back); err != nil {
			t.Fatal(err)
		}
	}
	next(1, 2, 3, 4, 5, 6)
	exec(t, s, `UPDATE notification_delivery SET attempts = 1, next_attempt = now() + interval '1 hour' WHERE number = 1`)
	next()
	exec(t, s, `UPDATE notification_delivery SET next_attempt = now() WHERE number = 1`)
	exec(t, s, `UPDATE notification_subscriber SET due = now()`)
	next(1)
	exec(t, s, `UPDATE notification_delivery SET status = 'd' WHERE number = 1`)
	exec(t, s, `UPDATE notification_delivery SET attempts = 1 WHERE number = 2`)
	exec(t, s, `UPDATE notification_delivery SET attempts = 1, next_attempt = now() + interval '1 hour' WHERE number = 3`)
	exec(t, s, `UPDATE notification_delivery SET attempts = 1, next_attempt = now() + interval '1 hour', not_before = now() + interval '1 hour' WHERE number = 6`)
	exec(t, s, `UPDATE notification_subscriber SET due = now()`)
	pause(true)
	next(2)
	exec(t, s, `UPDATE notification_delivery SET status = 'd' WHERE number = 2`)
	pause(false)
	next(3)
	exec(t, s, `UPDATE notification_delivery SET status = 'd' WHERE number = 3`)
	next(4, 5)
	// One that an administrator sends again goes first, whatever waits.
	exec(t, s, `UPDATE notification_delivery SET attempts = 2, next_attempt = now() + interval '1 hour' WHERE number = 4`)
	exec(t, s, `UPDATE notification_delivery SET status = 'p', attempts = -1 WHERE number = 1`)
	exec(t, s, `UPDATE notification_subscriber SET due = now()`)
	next(1)
}

// Contract, Notifications 4: endpoints that answer late, and those that were never sent to, leave
// places for those that answer promptly.
func TestPlacesForThoseThatAnswer(t *testing.T) {
	t.Parallel()
	s := queueOn(t, storetest.New(t))
	s.enqueueEvents(t, 0, 30, 30)
	exec(t, s, `UPDATE notification_subscriber SET due = now() - interval '1 minute', answers = CASE WHEN substr(id, 14)::integer < 12 THEN 'late' WHEN substr(id, 14)::integer < 20 THEN 'unknown' ELSE 'prompt' END`)
	limit := func() int { return 16 }
	p := newPlaces()
	f, ok := p.takePlaces(t.Context(), limit)
	if !ok || f != (freePlaces{16, 12, 8}) {
		t.Fatalf("free places %+v", f)
	}
	subscribers, _, err := s.claimDeliveries(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	p.keepPlaces(f, subscribers)
	if p.of["late"] > 8 || p.of["late"]+p.of["unknown"] > 12 || p.of["prompt"] < 4 || p.taken != 16 {
		t.Errorf("taken %d, %v: want at most 8 late ones, 12 with the unknown ones", p.taken, p.of)
	}
	for _, sub := range subscribers {
		if sub.Answers == answersPrompt {
			p.returnPlaces(sub.Answers)
		}
	}
	f, _ = p.takePlaces(t.Context(), limit)
	subscribers, _, err = s.claimDeliveries(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	p.keepPlaces(f, subscribers)
	if p.of["late"] > 8 || p.of["late"]+p.of["unknown"] > 12 {
		t.Errorf("%v: want at most 8 late ones, 12 with the unknown ones", p.of)
	}
}

// Contract, Notifications 4: a fault of this server is no attempt: the delivery waits a moment, and those
// behind it do too.
func TestFaultsOfOursAreNoAttempt(t *testing.T) {
	t.Parallel()
	s := queueOn(t, storetest.New(t))
	f, stop := s.sender.settle(&Receiver{Policy: webhook.Policy{MaxAttempts: 1}}, &Delivery{}, webhook.Result{Ours: ErrNoReceiver})
	if f.status != 'p' || f.tried || f.retry == 0 || !stop {
		t.Errorf("%+v, stop %v: want pending, without an attempt", f, stop)
	}
	s.enqueueEvents(t, 0, 2, 1)
	subscribers, lists, err := s.claimDeliveries(t.Context(), freePlaces{1, 1, 1})
	if err != nil || len(subscribers) != 1 {
		t.Fatalf("%v %v", subscribers, err)
	}
	f.delivery = lists["Subscription/0"][0]
	if err := s.recorder.flush(t.Context(), []finished{f, {subscriber: "Subscription/0"}}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, `SELECT count(*) FROM notification_delivery WHERE attempts = 0 AND log = '[]' AND next_attempt > now() AND number = 1`); n != 1 {
		t.Error("the delivery counts an attempt, or is due at once")
	}
	if n := count(t, s, `SELECT count(*) FROM notification_subscriber WHERE due > now()`); n != 1 {
		t.Error("the subscriber is due at once")
	}
}

// Contract, Notifications 3: an event from before a Subscription was off, which is queued afterwards, is
// not delivered; nor is one from before it started, or one for a Subscription that is deleted.
func TestQueuedAfterOff(t *testing.T) {
	t.Parallel()
	s := queueOn(t, storetest.New(t))
	s.enqueueEvents(t, 0, 1, 4)
	exec(t, s, `UPDATE notification_subscription SET status = 'off', started = false WHERE id = '1'`)
	exec(t, s, `UPDATE notification_subscription SET started_at = now() + interval '1 hour' WHERE id = '2'`)
	exec(t, s, `DELETE FROM notification_subscriber WHERE id = 'Subscription/3'`)
	exec(t, s, `DELETE FROM notification_subscription WHERE id = '3'`)
	e := &matching.Event{Kind: matching.Create, Version: fhir.Version{ResourceType: "Basic", ID: "late", VersionID: 1}, Written: time.Now(), Ref: 77,
		Position: store.ChangePosition{XID: 77, RID: 77, Version: 1}}
	var hits []matching.Hit
	for i := range 4 {
		hits = append(hits, matching.Hit{Subscriber: &matching.Subscriber{ID: fmt.Sprint("Subscription/", i), Queued: true}, Event: e})
	}
	hits = append(hits, matching.Hit{Subscriber: &matching.Subscriber{ID: "App/1/x", Queued: true}, Event: e})
	if err := s.Store.InTx(t.Context(), func(tx *store.Tx) error { return AddDeliveries(t.Context(), tx.Conn(), hits) }); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, `SELECT count(*) FROM notification_delivery WHERE resource_id = 'late' AND subscriber IN ('Subscription/0', 'App/1/x')`); n != 2 {
		t.Errorf("%d deliveries to those that hear, want 2", n)
	}
	if n := count(t, s, `SELECT count(*) FROM notification_delivery WHERE resource_id = 'late'`); n != 2 {
		t.Errorf("%d deliveries, want 2", n)
	}
	if n := count(t, s, `SELECT count(*) FROM notification_subscriber WHERE id = 'Subscription/3' OR id <> 'Subscription/0' AND events > 0 AND id NOT LIKE 'App/%'`); n != 0 {
		t.Errorf("%d subscribers count the event, or came back", n)
	}
}

func exec(t testing.TB, s *Queue, statement string) {
	t.Helper()
	if _, err := s.Store.Pool().Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func count(t testing.TB, s *Queue, query string) (n int) {
	t.Helper()
	if err := s.Store.Pool().QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}
