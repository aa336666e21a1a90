package store

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"kiln/gen/db"
)

// surrogates gives out numbers from a block of each type that this server has reserved. The
// rest of a block is never used after the server stops.
type surrogates struct {
	mu   sync.Mutex
	left map[int16]*block
}

type block struct{ next, end int64 }

const surrogateBlock = 4096

// nextSurrogate returns a new surrogate for a resource of type typ.
func (s *Store) nextSurrogate(ctx context.Context, typ int16) (int64, error) {
	r := &s.memory.Load().rids
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.left[typ]
	if b == nil || b.next == b.end {
		first, err := s.reserveRIDs(ctx, typ)
		if err != nil {
			return 0, err
		}
		if r.left == nil {
			r.left = make(map[int16]*block)
		}
		b = &block{first, first + surrogateBlock}
		r.left[typ] = b
	}
	n := b.next
	b.next++
	return int64(typ)<<48 | n, nil
}

// typeTable is the table resource_type as far as this server has seen it. Rows
// are only ever added.
type typeTable struct {
	current atomic.Pointer[types]
}

type types struct {
	number map[string]int16
	name   map[int16]string
}

func (t *typeTable) load(ctx context.Context, q *db.Queries) error {
	rows, err := q.ResourceTypes(ctx)
	if err != nil {
		return err
	}
	next := types{number: make(map[string]int16, len(rows)), name: make(map[int16]string, len(rows))}
	for _, r := range rows {
		next.number[r.Name] = r.Typ
		next.name[r.Typ] = r.Name
	}
	t.current.Store(&next)
	return nil
}

// loadMore is load from a standby, which may lack types that this server knows already.
func (t *typeTable) loadMore(ctx context.Context, q *db.Queries) error {
	was := t.current.Load()
	var more typeTable
	if err := more.load(ctx, q); err != nil {
		return err
	}
	next := more.current.Load()
	maps.Copy(next.number, was.number)
	maps.Copy(next.name, was.name)
	t.current.CompareAndSwap(was, next) // else somebody has read it meanwhile
	return nil
}

// loadTypes reads the table again. In a new epoch the rows belong to the memory of that
// epoch: the connection has replaced the memory before.
func (s *Store) loadTypes(ctx context.Context) error {
	return s.inOneEpoch(func() error {
		m := s.memory.Load()
		if m == nil { // before the first connection
			if err := s.side.Ping(ctx); err != nil {
				return err
			}
			m = s.memory.Load()
		}
		if standby := s.FactPool(); standby != nil {
			return m.types.loadMore(ctx, db.New(standby))
		}
		return m.types.load(ctx, db.New(s.side))
	})
}

// typeNumber returns the number of a resource type, and false when no resource
// of that type has ever been stored.
func (s *Store) typeNumber(ctx context.Context, typ string) (int16, bool, error) {
	if n, ok := s.memory.Load().types.current.Load().number[typ]; ok {
		return n, true, nil
	}
	if err := s.loadTypes(ctx); err != nil {
		return 0, false, translateError(err)
	}
	n, ok := s.memory.Load().types.current.Load().number[typ]
	return n, ok, nil
}

// typeName returns the resource type that a number stands for.
func (s *Store) typeName(ctx context.Context, typ int16) (string, error) {
	if name, ok := s.memory.Load().types.current.Load().name[typ]; ok {
		return name, nil
	}
	if err := s.loadTypes(ctx); err != nil {
		return "", translateError(err)
	}
	name, ok := s.memory.Load().types.current.Load().name[typ]
	if !ok {
		return "", fmt.Errorf("store: no resource type has number %d", typ)
	}
	return name, nil
}

// addType returns the number of a resource type, giving it one when it has none.
func (s *Store) addType(ctx context.Context, typ string) (int16, error) {
	for range 100 {
		n, ok, err := s.typeNumber(ctx, typ)
		if ok || err != nil {
			return n, err
		}
		if err := db.New(s.side).AddResourceType(ctx, typ); err != nil {
			return 0, fmt.Errorf("add resource type: %w", err)
		}
	}
	return 0, fmt.Errorf("store: resource type %s found no number", typ)
}
