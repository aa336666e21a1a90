package access

import (
	"context"
	"testing"

	"kiln/server/outcome"
)

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
			if err := CheckListen(tt.address, tt.auth); (err != nil) != tt.wantErr {
				t.Errorf("CheckListen(%q, %v) = %v, want an error: %v", tt.address, tt.auth, err, tt.wantErr)
			}
		})
	}
}

func TestMay(t *testing.T) {
	r := Request{Interaction: Delete, ResourceType: "Patient", ID: "1"}
	if err := From(With(context.Background(), Open)).May(r); err != nil {
		t.Errorf("open principal: %v", err)
	}
	if err, _ := outcome.From(From(context.Background()).May(r)); err == nil || err.HTTPStatus() != 401 {
		t.Errorf("no principal: %v, want 401", err)
	}
	if err, _ := outcome.From((&Principal{Subject: "app"}).May(r)); err == nil || err.HTTPStatus() != 403 {
		t.Errorf("principal without rights: %v, want 403", err)
	}
}
