package fill

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/server/search/cache"
	"kiln/server/search/plan"
)

const (
	// followEvery is the time between two reads of the change log if no search reads it.
	followEvery = 250 * time.Millisecond
	// followTimeout limits one read of the change log, catchUpTimeout one catch-up.
	followTimeout  = 10 * time.Second
	catchUpTimeout = 10 * time.Minute
	// reportFrom is the change of the cache's size in bytes that is reported.
	reportFrom = 4 << 20
)

// follower applies the changes of the change log to the cache. Only its goroutine uses it.
type follower struct {
	Config
	pacer *pacer
	queue *queue

	reported int64 // the size that was reported last
	// checkedState is the state of the last check whether writers are calm, "" before the first.
	checkedState string
	calm         calmChecker
	left         remaining
}

// remaining is the part of a catch-up that the next one continues.
type remaining struct {
	generation int    // of the cache
	state      string // in which the other changes were applied; "" if nothing remains
	rids       []int64
}

// run works until ctx ends.
func (f *follower) run(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.Cache.AwaitManyWritten():
		case <-tick.C:
		}
		f.followChanges(ctx)
		if now := f.Cache.Bytes(); f.ReportBytes != nil && max(now-f.reported, f.reported-now) >= reportFrom {
			f.reported = now
			f.ReportBytes(now)
		}
		f.queue.wakeIdle()
	}
}

// followChanges applies the changes up to the present.
func (f *follower) followChanges(ctx context.Context) {
	if lag, ok := f.Cache.BeginCatchUp(); ok {
		f.catchUpWhenCalm(ctx, lag)
		return
	}
	if _, _, ok := f.Cache.FindFollowPosition(); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	conn, err := f.Store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	since, most, ok := f.Cache.FindFollowPosition() // includes this server's own writes, which are not read
	if !ok {
		return
	}
	st := plan.SelectMostChanges(since, most)
	var row plan.ChangesRow
	f.pacer.following.Lock()
	err = conn.QueryRow(ctx, st.SQL, st.Args...).Scan(row.Columns()...)
	f.pacer.following.Unlock()
	if err == nil {
		f.Cache.ApplyChanges(row.Changes(since))
	}
}

// catchUpWhenCalm catches up with a cache that lags if writers are calm. It clears the cache if reading everything again
// is faster.
func (f *follower) catchUpWhenCalm(ctx context.Context, lag cache.CatchUp) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	conn, err := f.Store.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	st := plan.SelectChangedSince(cmp.Or(f.checkedState, lag.State), lag.Types, cache.MaxChanges/calmPart)
	var known bool
	var rids []int64
	if err := conn.QueryRow(ctx, st.SQL, st.Args...).Scan(&known, &rids, &f.checkedState); err != nil {
		return
	}
	most := min(cache.MaxCatchUp, int(lag.Cost/f.ChangeTakes))
	most, ready := f.calm.checkWriters(len(rids), most, lag.Asked)
	if !ready {
		return
	}
	f.checkedState, f.calm = "", calmChecker{}
	if !f.catchUp(ctx, conn, lag, most) {
		f.Cache.Clear()
	}
}

// catchUp applies the missed changes, step by step. It returns false if the changes are unknown, or more than most. It stops
// between two steps if writers are no longer calm and no search waits.
func (f *follower) catchUp(ctx context.Context, conn *pgxpool.Conn, lag cache.CatchUp, most int) bool {
	if f.left.generation != lag.Generation || f.left.state == "" {
		f.left = remaining{generation: lag.Generation, state: lag.State}
	}
	pause := f.pacer.newPauses(false)
	for first := true; ; first = false {
		outcome, err := f.takeStep(ctx, conn, step{lag: lag, most: most, giveWay: !first && !lag.Asked, pause: func() { pause(ctx) }})
		if f.Stepped != nil {
			f.Stepped(outcome == stepGaveWay)
		}
		switch {
		case outcome == stepImpossible:
			f.left = remaining{}
			return false
		case err != nil || outcome == stepGaveWay:
			return true
		case len(f.left.rids) == 0:
			now := f.left.state
			f.left = remaining{}
			return lag.MoveToState(now)
		}
	}
}

// stepOutcome is the outcome of one step of a catch-up.
type stepOutcome int

const (
	stepDone       stepOutcome = iota
	stepGaveWay                // writers are busy, and nothing was applied
	stepImpossible             // the changes are unknown, or too many
)

// step is one step of a catch-up.
type step struct {
	lag     cache.CatchUp
	most    int    // the largest number of changed resources
	giveWay bool   // apply nothing while writers are busy
	pause   func() // called between the parts of the step
}

// takeStep applies changes for about Config.StepTakes, in one transaction.
func (f *follower) takeStep(ctx context.Context, conn *pgxpool.Conn, s step) (outcome stepOutcome, err error) {
	err = pgx.BeginTxFunc(ctx, conn, readOnlySnapshot, func(tx pgx.Tx) error {
		l, ok, err := readChangeList(ctx, tx, f.left.state, s.lag.Types, max(0, s.most-len(f.left.rids)))
		if err != nil {
			return err
		}
		if !ok {
			outcome = stepImpossible
			return nil
		}
		if s.giveWay && len(l.rids) > cache.MaxChanges {
			outcome = stepGaveWay
			return nil
		}
		rids := append(l.rids, f.left.rids...)
		slices.Sort(rids)
		rids = slices.Compact(rids)
		for until := time.Now().Add(f.StepTakes); len(rids) > 0; s.pause() {
			n := min(changesAtOnce, len(rids))
			if ok, err := applyChanges(ctx, tx, rids[:n], s.lag); err != nil || !ok {
				if err == nil {
					outcome = stepImpossible
				}
				return err
			}
			if rids = rids[n:]; time.Now().After(until) {
				break
			}
		}
		f.left.state, f.left.rids = l.state, slices.Clone(rids)
		return nil
	})
	return outcome, err
}
