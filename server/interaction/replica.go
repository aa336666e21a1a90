package interaction

import (
	"context"
	"net/http"
	"slices"

	"kiln/server/store"
)

// Route is how the reads of one request are routed to a PostgreSQL, and which one has answered.
type Route struct {
	Need    store.Position // the answer reflects it
	Primary bool           // a standby must not answer
	Served  store.Served   // by the last read; Source is "" before
	// Told is told of Served after each read, before the links of its pages are made; may be nil.
	Told func(store.Served)
}

type routeKey struct{}

// WithRoute returns a context whose reads follow a Route.
func WithRoute(ctx context.Context, r *Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// onReplicaKey marks a context whose read runs on a standby.
type onReplicaKey struct{}

func isOnReplica(ctx context.Context) bool { return ctx.Value(onReplicaKey{}) != nil }

// answerRead runs a read on a standby where the context's Route has one, else on the primary. A read on a standby may be
// repeated on the primary. Positions are those of one read: a request has one.
func (s *Service) answerRead(ctx context.Context, primary bool, read func(ctx context.Context, from Reader) (Response, error)) (Response, error) {
	route, _ := ctx.Value(routeKey{}).(*Route)
	if route == nil || !s.Store.HasReplicas() {
		return read(ctx, s.Store)
	}
	var answer Response
	if !primary && !route.Primary {
		on := context.WithValue(ctx, onReplicaKey{}, true)
		served, ok, err := s.Store.ReadOnReplica(ctx, route.Need, func(from *store.ReplicaReader) (err error) {
			answer, err = read(on, from)
			return err
		})
		if ok {
			route.Served = served
			answer.addPosition(served.Position)
			return answer, err
		}
		answer.Release()
	}
	route.Served = store.Served{Source: "primary"}
	answer, err := read(ctx, s.Store)
	s.Store.NotePrimaryRead()
	if s.Store.IsPrimaryLost() {
		return answer, err
	}
	p, failed := s.Store.PositionNow(ctx)
	if failed != nil {
		return answer, err
	}
	route.Served.Position = p
	answer.addPosition(p)
	return answer, err
}

// PositionParameter is the parameter of page links with the position of their page.
const PositionParameter = "_position"

// pagesWithPosition are the relations of the links that a client follows.
var pagesWithPosition = []string{"first", "previous", "next", "last"}

// addPosition adds a position to the links to other pages: none comes from an older state than this page.
func (r *Response) addPosition(p store.Position) {
	if r.Bundle == nil || r.Status != http.StatusOK || r.Bundle.Type != "searchset" && r.Bundle.Type != "history" {
		return
	}
	for i, l := range r.Bundle.Links {
		if slices.Contains(pagesWithPosition, l.Relation) {
			r.Bundle.Links[i].URL = addParameter(l.URL, PositionParameter, p.String())
		}
	}
}

// addParameter adds a parameter that needs no escapes to a URL.
func addParameter(url, name, value string) string {
	separator := "?"
	for _, c := range url {
		if c == '?' {
			separator = "&"
		}
	}
	return url + separator + name + "=" + value
}
