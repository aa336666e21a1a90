package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/app/sandbox"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/store"
)

type dryKey struct{}

// dryRun collects the writes that a handler would have made.
type dryRun struct {
	newID  func() string
	writes []dryWrite
}

// dryWrite is something that was not done.
type dryWrite struct {
	Function string          `json:"function"` // of fhir; fetch, post
	Args     json.RawMessage `json:"args"`
}

// recordCall answers a call in place of the function, as if the write had been made.
func (d *dryRun) recordCall(function string, args json.RawMessage, a *hostArgs) (json.RawMessage, error) {
	if len(d.writes) >= 1000 {
		return nil, outcome.New(outcome.CodeTooCostly, "a replay has at most 1000 writes")
	}
	d.writes = append(d.writes, dryWrite{function, args})
	switch function {
	case "create":
		var object map[string]json.RawMessage
		if json.Unmarshal(a.Resource, &object) != nil || object == nil {
			return nil, outcome.Invalid("fhir.create needs a resource")
		}
		object["id"] = json.RawMessage(`"` + d.newID() + `"`)
		return json.Marshal(object)
	case "update":
		return a.Resource, nil
	case "transaction":
		return json.RawMessage(`{"resourceType":"Bundle","type":"transaction-response"}`), nil
	case "fetch":
		return nil, outcome.NotSupported("a replay fetches nothing")
	}
	return nil, nil
}

// replayed is an event as a replay tells of it.
type replayed struct {
	NotificationID string         `json:"notificationId"`
	Event          string         `json:"event"`
	ResourceType   string         `json:"resourceType"`
	ResourceID     string         `json:"resourceId"`
	VersionID      string         `json:"versionId"`
	Outcome        string         `json:"outcome"`
	Status         int            `json:"status"`
	DurationMS     int64          `json:"durationMs"`
	Writes         []dryWrite     `json:"writes"`
	Lines          []sandbox.Line `json:"lines"`
}

// The bounds of a replay.
const (
	maxReplayed = 1000    // events that pass the filter
	maxPassed   = 200_000 // events in all
	replayPage  = 500
)

// replay answers POST /admin/apps/{id}/replay {"subscription": 0, "since": "…"}: past events
// go through the handler of a subscription again, with the rights of the App, and nothing is
// written. docs/contract.md, Apps, section 6.
func (p *Platform) replay(w http.ResponseWriter, r *http.Request) error {
	id, _, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	var in struct {
		Subscription int    `json:"subscription"`
		Since        string `json:"since"`
		Count        int    `json:"count"`
	}
	if err := readJSON(w, r, &in, `{"subscription": 0, "since": "…"}`); err != nil {
		return err
	}
	low, _, err := fhir.ParseDate(in.Since)
	if err != nil {
		return outcome.Invalid("since is %q: expected an instant", clip(in.Since))
	}
	if in.Count <= 0 || in.Count > maxReplayed {
		in.Count = maxReplayed
	}
	e, err := p.subscriptionOf(r.Context(), id, in.Subscription)
	if err != nil {
		return err
	}
	events, more, err := p.past(r.Context(), e, time.UnixMicro(low), in.Count)
	if err != nil {
		return err
	}
	out := struct {
		Events []replayed `json:"events"`
		More   bool       `json:"more"` // there are more than were replayed
	}{Events: []replayed{}, More: more}
	caller, err := p.principal(r.Context(), e.app)
	if err != nil {
		return err
	}
	for _, event := range events {
		out.Events = append(out.Events, p.replayOne(access.WithPrincipal(r.Context(), caller), e, caller, event))
	}
	return sendJSON(w, r, http.StatusOK, out)
}

// subscriptionOf returns a subscription of an App of any status.
func (p *Platform) subscriptionOf(ctx context.Context, id string, number int) (*entry, error) {
	a, err := p.readApp(ctx, id)
	if err != nil {
		return nil, err
	}
	secrets, err := p.secrets(ctx)
	if err != nil {
		return nil, err
	}
	known, err := readIdentities(ctx, db.New(p.Store.Pool()), id)
	if err != nil {
		return nil, err
	}
	for _, e := range p.entries(a, secrets[id], known[id]) {
		if e.subscription != "" && e.place == number {
			return e, nil
		}
	}
	return nil, outcome.New(outcome.CodeNotFound, "App/%s has no subscription %d: they are counted from 0", id, number)
}

// past are events since an instant that a subscription is for, oldest first.
func (p *Platform) past(ctx context.Context, e *entry, since time.Time, count int) (events []*matching.Event, more bool, err error) {
	at, err := p.Store.ChangesSince(ctx, since)
	var trimmed *store.TrimmedError
	if errors.As(err, &trimmed) {
		return nil, false, outcome.New(outcome.CodeDeleted, "events are kept for a limited time, and events before %s are deleted", trimmed.Since.Format(time.RFC3339Nano))
	}
	if err != nil {
		return nil, false, err
	}
	for passed := 0; passed < maxPassed; passed += replayPage {
		changes, err := p.Store.Changes(ctx, at, replayPage)
		if err != nil || len(changes) == 0 {
			return events, false, err
		}
		at = changes[len(changes)-1].Position
		var keys []store.VersionKey
		types := make(map[int64]string)
		for _, c := range changes {
			if c.ResourceType == e.typ {
				keys, types[c.Ref] = append(keys, c.Key(), c.Previous()), c.ResourceType
			}
		}
		if len(keys) == 0 {
			continue
		}
		versions, err := p.Store.ChangedVersions(ctx, keys, types)
		if err != nil {
			return nil, false, err
		}
		for _, c := range changes {
			v, ok := versions[c.Key()]
			if !ok || c.ResourceType != e.typ || v.LastUpdated.Before(since) {
				continue
			}
			event := &matching.Event{Position: c.Position, Kind: matching.KindOf(c.Method), Version: v, Written: c.Written}
			if event.Kind == matching.Update || event.Kind == matching.Delete {
				event.Previous = versions[c.Previous()]
			}
			if !e.events.Has(event.Kind) || !e.filter.MatchesResource(subjectVersion(event).Body) {
				continue
			}
			if events = append(events, event); len(events) == count {
				return events, true, nil
			}
		}
	}
	return events, true, nil
}

// replayOne hands one event to the handler, dry.
func (p *Platform) replayOne(ctx context.Context, e *entry, caller *access.Principal, event *matching.Event) replayed {
	id := matching.NotificationIDIn(event.Position.Epoch, e.subscription, event.Version.ResourceType, event.Version.ID, event.Version.VersionID, event.Kind)
	hc := p.eventContext(e, caller, event, id)
	out := replayed{NotificationID: id.String(), Event: hc.Event, ResourceType: hc.ResourceType, ResourceID: hc.ResourceID, VersionID: hc.VersionID,
		Writes: []dryWrite{}, Lines: []sandbox.Line{}}
	ctx, cancel := context.WithTimeout(ctx, p.Config().WebhookTimeout)
	defer cancel()
	log := p.beginInvocation(e, hc)
	dry := &dryRun{newID: func() string { return uuid.NewString() }}
	switch {
	case e.remote != nil || e.internal != nil && e.internal.Name == "notify":
		// The handler is not called: its request is shown.
		hc.RequestID = ""
		text, err := hc.json(hc.Resource)
		if err == nil {
			dry.writes = append(dry.writes, dryWrite{"post", text})
		}
		log.Outcome, log.Status = "ok", http.StatusOK
	default:
		resp, err := p.invoke(context.WithValue(ctx, dryKey{}, dry), &invoking{entry: e, context: hc, log: log,
			params: interaction.OperationParams{ResourceType: e.typ, ID: hc.ResourceID}})
		resp.Release()
		p.endInvocation(log, resp, err)
	}
	out.Outcome, out.Status, out.DurationMS = log.Outcome, log.Status, log.Took.Milliseconds()
	out.Lines = append(out.Lines, log.Lines...)
	out.Writes = append(out.Writes, dry.writes...)
	for i := range out.Writes {
		if strings.TrimSpace(string(out.Writes[i].Args)) == "" {
			out.Writes[i].Args = json.RawMessage("null")
		}
	}
	return out
}
