package ratelimit

import (
	"context"
	"net/http"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/web"
)

// Kind is something expensive that one client may only do so often at a time.
type Kind int

// The kinds.
const (
	Search Kind = iota
	Bundle
	Stream
	kinds
)

var kindNames = [kinds]string{"searches", "bundles", "streams"}

func (l Limits) of(k Kind) int { return [kinds]int{l.Searches, l.Bundles, l.Streams}[k] }

// tryAgain is how many seconds later a client that has too much under way is told to come again:
// when there is room nobody knows.
const tryAgain = 1

// Enter counts one more of a kind for the client of a request, and returns what
// counts it off. It fails with throttled, 429, where the client has as many already, and
// writes the X-RateLimit headers of that bound and Retry-After to h.
func (l *Limiter) Enter(ctx context.Context, h http.Header, r *http.Request, k Kind) (leave func(), err error) {
	limit := l.Limits().of(k)
	if limit == 0 {
		return func() {}, nil
	}
	who := l.address(r)
	if p := access.PrincipalFrom(ctx); p != nil && p != access.Open {
		who = p.ClientID + "\x00" + p.Subject
	}
	id := identity("concurrent", who)
	s := &l.shards[uint64(id)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.client(id, 60, l.Now())
	if c.active[k] >= limit {
		verdict{limit: limit, reset: l.Now().Unix() + tryAgain, wait: tryAgain}.write(h)
		return nil, outcome.New(outcome.CodeThrottled, "this client has %d %s under way, as many as it may", limit, kindNames[k])
	}
	c.active[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.active[k]--
	}, nil
}

var _ web.Limiter = (*Limiter)(nil)
