package store

import (
	"context"
	"errors"
)

// Hook follows the writes of resources that the service itself depends on.
type Hook struct {
	// Before runs inside the transaction, before the writes, and may change the resources
	// that they store. Its error refuses all of them; a *WriteError names the write at
	// fault. It may run several times before the transaction commits. May be nil.
	Before func(ctx context.Context, t *Tx, ws []*Write) error
	// InTx runs inside the transaction, after the writes; its error undoes them. ws
	// are the writes that were done, without deletes of resources that do not exist.
	// It may run several times before the transaction commits. changed goes to
	// Committed. May be nil.
	InTx func(ctx context.Context, t *Tx, ws []*Write) (changed bool, err error)
	// Committed runs when the transaction is committed, before the request is
	// answered. May be nil.
	Committed func(ctx context.Context, changed bool)
}

// Follow makes a hook follow the writes of a resource type, in place of the one before.
// Writes that run have either.
func (s *Store) Follow(resourceType string, h Hook) {
	for {
		was := s.hooks.Load()
		next := map[string]Hook{resourceType: h}
		if was != nil {
			for typ, other := range *was {
				if typ != resourceType {
					next[typ] = other
				}
			}
		}
		if s.hooks.CompareAndSwap(was, &next) {
			return
		}
	}
}

// hooksByType are the hooks by resource type.
func (s *Store) hooksByType() map[string]Hook {
	if m := s.hooks.Load(); m != nil {
		return *m
	}
	return nil
}

// hasHooks reports whether one of the writes has a hook, and so needs a transaction
// of its own.
func (s *Store) hasHooks(ws []*Write) bool {
	hooks := s.hooksByType()
	if len(hooks) == 0 {
		return false
	}
	for _, w := range ws {
		if _, ok := hooks[w.ResourceType]; ok {
			return true
		}
	}
	return false
}

// Hooked reports whether a hook follows the writes of a resource type. It can refuse them for reasons of
// its own.
func (s *Store) Hooked(resourceType string) bool {
	_, ok := s.hooksByType()[resourceType]
	return ok
}

// runHooks runs the hooks of the entries written.
func (t *Tx) runHooks(ctx context.Context, entries []*entry) error {
	hooks := t.store.hooksByType()
	if len(hooks) == 0 {
		return nil
	}
	var of map[string][]*Write
	for _, e := range entries {
		if _, ok := hooks[e.w.ResourceType]; ok && e.action != nothing {
			if of == nil {
				of = make(map[string][]*Write)
			}
			of[e.w.ResourceType] = append(of[e.w.ResourceType], e.w)
		}
	}
	for typ, ws := range of {
		h := hooks[typ]
		if h.InTx == nil {
			continue
		}
		changed, err := h.InTx(ctx, t, ws)
		if err != nil {
			return err
		}
		if t.hooks == nil {
			t.hooks = make(map[string]bool)
		}
		t.hooks[typ] = t.hooks[typ] || changed
	}
	return nil
}

// prepareHooks runs Before of the hooks of pending writes. Their WriteErrors count in all
// of ws.
func (t *Tx) prepareHooks(ctx context.Context, ws []*Write) error {
	for typ, h := range t.store.hooksByType() {
		if h.Before == nil {
			continue
		}
		var own []*Write
		var at []int
		for i, w := range ws {
			if w.ResourceType == typ {
				own, at = append(own, w), append(at, i)
			}
		}
		if len(own) == 0 {
			continue
		}
		if err := h.Before(ctx, t, own); err != nil {
			var w *WriteError
			if errors.As(err, &w) {
				return &WriteError{at[w.Index], w.Err}
			}
			return err
		}
	}
	return nil
}

// runCommitted tells the hooks of a transaction that it is.
func (t *Tx) runCommitted(ctx context.Context) {
	for typ, changed := range t.hooks {
		if h := t.store.hooksByType()[typ]; h.Committed != nil {
			h.Committed(ctx, changed)
		}
	}
}
