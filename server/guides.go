package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"kiln/server/interaction"
	"kiln/server/search"
	"kiln/server/store"
)

// guides are the requirements and guides of the packages that the server is built with or
// that are installed. They are read again after a definition or a package was written.
type guides struct {
	store    *store.Store
	registry func() *search.Registry

	mu     sync.Mutex
	known  bool
	result interaction.Guides
}

// forget makes the next of read the guides.
func (g *guides) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known = false
}

// of returns the canonicals of the guides, sorted.
func (g *guides) of(ctx context.Context) (interaction.Guides, error) {
	g.registry() // notices a write on another server
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known {
		return g.result, nil
	}
	requirements, err := g.read(ctx, "CapabilityStatement")
	if err != nil {
		return interaction.Guides{}, err
	}
	list, err := g.read(ctx, "ImplementationGuide")
	if err != nil {
		return interaction.Guides{}, err
	}
	g.result, g.known = interaction.Guides{Requirements: requirements, Guides: list}, true
	return g.result, nil
}

// read returns the canonicals of a resource type that packages brought, compiled in or installed.
func (g *guides) read(ctx context.Context, typ string) ([]string, error) {
	var out []string
	add := func(id string, body []byte) error {
		url, err := guideURL(body)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", typ, id, err)
		}
		if url != "" {
			out = append(out, url)
		}
		return nil
	}
	if err := builtIn(typ, add); err != nil {
		return nil, err
	}
	installed, err := g.store.InstalledResources(ctx, typ)
	if err != nil {
		return nil, err
	}
	for id, v := range installed {
		if err := add(id, v.Body); err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// guideURL returns the canonical of an ImplementationGuide, or of a CapabilityStatement of
// kind requirements with a server's role; "" of another resource.
func guideURL(body []byte) (string, error) {
	var d struct {
		ResourceType, URL, Kind string
		Rest                    []struct{ Mode string }
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return "", err
	}
	if d.ResourceType == "CapabilityStatement" {
		server := slices.ContainsFunc(d.Rest, func(r struct{ Mode string }) bool { return r.Mode == "server" })
		if d.Kind != "requirements" || !server {
			return "", nil
		}
	}
	return d.URL, nil
}
