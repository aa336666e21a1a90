package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Position is a place in the write-ahead log of one epoch. A PostgreSQL that has replayed it shows everything that
// was committed before it. The zero Position is before everything.
type Position struct {
	Epoch EpochID
	LSN   uint64
	// Seen is above the numbers of all transactions that a standby has shown, 0 where only the primary has shown any.
	// A standby may show a commit while the primary does not show it yet: it waits for a synchronous standby, or its
	// backend had no processor since. The primary answers when these transactions have ended there.
	Seen uint64
}

// String returns the opaque text of a position, of the characters a-z, 0-9 and the dot. The zero Position is "".
func (p Position) String() string {
	if p == (Position{}) {
		return ""
	}
	text := strconv.FormatInt(int64(p.Epoch), 36) + "." + strconv.FormatUint(p.LSN, 36)
	if p.Seen != 0 {
		text += "." + strconv.FormatUint(p.Seen, 36)
	}
	return text
}

var positionForm = regexp.MustCompile(`^[0-9a-z]{1,16}\.[0-9a-z]{1,16}(\.[0-9a-z]{1,16})?$`)

// ParsePosition reads the text of a Position. It fails for any other text.
func ParsePosition(text string) (Position, error) {
	if !positionForm.MatchString(text) {
		return Position{}, fmt.Errorf("%q is no position", text)
	}
	epoch, rest, _ := strings.Cut(text, ".")
	lsn, seen, _ := strings.Cut(rest, ".")
	e, err1 := strconv.ParseInt(epoch, 36, 64)
	n, err2 := strconv.ParseUint(lsn, 36, 64)
	x, err3 := strconv.ParseUint(cmp.Or(seen, "0"), 36, 64)
	if err1 != nil || err2 != nil || err3 != nil || e <= 0 || n > math.MaxInt64 || x > math.MaxInt64 {
		return Position{}, fmt.Errorf("%q is no position", text)
	}
	return Position{EpochID(e), n, x}, nil
}

// isBefore orders positions by epoch, then by place.
func (p Position) isBefore(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.LSN < q.LSN
}

// LaterPosition returns a position behind two.
func LaterPosition(p, q Position) Position {
	if p.isBefore(q) {
		p, q = q, p
	}
	if p.Epoch == q.Epoch {
		p.Seen = max(p.Seen, q.Seen)
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
// promotions alone lie between, and it is not behind the place where its timeline was left. This server has noted the place
// when it met the promotion (noteLeft). Otherwise it is read from PostgreSQL's timeline history file, which needs
// pg_read_server_files or EXECUTE on pg_read_file(text); without that right such a position counts as lost.
// While the primary does not answer, a position of the present epoch is Unsure: a standby that has replayed it tells.
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
	if s.replicas.isPrimaryLost() {
		return 0, errPrimaryLost
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

// errPrimaryLost says that the primary does not answer.
var errPrimaryLost = unavailableError("the database cannot be reached")

// noteLeft notes where a former epoch was left, on the new primary's connection: after a promotion PostgreSQL keeps the
// place where its recovery has ended until it is started again. One that was started after the old primary was seen last
// may have recovered from a crash since, and tells nothing.
func (s *Store) noteLeft(ctx context.Context, conn querier, list []Epoch, lastSeen time.Time) {
	if len(list) < 2 || list[len(list)-1].Cause != "promotion" || lastSeen.IsZero() {
		return
	}
	var left int64
	err := conn.QueryRow(ctx, `SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0) WHERE NOT pg_is_in_recovery() AND pg_postmaster_start_time() < $1`, lastSeen).Scan(&left)
	if err == nil && left > 0 {
		s.replicas.left.LoadOrStore(list[len(list)-2].ID, uint64(left))
	}
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
