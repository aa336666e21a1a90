package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// A bulk export shows one moment: a time T, such that its state is decided by the last
// updates of versions alone. Each resource is as its latest version with a last update up
// to T; later versions are absent. Three rules make that exact, even if clocks differ:
//
//  1. FixMoment stores T in search_registry.moment. T is not before the clock of the
//     database, and not before the last update of any committed version.
//  2. Each transaction that writes versions ends with a comparison (CheckPrepared), when it has
//     a transaction id: a version with a last update up to the moment fails it, and the
//     transaction is run again with a later last update. A transaction that could not see T yet
//     has an id below the id of a transaction that begins when T is stored. FixMoment makes such
//     a transaction, and waits until all of those below it are over.
//  3. The versions of a transaction have one last update, unless it writes in several steps.
//     After the wait, FixMoment looks for transactions with versions on both sides of T. Where
//     there are any, it takes the latest of their last updates as T, and begins again.
//
// So nothing commits after FixMoment with a last update up to T. The export of the next
// changes, with _since = T, has exactly the versions that this export lacks. No transaction
// stays open, and no server needs the clock of another one.

// commitClock is the time of a write: now, but after every moment that this server knows of.
func (s *Store) commitClock() time.Time { return laterOf(s.now(), s.momentFloor()) }

// momentFloor is the latest moment that this server knows of.
func (s *Store) momentFloor() time.Time { return time.UnixMicro(s.latestMoment.Load()) }

// raiseFloor notes a moment of the database.
func (s *Store) raiseFloor(moment time.Time) {
	for at := moment.UnixMicro(); ; {
		known := s.latestMoment.Load()
		if at <= known || s.latestMoment.CompareAndSwap(known, at) {
			return
		}
	}
}

// checkUpdated notes the last update of a version, for CheckPrepared.
func (g *group) checkUpdated(at time.Time) {
	if n := len(g.lastUpdates); n > 0 && g.lastUpdates[n-1].Equal(at) {
		return
	}
	g.lastUpdates = append(g.lastUpdates, at)
	g.check.cols[2].time(at)
}

// momentPoll is the time between two looks at the transactions that FixMoment waits for.
const momentPoll = 5 * time.Millisecond

// FixMoment returns a moment, in whole milliseconds: everything that was acknowledged before
// the call has a last update up to it, and nothing that commits after the return has. It waits
// at most wait for older transactions, then fails with transient.
func (s *Store) FixMoment(ctx context.Context, wait time.Duration) (time.Time, error) {
	end := time.Now().Add(wait)
	least, epoch := time.Unix(0, 0), s.Epoch()
	for {
		moment, torn, err := s.raiseMoment(ctx, least, end)
		switch {
		case s.Epoch() != epoch: // transaction ids of two epochs cannot be compared
			return time.Time{}, errors.New("store: the database has a new epoch")
		case errors.Is(err, ErrMomentWait):
			return time.Time{}, outcome.New(outcome.CodeTransient, "older transactions have not ended within %s; try again", wait).Because(ErrMomentWait)
		case err != nil:
			return time.Time{}, translateError(fmt.Errorf("fix a moment: %w", err))
		case torn.IsZero():
			return moment, nil
		}
		least = torn
	}
}

// ErrMomentWait is the cause of the error of FixMoment after its wait.
var ErrMomentWait = errors.New("store: older transactions have not ended")

// raiseMoment sets the moment, to least or later, and waits for the transactions that may not have
// seen it. torn is the latest update of those with versions on both sides, zero where there are none.
func (s *Store) raiseMoment(ctx context.Context, least, end time.Time) (moment, torn time.Time, err error) {
	q := db.New(s.pool)
	before, err := q.ChangeHorizon(ctx)
	if err != nil {
		return moment, torn, err
	}
	if moment, err = q.RaiseMoment(ctx, least); err != nil {
		return moment, torn, err
	}
	moment = moment.UTC()
	s.raiseFloor(moment)
	after, err := q.LaterTransaction(ctx)
	if err != nil {
		return moment, torn, err
	}
	for {
		horizon, err := q.ChangeHorizon(ctx)
		if err != nil {
			return moment, torn, err
		}
		if horizon.Xid >= after {
			break
		}
		if time.Now().After(end) {
			return moment, torn, ErrMomentWait
		}
		if !SleepFor(ctx, momentPoll) {
			return moment, torn, ctx.Err()
		}
	}
	latest, err := q.TornAt(ctx, db.TornAtParams{FromXid: strconv.FormatInt(before.Xid, 10), ToXid: strconv.FormatInt(after, 10), Moment: moment})
	if latest.After(moment) {
		torn = latest
	}
	return moment, torn, err
}

// Stored is a version of a resource at a moment.
type Stored struct {
	fhir.Version
	RID, Ref int64
	// Terms and Targets are the entries of the search index, if the query asked for them;
	// nil for a version that is no longer current.
	Terms, Targets []int64
}

// MomentPage asks for resources of one type as they were at a moment, by surrogate.
type MomentPage struct {
	ResourceType string
	At           time.Time
	// Since and Until bound the last updates: after Since, before Until; the zero times do not.
	Since, Until time.Time
	After, Last  int64 // surrogates: above After, up to Last
	Count        int   // current resources at most
	// Terms bounds the page to resources with one of these terms; nil does not. Resources that
	// were changed after the moment come in any case.
	Terms []int64
	// WithIndex reads Terms and Targets.
	WithIndex bool
}

// TypeSpan returns the lowest and the highest surrogate of the resources of a type at a moment,
// 0 and 0 where there are none.
func (s *Store) TypeSpan(ctx context.Context, typ string, at time.Time) (low, high int64, err error) {
	n, ok, err := s.typeNumber(ctx, typ)
	if err != nil || !ok {
		return 0, 0, translateError(err)
	}
	span, err := db.New(s.pool).TypeSpan(ctx, db.TypeSpanParams{Low: int64(n) << 48, High: int64(n)<<48 | (1<<48 - 1), Typ: n, Moment: at})
	return span.Low, span.High, translateError(err)
}

// forever bounds last updates that are not bounded.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// VersionsAt calls each with every resource of a page; its body is valid until each returns.
// VersionsAt returns the surrogate that the page ends at. It holds a connection only for the one
// statement that reads the page.
func (s *Store) VersionsAt(ctx context.Context, p MomentPage, each func(*Stored) error) (end int64, err error) {
	n, ok, err := s.typeNumber(ctx, p.ResourceType)
	if err != nil || !ok {
		return p.Last, translateError(err)
	}
	until := p.Until
	if until.IsZero() {
		until = forever
	}
	var rows *momentRows
	if p.Terms != nil {
		rows, err = s.readMoment(ctx, db.VersionsAtByTerms, p.Terms, p.After, p.Last, int32(p.Count), n, p.At, p.Since, until)
	} else {
		rows, err = s.readMoment(ctx, db.VersionsAt, p.WithIndex, p.After, p.Last, int32(p.Count), p.At, n, p.Since, until)
	}
	if err != nil {
		return 0, translateError(fmt.Errorf("read a page of a moment: %w", err))
	}
	return rows.end, s.eachStored(ctx, rows, each)
}

// VersionsAtByRefs calls each with the resources that have one of the references (hashes, as in
// Stored.Ref) at a moment; a body is valid until each returns.
func (s *Store) VersionsAtByRefs(ctx context.Context, refs []int64, at time.Time, each func(*Stored) error) error {
	rows, err := s.readMoment(ctx, db.VersionsAtByRefs, refs, at)
	if err != nil {
		return translateError(fmt.Errorf("read the resources of a moment: %w", err))
	}
	return s.eachStored(ctx, rows, each)
}

// RIDsByTerms returns the surrogates, in order, of the current resources of a type that have one of some terms:
// above after, up to last.
func (s *Store) RIDsByTerms(ctx context.Context, terms []int64, after, last int64) ([]int64, error) {
	list, err := db.New(s.pool).RIDsByTerms(ctx, db.RIDsByTermsParams{Terms: terms, After: after, Last: last})
	return list, translateError(err)
}

// VersionsAtByRIDs calls each with the resources of a page that have one of some surrogates, in no order. What
// was changed or deleted after the moment comes in any case. The page ends at p.Last.
func (s *Store) VersionsAtByRIDs(ctx context.Context, p MomentPage, rids []int64, each func(*Stored) error) error {
	n, ok, err := s.typeNumber(ctx, p.ResourceType)
	if err != nil || !ok {
		return translateError(err)
	}
	rows, err := s.readMoment(ctx, db.VersionsAtByRIDs, rids, p.At, n, p.After, p.Last, p.Since)
	if err != nil {
		return translateError(fmt.Errorf("read the resources of a moment: %w", err))
	}
	return s.eachStored(ctx, rows, each)
}

// momentRows are rows in memory of their own.
type momentRows struct {
	end  int64
	rows []Stored // Body is as it is stored
}

// readMoment runs one of the statements of queries/moment.sql, and gives the connection back.
func (s *Store) readMoment(ctx context.Context, sql string, args ...any) (*momentRows, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := &momentRows{}
	for rows.Next() {
		v := rows.RawValues()
		if out.end = rawInt64(v[0]); v[1] == nil {
			continue // an empty page
		}
		r := Stored{RID: rawInt64(v[1]), Ref: rawInt64(v[2])}
		r.ID, r.VersionID, r.LastUpdated = string(v[3]), int(int32(binary.BigEndian.Uint32(v[4]))), time.UnixMicro(rawInt64(v[5])+epoch).UTC()
		r.Method, r.Body = fhir.Method(v[6][0]), bytes.Clone(v[7])
		if r.Terms, err = rawInt64s(v[8]); err != nil {
			return nil, err
		}
		if r.Targets, err = rawInt64s(v[9]); err != nil {
			return nil, err
		}
		out.rows = append(out.rows, r)
	}
	return out, rows.Err()
}

func rawInt64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

// rawInt64s reads a one-dimensional bigint[] in binary format: five words of 4 bytes, then a
// length of 4 bytes before each element. nil is NULL.
func rawInt64s(b []byte) ([]int64, error) {
	if b == nil {
		return nil, nil
	}
	out := []int64{}
	if len(b) < 20 {
		return out, nil
	}
	for b = b[20:]; len(b) >= 12; b = b[12:] {
		out = append(out, rawInt64(b[4:]))
	}
	if len(b) > 0 {
		return nil, errors.New("store: an array of bigint is cut off")
	}
	return out, nil
}

func (s *Store) eachStored(ctx context.Context, rows *momentRows, each func(*Stored) error) error {
	var body []byte
	for i := range rows.rows {
		r := &rows.rows[i]
		var err error
		if r.ResourceType, err = s.typeName(ctx, int16(r.RID>>48)); err != nil {
			return translateError(err)
		}
		if body, err = decodeBodyInto(body[:0], r.Body); err != nil {
			return fmt.Errorf("%s/%s: %w", r.ResourceType, r.ID, err)
		}
		r.Body = body
		if err := each(r); err != nil {
			return err
		}
		r.Body = nil
	}
	return nil
}

// DeletionsAt calls each with resources of a type that were deleted after since and are deleted
// at a moment: the version before the deletion, by surrogate from after on, at most count. It
// returns the surrogate of the last one, 0 where there are no more.
func (s *Store) DeletionsAt(ctx context.Context, typ string, since, at time.Time, after int64, count int, each func(*Stored) error) (last int64, err error) {
	n, ok, err := s.typeNumber(ctx, typ)
	if err != nil || !ok {
		return 0, translateError(err)
	}
	rows, err := db.New(s.pool).DeletionsAt(ctx, db.DeletionsAtParams{Typ: n, Since: since, Moment: at, After: after, Count: int32(count)})
	if err != nil {
		return 0, translateError(err)
	}
	for _, r := range rows {
		body, err := copyBody(r.Body)
		if err != nil {
			return 0, err
		}
		v := &Stored{Version: fhir.Version{ResourceType: typ, ID: r.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(), Method: r.Method, Body: body},
			RID: r.Rid, Ref: r.Ref}
		if err := each(v); err != nil {
			return 0, err
		}
	}
	if len(rows) < count {
		return 0, nil
	}
	return rows[len(rows)-1].Rid, nil
}

// currentOf reads the current versions of resources and the ids of deleted ones.
const currentOf = `SELECT u.ref, r.rid, r.id, r.version, r.last_updated, r.method, r.body, h.id
FROM unnest($1::bigint[]) AS u(ref)
LEFT JOIN resource r ON r.ref = u.ref AND r.shard = (u.ref & 255)::smallint
LEFT JOIN LATERAL (
	SELECT h.id FROM resource_history h WHERE r.rid IS NULL AND h.ref = u.ref AND h.shard = (u.ref & 255)::smallint ORDER BY h.version DESC LIMIT 1
) h ON true`

// CurrentOf calls each with the resources that have one of the references (hashes, as in Stored.Ref), as a
// transaction sees them. A deleted resource has the method DELETE and no body; its ID is empty where its history has
// been removed. A body is valid until each returns.
func (s *Store) CurrentOf(ctx context.Context, tx pgx.Tx, typ string, refs []int64, each func(*Stored) error) error {
	rows, err := tx.Query(ctx, currentOf, refs)
	if err != nil {
		return translateError(err)
	}
	defer rows.Close()
	var list []Stored
	for rows.Next() {
		var v Stored
		var rid *int64
		var id, gone *string
		var version *int32
		var updated *time.Time
		var method *fhir.Method
		if err := rows.Scan(&v.Ref, &rid, &id, &version, &updated, &method, &v.Body, &gone); err != nil {
			return translateError(err)
		}
		v.ResourceType = typ
		if rid == nil {
			v.Method = fhir.DELETE
			if gone != nil {
				v.ID = *gone
			}
		} else {
			v.RID, v.ID, v.VersionID, v.LastUpdated, v.Method = *rid, *id, int(*version), updated.UTC(), *method
		}
		list = append(list, v)
	}
	if err := rows.Err(); err != nil {
		return translateError(err)
	}
	rows.Close()
	for i := range list {
		if list[i].Method != fhir.DELETE {
			if list[i].Body, err = copyBody(list[i].Body); err != nil {
				return fmt.Errorf("%s/%s: %w", typ, list[i].ID, err)
			}
		}
		if err := each(&list[i]); err != nil {
			return err
		}
	}
	return nil
}
