package interaction

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/store"
)

// Route is how the reads of one request are routed to a PostgreSQL, and which one has answered.
type Route struct {
	Need    store.Position // the answer reflects it
	Primary bool           // a standby must not answer
	Served  store.Served   // by the last read; Source is "" before
}

type routeKey struct{}

// WithRoute returns a context whose reads follow a Route.
func WithRoute(ctx context.Context, r *Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// onPrimary returns a context for the reads of writes, operations and Apps, which no standby serves. It waits until the primary
// shows every commit that a standby has shown.
func (s *Service) onPrimary(ctx context.Context) (context.Context, error) {
	route, _ := ctx.Value(routeKey{}).(*Route)
	if route == nil || !s.Store.HasReplicas() {
		return ctx, nil
	}
	return context.WithValue(ctx, routeKey{}, (*Route)(nil)), s.Store.AwaitOnPrimary(ctx, route.Need)
}

// demand are the conditions of a read for the PostgreSQL that answers it.
type demand struct {
	primary bool // Subscriptions have their state there
	audit   bool // AuditEvents by name: all of acknowledged writes have to be stored
	beside  bool // it could have AuditEvents beside other types
	alone   bool // one statement will probably do
}

// or is the demand of two reads together.
func (d demand) or(e demand) demand {
	return demand{d.primary || e.primary, d.audit || e.audit, d.beside || e.beside, false}
}

// demandOf returns the demand of a read of a type ("" is every one).
func (s *Service) demandOf(typ string, values url.Values) (d demand) {
	d.audit, d.beside = s.asksForAudit(typ, values)
	d.primary = typ == "Subscription"
	for name, list := range values {
		d.primary = d.primary || strings.Contains(name, "Subscription") || slices.ContainsFunc(list, func(v string) bool { return strings.Contains(v, "Subscription") })
	}
	return d
}

// settleAudit makes the AuditEvents of acknowledged writes be stored, and returns a position behind them.
func (s *Service) settleAudit(ctx context.Context, d demand, need store.Position) (store.Position, error) {
	if !d.audit && !d.beside || s.Store.IsPrimaryLost() && !d.audit {
		return need, nil
	}
	settling, cancel := context.WithTimeout(ctx, settlingTime)
	defer cancel()
	wait := settling
	if d.audit {
		wait = ctx
	}
	if err := s.Settle(wait); err != nil && (d.audit || settling.Err() == nil) {
		return need, err
	}
	if s.Store.IsPrimaryLost() {
		return need, nil
	}
	p, err := s.Store.PositionNow(ctx)
	return store.LaterPosition(need, p), err
}

// onReplicaKey marks a context whose read runs on a standby.
type onReplicaKey struct{}

func isOnReplica(ctx context.Context) bool { return ctx.Value(onReplicaKey{}) != nil }

// answerRead runs a read on a standby where the context's Route has one, else on the primary. A read on a standby may be
// repeated on the primary. Positions are those of one read: a request has one.
func (s *Service) answerRead(ctx context.Context, d demand, read func(ctx context.Context, from Reader) (Response, error)) (Response, error) {
	route, _ := ctx.Value(routeKey{}).(*Route)
	if route == nil || !s.Store.HasReplicas() {
		return read(ctx, s.Store)
	}
	var answer Response
	if !d.primary && !route.Primary {
		need, err := s.settleAudit(ctx, d, route.Need)
		if err != nil {
			return Response{}, err
		}
		on := context.WithValue(ctx, onReplicaKey{}, true)
		served, ok, err := s.Store.ReadOnReplica(on, need, d.alone, func(ctx context.Context, from *store.ReplicaReader) (err error) {
			answer.Release()
			answer, err = read(ctx, from)
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
	if err := s.Store.AwaitOnPrimary(ctx, route.Need); err != nil {
		return Response{}, err
	}
	answer, err := read(ctx, s.Store)
	s.Store.NotePrimaryRead()
	if s.Store.IsPrimaryLost() && err != nil {
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
