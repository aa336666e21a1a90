package oauth

import (
	"testing"
	"time"
)

// A revocation of a client ends the tokens made before it, to the millisecond: tokens say
// when they were made by their id, also those whose id is a UUID's text, and all others by iat.
func TestIssuedAt(t *testing.T) {
	now := time.UnixMilli(1795650000123)
	if id := newTokenID(now); len(id) != 22 || id == newTokenID(now) {
		t.Errorf("the id %q: want 22 characters that no other has", id)
	}
	for jti, want := range map[string]time.Time{
		newTokenID(now):                        now,
		"01a21566-747b-777c-80a4-67df742c513f": time.UnixMilli(0x01a21566747b),
		"01a21566-747b-477c-80a4-67df742c513f": time.Unix(1795650000, 0), // version 4
		"AAAA":                                 time.Unix(1795650000, 0),
		"":                                     time.Unix(1795650000, 0),
		"no id":                                time.Unix(1795650000, 0),
	} {
		if got := issuedAt(jti, 1795650000); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", jti, got.UTC(), want.UTC())
		}
	}
}
