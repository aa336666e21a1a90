package searchparam

import (
	"context"
	"encoding/json"

	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/store"
)

// ReindexType is the type of the jobs that bring the index of stored resources up to date.
const ReindexType = "reindex"

// ReindexOn makes a core do the work on the index. It is called before the core runs.
func (s *Service) ReindexOn(core *jobs.Core) {
	s.core.Store(core)
	k := ReindexKind(s.Store)
	k.Ready = func() bool { return s.current.Load().otherBuild == nil } // jobs of another build are its servers' work
	k.Ended = func(context.Context, *jobs.Job) { s.Wake() }
	core.Kinds = append(core.Kinds, k)
}

// reindexed is the progress of a part.
type reindexed struct {
	Next int64 `json:"next"` // the first surrogate that is left
	Done int64 `json:"done"` // resources
}

// ReindexKind is the kind of the jobs that Store.AdvanceReindexJobs adds. A part stores how far it is in each of its
// transactions, so the server that takes it over goes on from there.
func ReindexKind(st *store.Store) jobs.Kind {
	return jobs.Kind{Type: ReindexType, Run: func(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
		r := store.ReindexRange{Job: t.Job.ID}
		var k reindexed
		if err := json.Unmarshal(t.Spec, &r); err != nil {
			return jobs.Result{}, outcome.New(outcome.CodeException, "the part of a reindex job cannot be read").Because(err)
		}
		if err := json.Unmarshal(t.Kept, &k); err != nil {
			return jobs.Result{}, outcome.New(outcome.CodeException, "the progress of a reindex job cannot be read").Because(err)
		}
		pacer := t.NewPacer()
		for r.Low = max(r.Low, k.Next); r.Low <= r.High; r.Low = k.Next {
			next := k
			var n int64
			size := pacer.Size(store.ReindexChunkSize)
			err := pacer.Slice(ctx, size, func() (err error) {
				_, n, err = st.ReindexChunk(ctx, r, size, func(tx *store.Tx, low, n int64) error {
					next = reindexed{Next: low, Done: k.Done + n}
					return t.Keep(ctx, tx.Conn(), next, next.Done)
				})
				return err
			})
			if _, known := outcome.From(err); known && (outcome.Ours(err) || outcome.Is(err, outcome.CodeConflict)) {
				// The search parameters of this server are not those of the job, or it does not know them now.
				return jobs.Result{}, jobs.ErrLater
			}
			if err != nil {
				return jobs.Result{}, err
			}
			k = next
			t.Progress(k.Done)
			if n == 0 {
				break
			}
		}
		return jobs.Result{Done: k.Done}, nil
	}}
}
