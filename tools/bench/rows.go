package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
)

// row is one resource as the server would store it: the rows of all its tables.
type row struct {
	typ  int16
	rid  int64
	ref  int64
	id   string
	kind string // resource type
	body []byte
	x    fhir.Index
}

// transaction is the rows of one bundle.
type transaction []*row

// rowTypes numbers resource types for the rows of the floor.
type rowTypes struct {
	mu   sync.Mutex
	of   map[string]int16
	next int64 // surrogate
}

func (t *rowTypes) number(typ string) (int16, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]int16{}
	}
	n, ok := t.of[typ]
	if !ok {
		n = int16(len(t.of) + 1)
		t.of[typ] = n
	}
	t.next++
	return n, int64(n)<<48 | t.next
}

// rowsOf decodes and indexes every resource of a corpus, a transaction for each
// bundle, in the corpus's order.
func rowsOf(ctx context.Context, c Corpus) ([]transaction, *rowTypes, error) {
	types := &rowTypes{}
	var out []transaction
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	err := c.Each(ctx, func(b Bundle) error {
		i := len(out)
		out = append(out, nil)
		// Numbers follow the order of the bundles, independent of the order of completion.
		var resources [][]byte
		var kinds, ids []string
		if err := b.Resources(func(kind, id string, json []byte) error {
			resources, kinds, ids = append(resources, json), append(kinds, kind), append(ids, id)
			return nil
		}); err != nil {
			return err
		}
		rows := make(transaction, len(resources))
		for j, kind := range kinds {
			r := &row{kind: kind, id: ids[j]}
			r.typ, r.rid = types.number(kind)
			rows[j] = r
		}
		out[i] = rows
		g.Go(func() error {
			for j, json := range resources {
				if err := rows[j].fill(json); err != nil {
					return fmt.Errorf("%s, entry %d: %w", b.Name, j, err)
				}
			}
			return nil
		})
		return nil
	})
	if err2 := g.Wait(); err == nil {
		err = err2
	}
	return out, types, err
}

// fill makes the row of a resource's JSON.
func (r *row) fill(json []byte) error {
	res, err := fhir.Decode(r4.Model, json)
	if err != nil {
		return err
	}
	r.ref = int64(fhir.ValueReference(r.kind, r.id))
	index.Extract(&r.x, res)
	r.x.Finish()
	// A nil slice would be null to pgx.
	r.x.Terms, r.x.Targets = append([]int64{}, r.x.Terms...), append([]int64{}, r.x.Targets...)
	body, err := fhir.Splice(json, nil)
	if err != nil {
		return err
	}
	r.body = body.Render(nil, r.id, 1, time.Now())
	return nil
}
