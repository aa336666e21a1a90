package strategy

import (
	"context"

	"kiln/server/search/admission"
	"kiln/server/search/session"
)

// becomeExpensive makes the search an expensive one. waited reports whether it had to wait for others.
func (x *execution) becomeExpensive(ctx context.Context) (waited bool, err error) {
	return x.session.BecomeExpensive(ctx, admission.Key(x.countKey()))
}

// answerOrBecomeExpensive is becomeExpensive. If the cache gets the answer while the search waits, it returns the page.
func (x *execution) answerOrBecomeExpensive(ctx context.Context) (p *session.Page, waited bool, err error) {
	q := x.question
	if q == nil || len(x.q.Sort) > 0 || !x.session.CanWait() {
		waited, err = x.becomeExpensive(ctx)
		return nil, waited, err
	}
	answered := func() (bool, <-chan struct{}) {
		next := x.env.filler.NextRead()
		_, ok := x.env.cache.FindAnswer(q)
		return ok, next
	}
	connection := x.session.Connection()
	for range maxAttempts {
		more, err := connection.BecomeExpensive(ctx, admission.Key(x.countKey()), answered)
		waited = waited || more
		if err != nil || !more {
			return nil, waited, err
		}
		if p, err := x.answerFromCache(ctx); p != nil || err != nil || connection.IsExpensive() {
			return p, waited, err
		}
	}
	_, err = x.becomeExpensive(ctx)
	return nil, true, err
}
