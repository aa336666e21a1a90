package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"kiln/oauth"
	"kiln/server/outcome"
)

// Authorization signs people in and keeps their sessions. oauth.Server is one.
type Authorization interface {
	ConsoleOrigin(r *http.Request) string
	BeginConsole(r *http.Request, state, verifier string) string
	FinishConsole(r *http.Request, code, verifier string, times oauth.ConsoleTimes) (cookie string, err error)
	VisitConsole(ctx context.Context, cookie string, times oauth.ConsoleTimes, extend bool) (*oauth.ConsoleVisit, error)
	LeaveConsole(r *http.Request, session string) error
	LeaveConsoleEverywhere(r *http.Request, username string) error
	ChangeOwnPassword(r *http.Request, username, current, chosen string) error
	OwnGrants(ctx context.Context, username string) ([]oauth.OwnGrant, error)
	RevokeOwnGrant(r *http.Request, username, client string) error
	Sessions(ctx context.Context, username string, times oauth.ConsoleTimes) ([]oauth.SessionAnswer, error)
}

// The cookies of the console. None but the first is a credential.
const (
	sessionCookie  = "kiln_console"
	signInCookie   = "kiln_console_sign_in" // marks the browser that began a sign-in
	saidCookie     = "kiln_console_said"    // the status message of the next page, sealed
	languageCookie = "kiln_console_language"
)

var cookieSyntax = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// readCookie returns a cookie, "" where there is none or more than one.
func readCookie(r *http.Request, name string) string {
	list := r.CookiesNamed(name)
	if len(list) != 1 {
		return ""
	}
	return list[0].Value
}

// setCookie sets a cookie of the console; age in seconds, 0 lasts as long as the browser runs, below 0 deletes it.
func (v *visit) setCookie(name, value string, age int) {
	secure := v.r.TLS != nil
	if v.c.Auth != nil {
		secure = strings.HasPrefix(v.c.Auth.ConsoleOrigin(v.r), "https://")
	}
	http.SetCookie(v.x, &http.Cookie{Name: name, Value: value, Path: "/console", MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: secure})
}

// signInState is the content of the parameter state, sealed.
type signInState struct {
	Browser string `json:"b"` // the cookie's hash
	Nonce   string `json:"n"`
	To      string `json:"t"`
	Began   int64  `json:"a"` // Unix seconds
}

// signInLasts is how long a sign-in may take.
const signInLasts = 30 * time.Minute

// maxReturn bounds an address to return to, in bytes.
const maxReturn = 1500

// beginSignIn sends the browser to the server's sign-in.
func (v *visit) beginSignIn(to string) {
	browser := readCookie(v.r, signInCookie)
	if !cookieSyntax.MatchString(browser) {
		browser = random()
		v.setCookie(signInCookie, browser, int(signInLasts.Seconds()))
	}
	if len(to) > maxReturn {
		to = "/console"
	}
	s := signInState{Browser: v.c.seal.token("browser", browser), Nonce: random(), To: returnPath(to), Began: v.c.now().Unix()}
	text, err := json.Marshal(s)
	if err != nil {
		v.fail(err)
		return
	}
	v.redirect(v.c.Auth.BeginConsole(v.r, v.c.seal.seal("state", string(text)), v.c.seal.token("verifier", browser+s.Nonce)))
}

// returnPath is a path below /console, and /console for every other text.
func returnPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || strings.ContainsAny(to, "\\\r\n\t") || to != "/console" && !strings.HasPrefix(to, "/console/") && !strings.HasPrefix(to, "/console?") {
		return "/console"
	}
	if strings.Contains(u.Path, "/../") || strings.HasSuffix(u.Path, "/..") || strings.Contains(u.Path, "//") {
		return "/console"
	}
	return to
}

// callback ends a sign-in. The browser must be the one that began it.
func (v *visit) callback() error {
	q := v.r.URL.Query()
	text, ok := v.c.seal.open("state", q.Get("state"))
	var s signInState
	if !ok || json.Unmarshal([]byte(text), &s) != nil {
		return v.problem(http.StatusBadRequest, "This sign-in was not begun here.")
	}
	browser := readCookie(v.r, signInCookie)
	if browser == "" || v.c.seal.token("browser", browser) != s.Browser {
		return v.problem(http.StatusForbidden, "This sign-in was begun in another browser, or cookies are off.")
	}
	if v.c.now().Sub(time.Unix(s.Began, 0)) > signInLasts {
		return v.problem(http.StatusBadRequest, "This sign-in has ended or is too old.")
	}
	if q.Get("error") != "" {
		if q.Get("error") == "access_denied" {
			return v.problem(http.StatusForbidden, "The sign-in was cancelled, or this account is disabled.")
		}
		return v.problem(http.StatusBadRequest, "The sign-in has failed.")
	}
	cookie, err := v.c.Auth.FinishConsole(v.r, q.Get("code"), v.c.seal.token("verifier", browser+s.Nonce), v.c.Settings().Times)
	if outcome.Is(err, outcome.CodeLogin) {
		if v.signedIn() { // the same page once more
			v.redirect(s.To)
			return nil
		}
		return v.problem(http.StatusBadRequest, "This sign-in has ended or is too old.")
	}
	if err != nil {
		return err
	}
	v.setCookie(sessionCookie, cookie, 0)
	v.redirect(s.To)
	return nil
}

// enter finds the session of the request. It returns false where the answer is given.
func (v *visit) enter(extend bool) (bool, error) {
	if v.c.Auth == nil {
		return true, nil
	}
	cookie := readCookie(v.r, sessionCookie)
	if cookie == "" {
		return true, nil
	}
	session, err := v.c.Auth.VisitConsole(v.r.Context(), cookie, v.c.Settings().Times, extend)
	if outcome.Is(err, outcome.CodeLogin) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	v.session, v.principal, v.cookie = session, session.Principal, cookie
	v.x.Principal = session.Principal
	return true, nil
}

// signedIn reports whether a person uses the console: somebody with a session, or anybody without authorization.
func (v *visit) signedIn() bool { return v.c.Auth == nil || v.session != nil }

// CSRF is the csrf_token of the session.
func (v *visit) CSRF() string {
	if v.session != nil {
		return v.c.seal.token("csrf", v.cookie)
	}
	return v.c.seal.token("csrf", "nobody")
}

// signOut ends the session and the sign-in.
func (v *visit) signOut() error {
	if v.c.Auth == nil || v.session == nil {
		return errNoPage
	}
	if err := v.c.Auth.LeaveConsole(v.r, v.session.Session); err != nil {
		return err
	}
	v.setCookie(sessionCookie, "", -1)
	v.redirect("/auth/logout")
	return nil
}

// errNoPage is answered with 404.
var errNoPage = &refusal{status: http.StatusNotFound, issues: []outcome.Issue{{Code: outcome.CodeNotFound, Diagnostics: "There is no such page."}}}

// errForm refuses a form that the console has not made for this session.
var errForm = errors.New("form")
