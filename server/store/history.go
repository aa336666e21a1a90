package store

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// HistoryQuery asks for versions, newest first.
// Spec: https://hl7.org/fhir/R4/http.html#history.
type HistoryQuery struct {
	ResourceType string    // "" asks for all types
	ID           string    // "" asks for the whole type
	Since        time.Time // versions made at or after this instant; zero means all
	// At and AtEnd ask for the versions that were current at some time in [At,
	// AtEnd); a zero AtEnd stands for the instant At, a zero At for all versions.
	At, AtEnd time.Time
	Count     int    // versions on a page; 0 asks for the total only
	Cursor    string // HistoryPage.Next or Previous; "" is the first page
	NoTotal   bool   // leave Total out
}

// HistoryPage is a page of versions.
type HistoryPage struct {
	Versions []fhir.Version
	Total    int    // versions that match, on all pages; -1 with NoTotal
	Next     string // cursor of the next page, "" on the last
	Previous string // cursor of the page before, "" on the first

	rids []int64 // of the versions
}

// After is the cursor of a page that begins behind version i of this one.
func (p HistoryPage) After(i int) string {
	return historyPosition{at: p.Versions[i].LastUpdated, rid: p.rids[i]}.String()
}

// Before is the cursor of a page that ends before version i of this one.
func (p HistoryPage) Before(i int) string {
	return historyPosition{at: p.Versions[i].LastUpdated, rid: p.rids[i], newer: true}.String()
}

// BesideCursor is the cursor of the page that meets the page of a cursor: together
// they have each version once. It fails with invalid for a cursor that is not one.
func BesideCursor(cursor string) (string, error) {
	p, err := parseHistoryPosition(cursor)
	if err != nil {
		return "", err
	}
	// A cursor leaves out its own version, so the other page has it.
	if p.newer {
		p.rid++
	} else {
		p.rid--
	}
	p.newer = !p.newer
	return p.String(), nil
}

// IsPreviousCursor reports whether a cursor is a HistoryPage.Previous.
func IsPreviousCursor(cursor string) bool {
	p, err := parseHistoryPosition(cursor)
	return err == nil && p.newer
}

// The ends of time, as far as history is concerned.
var (
	always = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	never  = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// History returns versions, deletions included, newest first. A page begins
// strictly behind its cursor, so nothing repeats or is missed on the way into the
// past while others write. It fails with not-found for a resource that never
// existed and with invalid for a cursor that is not one.
// Spec: https://hl7.org/fhir/R4/http.html#history.
func (s *Store) History(ctx context.Context, q HistoryQuery) (HistoryPage, error) {
	return s.history(ctx, db.New(s.pool), q)
}

// History is Store.History and includes the writes of the transaction.
func (t *Tx) History(ctx context.Context, q HistoryQuery) (HistoryPage, error) {
	return t.store.history(ctx, db.New(t.tx), q)
}

func (s *Store) history(ctx context.Context, d *db.Queries, q HistoryQuery) (HistoryPage, error) {
	r := historyRange{since: always, before: never, beforeRID: 0, currentAfter: always}
	if !q.Since.IsZero() {
		r.since = q.Since
	}
	if !q.At.IsZero() {
		r.atOnly = true
		r.currentAfter = q.At
		r.before = q.AtEnd
		if q.AtEnd.IsZero() {
			r.before = q.At.Truncate(time.Microsecond).Add(time.Microsecond)
		}
	}
	page := HistoryPage{Total: -1}
	if !q.NoTotal || q.ID != "" {
		total, err := s.countHistory(ctx, d, q, r)
		if err != nil {
			if q.ID != "" && q.Count > 0 && outcome.Is(err, outcome.CodeNotFound) {
				// A hidden resource is absent and takes as long: the page is read for both.
				if _, _, failed := s.historyPage(ctx, d, q, r, 1); failed != nil {
					return HistoryPage{}, failed
				}
			}
			return HistoryPage{}, err
		}
		if !q.NoTotal {
			page.Total = total
		}
	}
	if q.Count <= 0 {
		return page, nil
	}
	if q.Cursor != "" {
		p, err := parseHistoryPosition(q.Cursor)
		if err != nil {
			return HistoryPage{}, err
		}
		beside, err := BesideCursor(q.Cursor)
		if err != nil {
			return HistoryPage{}, err
		}
		switch {
		case p.newer:
			r.newer, r.after, r.afterRID, page.Next = true, p.at, p.rid, beside
		default:
			if p.at.Before(r.before) { // a cursor does not widen the range
				r.before, r.beforeRID = p.at, p.rid
			}
			page.Previous = beside
		}
	}
	// One more than asked for tells whether the pages go on in this direction.
	versions, rids, err := s.historyPage(ctx, d, q, r, min(q.Count, 1<<30)+1)
	if err != nil {
		return HistoryPage{}, err
	}
	more := len(versions) > q.Count
	if more {
		versions, rids = versions[:q.Count], rids[:q.Count]
	}
	if r.newer {
		slices.Reverse(versions)
		slices.Reverse(rids)
	}
	page.Versions, page.rids = versions, rids
	switch {
	case more && r.newer:
		page.Previous = page.Before(0)
	case more:
		page.Next = page.After(q.Count - 1)
	}
	return page, nil
}

// historyRange is the part of a history that one page is read from: versions older than
// (before, beforeRID), or, with newer, versions newer than (after, afterRID).
type historyRange struct {
	since, before, currentAfter time.Time
	beforeRID                   int64
	atOnly                      bool
	newer                       bool
	after                       time.Time
	afterRID                    int64
}

func (s *Store) countHistory(ctx context.Context, d *db.Queries, q HistoryQuery, r historyRange) (int, error) {
	if q.ID != "" {
		ref, shard := refAndShard(q.ResourceType, q.ID)
		n, err := d.CountInstanceHistory(ctx, db.CountInstanceHistoryParams{
			Since: r.since, Before: r.before, AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Ref: ref, Shard: shard,
		})
		if err == nil && n.Existing == 0 {
			return 0, outcome.NotFound(q.ResourceType, q.ID)
		}
		return int(n.Matching), translateError(err)
	}
	typs, err := s.historyTypes(ctx, q)
	if err != nil {
		return 0, err
	}
	var n int64
	if r.atOnly {
		n, err = d.CountTypeHistoryAt(ctx, db.CountTypeHistoryAtParams{
			Typs: typs, Since: r.since, Before: r.before, CurrentAfter: r.currentAfter,
		})
	} else {
		n, err = d.CountTypeHistory(ctx, db.CountTypeHistoryParams{Typs: typs, Since: r.since, Before: r.before})
	}
	return int(n), translateError(err)
}

// historyPage reads the versions of a range, the nearest to its cursor first.
func (s *Store) historyPage(ctx context.Context, d *db.Queries, q HistoryQuery, r historyRange, count int) ([]fhir.Version, []int64, error) {
	if q.ID != "" {
		rows, err := instanceHistory(ctx, d, q, r, count)
		if err != nil {
			return nil, nil, translateError(err)
		}
		versions := make([]fhir.Version, len(rows))
		for i, v := range rows {
			body, err := decodeBody(v.Body)
			if err != nil {
				return nil, nil, err
			}
			versions[i] = fhir.Version{
				ResourceType: q.ResourceType, ID: q.ID, VersionID: int(v.Version), LastUpdated: v.LastUpdated.UTC(),
				Method: v.Method, Body: body,
			}
		}
		return versions, make([]int64, len(rows)), nil
	}
	typs, err := s.historyTypes(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	rows, err := typeHistory(ctx, d, typs, r, count)
	if err != nil {
		return nil, nil, translateError(err)
	}
	versions, rids := make([]fhir.Version, len(rows)), make([]int64, len(rows))
	for i, v := range rows {
		body, err := decodeBody(v.Body)
		if err != nil {
			return nil, nil, err
		}
		versions[i] = fhir.Version{
			ResourceType: v.Name, ID: v.ID, VersionID: int(v.Version), LastUpdated: v.LastUpdated.UTC(),
			Method: v.Method, Body: body,
		}
		rids[i] = v.Rid
	}
	return versions, rids, nil
}

func instanceHistory(ctx context.Context, d *db.Queries, q HistoryQuery, r historyRange, count int) ([]db.InstanceHistoryRow, error) {
	ref, shard := refAndShard(q.ResourceType, q.ID)
	if !r.newer {
		return d.InstanceHistory(ctx, db.InstanceHistoryParams{
			Since: r.since, Before: r.before, BeforeRid: r.beforeRID, AtOnly: r.atOnly, CurrentAfter: r.currentAfter,
			Count: int32(count), Ref: ref, Shard: shard,
		})
	}
	newer, err := d.InstanceHistoryNewer(ctx, db.InstanceHistoryNewerParams{
		Since: r.since, Before: r.before, After: r.after, AfterRid: r.afterRID,
		AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Count: int32(count), Ref: ref, Shard: shard,
	})
	rows := make([]db.InstanceHistoryRow, len(newer))
	for i, row := range newer {
		rows[i] = db.InstanceHistoryRow(row)
	}
	return rows, err
}

func typeHistory(ctx context.Context, d *db.Queries, typs []int16, r historyRange, count int) ([]db.TypeHistoryRow, error) {
	if !r.newer {
		return d.TypeHistory(ctx, db.TypeHistoryParams{
			Since: r.since, Before: r.before, BeforeRid: r.beforeRID, Count: int32(count),
			AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Typs: typs,
		})
	}
	newer, err := d.TypeHistoryNewer(ctx, db.TypeHistoryNewerParams{
		Since: r.since, Before: r.before, After: r.after, AfterRid: r.afterRID, Count: int32(count),
		AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Typs: typs,
	})
	rows := make([]db.TypeHistoryRow, len(newer))
	for i, row := range newer {
		rows[i] = db.TypeHistoryRow(row)
	}
	return rows, err
}

// historyTypes returns the numbers of the types asked for.
func (s *Store) historyTypes(ctx context.Context, q HistoryQuery) ([]int16, error) {
	if q.ResourceType != "" {
		n, ok, err := s.typeNumber(ctx, q.ResourceType)
		if !ok || err != nil {
			return nil, err
		}
		return []int16{n}, nil
	}
	if err := s.loadTypes(ctx); err != nil {
		return nil, translateError(err)
	}
	var all []int16
	for n := range s.memory.Load().types.current.Load().name {
		all = append(all, n)
	}
	return all, nil
}

// A historyPosition is the place of a cursor in a history: behind or, with newer,
// before the version of this time and rid.
//
//	8 bytes   time in microseconds, big-endian
//	8 bytes   rid, big-endian; 0 in the history of an instance
//	1 byte    only with newer: 1
type historyPosition struct {
	at    time.Time
	rid   int64
	newer bool
}

func (p historyPosition) String() string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 17), uint64(p.at.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(p.rid))
	if p.newer {
		b = append(b, 1)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseHistoryPosition(cursor string) (historyPosition, error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil && len(b) != 16 && (len(b) != 17 || b[16] != 1) {
		err = fmt.Errorf("%d bytes", len(b))
	}
	if err != nil {
		return historyPosition{}, outcome.Invalid("the page cursor %q is not one that this server has given out", cursor).Because(err)
	}
	p := historyPosition{
		at:    time.UnixMicro(int64(binary.BigEndian.Uint64(b[:8]))).UTC(),
		rid:   int64(binary.BigEndian.Uint64(b[8:16])),
		newer: len(b) == 17,
	}
	if p.at.Before(always) || p.at.After(never) {
		return historyPosition{}, outcome.Invalid("the page cursor %q is not one that this server has given out", cursor)
	}
	return p, nil
}
