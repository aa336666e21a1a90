package remembered

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// Written is a version of a resource that this server has just written, or is about to commit.
type Written struct {
	RID      int64
	Resource *match.Resource

	by *Writing
	at time.Time
}

// A Writing is what a transaction of this server writes: memory takes it from here where the change
// log says that it is committed, and does not read it. A nil Writing is of a Memory that follows
// nothing.
type Writing struct {
	of        *written
	ended     chan struct{}
	committed bool // when it has ended
}

// Add notes a version that is about to be committed. What is of r is copied: its index is used
// again by others, and its texts, its type too, are parts of the body of a whole Bundle.
func (w *Writing) Add(rid int64, r *match.Resource) {
	if w == nil || !w.of.follows(int16(rid>>48)) {
		return
	}
	if x, ok := asStored(r); ok {
		c := *r
		c.Type, c.ID, c.Index = strings.Clone(r.Type), strings.Clone(r.ID), x
		w.of.add(Written{RID: rid, Resource: &c, by: w})
	}
}

// End tells whether the transaction was committed: false where that is not known, too.
func (w *Writing) End(committed bool) {
	if w == nil {
		return
	}
	w.committed = committed
	close(w.ended)
	if !committed {
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

// written are the versions of resources that this server writes and the memory has not brought in. It
// has a lock of its own: a writer does not wait for what a search looks up.
type written struct {
	mu    sync.Mutex
	now   func() time.Time
	types map[int16]bool // that are followed
	of    map[int64]Written
	full  bool // nothing is kept until something is brought in again
}

// A version is kept until it was brought in, for writtenFor, and as one of maxWritten at most: where there are
// more, nobody searches. The others are read, and those whose index takes more than maxWrittenBytes.
const (
	writtenFor      = 5 * time.Second
	maxWritten      = MaxChanges / 2
	maxWrittenBytes = 16 << 10
)

// follow keeps the resources of a type from now on.
func (w *written) follow(typ int16) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.types == nil {
		w.types = make(map[int16]bool)
	}
	w.types[typ] = true
}

func (w *written) follows(typ int16) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.types[typ] && !w.full
}

// forget keeps nothing until the next follow.
func (w *written) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.types, w.of, w.full = nil, nil, false
}

// writing is of a transaction that begins; nil where nothing is kept.
func (w *written) writing() *Writing {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.types) == 0 || w.full {
		return nil
	}
	return &Writing{of: w, ended: make(chan struct{})}
}

// add keeps the version that was written last of a resource.
func (w *written) add(v Written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full = w.full || len(w.of) >= maxWritten; w.full {
		w.of = nil
		return
	}
	if w.of == nil {
		w.of = make(map[int64]Written)
	}
	v.at = w.now()
	w.of[v.RID] = v
}

// ofLate are the versions that are kept.
func (w *written) ofLate() (all []Written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for rid, v := range w.of {
		if now.Sub(v.at) > writtenFor {
			delete(w.of, rid)
			continue
		}
		all = append(all, v)
	}
	return all
}

// brought keeps none of the versions that were brought in, nor older ones.
func (w *written) brought(changed map[int64]*match.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = false
	for rid, r := range changed {
		if v, ok := w.of[rid]; ok && (r == nil || v.Resource.VersionID <= r.VersionID) {
			delete(w.of, rid)
		}
	}
}

// undone keeps nothing of a writing.
func (w *written) undone(by *Writing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.of, func(_ int64, v Written) bool { return v.by == by })
}

// maxPlain is how long a number may be that is kept.
const maxPlain = 40

// asStored copies the index of a resource as it is read from the database; false where it is large,
// or a number is not written there as it is.
func asStored(r *match.Resource) (*fhir.Index, bool) {
	if indexBytes(r.Index) > maxWrittenBytes {
		return nil, false
	}
	x := newIndex(r.Index.Terms, slices.Clone(r.Index.Targets), r.LastUpdated.UnixMicro())
	x.Dates = append(x.Dates, r.Index.Dates...)
	x.Numbers, x.Quantities, x.Strings = slices.Clone(r.Index.Numbers), slices.Clone(r.Index.Quantities), slices.Clone(r.Index.Strings)
	plain := true
	end := func(number *string) {
		plain = plain && *number != "" && len(*number) < maxPlain && !strings.ContainsAny(*number, "eE")
		*number = strings.Clone(*number)
	}
	for i := range x.Numbers {
		e := &x.Numbers[i]
		end(&e.Low)
		end(&e.High)
	}
	for i := range x.Quantities {
		e := &x.Quantities[i]
		end(&e.Low)
		end(&e.High)
		e.System, e.Code, e.Unit = strings.Clone(e.System), strings.Clone(e.Code), strings.Clone(e.Unit)
	}
	for i := range x.Strings {
		x.Strings[i].Text = strings.Clone(x.Strings[i].Text)
	}
	return x, plain
}

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
