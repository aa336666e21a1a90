package owner

import (
	"testing"
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
