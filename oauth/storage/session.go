package storage

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/ory/fosite"
)

// Session is the data of an authorization that the pages pass on to each of its tokens.
type Session struct {
	Username string                         `json:"username,omitempty"` // "" for client_credentials
	Subject  string                         `json:"subject"`            // of the tokens
	Expires  map[fosite.TokenType]time.Time `json:"expires,omitempty"`
	AuthTime time.Time                      `json:"authTime,omitzero"`
	Nonce    string                         `json:"nonce,omitempty"`
	Login    string                         `json:"login,omitempty"`   // hash of the sign-in's cookie
	Granted  []string                       `json:"granted,omitempty"` // scopes of the refresh tokens
	Context  Context                        `json:"context"`
}

// Context is a launch context. SMART App Launch 2.2, launch context arrives with
// your access token.
type Context struct {
	Patient           string          `json:"patient,omitempty"`
	Encounter         string          `json:"encounter,omitempty"`
	FHIRUser          string          `json:"fhirUser,omitempty"`
	FHIRContext       json.RawMessage `json:"fhirContext,omitempty"`
	Intent            string          `json:"intent,omitempty"`
	NeedPatientBanner *bool           `json:"needPatientBanner,omitempty"`
	SmartStyleURL     string          `json:"smartStyleUrl,omitempty"`
	Tenant            string          `json:"tenant,omitempty"`
	ClientID          string          `json:"clientId,omitempty"` // only this client may use the launch
	User              string          `json:"user,omitempty"`     // and only this user
	// ShortState says that the client sent a state of less than 122 bits.
	ShortState bool `json:"shortState,omitempty"`
}

// SetExpiresAt sets when a token of this kind expires.
func (s *Session) SetExpiresAt(key fosite.TokenType, at time.Time) {
	if s.Expires == nil {
		s.Expires = make(map[fosite.TokenType]time.Time)
	}
	s.Expires[key] = at
}

// GetExpiresAt is when a token of this kind expires, zero for never.
func (s *Session) GetExpiresAt(key fosite.TokenType) time.Time { return s.Expires[key] }

// GetUsername is the user, "" without one.
func (s *Session) GetUsername() string { return s.Username }

// GetSubject is sub.
func (s *Session) GetSubject() string { return s.Subject }

// Clone copies the session.
func (s *Session) Clone() fosite.Session {
	if s == nil {
		return nil
	}
	out := *s
	out.Expires = maps.Clone(s.Expires)
	return &out
}
