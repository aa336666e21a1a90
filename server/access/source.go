package access

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// PolicyStore is where policies are kept, for all servers.
type PolicyStore interface {
	// Policies returns the policies as JSON by name with their version, nil where the
	// version is known.
	Policies(ctx context.Context, known int64) (documents map[string][]byte, version int64, err error)
}

// PolicySource knows the policies in force: what another server changes is known here
// within half a second.
type PolicySource struct {
	Store       PolicyStore
	Decider     *Decider
	DefaultDeny func() bool // auth.policy.default_deny as it is now
	Logger      *slog.Logger

	current atomic.Pointer[versioned]
	forgets atomic.Bool // the policies are to be read anew, whatever their version is
}

type versioned struct {
	*Policies
	version   int64
	documents map[string][]byte
}

// policyPoll is how often a server asks whether policies have changed: one row, by
// each server.
const policyPoll = 400 * time.Millisecond

// Forget makes the next Load read the policies, whatever their version is.
func (s *PolicySource) Forget() { s.forgets.Store(true) }

// Load reads the policies if they have changed. The counters of an unchanged policy
// continue.
func (s *PolicySource) Load(ctx context.Context) error {
	now := s.current.Load()
	known := int64(-1)
	forgets := s.forgets.Swap(false)
	if now != nil && !forgets {
		known = now.version
	}
	documents, version, err := s.Store.Policies(ctx, known)
	if err != nil || version == known {
		if forgets {
			s.forgets.Store(true)
		}
		return err
	}
	next := &versioned{version: version, documents: documents}
	list := make([]*Policy, 0, len(documents))
	for name, document := range documents {
		if now != nil && string(now.documents[name]) == string(document) {
			for _, p := range now.List {
				if p.Name == name {
					list = append(list, p)
				}
			}
			continue
		}
		p, err := s.Decider.ParsePolicy(ctx, document)
		if err != nil {
			// It was valid when it was stored: a search parameter of its condition is gone.
			// Its meaning is unknown, so it denies everything.
			s.Logger.LogAttrs(ctx, slog.LevelError, "a policy cannot be read any more and denies everything", slog.String("policy", name), slog.Any("error", err))
			p = &Policy{Name: name, Active: true, Effect: "deny", Message: "the policy " + name + " of this server cannot be read", denied: new(atomic.Int64)}
		}
		list = append(list, p)
	}
	next.Policies = NewPolicies(list, s.DefaultDeny)
	if s.current.CompareAndSwap(now, next) {
		return nil
	}
	return s.Load(ctx) // somebody else has loaded meanwhile
}

// Current returns the policies in force.
func (s *PolicySource) Current(ctx context.Context) (*Policies, error) {
	if now := s.current.Load(); now != nil {
		return now.Policies, nil
	}
	if err := s.Load(ctx); err != nil {
		return nil, err
	}
	return s.current.Load().Policies, nil
}

// Run follows the changes of other servers until ctx ends. While the database cannot be
// asked, the policies that are known stay in force.
func (s *PolicySource) Run(ctx context.Context) {
	tick := time.NewTicker(policyPoll)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.Load(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			s.Logger.LogAttrs(ctx, slog.LevelWarn, "policies cannot be read; those that are known stay in force", slog.Any("error", err))
		}
		failed = err != nil
	}
}
