package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/outcome"
	"kiln/server/web"
)

// Mount registers the service's paths on the root mux. Operations on resource types have a
// path for each type: a pattern with a wildcard would conflict with other patterns.
func (s *Service) Mount(m *web.Mux) {
	m.HandleFunc(web.Streams, "GET /notifications/ws", s.hub.ServeWebSocket)
	m.HandleFunc(web.Public, "GET /notifications/bind", s.hub.ServeBound)
	m.HandleFunc(web.Streams, "GET /notifications/events", s.hub.ServeEvents(""))
	admin := func(id string, f func(w http.ResponseWriter, r *http.Request) error) {
		m.HandleFunc(web.Admin, id, answering(f))
	}
	open := func(id string, f func(w http.ResponseWriter, r *http.Request) error) {
		m.HandleFunc(web.FHIR, id, answering(f))
	}
	for typ := range s.Service.Model.Resources {
		m.HandleFunc(web.Streams, "GET /"+typ+"/$events", s.hub.ServeEvents(typ))
		open("GET /"+typ+"/$events-history", func(w http.ResponseWriter, r *http.Request) error { return s.eventsHistory(w, r, typ) })
		admin("POST /"+typ+"/{id}/$notify", func(w http.ResponseWriter, r *http.Request) error { return s.notifyUsers(w, r, typ) })
	}
	open("POST /Subscription/{id}/$secret", s.newSecret)
	open("POST /Subscription/{id}/$test", s.testDelivery)
	admin("GET /admin/notifications/deliveries", s.deliveries)
	admin("GET /admin/notifications/deliveries/{id}", s.delivery)
	admin("POST /admin/notifications/deliveries/{id}/redeliver", s.redeliver)
	admin("POST /admin/notifications/dead-letters/redeliver", s.redeliverDeadLetters)
}

// answering answers with the error of a handler, if there is one.
func answering(f func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			web.ExchangeOf(w).Fail(r, err)
		}
	}
}

// answerFormat is the content type of an answer in FHIR.
func (s *Service) answerFormat(r *http.Request) (string, error) {
	if s.Format == nil {
		return subscription.FHIRJSON + "; charset=utf-8", nil
	}
	return s.Format(r)
}

const jsonType = "application/json; charset=utf-8"

func sendJSON(w http.ResponseWriter, r *http.Request, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	web.ExchangeOf(w).Send(r, status, jsonType, b, true)
	return nil
}

func (s *Service) statusOf(row db.SubscriptionRow, v fhir.Version) message.Status {
	st := message.Status{Type: "query-status", Subscription: "Subscription/" + row.ID, Status: row.Status, Events: row.Events, Error: row.Error}
	if r, err := s.subscriptions.Decode(v.Body); err == nil {
		st.Status, st.Error = r.Status.Text, r.Error.Text
		if st.Backport = subscription.IsBackport(r); st.Backport {
			st.Topic = r.Criteria.Text
		} else {
			st.Topic = r.Topic.Text
		}
	}
	return st
}

// allSubscriptions are the ids of those that are not off, up to one more than maxStatuses.
func (s *Service) allSubscriptions(ctx context.Context) (ids []string, err error) {
	for after := ""; len(ids) <= maxStatuses; {
		rows, err := s.db().Subscriptions(ctx, db.SubscriptionsParams{After: after, Count: maxStatuses})
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			after = row.ID
			ids = append(ids, row.ID)
		}
		if len(rows) < maxStatuses {
			break
		}
	}
	return ids, nil
}

func queryOf(raw string) string {
	if raw == "" {
		return ""
	}
	return "?" + raw
}

func containsText(list []string, text string) bool {
	for _, v := range list {
		if v == text {
			return true
		}
	}
	return false
}

// checkOwner refuses requests that only the owner of a Subscription, or an administrator, may
// make.
func checkOwner(ctx context.Context, row db.SubscriptionRow) error {
	p := access.PrincipalFrom(ctx)
	if p == nil || p.IsOpen() || p.Admin {
		return nil
	}
	if owner.Decode(row.Owner).IsPrincipal(p) {
		return nil
	}
	return outcome.New(outcome.CodeForbidden, "only the owner of Subscription/%s may do this", row.ID)
}

// newSecret answers POST /Subscription/{id}/$secret: the only time that it is told.
func (s *Service) newSecret(w http.ResponseWriter, r *http.Request) error {
	row, _, err := s.subscriptions.ReadVisible(r.Context(), access.Update, r.PathValue("id"))
	if err == nil {
		err = checkOwner(r.Context(), row)
	}
	if err != nil {
		return err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	n, err := s.db().SetSecret(r.Context(), db.SetSecretParams{Secret: key, ID: row.ID})
	if err != nil {
		return err
	}
	if n == 0 {
		return outcome.NotFound("Subscription", row.ID)
	}
	w.Header().Set("Cache-Control", "no-store")
	return sendJSON(w, r, http.StatusOK, map[string]string{"secret": webhook.FormatSecret(key)})
}

// testDelivery answers POST /Subscription/{id}/$test: it sends a test notification and
// tells what came back, as Parameters.
func (s *Service) testDelivery(w http.ResponseWriter, r *http.Request) error {
	contentType, err := s.answerFormat(r)
	if err != nil {
		return err
	}
	row, v, err := s.subscriptions.ReadVisible(r.Context(), access.Update, r.PathValue("id"))
	if err == nil {
		err = checkOwner(r.Context(), row)
	}
	if err != nil {
		return err
	}
	sub, err := s.subscriptions.Decode(v.Body)
	if err != nil {
		return err
	}
	c, err := s.subscriptions.Compile(r.Context(), row.ID, sub)
	if err != nil {
		return err
	}
	if c.Endpoint == nil {
		return subscription.Unprocessable("Subscription.channel.type", outcome.CodeNotSupported, "a subscription on the channel websocket has no endpoint to test")
	}
	id := uuid.NewString()
	body, sentType := s.messages.ComposeStatus(c, id, "heartbeat", sub.Status.Text, row.Events)
	result, answer := s.exchangeMessage(r.Context(), c, s.sender.FindKeys(row.Secret, row.PreviousSecret, row.SecretChanged.Time), id, sentType, body)
	type parameter map[string]any
	out := []parameter{
		{"name": "success", "valueBoolean": result.OK()},
		{"name": "notificationId", "valueString": id},
		{"name": "durationMs", "valueInteger": result.Duration.Milliseconds()},
	}
	if result.Status != 0 {
		out = append(out, parameter{"name": "status", "valueInteger": result.Status})
	}
	if result.Err != "" {
		out = append(out, parameter{"name": "error", "valueString": result.Err})
	}
	if text := strings.TrimSpace(strings.ToValidUTF8(string(answer[:min(len(answer), 2048)]), "")); text != "" {
		out = append(out, parameter{"name": "body", "valueString": text})
	}
	b, err := json.Marshal(map[string]any{"resourceType": "Parameters", "parameter": out})
	if err != nil {
		return err
	}
	web.ExchangeOf(w).Send(r, http.StatusOK, contentType, b, true)
	return nil
}

// maxRecipients and maxNotice bound a $notify.
const (
	maxRecipients = 10_000
	maxNotice     = 64 << 10 // bytes
)

// notifyUsers answers POST /{Type}/{id}/$notify.
func (s *Service) notifyUsers(w http.ResponseWriter, r *http.Request, typ string) error {
	var in struct {
		Recipients []string `json:"recipients"`
		Message    string   `json:"message"`
	}
	if err := s.watch.CheckServed(r.Context(), ""); err != nil {
		return err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return outcome.New(outcome.CodeTooLong, "the body cannot be read, or is longer than 1 MiB")
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return outcome.New(outcome.CodeStructure, `the body is not {"recipients": ["user"], "message": "text"}: %s`, outcome.JSONProblem(err))
	}
	if _, err := s.Store.Read(r.Context(), typ, r.PathValue("id")); err != nil {
		return err
	}
	notice, sent, err := s.NotifyUsers(r.Context(), typ, r.PathValue("id"), in.Recipients, in.Message)
	if err != nil {
		return err
	}
	return sendJSON(w, r, http.StatusAccepted, map[string]any{"id": notice, "recipients": sent})
}

// NotifyUsers sends a message about a resource to users, on whatever server
// they are connected. It returns the id of the notification and how many users get it.
func (s *Service) NotifyUsers(ctx context.Context, typ, id string, recipients []string, message string) (notice string, sent int, err error) {
	switch {
	case len(recipients) == 0:
		return "", 0, outcome.New(outcome.CodeRequired, "$notify needs recipients: a list of user ids or usernames")
	case len(recipients) > maxRecipients || len(message) > maxNotice:
		return "", 0, outcome.New(outcome.CodeTooLong, "$notify takes at most %d recipients and %d bytes of message", maxRecipients, maxNotice)
	case message == "":
		return "", 0, outcome.New(outcome.CodeRequired, "$notify needs a message")
	}
	notice = uuid.NewString()
	body, err := json.Marshal(map[string]string{
		"id": notice, "timestamp": matching.FormatInstant(time.Now()), "event": "notify", "resourceType": typ, "resourceId": id, "message": message,
	})
	if err != nil {
		return "", 0, err
	}
	var p db.AddMessagesParams
	seen := make(map[string]bool)
	for _, name := range recipients {
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		p.Ids = append(p.Ids, pgtype.UUID{Bytes: uuid.New(), Valid: true})
		p.Recipients = append(p.Recipients, name)
		p.Bodies = append(p.Bodies, string(body))
	}
	return notice, len(p.Ids), s.db().AddMessages(ctx, p)
}

// deliveryJSON is a delivery as administrators see it.
type deliveryJSON struct {
	ID             string          `json:"id"`
	Subscription   string          `json:"subscription"`
	NotificationID string          `json:"notificationId"`
	Event          string          `json:"event"`
	ResourceType   string          `json:"resourceType"`
	ResourceID     string          `json:"resourceId"`
	VersionID      string          `json:"versionId"`
	Status         string          `json:"status"`
	Attempts       []queue.Attempt `json:"attempts"`
	NextAttemptAt  *string         `json:"nextAttemptAt"`
}

func deliveryOf(r db.DeliveryRow) deliveryJSON {
	id := uuid.UUID(r.ID.Bytes).String()
	d := deliveryJSON{
		ID: id, Subscription: r.Subscriber, NotificationID: id, Event: matching.Kind(r.Event).String(), ResourceType: r.ResourceType,
		ResourceID: r.ResourceID, VersionID: strconv.Itoa(int(r.Version)), Status: queue.Status(r.Status).String(), Attempts: []queue.Attempt{},
	}
	_ = json.Unmarshal(r.Log, &d.Attempts) // written by json
	if queue.Status(r.Status) == queue.Pending {
		at := matching.FormatInstant(r.NextAttempt)
		d.NextAttemptAt = &at
	}
	return d
}

// subscriberOf is the subscriber in a parameter: an id, or "Subscription/<id>".
func subscriberOf(text string) string {
	if text == "" || strings.Contains(text, "/") {
		return text
	}
	return "Subscription/" + text
}

// deliveries answers GET /admin/notifications/deliveries, newest first.
func (s *Service) deliveries(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	count := 100
	if text := values.Get("_count"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return outcome.Invalid("_count is %q: expected a number above 0", outcome.Clip(text))
		}
		count = min(n, 1000)
	}
	p := db.DeliveriesParams{
		Subscriber: subscriberOf(values.Get("subscription")), Since: time.Unix(0, 0), Before: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		BeforeID: pgtype.UUID{Valid: true}, Count: int32(count) + 1,
	}
	if name := values.Get("status"); name != "" {
		status, ok := queue.Statuses[name]
		if !ok {
			return outcome.Invalid("status is %q: expected pending, processing, delivered or failed", outcome.Clip(name))
		}
		p.Status = status.Letter()
	}
	if text := values.Get("_since"); text != "" {
		at, err := matching.ParseInstant(text)
		if err != nil {
			return outcome.Invalid("_since is %q: expected an instant", outcome.Clip(text))
		}
		p.Since = at
	}
	if text := values.Get("_cursor"); text != "" {
		at, id, ok := strings.Cut(text, "_")
		micros, err := strconv.ParseInt(at, 10, 64)
		key, err2 := uuid.Parse(id)
		if !ok || err != nil || err2 != nil {
			return outcome.Invalid("_cursor is not one that this server has given out")
		}
		p.Before, p.BeforeID = time.UnixMicro(micros), pgtype.UUID{Bytes: key, Valid: true}
	}
	for name := range values {
		switch name {
		case "subscription", "status", "_since", "_count", "_cursor":
		default:
			return outcome.Invalid("there is no parameter %q: expected subscription, status, _since and _count", outcome.Clip(name))
		}
	}
	rows, err := s.db().Deliveries(r.Context(), p)
	if err != nil {
		return err
	}
	out := struct {
		Deliveries []deliveryJSON `json:"deliveries"`
		Next       *string        `json:"next"`
	}{Deliveries: []deliveryJSON{}}
	if len(rows) > count {
		rows = rows[:count]
		last := rows[count-1]
		values.Set("_cursor", strconv.FormatInt(last.Queued.UnixMicro(), 10)+"_"+uuid.UUID(last.ID.Bytes).String())
		next := "/admin/notifications/deliveries?" + values.Encode()
		out.Next = &next
	}
	for _, row := range rows {
		out.Deliveries = append(out.Deliveries, deliveryOf(db.DeliveryRow(row)))
	}
	return sendJSON(w, r, http.StatusOK, out)
}

// deliveryID reads the id of a path.
func deliveryID(r *http.Request) (pgtype.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return pgtype.UUID{}, noDelivery(r.PathValue("id"))
	}
	return pgtype.UUID{Bytes: id, Valid: true}, nil
}

func noDelivery(id string) error {
	return outcome.New(outcome.CodeNotFound, "there is no delivery %q", outcome.Clip(id))
}

func (s *Service) delivery(w http.ResponseWriter, r *http.Request) error {
	id, err := deliveryID(r)
	if err != nil {
		return err
	}
	row, err := s.db().Delivery(r.Context(), id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = noDelivery(r.PathValue("id"))
	}
	if err != nil {
		return err
	}
	return sendJSON(w, r, http.StatusOK, deliveryOf(row))
}

// redeliver answers POST /admin/notifications/deliveries/{id}/redeliver.
func (s *Service) redeliver(w http.ResponseWriter, r *http.Request) error {
	id, err := deliveryID(r)
	if err != nil {
		return err
	}
	subscribers, err := s.db().Redeliver(r.Context(), id)
	if err != nil {
		return err
	}
	if len(subscribers) == 0 {
		row, err := s.db().Delivery(r.Context(), id)
		if errors.Is(err, pgx.ErrNoRows) {
			return noDelivery(r.PathValue("id"))
		}
		if err != nil {
			return err
		}
		if queue.Status(row.Status) != queue.Processing {
			return outcome.New(outcome.CodeConflict, "%s is deleted: the delivery has no recipient", row.Subscriber)
		}
		return outcome.New(outcome.CodeConflict, "the delivery is %s just now", queue.Status(row.Status))
	}
	if err := s.makeDue(r.Context(), subscribers); err != nil {
		return err
	}
	row, err := s.db().Delivery(r.Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(w, r, http.StatusAccepted, deliveryOf(row))
}

func (s *Service) makeDue(ctx context.Context, subscribers []string) error {
	for _, id := range subscribers {
		if err := s.db().MakeDue(ctx, id); err != nil {
			return err
		}
	}
	s.queue.WakeUp()
	return nil
}

// redeliverDeadLetters answers POST /admin/notifications/dead-letters/redeliver.
func (s *Service) redeliverDeadLetters(w http.ResponseWriter, r *http.Request) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return outcome.Invalid("the query string cannot be read: %v", err)
	}
	subscribers := []string{subscriberOf(values.Get("subscription"))}
	if subscribers[0] == "" {
		if subscribers, err = s.db().FailedSubscribers(r.Context()); err != nil {
			return err
		}
	}
	total := int64(0)
	for _, id := range subscribers {
		n, err := s.db().RedeliverFailed(r.Context(), id)
		if err != nil {
			return err
		}
		total += n
	}
	if err := s.makeDue(r.Context(), subscribers); err != nil {
		return err
	}
	return sendJSON(w, r, http.StatusAccepted, map[string]int64{"redelivered": total})
}
