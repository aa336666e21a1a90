package cache

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Written is a row of the change log that this server has just written, or is about to commit: the versions of
// resources that one statement writes. Its first version tells it apart.
type Written struct {
	RID     int64
	Version int32

	versions []writtenVersion
	by       *Writing
	at       time.Time
	bytes    int // the approximate size in bytes
}

type writtenVersion struct {
	rid     int64
	version int
	r       *match.Resource // nil for one that is gone
}

// rowKey tells rows apart.
type rowKey struct {
	rid     int64
	version int32
}

func (v *Written) key() rowKey { return rowKey{v.RID, v.Version} }

// A Writing records the writes of a transaction of this server. The cache applies them once the change log shows their
// commit, and does not read them. A nil Writing belongs to a Memory that follows nothing.
type Writing struct {
	of        *written
	kept      int // versions
	ended     chan struct{}
	committed bool // when it has ended
}

// A WritingRow records the writes of one row of the change log.
type WritingRow struct {
	Written
	unknown bool // some of it must be read
}

// BeginRow begins a row of the change log, of so many versions at most; nil for a nil Writing.
func (w *Writing) BeginRow(most int) *WritingRow {
	if w == nil {
		return nil
	}
	return &WritingRow{Written: Written{versions: make([]writtenVersion, 0, most), by: w, bytes: writtenBytes}}
}

// AddVersion records a version, in the order of the row; r is nil for a deletion. It copies r: others reuse its index, and its
// texts and type are parts of the body of a whole Bundle.
func (v *WritingRow) AddVersion(rid int64, version int, r *match.Resource) {
	if v == nil || v.unknown {
		return
	}
	if len(v.versions) == 0 {
		v.RID, v.Version = rid, int32(version)
	}
	if r != nil {
		x, ok := asStored(r)
		if !ok {
			v.unknown = true
			return
		}
		c := *r
		c.Type, c.ID, c.Index = shared(r.Type), strings.Clone(r.ID), x
		r = &c
		v.bytes += indexBytes(x)
	}
	v.versions = append(v.versions, writtenVersion{rid, version, r})
	v.bytes += versionBytes
}

// KeepRow keeps the row, which is complete. The caller calls it before the commit.
func (v *WritingRow) KeepRow() {
	if v == nil || v.unknown || len(v.versions) == 0 {
		return
	}
	if v.by.of.add(&v.Written) {
		v.by.kept += len(v.versions)
	}
}

// EndWriting ends the record. committed is false if the transaction was not committed, or if that is unknown.
func (w *Writing) EndWriting(committed bool) {
	if w == nil {
		return
	}
	w.committed = committed
	close(w.ended)
	if committed {
		w.of.done(w.kept)
	} else {
		w.of.undone(w)
	}
}

// awaited bounds how long the outcome is awaited of a commit that others have seen already.
const awaited = time.Second

// wait waits until the writing has ended, and reports whether it was committed.
func (w *Writing) wait() bool {
	select {
	case <-w.ended:
		return w.committed
	default:
	}
	t := time.NewTimer(awaited)
	defer t.Stop()
	select {
	case <-w.ended:
		return w.committed
	case <-t.C:
		return false
	}
}

// written are the rows of the change log that this server wrote and the cache has not applied. It has a lock of its own:
// a writer does not wait for look-ups of a search.
type written struct {
	mu    sync.Mutex
	now   func() time.Time
	of    map[rowKey]*Written
	n     int       // versions of these
	bytes int       // the approximate size in bytes
	last  time.Time // when a transaction began
	wants bool      // something is followed
	full  bool      // nothing is kept until something is brought in again
	// committed is how many versions are known to be committed since many was told.
	committed int
	many      chan struct{}
}

// A row is kept until it was brought in, for writtenFor, and as long as all have maxWritten versions at most
// that take allWrittenBytes: where there are more, nobody brings them in. The others are read, and rows with a
// version whose index takes more than maxWrittenBytes.
const (
	writtenFor      = 5 * time.Second
	maxWritten      = 4 * MaxChanges
	maxWrittenBytes = 1 << 20
	allWrittenBytes = 16 << 20
	writtenBytes    = 128 // size of a row without its versions
	versionBytes    = 256 // size of a version without its index
)

// manyWritten is how many committed versions are brought in as soon as possible: an import writes as many in some
// hundredths of a second, and a search that brings them in itself has to wait for that.
const manyWritten = 512

// follow keeps rows from now on.
func (w *written) follow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wants = true
}

// clear keeps no row of before; mu is held.
func (w *written) clear() { w.of, w.n, w.bytes = nil, 0, 0 }

// forget keeps nothing until the next follow.
func (w *written) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wants, w.full = false, false
	w.clear()
}

// stop keeps nothing until something is brought in again.
func (w *written) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = true
	w.clear()
}

// done notes that so many versions are committed.
func (w *written) done(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.committed += n; w.committed < manyWritten {
		return
	}
	w.committed = 0
	select {
	case w.many <- struct{}{}:
	default:
	}
}

// writing is of a transaction that begins; nil where nothing is kept.
func (w *written) writing() *Writing {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.now()
	if !w.wants || w.full {
		return nil
	}
	return &Writing{of: w, ended: make(chan struct{})}
}

// writes reports whether a transaction has begun of late.
func (w *written) writes() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now().Sub(w.last) < writtenFor
}

// add keeps a row; false where it does not.
func (w *written) add(v *Written) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.wants || w.full {
		return false
	}
	if w.n+len(v.versions) > maxWritten || w.bytes+v.bytes > allWrittenBytes {
		w.full = true
		w.clear()
		return false
	}
	if w.of == nil {
		w.of = make(map[rowKey]*Written)
	}
	w.remove(v.key()) // of a transaction that was not committed
	v.at = w.now()
	w.of[v.key()] = v
	w.n, w.bytes = w.n+len(v.versions), w.bytes+v.bytes
	return true
}

// knowsMore reports whether rows are kept that are not among some.
func (w *written) knowsMore(some []*Written) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.of {
		if !slices.Contains(some, v) {
			return true
		}
	}
	return false
}

// isMany reports whether many versions are not brought in.
func (w *written) isMany() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n >= manyWritten
}

// remove keeps a row no longer; mu is held.
func (w *written) remove(key rowKey) {
	if v := w.of[key]; v != nil {
		w.n, w.bytes = w.n-len(v.versions), w.bytes-v.bytes
		delete(w.of, key)
	}
}

// ofLate are the rows that are kept.
func (w *written) ofLate() (all []*Written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for key, v := range w.of {
		if now.Sub(v.at) > writtenFor {
			w.remove(key)
			continue
		}
		all = append(all, v)
	}
	return all
}

// brought drops the applied rows, and rows whose first version belongs to an applied resource.
func (w *written) brought(rows []*Written, changed map[int64]*match.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = false
	for _, v := range rows {
		w.remove(v.key())
	}
	for key := range w.of {
		if r, ok := changed[key.rid]; ok && (r == nil || int(key.version) <= r.VersionID) {
			w.remove(key)
		}
	}
}

// undone keeps nothing of a writing.
func (w *written) undone(by *Writing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, v := range w.of {
		if v.by == by {
			w.remove(key)
		}
	}
}

// maxPlain is how long a number may be that is kept.
const maxPlain = 40

// asStored copies the index of a resource as it is read from the database; false where it is large,
// or a number is not written there as it is.
func asStored(r *match.Resource) (*fhir.Index, bool) {
	if indexBytes(r.Index) > maxWrittenBytes {
		return nil, false
	}
	x := newIndex(r.Index.Terms, slices.Clone(r.Index.Targets), r.LastUpdated.UnixMicro(), len(r.Index.Dates))
	x.Dates = append(x.Dates, r.Index.Dates...)
	x.Numbers, x.Quantities, x.Strings = slices.Clone(r.Index.Numbers), slices.Clone(r.Index.Quantities), slices.Clone(r.Index.Strings)
	plain := true
	ends := func(low, high *string) {
		point := *low == *high
		for _, number := range []*string{low, high} {
			plain = plain && *number != "" && len(*number) < maxPlain && !strings.ContainsAny(*number, "eE")
		}
		*low = strings.Clone(*low)
		if point {
			*high = *low
		} else {
			*high = strings.Clone(*high)
		}
	}
	for i := range x.Numbers {
		ends(&x.Numbers[i].Low, &x.Numbers[i].High)
	}
	for i := range x.Quantities {
		e := &x.Quantities[i]
		ends(&e.Low, &e.High)
		e.System, e.Code, e.Unit = shared(e.System), shared(e.Code), shared(e.Unit)
	}
	for i := range x.Strings {
		x.Strings[i].Text = strings.Clone(x.Strings[i].Text)
	}
	return x, plain
}

// shared is a copy of a text that many resources have.
func shared(text string) string { return unique.Make(text).Value() }

// indexBytes is about what asStored takes.
func indexBytes(x *fhir.Index) int {
	n := 8*(len(x.Terms)+len(x.Targets)) + 24*len(x.Dates) + 40*len(x.Numbers) + 88*len(x.Quantities) + 24*len(x.Strings)
	for i := range x.Quantities {
		e := &x.Quantities[i]
		n += len(e.System) + len(e.Code) + len(e.Unit)
	}
	for i := range x.Strings {
		n += len(x.Strings[i].Text)
	}
	return n
}

// MaxChanges is the number of changed resources of others that a search brings in at once. After more of them
// the memory lags: it answers nothing until they were brought in some at a time (CatchUp).
const MaxChanges = 4000

// newIndex is an index as it is remembered: beside its terms it has the one of every resource, beside
// its dates, of which there is room for so many, the last update, in microseconds. It keeps targets.
func newIndex(terms, targets []int64, updated int64, dates int) *fhir.Index {
	x := &fhir.Index{Terms: make([]int64, 1, 1+len(terms)), Targets: targets, Dates: make([]fhir.DateEntry, 1, 1+dates)}
	x.Terms[0], x.Dates[0] = Every, match.UpdatedEntry(updated)
	x.Terms = append(x.Terms, terms...)
	return x
}
