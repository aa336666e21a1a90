package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// What server/terminology keeps and reads here.

// terminologyTypes are the resource types whose writes change what codes mean.
var terminologyTypes = []string{"CodeSystem", "ConceptMap", "ValueSet"}

// TerminologyStamp returns a text that is another one after every create, update
// and delete of a CodeSystem, ConceptMap or ValueSet, by any server, and in another epoch: the
// number of versions that they have ever had, and the epoch. stored reports whether there was one.
func (s *Store) TerminologyStamp(ctx context.Context) (stamp string, stored bool, err error) {
	err = s.inOneEpoch(func() error {
		n, err := db.New(s.pool).TerminologyVersions(ctx, terminologyTypes)
		stamp, stored = fmt.Sprintf("%d %x", n, int64(s.Epoch())), n > 0
		return err
	})
	return stamp, stored, translateError(err)
}

// maxCanonicals bounds how many resources are read by one uri.
const maxCanonicals = 100

// Canonicals returns the current resources of a type whose url is url.
func (s *Store) Canonicals(ctx context.Context, typ, url string) ([]fhir.Version, error) {
	return s.byURI(ctx, typ, typ+".url", url)
}

// ConceptMaps returns the current concept maps that map codes from a system, or,
// when to is set, to it.
func (s *Store) ConceptMaps(ctx context.Context, system string, to bool) ([]fhir.Version, error) {
	if to {
		return s.byURI(ctx, "ConceptMap", "ConceptMap.group.target", system)
	}
	return s.byURI(ctx, "ConceptMap", "ConceptMap.group.source", system)
}

// Supplements returns the current code systems that supplement a system; for
// system "" some that supplement any, none where there are none.
func (s *Store) Supplements(ctx context.Context, system string) ([]fhir.Version, error) {
	value := fhir.ValuePresent()
	if system != "" {
		value = fhir.ValueURI(system)
	}
	return s.byTerm(ctx, "CodeSystem", fhir.KeyOf(fhir.SearchReference, "CodeSystem.supplements").Term(value))
}

func (s *Store) byURI(ctx context.Context, typ, path, uri string) ([]fhir.Version, error) {
	return s.byTerm(ctx, typ, fhir.KeyOf(fhir.SearchURI, path).Term(fhir.ValueURI(uri)))
}

func (s *Store) byTerm(ctx context.Context, typ string, term int64) ([]fhir.Version, error) {
	rows, err := db.New(s.pool).ResourcesByTerm(ctx, db.ResourcesByTermParams{Term: term, Most: maxCanonicals})
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]fhir.Version, len(rows))
	for i, r := range rows {
		body, err := decodeBody(r.Body)
		if err != nil {
			return nil, err
		}
		out[i] = fhir.Version{ResourceType: typ, ID: r.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(), Method: r.Method, Body: body}
	}
	return out, nil
}

// TerminologyAnswer returns the stored answer of the external terminology server to a
// question, nil if there is none.
func (s *Store) TerminologyAnswer(ctx context.Context, key int64) (body []byte, fetched time.Time, err error) {
	a, err := db.New(s.pool).ReadTerminologyAnswer(ctx, key)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, time.Time{}, nil
	}
	return a.Body, a.Fetched, translateError(err)
}

// answerLife is how long answers are kept that nobody has asked for anew.
const answerLife = 7 * 24 * time.Hour

// PutTerminologyAnswer stores an answer, unless a newer one exists, and deletes answers
// that are older than a week.
func (s *Store) PutTerminologyAnswer(ctx context.Context, key int64, body []byte, fetched time.Time) error {
	q := db.New(s.pool)
	if err := q.PutTerminologyAnswer(ctx, db.PutTerminologyAnswerParams{Key: key, Fetched: fetched, Body: body}); err != nil {
		return translateError(err)
	}
	return translateError(q.DropTerminologyAnswers(ctx, fetched.Add(-answerLife)))
}

// PutTerminologySet keeps values under an id that is a hash of them, and notes
// their use.
func (s *Store) PutTerminologySet(ctx context.Context, id int64, values []int64, now time.Time) error {
	return translateError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		if err := q.InsertTerminologySet(ctx, db.InsertTerminologySetParams{ID: id, Used: now}); err != nil {
			return fmt.Errorf("insert terminology set: %w", err)
		}
		return q.InsertTerminologySetValues(ctx, db.InsertTerminologySetValuesParams{ID: id, Values: values})
	}))
}

// TouchTerminologySet notes the use of a set, and reports whether it is there.
func (s *Store) TouchTerminologySet(ctx context.Context, id int64, now time.Time) (bool, error) {
	n, err := db.New(s.pool).TouchTerminologySet(ctx, db.TouchTerminologySetParams{ID: id, Used: now})
	return n > 0, translateError(err)
}

// DropTerminologySets drops the sets that were last used before then.
func (s *Store) DropTerminologySets(ctx context.Context, then time.Time) error {
	return translateError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		q := db.New(tx)
		ids, err := q.DropTerminologySets(ctx, then)
		if err != nil || len(ids) == 0 {
			return err
		}
		return q.DropTerminologySetValues(ctx, ids)
	}))
}
