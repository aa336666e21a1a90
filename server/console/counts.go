package console

import (
	"context"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// typeCount is how many resources of a type the person may see.
type typeCount struct {
	Type string
	N    int64
}

// countWorkers is how many types are counted at the same time.
const countWorkers = 4

// ctx is a context in which interactions run on behalf of the person.
func (v *visit) ctx() context.Context {
	if v.principal.IsOpen() {
		return access.WithPrincipal(v.r.Context(), v.principal)
	}
	return access.WithAddress(v.r.Context(), v.principal, func() netip.Addr { return v.c.mux.Now().Proxies.ClientAddress(v.r) })
}

// count returns how many resources a search finds, -1 where the person may not search.
func (v *visit) count(ctx context.Context, typ string, values url.Values) (int64, error) {
	q := url.Values{"_summary": {"count"}}
	for name, list := range values {
		q[name] = list
	}
	answer, err := v.c.Service.Search(ctx, interaction.SearchParams{ResourceType: typ, Values: q})
	if outcome.Is(err, outcome.CodeForbidden, outcome.CodeNotSupported) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	defer answer.Release()
	return int64(answer.Bundle.Total), nil
}

// counted is one of the searches that are counted together.
type counted struct {
	typ    string
	values url.Values
	n      int64
}

// countAll counts several searches.
func (v *visit) countAll(list []counted) error {
	ctx := v.ctx()
	next := make(chan *counted)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range countWorkers {
		wait.Go(func() {
			for x := range next {
				n, err := v.count(ctx, x.typ, x.values)
				x.n = n
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	for i := range list {
		next <- &list[i]
	}
	close(next)
	wait.Wait()
	return failed
}

// typeCounts counts the resources of each type that the person may search.
func (v *visit) typeCounts() ([]typeCount, error) {
	var list []counted
	for name := range v.c.Service.Model.Resources {
		list = append(list, counted{typ: name})
	}
	slices.SortFunc(list, func(a, b counted) int {
		if a.typ < b.typ {
			return -1
		}
		return 1
	})
	if err := v.countAll(list); err != nil {
		return nil, err
	}
	var out []typeCount
	for _, x := range list {
		if x.n >= 0 {
			out = append(out, typeCount{x.typ, x.n})
		}
	}
	return out, nil
}
