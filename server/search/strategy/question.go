package strategy

import (
	"crypto/sha256"
	"encoding/json"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"
)

// cacheQuestion returns the search as a question to the cache; nil if the cache cannot answer it.
func (x *execution) cacheQuestion() (*cache.Question, error) {
	if x.questionKnown || !x.usesCache() {
		return x.question, nil
	}
	x.questionKnown = true
	q, err := newQuestion(x.plan)
	if q == nil || err != nil {
		return nil, err
	}
	page, ok, err := x.plan.CachePage()
	if !ok || err != nil {
		return nil, err
	}
	q.Page = page
	x.question = q
	return q, nil
}

// newQuestion returns the matches of a plan, without a page, as a question to the cache; nil if the cache cannot answer it.
func newQuestion(p *plan.Plan) (*cache.Question, error) {
	typ, ok := p.OneType()
	if !ok || !cache.FollowsType(typ) {
		return nil, nil
	}
	if links, beside := p.SplitByLinks(); len(links) > 0 {
		return newLinkedQuestion(p, links, beside)
	}
	compared, others, ok := p.SplitByColumns()
	if !ok {
		return nil, nil
	}
	q := &cache.Question{Type: p.OnlyType(), Name: typ, Clauses: p.Clauses(), Columns: cache.JoinDateRanges(compared), Others: others, Terms: p.FindTerms(len(compared))}
	var err error
	if q.Whole, err = clausesKey(q.Type, q.Clauses); err != nil {
		return nil, err
	}
	if len(others) > 0 {
		q.Rest, err = clausesKey(q.Type, others)
	}
	return q, err
}

// newLinkedQuestion is newQuestion for a plan with links.
func newLinkedQuestion(p *plan.Plan, links []plan.Link, beside *plan.Plan) (*cache.Question, error) {
	typ, _ := p.OneType()
	q := &cache.Question{Type: p.OnlyType(), Name: typ}
	var err error
	if beside != nil {
		if q.Beside, err = newQuestion(beside); q.Beside == nil || err != nil {
			return nil, err
		}
	}
	for _, l := range links {
		others, err := newQuestion(l.Others)
		if others == nil || err != nil {
			return nil, err
		}
		q.Links = append(q.Links, cache.Link{References: l.References, Own: l.Own, Back: l.Back, Others: others})
	}
	return q, nil
}

// clausesKey returns the key of clauses that the index rows of a resource decide (match.ByRows). Their fields identify them.
func clausesKey(typ int16, clauses []match.Clause) (k cache.Key, err error) {
	type clause struct {
		Any []match.Match
		Not bool
	}
	named := struct {
		Type    int16
		Clauses []clause
	}{Type: typ}
	for _, c := range clauses {
		named.Clauses = append(named.Clauses, clause{c.Any, c.Not})
	}
	b, err := json.Marshal(named)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(b)
	copy(k[:], sum[:])
	return k, nil
}

// requestItems requests the items that the cache lacks to answer the search. They are read in the background after a second
// miss, or the first miss of an expensive search.
func (x *execution) requestItems(expensive bool) {
	if x.question == nil || x.requested {
		return
	}
	x.requested = true
	x.requestOrder(expensive)
	x.env.filler.Request(x.question, expensive)
}

// requestOrder requests the column of the order. The order of last updates has an index of the resources themselves.
func (x *execution) requestOrder(expensive bool) {
	if q := x.question; q != nil && q.Page.Order != nil && x.q.Sort[0].Code != "_lastUpdated" {
		x.env.filler.RequestOrder(q, expensive)
	}
}
