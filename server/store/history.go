package store

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
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
	Cursor    string // HistoryPage.Next of the page before; "" is the first page
	NoTotal   bool   // leave Total out
}

// HistoryPage is a page of versions.
type HistoryPage struct {
	Versions []fhir.Version
	Total    int    // versions that match, on all pages; -1 with NoTotal
	Next     string // cursor of the next page, "" on the last

	rids []int64 // of the versions
}

// After is the cursor of a page that begins behind version i of this one.
func (p HistoryPage) After(i int) string {
	return historyCursor(p.Versions[i].LastUpdated, p.rids[i])
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

// History is Store.History with what the transaction has written so far.
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
				// What is hidden is absent, and takes as long: the page is read for both.
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
		at, rid, err := parseHistoryCursor(q.Cursor)
		if err != nil {
			return HistoryPage{}, err
		}
		r.before, r.beforeRID = at, rid
	}
	// One more than asked for tells whether there is a next page.
	versions, rids, err := s.historyPage(ctx, d, q, r, min(q.Count, 1<<30)+1)
	if err != nil {
		return HistoryPage{}, err
	}
	if len(versions) > q.Count {
		versions = versions[:q.Count]
		page.Next = historyCursor(versions[q.Count-1].LastUpdated, rids[q.Count-1])
	}
	page.Versions, page.rids = versions, rids
	return page, nil
}

type historyRange struct {
	since, before, currentAfter time.Time
	beforeRID                   int64
	atOnly                      bool
}

func (s *Store) countHistory(ctx context.Context, d *db.Queries, q HistoryQuery, r historyRange) (int, error) {
	if q.ID != "" {
		ref, shard := place(q.ResourceType, q.ID)
		n, err := d.CountInstanceHistory(ctx, db.CountInstanceHistoryParams{
			Since: r.since, Before: r.before, AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Ref: ref, Shard: shard,
		})
		if err == nil && n.Existing == 0 {
			return 0, outcome.NotFound(q.ResourceType, q.ID)
		}
		return int(n.Matching), translate(err)
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
	return int(n), translate(err)
}

func (s *Store) historyPage(ctx context.Context, d *db.Queries, q HistoryQuery, r historyRange, count int) ([]fhir.Version, []int64, error) {
	if q.ID != "" {
		ref, shard := place(q.ResourceType, q.ID)
		rows, err := d.InstanceHistory(ctx, db.InstanceHistoryParams{
			Since: r.since, Before: r.before, AtOnly: r.atOnly, CurrentAfter: r.currentAfter,
			Count: int32(count), Ref: ref, Shard: shard,
		})
		if err != nil {
			return nil, nil, translate(err)
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
	rows, err := d.TypeHistory(ctx, db.TypeHistoryParams{
		Since: r.since, Before: r.before, BeforeRid: r.beforeRID, Count: int32(count),
		AtOnly: r.atOnly, CurrentAfter: r.currentAfter, Typs: typs,
	})
	if err != nil {
		return nil, nil, translate(err)
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
		return nil, translate(err)
	}
	var all []int16
	for n := range s.memory.Load().types.current.Load().name {
		all = append(all, n)
	}
	return all, nil
}

func historyCursor(at time.Time, rid int64) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(at.UnixMicro()))
	binary.BigEndian.PutUint64(b[8:], uint64(rid))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func parseHistoryCursor(cursor string) (at time.Time, rid int64, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil && len(b) != 16 {
		err = fmt.Errorf("%d bytes", len(b))
	}
	if err != nil {
		return time.Time{}, 0, outcome.Invalid("the page cursor %q is not one that this server has given out", cursor).Because(err)
	}
	at = time.UnixMicro(int64(binary.BigEndian.Uint64(b[:8]))).UTC()
	if at.Before(always) || at.After(never) {
		return time.Time{}, 0, outcome.Invalid("the page cursor %q is not one that this server has given out", cursor)
	}
	return at, int64(binary.BigEndian.Uint64(b[8:])), nil
}
