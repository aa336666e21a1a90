package app

import (
	"context"
	"slices"
	"strings"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
)

// maxDepth is how many handlers of Apps may lead to each other, by fhir.operation and by
// events. docs/contract.md, Apps, section 5.
const maxDepth = 8

type chainKey struct{}

// chainOf returns the Apps whose handlers led to a context, the latest last.
func chainOf(ctx context.Context) []string {
	c, _ := ctx.Value(chainKey{}).([]string)
	return c
}

// withChain marks the writes of a context as the work of a chain.
func withChain(ctx context.Context, chain []string) context.Context {
	ctx = context.WithValue(ctx, chainKey{}, chain)
	return store.WithFollower(ctx, func(ctx context.Context, t *store.Tx, ws []*store.Write) error {
		p := db.AddAppChainsParams{Chain: chain}
		for _, w := range ws {
			if w.Unlogged || w.Result.VersionID == 0 {
				continue
			}
			p.ResourceTypes, p.ResourceIds = append(p.ResourceTypes, w.ResourceType), append(p.ResourceIds, w.ID)
			p.Versions = append(p.Versions, int32(w.Result.VersionID))
		}
		if len(p.Versions) == 0 {
			return nil
		}
		return db.New(t.Conn()).AddAppChains(ctx, p)
	})
}

// enterRecursion adds an App to the chain of a context, and has its writes recorded with it as agent. It
// fails where the chain is too long.
func (p *Platform) enterRecursion(ctx context.Context, e *entry, requestID string) (context.Context, error) {
	chain := chainOf(ctx)
	if len(chain) >= maxDepth {
		return nil, outcome.UnprocessableContent(outcome.CodeTooCostly, "handlers of Apps call each other more than %d deep: %s", maxDepth, strings.Join(append(slices.Clone(chain), e.app), " > "))
	}
	if p.AuditWrites != nil {
		ctx = p.AuditWrites(ctx, e.app, requestID)
	}
	return withChain(ctx, append(slices.Clone(chain), e.app)), nil
}

// Attribute marks the writes of a request as the work of an App if its token belongs to the App's own client: an http
// handler that calls back.
func (p *Platform) Attribute(ctx context.Context) context.Context {
	c := access.PrincipalFrom(ctx)
	if c == nil {
		return ctx
	}
	id, ok := strings.CutPrefix(c.ClientID, clientPrefix)
	if !ok || !fhir.ValidID(id) {
		return ctx
	}
	if p.AuditWrites != nil {
		ctx = p.AuditWrites(ctx, id, interaction.CallerFrom(ctx).RequestID)
	}
	return withChain(ctx, []string{id})
}

// callChain are the Apps that led to a version, none where it was written by others.
func (p *Platform) callChain(ctx context.Context, v fhir.Version) ([]string, error) {
	rows, err := db.New(p.Store.Pool()).AppChain(ctx, db.AppChainParams{ResourceType: v.ResourceType, ResourceID: v.ID, Version: int32(v.VersionID)})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0], nil
}

// isOwnWrite reports whether an event is the App's own doing, which does not call it again.
func (e *entry) isOwnWrite(chain []string) bool {
	return len(chain) > 0 && chain[len(chain)-1] == e.app && !e.recursive
}
