package store

import (
	"context"
	"errors"
)

// Hook follows the writes of resources that the service itself depends on.
type Hook struct {
	// Before runs inside the transaction, before the writes, and may change what they
	// store. Its error refuses all of them; a *WriteError names the one to blame. It
	// may run several times before the transaction commits. May be nil.
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

// hooked reports whether one of the writes has a hook, and so needs a transaction
// of its own.
func (s *Store) hooked(ws []*Write) bool {
	if len(s.Hooks) == 0 {
		return false
	}
	for _, w := range ws {
		if _, ok := s.Hooks[w.ResourceType]; ok {
			return true
		}
	}
	return false
}

// runHooks runs the hooks of what was written.
func (t *Tx) runHooks(ctx context.Context, entries []*entry) error {
	if len(t.store.Hooks) == 0 {
		return nil
	}
	var of map[string][]*Write
	for _, e := range entries {
		if _, ok := t.store.Hooks[e.w.ResourceType]; ok && e.action != nothing {
			if of == nil {
				of = make(map[string][]*Write)
			}
			of[e.w.ResourceType] = append(of[e.w.ResourceType], e.w)
		}
	}
	for typ, ws := range of {
		h := t.store.Hooks[typ]
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

// prepareHooks runs Before of the hooks of what is to be written. Their WriteErrors count
// in all of ws.
func (t *Tx) prepareHooks(ctx context.Context, ws []*Write) error {
	for typ, h := range t.store.Hooks {
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

// committed tells the hooks of a transaction that it is.
func (t *Tx) committed(ctx context.Context) {
	for typ, changed := range t.hooks {
		if h := t.store.Hooks[typ]; h.Committed != nil {
			h.Committed(ctx, changed)
		}
	}
}
