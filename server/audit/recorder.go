package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/target"
	"kiln/server/web"
)

// The values of audit.rest.
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
	kept    chan struct{} // has an element when groups were kept for later
	closing chan struct{} // closed when the last group was kept
	// ofWrite is the recent number of events of a row of audit_of_write; only makeKept uses it.
	ofWrite int64
}

// pending is an AuditEvent that is still to be made.
type pending struct {
	event Event
	body  func() ([]byte, error) // in its place, where it is not nil
}

const (
	// room is how many events wait at most; requests wait beyond it.
	room = 10_000
	// group is how many AuditEvents are written in one transaction.
	group = 32
	// gathered is how many events are taken at a time.
	gathered = 1024
	// pause lets events gather.
	pause = 50 * time.Millisecond
	// While more than one group of events arrives within a pause, on any server, making AuditEvents waits, because it
	// costs several times as much as a read: it gets one part in share of the time until no more arrive for calm.
	share = 30
	calm  = 200 * time.Millisecond
	// look is how often a server looks for groups that others have left.
	look = 2 * time.Second
	// ending limits the time that Close spends on pending events: the next start, or another server, makes the rest.
	ending = 10 * time.Second
	// settling bounds how long a search waits for the AuditEvents of writes.
	settling = 10 * time.Second
)

// Start begins to write recorded events.
func (a *Recorder) Start() {
	a.waiting = make(chan pending, room)
	a.kept, a.closing = make(chan struct{}, 1), make(chan struct{})
	a.done.Go(a.run)
	a.done.Go(a.makeKept)
}

// Close writes the waiting events. Later ones are lost.
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

// run writes the events of few requests at once, and stores the events of many for later.
func (a *Recorder) run() {
	defer close(a.closing)
	for e := range a.waiting {
		events := []pending{e}
		gather := time.NewTimer(pause)
	gathering:
		for len(events) < gathered {
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
		if len(events) <= group || !a.keep(events) {
			a.write(events)
		}
	}
}

// keep keeps events for later. It reports whether it could.
func (a *Recorder) keep(events []pending) bool {
	var groups [][]byte
	for some := range slices.Chunk(events, group) {
		list := make([]keptEvent, 0, len(some))
		for i := range some {
			if p := &some[i]; p.body == nil {
				list = append(list, keptEvent{Event: &p.event, At: p.event.Time.UnixMilli()})
			} else if body, err := p.body(); err == nil {
				list = append(list, keptEvent{Body: body})
			} else {
				a.Logger.Error("an AuditEvent cannot be made", slog.Any("error", err))
			}
		}
		text, err := json.Marshal(list)
		if err != nil {
			a.Logger.Error("AuditEvents cannot be made", slog.Any("error", err))
			return false
		}
		groups = append(groups, text)
	}
	if err := a.Store.KeepAuditPending(context.Background(), groups); err != nil {
		a.Logger.Error("audit events cannot be kept", slog.Int("events", len(events)), slog.Any("error", err))
		return false // writing them tries again
	}
	a.Wake()
	return true
}

// Wake makes the recorder write the pending AuditEvents soon.
func (a *Recorder) Wake() {
	select {
	case a.kept <- struct{}{}:
	default:
	}
}

// keptEvent is the stored form of a pending event: the input of the AuditEvent, or the whole of it.
type keptEvent struct {
	Event *Event          `json:"e,omitempty"`
	At    int64           `json:"t,omitempty"` // Event.Time, in Unix milliseconds
	Body  json.RawMessage `json:"b,omitempty"`
}

// Keep keeps AuditEvents with a transaction. Wake, once it is committed,
// has them stored soon, or, where they are many, when fewer come.
func (a *Recorder) Keep(ctx context.Context, t *store.Tx, bodies [][]byte) error {
	groups := make([][]byte, len(bodies))
	for i, body := range bodies {
		var err error
		if groups[i], err = json.Marshal([]keptEvent{{Body: body}}); err != nil {
			return err
		}
	}
	return t.KeepAudit(ctx, groups)
}

// makeKept makes AuditEvents of pending events, also of those of a server that has ended.
func (a *Recorder) makeKept() {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var recent pressure
	for more := true; ; {
		if !more {
			select {
			case <-a.kept:
				select { // more gather
				case <-time.After(pause):
				case <-a.closing:
				}
			case <-tick.C:
			case <-a.closing:
			}
		}
		began := time.Now()
		kept, err := a.Store.AuditKept(context.Background())
		found := false
		if err == nil {
			recent.look(began, kept, max(a.ofWrite, 1))
			found, err = a.makeSome(context.Background())
		}
		if err != nil {
			a.Logger.Error("AuditEvents of kept events cannot be written", slog.Any("error", err))
		}
		more = found && err == nil
		select {
		case <-a.closing:
			a.finish(more)
			return
		default:
		}
		if more && recent.high(began) {
			select {
			case <-time.After(share * time.Since(began)):
			case <-a.closing:
			}
		}
	}
}

// pressure is how fast events come to all servers together.
type pressure struct {
	kept store.AuditKept
	at   time.Time // when kept was looked at, zero before
	many time.Time // when many events came last
}

// look reads the number of events ever stored as pending. ofWrite is the number of events of a row of audit_of_write.
func (p *pressure) look(now time.Time, kept store.AuditKept, ofWrite int64) {
	came, within := group*(kept.Groups-p.kept.Groups)+ofWrite*(kept.OfWrites-p.kept.OfWrites), now.Sub(p.at)
	if !p.at.IsZero() && came > group && came*int64(pause) > group*int64(within) {
		p.many = now
	}
	p.kept, p.at = kept, now
}

// high reports whether many events came a short time ago.
func (p *pressure) high(now time.Time) bool { return now.Sub(p.many) < calm }

// makeSome makes AuditEvents of some pending events, those of writes first.
func (a *Recorder) makeSome(ctx context.Context) (found bool, err error) {
	var rows, events int
	found, err = a.Store.WriteAuditOfWrites(ctx, func(row []byte) []*store.Write {
		ws := a.writes(row)
		rows, events = rows+1, events+len(ws)
		return ws
	})
	if rows > 0 {
		a.ofWrite = int64(events / rows)
	}
	if found || err != nil {
		return found, err
	}
	return a.Store.WriteAuditPending(ctx, a.writes)
}

// finish makes AuditEvents of pending events while there is time.
func (a *Recorder) finish(more bool) {
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	defer cancel()
	for first := true; first || more; first = false {
		found, err := a.makeSome(ctx)
		if err != nil {
			a.Logger.Warn("AuditEvents are left for the next start", slog.Any("error", err))
			return
		}
		more = found
	}
}

// writes returns the writes of a pending group.
func (a *Recorder) writes(group []byte) []*store.Write {
	var list []keptEvent
	if err := json.Unmarshal(group, &list); err != nil {
		a.Logger.Error("kept audit events cannot be read", slog.Any("error", err))
		return nil
	}
	var ws []*store.Write
	bodies := make(map[string][]byte)
	for _, k := range list {
		body, err := []byte(k.Body), error(nil)
		if e := k.Event; e != nil {
			e.Time = time.UnixMilli(k.At)
			if e.Version != 0 && e.Patient == "" {
				e.body = a.version(e.Resource, e.Version, bodies)
			}
			body, err = e.JSON()
		}
		var w *store.Write
		if err == nil {
			w, err = a.make(body)
		}
		if err != nil {
			a.Logger.Error("an AuditEvent cannot be made", slog.Any("error", err))
			continue
		}
		ws = append(ws, w)
	}
	return ws
}

// make returns the write of an AuditEvent. It raises no event: the notification of an AuditEvent would lead to
// another one. docs/contract.md, Notifications, section 7.
func (a *Recorder) make(body []byte) (*store.Write, error) {
	w, err := a.Make(body)
	if err == nil {
		w.Unlogged = true
	}
	return w, err
}

// version reads the resource of an event, nil if it cannot be read: the event then names no patient.
func (a *Recorder) version(resource string, version int, known map[string][]byte) []byte {
	key := resource + "/" + strconv.Itoa(version)
	body, ok := known[key]
	if !ok {
		typ, id, _ := strings.Cut(resource, "/")
		v, err := a.versionOf(context.Background(), typ, id, version)
		if err == nil {
			body = v.Body
		} else {
			a.Logger.Warn("the patient of an audited read is not known", slog.String("resource", key), slog.Any("error", err))
		}
		known[key] = body
	}
	return body
}

// beforeDeletion is, as the version of an event, the last one that had content.
const beforeDeletion = -1

func (a *Recorder) versionOf(ctx context.Context, typ, id string, version int) (fhir.Version, error) {
	if version != beforeDeletion {
		return a.Store.VRead(ctx, typ, id, version)
	}
	last, err := a.Store.LastContent(ctx, typ, id)
	if err != nil || last == 0 {
		return fhir.Version{}, err
	}
	return a.Store.VRead(ctx, typ, id, last)
}

// write keeps events; it tries again as long as the database is away.
func (a *Recorder) write(events []pending) {
	var ws []*store.Write
	for i := range events {
		var w *store.Write
		body, err := events[i].json()
		if err == nil {
			w, err = a.make(body)
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

// Request is what AuditEvents say of a request.
type Request struct {
	recorder *Recorder
	base     Event
	all      bool        // reads as well
	written  atomic.Bool // a write was recorded with itself
	entries  atomic.Bool // entries speak for the bundle
	form     string      // parameters of a search by POST
}

// maxForm is the largest size in bytes of recorded parameters of a search by POST, the size of a URL.
const maxForm = 64 << 10

// NoteForm records the parameters of a POST that reads with the request: a search, or the run of a view.
func (q *Request) NoteForm(parameters []byte) {
	q.form = string(parameters[:min(len(parameters), maxForm)])
}

// BeginRequest returns the record of a request, nil for none, and the context in which its writes are recorded.
func (a *Recorder) BeginRequest(ctx context.Context, x *web.Exchange, r *http.Request) (context.Context, *Request) {
	mode := a.Rest()
	if mode == Off || mode == Writes && reads(r.Method, r.URL.Path) {
		return ctx, nil
	}
	q := &Request{recorder: a, base: a.EventOf(ctx, x, r), all: mode == All}
	x.Audited = true
	if reads(r.Method, r.URL.Path) {
		return ctx, q
	}
	return context.WithValue(store.WithAudit(ctx, q.events), requestKey{}, q), q
}

// requestKey finds in a context the Request whose writes it records.
type requestKey struct{}

// WithApp returns a context whose writes are recorded with an App as agent, whatever audit.rest
// says. Without a Request the principal of the context is the other agent.
func (a *Recorder) WithApp(ctx context.Context, app, requestID string) context.Context {
	q, _ := ctx.Value(requestKey{}).(*Request)
	return store.WithAudit(ctx, func(ws []store.Audited) ([]byte, error) {
		var e Event
		if q != nil {
			e = q.base
		} else {
			e = Event{Time: a.Now(), Outcome: Success, RequestID: requestID}
			if p := access.PrincipalFrom(ctx); p != nil {
				e.Subject, e.Client, e.FHIRUser = p.Subject, p.ClientID, p.FHIRUser
			}
		}
		e.App = app
		events, err := eventsOf(e, ws)
		if q != nil && events != nil {
			q.written.Store(true)
		}
		return events, err
	})
}

// reads reports whether a request changes nothing. A search may use POST.
func reads(method, path string) bool {
	t, err := target.Read(r4.Model, strings.TrimPrefix(strings.TrimPrefix(path, "/"), "fhir/"))
	if err != nil {
		t = target.Target{}
	}
	return t.Reads(method)
}

// EventOf returns an event with the facts of a request.
func (a *Recorder) EventOf(ctx context.Context, x *web.Exchange, r *http.Request) Event {
	e := Event{Time: a.Now(), Outcome: Success, RequestID: x.ID, Address: a.Proxies().ClientAddress(r).String(), Purpose: purpose(r)}
	if p := access.PrincipalFrom(ctx); p != nil {
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

// events returns the pending events of a transaction's writes, nil for none.
func (q *Request) events(ws []store.Audited) ([]byte, error) {
	events, err := eventsOf(q.base, ws)
	if events != nil {
		q.written.Store(true)
	}
	return events, err
}

// eventsOf are the events of writes, nil for none; base is common to them.
func eventsOf(base Event, ws []store.Audited) ([]byte, error) {
	var list []keptEvent
	for _, w := range ws {
		if w.ResourceType == "AuditEvent" || w.Nothing {
			continue // what deletes nothing tells nothing of the resource: it may be hidden
		}
		e := base
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
		switch {
		case w.ResourceType == "Patient":
			e.Patient = e.Resource
		case w.Method == fhir.DELETE:
			e.Version = beforeDeletion
		case mayNamePatient(w.JSON):
			e.Patient = patientOf(e.Resource, w.JSON)
		}
		list = append(list, keptEvent{Event: &e, At: e.Time.UnixMilli()})
	}
	if list == nil {
		return nil, nil
	}
	return json.Marshal(list)
}

// Settle makes the AuditEvents of every write that was acknowledged before: a search that
// could find them waits for it. It fails where that takes too long.
func (a *Recorder) Settle(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	err := a.Store.SettleAuditOfWrites(bounded, a.writes)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return outcome.Unavailable("AuditEvents of the latest writes are still being made: try again in a moment")
	}
	return err
}

// mayNamePatient is false for most resources without a patient. Escaped text may be a name.
func mayNamePatient(body []byte) bool {
	return bytes.Contains(body, []byte("Patient/")) || bytes.IndexByte(body, '\\') >= 0
}

// EndRequest records an answered request, unless its writes have recorded it. resource is the reference of its resource, ""
// for none; version is the version read, nil for none.
func (q *Request) EndRequest(x *web.Exchange, r *http.Request, resource string, version *fhir.Version) {
	status := x.Status()
	if q.written.Load() {
		q.recorder.Wake()
		if status < http.StatusBadRequest {
			return
		}
	}
	if x.Route == "options" || q.entries.Load() && status < http.StatusBadRequest {
		return
	}
	query := ""
	if strings.HasPrefix(x.Route, "search") || r.URL.RawQuery != "" || q.form != "" {
		query = strings.TrimSuffix(r.URL.Path+"?"+strings.Trim(r.URL.RawQuery+"&"+q.form, "&"), "?")
	}
	q.record(r.Method, x.Route, resource, query, status, version)
}

// AddEntry records an entry of a batch or transaction, as End does a request. url is
// relative to the service.
func (q *Request) AddEntry(method, interaction, resource, url string, status int, version *fhir.Version) {
	q.entries.Store(true)
	if path, _, _ := strings.Cut(url, "?"); !q.all && reads(method, path) {
		return
	}
	query := ""
	if strings.HasPrefix(interaction, "search") || strings.Contains(url, "?") {
		query = "/" + strings.TrimPrefix(url, "/")
	}
	q.record(method, interaction, resource, query, status, version)
}

// RecordRefusal records a request of which the token was refused, or that had none, where
// everything is recorded.
func (a *Recorder) RecordRefusal(ctx context.Context, x *web.Exchange, r *http.Request, interaction, resource string) {
	if a.Rest() != All {
		return
	}
	q := &Request{recorder: a, base: a.EventOf(ctx, x, r), all: true}
	x.Audited = true
	q.record(r.Method, interaction, resource, "", x.Status(), nil)
}

// byMethod is the interaction of a request that is none of FHIR.
var byMethod = map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}

// interactionOf is a kind of request in the words of
// http://hl7.org/fhir/restful-interaction.
func interactionOf(route, method string) string {
	switch route {
	case "bundle":
		return "batch"
	case "search-compartment":
		return "search"
	case "other", "":
		return cmp.Or(byMethod[method], "read")
	}
	return route
}

// actionOf returns the action of an interaction.
// Spec: https://hl7.org/fhir/R4/valueset-audit-event-action.html.
func actionOf(interaction, method string) string {
	switch {
	case strings.HasPrefix(interaction, "search"), interaction == "operation", interaction == "batch", interaction == "transaction":
		return "E"
	case interaction == "create":
		return "C"
	case method == http.MethodDelete:
		return "D"
	case method == http.MethodPut, method == http.MethodPatch:
		return "U"
	}
	return "R"
}

func (q *Request) record(method, route, resource, query string, status int, version *fhir.Version) {
	e := q.base
	e.Interaction = interactionOf(route, method)
	e.Action = actionOf(e.Interaction, method)
	switch {
	case status >= http.StatusInternalServerError:
		e.Outcome = Serious
	case status >= http.StatusBadRequest:
		e.Outcome = Minor
	}
	if status >= http.StatusBadRequest {
		e.Description = http.StatusText(status)
	}
	e.Resource, e.Query = resource, query
	switch {
	case strings.HasPrefix(resource, "Patient/"):
		e.Patient = patientOf(resource, nil)
	case version != nil && mayNamePatient(version.Body):
		e.Version, e.body = version.VersionID, bytes.Clone(version.Body)
	}
	q.recorder.Record(e)
}
