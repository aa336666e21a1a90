package terminology

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// stampPause is how long Contains goes without asking whether stored resources
// have changed.
const stampPause = 2 * time.Second

// Contains reports whether a code is in a value set, as far as local definitions
// can tell; the external server is not asked. known is false where they cannot:
// the value set is not here, or takes codes from a system that is not here. system
// "" stands for a code element, which names no system: any system of the value set
// will do. valueSet is a canonical, with or without version.
//
// A change of stored value sets is seen within two seconds. An abstract code is in
// the value sets that hold it.
func (s *Service) Contains(valueSet, system, code string) (in, known bool) {
	sn := s.recentSnapshot()
	set := sn.codes.get(valueSet)
	if set == nil {
		set = sn.compile(valueSet)
	}
	return set.contains(system, code)
}

// Listed returns the codes of a value set in order, each once; nil where there are
// more than most of them, or local definitions do not tell all. It tells people what
// they could have said.
func (s *Service) Listed(valueSet string, most int) []string {
	set := s.recentSnapshot().codes.get(valueSet)
	if set == nil || set.open {
		return nil // nobody has asked Contains
	}
	var list []string
	for i := range set.systems {
		t := &set.systems[i]
		if t.open || t.check != nil || len(list)+len(t.codes) > most {
			return nil
		}
		list = slices.AppendSeq(list, maps.Keys(t.codes))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// recentSnapshot returns a snapshot that was valid within the last two seconds.
func (s *Service) recentSnapshot() *snapshot {
	sn := s.current.Load()
	if sn != nil {
		at, last := int64(time.Since(started)), sn.checked.Load()
		if s.config.Resources == nil || at-last < int64(stampPause) || last != unchecked && !sn.checked.CompareAndSwap(last, at) {
			return sn
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	next, err := s.now(ctx)
	switch {
	case err == nil:
		return next
	case sn != nil:
		s.config.Logger.Warn("value sets may be out of date", "error", err)
		return sn
	}
	// The stamp could not be read: this snapshot is not cached.
	return &snapshot{Service: s, number: s.snapshots.Add(1)}
}

// Forget makes the next Contains look whether stored resources have changed: to be
// called when this instance knows that they have.
func (s *Service) Forget() {
	s.forgotten.Add(1)
	if sn := s.current.Load(); sn != nil {
		sn.checked.Store(unchecked)
	}
}

// codeSets are the compiled value sets of a snapshot: read without a lock, and
// emptied when they hold too many codes.
type codeSets struct {
	byURL atomic.Pointer[map[string]*codeSet]
	mu    sync.Mutex
	codes int
}

const maxSetCodes = 100_000

func (c *codeSets) get(valueSet string) *codeSet {
	if m := c.byURL.Load(); m != nil {
		return (*m)[valueSet]
	}
	return nil
}

func (c *codeSets) put(valueSet string, set *codeSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]*codeSet)
	if c.codes+set.size <= maxSetCodes {
		if m := c.byURL.Load(); m != nil {
			for k, v := range *m {
				next[k] = v
			}
		}
	} else {
		c.codes = 0
	}
	next[valueSet] = set
	c.codes += set.size
	c.byURL.Store(&next)
}

// codeSet is a value set compiled for Contains, or a code system for InSystem.
type codeSet struct {
	version string // of a code system
	systems []systemCodes
	// open says that the value set may hold codes of any system beside those
	// listed.
	open bool
	size int // codes, at least 50
}

type systemCodes struct {
	system string
	codes  map[string]struct{}
	// folded has the codes in lower case where the system compares without case.
	folded map[string]struct{}
	check  func(code string) bool // of a system with a grammar
	open   bool                   // it may have codes that are not listed
}

func (s *codeSet) contains(system, code string) (in, known bool) {
	known = !s.open
	for i := range s.systems {
		t := &s.systems[i]
		if system != "" && t.system != system {
			continue
		}
		if _, ok := t.codes[code]; ok {
			return true, true
		}
		if t.folded != nil {
			if _, ok := t.folded[strings.ToLower(code)]; ok {
				return true, true
			}
		}
		if t.check != nil && t.check(code) {
			return true, true
		}
		if t.open {
			known = false
		}
	}
	return false, known
}

// unknownSet is the code set of an unknown value set.
var unknownSet = &codeSet{open: true, size: 50}

// compile makes the code set of a value set.
func (sn *snapshot) compile(valueSet string) *codeSet {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	set, err := sn.codeSet(ctx, parseCanonical(valueSet))
	if err != nil {
		sn.config.Logger.Warn("value set cannot be used to check codes", "valueSet", valueSet, "error", err)
		set = unknownSet
	}
	sn.codes.put(valueSet, set)
	return set
}

func (sn *snapshot) codeSet(ctx context.Context, c canonical) (*codeSet, error) {
	x, err := sn.evaluate(true).canonical(ctx, c)
	if err != nil {
		return nil, err
	}
	set := &codeSet{size: max(50, len(x.entries))}
	at := make(map[string]int)
	of := func(system string) *systemCodes {
		i, ok := at[system]
		if !ok {
			i = len(set.systems)
			at[system] = i
			set.systems = append(set.systems, systemCodes{system: system, codes: make(map[string]struct{})})
		}
		return &set.systems[i]
	}
	for i := range x.entries {
		of(x.entries[i].system).codes[x.entries[i].code] = struct{}{}
	}
	for _, gap := range x.gaps {
		switch {
		case gap.system == "" && gap.exclude:
			// Nothing that is included is certain.
			return &codeSet{open: true, size: 50}, nil
		case gap.system == "":
			set.open = true
		case gap.exclude:
			// The excluded codes are unknown: no code of that system is certain.
			t := of(gap.system)
			t.codes, t.open = nil, true
		case gap.check != nil:
			of(gap.system).check = gap.check
		default:
			of(gap.system).open = true
		}
	}
	for i := range set.systems {
		t := &set.systems[i]
		if t.system == "" {
			continue
		}
		cs, err := sn.codeSystem(ctx, canonical{url: t.system})
		if err != nil {
			return nil, err
		}
		if cs != nil && cs.fold {
			t.folded = make(map[string]struct{}, len(t.codes))
			for code := range t.codes {
				t.folded[strings.ToLower(code)] = struct{}{}
			}
		}
	}
	return set, nil
}

// MemberOf reports whether a code is in a value set, asking the external server
// where local definitions cannot tell. known is false where nobody can.
// Spec: https://hl7.org/fhir/R4/fhirpath.html#functions (memberOf).
func (s *Service) MemberOf(ctx context.Context, system, code, valueSet string) (member, known bool, err error) {
	member, known = s.Contains(valueSet, system, code)
	if known || s.server() == nil || s.disabled.Load() {
		return member, known, nil
	}
	v, err := s.ValidateCode(ctx, ValidateCodeParams{URL: valueSet, Coding: []Coding{{System: system, Code: code}}, InferSystem: system == ""})
	if notKnown(err) {
		return false, false, nil
	}
	return v.Result, err == nil, err
}
