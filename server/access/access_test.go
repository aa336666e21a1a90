package access

import (
	"context"
	"testing"

	"kiln/server/outcome"
)

// Contract, Authorization 1: `auth.enabled` false: loopback only.
func TestCheckListen(t *testing.T) {
	for _, tt := range []struct {
		name, address string
		auth          bool
		wantErr       bool
	}{
		{"loopback is fine without authorization", "127.0.0.1:8080", false, false},
		{"all of 127/8 is loopback", "127.8.0.1:8080", false, false},
		{"IPv6 loopback", "[::1]:8080", false, false},
		{"localhost by name", "localhost:8080", false, false},
		{"every interface", ":8080", false, true},
		{"every interface by address", "0.0.0.0:8080", false, true},
		{"a private network is public enough", "10.0.0.1:8080", false, true},
		{"another name may be anything", "kiln.example.org:8080", false, true},
		{"with authorization anything goes", "0.0.0.0:8080", true, false},
		{"no port", "127.0.0.1", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckListen("server.listen", tt.address, tt.auth); (err != nil) != tt.wantErr {
				t.Errorf("CheckListen(%q, %v) = %v, want an error: %v", tt.address, tt.auth, err, tt.wantErr)
			}
		})
	}
}

func TestNobody(t *testing.T) {
	if r, err := (*Decider)(nil).Rights(WithPrincipal(context.Background(), Open)); err != nil || r != nil {
		t.Errorf("open principal: %v, %v, want no rights to ask and no error", r, err)
	}
	for _, ctx := range []context.Context{context.Background(), WithPrincipal(context.Background(), nil)} {
		_, err := new(Decider).Rights(ctx)
		if e, ok := outcome.From(err); !ok || e.HTTPStatus() != 401 || e.Issues[0].Code != outcome.CodeLogin {
			t.Errorf("no principal: %v, want login, 401", err)
		}
	}
	if _, err := (*Decider)(nil).Rights(WithPrincipal(context.Background(), &Principal{Subject: "app"})); err == nil {
		t.Error("a principal without a decider has every right")
	}
}
