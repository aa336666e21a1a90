package oauth

import (
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"kiln/server/access"
)

// Kinds of events.
const (
	EventLogin    = "login"
	EventLogout   = "logout"
	EventToken    = "token"
	EventRevoke   = "revoke"
	EventRegister = "register"
	EventManage   = "manage"
	EventAccess   = "access" // a request, as access decided on it
)

// Event is something that an AuditEvent tells of.
type Event struct {
	Kind     string
	Failed   bool
	Time     time.Time
	User     string // username
	FHIRUser string
	Client   string
	Address  netip.Addr // of the client
	Detail   string     // grant type, error, method and path
	Object   string     // the managed object, or the path of a request
	// Interaction is the interaction of a request, in the words of the access log, and Method its
	// HTTP method.
	Interaction, Method string
	RequestID           string
}

// claimedClient is the client that a form says it is from, verified or not.
func claimedClient(r *http.Request) string {
	id := r.PostForm.Get("client_id")
	if name, _, ok := r.BasicAuth(); ok {
		if plain, err := url.QueryUnescape(name); err == nil {
			id = plain
		}
	}
	return clipText(id)
}

// audit hands an event on, as auth.audit says.
func (s *Server) audit(r *http.Request, e Event) {
	if s.options.Audit == nil {
		return
	}
	a := s.Config().Audit
	switch e.Kind {
	case EventLogin, EventLogout:
		if e.Failed && !a.LogFailedAuth || !e.Failed && !a.LogSuccessfulAuth {
			return
		}
	case EventToken, EventRevoke:
		if !a.LogTokenOperations {
			return
		}
	}
	e.Time, e.Address, e.RequestID = s.Now(), s.Proxies.ClientAddress(r), r.Header.Get("X-Request-Id")
	if p := access.PrincipalFrom(r.Context()); p != nil && e.User == "" && e.Client == "" {
		e.User, e.Client, e.FHIRUser = p.Subject, p.ClientID, p.FHIRUser
	}
	s.options.Audit(e)
}
