package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"kiln/gen/db"
	"kiln/server/fhir"
	"kiln/server/search/match"
	"kiln/server/telemetry"
)

// entry is a write on its way into a transaction.
type entry struct {
	w     *Write
	index int     // of the write among its neighbours
	epoch EpochID // that the entry was prepared in
	unit  *unit   // when coalesced
	typ   int16
	ref   int64
	rid   int64

	action      action
	version     int
	lastUpdated time.Time
	body        []byte // JSON
	trace       string // that the write is part of, as traceparent; "" for none
	ranges      int64  // of the current version, see rangesHash
	fhirIndex   *fhir.Index
}

type action uint8

const (
	nothing  action = iota // DELETE of what does not exist
	inserted               // with an id of the server's: nobody else can have it
	claimed                // with an id of the client's: somebody else may be about to
	updated
	deleted
)

// prepareEntries does what can be done before a transaction: everything, for a create
// with an id of the server's.
func (s *Store) prepareEntries(ctx context.Context, ws []*Write) ([]entry, error) {
	if s.Indexer() != nil {
		if err := s.Indexer().Err(); err != nil { // of a delete, too, which has no index
			return nil, err
		}
	}
	epoch := s.memory.Load().epoch
	entries := make([]entry, len(ws))
	indexes := make([]*fhir.Index, len(ws))
	now := s.commitClock() // one for all: last updates are remembered in runs of one value
	trace := telemetry.Traceparent(ctx)
	for i, w := range ws {
		e := &entries[i]
		*e = entry{w: w, index: i, epoch: epoch, ref: int64(fhir.ValueReference(w.ResourceType, w.ID)), fhirIndex: w.Index, trace: trace}
		indexes[i] = w.Index
		if w.Method == fhir.DELETE {
			e.fhirIndex = nil
		} else if w.Modify == nil && (w.Body == nil || w.Index == nil) || w.ID == "" {
			return nil, &WriteError{i, fmt.Errorf("store: write of %s/%s lacks a body, an index or an id", w.ResourceType, w.ID)}
		}
		var err error
		if e.typ, err = s.addType(ctx, w.ResourceType); err != nil {
			return nil, &WriteError{i, translateError(err)}
		}
		if w.Method == fhir.POST {
			if w.Guard != nil {
				if err := w.Guard.May(nil, w.ID, w.Index); err != nil {
					return nil, &WriteError{i, err}
				}
			}
			if e.rid, err = s.nextSurrogate(ctx, e.typ); err != nil {
				return nil, &WriteError{i, translateError(err)}
			}
			e.action = inserted
			e.makeVersion(1, now, w.Body)
		}
	}
	if err := s.learnIndexTexts(ctx, indexes...); err != nil {
		// Which one it was shows when each is learned alone.
		for i, x := range indexes {
			if err := s.learnIndexTexts(ctx, x); err != nil {
				return nil, &WriteError{i, err}
			}
		}
	}
	return entries, nil
}

// makeVersion gives the entry its version.
func (e *entry) makeVersion(version int, at time.Time, body *fhir.Body) {
	e.version = version
	e.lastUpdated = at.UTC().Truncate(time.Microsecond)
	if body != nil {
		e.body = body.Render(nil, e.w.ID, e.version, e.lastUpdated)
	}
}

// finishWrite gives the writer the version made.
func (e *entry) finishWrite() {
	w := e.w
	w.Created = e.action == inserted || e.action == claimed
	w.Equal = w.UnlessEqual != nil && e.action == nothing
	w.Result = fhir.Version{
		ResourceType: w.ResourceType, ID: w.ID, VersionID: e.version, LastUpdated: e.lastUpdated,
		Method: w.Method, Body: e.body,
	}
}

// resolveEntries locks the current versions of everything that may exist and decides
// what each write does. A write that cannot be done goes to fail, which returns
// nil to go on without it. All versions get one last update: from, or a later one where a
// resource was last updated at from or later.
func (s *Store) resolveEntries(ctx context.Context, q *db.Queries, entries []*entry, from time.Time, fail func(*entry, error) error) error {
	var refs []int64
	byRef := make(map[int64]*entry, len(entries))
	withBody := false
	for _, e := range entries {
		if e.w.Method == fhir.POST {
			continue
		}
		e.action = nothing
		refs = append(refs, e.ref)
		byRef[e.ref] = e
		withBody = withBody || e.w.Modify != nil || e.w.Guard != nil || e.w.UnlessEqual != nil
	}
	at := from.UTC().Truncate(time.Microsecond)
	if len(refs) == 0 {
		stampCreates(entries, at)
		return nil
	}
	slices.Sort(refs)
	current, err := q.LockResources(ctx, db.LockResourcesParams{WithBody: withBody, Refs: refs})
	if err != nil {
		return fmt.Errorf("lock resources: %w", err)
	}
	existing := make([]*entry, len(current))
	for i, r := range current {
		at = laterOf(at, r.LastUpdated)
		existing[i] = byRef[r.Ref]
		delete(byRef, r.Ref)
	}
	history := make(map[int64]db.LastVersionsRow)
	if len(byRef) > 0 {
		refs = refs[:0]
		for ref := range byRef {
			refs = append(refs, ref)
		}
		last, err := q.LastVersions(ctx, refs)
		if err != nil {
			return fmt.Errorf("last versions: %w", err)
		}
		for _, h := range last {
			at = laterOf(at, h.LastUpdated)
			history[h.Ref] = h
		}
	}
	stampCreates(entries, at)
	for i, r := range current {
		e := existing[i]
		e.rid = r.Rid
		if err := s.decideExisting(ctx, e, r, at); err != nil {
			if err := fail(e, err); err != nil {
				return err
			}
		}
	}
	for _, e := range entries { // in their own order, so that the first error is the first
		if byRef[e.ref] != e {
			continue
		}
		if err := s.decideAbsent(ctx, q, e, history[e.ref], at); err != nil {
			if err := fail(e, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// stampCreates gives the creates among entries another last update, where they have an
// earlier one.
func stampCreates(entries []*entry, at time.Time) {
	for _, e := range entries {
		if e.action == inserted && !e.lastUpdated.Equal(at) {
			e.makeVersion(1, at, e.w.Body)
		}
	}
}

// laterOf returns now, or the next microsecond after last if that is later: the versions of a
// resource are ordered in time, even if the clocks of servers differ.
func laterOf(now, last time.Time) time.Time {
	if next := last.Add(time.Microsecond); now.Before(next) {
		return next
	}
	return now
}

// statement is one multi-row statement of a group, with a parameter for each
// column in the order of the SQL.
type statement struct {
	name    string
	sql     string
	copySQL string // COPY of the same rows; "" where there is none
	// flat is the number of leading columns that have the elements of all rows'
	// arrays one after the other; further columns say which are whose.
	flat int
	cols []array
}

func newStatement(name, sql string, oids ...uint32) statement {
	cols := make([]array, len(oids))
	for i, oid := range oids {
		cols[i] = array{oid: oid}
	}
	return statement{name: "kiln_" + name, sql: sql, cols: cols}
}

func (st statement) withCopy(columns string) statement {
	st.copySQL = "COPY " + columns + " FROM STDIN BINARY"
	return st
}

func (st statement) withFlat(n int) statement {
	st.flat = n
	return st
}

func (st *statement) rows() int { return st.cols[st.flat].n }

func (st *statement) reset() {
	for i := range st.cols {
		st.cols[i].reset()
	}
}

// group is the rows of a transaction, column by column. Groups are reused.
type group struct {
	insert, move, update, remove, deletion, unindex, date, number, quantity, text, narrative, change, events, check statement

	epoch              EpochID     // of the entry that was added last
	parametersVersions []int64     // versions that the indexes were made by
	lastUpdates        []time.Time // of the versions, without repetition

	copied  []byte // reused by copyInserts
	params  [][]byte
	formats []int16
}

var groups = sync.Pool{New: func() any {
	return &group{
		insert: newStatement("insert", db.InsertResources,
			oidInt8, oidInt8, oidInt8, oidInt8, oidTimestamptz, oidInt4, oidText, oidText, oidInt4, oidInt4, oidInt4, oidInt4, oidBytea, oidInt8).
			withFlat(2).withCopy("resource (rid, ref, last_updated, version, typ, shard, method, id, terms, targets, body, ranges)"),
		move: newStatement("move", db.MoveToHistory, oidInt8),
		update: newStatement("update", db.UpdateResources,
			oidInt8, oidInt8, oidInt8, oidTimestamptz, oidInt4, oidText, oidInt4, oidInt4, oidInt4, oidInt4, oidBytea, oidInt8).withFlat(2),
		remove:   newStatement("remove", db.DeleteResources, oidInt8),
		deletion: newStatement("deletion", db.InsertDeletions, oidInt8, oidInt8, oidTimestamptz, oidInt4, oidText),
		unindex:  newStatement("unindex", db.DeleteIndex, oidInt8),
		date: newStatement("date", db.InsertDates, oidInt8, oidInt8, oidInt8, oidInt8).
			withCopy("index_date (key, low, high, rid)"),
		number: newStatement("number", db.InsertNumbers, oidInt8, oidInt8, oidNumeric, oidNumeric).
			withCopy("index_number (key, rid, low, high)"),
		quantity: newStatement("quantity", db.InsertQuantities, oidInt8, oidInt8, oidInt8, oidNumeric, oidNumeric).
			withCopy("index_quantity (key, rid, unit, low, high)"),
		text: newStatement("text", db.InsertStrings, oidInt8, oidInt8, oidText, oidBool).
			withCopy("index_string (key, rid, text, word)"),
		narrative: newStatement("narrative", db.InsertNarratives, oidInt8, oidInt8, oidText),
		change:    newStatement("change", db.InsertChanges, oidInt8, oidInt8, oidInt4, oidText, oidText),
		events:    newStatement("events", db.InsertAuditOfWrites, oidBytea),
		check:     newStatement("check", db.CheckPrepared, oidInt8, oidInt8, oidTimestamptz),
	}
}}

// statements in the order they are sent: a version moves to history before it
// is replaced, and the check comes when the transaction has its number.
func (g *group) statements() [14]*statement {
	return [...]*statement{
		&g.insert, &g.move, &g.update, &g.remove, &g.deletion, &g.unindex,
		&g.date, &g.number, &g.quantity, &g.text, &g.narrative, &g.change, &g.events, &g.check,
	}
}

func (g *group) reset() {
	g.epoch, g.parametersVersions = 0, g.parametersVersions[:0]
	g.lastUpdates = g.lastUpdates[:0]
	for _, st := range g.statements() {
		st.reset()
	}
}

// release gives the group back for reuse, unless it has grown too large.
func (g *group) release() {
	size := cap(g.copied)
	for _, st := range g.statements() {
		for i := range st.cols {
			size += cap(st.cols[i].buf)
		}
	}
	if size < 4<<20 {
		groups.Put(g)
	}
}

// terms is the number of terms in the group.
func (g *group) terms() int { return g.insert.cols[0].n + g.update.cols[0].n }

// addEntry lays out the rows of an entry.
func (g *group) addEntry(e *entry) {
	if e.action == nothing {
		return
	}
	if e.epoch != g.epoch {
		g.epoch = e.epoch
		g.check.cols[0].int64(int64(e.epoch))
	}
	method := byte(e.w.Method)
	if e.w.Unlogged && e.w.Method == fhir.POST {
		method = byte(fhir.Unlogged)
	}
	unchanged := false // the rows that it has but for the one of resource
	switch e.action {
	case inserted, claimed:
		c := g.insert.cols // terms, targets, rids, refs, …: the order of the SQL's parameters
		termsLow, termsHigh := addSlice(&c[0], e.fhirIndex.Terms)
		targetsLow, targetsHigh := addSlice(&c[1], e.fhirIndex.Targets)
		c[2].int64(e.rid)
		c[3].int64(e.ref)
		c[4].time(e.lastUpdated)
		c[5].int32(int32(e.version))
		c[6].char(method)
		c[7].text(e.w.ID)
		c[8].int32(termsLow)
		c[9].int32(termsHigh)
		c[10].int32(targetsLow)
		c[11].int32(targetsHigh)
		c[12].body(e.body)
		c[13].int64(hashRanges(e.fhirIndex).at(e.version))
	case updated:
		g.move.cols[0].int64(e.ref)
		ranges := hashRanges(e.fhirIndex)
		if unchanged = e.ranges != 0 && e.ranges == ranges.at(e.version-1); !unchanged {
			g.unindex.cols[0].int64(e.rid)
		}
		c := g.update.cols
		termsLow, termsHigh := addSlice(&c[0], e.fhirIndex.Terms)
		targetsLow, targetsHigh := addSlice(&c[1], e.fhirIndex.Targets)
		c[2].int64(e.ref)
		c[3].time(e.lastUpdated)
		c[4].int32(int32(e.version))
		c[5].char(method)
		c[6].int32(termsLow)
		c[7].int32(termsHigh)
		c[8].int32(targetsLow)
		c[9].int32(targetsHigh)
		c[10].body(e.body)
		c[11].int64(ranges.at(e.version))
	case deleted:
		g.move.cols[0].int64(e.ref)
		g.unindex.cols[0].int64(e.rid)
		g.remove.cols[0].int64(e.ref)
		c := g.deletion.cols
		c[0].int64(e.rid)
		c[1].int64(e.ref)
		c[2].time(e.lastUpdated)
		c[3].int32(int32(e.version))
		c[4].text(e.w.ID)
	}
	g.logChange(e)
	g.checkUpdated(e.lastUpdated)
	if e.fhirIndex != nil && e.action != deleted {
		g.checkIndex(e.fhirIndex)
		if !unchanged {
			g.addIndex(e.rid, e.fhirIndex)
		}
	}
}

// logChange puts an entry into the change log.
func (g *group) logChange(e *entry) {
	if e.w.Unlogged {
		return
	}
	method := e.w.Method
	if e.action == claimed {
		method = fhir.POST // a PUT that creates
	}
	c := g.change.cols
	c[0].int64(e.ref)
	c[1].int64(e.rid)
	c[2].int32(int32(e.version))
	c[3].char(byte(method))
	c[4].text(e.trace)
}

// addEvents adds the audit events of writes, if there are any.
func (g *group) addEvents(events []byte) {
	if len(events) > 0 {
		g.events.cols[0].text(string(events))
	}
}

// addSlice appends one row's array to the flat one and returns where it lies,
// 1-based; an empty array is a slice that ends before it begins.
func addSlice(a *array, vs []int64) (low, high int32) {
	low = int32(a.n) + 1
	for _, v := range vs {
		a.int64(v)
	}
	return low, int32(a.n)
}

func (g *group) addIndex(rid int64, x *fhir.Index) {
	for _, d := range x.Dates {
		c := g.date.cols
		c[0].int64(match.StoredKey(d.Key, rid))
		c[1].int64(d.Low)
		c[2].int64(d.High)
		c[3].int64(rid)
	}
	for _, n := range x.Numbers {
		c := g.number.cols
		c[0].int64(int64(n.Key))
		c[1].int64(rid)
		addRange(&c[2], &c[3], n.Low, n.High)
	}
	for _, q := range x.Quantities {
		c := g.quantity.cols
		c[0].int64(match.StoredKey(q.Key, rid))
		c[1].int64(rid)
		c[2].int64(fhir.UnitID(q.System, q.Code, q.Unit))
		addRange(&c[3], &c[4], q.Low, q.High)
	}
	for _, s := range x.Strings {
		c := g.text.cols
		c[0].int64(int64(s.Key))
		c[1].int64(rid)
		c[2].text(s.Text)
		if s.Order {
			c[3].null()
		} else {
			c[3].bool(s.Word)
		}
	}
	if x.Narrative != "" {
		c := g.narrative.cols
		c[0].int64(rid)
		c[1].int64(fhir.NarrativeHash(x.Narrative))
		c[2].text(x.Narrative)
	}
}

func addRange(low, high *array, from, to string) {
	if from == "" {
		low.infinite(-1)
	} else {
		low.numeric(from)
	}
	switch to {
	case from:
		high.null()
	case "":
		high.infinite(1)
	default:
		high.numeric(to)
	}
}

// sendGroup writes the rows: many of one table by COPY, all others in one round trip.
// With commit it ends the transaction too: one that has begun, else the implicit
// one of the pipeline. A query of after runs behind the commit, and its failure is none of the group.
func (g *group) sendGroup(ctx context.Context, conn *pgx.Conn, begun, commit bool, after ...preparedQuery) error {
	if begun {
		if err := g.copyInserts(ctx, conn); err != nil {
			return err
		}
	}
	for _, st := range g.statements() {
		if st.rows() > 0 {
			if _, err := conn.Prepare(ctx, st.name, st.sql); err != nil {
				return fmt.Errorf("prepare %s: %w", st.name, err)
			}
		}
	}
	for _, q := range after {
		if _, err := conn.Prepare(ctx, q.name, q.sql); err != nil {
			return fmt.Errorf("prepare %s: %w", q.name, err)
		}
	}
	p := conn.PgConn().StartPipeline(ctx)
	for _, st := range g.statements() {
		if st.rows() > 0 {
			g.params, g.formats = g.params[:0], g.formats[:0]
			for i := range st.cols {
				g.params = append(g.params, st.cols[i].param())
				g.formats = append(g.formats, pgx.BinaryFormatCode)
			}
			p.SendQueryPrepared(st.name, g.params, g.formats, nil)
		}
	}
	if begun && commit {
		p.SendQueryParams("COMMIT", nil, nil, nil, nil)
	}
	err := p.Sync()
	for _, q := range after {
		p.SendQueryPrepared(q.name, q.params, nil, []int16{pgx.BinaryFormatCode})
		err = cmp.Or(err, p.Sync())
	}
	synced := false
	for err == nil && !synced {
		var result any
		if result, err = p.GetResults(); err != nil || result == nil {
			break
		}
		switch r := result.(type) {
		case *pgconn.ResultReader:
			_, err = r.Close()
		case *pgconn.PipelineSync:
			synced = true
		}
	}
	for _, q := range after {
		if !synced {
			break
		}
		if result, failed := p.GetResults(); failed == nil {
			_ = eachRow(result.(*pgconn.ResultReader), q.row)
		}
	}
	if closeErr := p.Close(); err == nil && !synced {
		err = closeErr
	}
	return err
}

// lostRace reports whether one of the claimed ids has been given a version by
// somebody else.
func lostRace(ctx context.Context, q *db.Queries, entries []*entry) error {
	var p db.LostRacesParams
	for _, e := range entries {
		if e.action == claimed {
			p.Refs = append(p.Refs, e.ref)
			p.Versions = append(p.Versions, int32(e.version))
		}
	}
	if len(p.Refs) == 0 {
		return nil
	}
	lost, err := q.LostRaces(ctx, p)
	if err != nil {
		return fmt.Errorf("check for races: %w", err)
	}
	if len(lost) > 0 {
		return errLostRace
	}
	return nil
}

// sortEntries sorts entries by ref, the order in which every writer takes its locks.
// Entries that no other writer can have need no order: they come last, with ascending
// surrogates, so that neighbours in the indexes are written together.
func sortEntries(entries []*entry) {
	slices.SortFunc(entries, func(a, b *entry) int {
		if a.action == inserted && b.action == inserted {
			return cmp.Compare(a.rid, b.rid)
		}
		return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.ref, b.ref))
	})
}

func order(e *entry) int {
	if e.action == inserted {
		return 1
	}
	return 0
}
