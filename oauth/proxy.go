package oauth

import (
	"context"
	"errors"
	"strings"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/outcome"
)

// checkProxy fails with errToken if a RelatedPerson no longer acts for the patient of its
// token. It asks in each request, so that an end of the relation ends the token on every
// server at once, also an end that lies in the period alone. Tokens of other users, and
// tokens without a patient, cost nothing.
func (s *Server) checkProxy(ctx context.Context, fhirUser, patient string) error {
	id, ok := strings.CutPrefix(fhirUser, "RelatedPerson/")
	if !ok || patient == "" || s.Records == nil {
		return nil
	}
	acts, err := s.Records.ActsFor(ctx, id, patient)
	if err == nil && !acts {
		err = errToken
	}
	return err
}

// CheckOwner is for principals that are stored, such as the owner of a Subscription. It fails
// with login, 401, if the key that signed the token is withdrawn, or if a RelatedPerson no
// longer acts for the patient.
func (s *Server) CheckOwner(ctx context.Context, key, fhirUser, patient string) error {
	if key != "" && s.revoked.isKeyWithdrawn(key) {
		return outcome.New(outcome.CodeLogin, "the key that signed the access token is withdrawn")
	}
	err := s.checkProxy(ctx, fhirUser, patient)
	if errors.Is(err, errToken) {
		return outcome.New(outcome.CodeLogin, "the user no longer acts for the patient of the access token")
	}
	return err
}

// mayStillSee reports whether the user of a session may still see the patient in its
// context, and is still the FHIR resource that the session names.
func (s *Server) mayStillSee(ctx context.Context, u *storage.User, c fosite.Client, launch storage.Context) (bool, error) {
	if launch.FHIRUser != "" && launch.FHIRUser != u.FHIRUser {
		return false, nil
	}
	client, ok := c.(*storage.Client)
	if launch.Patient == "" || s.Records == nil || !ok {
		return true, nil
	}
	return s.Records.Sees(ctx, pickerPrincipal(u, client), "Patient", launch.Patient)
}
