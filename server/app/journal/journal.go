// Package journal stores the runs of handlers of Apps: AuditEvents, and the log of each App.
package journal

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

// An Invocation is one run of a handler, as the log of its App tells of it.
type Invocation struct {
	ID                       uuid.UUID
	App                      string
	Operation, Subscription  string // one of them
	ResourceType, ResourceID string
	RequestID                string
	At                       time.Time
	Took                     time.Duration
	Outcome                  string // ok, error, timeout, memory
	Status                   int    // of HTTP

	mu    sync.Mutex // of Lines
	Lines []sandbox.Line
}

// Levels are the levels of lines, in ascending order.
var Levels = []string{"debug", "info", "warn", "error"}

// NumberOfLevel is the place of a level in Levels, from 1; 0 for another text.
func NumberOfLevel(name string) int16 {
	for i, l := range Levels {
		if l == name {
			return int16(i + 1)
		}
	}
	return 0
}

// AddLine adds a line to the log.
func (v *Invocation) AddLine(l sandbox.Line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.Lines = append(v.Lines, l)
}

// AddMessage adds a line of the server's own.
func (v *Invocation) AddMessage(name, text string, at time.Time) {
	v.AddLine(sandbox.Line{Level: name, At: at.UTC(), Text: CleanText(text)})
}

// CleanText makes a text one that the database can hold.
func CleanText(s string) string {
	if len(s) > 4<<10 {
		s = s[:4<<10] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "")
}

// A Record is the stored record of a run of a handler.
type Record struct {
	Audit      *AuditEvent // nil for none
	Invocation *Invocation
	Line       *AddedLine // nil for none
	written    chan error // nil where nobody waits
}

// An AddedLine is a line for an invocation that is in the Journal already.
type AddedLine struct {
	ID uuid.UUID
	sandbox.Line
}

// A Journal stores the runs of handlers: AuditEvents, and the log of Apps. It writes many in one transaction; runs that
// change data wait for it.
type Journal struct {
	// Ended is called with each run that ends; it may be nil. It is set before the first run.
	Ended  func(*Invocation)
	store  *store.Store
	audit  queue.Audit
	logger *slog.Logger

	mu      sync.Mutex // of the next three
	waiting []*Record
	closed  bool
	room    *sync.Cond    // of waiting, below maxWaiting
	wake    chan struct{} // there are records; it holds one
	hurry   chan struct{} // they are not to wait for others; it holds one
	done    sync.WaitGroup
}

const (
	maxWaiting = 4096                  // records that wait; more have their callers wait
	groupSize  = 256                   // records of one transaction
	groupDelay = 50 * time.Millisecond // that a record waits for others, where nobody waits for it
)

// New returns a Journal that has begun; Close ends it.
func New(s *store.Store, audit queue.Audit, logger *slog.Logger) *Journal {
	j := &Journal{store: s, audit: audit, logger: logger, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1)}
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

// Close writes the waiting records.
func (j *Journal) Close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	signal(j.wake)
	signal(j.hurry)
	j.done.Wait()
}

// AddRecord keeps a record, and returns when it is written where wait is true. The first that waits
// wakes the journal, not each.
func (j *Journal) AddRecord(r *Record, wait bool) error {
	if r.Invocation != nil && j.Ended != nil {
		j.Ended(r.Invocation)
	}
	if wait {
		r.written = make(chan error, 1)
	}
	j.mu.Lock()
	for len(j.waiting) >= maxWaiting && !j.closed {
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
func (j *Journal) tell(waited bool) {
	if n := len(j.waiting); n == 1 || waited || n >= groupSize {
		signal(j.wake)
		if waited || n >= groupSize || j.closed {
			signal(j.hurry)
		}
	}
}

func (j *Journal) run() {
	for range j.wake {
		delay := time.NewTimer(groupDelay)
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
func (j *Journal) take() (group []*Record, last bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := min(len(j.waiting), groupSize)
	group = slices.Clone(j.waiting[:n])
	left := copy(j.waiting, j.waiting[n:])
	clear(j.waiting[left:])
	j.waiting = j.waiting[:left]
	j.room.Broadcast()
	if left > 0 {
		signal(j.wake)
		j.tell(j.closed || slices.ContainsFunc(j.waiting, func(r *Record) bool { return r.written != nil }))
	}
	return group, j.closed && left == 0
}

// maxAttempts is how often a group of records is tried.
const maxAttempts = 3

// write keeps records in one transaction, trying again for a while.
func (j *Journal) write(group []*Record) (err error) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err = j.store.InTx(ctx, func(t *store.Tx) error { return j.in(ctx, t, group) })
		cancel()
		if err == nil {
			j.audit.Wake()
			break
		}
		if attempt == maxAttempts {
			break
		}
		time.Sleep(time.Duration(attempt) * 100 * time.Millisecond) // the database tells nobody when it is back
	}
	return err
}

func (j *Journal) in(ctx context.Context, t *store.Tx, group []*Record) error {
	var audits [][]byte
	var p db.AddAppInvocationsParams
	for _, r := range group {
		if r.Audit != nil {
			event, err := json.Marshal(r.Audit)
			if err != nil {
				return err
			}
			audits = append(audits, event)
		}
		if v := r.Invocation; v != nil {
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
		if r.Line == nil {
			continue
		}
		line, err := json.Marshal(r.Line.Line)
		if err != nil {
			return err
		}
		if err := q.AddAppLine(ctx, db.AddAppLineParams{ID: pgtype.UUID{Bytes: r.Line.ID, Valid: true}, Line: line, Level: NumberOfLevel(r.Line.Level)}); err != nil {
			return err
		}
	}
	return nil
}

func appendInvocation(p *db.AddAppInvocationsParams, v *Invocation) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	highest := int16(0)
	for i := range v.Lines {
		highest = max(highest, NumberOfLevel(v.Lines[i].Level))
		v.Lines[i].Text = CleanText(v.Lines[i].Text)
	}
	lines := []byte("[]")
	if len(v.Lines) > 0 {
		var err error
		if lines, err = json.Marshal(v.Lines); err != nil {
			return err
		}
	}
	p.Ids = append(p.Ids, pgtype.UUID{Bytes: v.ID, Valid: true})
	p.Apps = append(p.Apps, v.App)
	p.Ats = append(p.Ats, v.At)
	p.Operations = append(p.Operations, v.Operation)
	p.Subscriptions = append(p.Subscriptions, v.Subscription)
	p.ResourceTypes = append(p.ResourceTypes, v.ResourceType)
	p.ResourceIds = append(p.ResourceIds, CleanText(v.ResourceID))
	p.Durations = append(p.Durations, v.Took.Microseconds())
	p.Outcomes = append(p.Outcomes, v.Outcome)
	p.Statuses = append(p.Statuses, int32(v.Status))
	p.RequestIds = append(p.RequestIds, CleanText(v.RequestID))
	p.Levels = append(p.Levels, highest)
	p.Lines = append(p.Lines, string(lines))
	return nil
}
