package audit

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// What is recorded of REST (audit.rest).
const (
	Off    = "off"
	Writes = "writes"
	All    = "all"
)

// Recorder makes AuditEvents. Its fields are set before Start.
type Recorder struct {
	// Rest says what of REST is recorded: Off, Writes or All.
	Rest func() string
	// Make makes the write of a new AuditEvent.
	Make    func(body []byte) (*store.Write, error)
	Store   *store.Store
	Proxies func() web.Proxies
	Now     func() time.Time
	Logger  *slog.Logger

	waiting chan pending
	done    sync.WaitGroup
	mu      sync.RWMutex // held for reading while something is added to waiting
	closed  bool
}

// pending is an AuditEvent that is still to be made.
type pending struct {
	event Event
	body  func() ([]byte, error) // in its place, where it is not nil
}

const (
	// room is how many events wait at most; requests wait beyond it.
	room = 10_000
	// group is how many are written in one transaction.
	group = 32
	// pause lets events gather.
	pause = 50 * time.Millisecond
)

// Start begins to write what is recorded.
func (a *Recorder) Start() {
	a.waiting = make(chan pending, room)
	a.done.Go(a.run)
}

// Close writes what waits. What is recorded later is lost.
func (a *Recorder) Close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.waiting)
	}
	a.mu.Unlock()
	a.done.Wait()
}

// Record keeps an event soon.
func (a *Recorder) Record(e Event) {
	if e.Time.IsZero() {
		e.Time = a.Now()
	}
	a.add(pending{event: e})
}

// RecordBody keeps soon the AuditEvent that body makes, off the path of the request.
func (a *Recorder) RecordBody(body func() ([]byte, error)) { a.add(pending{body: body}) }

func (a *Recorder) add(p pending) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if !a.closed {
		a.waiting <- p
	}
}

func (a *Recorder) run() {
	for e := range a.waiting {
		events := []pending{e}
		gather := time.NewTimer(pause)
	gathering:
		for len(events) < group {
			select {
			case e, ok := <-a.waiting:
				if !ok {
					break gathering
				}
				events = append(events, e)
			case <-gather.C:
				break gathering
			}
		}
		gather.Stop()
		a.write(events)
	}
}

// write keeps events; it tries again as long as the database is away.
func (a *Recorder) write(events []pending) {
	var ws []*store.Write
	for i := range events {
		var w *store.Write
		body, err := events[i].json()
		if err == nil {
			w, err = a.Make(body)
		}
		if err != nil {
			a.Logger.Error("an AuditEvent cannot be made", slog.Any("error", err))
			continue
		}
		ws = append(ws, w)
	}
	for attempt := 1; len(ws) > 0; attempt++ {
		err := a.Store.WriteAll(context.Background(), ws)
		if err == nil {
			return
		}
		a.Logger.Error("AuditEvents cannot be kept", slog.Int("events", len(ws)), slog.Int("attempt", attempt), slog.Any("error", err))
		if attempt == 10 || !outcome.Ours(err) {
			return
		}
		time.Sleep(min(time.Duration(attempt)*200*time.Millisecond, 2*time.Second))
	}
}

func (p *pending) json() ([]byte, error) {
	if p.body != nil {
		return p.body()
	}
	return p.event.JSON()
}

func (a *Recorder) make(e *Event) (*store.Write, error) {
	body, err := e.JSON()
	if err != nil {
		return nil, err
	}
	return a.Make(body)
}

// Request is what AuditEvents say of a request.
type Request struct {
	recorder *Recorder
	base     Event
	written  bool // a write was recorded with itself
}

// Begin returns what is recorded of a request, nil where nothing is, and the context
// in which its writes are recorded.
func (a *Recorder) Begin(ctx context.Context, x *web.Exchange, r *http.Request) (context.Context, *Request) {
	mode := a.Rest()
	if mode == Off || mode == Writes && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return ctx, nil
	}
	q := &Request{recorder: a, base: a.Of(ctx, x, r)}
	x.Audited = true
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return ctx, q
	}
	return store.WithCompanions(ctx, q.companions), q
}

// Of is an event with what is known of a request.
func (a *Recorder) Of(ctx context.Context, x *web.Exchange, r *http.Request) Event {
	e := Event{Time: a.Now(), Outcome: Success, RequestID: x.ID, Address: a.Proxies().Client(r).String(), Purpose: purpose(r)}
	if p := access.From(ctx); p != nil {
		e.Subject, e.Client, e.FHIRUser, e.Patient = p.Subject, p.ClientID, p.FHIRUser, ""
	}
	return e
}

// purpose is the purpose of use that the client names, a code of v3 ActReason.
func purpose(r *http.Request) string {
	code := r.Header.Get("X-Purpose-Of-Use")
	if len(code) > 20 || strings.ContainsFunc(code, func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' }) {
		return ""
	}
	return code
}

// companions are the AuditEvents of writes.
func (q *Request) companions(_ context.Context, ws []*store.Write) ([]*store.Write, error) {
	var out []*store.Write
	for _, w := range ws {
		if w.ResourceType == "AuditEvent" {
			continue
		}
		e := q.base
		e.Resource = w.ResourceType + "/" + w.ID
		switch w.Method {
		case fhir.POST:
			e.Interaction, e.Action = "create", "C"
		case fhir.PUT:
			e.Interaction, e.Action = "update", "U"
		case fhir.PATCH:
			e.Interaction, e.Action = "patch", "U"
		case fhir.DELETE:
			e.Interaction, e.Action = "delete", "D"
		}
		if w.ResourceType == "Patient" {
			e.Patient = e.Resource
		} else if w.Resource != nil {
			e.body = w.Resource.Header().Raw
		}
		a, err := q.recorder.make(&e)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	q.written = true
	return out, nil
}

// End records a request that has been answered, unless its writes were recorded
// with themselves. resource is what it was about, "" for nothing single; version
// what was read, nil for nothing.
func (q *Request) End(x *web.Exchange, r *http.Request, resource string, version *fhir.Version) {
	status := x.Status()
	if q.written && status < http.StatusBadRequest {
		return
	}
	e := q.base
	e.Interaction = x.Route
	switch {
	case r.Method == http.MethodDelete:
		e.Action = "D"
	case r.Method == http.MethodPut || r.Method == http.MethodPatch:
		e.Action = "U"
	case x.Route == "create":
		e.Action = "C"
	case r.Method == http.MethodGet && x.Route != "operation" || strings.HasPrefix(x.Route, "search"):
		e.Action = "R"
		if strings.HasPrefix(x.Route, "search") {
			e.Action = "E"
		}
	default:
		e.Action = "E"
	}
	switch {
	case status >= http.StatusInternalServerError:
		e.Outcome = Serious
	case status >= http.StatusBadRequest:
		e.Outcome = Minor
	}
	if status >= http.StatusBadRequest {
		e.Description = http.StatusText(status)
	}
	e.Resource = resource
	if version != nil && version.Body != nil {
		e.body = append([]byte(nil), version.Body...)
	} else if strings.HasPrefix(resource, "Patient/") {
		e.Patient = resource
	}
	if strings.HasPrefix(x.Route, "search") || r.URL.RawQuery != "" {
		e.Query = strings.TrimSuffix(r.URL.Path+"?"+r.URL.RawQuery, "?")
	}
	q.recorder.Record(e)
}
