package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/app/journal"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/webhook"
	"kiln/server/outcome"
)

// Events are notifications, as far as Apps need them: package notify.
type Events interface {
	// NewRule makes a rule of events of a type and of kinds that pass a test.
	NewRule(ctx context.Context, typ string, kinds matching.Kinds, query string, test func(ctx context.Context, e *matching.Event) bool) (matching.Rule, error)
	// Send sends a signed message to an endpoint.
	Send(ctx context.Context, m webhook.Message) webhook.Result
	// NotifyUsers sends a message about a resource to users.
	NotifyUsers(ctx context.Context, typ, id string, recipients []string, message string) (notify string, sent int, err error)
}

// Subscribers are the subscriptions of Apps, as subscribers of package notify: the ids are
// App/<id>/<number>. docs/contract.md, Apps, section 5.
type Subscribers struct {
	Platform *Platform
	// Rights decides which resources an App may see; nil lets it see everything.
	Rights owner.Rights
}

const subscriberPrefix = "App/"

func subscriberID(app string, number int) string {
	return subscriberPrefix + app + "/" + strconv.Itoa(number)
}

// handlerOf is the handler of a subscription as one of an operation, which has the same
// elements.
func handlerOf(h *r4.AppSubscriptionsHandler) *r4.AppOperationsHandler {
	if h == nil {
		return nil
	}
	out := &r4.AppOperationsHandler{Type_: h.Type_, URL: h.URL, Method: h.Method, Headers: h.Headers, Code: h.Code, Auth: h.Auth, AllowHosts: h.AllowHosts, Recursive: h.Recursive}
	if r := h.RetryPolicy; r != nil {
		out.RetryPolicy = &r4.AppOperationsHandlerRetryPolicy{MaxRetries: r.MaxRetries, BackoffSeconds: r.BackoffSeconds}
	}
	return out
}

// eventKinds are the events of Apps, by name.
var eventKinds = map[string]matching.Kind{"create": matching.Create, "update": matching.Update, "delete": matching.Delete, "vread": matching.VRead}

// kindsOf reads events.
func kindsOf(events []fhir.Code) (matching.Kinds, error) {
	var kinds matching.Kinds
	for i := range events {
		k, ok := eventKinds[events[i].Text]
		if !ok {
			return 0, fmt.Errorf("%q is no event: expected create, update, delete or vread", clip(events[i].Text))
		}
		kinds |= matching.KindsOf(k)
	}
	if kinds == 0 {
		return 0, errors.New("the subscription names no event: expected create, update, delete or vread")
	}
	return kinds, nil
}

// defaultBackoff are the times before further attempts without a retryPolicy.
var defaultBackoff = []time.Duration{10 * time.Second, 30 * time.Second, 60 * time.Second}

// policyOf is when events are handed over again.
func (p *Platform) policyOf(h *r4.AppOperationsHandler) webhook.Policy {
	policy := webhook.Policy{MaxAttempts: 1 + p.Config().WebhookRetries, Backoff: defaultBackoff}
	if h == nil || h.RetryPolicy == nil {
		return policy
	}
	if n, err := strconv.Atoi(h.RetryPolicy.MaxRetries.Text); err == nil {
		policy.MaxAttempts = 1 + n
	}
	if list := h.RetryPolicy.BackoffSeconds; len(list) > 0 {
		policy.Backoff = nil
		for i := range list {
			n, _ := strconv.Atoi(list[i].Text) // was checked
			policy.Backoff = append(policy.Backoff, time.Duration(n)*time.Second)
		}
	}
	return policy
}

// Prefix implements notify.SubscriberKind.
func (Subscribers) Prefix() string { return subscriberPrefix }

// ResourceType implements notify.SubscriberKind.
func (Subscribers) ResourceType() string { return "App" }

// Timeout implements notify.SubscriberKind.
func (s Subscribers) Timeout() time.Duration { return s.Platform.Config().WebhookTimeout }

// Load implements notify.SubscriberKind.
func (s Subscribers) Load(ctx context.Context, id string) ([]*matching.Subscriber, error) {
	p := s.Platform
	var apps []*r4.App
	if id == "" {
		var err error
		if apps, err = p.activeApps(ctx, p.Store); err != nil {
			return nil, err
		}
	} else {
		a, err := p.readApp(ctx, id)
		switch {
		case outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted):
			return nil, nil
		case err != nil:
			return nil, err
		case a.Status.Text == "active":
			apps = append(apps, a)
		}
	}
	known, err := readIdentities(ctx, db.New(p.Store.Pool()), id)
	if err != nil {
		return nil, err
	}
	var out []*matching.Subscriber
	for _, a := range apps {
		for _, e := range p.entries(a, nil, known[a.Header().ID.Text]) {
			if e.subscription == "" || e.events == 0 {
				continue
			}
			rule, err := p.Events.NewRule(ctx, e.typ, e.events, "", func(ctx context.Context, event *matching.Event) bool { return p.wanted(ctx, e, event) })
			if err != nil {
				return nil, err
			}
			out = append(out, &matching.Subscriber{ID: e.subscription, Rules: []matching.Rule{rule}, Queued: true})
		}
	}
	return out, nil
}

// subjectVersion is the version that an event is about: of a deletion the one deleted.
func subjectVersion(e *matching.Event) fhir.Version {
	if e.Kind == matching.Delete {
		return e.Previous
	}
	return e.Version
}

// wanted reports whether an event passes the filter, and is neither the App's own doing
// nor at the end of too long a chain.
func (p *Platform) wanted(ctx context.Context, e *entry, event *matching.Event) bool {
	if !e.filter.MatchesResource(subjectVersion(event).Body) {
		return false
	}
	if event.Kind == matching.VRead {
		return true
	}
	chain, err := p.callChain(ctx, event.Version)
	if err != nil {
		return true // Deliver asks again
	}
	if e.isOwnWrite(chain) {
		return false
	}
	if len(chain) >= maxDepth {
		p.cut(e, event, chain)
		return false
	}
	return true
}

// cut tells in the log that a chain of Apps has come to its end.
func (p *Platform) cut(e *entry, event *matching.Event, chain []string) {
	v := p.beginInvocation(e, &handlerContext{ResourceID: event.Version.ID})
	v.Outcome, v.Status = "error", http.StatusUnprocessableEntity
	v.AddMessage("error", fmt.Sprintf("the %s of %s/%s is not handed over: it was written at depth %d of a chain of Apps, %s, and a chain is cut there",
		event.Kind, event.Version.ResourceType, event.Version.ID, maxDepth, strings.Join(chain, " > ")), p.Now())
	p.Logger.Warn("a chain of Apps is cut", "app", e.app, "subscription", e.subscription, "chain", chain)
	_ = p.journal.AddRecord(&journal.Record{Invocation: v}, false)
}

// Policy implements notify.SubscriberKind. It fails where the database does not say which
// Apps are in force: an old policy, or none, would give an event up too soon.
func (s Subscribers) Policy(ctx context.Context, subscriber string) (webhook.Policy, error) {
	apps, err := s.Platform.currentSnapshot(ctx)
	if err != nil {
		return webhook.Policy{}, fmt.Errorf("the Apps in force are not known: %w", err)
	}
	if e := apps.subscriptions[subscriber]; e != nil {
		return e.policy, nil
	}
	return webhook.Policy{MaxAttempts: 1}, nil // Deliver gives it up
}

// Deliver implements notify.SubscriberKind.
func (s Subscribers) Deliver(ctx context.Context, subscriber string, d *queue.Delivery, body []byte) webhook.Result {
	p := s.Platform
	result := webhook.Result{At: time.Now()}
	defer func() { result.Duration = time.Since(result.At) }()
	fail := func(format string, args ...any) webhook.Result {
		result.Err = fmt.Sprintf(format, args...)
		return result
	}
	apps, err := p.currentSnapshot(ctx)
	if err != nil {
		return fail("the Apps in force are not known")
	}
	e := apps.subscriptions[subscriber]
	switch {
	case e == nil:
		result.Gone = true
		return fail("the App is not active, or no longer has this subscription: none has its name or its content")
	case !p.Config().Enabled:
		result.RetryAfter = time.Minute
		return fail("the feature %s is off", FlagApps)
	}
	caller, err := p.principal(ctx, e.app)
	if outcome.Is(err, outcome.CodeForbidden) {
		result.Withheld = true
		return result
	}
	if err != nil {
		return fail("the rights of the App are not known")
	}
	ctx = access.WithPrincipal(ctx, caller)
	v := subjectVersion(d.Event)
	if s.Rights != nil && !caller.IsOpen() {
		seen, err := s.Rights.Sees(ctx, caller, v, p.index(v))
		if err != nil {
			return fail("the App's right to read the resource could not be checked")
		}
		if !seen {
			result.Withheld = true
			return result
		}
		if before := d.Event.Previous; d.Event.Kind == matching.Update && len(before.Body) > 0 {
			if seen, err = s.Rights.Sees(ctx, caller, before, p.index(before)); err != nil {
				return fail("the App's right to read the version before could not be checked")
			}
			if !seen { // each version is decided by itself
				d.Event.Previous = fhir.Version{}
			}
		}
	}
	if d.Event.Kind != matching.VRead {
		chain, err := p.callChain(ctx, d.Event.Version)
		if err != nil {
			return fail("the author of the resource is not known")
		}
		if e.isOwnWrite(chain) {
			result.Withheld = true
			return result
		}
		ctx = context.WithValue(ctx, chainKey{}, chain)
	}
	if ctx, err = p.enterRecursion(ctx, e, d.ID.String()); err != nil {
		result.Gone = true
		return fail("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, p.Config().WebhookTimeout)
	defer cancel()
	hc := p.eventContext(e, caller, d.Event, d.ID)
	log := p.beginInvocation(e, hc)
	result = p.deliver(ctx, e, d, body, hc, log)
	_ = p.journal.AddRecord(&journal.Record{Invocation: log}, false)
	d.Run = log.ID
	return result
}

// deliver hands an event over to the handler.
func (p *Platform) deliver(ctx context.Context, e *entry, d *queue.Delivery, body []byte, hc *handlerContext, log *journal.Invocation) webhook.Result {
	if e.remote != nil && e.broken == nil {
		r := p.post(ctx, e, d.ID, body)
		log.Took, log.Status, log.Outcome = r.Duration, r.Status, "ok"
		switch {
		case r.TimedOut:
			log.Outcome, log.Status = "timeout", http.StatusGatewayTimeout
		case !r.OK():
			log.Outcome = "error"
		}
		if !r.OK() {
			log.AddMessage("error", r.Err, p.Now())
		}
		return r
	}
	result := webhook.Result{At: time.Now()}
	resp, err := p.invoke(ctx, &invoking{entry: e, context: hc, log: log,
		params: interaction.OperationParams{ResourceType: e.typ, ID: hc.ResourceID, Values: url.Values{}}})
	resp.Release()
	p.endInvocation(log, resp, err)
	result.Duration, result.Status = time.Since(result.At), log.Status
	if err != nil {
		result.Err, result.TimedOut = "internal error", log.Outcome == "timeout"
		if o, ok := outcome.From(err); ok {
			result.Err = o.Error()
		}
	}
	return result
}

// post sends the notification, with the App beside the other fields.
func (p *Platform) post(ctx context.Context, e *entry, id uuid.UUID, body []byte) webhook.Result {
	u, err := url.Parse(e.remote.url)
	headers := e.remote.headers.Clone()
	headers.Set("X-App-Id", e.app)
	headers.Set("X-Resource-Type", e.typ)
	if e.remote.auth == "app" && err == nil {
		var token string
		if token, err = p.bearerToken(ctx, e, ""); token != "" {
			headers.Set("Authorization", "Bearer "+token)
		}
	}
	if err != nil {
		return webhook.Result{At: time.Now(), Err: "the request cannot be made"}
	}
	return p.Events.Send(ctx, webhook.Message{Method: e.remote.method, URL: u, Header: headers, ID: id.String(), Subscriber: e.subscription,
		ContentType: "application/json", Body: message(e, body), Timeout: p.Config().WebhookTimeout})
}

// message is a Notification message with the App.
func message(e *entry, body []byte) []byte {
	out := append(append([]byte(nil), body[:len(body)-1]...), `,"app":`...)
	return append(append(out, appName{e.app, e.version}.json()...), '}')
}

// eventContext is the context of a handler for an event.
func (p *Platform) eventContext(e *entry, c *access.Principal, event *matching.Event, id uuid.UUID) *handlerContext {
	hc := &handlerContext{Type: "event", ResourceType: e.typ, ResourceID: event.Version.ID, Resource: event.Version.Body, App: appName{e.app, e.version},
		Event: event.Kind.String(), VersionID: strconv.Itoa(event.Version.VersionID), Previous: event.Previous.Body, Notification: id.String(), Subscription: e.subscription,
		RequestID: id.String()}
	if len(hc.Resource) == 0 {
		hc.Resource = nil
	}
	if c != nil {
		hc.User, hc.Client = user{c.Subject, c.FHIRUser, c.Roles}, c.ClientID
	}
	return hc
}

// index returns the index entries of a version, nil if they cannot be determined.
func (p *Platform) index(v fhir.Version) *fhir.Index {
	if len(v.Body) == 0 {
		return nil
	}
	r, err := p.Store.Indexer().Decode(v.Body)
	if err != nil {
		return nil
	}
	x, _ := p.Store.Indexer().Index(v.ID, r)
	return x
}

// DeadLetter implements notify.SubscriberKind. The log tells it with the last run; where there
// was none, as of a chain that is cut, in an entry of its own.
func (s Subscribers) DeadLetter(ctx context.Context, subscriber string, d *queue.Delivery, reason string) {
	p := s.Platform
	const level = "error"
	text := fmt.Sprintf("given up after %d attempts, a dead letter now: %s", d.Attempts+1, reason)
	if d.Run != uuid.Nil {
		_ = p.journal.AddRecord(&journal.Record{Line: &journal.AddedLine{ID: d.Run, Line: sandbox.Line{Level: level, At: p.Now().UTC(), Text: journal.CleanText(text)}}}, false)
		return
	}
	e := p.latestSnapshot().subscriptions[subscriber]
	if e == nil {
		return
	}
	v := p.beginInvocation(e, &handlerContext{ResourceID: d.Event.Version.ID, RequestID: d.ID.String()})
	v.Outcome, v.Status = "error", http.StatusUnprocessableEntity
	v.AddMessage(level, text, p.Now())
	_ = p.journal.AddRecord(&journal.Record{Invocation: v}, false)
}
