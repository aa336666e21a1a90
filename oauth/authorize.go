package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/web"
)

var (
	logicalID  = regexp.MustCompile(`^[A-Za-z0-9\-.]{1,64}$`)
	uuidSyntax = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
)

// Bounds of an authorization request.
const (
	minStateBits = 122
	maxState     = 4096 // bytes
	maxNonce     = 1024
)

// flow is an authorization request on its way through the pages.
type flow struct {
	ID          string `json:"-"`
	Browser     string `json:"-"` // hash of the cookie
	CSRF        string `json:"csrf"`
	ClientID    string `json:"clientId"`
	RedirectURI string `json:"redirectUri"`
	State       string `json:"state"`
	Nonce       string `json:"nonce,omitempty"`
	Challenge   string `json:"challenge,omitempty"`
	Scope       string `json:"scope"`                // that may be granted
	Launch      string `json:"launch,omitempty"`     // hash of its identifier
	ShortState  bool   `json:"shortState,omitempty"` // the state has less than 122 bits
	LoginHint   string `json:"loginHint,omitempty"`
	SubjectHint string `json:"subjectHint,omitempty"` // of id_token_hint
	Prompt      string `json:"prompt,omitempty"`
	MaxAge      *int64 `json:"maxAge,omitempty"`

	// The results of the pages.
	Username  string          `json:"username,omitempty"`
	AuthTime  time.Time       `json:"authTime,omitzero"`
	Consented bool            `json:"consented,omitempty"`
	Granted   string          `json:"granted,omitempty"`
	Context   storage.Context `json:"context"`
	NoVisit   bool            `json:"noVisit,omitempty"` // the user goes on without an encounter
	Picked    bool            `json:"picked,omitempty"`  // the user has chosen the patient, and may choose another
	Page      string          `json:"page,omitempty"`    // of ours that the sign-in leads to, in place of an app
	unchosen  bool            // the form of a picker had nothing that may be chosen
	Provider  *elsewhere      `json:"provider,omitempty"`

	// For a form that is sent again.
	Cookie   string      `json:"-"`                  // the browser's own
	SignedBy *signInForm `json:"signedBy,omitempty"` // how Username has signed in
	Answer   []byte      `json:"answer,omitempty"`   // the redirect that has ended the flow, sealed with the cookie
	Code     string      `json:"code,omitempty"`     // hash of its code
	Answered time.Time   `json:"answered,omitzero"`
}

// flowLifetime is how long the pages wait for the user, as long as the cookie.
const flowLifetime = 10 * time.Minute

// redirectError is an error that the client gets by redirect. RFC 6749 §4.1.2.1.
type redirectError struct{ name, description string }

func (e *redirectError) Error() string { return e.name + ": " + e.description }

func newRedirectError(name, description string) error { return &redirectError{name, description} }

// authorize is GET /auth/authorize: everything about the request is checked before
// the user sees a page.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		s.errorPage(w, r, http.StatusBadRequest, "The link to this page cannot be read. Go back to the app and begin again.", "The query is malformed.")
		return
	}
	s.beginFlow(w, r, q)
}

// beginFlow checks an authorization request and shows its first page.
func (s *Server) beginFlow(w http.ResponseWriter, r *http.Request, q url.Values) {
	ctx := r.Context()
	leaveOutEmpty(q)
	c, problem, detail, err := s.redirectable(ctx, q)
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if problem != "" {
		s.errorPage(w, r, http.StatusBadRequest, problem, detail)
		return
	}
	f, err := s.checkRequest(r, c, q)
	if err != nil {
		s.redirectWith(w, r, q.Get("redirect_uri"), once(q, "state"), err)
		return
	}
	cookie := sessionCookie(r)
	if cookie == "" {
		cookie = randomText()
	}
	http.SetCookie(w, s.cookie(cookie, int(flowLifetime.Seconds())))
	f.ID, f.CSRF, f.Browser, f.Cookie = randomText(), randomText(), storage.Hash(cookie), cookie
	if login, err := s.Store.Login(ctx, f.Browser); err == nil && s.fresh(f, login) {
		f.Username, f.AuthTime = login.Username, login.Authenticated
	} else if err != nil && !errors.Is(err, storage.ErrNotFound) {
		s.failUnexpected(w, r, err)
		return
	}
	if err := s.Store.CreateFlow(ctx, f.ID, f.Browser, f, s.Now().Add(flowLifetime)); err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	s.advanceFlow(w, r, f, c)
}

// once is a parameter that stands there once, "" otherwise.
func once(q url.Values, name string) string {
	if len(q[name]) == 1 {
		return q[name][0]
	}
	return ""
}

// fresh reports whether a sign-in is one that the request takes. OpenID Connect Core
// §3.1.2.1: prompt, max_age.
func (s *Server) fresh(f *flow, l storage.Login) bool {
	prompts := strings.Fields(f.Prompt)
	if slices.Contains(prompts, "login") || slices.Contains(prompts, "select_account") {
		return false
	}
	if f.SubjectHint != "" && f.SubjectHint != l.Username {
		return false
	}
	return f.MaxAge == nil || s.Now().Sub(l.Authenticated) <= time.Duration(*f.MaxAge)*time.Second
}

// redirectable finds the client, and whether it may be redirected to. Where it may
// not, problem gives the person the reason in plain words, and detail is for the app's makers:
// nothing is redirected. RFC 6749 §3.1.2.4.
func (s *Server) redirectable(ctx context.Context, q url.Values) (c *storage.Client, problem, detail string, err error) {
	const wrong = "The app has opened this page in a wrong way. Go back to the app; if it happens again, tell its makers."
	for _, name := range []string{"client_id", "redirect_uri"} {
		switch len(q[name]) {
		case 0:
			return nil, wrong, "The link has no " + name + ".", nil
		case 1:
		default:
			return nil, wrong, "The link has more than one " + name + ".", nil
		}
	}
	c, err = s.Store.Client(ctx, q.Get("client_id"))
	switch {
	case errors.Is(err, storage.ErrNotFound) || strings.ContainsRune(q.Get("client_id"), 0):
		return nil, "This app is not known here. Go back to the app, and tell its makers.", "No client is registered with this client_id.", nil
	case err != nil:
		return nil, "", "", err
	case !c.Active:
		return nil, "This app is disabled here. Ask the people who run this server.", "", nil
	case c.IsPublic() && !s.Config().Smart.PublicClientsAllowed:
		return nil, "This server allows no apps of this kind. Ask the people who run this server.", "This server allows no public clients.", nil
	case c.ID == ConsoleClient && s.consoleRedirect(q.Get("redirect_uri")):
	case c.ID == ConsoleClient || !redirectMatches(c.RedirectURIs, q.Get("redirect_uri")):
		return nil, wrong, "The redirect_uri is not registered for the client.", nil
	}
	return c, "", "", nil
}

// redirectMatches compares as strings; a loopback redirect by http may differ in its
// port. RFC 8252 §7.3.
func redirectMatches(registered []string, asked string) bool {
	if slices.Contains(registered, asked) {
		return true
	}
	u, err := url.Parse(asked)
	if err != nil || u.Scheme != "http" || u.User != nil || !loopbackHost(u.Hostname()) {
		return false
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return false
		}
	}
	portless := func(text string) (string, bool) {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" || !loopbackHost(u.Hostname()) {
			return "", false
		}
		return strings.Replace(text, "//"+u.Host, "//"+strings.TrimSuffix(u.Host, ":"+u.Port()), 1), true
	}
	want, ok := portless(asked)
	if !ok {
		return false
	}
	for _, r := range registered {
		if got, ok := portless(r); ok && got == want {
			return true
		}
	}
	return false
}

func loopbackHost(host string) bool {
	return host == "127.0.0.1" || host == "::1" || host == "localhost"
}

// servedBase reports whether a URL is a spelling of the FHIR base that is served:
// the configured one, or as the browser reached this server; with or without
// /fhir and a slash at the end.
func (s *Server) servedBase(r *http.Request, aud string) bool {
	if s.ownBase(aud) {
		return true
	}
	u, err := url.Parse(s.Issuer)
	// On loopback a server has several names.
	return err == nil && isLoopback(u.Hostname()) && isLoopback(hostOf(r.Host)) && bareBase(aud) == u.Scheme+"://"+r.Host
}

// ownBase reports whether a URL is a spelling of the FHIR base as it is configured.
func (s *Server) ownBase(text string) bool {
	asked := bareBase(text)
	for _, base := range []string{s.FHIRBase, s.Issuer, s.options.BaseURL} {
		if base != "" && asked == bareBase(strings.TrimSuffix(base, "/")) {
			return true
		}
	}
	return false
}

// bareBase is a base URL without /fhir and a slash at the end.
func bareBase(u string) string { return strings.TrimSuffix(strings.TrimSuffix(u, "/"), "/fhir") }

// redirectWith sends the browser back to the client with an error. RFC 6749
// §4.1.2.1, RFC 9207.
func (s *Server) redirectWith(w http.ResponseWriter, r *http.Request, to, state string, err error) {
	s.redirect(w, r, to, s.errorValues(r, state, err))
}

// errorValues are the parameters by which a client gets an error.
func (s *Server) errorValues(r *http.Request, state string, err error) url.Values {
	var e *redirectError
	if !errors.As(err, &e) {
		s.Logger.ErrorContext(r.Context(), "authorize", "error", err)
		e = &redirectError{"server_error", "internal error"}
		if s.isUnavailable(err) {
			e = &redirectError{"temporarily_unavailable", "the database does not answer"}
		}
	}
	values := url.Values{"error": {e.name}, "error_description": {describableText(e.description)}, "iss": {s.Issuer}}
	if state != "" && len(state) <= maxState {
		values.Set("state", state)
	}
	return values
}

// redirect adds parameters to a redirect URI.
func (s *Server) redirect(w http.ResponseWriter, r *http.Request, to string, values url.Values) {
	location, err := withValues(to, values)
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	s.redirectTo(w, r, location)
}

// withValues is a redirect URI with additional parameters. Its own parameters stay as they
// are written, except parameters of the same names. RFC 6749 §3.1.2.
func withValues(to string, values url.Values) (string, error) {
	u, err := url.Parse(to)
	if err != nil {
		return "", err
	}
	var query []string
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(name); pair != "" && (err != nil || !values.Has(name)) {
			query = append(query, pair)
		}
	}
	u.RawQuery = strings.Join(append(query, values.Encode()), "&")
	return u.String(), nil
}

func (s *Server) redirectTo(w http.ResponseWriter, r *http.Request, location string) {
	noStore(w)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", location)
	status := http.StatusFound
	if r.Method == http.MethodPost {
		status = http.StatusSeeOther
	}
	w.WriteHeader(status)
}

// cookie is oauth_session with a value; age in seconds, below 0 clears it.
func (s *Server) cookie(value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/auth", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: strings.HasPrefix(s.Issuer, "https://"),
	}
}

const cookieName = "oauth_session"

var cookieSyntax = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// sessionCookie is the value of oauth_session, "" without one that we can have set.
// Of several, none is believed.
func sessionCookie(r *http.Request) string {
	value := ""
	for _, c := range r.Cookies() {
		if c.Name != cookieName {
			continue
		}
		if value != "" || !cookieSyntax.MatchString(c.Value) {
			return ""
		}
		value = c.Value
	}
	return value
}

// login is the sign-in of the browser.
func (s *Server) login(r *http.Request) (storage.Login, error) {
	cookie := sessionCookie(r)
	if cookie == "" {
		return storage.Login{}, storage.ErrNotFound
	}
	return s.Store.Login(r.Context(), storage.Hash(cookie))
}

func jsonOf(v any) (json.RawMessage, error) { return json.Marshal(v) }

// hintOf is the text for people of an error of fosite.
func hintOf(err error) string {
	e := fosite.ErrorToRFC6749Error(err)
	if e.HintField != "" {
		return e.HintField
	}
	return e.DescriptionField
}

// writeCached answers with v as JSON that clients may keep for a minute, and ask for by its
// entity tag afterwards.
func writeCached(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=60")
	if web.TagContent(w, r, b) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(append(b, '\n'))
}
