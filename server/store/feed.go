package store

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"kiln/gen/db"
)

// Feed wakes the readers of the change log after commits. A server wakes its own readers at
// once. One NOTIFY for all commits of a few milliseconds wakes the readers of other
// servers. It is sent on a connection of its own: inside the transactions NOTIFY makes
// commits wait for each other. A wake-up is only a hint. Readers also look again after
// Poll, so everything is right without any NOTIFY.
type Feed struct {
	store *Store
	poll  atomic.Int64 // time.Duration
	log   *slog.Logger

	committed chan struct{} // has an element when this server has committed since the last NOTIFY
	stop      context.CancelFunc
	done      sync.WaitGroup

	reading chan struct{} // has an element while a reader looks
	recent  recentChanges // of who looks

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

const (
	feedChannel = "kiln_change"
	// notifyInterval is the least time between two NOTIFYs of a server.
	notifyInterval = 5 * time.Millisecond
	// lookInterval is the least time between two looks of a reader at the change log:
	// beside steady writes each would find a few changes, and cost as much as a write.
	// A reader that was stopped by a transaction which is still running looks again
	// after it, since nobody tells when that ends without a change.
	lookInterval = 10 * time.Millisecond
	// idleInterval is lookInterval of a reader that nothing is of interest to.
	idleInterval = 100 * time.Millisecond
	// readerLease is how long a server has a named reader after its last sign of life.
	readerLease = 10 * time.Second
	// moveInterval is the longest that a named reader is ahead of its stored position
	// while its work stores nothing.
	moveInterval = 250 * time.Millisecond
)

// NewFeed starts the wake-ups of a Store; poll is the longest that a reader sleeps,
// 0 means a second. A Store has one Feed.
func NewFeed(s *Store, poll time.Duration) *Feed {
	ctx, stop := context.WithCancel(context.Background())
	f := &Feed{store: s, log: s.log, committed: make(chan struct{}, 1), stop: stop, reading: make(chan struct{}, 1), watchers: make(map[chan struct{}]struct{})}
	f.Poll(poll)
	f.done.Go(func() { f.notify(ctx) })
	f.done.Go(func() { f.listen(ctx) })
	s.feed.Store(f)
	return f
}

// Poll sets the longest that a reader sleeps, 0 is a second.
func (f *Feed) Poll(d time.Duration) {
	if d <= 0 {
		d = time.Second
	}
	f.poll.Store(int64(d))
}

// Close ends the wake-ups. Readers still poll.
func (f *Feed) Close() {
	f.store.feed.CompareAndSwap(f, nil)
	f.stop()
	f.done.Wait()
}

// announceChange notes that a transaction of this server has committed changes.
func (s *Store) announceChange() {
	if f := s.feed.Load(); f != nil {
		select {
		case f.committed <- struct{}{}:
		default:
		}
	}
}

// wake lets every reader of this server look.
func (f *Feed) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// notify passes on the commits of this server.
func (f *Feed) notify(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { closeQuietly(conn) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.committed:
		}
		f.wake()
		var err error
		if conn == nil {
			conn, err = f.connect(ctx)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "NOTIFY "+feedChannel)
		}
		if err != nil && ctx.Err() == nil {
			f.log.Warn("other servers are not notified of changes and find them by polling", "error", err)
			closeQuietly(conn)
			conn = nil
			if !SleepFor(ctx, time.Second) {
				return
			}
		}
		if !SleepFor(ctx, notifyInterval) {
			return
		}
	}
}

// listen wakes readers when other servers have committed.
func (f *Feed) listen(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := f.connect(ctx)
		if err == nil {
			_, err = conn.Exec(ctx, "LISTEN "+feedChannel)
			f.wake() // commits before the connection listened
			for err == nil {
				if _, err = conn.WaitForNotification(ctx); err == nil {
					f.wake()
				}
			}
		}
		closeQuietly(conn)
		if ctx.Err() == nil {
			f.log.Warn("wake-ups by NOTIFY are interrupted; changes are found by polling", "error", err)
		}
		if !SleepFor(ctx, time.Second) {
			return
		}
	}
}

func (f *Feed) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := f.store.side.Config().ConnConfig
	// Waiting for a notification is no statement that could be cancelled: its end
	// closes the connection at once.
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		closeQuietly(conn)
		return nil, err
	}
	return conn, nil
}

func closeQuietly(conn *pgx.Conn) {
	if conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	}
}

// SleepFor returns false when ctx ended first.
func SleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Follower reads the change log from a position that it keeps in memory. It is not
// safe for concurrent use.
type Follower struct {
	Position ChangePosition // of the last change returned
	// Idle reports that changes are of no interest now: the Follower looks less often. May
	// be nil.
	Idle func() bool

	feed   *Feed
	woken  chan struct{}
	looked time.Time // when the last look began
	behind bool      // it may have left changes
}

// Follow returns a Follower that begins behind a position.
func (f *Feed) Follow(after ChangePosition) *Follower {
	r := &Follower{Position: after, feed: f, woken: make(chan struct{}, 1)}
	f.mu.Lock()
	f.watchers[r.woken] = struct{}{}
	f.mu.Unlock()
	return r
}

// Close takes the Follower off the Feed.
func (r *Follower) Close() {
	r.feed.mu.Lock()
	delete(r.feed.watchers, r.woken)
	r.feed.mu.Unlock()
}

// Next returns up to count changes, after waiting until there is one. With a wait
// above 0 it returns none when that has passed. Other readers may have the same slice.
func (r *Follower) Next(ctx context.Context, count int, wait time.Duration) ([]Change, error) {
	var end <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		end = t.C
	}
	for {
		if early := r.interval() - time.Since(r.looked); early > 0 && !SleepFor(ctx, early) {
			return nil, ctx.Err()
		}
		r.looked = time.Now()
		changes, held, err := r.feed.look(ctx, r.Position, count)
		if err != nil {
			return nil, err
		}
		r.behind = len(changes) == count
		if n := len(changes); n > 0 {
			r.Position = changes[n-1].Position
			return changes, nil
		}
		pause := lookInterval
		if !held {
			pause = time.Duration(r.feed.poll.Load())
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-r.woken:
		case <-end:
			t.Stop()
			return nil, nil
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		t.Stop()
	}
}

// interval is the least time between two looks.
func (r *Follower) interval() time.Duration {
	if !r.behind && r.Idle != nil && r.Idle() {
		return idleInterval
	}
	return lookInterval
}

// recentChanges are the changes that a server's readers have read last: all readers read
// the same changes, soon one after the other. It is a part of the change log without a gap.
type recentChanges struct {
	memory  *memory        // the memory of the epoch in which they were read
	begin   ChangePosition // before the first
	changes []Change

	// The last look that found nothing.
	noneAfter ChangePosition
	noneAt    time.Time
	noneHeld  bool
}

// keptChanges bounds recentChanges.
const keptChanges = 4096

// after returns changes that follow a position, none where they are not known.
func (r *recentChanges) after(p ChangePosition, count int) []Change {
	if p.Compare(r.begin) < 0 {
		return nil
	}
	next := sort.Search(len(r.changes), func(i int) bool { return r.changes[i].Position.Compare(p) > 0 })
	end := min(next+count, len(r.changes))
	return r.changes[next:end:end]
}

// add adds the changes after a position. Changes older than the kept part are dropped.
func (r *recentChanges) add(after ChangePosition, changes []Change) {
	end := r.begin
	if n := len(r.changes); n > 0 {
		end = r.changes[n-1].Position
	}
	switch c := after.Compare(end); {
	case c < 0:
		return
	case c > 0:
		r.begin, r.changes = after, nil
	}
	r.changes = append(r.changes, changes...)
	if more := len(r.changes) - keptChanges; more > 0 {
		more += keptChanges / 2 // not each time
		more = min(more, len(r.changes))
		r.begin = r.changes[more-1].Position
		r.changes = slices.Clone(r.changes[more:])
	}
}

// look returns up to count changes that follow a position. held reports, where there are
// none, that a transaction which is still running may hold some back.
func (f *Feed) look(ctx context.Context, after ChangePosition, count int) (changes []Change, held bool, err error) {
	asked := time.Now()
	select {
	case f.reading <- struct{}{}:
		defer func() { <-f.reading }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	r := &f.recent
	if m := f.store.memory.Load(); r.memory != m { // a new epoch may lack the last changes of the one before
		*r = recentChanges{memory: m}
	}
	if changes := r.after(after, count); len(changes) > 0 {
		return changes, false, nil
	}
	if r.noneAfter == after && !r.noneAt.Before(asked) {
		return nil, r.noneHeld, nil
	}
	began := time.Now()
	if changes, err = f.store.Changes(ctx, after, count); err != nil {
		return nil, false, err
	}
	if len(changes) == 0 {
		if held, err = db.New(f.store.pool).ChangesHeld(ctx); err != nil {
			return nil, false, translateError(err)
		}
	}
	if len(changes) == 0 && !held {
		// What held changes back may have ended between the two looks, and nobody tells
		// of that.
		if changes, err = f.store.Changes(ctx, after, count); err != nil {
			return nil, false, err
		}
	}
	if len(changes) == 0 {
		r.noneAfter, r.noneAt, r.noneHeld = after, began, held
		return nil, held, nil
	}
	r.add(after, changes)
	return changes, false, nil
}

// Handler is the work of a named reader.
type Handler struct {
	// Begin is called when this server has got the reader, before any change. An error
	// gives it back.
	Begin func(ctx context.Context) error
	// Handle works on changes. It stores its results in the transaction of commit, which
	// also moves the reader: both happen or neither. A nil commit stores nothing; after a
	// server's death, changes of the last quarter of a second that stored nothing come
	// again. After an error the same changes come again.
	Handle func(ctx context.Context, changes []Change) (commit func(ctx context.Context, tx pgx.Tx) error, err error)
	// Committed is called after the transaction of a commit, to wake who waits for
	// the results. May be nil.
	Committed func()
	// Ended is called when this server no longer has the reader. May be nil.
	Ended func()
	// Idle reports that Handle has nothing to do with changes of now. May be nil.
	Idle func() bool
	// Batch is the most changes handled at a time; 0 means 500.
	Batch int
}

// Add makes the reader of a name. It begins with the next write. An existing reader keeps
// its position.
func (f *Feed) Add(ctx context.Context, name string) error {
	return translateError(db.New(f.store.side).AddReader(ctx, name))
}

// Run works as the reader of a name, which it adds, until ctx ends. Of all servers that run
// one of a name a single one works at a time; when it dies another takes over within ten
// seconds.
func (f *Feed) Run(ctx context.Context, name string, h Handler) error {
	if err := f.Add(ctx, name); err != nil {
		return err
	}
	r := &namedReader{feed: f, name: name, holder: uuid.NewString(), handler: h}
	for ctx.Err() == nil {
		r.memory = f.store.memory.Load()
		from, ok, err := r.lease(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			f.log.Warn("lease a reader of the change log", "reader", name, "error", err)
		case ok:
			if err := r.work(ctx, from); err != nil && ctx.Err() == nil && !errors.Is(err, errLeaseLost) {
				f.log.Error("work on the change log failed; it is tried again", "reader", name, "error", err)
			}
			if h.Ended != nil {
				h.Ended()
			}
			r.release()
		}
		SleepFor(ctx, readerLease/10)
	}
	return ctx.Err()
}

type namedReader struct {
	feed         *Feed
	name, holder string
	handler      Handler
	renewed      time.Time // when the lease was, at the latest
	memory       *memory   // of the epoch that the reader works in
}

var errLeaseLost = errors.New("store: another server has the reader")

// lease takes or renews the lease.
func (r *namedReader) lease(ctx context.Context) (at ChangePosition, ok bool, err error) {
	start := time.Now()
	rows, err := db.New(r.feed.store.side).LeaseReader(ctx, db.LeaseReaderParams{
		Holder: r.holder, LeaseMs: readerLease.Milliseconds(), Name: r.name,
	})
	if err != nil || len(rows) == 0 {
		return ChangePosition{}, false, translateError(err)
	}
	r.renewed = start
	return ChangePosition{Epoch: EpochID(rows[0].Epoch), XID: rows[0].Xid, RID: rows[0].Rid, Version: int(rows[0].Version)}, true, nil
}

func (r *namedReader) release() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	// An error leaves the lease to run out.
	_ = db.New(r.feed.store.side).ReleaseReader(ctx, db.ReleaseReaderParams{Name: r.name, Holder: r.holder})
}

// work handles changes until ctx ends, the lease is lost or something fails.
func (r *namedReader) work(ctx context.Context, from ChangePosition) error {
	// The lease is renewed beside the work, which may take long, and the work ends with it.
	ctx, cancel := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer cancel(nil)
	renewing.Go(func() {
		for lastSeen := time.Now(); SleepFor(ctx, readerLease/4); {
			_, ok, err := r.lease(ctx)
			switch {
			case ok:
				lastSeen = time.Now()
			case err == nil, time.Since(lastSeen) > readerLease*3/4:
				cancel(errLeaseLost)
				return
			}
		}
	})
	var trimmed *TrimmedError
	if err := r.feed.store.CheckPosition(ctx, from); errors.As(err, &trimmed) {
		r.feed.log.Error("a reader of the change log was away for too long and has missed changes", "reader", r.name, "since", trimmed.Since)
	}
	if r.handler.Begin != nil {
		if err := r.handler.Begin(ctx); err != nil {
			return err
		}
	}
	batch := r.handler.Batch
	if batch == 0 {
		batch = 500
	}
	follower := r.feed.Follow(from)
	follower.Idle = r.handler.Idle
	defer follower.Close()
	handled, stored, moved := from, from, time.Now()
	defer func() {
		if handled != stored && !errors.Is(context.Cause(ctx), errLeaseLost) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = r.move(ctx, stored, handled, nil) // else the same is read again
		}
	}()
	for {
		wait := time.Duration(0)
		if handled != stored {
			wait = max(time.Millisecond, moveInterval-time.Since(moved))
		}
		changes, err := follower.Next(ctx, batch, wait)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		var commit func(context.Context, pgx.Tx) error
		if len(changes) > 0 {
			if commit, err = r.handler.Handle(ctx, changes); err != nil {
				return err
			}
		}
		if commit != nil || time.Since(moved) >= moveInterval {
			if err := r.move(ctx, stored, follower.Position, commit); err != nil {
				return err
			}
			stored, moved = follower.Position, time.Now()
		}
		handled = follower.Position
		if commit == nil {
			continue
		}
		if r.handler.Committed != nil {
			r.handler.Committed()
		}
	}
}

// move commits the results of a batch with the reader's new position.
func (r *namedReader) move(ctx context.Context, from, to ChangePosition, commit func(context.Context, pgx.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := r.feed.store.runTransaction(ctx, func(tx pgx.Tx) error {
			if r.memory != r.feed.store.memory.Load() {
				return errLeaseLost // the new epoch may lack changes that the batch has
			}
			if commit != nil {
				if err := commit(ctx, tx); err != nil {
					return err
				}
			} else if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = off"); err != nil { // a position that is lost is read again
				return err
			}
			n, err := db.New(tx).MoveReader(ctx, db.MoveReaderParams{
				Epoch: int64(to.Epoch), Xid: strconv.FormatInt(to.XID, 10), Rid: to.RID, Version: int32(to.Version), LeaseMs: readerLease.Milliseconds(),
				Name: r.name, Holder: r.holder,
				FromEpoch: int64(from.Epoch), FromXid: strconv.FormatInt(from.XID, 10), FromRid: from.RID, FromVersion: int32(from.Version),
			})
			if err == nil && n == 0 {
				err = errLeaseLost
			}
			return err
		})
		if err == nil || attempt == maxAttempts || !isRetryable(err) {
			return translateError(err)
		}
		if err := pauseBeforeRetry(ctx, attempt); err != nil {
			return err
		}
	}
}

// ReaderState is the position of a named reader.
type ReaderState struct {
	Name        string
	Position    ChangePosition
	LeasedUntil time.Time     // before now where no server works as the reader
	Behind      time.Duration // age of the oldest change that the reader has not passed
	Ahead       bool          // the position lies behind the end of the database's history
}

// Readers lists the named readers.
func (s *Store) Readers(ctx context.Context) ([]ReaderState, error) {
	rows, err := db.New(s.pool).Readers(ctx)
	states := make([]ReaderState, len(rows))
	for i, r := range rows {
		states[i] = ReaderState{Name: r.Name, Position: ChangePosition{Epoch: EpochID(r.Epoch), XID: r.Xid, RID: r.Rid, Version: int(r.Version)},
			LeasedUntil: r.LeasedUntil, Behind: time.Duration(r.BehindSeconds * float64(time.Second)), Ahead: r.Ahead}
	}
	return states, translateError(err)
}

// RemoveReader forgets a reader that nobody runs any more, so that it holds nothing back.
func (s *Store) RemoveReader(ctx context.Context, name string) error {
	return translateError(db.New(s.pool).RemoveReader(ctx, name))
}

// WatchChanges returns a channel that gets an element after commits of any server, and a function that ends this. A
// Store without a Feed gives none: the caller looks at the change log from time to time in any case.
func (s *Store) WatchChanges() (woken <-chan struct{}, stop func()) {
	f := s.feed.Load()
	if f == nil {
		return nil, func() {}
	}
	w := make(chan struct{}, 1)
	f.mu.Lock()
	f.watchers[w] = struct{}{}
	f.mu.Unlock()
	return w, func() {
		f.mu.Lock()
		delete(f.watchers, w)
		f.mu.Unlock()
	}
}
