package fhir

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/google/uuid"
)

// NewID makes the logical id of a resource that this server creates: a UUID of version 7, so that ids sort by
// time. Of its 62 bits of rand_b the last 32 are a mark, the CRC of all others: minted knows it by them.
// Spec: https://www.rfc-editor.org/rfc/rfc9562#section-5.7.
func NewID() string {
	u := uuid.Must(uuid.NewV7())
	binary.BigEndian.PutUint32(u[idMark:], markOf(u))
	return u.String()
}

// idMark is where the mark of an id begins.
const idMark = 12

func markOf(u uuid.UUID) uint32 { return crc32.ChecksumIEEE(u[:idMark]) }

// minted tells in which of 256 spans of time NewID made an id: of 65 seconds each, over again after 4.7 hours.
// It reports false for any other id, but for one in 2^32 of the UUIDs of version 7 that others made.
func minted(id string) (span byte, ok bool) {
	const length, version = 36, 14
	if len(id) != length || id[version] != '7' {
		return 0, false
	}
	u, err := uuid.Parse(id)
	if err != nil || binary.BigEndian.Uint32(u[idMark:]) != markOf(u) {
		return 0, false
	}
	return u[3], true // of the 48 bits of milliseconds those from the 17th on
}
