package bulk

import (
	"context"
	"encoding/json"
	"net/netip"

	"kiln/server/access"
	"kiln/server/smart"
)

// owner is the principal of a job as it is stored: what its rights depend on.
type owner struct {
	Open      bool     `json:"open,omitempty"`
	Subject   string   `json:"subject,omitempty"`
	Issuer    string   `json:"issuer,omitempty"`
	ClientID  string   `json:"client,omitempty"`
	Scopes    string   `json:"scopes,omitempty"`
	Patient   string   `json:"patient,omitempty"`
	Encounter string   `json:"encounter,omitempty"`
	FHIRUser  string   `json:"fhirUser,omitempty"`
	Roles     []string `json:"roles,omitempty"`
	Admin     bool     `json:"admin,omitempty"`
	APIKey    bool     `json:"apiKey,omitempty"`
	SessionID string   `json:"session,omitempty"`
	Address   string   `json:"address,omitempty"`
}

func storedOwner(p *access.Principal, address string) ([]byte, error) {
	return json.Marshal(owner{Open: p.IsOpen(), Subject: p.Subject, Issuer: p.Issuer, ClientID: p.ClientID, Scopes: p.Scopes.String(), Patient: p.Patient,
		Encounter: p.Encounter, FHIRUser: p.FHIRUser, Roles: p.Roles, Admin: p.Admin, APIKey: p.APIKey, SessionID: p.SessionID, Address: address})
}

// asOwner returns a context in which requests run on behalf of the owner of a job.
func asOwner(ctx context.Context, stored []byte) (context.Context, error) {
	var o owner
	if err := json.Unmarshal(stored, &o); err != nil {
		return nil, err
	}
	if o.Open {
		return access.WithPrincipal(ctx, access.Open), nil
	}
	scopes, err := smart.Parse(o.Scopes)
	if err != nil {
		return nil, err
	}
	p := &access.Principal{Subject: o.Subject, Issuer: o.Issuer, ClientID: o.ClientID, Scopes: scopes, Patient: o.Patient, Encounter: o.Encounter,
		FHIRUser: o.FHIRUser, Roles: o.Roles, Admin: o.Admin, APIKey: o.APIKey, SessionID: o.SessionID}
	address, _ := netip.ParseAddr(o.Address)
	return access.WithAddress(ctx, p, func() netip.Addr { return address }), nil
}
