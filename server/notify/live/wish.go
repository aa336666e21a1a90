package live

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"

	"kiln/server/notify/matching"
)

// wish is the filter that a connection asks for.
type wish struct {
	typ      string   // "" for all types
	types    []string // several, with typ ""; nil for typ alone
	kinds    matching.Kinds
	criteria *matching.Criteria // nil for all
}

// id is the same for the same wish: the ids of notifications are made of it.
func (w wish) id() string {
	text := ""
	if w.criteria != nil {
		text = w.criteria.Text
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%s", w.typ, w.kinds, text))
	return uuid.NewSHA1(matching.Namespace, sum[:]).String()
}

// rules are one, or one for each of several types.
func (w wish) rules() []matching.Rule {
	if len(w.types) < 2 {
		return []matching.Rule{w.rule()}
	}
	var rules []matching.Rule
	for _, t := range w.types {
		rules = append(rules, matching.Rule{ResourceType: t, Kinds: w.kinds})
	}
	return rules
}

func (w wish) rule() matching.Rule {
	r := matching.Rule{ResourceType: w.typ, Kinds: w.kinds}
	if w.criteria != nil && len(w.criteria.Query.Clauses) > 0 {
		r.Current = w.criteria
	}
	return r
}
