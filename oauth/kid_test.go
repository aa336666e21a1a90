package oauth

import "testing"

// A kid is an argument of `kiln admin key revoke KID`: it must not look like a flag.
func TestKidIsNoFlag(t *testing.T) {
	t.Parallel()
	for range 500 { // one in 64 thumbprints begins with a dash
		_, kid, err := generateKey("ES256")
		if err != nil {
			t.Fatal(err)
		}
		if len(kid) != 16 || kid[0] == '-' {
			t.Fatalf("kid %q", kid)
		}
	}
}
