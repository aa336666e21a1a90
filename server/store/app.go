package store

import (
	"context"
	"encoding/binary"

	"kiln/gen/db"
)

// AppsQuestion is the question which version the Apps have, for all who ask it before it
// is sent.
type AppsQuestion struct {
	reader  *reader
	done    chan struct{} // closed with the answer
	version int64
	err     error
}

// AskAppsVersion begins to ask for AppsVersion. The question goes with the next query of
// reads by id, or alone as soon as somebody waits for the answer.
func (s *Store) AskAppsVersion() *AppsQuestion {
	r := &s.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked == nil {
		r.asked = &AppsQuestion{reader: r, done: make(chan struct{})}
	}
	return r.asked
}

// Answer is a version that the Apps had after the question was asked.
func (q *AppsQuestion) Answer(ctx context.Context) (int64, error) {
	r := q.reader
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return 0, errStopped
	}
	if r.asked == q {
		r.wakeOne()
	}
	r.mu.Unlock()
	select {
	case <-q.done:
		return q.version, q.err
	case <-ctx.Done():
		return 0, translateError(ctx.Err())
	}
}

// read takes the answer from a row.
func (q *AppsQuestion) read(row [][]byte) { q.version = int64(binary.BigEndian.Uint64(row[0])) }

// AppsVersion differs when an App has been written.
func (s *Store) AppsVersion(ctx context.Context) (int64, error) {
	return s.AskAppsVersion().Answer(ctx)
}

// BumpApps makes AppsVersion another one when the transaction commits. Until then
// no other transaction can do so.
func (t *Tx) BumpApps(ctx context.Context) error { return translateError(db.New(t.tx).BumpApps(ctx)) }
