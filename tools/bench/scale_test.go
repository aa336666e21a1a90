package main

import "testing"

// A copy has the UUIDs of the corpus changed, the same one everywhere, and all else as it is.
func TestCopyBundle(t *testing.T) {
	const in = `{"id":"00000000-1111-2222-3333-4444000000ff","a-b":"Patient/00000000-1111-2222-3333-4444000000ff","date":"2020-01-01T00:00:00-05:00","x":"urn:uuid:ABCDEF00-1111-2222-3333-444400000000-"}`
	const want = `{"id":"00000000-1111-2222-3333-4444020100ff","a-b":"Patient/00000000-1111-2222-3333-4444020100ff","date":"2020-01-01T00:00:00-05:00","x":"urn:uuid:ABCDEF00-1111-2222-3333-444400000000-"}`
	if got := string(copyBundle([]byte(in), 0x0102)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if got := string(copyBundle([]byte(in), 0)); got != in {
		t.Errorf("copy 0 is %s", got)
	}
}
