package owner

import (
	"testing"

	"kiln/server/access"
)

// Contract, Authorization 5: a policy about a user is not about the subscriptions of a
// client or an API key of that name.
func TestUserOfAnOwner(t *testing.T) {
	for _, tt := range []struct {
		name  string
		owner Owner
		want  string
	}{
		{"a user", Owner{Subject: "doc", Client: "app", Session: "s"}, "doc"},
		{"a client", Owner{Subject: "doc", Client: "doc"}, ""},
		{"an API key", Owner{Subject: "doc", Client: "apikey:doc"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.owner.Scopes = "system/*.rs"
			p, err := Decided{}.Principal(t.Context(), tt.owner)
			if err != nil || p.User() != tt.want {
				t.Errorf("user %q, %v, want %q", p.User(), err, tt.want)
			}
		})
	}
}

// Somebody at a trusted issuer has the name of a user here: its Subscriptions are not
// theirs. OpenID Connect Core §5.7: sub is unique beside iss.
func TestOwnersElsewhereAreNobodyHere(t *testing.T) {
	t.Parallel()
	here := &access.Principal{Subject: "nora", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	elsewhere := &access.Principal{Subject: "nora", Issuer: "https://id.example.org", ClientID: "ward", FHIRUser: "Practitioner/dr"}
	if o := Decode(FromPrincipal(here).Encode()); !o.IsPrincipal(here) || o.IsPrincipal(elsewhere) {
		t.Errorf("the owner %+v is %t here, %t elsewhere", o, o.IsPrincipal(here), o.IsPrincipal(elsewhere))
	}
	if o := Decode(FromPrincipal(elsewhere).Encode()); o.IsPrincipal(here) || !o.IsPrincipal(elsewhere) {
		t.Errorf("the owner %+v is %t here, %t elsewhere", o, o.IsPrincipal(here), o.IsPrincipal(elsewhere))
	}
	if p, err := (Decided{}).Principal(t.Context(), FromPrincipal(elsewhere)); err != nil || p.Issuer != elsewhere.Issuer {
		t.Errorf("the principal of the owner elsewhere: %+v %v", p, err)
	}
}
