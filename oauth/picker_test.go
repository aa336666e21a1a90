package oauth

import (
	"testing"

	"kiln/oauth/storage"
)

// Contract, Authorization 5: policies about users are about who looks for a patient, too.
func TestPickerIsOfAUser(t *testing.T) {
	if got := pickerPrincipal(&storage.User{Username: "doc"}, &storage.Client{ID: "doc"}).User(); got != "doc" {
		t.Errorf("the user is %q", got)
	}
}
