package oauth

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// authorizationRequest is an authorization request that is being checked, after its client and
// its redirect URI.
type authorizationRequest struct {
	server *Server
	r      *http.Request
	client *storage.Client
	values url.Values
	flow   *flow
}

// authorizationChecks are the checks of an authorization request, in the order of the contract.
// Each fills its part of the flow. Its errors go to the client.
var authorizationChecks = []func(*authorizationRequest) error{
	(*authorizationRequest).checkUnsupported,
	(*authorizationRequest).checkResponseType,
	(*authorizationRequest).checkState,
	(*authorizationRequest).checkChallenge,
	(*authorizationRequest).checkAudience,
	(*authorizationRequest).checkScope,
	(*authorizationRequest).checkLaunch,
	(*authorizationRequest).checkPrompt,
	(*authorizationRequest).checkOpenID,
}

// checkRequest checks an authorization request except its client and redirect URI.
func (s *Server) checkRequest(r *http.Request, c *storage.Client, q url.Values) (*flow, error) {
	if err := checkOnce(q); err != nil {
		return nil, newRedirectError("invalid_request", hintOf(err))
	}
	f := &flow{ClientID: c.ID, RedirectURI: q.Get("redirect_uri"), State: q.Get("state"), Nonce: q.Get("nonce"), LoginHint: q.Get("login_hint")}
	request := &authorizationRequest{server: s, r: r, client: c, values: q, flow: f}
	for _, check := range authorizationChecks {
		if err := check(request); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// unsupportedParameters are parameters of OpenID Connect Core §3.1.2.1 that are refused, by error.
var unsupportedParameters = []struct{ name, code, description string }{
	{"request", "request_not_supported", "request objects are not supported"},
	{"request_uri", "request_uri_not_supported", "request_uri is not supported"},
	{"registration", "registration_not_supported", "registration is not supported"},
}

func (a *authorizationRequest) checkUnsupported() error {
	for _, p := range unsupportedParameters {
		if a.values.Has(p.name) {
			return newRedirectError(p.code, p.description)
		}
	}
	return nil
}

func (a *authorizationRequest) checkResponseType() error {
	switch t := a.values.Get("response_type"); {
	case t == "":
		return newRedirectError("invalid_request", "response_type is missing: expected code")
	case t != "code":
		return newRedirectError("unsupported_response_type", "response_type must be code")
	}
	if m := a.values.Get("response_mode"); m != "" && m != "query" {
		return newRedirectError("invalid_request", "response_mode must be query")
	}
	if !slices.Contains(a.server.Config().OAuth.GrantTypes, grantCode) || !slices.Contains(a.client.GrantTypes, grantCode) {
		return newRedirectError("unauthorized_client", "the client is not registered for authorization_code")
	}
	return nil
}

func (a *authorizationRequest) checkState() error {
	f := a.flow
	switch {
	case f.State == "":
		return newRedirectError("invalid_request", "state is missing")
	case len(f.State) > maxState:
		return newRedirectError("invalid_request", "state is too long")
	case stateBits(f.State) < minStateBits && (!a.values.Has("code_challenge") || a.server.Config().OAuth.StrictState):
		return newRedirectError("invalid_request", "state has less than 122 bits: use 22 or more random base64url characters, or a UUID")
	case len(f.Nonce) > maxNonce:
		return newRedirectError("invalid_request", "nonce is too long")
	case len(f.LoginHint) > 200:
		f.LoginHint = ""
	}
	return nil
}

// checkAudience checks aud, which requests for FHIR data need.
func (a *authorizationRequest) checkAudience() error {
	asked, err := smart.Parse(a.values.Get("scope"))
	switch aud := a.values.Get("aud"); {
	case aud == "" && (err != nil || aboutRecords(asked)):
		return newRedirectError("invalid_request", "aud is missing: expected "+a.server.FHIRBase)
	case aud != "" && !a.server.servedBase(a.r, aud):
		return newRedirectError("invalid_request", "aud must be "+a.server.FHIRBase)
	}
	return nil
}

func (a *authorizationRequest) checkScope() error {
	asked, err := smart.Parse(a.values.Get("scope"))
	if err != nil {
		return newRedirectError("invalid_scope", err.Error())
	}
	if asked.Empty() {
		return newRedirectError("invalid_scope", "scope is missing")
	}
	granted := a.server.grantableScopes(a.r.Context(), a.client, asked)
	if !a.values.Has("launch") {
		// One launch page may serve both launches. Without a launch there is nothing to grant.
		granted.Other = slices.DeleteFunc(granted.Other, func(o string) bool { return o == "launch" })
	}
	if !a.server.Config().Smart.LaunchStandaloneEnabled && !a.values.Has("launch") { // no patient is in context, and none is asked for
		granted.Resource = slices.DeleteFunc(granted.Resource, func(x smart.Scope) bool { return x.Context == smart.Patient })
	}
	granted.Resource = slices.DeleteFunc(granted.Resource, func(x smart.Scope) bool { return x.Context == smart.System })
	if granted.Empty() {
		return newRedirectError("invalid_scope", "nothing of the scope asked for is allowed to this client")
	}
	a.flow.Scope = granted.String()
	return nil
}

func (a *authorizationRequest) checkLaunch() error {
	f, launch := a.flow, a.values.Get("launch")
	if launch != "" {
		if !a.server.Config().Smart.LaunchEHREnabled {
			return newRedirectError("invalid_request", "launches from an EHR are off (auth.smart.launch_ehr_enabled)")
		}
		f.Launch = storage.Hash(launch)
		at, err := a.server.Store.Launch(a.r.Context(), f.Launch)
		if errors.Is(err, storage.ErrNotFound) || err == nil && at.ClientID != "" && at.ClientID != a.client.ID {
			return newRedirectError("invalid_request", "launch is unknown, used or expired, or for another client")
		}
		if err != nil {
			return err
		}
		f.Context = at
	}
	f.Context.ShortState = f.ShortState
	return nil
}

var promptValues = []string{"none", "login", "consent", "select_account"}

func (a *authorizationRequest) checkPrompt() error {
	prompts := strings.Fields(a.values.Get("prompt"))
	a.flow.Prompt = strings.Join(prompts, " ")
	for _, p := range prompts {
		if !slices.Contains(promptValues, p) {
			return newRedirectError("invalid_request", "prompt must be none, login, consent or select_account")
		}
	}
	if slices.Contains(prompts, "none") && len(prompts) > 1 {
		return newRedirectError("invalid_request", "prompt none stands alone")
	}
	return nil
}

// checkOpenID checks max_age and id_token_hint. OpenID Connect Core §3.1.2.1.
func (a *authorizationRequest) checkOpenID() error {
	if a.values.Has("max_age") {
		n, err := strconv.ParseInt(a.values.Get("max_age"), 10, 32)
		if err != nil || n < 0 {
			return newRedirectError("invalid_request", "max_age must be a number of seconds")
		}
		a.flow.MaxAge = &n
	}
	if hint := a.values.Get("id_token_hint"); hint != "" {
		_, sub, ok := a.server.readIDToken(a.r, hint)
		if !ok {
			return newRedirectError("invalid_request", "id_token_hint is no ID token of this server")
		}
		a.flow.SubjectHint = sub
	}
	return nil
}

// aboutRecords reports whether scopes are about FHIR, so that aud must say whose.
func aboutRecords(s smart.Scopes) bool {
	if len(s.Resource) > 0 || s.Empty() {
		return true
	}
	for _, o := range s.Other {
		if strings.HasPrefix(o, "launch") || o == "admin" || o == "metrics" {
			return true
		}
	}
	return false
}

// stateBits estimates the entropy of a state: its length times the bits of the
// alphabet that it is written in. A UUID of version 4 has 122.
func stateBits(state string) float64 {
	if uuidSyntax.MatchString(state) {
		return 122
	}
	var digit, hex, lower, upper, other bool
	length := 0.0
	for _, c := range state {
		length++
		switch {
		case c >= '0' && c <= '9':
			digit = true
		case c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
			hex = true
			lower, upper = lower || c >= 'a', upper || c < 'a'
		case c >= 'g' && c <= 'z':
			lower, other = true, true
		case c >= 'G' && c <= 'Z':
			upper, other = true, true
		default:
			other = true
		}
	}
	size := 0.0
	switch {
	case !other && hex:
		size = 16
	default:
		for _, class := range []struct {
			used bool
			size float64
		}{{digit, 10}, {lower, 26}, {upper, 26}, {other, 2}} {
			if class.used {
				size += class.size
			}
		}
	}
	return length * math.Log2(max(size, 2))
}
