package web

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"kiln/server/access"
	"kiln/server/outcome"
)

// admitRequest authenticates a request, counts it, and answers it itself if it may not continue;
// it reports whether the request continues.
func (m *Mux) admitRequest(x *Exchange, r *http.Request, g Group) bool {
	p, err := m.authenticate(r, g)
	x.Principal = p
	if p != nil {
		narrowOrigins(x, r, p.Origins)
	}
	x.guarded = g.Token != NoToken && m.Verifier != nil
	if m.Limiter != nil && !g.Unlimited {
		if refused := m.Limiter.Limit(x, r, g, p); refused != nil {
			if e, ok := outcome.From(refused); ok && g.Throttled != nil {
				g.Throttled(x, r, e)
			} else {
				x.Fail(r, refused)
			}
			return false
		}
	}
	if err != nil {
		x.Fail(r, err)
		return false
	}
	x.countInFlight(g)
	if p == nil || p.IsOpen() {
		x.ctx = access.WithPrincipal(x.ctx, p)
	} else {
		x.ctx = access.WithAddress(x.ctx, p, func() netip.Addr { return m.Now().Proxies.ClientAddress(r) })
	}
	return true
}

// authenticate returns the principal of a request: access.Open while authorization
// is off, and nil on paths that need none. It
// fails with login, 401, without a valid token, and with forbidden, 403, where the token
// lacks the scope that the group needs.
func (m *Mux) authenticate(r *http.Request, g Group) (*access.Principal, error) {
	token, sent, err := bearer(r, g.TokenInQuery)
	inside, isInside := fromInside(r.Context())
	switch {
	case m.Verifier == nil:
		if g.Token.scope() != "" && !isLoopback(r.RemoteAddr) {
			return nil, outcome.New(outcome.CodeForbidden, "%s is for clients on the server's own machine while authorization is off (auth.enabled)", r.URL.Path)
		}
		return access.Open, nil
	case g.Token == NoToken:
		return nil, nil
	case isInside:
		return inside, checkGroup(g, inside, r)
	case err != nil:
		return nil, err
	case !sent:
		return nil, outcome.New(outcome.CodeLogin, "%s %s needs an access token: Authorization: Bearer …", clip(r.Method), clip(r.URL.Path))
	}
	p, err := m.Verifier.Verify(r.Context(), token)
	if err != nil {
		if e, ok := outcome.From(err); ok && outcome.Is(err, outcome.CodeLogin) && e.Challenge == "" {
			e.Challenge = `Bearer error="invalid_token"`
		}
		return nil, err
	}
	return p, checkGroup(g, p, r)
}

// checkGroup fails with forbidden, 403, where p lacks the scope that the group needs.
func checkGroup(g Group, p *access.Principal, r *http.Request) error {
	if scope := g.Token.scope(); scope != "" && !p.Admin && (scope == "admin" || !p.Scopes.Has(scope)) {
		return outcome.New(outcome.CodeForbidden, "%s needs a token with the scope %s", clip(r.URL.Path), scope).
			WithChallenge(`Bearer error="insufficient_scope", scope="` + scope + `"`)
	}
	return nil
}

// bearer is the token of a request. One in the query is taken out of the URL, so
// that neither logs nor links repeat it. RFC 6750 §2.
func bearer(r *http.Request, inQuery bool) (token string, sent bool, err error) {
	if inQuery && strings.Contains(r.URL.RawQuery, "token=") {
		token, sent = takeToken(r)
	}
	h := r.Header["Authorization"]
	switch {
	case len(h) == 0:
		return token, sent, nil
	case len(h) > 1 || sent:
		return "", true, outcome.New(outcome.CodeLogin, "the request has more than one access token").WithChallenge(`Bearer error="invalid_request"`)
	}
	scheme, token, ok := strings.Cut(h[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", true, outcome.New(outcome.CodeLogin, "the header Authorization is not: Bearer and an access token").WithChallenge(challenge)
	}
	return strings.TrimSpace(token), true, nil
}

// takeToken takes the parameter token out of the URL's query.
func takeToken(r *http.Request) (token string, sent bool) {
	var rest []string
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		if v, ok := strings.CutPrefix(part, "token="); ok {
			if t, err := url.QueryUnescape(v); err == nil {
				token, sent = t, true
			}
			continue
		}
		rest = append(rest, part)
	}
	if sent {
		r.URL.RawQuery = strings.Join(rest, "&")
		r.RequestURI = r.URL.RequestURI()
	}
	return token, sent
}

// clip bounds the part of the input that an error repeats.
func clip(s string) string { return outcome.Clip(s) }
