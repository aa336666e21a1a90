package strategy

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"kiln/server/fhir"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
)

// textsSeen caches the texts of the dictionary that searches have read, by key. The statement that fetches the rows of
// a cached answer verifies the answer, and these texts with it (plan.Texts): they need no statement of their own.
type textsSeen struct {
	mu sync.Mutex
	of map[fhir.Key]keyTexts
}

// keyTexts are the texts of a key and their values, in the order of these.
type keyTexts struct {
	texts  []string
	values []int64
}

// The limits of the cached texts.
const (
	maxTextKeys   = 4096
	maxTextsOfKey = 256
)

func (s *textsSeen) getTexts(key fhir.Key) (keyTexts, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.of[key]
	return t, ok
}

func (s *textsSeen) keepTexts(key fhir.Key, t keyTexts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(t.texts) > maxTextsOfKey {
		delete(s.of, key)
		return
	}
	if s.of == nil || len(s.of) >= maxTextKeys {
		s.of = make(map[fhir.Key]keyTexts)
	}
	s.of[key] = t
}

// textsOf returns the texts of a key for a plan: as they were seen, noted in x.assumed, or with sure as they are.
func (x *searching) textsOf(ctx context.Context, key fhir.Key, sure bool) ([]string, error) {
	seen := &x.s.memory.texts
	if !sure {
		if t, ok := seen.getTexts(key); ok {
			if x.assumed == nil {
				x.assumed = make(map[fhir.Key]keyTexts)
			}
			x.assumed[key] = t
			return t.texts, nil
		}
	}
	rows, err := x.conn.Query(ctx, `SELECT value, text FROM token_text WHERE key = $1 ORDER BY value`, int64(key))
	if err != nil {
		return nil, err
	}
	var t keyTexts
	var value int64
	var text string
	if _, err := pgx.ForEachRow(rows, []any{&value, &text}, func() error {
		t.values, t.texts = append(t.values, value), append(t.texts, text)
		return nil
	}); err != nil {
		return nil, err
	}
	if !x.isPrivate() {
		seen.keepTexts(key, t)
	}
	return t.texts, nil
}

// assumedTexts returns the texts of x.assumed.
func (x *searching) assumedTexts() (t plan.Texts) {
	for key := range x.assumed {
		t.Keys = append(t.Keys, int64(key))
	}
	slices.SortFunc(t.Keys, cmp.Compare)
	for _, key := range t.Keys {
		t.Values = append(t.Values, x.assumed[fhir.Key(key)].values...)
	}
	return t
}
