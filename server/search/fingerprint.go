package search

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"kiln/server/fhir"
)

// Fingerprints tell two builds apart by the index entries that they make.
type Fingerprints struct {
	All   int64            // of all types; never 0
	Types map[string]int64 // by resource type
}

// Fingerprints returns a hash for each resource type over the index entries of the registry's parameters:
// their keys with search type and implicit system, whether entries contain the type of a reference or words,
// composites with their parts, and fhir.Extraction. Names, descriptions and expressions with the same keys do
// not matter, and compartments use the same keys. Every process with the same tables returns the same hashes.
// It takes some milliseconds.
func (r *Registry) Fingerprints() Fingerprints {
	f := Fingerprints{Types: make(map[string]int64, len(r.names))}
	all := fmt.Appendf(nil, "extraction %d\n", fhir.Extraction)
	all = append(all, "sort indexes\n"...) // a build that knows none of them would leave no entries
	for _, typ := range r.names {
		n := hashLines(r.indexed(typ))
		f.Types[typ] = n
		all = fmt.Appendf(all, "%s %d\n", typ, n)
		for _, p := range r.sorted[typ] {
			if targets := narrowedTo(p); targets != nil { // the key of its SortIndex
				all = fmt.Appendf(all, "%s %s\n", p.Code, targets)
			}
		}
	}
	f.All = max(hashOf(all), 1)
	return f
}

// indexed lists the index entries of a type, one fact for each line.
func (r *Registry) indexed(typ string) []string {
	lines := []string{fmt.Sprintf("extraction %d", fhir.Extraction)}
	for _, p := range r.sorted[typ] {
		for _, k := range p.Keys {
			_, narrowed := r.narrowed[k]
			lines = append(lines, fmt.Sprintf("key %x %s %q %v %v", uint64(k), p.Type, r.systems[k], narrowed, slices.Contains(p.Words, k)))
		}
		for _, c := range p.Composites {
			line := fmt.Appendf(nil, "composite %x %x", uint64(c.Key), uint64(c.Coded))
			for _, part := range c.Parts {
				line = fmt.Appendf(line, " %s %x %q", part.Type, part.Keys, part.System)
			}
			lines = append(lines, string(line))
		}
	}
	return lines
}

// hashLines hashes lines as a set: parameters share keys.
func hashLines(lines []string) int64 {
	slices.Sort(lines)
	var text []byte
	for _, l := range slices.Compact(lines) {
		text = append(append(text, l...), '\n')
	}
	return hashOf(text)
}

func hashOf(text []byte) int64 {
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
}
