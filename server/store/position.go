package store

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Position is a place in the write-ahead log of one epoch. A PostgreSQL that has replayed it shows everything that
// was committed before it. The zero Position is before everything.
type Position struct {
	Epoch EpochID
	LSN   uint64
}

// String returns the opaque text of a position, of the characters A-Z, a-z, 0-9 and the dot. The zero Position is "".
func (p Position) String() string {
	if p == (Position{}) {
		return ""
	}
	return strconv.FormatInt(int64(p.Epoch), 36) + "." + strconv.FormatUint(p.LSN, 36)
}

var positionForm = regexp.MustCompile(`^[0-9a-z]{1,16}\.[0-9a-z]{1,16}$`)

// ParsePosition reads the text of a Position. It fails for any other text.
func ParsePosition(text string) (Position, error) {
	if !positionForm.MatchString(text) {
		return Position{}, fmt.Errorf("%q is no position", text)
	}
	epoch, lsn, _ := strings.Cut(text, ".")
	e, err1 := strconv.ParseInt(epoch, 36, 64)
	n, err2 := strconv.ParseUint(lsn, 36, 64)
	if err1 != nil || err2 != nil || e <= 0 {
		return Position{}, fmt.Errorf("%q is no position", text)
	}
	return Position{EpochID(e), n}, nil
}

// isBefore orders positions by epoch, then by place.
func (p Position) isBefore(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.LSN < q.LSN
}

// LaterPosition returns the later one of two positions.
func LaterPosition(p, q Position) Position {
	if p.isBefore(q) {
		return q
	}
	return p
}

// Containment tells whether a database contains a Position.
type Containment int

// The kinds of Containment. Unsure is the answer while the primary does not answer.
const (
	Contained Containment = iota
	Lost
	Unsure
)

// ContainsPosition reports whether the present epoch contains a position. One of a former epoch is contained where
// promotions alone lie between, and it is not behind the place where its timeline was left. The place is read from
// PostgreSQL's timeline history file, which needs pg_read_server_files or EXECUTE on pg_read_file(text); without that right
// such a position counts as lost.
func (s *Store) ContainsPosition(ctx context.Context, p Position) Containment {
	m := s.memory.Load()
	switch {
	case p.Epoch == m.epoch:
		if p.LSN <= s.replicas.written().LSN {
			return Contained
		}
		if s.replicas.isPrimaryLost() {
			return Unsure
		}
		now, err := s.PositionNow(ctx)
		switch {
		case err != nil || now.Epoch != p.Epoch:
			return Unsure
		case p.LSN <= now.LSN:
			return Contained
		}
		return Lost
	case !m.isFormer(p.Epoch):
		return Lost
	}
	left, err := s.placeLeft(ctx, m, p.Epoch)
	switch {
	case err != nil && s.replicas.isPrimaryLost():
		return Unsure
	case err != nil || p.LSN > left:
		return Lost
	}
	return Contained
}

// placeLeft returns the place up to which the present epoch contains a former one.
func (s *Store) placeLeft(ctx context.Context, m *memory, former EpochID) (uint64, error) {
	timeline := 0
	for _, e := range m.epochs {
		if e.ID == former {
			timeline = e.Timeline
		} else if e.ID > former && e.Cause != "promotion" {
			return 0, nil
		}
	}
	if left, ok := s.replicas.left.Load(former); ok {
		return left.(uint64), nil
	}
	var history string
	if err := s.side.QueryRow(ctx, "SELECT pg_read_file('pg_wal/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history')").Scan(&history); err != nil {
		return 0, err
	}
	left, err := leftOf(history, timeline)
	if err == nil {
		s.replicas.left.Store(former, left)
	}
	return left, err
}

// leftOf reads from a timeline history file where a timeline was left. Source: PostgreSQL, "Continuous Archiving and
// Point-in-Time Recovery", timelines.
func leftOf(history string, timeline int) (uint64, error) {
	for line := range strings.Lines(history) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != strconv.Itoa(timeline) {
			continue
		}
		return parseLSN(f[1])
	}
	return 0, fmt.Errorf("the timeline history has no timeline %d", timeline)
}

// parseLSN reads a pg_lsn.
func parseLSN(text string) (uint64, error) {
	high, low, _ := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is no pg_lsn", text)
	}
	return h<<32 | l, nil
}
