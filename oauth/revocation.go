package oauth

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kiln/oauth/storage"
)

// revoked holds the revocations in memory, so that requests need no query. Each server
// reads the revocations of other servers several times a second.
type revoked struct {
	mu     sync.RWMutex
	before map[revokedKey]time.Time
	// changes counts the changes of before that revoke something.
	changes atomic.Int64
	// expires and last are the reader's own.
	expires map[revokedKey]time.Time
	last    time.Time
}

type revokedKey struct{ kind, id string }

func newRevoked() *revoked {
	return &revoked{before: make(map[revokedKey]time.Time), expires: make(map[revokedKey]time.Time)}
}

// late bounds the time from recording a revocation to its commit: older entries are not
// read again.
const late = 15 * time.Second

// readRevocations applies new revocations. changed means that the signing keys and the cache of
// verified tokens have to be read again.
func (r *revoked) readRevocations(ctx context.Context, s *storage.Store) (changed bool, err error) {
	list, err := s.Revocations(ctx, r.last.Add(-late))
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range list {
		changed = changed || x.Kind == storage.KindChanged && !x.Before.Equal(r.before[revokedKey{x.Kind, x.ID}])
		r.set(x)
		if x.Recorded.After(r.last) {
			r.last = x.Recorded
		}
	}
	return changed, nil
}

// reread replaces everything by what the database has.
func (r *revoked) reread(ctx context.Context, s *storage.Store) error {
	list, err := s.Revocations(ctx, time.Time{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.before)
	clear(r.expires)
	r.last = time.Time{}
	for _, x := range list {
		r.set(x)
		if x.Recorded.After(r.last) {
			r.last = x.Recorded
		}
	}
	r.changes.Add(1)
	return nil
}

func (r *revoked) set(x storage.Revocation) {
	k := revokedKey{x.Kind, x.ID}
	if x.Before.After(r.before[k]) {
		r.before[k] = x.Before
		r.changes.Add(1)
	}
	r.expires[k] = x.Expires
}

// deleteExpired deletes expired entries.
func (r *revoked) deleteExpired(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, at := range r.expires {
		if at.Before(now) {
			delete(r.expires, k)
			delete(r.before, k)
		}
	}
}

// isRevoked reports whether a verified token was revoked. One that was not is asked about again
// when something else has been revoked.
func (r *revoked) isRevoked(v *verified) bool {
	changes := r.changes.Load()
	if v.good.Load() == changes {
		return false
	}
	if r.about(v) {
		return true
	}
	v.good.Store(changes)
	return false
}

// isKeyWithdrawn reports whether a signing key was withdrawn.
func (r *revoked) isKeyWithdrawn(kid string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.before[revokedKey{storage.KindKey, kid}]
	return ok
}

// about reports whether something that was revoked is about a token.
func (r *revoked) about(v *verified) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := v.principal
	if v.apiKey {
		_, ok := r.before[revokedKey{storage.KindAPIKey, p.TokenID}]
		return ok
	}
	if _, ok := r.before[revokedKey{storage.KindToken, p.TokenID}]; ok {
		return true
	}
	if _, ok := r.before[revokedKey{storage.KindKey, p.KeyID}]; ok && v.own {
		return true
	}
	if p.SessionID != "" {
		if _, ok := r.before[revokedKey{storage.KindGrant, p.SessionID}]; ok {
			return true
		}
	}
	if p.ClientID == "" || !v.own {
		return false
	}
	before, ok := r.before[revokedKey{storage.KindClient, p.ClientID}]
	return ok && !v.issued.After(before)
}
