package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"kiln/server/admin"
	"kiln/server/search"
	"kiln/server/store"
)

// profiles are the canonicals of the stored profiles, by resource type, read again
// after a definition was written.
type profiles struct {
	store    *store.Store
	registry func() *search.Registry

	mu      sync.Mutex
	version int64
	byType  map[string][]string // nil: to be read
	bytes   uint64              // of byType, roughly

	hits, misses, forgotten uint64
}

// statistics is the state of the cache. Its capacity is its size: the number of stored
// definitions bounds it.
func (p *profiles) statistics() admin.CacheStatistics {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, list := range p.byType {
		n += len(list)
	}
	return admin.CacheStatistics{Hits: p.hits, Misses: p.misses, Size: n, Capacity: uint64(n), Bytes: p.bytes, Evictions: p.forgotten}
}

// forget makes the next of read them.
func (p *profiles) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	if p.byType != nil {
		p.forgotten++
	}
	p.byType, p.bytes = nil, 0
}

// profilesByType returns the profiles, and a version that differs when they may.
func (p *profiles) profilesByType(ctx context.Context) (map[string][]string, int64, error) {
	p.registry() // changes of other servers are noticed with the search parameters
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byType != nil {
		p.hits++
		return p.byType, p.version, nil
	}
	p.misses++
	byType := make(map[string][]string)
	for cursor := ""; ; {
		values := url.Values{"derivation": {"constraint"}, "_count": {"200"}, "_total": {"none"}}
		if cursor != "" {
			values.Set("_cursor", cursor)
		}
		q, err := search.Parse(p.registry(), "StructureDefinition", values, search.Options{MaxCount: 200})
		if err != nil {
			return nil, 0, err
		}
		page, err := p.store.Search(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		for _, v := range page.Matches {
			var d struct{ Kind, Type, URL string }
			if err := json.Unmarshal(v.Body, &d); err != nil {
				return nil, 0, fmt.Errorf("StructureDefinition/%s: %w", v.ID, err)
			}
			if d.Kind == "resource" && d.URL != "" {
				byType[d.Type] = append(byType[d.Type], d.URL)
			}
		}
		if !page.HasNext {
			break
		}
		cursor = page.Last
	}
	for typ := range byType {
		slices.Sort(byType[typ])
		byType[typ] = slices.Compact(byType[typ])
		for _, url := range byType[typ] {
			p.bytes += uint64(len(url)) + 16
		}
	}
	p.byType = byType
	return byType, p.version, nil
}
