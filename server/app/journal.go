package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/app/sandbox"
	"kiln/server/notify/queue"
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

// levelNumber is the place of a level in levels, from 1; 0 for another text.
func levelNumber(name string) int16 {
	for i, l := range levels {
		if l == name {
			return int16(i + 1)
		}
	}
	return 0
}

// addLine adds a line to the log.
func (v *invocation) addLine(l sandbox.Line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lines = append(v.lines, l)
}

// addMessage adds a line of the server's own.
func (v *invocation) addMessage(name, text string, at time.Time) {
	v.addLine(sandbox.Line{Level: name, At: at.UTC(), Text: cleanText(text)})
}

// cleanText makes a text one that the database can hold.
func cleanText(s string) string {
	if len(s) > 4<<10 {
		s = s[:4<<10] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "")
}

// record is the stored record of a run of a handler.
type record struct {
	audit      *auditEvent // nil for none
	invocation *invocation
	line       *addedLine // nil for none
	written    chan error // nil where nobody waits
}

// addedLine is a line for an invocation that is in the journal already.
type addedLine struct {
	id uuid.UUID
	sandbox.Line
}

// journal stores the runs of handlers: AuditEvents, and the log of Apps. It writes many in one transaction; runs that
// change data wait for it.
type journal struct {
	ended  func(*invocation) // counts a run; may be nil
	store  *store.Store
	audit  queue.Audit
	logger *slog.Logger

	mu      sync.Mutex // of the next three
	waiting []*record
	closed  bool
	room    *sync.Cond    // of waiting, below journalRoom
	wake    chan struct{} // there are records; it holds one
	hurry   chan struct{} // they are not to wait for others; it holds one
	done    sync.WaitGroup
}

const (
	journalRoom  = 4096                  // records that wait; more have their callers wait
	journalGroup = 256                   // records of one transaction
	journalDelay = 50 * time.Millisecond // that a record waits for others, where nobody waits for it
)

func newJournal(s *store.Store, audit queue.Audit, logger *slog.Logger) *journal {
	j := &journal{store: s, audit: audit, logger: logger, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
	j.room = sync.NewCond(&j.mu)
	j.done.Go(j.run)
	return j
}

// signal puts a token into a channel that holds one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// close writes what waits.
func (j *journal) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	signal(j.wake)
	signal(j.hurry)
	j.done.Wait()
}

// addRecord keeps a record, and returns when it is written where wait is true. The first that waits
// wakes the journal, not each.
func (j *journal) addRecord(r *record, wait bool) error {
	if r.invocation != nil && j.ended != nil {
		j.ended(r.invocation)
	}
	if wait {
		r.written = make(chan error, 1)
	}
	j.mu.Lock()
	for len(j.waiting) >= journalRoom && !j.closed {
		j.room.Wait()
	}
	if j.closed {
		j.mu.Unlock()
		return errors.New("the server is stopping")
	}
	j.waiting = append(j.waiting, r)
	j.tell(wait)
	j.mu.Unlock()
	if !wait {
		return nil
	}
	return <-r.written
}

// tell has run begin, at once where somebody waits or the group is complete; mu is held.
func (j *journal) tell(waited bool) {
	if n := len(j.waiting); n == 1 || waited || n >= journalGroup {
		signal(j.wake)
		if waited || n >= journalGroup || j.closed {
			signal(j.hurry)
		}
	}
}

func (j *journal) run() {
	for range j.wake {
		delay := time.NewTimer(journalDelay)
		select {
		case <-j.hurry:
		case <-delay.C:
		}
		delay.Stop()
		group, last := j.take()
		if len(group) > 0 {
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
		if last {
			return
		}
	}
}

// take returns the records of one transaction, and whether they are the last.
func (j *journal) take() (group []*record, last bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := min(len(j.waiting), journalGroup)
	group = slices.Clone(j.waiting[:n])
	left := copy(j.waiting, j.waiting[n:])
	clear(j.waiting[left:])
	j.waiting = j.waiting[:left]
	j.room.Broadcast()
	if left > 0 {
		signal(j.wake)
		j.tell(j.closed || slices.ContainsFunc(j.waiting, func(r *record) bool { return r.written != nil }))
	}
	return group, j.closed && left == 0
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
			event, err := json.Marshal(r.audit)
			if err != nil {
				return err
			}
			audits = append(audits, event)
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
	q := db.New(t.Conn())
	if len(p.Ids) > 0 {
		if err := q.AddAppInvocations(ctx, p); err != nil {
			return err
		}
	}
	for _, r := range group { // their invocations are stored now
		if r.line == nil {
			continue
		}
		line, err := json.Marshal(r.line.Line)
		if err != nil {
			return err
		}
		if err := q.AddAppLine(ctx, db.AddAppLineParams{ID: pgtype.UUID{Bytes: r.line.id, Valid: true}, Line: line, Level: levelNumber(r.line.Level)}); err != nil {
			return err
		}
	}
	return nil
}

func appendInvocation(p *db.AddAppInvocationsParams, v *invocation) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	highest := int16(0)
	for i := range v.lines {
		highest = max(highest, levelNumber(v.lines[i].Level))
		v.lines[i].Text = cleanText(v.lines[i].Text)
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
	p.ResourceIds = append(p.ResourceIds, cleanText(v.resourceID))
	p.Durations = append(p.Durations, v.took.Microseconds())
	p.Outcomes = append(p.Outcomes, v.outcome)
	p.Statuses = append(p.Statuses, int32(v.status))
	p.RequestIds = append(p.RequestIds, cleanText(v.requestID))
	p.Levels = append(p.Levels, highest)
	p.Lines = append(p.Lines, string(lines))
	return nil
}

// keptInvocations bounds the log of one App.
const keptInvocations = 100_000

// deleteOldLogs deletes records older than their retention, until ctx ends.
func (p *Platform) deleteOldLogs(ctx context.Context) {
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

// Retain deletes log entries from before Config.LogRetention, entries of an App beyond 100,000, and the authors of
// versions that are no longer events.
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
