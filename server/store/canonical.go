package store

import (
	"context"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// ByCanonical returns the current resources of a type that have one of the
// canonical URLs, oldest first. Spec: https://hl7.org/fhir/R4/references.html#canonical.
func (t *Tx) ByCanonical(ctx context.Context, typ string, urls []string) ([]fhir.Version, error) {
	key := fhir.KeyOf(fhir.SearchURI, typ+".url")
	var terms []int64
	for _, u := range urls {
		terms = append(terms, key.Term(fhir.ValueURI(u)))
	}
	rows, err := db.New(t.tx).ResourcesByTerms(ctx, terms)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]fhir.Version, len(rows))
	for i, r := range rows {
		body, err := decodeBody(r.Body)
		if err != nil {
			return nil, err
		}
		out[i] = fhir.Version{
			ResourceType: typ, ID: r.ID, VersionID: int(r.Version), LastUpdated: r.LastUpdated.UTC(), Method: r.Method, Body: body,
		}
	}
	return out, nil
}

// definitionTypes are the resource types that validation reads.
var definitionTypes = []string{"StructureDefinition", "ValueSet", "CodeSystem", "Questionnaire"}

// Definitions returns the current profiles, value sets, code systems and questionnaires with a
// canonical URL, oldest first. It has a connection of its own, and may be called with
// a transaction open.
func (s *Store) Definitions(ctx context.Context, url string) ([][]byte, error) {
	var terms []int64
	for _, typ := range definitionTypes {
		terms = append(terms, fhir.KeyOf(fhir.SearchURI, typ+".url").Term(fhir.ValueURI(url)))
	}
	rows, err := db.New(s.side).ResourcesByTerms(ctx, terms)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([][]byte, len(rows))
	for i, r := range rows {
		if out[i], err = decodeBody(r.Body); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// TakenCanonicals reports which of the ids of a type belong to current resources, and locks
// those.
func (t *Tx) TakenCanonicals(ctx context.Context, typ string, ids []string) (map[string]bool, error) {
	refs := make([]int64, len(ids))
	of := make(map[int64]string, len(ids))
	for i, id := range ids {
		refs[i], _ = refAndShard(typ, id)
		of[refs[i]] = id
	}
	rows, err := db.New(t.tx).LockResources(ctx, db.LockResourcesParams{Refs: refs})
	if err != nil {
		return nil, translateError(err)
	}
	out := make(map[string]bool, len(rows))
	for _, r := range rows {
		out[of[r.Ref]] = true
	}
	return out, nil
}

// ResourceTypes are the types of which resources have ever been stored.
func (s *Store) ResourceTypes(ctx context.Context) ([]string, error) {
	rows, err := db.New(s.side).ResourceTypes(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.Name
	}
	return out, nil
}
