package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// decideExisting decides the outcome of a write to an existing resource: it fails with the
// precondition that the current version does not meet (If-None-Match, If-Match,
// If-Unmodified-Since), or makes the next version.
func (s *Store) decideExisting(ctx context.Context, e *entry, r db.LockResourcesRow, now time.Time) error {
	w := e.w
	var current fhir.Version
	if w.Modify != nil || w.Guard != nil || w.UnlessEqual != nil {
		json, err := decodeBody(r.Body)
		if err != nil {
			return err
		}
		current = fhir.Version{
			ResourceType: w.ResourceType, ID: w.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(),
			Method: r.Method, Body: json,
		}
	}
	if w.Guard != nil {
		if ok, err := w.Guard.Sees(current); err != nil {
			return err
		} else if !ok {
			return s.decideHidden(e)
		}
	}
	switch {
	case w.IfNoneMatch:
		return outcome.Precondition(outcome.CodeDuplicate, "%s/%s exists, and If-None-Match asks that it does not", w.ResourceType, w.ID)
	case slices.Contains(w.NotVersions, int(r.Version)):
		return outcome.Precondition(outcome.CodeConflict, "%s/%s is at version %d, and If-None-Match asks that it is not", w.ResourceType, w.ID, r.Version)
	case len(w.IfMatch) > 0 && !slices.Contains(w.IfMatch, int(r.Version)):
		return outcome.Conflict("%s/%s is at version %d, and If-Match asks for %s", w.ResourceType, w.ID, r.Version, asked(w.IfMatch))
	}
	if t := w.UnmodifiedSince; !t.IsZero() && r.LastUpdated.Truncate(time.Second).After(t) {
		return outcome.Precondition(outcome.CodeConflict, "%s/%s was changed at %s, and If-Unmodified-Since asks that it was not",
			w.ResourceType, w.ID, r.LastUpdated.UTC().Format(time.RFC3339))
	}
	equal := w.UnlessEqual != nil && w.UnlessEqual(current)
	body := w.Body
	if w.Modify != nil {
		var err error
		if body, e.fhirIndex, err = w.Modify(current); err != nil {
			return err
		}
		if err := s.learnIndexTexts(ctx, e.fhirIndex); err != nil {
			return err
		}
	}
	if w.Guard != nil {
		if err := w.Guard.May(&current, w.ID, e.fhirIndex); err != nil {
			return err
		}
	}
	if equal {
		e.version, e.lastUpdated, e.body = current.VersionID, current.LastUpdated, current.Body
		return nil
	}
	e.action, e.ranges = updated, r.Ranges
	if w.Method == fhir.DELETE {
		e.action, body = deleted, nil
	}
	e.makeVersion(int(r.Version)+1, laterOf(now, r.LastUpdated), body)
	return nil
}

// asked are the versions of an If-Match in words.
func asked(versions []int) string {
	words := make([]string, len(versions))
	for i, v := range versions {
		if words[i] = "version " + strconv.Itoa(v); v < 0 {
			words[i] = "a version that there never was"
		}
	}
	return strings.Join(words, " or ")
}

// decideHidden decides the outcome of a write to a resource that is hidden from its writer:
// the same as for an absent one, except that it creates nothing.
func (s *Store) decideHidden(e *entry) error {
	w := e.w
	switch {
	case len(w.IfMatch) > 0:
		return outcome.Precondition(outcome.CodeConflict, "%s/%s does not exist, and If-Match asks for %s", w.ResourceType, w.ID, asked(w.IfMatch))
	case w.IfExists:
		return outcome.Precondition(outcome.CodeConflict, "%s/%s does not exist, and If-Match asks that it does", w.ResourceType, w.ID)
	case w.MustExist || w.Modify != nil:
		return outcome.NotFound(w.ResourceType, w.ID)
	case w.Method == fhir.DELETE:
		return nil
	}
	return w.Guard.Hidden()
}

// seesDeleted reports whether the writer can know of a resource that is deleted by h.
func (s *Store) seesDeleted(ctx context.Context, q *db.Queries, w *Write, h db.LastVersionsRow) (bool, error) {
	ref, shard := refAndShard(w.ResourceType, w.ID)
	r, err := q.ReadVersion(ctx, db.ReadVersionParams{Ref: ref, Shard: shard, Version: h.Version - 1})
	if err != nil {
		return false, fmt.Errorf("version before the deletion: %w", err)
	}
	body, err := decodeBody(r.Body)
	if err != nil {
		return false, err
	}
	return w.Guard.Sees(fhir.Version{
		ResourceType: w.ResourceType, ID: w.ID, VersionID: int(h.Version) - 1, LastUpdated: r.LastUpdated.UTC(), Method: r.Method, Body: body,
	})
}

// decideAbsent takes the last version there was, or the zero row.
func (s *Store) decideAbsent(ctx context.Context, q *db.Queries, e *entry, h db.LastVersionsRow, now time.Time) error {
	w := e.w
	if w.Guard != nil && h.Version > 1 {
		if ok, err := s.seesDeleted(ctx, q, w, h); err != nil {
			return err
		} else if !ok {
			return s.decideHidden(e)
		}
	}
	switch {
	case len(w.IfMatch) > 0:
		return outcome.Precondition(outcome.CodeConflict, "%s/%s does not exist, and If-Match asks for %s", w.ResourceType, w.ID, asked(w.IfMatch))
	case w.IfExists:
		return outcome.Precondition(outcome.CodeConflict, "%s/%s does not exist, and If-Match asks that it does", w.ResourceType, w.ID)
	case (w.MustExist || w.Modify != nil) && h.Version == 0:
		return outcome.NotFound(w.ResourceType, w.ID)
	case w.MustExist || w.Modify != nil:
		return outcome.Deleted(w.ResourceType, w.ID)
	case w.Method == fhir.DELETE:
		e.version = int(h.Version)
		if e.version > 0 {
			e.lastUpdated = h.LastUpdated.UTC()
		}
		return nil
	}
	if w.Guard != nil {
		if err := w.Guard.May(nil, w.ID, w.Index); err != nil {
			return err
		}
	}
	e.action = claimed
	e.rid = h.Rid
	if e.rid == 0 {
		var err error
		if e.rid, err = s.nextSurrogate(ctx, e.typ); err != nil {
			return err
		}
	}
	if h.Version > 0 {
		now = laterOf(now, h.LastUpdated)
	}
	e.makeVersion(int(h.Version)+1, now, w.Body)
	return nil
}
