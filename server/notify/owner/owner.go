// Package owner has the owner of a Subscription: the principal that wrote it, kept beside the resource, with
// the rights that it has when an event is sent.
package owner

import (
	"encoding/json"

	"kiln/server/access"
)

// Owner is on whose behalf a Subscription was written, kept beside the resource.
type Owner struct {
	Subject   string   `json:"subject,omitempty"`
	Issuer    string   `json:"issuer,omitempty"`
	Client    string   `json:"client,omitempty"`
	Scopes    string   `json:"scopes,omitempty"`
	Patient   string   `json:"patient,omitempty"`
	Encounter string   `json:"encounter,omitempty"`
	FHIRUser  string   `json:"fhirUser,omitempty"`
	Unbound   bool     `json:"unbound,omitempty"`
	Roles     []string `json:"roles,omitempty"`
	Admin     bool     `json:"admin,omitempty"`
	TokenID   string   `json:"token,omitempty"`
	Session   string   `json:"session,omitempty"`
	Key       string   `json:"key,omitempty"` // kid of the key that signed the token
}

// FromPrincipal returns the owner that a principal makes; the zero Owner without authorization.
func FromPrincipal(p *access.Principal) Owner {
	if p == nil || p.IsOpen() {
		return Owner{}
	}
	return Owner{
		Subject: p.Subject, Issuer: p.Issuer, Client: p.ClientID, Scopes: p.Scopes.String(), Patient: p.Patient, Encounter: p.Encounter,
		FHIRUser: p.FHIRUser, Unbound: p.Unbound, Roles: p.Roles, Admin: p.Admin, TokenID: p.TokenID, Session: p.SessionID, Key: p.KeyID,
	}
}

// Encode returns the owner as the database stores it.
func (o Owner) Encode() []byte {
	b, _ := json.Marshal(o)
	return b
}

// Decode reads an owner that Encode has written.
func Decode(b []byte) Owner {
	var o Owner
	_ = json.Unmarshal(b, &o) // written by json
	return o
}

// IsPrincipal reports whether p is the owner; a Subscription written without authorization has none.
func (o Owner) IsPrincipal(p *access.Principal) bool {
	return p != nil && !p.IsOpen() && o.Subject+o.Client != "" && o.Subject == p.Subject && o.Issuer == p.Issuer && o.Client == p.ClientID
}

// An AccessKey tells owners apart whose access can be revoked apart.
type AccessKey struct{ subject, client, token, session string }

// AccessKey returns the key of an owner.
func (o Owner) AccessKey() AccessKey { return AccessKey{o.Subject, o.Client, o.TokenID, o.Session} }
