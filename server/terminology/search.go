package terminology

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
)

// Threshold is the number of codes from which a search reads them from a table.
const Threshold = 500

// setLife is how long a set stays in the table without being used; setTouch is how
// long one that is in use goes without a note of it.
const (
	setLife  = time.Hour
	setTouch = 5 * time.Minute
)

// foreignLife is how long values made of the server's answers are used before the
// kept answer is looked at again, if that is not past its time before.
const foreignLife = time.Minute

const setBytes = 4 << 20

// Sets keeps large sets of values where searches can join them.
type Sets interface {
	// PutTerminologySet keeps values, sorted, under an id that is a hash of them,
	// and notes their use.
	PutTerminologySet(ctx context.Context, id int64, values []int64, now time.Time) error
	// TouchTerminologySet notes the use of a set, and reports whether it is there.
	TouchTerminologySet(ctx context.Context, id int64, now time.Time) (bool, error)
	// DropTerminologySets drops the sets that were last used before then.
	DropTerminologySets(ctx context.Context, then time.Time) error
}

type setKey struct {
	snapshot uint64
	question search.Expansion
}

// set is a search modifier's codes.
type set struct {
	codes   search.Codes
	until   time.Time    // zero is for as long as the snapshot
	touched atomic.Int64 // Unix seconds
}

// SearchCodes returns what :in, :not-in, :below or :above stand for, as the values
// that the index holds: a list below 500 codes, else a set in PostgreSQL that stays
// for an hour after its last use. Warnings are to be shown to the client. It fails
// with not-supported (501) where terminology is disabled, not-found where the value
// set or code system is not known, too-costly, incomplete (422) where the expansion
// does not list all codes, and exception (503).
// Spec: https://hl7.org/fhir/R4/search.html#token.
func (s *Service) SearchCodes(ctx context.Context, q search.Expansion) (_ search.Codes, warnings []string, err error) {
	if err := s.enabled(); err != nil {
		return search.Codes{}, nil, err
	}
	sn, err := s.now(ctx)
	if err != nil {
		return search.Codes{}, nil, err
	}
	now := s.config.Now()

	// 1. The cached set.
	key := setKey{sn.number, q}
	if have, ok := s.sets.GetIfPresent(key); ok && (have.until.IsZero() || now.Before(have.until)) {
		there, err := s.touch(ctx, have, now)
		if there || err != nil {
			return have.codes, nil, err
		}
	}

	// 2. The codes, hashed.
	x, err := sn.codesOf(ctx, q)
	if err != nil {
		return search.Codes{}, nil, err
	}
	if x.unclosed {
		return search.Codes{}, nil, outcome.UnprocessableContent(outcome.CodeIncomplete, "the expansion for :%s is not complete (valueset-unclosed): "+
			"matches could be missing, so the search is refused", q.Modifier)
	}
	values := make([]fhir.Value, 0, len(x.entries))
	for i := range x.entries {
		e := &x.entries[i]
		switch {
		case e.system == "":
			values = append(values, fhir.ValueCode(e.code))
		case e.system == q.Implicit:
			// The entries of a code element name no system.
			values = append(values, fhir.ValueCoding(e.system, e.code), fhir.ValueCode(e.code))
		default:
			values = append(values, fhir.ValueCoding(e.system, e.code))
		}
	}
	slices.Sort(values)
	values = slices.Compact(values)

	// 3. As a list, or as a set in the database.
	made := &set{}
	if len(x.entries) < Threshold || s.config.Sets == nil {
		made.codes.Values = values
	} else {
		if made.codes.Set, err = s.keep(ctx, values, now); err != nil {
			return search.Codes{}, nil, err
		}
		made.touched.Store(now.Unix())
	}
	if x.foreign {
		made.until = now.Add(foreignLife)
		if !x.expires.IsZero() && x.expires.Before(made.until) {
			made.until = x.expires
		}
	}
	if len(x.warnings) == 0 {
		s.sets.Set(key, made)
	}
	return made.codes, x.warnings, nil
}

// touch notes that a set is in use. false says that it is gone.
func (s *Service) touch(ctx context.Context, have *set, now time.Time) (bool, error) {
	if have.codes.Set == 0 || now.Unix()-have.touched.Load() < int64(setTouch/time.Second) {
		return true, nil
	}
	there, err := s.config.Sets.TouchTerminologySet(ctx, have.codes.Set, now)
	if there {
		have.touched.Store(now.Unix())
	}
	return there, err
}

func (s *Service) keep(ctx context.Context, values []fhir.Value, now time.Time) (id int64, err error) {
	h := sha256.New()
	list := make([]int64, len(values))
	var b [8]byte
	for i, v := range values {
		list[i] = int64(v)
		binary.BigEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
	id = int64(binary.BigEndian.Uint64(h.Sum(nil)[:8])) | 1 // 0 is no set
	there, err := s.config.Sets.TouchTerminologySet(ctx, id, now)
	if there || err != nil {
		return id, err
	}
	slices.Sort(list)
	if err := s.config.Sets.PutTerminologySet(ctx, id, list, now); err != nil {
		return 0, fmt.Errorf("keep codes for searches: %w", err)
	}
	return id, nil
}

const snomed = "http://snomed.info/sct"

// codesOf expands the value set of a modifier.
func (sn *snapshot) codesOf(ctx context.Context, q search.Expansion) (*expansion, error) {
	e := sn.evaluate(false)
	if q.Modifier == "in" {
		return e.canonical(ctx, parseCanonical(q.ValueSet))
	}
	if q.System == "" {
		return nil, outcome.Invalid(":%s needs the code with its system: system|code", q.Modifier)
	}
	cs, err := sn.codeSystem(ctx, canonical{url: q.System})
	if err != nil {
		return nil, err
	}
	if cs != nil && cs.complete {
		i, ok := cs.findConcept(q.Code)
		if !ok {
			return nil, noCode(cs, q.Code)
		}
		set := make(map[int32]bool)
		if q.Modifier == "below" {
			cs.addBelow(i, set)
		} else {
			cs.addAbove(i, set)
		}
		x := &expansion{}
		for at := range set {
			x.entries = append(x.entries, entry{system: cs.url, code: cs.concepts[at].code, parent: -1})
		}
		return x, nil
	}
	if check, ok := grammars[q.System]; ok && sn.server() == nil && check(q.Code) {
		return &expansion{entries: []entry{{system: q.System, code: q.Code, parent: -1}}}, nil
	}
	if sn.server() == nil {
		return nil, notFound(typeCodeSystem, canonical{url: q.System})
	}
	if q.System == snomed {
		if strings.Trim(q.Code, "0123456789") != "" || len(q.Code) < 6 || len(q.Code) > 18 {
			return nil, outcome.Invalid("%q is no SNOMED CT concept: expected 6 to 18 digits", outcome.Clip(q.Code))
		}
		operator := "<<"
		if q.Modifier == "above" {
			operator = ">>"
		}
		return sn.server().expand(ctx, question{URL: snomed + "?fhir_vs=ecl/" + operator + q.Code})
	}
	op := "is-a"
	if q.Modifier == "above" {
		op = "generalizes"
	}
	return sn.server().expand(ctx, question{Compose: &Compose{Include: []Include{{System: q.System,
		Filter: []Filter{{Property: "concept", Op: op, Value: q.Code}}}}}})
}

// Run drops sets that are no longer used, until ctx ends. Any number of instances
// may do so.
func (s *Service) Run(ctx context.Context) {
	if s.config.Sets == nil {
		return
	}
	tick := time.NewTicker(setLife / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.config.Sets.DropTerminologySets(ctx, s.config.Now().Add(-setLife)); err != nil && ctx.Err() == nil {
			s.config.Logger.WarnContext(ctx, "unused code sets are not dropped", "error", err)
		}
	}
}
