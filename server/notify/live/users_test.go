package live

import (
	"slices"
	"testing"

	"kiln/server/access"
)

// Somebody at a trusted issuer has the name of a user here: its messages are not theirs.
// OpenID Connect Core §5.7: sub is unique beside iss.
func TestNamesElsewhereAreNobodyHere(t *testing.T) {
	t.Parallel()
	here := &access.Principal{Subject: "nora", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	elsewhere := &access.Principal{Subject: "nora", Issuer: "https://id.example.org", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	if got := names(here); !slices.Equal(got, []string{"nora", "Practitioner/dr"}) {
		t.Errorf("names here %q", got)
	}
	if got := names(elsewhere); !slices.Equal(got, []string{"Practitioner/dr"}) {
		t.Errorf("names elsewhere %q", got)
	}
}
