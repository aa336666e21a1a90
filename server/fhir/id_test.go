package fhir

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// made is what NewID would have made at a time.
func made(at time.Time) string {
	u := uuid.MustParse(NewID())
	ms := uint64(at.UnixMilli())
	binary.BigEndian.PutUint16(u[:], uint16(ms>>32))
	binary.BigEndian.PutUint32(u[2:], uint32(ms))
	binary.BigEndian.PutUint32(u[idMark:], markOf(u))
	return u.String()
}

func TestNewID(t *testing.T) {
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = NewID()
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != len(ids) {
		t.Error("ids are not in the order in which they were made, or not unique")
	}
	u := uuid.MustParse(ids[0])
	if u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		t.Errorf("%s has version %d and variant %d", u, u.Version(), u.Variant())
	}
	seconds, _ := u.Time().UnixTime()
	if d := time.Since(time.Unix(seconds, 0)); d < 0 || d > time.Minute {
		t.Errorf("%s says it was made %s ago", u, d)
	}
}

// Resources created within a minute, and the references to them, share one 256th of an index.
func TestReferencesOfOneTimeLieTogether(t *testing.T) {
	at := time.UnixMilli(1 << 40) // a span begins
	begin := func(v Value) byte { return byte(v >> 56) }
	first := begin(ValueReference("Patient", made(at)))
	for _, typ := range []string{"Patient", "Observation"} {
		for _, d := range []time.Duration{0, time.Second, 65 * time.Second} {
			if got := begin(ValueReference(typ, made(at.Add(d)))); got != first {
				t.Errorf("the reference to a %s of %s later begins with %d, not %d", typ, d, got, first)
			}
		}
		if got := begin(ValueReference(typ, made(at.Add(66*time.Second)))); got != first+1 {
			t.Errorf("the reference to a %s of the next span begins with %d, not %d", typ, got, first+1)
		}
	}
	k := KeyOf(SearchReference, "Observation.subject")
	if v := ValueReference("Patient", made(at)); begin(Value(k.Term(v))) != first {
		t.Error("the term of a reference does not begin as the reference does")
	}
}

// An id of somebody else is hashed as a whole: resources that were stored before NewID left a mark are found.
func TestOtherIDsAreHashed(t *testing.T) {
	id := NewID()
	other := "0"
	if id[35] == '0' {
		other = "1"
	}
	for _, id := range []string{"1", "", id[:35] + other, "{" + id[:34] + "}", uuid.NewString(), uuid.Must(uuid.NewV7()).String()} {
		if got, want := ValueReference("Patient", id), Value(hash('r', "Patient", id)); got != want {
			t.Errorf("the reference to %q is %x, not %x", id, got, want)
		}
	}
}

func TestTermsOfOneValueLieTogether(t *testing.T) {
	id := NewID()
	keys := []Key{KeyOf(SearchToken, "Patient.identifier"), KeyOf(SearchToken, "Observation.code"), KeyOf(SearchReference, "Observation.subject"), KeyOf(SearchURI, "ValueSet.url")}
	for name, values := range map[string][]Value{
		"a code":      {ValueCode("p12"), ValueCoding("", "P12"), ValueCoding("urn:mrn", "p12"), ValueOfType("urn:t", "MR", "p12")},
		"a reference": {ValueReference("Patient", id)},
	} {
		terms := map[int64]bool{}
		for _, v := range values {
			for _, k := range keys {
				term := k.Term(v)
				terms[term] = true
				if k.ValueOf(term) != v || uint64(term)>>(64-nearBits) != uint64(values[0])>>(64-nearBits) {
					t.Errorf("%s: term %x of value %x lies elsewhere", name, term, v)
				}
			}
		}
		if len(terms) != len(values)*len(keys) {
			t.Errorf("%s: %d terms for %d values under %d keys", name, len(terms), len(values), len(keys))
		}
	}
	if a, b := ValueCode("p12"), ValueCode("p13"); a>>(64-nearBits) == b>>(64-nearBits) {
		t.Error("two codes have one place")
	}
}
