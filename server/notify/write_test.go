package notify

import (
	"slices"
	"testing"
	"time"

	"kiln/server/access"
	"kiln/server/notify/owner"
)

// The last ones of notifications.max_subscriptions are counted one by one, those before in
// less counts than a thousandth, and never more are let in than there is room for.
func TestRoomIsCountedSeldom(t *testing.T) {
	const most = 100_000
	var r room
	counts, alone := 0, 0
	for n := int64(0); n < most; n++ {
		if !r.takeRoom(most) {
			counts++
			if n >= most-roomPart {
				alone++
			}
			r.found(most, n)
			r.until = r.until.Add(time.Minute)
		}
		if n+r.left >= most {
			t.Fatalf("%d more of %d are let in where there are %d", r.left, most, n)
		}
	}
	if counts > most/400 {
		t.Errorf("%d were counted %d times", most, counts)
	}
	if alone < roomPart-1 {
		t.Errorf("of the last %d only %d were counted", roomPart, alone)
	}
	r.found(most, 0)
	if r.takeRoom(most / 2) {
		t.Error("a count for another limit was taken")
	}
	r.until = time.Now().Add(-time.Millisecond)
	if r.takeRoom(most) {
		t.Error("an old count was taken")
	}
}

// Somebody at a trusted issuer has the name of a user here: neither its Subscriptions nor
// its messages are theirs. OpenID Connect Core §5.7: sub is unique beside iss.
func TestNamesElsewhereAreNobodyHere(t *testing.T) {
	t.Parallel()
	here := &access.Principal{Subject: "nora", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	elsewhere := &access.Principal{Subject: "nora", Issuer: "https://id.example.org", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	if o := owner.Decode(owner.FromPrincipal(here).Encode()); !o.IsPrincipal(here) || o.IsPrincipal(elsewhere) {
		t.Errorf("the owner %+v is %t here, %t elsewhere", o, o.IsPrincipal(here), o.IsPrincipal(elsewhere))
	}
	if o := owner.Decode(owner.FromPrincipal(elsewhere).Encode()); o.IsPrincipal(here) || !o.IsPrincipal(elsewhere) {
		t.Errorf("the owner %+v is %t here, %t elsewhere", o, o.IsPrincipal(here), o.IsPrincipal(elsewhere))
	}
	if p, err := (owner.Decided{}).Principal(t.Context(), owner.FromPrincipal(elsewhere)); err != nil || p.Issuer != elsewhere.Issuer {
		t.Errorf("the principal of the owner elsewhere: %+v %v", p, err)
	}
	if got := names(here); !slices.Equal(got, []string{"nora", "Practitioner/dr"}) {
		t.Errorf("names here %q", got)
	}
	if got := names(elsewhere); !slices.Equal(got, []string{"Practitioner/dr"}) {
		t.Errorf("names elsewhere %q", got)
	}
}
