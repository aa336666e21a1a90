package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/search/match"
)

// ReindexJob is the work to index the stored resources of one type again by the search
// parameters in force. Jobs survive their server, and any number of servers work on one
// together.
type ReindexJob struct {
	ID           string // ascends with time
	ResourceType string
	// Parameters are the URLs of the SearchParameters that are the reason. Keys are
	// those that searches by them use: they may miss something until the job is
	// done. With Keys alone the reason is that another build of the server made the
	// index; with neither, that somebody asked for the job.
	Parameters []string
	Keys       []fhir.Key
	// Ranges compares dates, numbers, quantities and strings too, and not only
	// terms.
	Ranges bool
	// Reason says why there is a job where Parameters and Keys do not; "" where they do.
	Reason            string
	ParametersVersion int64 // version of the search parameters that the index is brought up to
	Created           time.Time
	Planned           time.Time // when work began; zero before
	Finished          time.Time // zero until then
	// Total, Done, Changed and Failed count resources.
	Total, Done, Changed, Failed int64
	Failure                      string     // the error of a failed job
	FailedKeys                   []fhir.Key // of parameters that could not be evaluated on some
	Cancelled                    bool       // by an administrator, before it was done
	// State is the state of its work in package jobs, "" before and where there is none.
	State            string
	Parts, PartsDone int64
	Attempts         int // the most of a part
}

// ReasonText describes the reason for the job.
func (j *ReindexJob) ReasonText() string {
	switch {
	case j.Reason != "":
		return j.Reason
	case len(j.Parameters) > 0:
		return "search parameters have changed"
	case len(j.Keys) > 0:
		return "another build of the server has made the index"
	}
	return "asked for by POST /$reindex"
}

// ReindexChunkSize is the number of resources that are worked on in one transaction without requests:
// some tens of milliseconds, which is how long a write of one of them may wait.
const ReindexChunkSize = 500

// partSize is the number of resources of a part of the work, which one server does: many chunks, so that
// the work of a large database is not many thousand parts.
const partSize = 20 * ReindexChunkSize

// keepJobs is how long jobs that ended well are listed.
const keepJobs = 7 * 24 * time.Hour

// AddReindexJob adds a job that others see when the transaction is committed.
func (t *Tx) AddReindexJob(ctx context.Context, j ReindexJob) error {
	return addReindexJob(ctx, t.tx, j)
}

// AddReindexJob adds a job.
func (s *Store) AddReindexJob(ctx context.Context, j ReindexJob) error {
	return addReindexJob(ctx, s.pool, j)
}

func addReindexJob(ctx context.Context, conn querier, j ReindexJob) error {
	keys := make([]int64, len(j.Keys))
	for i, k := range j.Keys {
		keys[i] = int64(k)
	}
	return translateError(db.New(conn).AddReindexJob(ctx, db.AddReindexJobParams{
		ID: j.ID, ResourceType: j.ResourceType, Parameters: append([]string{}, j.Parameters...), Keys: keys,
		Ranges: j.Ranges, ParametersVersion: j.ParametersVersion, Created: j.Created, Reason: j.Reason,
	}))
}

// ReindexJobs returns the jobs, oldest first: those under way, those that ended
// within a week, and the last one of each type.
func (s *Store) ReindexJobs(ctx context.Context) ([]ReindexJob, error) {
	rows, err := db.New(s.side).ReindexJobs(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	jobs := make([]ReindexJob, len(rows))
	for i, r := range rows {
		j := ReindexJob{
			ID: r.ID, ResourceType: r.ResourceType, Parameters: r.Parameters, Ranges: r.Ranges, ParametersVersion: r.ParametersVersion,
			Created: r.Created.UTC(), Total: r.Total, Done: r.Done, Changed: r.Changed, Failed: r.Failed, Failure: r.Failure, Cancelled: r.Cancelled, Reason: r.Reason,
			State: r.State, Parts: r.Parts, PartsDone: r.PartsDone, Attempts: int(r.Attempts),
		}
		for _, k := range r.Keys {
			j.Keys = append(j.Keys, fhir.Key(k))
		}
		for _, k := range r.FailedKeys {
			j.FailedKeys = append(j.FailedKeys, fhir.Key(k))
		}
		if r.Planned.Valid {
			j.Planned = r.Planned.Time.UTC()
		}
		if r.Finished.Valid {
			j.Finished = r.Finished.Time.UTC()
		}
		jobs[i] = j
	}
	return jobs, nil
}

// CancelReindexJob stops a job. The rest of its resources stays not indexed, and searches
// continue to warn of it. It reports whether such a job was running.
func (s *Store) CancelReindexJob(ctx context.Context, id string) (bool, error) {
	for attempt := 1; ; attempt++ {
		n, err := db.New(s.pool).CancelReindexJob(ctx, db.CancelReindexJobParams{ID: id, Now: s.now()})
		// Another server that works on the job locks the same rows in another order.
		if err == nil || attempt == maxAttempts || !isRetryable(err) {
			return n > 0, translateError(err)
		}
		if err := pauseBeforeRetry(ctx, attempt); err != nil {
			return false, err
		}
	}
}

// AdvanceReindexJobs does the next step of the jobs: it records the end of a job whose work has ended,
// or adds the work of a waiting job to the core of package jobs. worked is false if there was nothing
// to do. waits is true if a job exists all the same, which servers work on or which waits for transactions
// to end.
func (s *Store) AdvanceReindexJobs(ctx context.Context) (worked, waits bool, err error) {
	q := db.New(s.pool)
	if waits, err = q.ReindexWaits(ctx); err != nil || !waits {
		return false, false, translateError(err)
	}
	if _, err := q.SetReindexHorizons(ctx); err != nil {
		return false, true, translateError(err)
	}
	for _, step := range []func(context.Context) (bool, error){s.finishReindex, s.planReindex} {
		if worked, err = step(ctx); worked || err != nil {
			return worked, true, translateError(err)
		}
	}
	return false, true, nil
}

// emptyPlans is the number of jobs of types without resources that are planned in one
// step: a search parameter of every type makes a job for each type, and most types
// have no resources.
const emptyPlans = 200

// planReindex adds the work of the next job of a type with resources, and ends the jobs before it of types
// without.
func (s *Store) planReindex(ctx context.Context) (planned bool, err error) {
	err = s.InTx(ctx, func(t *Tx) error {
		q := db.New(t.tx)
		planned = false
		for range emptyPlans {
			j, err := q.ClaimReindexPlan(ctx)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("claim a job: %w", err)
			}
			done := db.SetReindexPlannedParams{ID: j.ID, Planned: s.now()}
			typ, ok, err := s.typeNumber(ctx, j.ResourceType)
			if err != nil {
				return err
			}
			if ok {
				reason := (&ReindexJob{Reason: j.Reason, Parameters: j.Parameters, Keys: make([]fhir.Key, len(j.Keys))}).ReasonText()
				p := db.PlanReindexParams{Size: partSize, Reason: reason, Low: int64(typ) << 48, High: int64(typ)<<48 | (1<<48 - 1), Job: j.ID}
				if done.Total, err = q.PlanReindex(ctx, p); err != nil {
					return fmt.Errorf("plan a job: %w", err)
				}
			}
			if err := q.SetReindexPlanned(ctx, done); err != nil {
				return err
			}
			if planned = true; done.Total > 0 {
				return nil
			}
		}
		return nil
	})
	return planned, err
}

// finishReindex ends the jobs whose work has ended.
func (s *Store) finishReindex(ctx context.Context) (finished bool, err error) {
	q := db.New(s.pool)
	n, err := q.FinishReindexJobs(ctx, s.now())
	if err != nil || n == 0 {
		return false, err
	}
	return true, q.TrimReindexJobs(ctx, s.now().Add(-keepJobs))
}

// stale is a resource with an outdated index.
type stale struct {
	rid, ref int64
	version  int32
	index    *fhir.Index
	terms    bool // they differ
	ranges   bool // rows differ, of other tables than index_string
	strings  bool // rows of index_string differ
}

// ReindexRange is a part of the work of a ReindexJob.
type ReindexRange struct {
	Job  string `json:"-"`
	Low  int64  `json:"low"`  // surrogate
	High int64  `json:"high"` // inclusive
}

// ReindexChunk brings the index of the first resources of a range up to date, in a transaction that ends
// with keep: it gets the first surrogate after them and their number. next is that surrogate, and n is 0
// where the range had no resources left.
//
// The resources are read without locks. An index that differs from the one that the search
// parameters give is written under the lock of its resource, unless the resource has
// a new version by then: that was indexed by the same search parameters.
func (s *Store) ReindexChunk(ctx context.Context, r ReindexRange, size int, keep func(t *Tx, next, n int64) error) (next, n int64, err error) {
	err = s.InTx(ctx, func(t *Tx) error {
		q := db.New(t.tx)
		w, err := q.ReindexWork(ctx, r.Job)
		if errors.Is(err, pgx.ErrNoRows) {
			return outcome.New(outcome.CodeNotFound, "the reindex job %s is gone", r.Job)
		}
		if err != nil {
			return fmt.Errorf("read a job: %w", err)
		}
		all, progress, last, err := s.compareChunk(ctx, t, r, w, size)
		if err != nil {
			return err
		}
		if w.Ranges {
			if err := compareRanges(ctx, q, all); err != nil {
				return err
			}
		}
		all = slices.DeleteFunc(all, func(x *stale) bool { return !x.terms && !x.ranges && !x.strings })
		if err := s.repair(ctx, t, all); err != nil {
			return err
		}
		next, n = last+1, progress.Done
		progress.ID, progress.Changed = r.Job, int64(len(all))
		if err := q.AddReindexProgress(ctx, progress); err != nil {
			return err
		}
		return keep(t, next, n)
	})
	return next, n, err
}

// compareChunk reads the first resources of a range and makes their indexes; last is the surrogate of the last
// one. With ranges all are returned, for their rows to be compared too.
func (s *Store) compareChunk(ctx context.Context, t *Tx, part ReindexRange, c db.ReindexWorkRow, size int) ([]*stale, db.AddReindexProgressParams, int64, error) {
	last := part.High
	progress := db.AddReindexProgressParams{FailedKeys: []int64{}}
	fail := func(keys []int64) {
		for _, k := range keys {
			if !slices.Contains(progress.FailedKeys, k) {
				progress.FailedKeys = append(progress.FailedKeys, k)
			}
		}
	}
	var all []*stale
	rows, err := t.tx.Query(ctx, db.ReindexResources, part.Low, part.High, size)
	if err != nil {
		return nil, progress, 0, err
	}
	defer rows.Close()
	for rows.Next() { // one body in memory at a time
		var r db.ReindexResourcesRow
		if err := rows.Scan(&r.Rid, &r.Ref, &r.ID, &r.Version, &r.Terms, &r.Targets, &r.Body); err != nil {
			return nil, progress, 0, err
		}
		progress.Done++
		last = r.Rid
		x, err := s.indexStored(r)
		if _, ok := outcome.From(err); ok && outcome.Ours(err) {
			return nil, progress, 0, err // nobody knows the search parameters
		}
		if err != nil {
			progress.Failed++
			if progress.Failure == "" {
				progress.Failure = r.ID + ": " + err.Error()
			}
			var failed *search.ExtractError
			if !errors.As(err, &failed) {
				fail(c.Keys)
				continue
			}
			for _, k := range failed.Keys { // the others can be indexed all the same
				fail([]int64{int64(k)})
			}
		}
		if x.ParametersVersion < c.ParametersVersion {
			return nil, progress, 0, errOutdated
		}
		terms := !slices.Equal(x.Terms, r.Terms) || !slices.Equal(x.Targets, r.Targets)
		if terms || c.Ranges {
			all = append(all, &stale{rid: r.Rid, ref: r.Ref, version: r.Version, index: x, terms: terms})
		}
	}
	return all, progress, last, rows.Err()
}

func (s *Store) indexStored(r db.ReindexResourcesRow) (*fhir.Index, error) {
	body, err := decodeBody(r.Body)
	if err != nil {
		return nil, err
	}
	resource, err := s.Indexer().Decode(body)
	if err != nil {
		return nil, err
	}
	return s.Indexer().Index(r.ID, resource)
}

// repair writes the indexes of resources that still have the version they were
// read in.
func (s *Store) repair(ctx context.Context, t *Tx, all []*stale) error {
	if len(all) == 0 {
		return nil
	}
	q := db.New(t.tx)
	refs := make([]int64, len(all))
	byRef := make(map[int64]*stale, len(all))
	indexes := make([]*fhir.Index, len(all))
	for i, x := range all {
		refs[i], byRef[x.ref], indexes[i] = x.ref, x, x.index
	}
	epoch := s.memory.Load().epoch
	if err := s.learnIndexTexts(ctx, indexes...); err != nil {
		return err
	}
	slices.Sort(refs)
	current, err := q.LockResources(ctx, db.LockResourcesParams{Refs: refs})
	if err != nil {
		return fmt.Errorf("lock resources: %w", err)
	}
	g := groups.Get().(*group)
	defer g.release()
	g.reset()
	p := db.UpdateTermsParams{Terms: []int64{}, Targets: []int64{}} // not NULL when all are empty
	var unindexed, unindexedStrings []int64
	for _, r := range current {
		x := byRef[r.Ref]
		if x.version != r.Version {
			continue
		}
		g.checkIndex(x.index)
		ranges := r.Ranges
		if x.ranges || x.strings {
			ranges = hashRanges(x.index).at(int(r.Version))
		}
		switch {
		case x.ranges:
			unindexed = append(unindexed, x.rid)
			g.addIndex(x.rid, x.index)
		case x.strings: // the only ones that an order or a string is about
			unindexedStrings = append(unindexedStrings, x.rid)
			g.addIndex(x.rid, &fhir.Index{Strings: x.index.Strings})
		}
		if x.terms || x.ranges || x.strings {
			p.Refs = append(p.Refs, x.ref)
			p.Ranges = append(p.Ranges, ranges)
			p.Terms, p.TermsLows, p.TermsHighs = appendSlice(p.Terms, p.TermsLows, p.TermsHighs, x.index.Terms)
			p.Targets, p.TargetsLows, p.TargetsHighs = appendSlice(p.Targets, p.TargetsLows, p.TargetsHighs, x.index.Targets)
		}
	}
	if len(g.parametersVersions) == 0 {
		return nil
	}
	g.check.cols[0].int64(int64(epoch))
	if len(p.Refs) > 0 {
		if err := q.UpdateTerms(ctx, p); err != nil {
			return fmt.Errorf("update terms: %w", err)
		}
		t.terms += len(p.Terms)
	}
	if len(unindexed) > 0 {
		if err := q.DeleteIndex(ctx, unindexed); err != nil {
			return fmt.Errorf("delete index rows: %w", err)
		}
	}
	if len(unindexedStrings) > 0 {
		if err := q.DeleteStrings(ctx, unindexedStrings); err != nil {
			return fmt.Errorf("delete strings: %w", err)
		}
	}
	if err := q.AddIndexChange(ctx); err != nil {
		return err
	}
	return g.sendGroup(ctx, t.tx.Conn(), true, false)
}

// appendSlice is addSlice for plain slices.
func appendSlice(all []int64, lows, highs []int32, vs []int64) ([]int64, []int32, []int32) {
	lows = append(lows, int32(len(all))+1)
	all = append(all, vs...)
	return all, lows, append(highs, int32(len(all)))
}

// rangeRow is a row of any of the typed tables, comparable.
type rangeRow struct {
	kind      byte
	rid, key  int64
	unit      int64 // of a quantity, or the lower end of a date
	high      int64 // of a date
	low, text string
}

// compareRanges finds out whose rows differ from their index.
func compareRanges(ctx context.Context, q *db.Queries, all []*stale) error {
	rids := make([]int64, len(all))
	for i, x := range all {
		rids[i] = x.rid
	}
	stored := make(map[rangeRow]int)
	type rowsOf struct {
		rid     int64
		strings bool
	}
	count := make(map[rowsOf]int)
	add := func(r rangeRow) {
		stored[r]++
		count[rowsOf{r.rid, r.kind == 's'}]++
	}
	dates, err := q.IndexedDates(ctx, rids)
	if err != nil {
		return err
	}
	for _, r := range dates {
		add(rangeRow{kind: 'd', rid: r.Rid, key: r.Key, unit: r.Low, high: r.High})
	}
	numbers, err := q.IndexedNumbers(ctx, rids)
	if err != nil {
		return err
	}
	for _, r := range numbers {
		add(rangeRow{kind: 'n', rid: r.Rid, key: r.Key, low: r.Low, text: r.High})
	}
	quantities, err := q.IndexedQuantities(ctx, rids)
	if err != nil {
		return err
	}
	for _, r := range quantities {
		add(rangeRow{kind: 'q', rid: r.Rid, key: r.Key, unit: r.Unit, low: r.Low, text: r.High})
	}
	texts, err := q.IndexedStrings(ctx, rids)
	if err != nil {
		return err
	}
	for _, r := range texts {
		add(rangeRow{kind: 's', rid: r.Rid, key: r.Key, text: r.Text})
	}
	narratives, err := q.IndexedNarratives(ctx, rids)
	if err != nil {
		return err
	}
	for _, r := range narratives {
		add(rangeRow{kind: 't', rid: r.Rid, unit: r.Hash})
	}
	for _, x := range all {
		for _, r := range rangeRows(x.rid, x.index) {
			differs := &x.ranges
			if r.kind == 's' {
				differs = &x.strings
			}
			count[rowsOf{r.rid, r.kind == 's'}]--
			if stored[r]--; stored[r] < 0 {
				*differs = true
			}
		}
		x.ranges = x.ranges || count[rowsOf{x.rid, false}] != 0
		x.strings = x.strings || count[rowsOf{x.rid, true}] != 0
	}
	return nil
}

// rangeRows are the rows that an index makes.
func rangeRows(rid int64, x *fhir.Index) []rangeRow {
	var rows []rangeRow
	for _, e := range x.Dates {
		rows = append(rows, rangeRow{kind: 'd', rid: rid, key: match.StoredKey(e.Key, rid), unit: e.Low, high: e.High})
	}
	for _, e := range x.Numbers {
		low, high := ends(e.Low, e.High)
		rows = append(rows, rangeRow{kind: 'n', rid: rid, key: int64(e.Key), low: low, text: high})
	}
	for _, e := range x.Quantities {
		low, high := ends(e.Low, e.High)
		rows = append(rows, rangeRow{kind: 'q', rid: rid, key: match.StoredKey(e.Key, rid), unit: fhir.UnitID(e.System, e.Code, e.Unit), low: low, text: high})
	}
	for _, e := range x.Strings {
		rows = append(rows, rangeRow{kind: 's', rid: rid, key: int64(e.Key), text: e.Text})
	}
	if x.Narrative != "" {
		rows = append(rows, rangeRow{kind: 't', rid: rid, unit: fhir.NarrativeHash(x.Narrative)})
	}
	return rows
}

// ends returns a range in PostgreSQL's form: addRange describes the stored form.
func ends(from, to string) (low, high string) {
	low = numericText(from, "-Infinity")
	if to != from {
		high = numericText(to, "Infinity")
	}
	return low, high
}

func numericText(decimal, absent string) string {
	if decimal == "" {
		return absent
	}
	d, _, err := apd.NewFromString(decimal)
	if err != nil {
		return decimal
	}
	d.Reduce(d)
	if d.IsZero() {
		return "0"
	}
	if d.Exponent > 100_000 {
		return strconv.Quote(decimal) // no number is written so: it is written anew
	}
	return d.Text('f')
}
