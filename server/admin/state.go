package admin

import (
	"net/http"
	"slices"
	"strings"

	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// CacheStatistics is the state of one cache on this server.
type CacheStatistics struct {
	Hits      uint64  `json:"hits"`
	Misses    uint64  `json:"misses"`
	HitRatio  float64 `json:"hit_ratio"`
	Size      int     `json:"size"`     // entries
	Capacity  uint64  `json:"capacity"` // entries, or bytes if the limit is in bytes
	Bytes     uint64  `json:"bytes"`    // roughly; 0 where nobody counts them
	Evictions uint64  `json:"evictions"`
}

// Cache is a cache that an administrator can look at and empty.
type Cache struct {
	Name       string
	Statistics func() CacheStatistics
	Clear      func()
}

func (p *Part) mountState(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/cache/stats", func(w http.ResponseWriter, r *http.Request) {
		out := make(map[string]CacheStatistics, len(p.Caches))
		for _, c := range p.Caches {
			s := c.Statistics()
			if all := s.Hits + s.Misses; all > 0 {
				s.HitRatio = float64(s.Hits) / float64(all)
			}
			out[c.Name] = s
		}
		writeAnswer(w, r, out, nil)
	})
	m.HandleFunc(web.Admin, "POST /admin/cache/clear", p.clearCaches)
	m.HandleFunc(web.Admin, "GET /admin/db/stats", func(w http.ResponseWriter, r *http.Request) {
		d, err := p.Database(r.Context())
		writeAnswer(w, r, struct {
			Pool []store.Pool `json:"pool"`
			store.DatabaseStatistics
			Replicas []store.ReplicaStatistics `json:"replicas"`
		}{p.Pools(), d, p.Replicas()}, err)
	})
	m.HandleFunc(web.Admin, "GET /admin/servers", func(w http.ResponseWriter, r *http.Request) {
		list, err := p.Instances(r.Context())
		writeAnswer(w, r, list, err)
	})
}

// clearCaches empties caches on every server: here at once, on the others as soon
// as they look.
func (p *Part) clearCaches(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Caches []string `json:"caches"`
	}
	if err := decodeBody(r, &in); err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	var names []string
	for _, c := range p.Caches {
		names = append(names, c.Name)
	}
	for _, name := range in.Caches {
		if !slices.Contains(names, name) {
			writeAnswer(w, r, nil, outcome.New(outcome.CodeNotFound, "there is no cache %q%s", name, outcome.DidYouMean(name, names)))
			return
		}
	}
	if len(in.Caches) == 0 {
		in.Caches = names
	}
	if err := p.ClearEverywhere(r.Context(), strings.Join(in.Caches, ",")); err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	p.ClearCaches(in.Caches)
	p.answerChange(w, r, nil, "caches "+strings.Join(in.Caches, ", "), "cleared")
	writeAnswer(w, r, map[string]any{"status": "cleared", "caches": in.Caches}, nil)
}

// ClearCaches empties caches of this server by name, all without names.
func (p *Part) ClearCaches(names []string) {
	for _, c := range p.Caches {
		if len(names) == 0 || slices.Contains(names, c.Name) {
			c.Clear()
		}
	}
}
