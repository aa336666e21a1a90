package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// ChangePosition is a place in the change log. The zero value is its beginning.
type ChangePosition struct {
	Epoch   EpochID
	XID     int64 // transaction
	RID     int64
	Version int
}

// Compare orders positions as the change log does: -1, 0 or 1.
func (p ChangePosition) Compare(q ChangePosition) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.XID, q.XID), cmp.Compare(p.RID, q.RID), cmp.Compare(p.Version, q.Version))
}

// Change is one version in the order of the change log: by transaction, then by
// resource. A transaction's id is given when it begins to write, so the order
// differs from the order of the commits.
type Change struct {
	Position     ChangePosition
	ResourceType string
	Ref          int64 // fhir.ValueReference(type, id)
	VersionID    int
	// Method is fhir.POST for every write that made a new resource, also for a PUT that
	// creates one or that follows a deletion.
	Method  fhir.Method
	Written time.Time // when its transaction began, by PostgreSQL's clock
	Trace   string    // that the write was part of, as traceparent; "" for none
}

// Changes returns up to count changes after a position. It stops before the oldest
// transaction that is still running, so the returned part of the log is complete: a reader
// that continues from the last position skips nothing. A long transaction anywhere on the
// PostgreSQL server, in another database too, delays it.
func (s *Store) Changes(ctx context.Context, after ChangePosition, count int) ([]Change, error) {
	rows, err := db.New(s.pool).Changes(ctx, db.ChangesParams{
		AfterEpoch: int64(after.Epoch), AfterXid: strconv.FormatInt(after.XID, 10), AfterRid: after.RID, AfterVersion: int32(after.Version), Count: int32(count),
	})
	if err != nil {
		return nil, translateError(err)
	}
	changes := make([]Change, len(rows))
	for i, r := range rows {
		typ, err := s.typeName(ctx, int16(r.Rid>>48))
		if err != nil {
			return nil, err
		}
		changes[i] = Change{
			Position:     ChangePosition{Epoch: EpochID(r.Epoch), XID: r.Xid, RID: r.Rid, Version: int(r.Version)},
			ResourceType: typ, Ref: r.Ref, VersionID: int(r.Version), Method: r.Method, Written: r.Written.UTC(), Trace: r.Trace,
		}
	}
	return changes, nil
}

// ChangeHorizon is the position behind all changes of transactions that are no
// longer running: where a reader begins that wants only news. It is the position of
// the last of these changes, so that a later epoch can tell whether it has that one.
func (s *Store) ChangeHorizon(ctx context.Context) (ChangePosition, error) {
	at, err := s.ChangeSnapshot(ctx)
	return at.last, err
}

// ChangeSnapshot tells which transactions were over at an instant. The zero value is
// before all of them.
type ChangeSnapshot struct {
	epoch      EpochID
	xmin, xmax int64
	running    []int64        // of those from xmin on and before xmax
	last       ChangePosition // the last change before xmin
}

// ChangeSnapshot takes one now.
func (s *Store) ChangeSnapshot(ctx context.Context) (ChangeSnapshot, error) {
	q := db.New(s.pool)
	r, err := q.ChangeSnapshot(ctx)
	if err != nil {
		return ChangeSnapshot{}, translateError(err)
	}
	at := ChangeSnapshot{epoch: EpochID(r.Epoch), xmin: r.Xmin, xmax: r.Xmax, running: r.Running, last: ChangePosition{Epoch: EpochID(r.Epoch)}}
	rows, err := q.LastChange(ctx, db.LastChangeParams{Epoch: r.Epoch, Xid: strconv.FormatInt(r.Xmin, 10)})
	if err == nil && len(rows) == 0 {
		var trim changeTrim
		if trim, err = s.trimmed(ctx); trim.XID > 0 {
			at.last = trim.before()
		}
	}
	for _, c := range rows {
		at.last = ChangePosition{Epoch: EpochID(c.Epoch), XID: c.Xid, RID: c.Rid, Version: int(c.Version)}
	}
	return at, translateError(err)
}

// IsOver reports whether the transaction of a position had ended: its changes were there to be read.
func (s ChangeSnapshot) IsOver(p ChangePosition) bool {
	return p.Epoch < s.epoch || p.Epoch == s.epoch && (p.XID < s.xmin || p.XID < s.xmax && !slices.Contains(s.running, p.XID))
}

// Horizon is the position before all changes of transactions that were not over.
func (s ChangeSnapshot) Horizon() ChangePosition { return ChangePosition{Epoch: s.epoch, XID: s.xmin} }

// Last is the position of the last change before the horizon.
func (s ChangeSnapshot) Last() ChangePosition { return s.last }

// clockSlack is how far the clocks of servers and of PostgreSQL may be apart, and how
// long a transaction may run before it writes, for ChangesSince to miss nothing.
const clockSlack = time.Minute

// ChangesSince is a position before every change whose version was made at or after
// an instant; some older changes lie behind it too. It fails with a *TrimmedError
// where the change log does not go back that far.
func (s *Store) ChangesSince(ctx context.Context, since time.Time) (ChangePosition, error) {
	trim, err := s.trimmed(ctx)
	if err != nil {
		return ChangePosition{}, err
	}
	if trim.XID > 0 && !since.After(trim.Written) {
		return ChangePosition{}, &TrimmedError{Since: trim.Written}
	}
	since = since.Add(-clockSlack)
	q := db.New(s.pool)
	ends, err := q.ChangeEnds(ctx)
	if err != nil {
		return ChangePosition{}, translateError(err)
	}
	var at ChangePosition
	for _, e := range ends {
		low, high := e.Oldest, e.Newest+1 // transactions of one epoch ascend with time
		for low < high {
			middle := low + (high-low)/2
			written, err := q.ChangeWritten(ctx, db.ChangeWrittenParams{Epoch: e.Epoch, Xid: strconv.FormatInt(middle, 10)})
			switch {
			case errors.Is(err, pgx.ErrNoRows), err == nil && !written.Before(since):
				high = middle
			case err != nil:
				return ChangePosition{}, translateError(err)
			default:
				low = middle + 1
			}
		}
		at = ChangePosition{Epoch: EpochID(e.Epoch), XID: low}
		if low <= e.Newest {
			break // the epoch has changes from the instant on
		}
	}
	return at, nil
}

// TrimmedError is of a position that the change log no longer reaches back to, or of a position
// that is not part of the database's history.
type TrimmedError struct {
	Since time.Time // changes written after this instant are still there
	Lost  bool      // the change of the position is not part of the history
}

// Next returns the first instant that the change log still reaches back to.
func (e *TrimmedError) Next() time.Time { return e.Since.Add(time.Microsecond).UTC() }

func (e *TrimmedError) Error() string {
	if e.Lost {
		return "the change is not part of the database's history"
	}
	return "the change log goes back to " + e.Since.UTC().Format(time.RFC3339Nano)
}

// CheckPosition fails with a *TrimmedError when changes behind p have been trimmed.
func (s *Store) CheckPosition(ctx context.Context, p ChangePosition) error {
	trim, err := s.trimmed(ctx)
	if err == nil && p.Compare(trim.before()) < 0 {
		return &TrimmedError{Since: trim.Written}
	}
	return err
}

// FindCursor fails with a *TrimmedError where a reader cannot continue exactly behind p: changes
// behind it have been trimmed, or p is of a former epoch and the log lacks its change. ahead
// reports a position that the present epoch has not reached.
func (s *Store) FindCursor(ctx context.Context, p ChangePosition) (ahead bool, err error) {
	m := s.memory.Load()
	if p.Epoch == m.epoch {
		if err := s.CheckPosition(ctx, p); err != nil {
			return false, err
		}
		now, err := s.ChangeSnapshot(ctx)
		return p.XID > now.xmin, err
	}
	q := db.New(s.pool)
	upTo := p
	if m.isFormer(p.Epoch) {
		trim, err := s.trimmed(ctx)
		switch {
		case err != nil:
			return false, err
		case p.Compare(trim.before()) < 0:
			return false, &TrimmedError{Since: trim.Written}
		case p.XID == 0 || p == trim.before():
			return false, nil
		}
		found, err := q.FindChange(ctx, db.FindChangeParams{Epoch: int64(p.Epoch), Xid: strconv.FormatInt(p.XID, 10), Rid: p.RID, Version: int32(p.Version)})
		if err != nil || found {
			return false, translateError(err)
		}
	} else { // the history parted before that epoch began
		upTo = ChangePosition{Epoch: EpochID(p.Epoch.Number()) << 32}
	}
	lost := &TrimmedError{Lost: true}
	lost.Since, err = q.WrittenUpTo(ctx, db.WrittenUpToParams{Epoch: int64(upTo.Epoch), Xid: strconv.FormatInt(upTo.XID, 10)})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, translateError(err)
	}
	if trim, err := s.trimmed(ctx); err != nil {
		return false, err
	} else if trim.Written.After(lost.Since) {
		lost.Since = trim.Written
	}
	return false, lost
}

type changeTrim struct {
	Epoch   EpochID
	XID     int64 // 0 where nothing has been trimmed
	Written time.Time
}

// before is the position before the first change that has not been trimmed.
func (t changeTrim) before() ChangePosition { return ChangePosition{Epoch: t.Epoch, XID: t.XID} }

func (s *Store) trimmed(ctx context.Context) (changeTrim, error) {
	r, err := db.New(s.pool).TrimmedChanges(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return changeTrim{}, nil
	}
	return changeTrim{Epoch: EpochID(r.Epoch), XID: r.Xid, Written: r.Written.UTC()}, translateError(err)
}

// VersionKey names a version in the change log.
type VersionKey struct {
	Ref       int64
	VersionID int
}

// Key names the version that the change made.
func (c Change) Key() VersionKey { return VersionKey{c.Ref, c.VersionID} }

// Previous names the version before, whose VersionID is 0 where there was none.
func (c Change) Previous() VersionKey { return VersionKey{c.Ref, c.VersionID - 1} }

// ChangedVersions reads versions that changes name, superseded ones too; a deletion
// has no Body. A version that is not stored is missing in the result. types are the
// resource types by Ref.
func (s *Store) ChangedVersions(ctx context.Context, keys []VersionKey, types map[int64]string) (map[VersionKey]fhir.Version, error) {
	p := db.ChangedVersionsParams{}
	for _, k := range keys {
		if k.VersionID > 0 {
			p.Refs = append(p.Refs, k.Ref)
			p.Versions = append(p.Versions, int32(k.VersionID))
		}
	}
	if len(p.Refs) == 0 {
		return nil, nil
	}
	rows, err := db.New(s.pool).ChangedVersions(ctx, p)
	if err != nil {
		return nil, translateError(err)
	}
	versions := make(map[VersionKey]fhir.Version, len(rows))
	for _, r := range rows {
		body, err := decodeBody(r.Body)
		if err != nil {
			return nil, err
		}
		versions[VersionKey{r.Ref, int(r.Version)}] = fhir.Version{
			ResourceType: types[r.Ref], ID: r.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(),
			Method: r.Method, Body: body,
		}
	}
	return versions, nil
}

// LogRead puts the reading of a version into the change log, where that is an event.
func (s *Store) LogRead(ctx context.Context, v fhir.Version) error {
	ref, shard := refAndShard(v.ResourceType, v.ID)
	err := db.New(s.side).LogRead(ctx, db.LogReadParams{Ref: ref, Shard: shard, Version: int32(v.VersionID)})
	if err == nil {
		s.announceChange()
	}
	return translateError(err)
}

// TrimChanges deletes the changes that were written before an instant and that every
// named reader has passed, and all that were written before unread, passed or not. It
// returns the number of their transactions.
func (s *Store) TrimChanges(ctx context.Context, before, unread time.Time) (int, error) {
	const chunk = 5000
	for total := 0; ; {
		n, err := db.New(s.pool).TrimChanges(ctx, db.TrimChangesParams{Before: before, UnreadBefore: unread, Count: chunk})
		total += int(n)
		if err != nil || n < chunk {
			return total, translateError(err)
		}
	}
}
