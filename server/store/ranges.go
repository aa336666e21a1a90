package store

import (
	"crypto/sha256"
	"encoding/binary"

	"kiln/server/fhir"
)

// rangesHash is of the rows that an index has beside the terms: in index_date,
// index_number, index_quantity, index_string and index_narrative. An update that finds the hash of
// its own rows leaves those in the tables alone, which is what most updates do:
// dates, names and amounts stay when a status changes.
type rangesHash uint64

// at is the value of the column resource.ranges for these rows at a version. A server that
// does not know the column leaves the value of an earlier version, which never equals that
// of the next.
func (h rangesHash) at(version int) int64 {
	const odd = 0x9e3779b97f4a7c15
	return int64(uint64(h) + uint64(version)*odd)
}

// hashRanges is the first eight bytes of SHA-256 over the rows, in the order in
// which they were extracted.
func hashRanges(x *fhir.Index) rangesHash {
	var buf [1024]byte
	b := buf[:0]
	head := func(kind byte, key fhir.Key) {
		b = append(b, kind)
		b = binary.BigEndian.AppendUint64(b, uint64(key))
	}
	text := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for _, d := range x.Dates {
		head('d', d.Key)
		b = binary.BigEndian.AppendUint64(b, uint64(d.Low))
		b = binary.BigEndian.AppendUint64(b, uint64(d.High))
	}
	for _, n := range x.Numbers {
		head('n', n.Key)
		text(n.Low)
		text(n.High)
	}
	for _, q := range x.Quantities {
		head('q', q.Key)
		text(q.Low)
		text(q.High)
		text(q.System)
		text(q.Code)
		text(q.Unit)
	}
	for _, s := range x.Strings {
		head('s', s.Key)
		text(s.Text)
	}
	if x.Narrative != "" {
		head('t', fhir.Key(fhir.NarrativeHash(x.Narrative)))
	}
	sum := sha256.Sum256(b)
	return rangesHash(binary.BigEndian.Uint64(sum[:8]))
}
