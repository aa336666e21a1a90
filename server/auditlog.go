package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/interaction"
)

// auditLog writes what the authorization server tells of as AuditEvents, many in one
// batch, off the path of the requests.
type auditLog struct {
	s       *Server
	events  chan oauth.Event
	stopped sync.WaitGroup
	closing sync.Once
	mu      sync.RWMutex
	closed  bool
}

// How many events wait, and how many are written together. Where more happens than
// can be written, requests wait: none is lost.
const (
	maxWaitingEvents = 4096
	maxBatchedEvents = 200
)

func newAuditLog(s *Server) *auditLog {
	l := &auditLog{s: s, events: make(chan oauth.Event, maxWaitingEvents)}
	l.stopped.Go(l.run)
	return l
}

// add takes an event.
func (l *auditLog) add(e oauth.Event) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		l.events <- e
	}
}

// close writes what waits, and takes nothing more.
func (l *auditLog) close() {
	l.closing.Do(func() {
		l.mu.Lock()
		l.closed = true
		close(l.events)
		l.mu.Unlock()
	})
	l.stopped.Wait()
}

func (l *auditLog) run() {
	for e := range l.events {
		batch := []oauth.Event{e}
	more:
		for len(batch) < maxBatchedEvents {
			select {
			case e, ok := <-l.events:
				if !ok {
					break more
				}
				batch = append(batch, e)
			default:
				break more
			}
		}
		if err := l.write(batch); err != nil {
			l.s.Logger.Error("write audit events", slog.Int("events", len(batch)), slog.Any("error", err))
		}
	}
}

type object = map[string]any

func (l *auditLog) write(batch []oauth.Event) error {
	entries := make([]object, len(batch))
	for i, e := range batch {
		entries[i] = object{"resource": auditEvent(e), "request": object{"method": "POST", "url": "AuditEvent"}}
	}
	body, err := json.Marshal(object{"resourceType": "Bundle", "type": "batch", "entry": entries})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = l.s.Service.Bundle(access.With(ctx, access.Open), interaction.BundleParams{Body: body})
	return err
}

// The codes of an AuditEvent. DICOM PS3.16, CID 400 and CID 401.
var auditCodes = map[string]struct{ typ, typName, subtype, subtypeName, action string }{
	oauth.EventLogin:    {"110114", "User Authentication", "110122", "Login", "E"},
	oauth.EventLogout:   {"110114", "User Authentication", "110123", "Logout", "E"},
	oauth.EventToken:    {"110114", "User Authentication", "110114", "User Authentication", "E"},
	oauth.EventRevoke:   {"110114", "User Authentication", "110123", "Logout", "D"},
	oauth.EventRegister: {"110113", "Security Alert", "110137", "User security Attributes Changed", "C"},
	oauth.EventManage:   {"110113", "Security Alert", "110137", "User security Attributes Changed", "U"},
}

const dicom = "http://dicom.nema.org/resources/ontology/DCM"

func auditEvent(e oauth.Event) object {
	c := auditCodes[e.Kind]
	event := object{
		"resourceType": "AuditEvent",
		"type":         object{"system": dicom, "code": c.typ, "display": c.typName},
		"subtype":      []object{{"system": dicom, "code": c.subtype, "display": c.subtypeName}},
		"action":       c.action,
		"recorded":     e.Time.UTC().Format(time.RFC3339Nano),
		"outcome":      "0",
		"source":       object{"observer": object{"display": "Kiln authorization server"}},
	}
	if e.Failed {
		event["outcome"] = "4" // minor failure: the action was not carried out
	}
	if e.Detail != "" {
		event["outcomeDesc"] = e.Detail
	}
	agent := func(who object, network bool) object {
		a := object{"who": who, "requestor": network}
		if network && e.Address.IsValid() {
			a["network"] = object{"address": e.Address.String(), "type": "2"}
		}
		return a
	}
	var agents []object
	if e.User != "" {
		who := object{"display": e.User}
		if e.FHIRUser != "" {
			who["reference"] = e.FHIRUser
		}
		agents = append(agents, agent(who, true))
	}
	if e.Client != "" {
		agents = append(agents, agent(object{"display": e.Client}, e.User == ""))
	}
	if len(agents) == 0 {
		agents = append(agents, agent(object{"display": "unknown"}, true))
	}
	event["agent"] = agents
	if e.Object != "" {
		event["entity"] = []object{{"what": object{"display": e.Object}}}
	}
	return event
}
