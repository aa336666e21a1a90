package strategy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"kiln/server/search/cache"
	"kiln/server/search/match"
	"kiln/server/search/plan"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// followEvery is how often changes are read where no search reads them.
const followEvery = 250 * time.Millisecond

// tellFrom is the change of the cache's size in bytes that is reported.
const tellFrom = 4 << 20

// followAll works until ctx ends.
func (s *Searcher) followAll(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	var told int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cache.ManyWritten():
		case <-tick.C:
		}
		s.follow(ctx)
		if now := s.cache.Bytes(); s.remembers != nil && max(now-told, told-now) >= tellFrom {
			told = now
			s.remembers(now)
		}
		s.finder.mu.Lock()
		s.finder.idle.Broadcast()
		s.finder.mu.Unlock()
	}
}

// follow applies the changes up to the present.
func (s *Searcher) follow(ctx context.Context) {
	if behind, ok := s.cache.CatchUp(); ok {
		s.catchUpWhereCalm(ctx, behind)
		return
	}
	if _, _, ok := s.cache.Following(); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	since, most, ok := s.cache.Following() // includes this server's own writes, which are not read
	if !ok {
		return
	}
	st := plan.MostChanges(since, most)
	var c changes
	s.finder.looking.Lock()
	err = conn.QueryRow(ctx, st.SQL, st.Args...).Scan(c.into()...)
	s.finder.looking.Unlock()
	if err == nil {
		s.cache.Bring(c.since(since))
	}
}

// calmPart is the part of MaxChanges that may change between two checks while writers count as calm. While they write
// more, a cache that lags would fall behind again at once, and catching up would slow them down. Without waiting
// searches the writers must be calm for calmLooks checks: an import that waits for the disk is not over. With
// waiting searches it takes busyLooks checks at most: newly computed items follow the changes anyway.
const (
	calmPart  = 4
	calmLooks = 2
	busyLooks = 20
)

// defaultChangeTakes is the default of Config. The real time is a third if nothing is read from the disk.
const defaultChangeTakes = 50 * time.Microsecond

// catchUpWhereCalm catches up with what memory lags behind when little has changed since the last look.
// Where finding everything anew takes less it is forgotten.
func (s *Searcher) catchUpWhereCalm(ctx context.Context, behind cache.CatchUp) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	conn, err := s.store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	w := &s.finder
	st := plan.ChangedSince(cmp.Or(w.looked, behind.State), behind.Types, cache.MaxChanges/calmPart)
	var followed bool
	var rids []int64
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&followed, &rids, &w.looked); err != nil {
		return
	}
	most := min(cache.MaxBrought, int(behind.Cost/s.changeTakes))
	most, ready := w.looks.look(len(rids), most, behind.Asked)
	if !ready {
		return
	}
	w.looked, w.looks = "", looks{}
	if !s.catchUpInSteps(ctx, conn, behind, most) {
		s.cache.Forget()
	}
}

// left is the part of a catch-up that remains for the next one.
type left struct {
	generation int    // of the memory
	state      string // in which the others were brought in
	rids       []int64
}

// defaultStepTakes is the default of Config; a step is one transaction.
const defaultStepTakes = time.Second

// catchUpInSteps applies missed changes to a cache that has fallen behind. It returns false if the changes cannot be
// read, or are more than most. It stops between two steps if writers are no longer calm and no search waits.
func (s *Searcher) catchUpInSteps(ctx context.Context, conn *pgxpool.Conn, behind cache.CatchUp, most int) bool {
	w := &s.finder
	if w.left.generation != behind.Generation || w.left.state == "" {
		w.left = left{generation: behind.Generation, state: behind.State}
	}
	rest := s.quietTime(false)
	for first := true; ; first = false {
		followed, busy := true, false
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			rids, now, ok, err := changedSince(ctx, tx, w.left.state, behind.Types, max(0, most-len(w.left.rids)))
			if err != nil || !ok {
				followed = err != nil
				return err
			}
			if busy = !first && !behind.Asked && len(rids) > cache.MaxChanges; busy {
				return nil
			}
			rids = append(rids, w.left.rids...)
			slices.Sort(rids)
			rids = slices.Compact(rids)
			for until := time.Now().Add(s.stepTakes); len(rids) > 0; rest(ctx) {
				n := min(broughtAtOnce, len(rids))
				if ok, err := bring(ctx, tx, rids[:n], behind); err != nil || !ok {
					followed = err != nil
					return err
				}
				if rids = rids[n:]; time.Now().After(until) {
					break
				}
			}
			w.left.state, w.left.rids = now, slices.Clone(rids)
			return nil
		})
		if s.stepped != nil {
			s.stepped(busy)
		}
		switch {
		case !followed:
			w.left = left{}
			return false
		case err != nil || busy:
			return true
		case len(w.left.rids) == 0:
			now := w.left.state
			w.left = left{}
			return behind.Brought(now)
		}
	}
}

// looks are how often writers were calm, in succession, and busy.
type looks struct{ calm, busy int }

// look says whether to catch up where so many resources have changed since the last look, and with
// how many at most, of those that most allows: after more, and with none at all where writers are never
// calm and somebody asks, everything is forgotten.
func (l *looks) look(changed, most int, asked bool) (atMost int, ready bool) {
	switch {
	case changed <= cache.MaxChanges/calmPart:
		l.calm++
		return most, asked || l.calm >= calmLooks
	case changed >= most:
		return most, true
	}
	l.calm = 0
	l.busy++
	return 0, asked && l.busy >= busyLooks
}

// broughtAtOnce is how many resources are brought in at once of those that were written while something was
// found.
const broughtAtOnce = 500

// behind applies changed resources to a cache, some at a time.
type behind interface {
	Stored(rids []int64) *cache.Stored
	Bring(s *cache.Stored) bool
	Brought(now string) bool
}

// catchUp brings into something of a state the resources of a type that have changed since, and
// returns their number; below 0 where they cannot be followed, or are more than cache.MaxBrought.
func (s *Searcher) catchUp(ctx context.Context, conn *pgxpool.Conn, state string, typ int16, to behind) (n int, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		n = -1
		rids, now, ok, err := changedSince(ctx, tx, state, []int16{typ}, cache.MaxBrought)
		if err != nil || !ok {
			return err
		}
		for some := range slices.Chunk(rids, broughtAtOnce) {
			if ok, err := bring(ctx, tx, some, to); err != nil || !ok {
				return err
			}
		}
		if to.Brought(now) {
			n = len(rids)
		}
		return nil
	})
	return n, err
}

// changedSince reads which resources of some types have changed since a state, and the present one; ok is
// false where that cannot be followed, or is more than most.
func changedSince(ctx context.Context, tx pgx.Tx, state string, types []int16, most int) (rids []int64, now string, ok bool, err error) {
	st := plan.ChangedSince(state, types, most)
	err = tx.QueryRow(ctx, st.SQL, st.Args...).Scan(&ok, &rids, &now)
	return rids, now, ok && len(rids) <= most, err
}

// bring brings in some resources; false where that cannot be followed. They are read in one round trip:
// changed_resources would write them as JSON, which takes both sides several times as long.
func bring(ctx context.Context, tx pgx.Tx, rids []int64, to behind) (bool, error) {
	stored := to.Stored(rids)
	resources, dates, numbers, quantities, strings := plan.Stored(rids)
	var batch pgx.Batch
	queue := func(st match.Statement) *pgx.QueuedQuery { return batch.Queue(st.SQL, st.Args...) }
	queue(resources).Query(func(rows pgx.Rows) error {
		var rid, updated int64
		var id string
		var version int
		var terms, targets []int64
		_, err := pgx.ForEachRow(rows, []any{&rid, &id, &version, &updated, &terms, &targets}, func() error {
			stored.Resource(rid, id, version, updated, terms, targets)
			return nil
		})
		return err
	})
	var of, keys, low, high []int64
	var from, until, system, code, unit, text []string
	entries := func(st match.Statement, add func(i int), columns ...any) {
		queue(st).QueryRow(func(row pgx.Row) error {
			if err := row.Scan(append([]any{&of, &keys}, columns...)...); err != nil {
				return err
			}
			for i := range of {
				add(i)
			}
			return nil
		})
	}
	entries(dates, func(i int) { stored.Date(of[i], keys[i], low[i], high[i]) }, &low, &high)
	entries(numbers, func(i int) { stored.Number(of[i], keys[i], from[i], until[i]) }, &from, &until)
	entries(quantities, func(i int) {
		stored.Quantity(of[i], keys[i], from[i], until[i], system[i], code[i], unit[i])
	}, &from, &until, &system, &code, &unit)
	entries(strings, func(i int) { stored.String(of[i], keys[i], text[i]) }, &text)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return true, err
	}
	return to.Bring(stored), nil
}
