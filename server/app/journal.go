package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/app/sandbox"
	"kiln/server/notify"
	"kiln/server/store"
)

// invocation is one run of a handler, as the log of its App tells of it.
type invocation struct {
	id                       uuid.UUID
	app                      string
	operation, subscription  string // one of them
	resourceType, resourceID string
	requestID                string
	at                       time.Time
	took                     time.Duration
	outcome                  string // ok, error, timeout, memory
	status                   int    // of HTTP

	mu    sync.Mutex // of lines
	lines []sandbox.Line
}

// levels are the levels of lines, in ascending order.
var levels = []string{"debug", "info", "warn", "error"}

// level is the place of a level in levels, from 1; 0 for another text.
func level(name string) int16 {
	for i, l := range levels {
		if l == name {
			return int16(i + 1)
		}
	}
	return 0
}

// line adds a line to the log.
func (v *invocation) line(l sandbox.Line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = append(v.lines, l)
}

// say adds a line of the server's own.
func (v *invocation) say(name, text string, at time.Time) {
	v.line(sandbox.Line{Level: name, At: at.UTC(), Text: clean(text)})
}

// clean makes a text one that the database can hold.
func clean(s string) string {
	if len(s) > 4<<10 {
		s = s[:4<<10] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "")
}

// record is what is to be kept of a run of a handler.
type record struct {
	audit      []byte // an AuditEvent; nil for none
	invocation *invocation
	written    chan error // nil where nobody waits
}

// journal keeps the runs of handlers: AuditEvents, and the log of Apps. It writes many in
// one transaction; those who change data wait for it.
type journal struct {
	store  *store.Store
	audit  notify.Audit
	logger *slog.Logger

	mu      sync.RWMutex // held to add
	closed  bool
	waiting chan *record
	done    sync.WaitGroup
}

const (
	journalRoom  = 4096                  // records that wait; more have their callers wait
	journalGroup = 256                   // records of one transaction
	journalDelay = 50 * time.Millisecond // that a record waits for others, where nobody waits for it
)

func newJournal(s *store.Store, audit notify.Audit, logger *slog.Logger) *journal {
	j := &journal{store: s, audit: audit, logger: logger, waiting: make(chan *record, journalRoom)}
	j.done.Go(j.run)
	return j
}

// close writes what waits.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	close(j.waiting)
	j.mu.Unlock()
	j.done.Wait()
}

// add keeps a record, and returns when it is written where wait is true.
func (j *journal) add(r *record, wait bool) error {
	if wait {
		r.written = make(chan error, 1)
	}
	j.mu.RLock()
	if j.closed {
		j.mu.RUnlock()
		return errors.New("the server is stopping")
	}
	j.waiting <- r
	j.mu.RUnlock()
	if !wait {
		return nil
	}
	return <-r.written
}

func (j *journal) run() {
	for r := range j.waiting {
		group := j.gather(r)
		err := j.write(group)
		if err != nil {
			j.logger.Error("the runs of Apps cannot be recorded", slog.Int("runs", len(group)), slog.Any("error", err))
		}
		for _, r := range group {
			if r.written != nil {
				r.written <- err
			}
		}
	}
}

// gather returns the records of one transaction: first, and those that come while nobody
// waits for one of them.
func (j *journal) gather(first *record) []*record {
	group := []*record{first}
	delay := time.NewTimer(journalDelay)
	defer delay.Stop()
	waited := first.written != nil
	for len(group) < journalGroup {
		var r *record
		ok := false
		if waited {
			select {
			case r, ok = <-j.waiting:
			default:
			}
		} else {
			select {
			case r, ok = <-j.waiting:
			case <-delay.C:
			}
		}
		if !ok {
			break
		}
		group = append(group, r)
		waited = waited || r.written != nil
	}
	return group
}

// journalAttempts is how often a group of records is tried.
const journalAttempts = 3

// write keeps records in one transaction, trying again for a while.
func (j *journal) write(group []*record) (err error) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = j.store.InTx(ctx, func(t *store.Tx) error { return j.in(ctx, t, group) })
		cancel()
		if err == nil {
			j.audit.Wake()
			break
		}
		if attempt == journalAttempts {
			break
		}
		time.Sleep(time.Duration(attempt) * 100 * time.Millisecond) // the database tells nobody when it is back
	}
	return err
}

func (j *journal) in(ctx context.Context, t *store.Tx, group []*record) error {
	var audits [][]byte
	var p db.AddAppInvocationsParams
	for _, r := range group {
		if r.audit != nil {
			audits = append(audits, r.audit)
		}
		if v := r.invocation; v != nil {
			if err := appendInvocation(&p, v); err != nil {
				return err
			}
		}
	}
	if len(audits) > 0 {
		if err := j.audit.Keep(ctx, t, audits); err != nil {
			return err
		}
	}
	if len(p.Ids) == 0 {
		return nil
	}
	return db.New(t.Conn()).AddAppInvocations(ctx, p)
}

func appendInvocation(p *db.AddAppInvocationsParams, v *invocation) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	highest := int16(0)
	for i := range v.lines {
		highest = max(highest, level(v.lines[i].Level))
		v.lines[i].Text = clean(v.lines[i].Text)
	}
	lines := []byte("[]")
	if len(v.lines) > 0 {
		var err error
		if lines, err = json.Marshal(v.lines); err != nil {
			return err
		}
	}
	p.Ids = append(p.Ids, pgtype.UUID{Bytes: v.id, Valid: true})
	p.Apps = append(p.Apps, v.app)
	p.Ats = append(p.Ats, v.at)
	p.Operations = append(p.Operations, v.operation)
	p.Subscriptions = append(p.Subscriptions, v.subscription)
	p.ResourceTypes = append(p.ResourceTypes, v.resourceType)
	p.ResourceIds = append(p.ResourceIds, clean(v.resourceID))
	p.Durations = append(p.Durations, v.took.Microseconds())
	p.Outcomes = append(p.Outcomes, v.outcome)
	p.Statuses = append(p.Statuses, int32(v.status))
	p.RequestIds = append(p.RequestIds, clean(v.requestID))
	p.Levels = append(p.Levels, highest)
	p.Lines = append(p.Lines, string(lines))
	return nil
}

// keptInvocations bounds the log of one App.
const keptInvocations = 100_000

// retain deletes what is older than its retention, until ctx ends.
func (p *Platform) retain(ctx context.Context) {
	tick := time.NewTicker(10 * time.Minute)
	defer tick.Stop()
	for {
		if err := p.Retain(ctx); err != nil && ctx.Err() == nil {
			p.Logger.Warn("delete the old log of Apps", slog.Any("error", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Retain deletes the log of Apps from before Config.LogRetention, what is more than 100,000
// entries of an App, and who wrote versions that are no longer events.
func (p *Platform) Retain(ctx context.Context) error {
	q := db.New(p.Store.Pool())
	if _, err := q.TrimAppInvocations(ctx, db.TrimAppInvocationsParams{Before: p.Now().Add(-p.Config().LogRetention), Keep: keptInvocations}); err != nil {
		return err
	}
	_, err := q.TrimAppChains(ctx, p.Now().Add(-chainRetention))
	return err
}

// chainRetention is how long it is known who wrote a version: longer than an event waits
// to be matched.
const chainRetention = 30 * 24 * time.Hour
