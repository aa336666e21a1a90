package oauth

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ory/fosite"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// advanceFlow shows the next page of a flow, or ends it: sign-in, patient, encounter,
// consent, code.
func (s *Server) advanceFlow(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) {
	err := s.step(w, r, f, c)
	if err == nil {
		return
	}
	var e *redirectError
	if errors.As(err, &e) {
		s.end(w, r, f, c, e)
		return
	}
	s.failUnexpected(w, r, err)
}

// step does the next step of a flow; its redirectErrors end the flow.
func (s *Server) step(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) error {
	ctx := r.Context()
	silent := f.Prompt == "none"

	// 1. Sign the user in.
	if f.Username == "" {
		if silent {
			return newRedirectError("login_required", "the user is not signed in")
		}
		p := s.newPage(r, "Sign in")
		p.Username = f.LoginHint
		return s.showPage(w, r, f, c, http.StatusOK, "login", p)
	}
	u, err := s.Store.User(ctx, f.Username)
	if errors.Is(err, storage.ErrNotFound) || err == nil && !u.Active {
		return newRedirectError("access_denied", "the user is disabled")
	}
	if err != nil {
		return err
	}
	if f.Page != "" {
		return s.finishPage(w, r, f, c)
	}
	if f.Context.User != "" && f.Context.User != u.Username {
		return newRedirectError("access_denied", "the launch is for another user")
	}
	may := mayGrant(f.Scope, u)
	if may.Empty() {
		return newRedirectError("invalid_scope", "nothing of the scope asked for is allowed to this user")
	}

	// 2. Whose record, and which visit. A patient/ scope asks for a patient as launch/patient
	// does: SMART App Launch 2.2, scopes for requesting FHIR resources.
	if shown, err := s.settleContext(w, r, f, c, u, may); shown || err != nil {
		return err
	}

	// 3. The consent.
	if !f.Consented {
		remembered, err := s.remembered(ctx, f, c, may)
		if err != nil {
			return err
		}
		if !remembered {
			if silent {
				return newRedirectError("consent_required", "the user has not agreed to this scope")
			}
			return s.askConsent(w, r, f, c, u, may)
		}
		f.Consented, f.Granted = true, may.String()
	}
	granted, err := smart.Parse(f.Granted)
	if err != nil {
		return err
	}
	if granted.Has("fhirUser") || granted.Has("profile") || len(granted.Resource) > 0 {
		f.Context.FHIRUser = u.FHIRUser
	}
	return s.finish(w, r, f, c, u, granted)
}

// settleContext finds the patient and the encounter that the app works with. Where the
// user has to choose, it shows a picker and reports so.
func (s *Server) settleContext(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User, may smart.Scopes) (shown bool, err error) {
	silent := f.Prompt == "none"
	if f.Launch != "" && f.Context.Patient != "" {
		// An app reads the record that its launch names as patient/ scopes say, which ask
		// no more of the user.
		sees, err := s.Records.Sees(r.Context(), pickerPrincipal(u, c), "Patient", f.Context.Patient)
		if err != nil {
			return false, err
		}
		if !sees {
			return false, newRedirectError("access_denied", "the launch is about a patient whom the user may not see")
		}
	}
	wantsPatient, wantsEncounter := may.Has("launch/patient") || may.HasContext(smart.Patient), may.Has("launch/encounter")
	if (wantsPatient || wantsEncounter) && f.Context.Patient == "" {
		id, own := strings.CutPrefix(u.FHIRUser, "Patient/")
		if !own {
			if silent {
				return false, newRedirectError("interaction_required", "the user must choose a patient")
			}
			return true, s.pickPatient(w, r, f, c, u, "", "")
		}
		f.Context.Patient = id
	}
	if wantsEncounter && f.Context.Encounter == "" && !f.NoVisit {
		if silent {
			return false, newRedirectError("interaction_required", "the user must choose an encounter")
		}
		return true, s.pickEncounter(w, r, f, c, u)
	}
	return false, nil
}

// askConsent shows the consent page, which names the patient.
func (s *Server) askConsent(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User, may smart.Scopes) error {
	p := s.newPage(r, "Allow access")
	p.User, p.Scopes = u, s.offerScopes(p, may, u)
	if f.Context.Patient != "" {
		patient, err := s.Records.Patient(r.Context(), pickerPrincipal(u, c), f.Context.Patient)
		if err != nil {
			return err
		}
		p.Patient = &patient
	}
	return s.showPage(w, r, f, c, http.StatusOK, "consent", p)
}

// remembered reports whether the consent page can be skipped: the client is the
// operator's own, or the user has granted these scopes before.
func (s *Server) remembered(ctx context.Context, f *flow, c *storage.Client, may smart.Scopes) (bool, error) {
	if slices.Contains(strings.Fields(f.Prompt), "consent") {
		return false, nil
	}
	if c.Trusted {
		return true, nil
	}
	before, err := s.Store.Consent(ctx, f.Username, c.ID)
	if err != nil || before == "" {
		return false, err
	}
	wider, err := smart.Parse(before)
	return err == nil && may.Within(wider), nil
}

// mayGrant removes from a scope the parts that the user cannot grant: admin and metrics
// without the role admin, fhirUser without a resource.
func mayGrant(scope string, u *storage.User) smart.Scopes {
	may, err := smart.Parse(scope)
	if err != nil {
		return smart.Scopes{}
	}
	may.Other = slices.DeleteFunc(may.Other, func(o string) bool {
		switch o {
		case "admin", "metrics", "launch/context":
			return !slices.Contains(u.Roles, "admin")
		case "fhirUser":
			return u.FHIRUser == ""
		}
		return false
	})
	return may
}

// showPage stores the flow and renders a page of it.
func (s *Server) showPage(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, status int, name string, p page) error {
	if err := s.Store.PutFlow(r.Context(), f.ID, f.Browser, f, false, s.Now().Add(flowLifetime)); err != nil {
		if errors.Is(err, storage.ErrNotFound) {
			s.writeEndedFlow(w, r, f, c)
			return nil
		}
		return err
	}
	p.SessionID, p.CSRF, p.Client, p.Signed, p.OwnPage = f.ID, f.CSRF, c, f.Username, f.Page != ""
	if c.ID != ConsoleClient { // its data stays on this server
		p.Host = p.dataHost(f.RedirectURI)
	}
	p.Lasts = s.accessLasts(p, f, c)
	if name == "login" {
		for _, o := range s.others.Load().providers {
			p.Providers = append(p.Providers, o.Name)
		}
	}
	p.redirect = f.RedirectURI
	s.render(w, r, status, name, p)
	return nil
}

// accessLasts gives the duration of the access in words, if the user grants the whole scope.
func (s *Server) accessLasts(p page, f *flow, c *storage.Client) string {
	oauth := s.Config().OAuth
	switch {
	case f.asks("offline_access"):
		return p.T("Access lasts until you take it back, or until the app has not used it for %s.", p.duration(parseLifetime(cmp.Or(c.RefreshTokenLifetime, oauth.RefreshTokenLifetime))))
	case f.asks("online_access"):
		return p.T("Access lasts while you use the app, for a day at most.")
	}
	return p.T("Access lasts for %s.", p.duration(parseLifetime(cmp.Or(c.AccessTokenLifetime, oauth.AccessTokenLifetime))))
}

// flowGone answers where a flow has ended, or was never this browser's.
func (s *Server) flowGone(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, storage.ErrNotFound) {
		s.failUnexpected(w, r, err)
		return
	}
	s.errorPage(w, r, http.StatusBadRequest, "This sign-in has ended or is too old. Go back to the app and begin again.", "")
}

// finish gives the client its code. The launch is used, the flow ended and the code
// stored in one transaction.
func (s *Server) finish(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User, granted smart.Scopes) error {
	location := ""
	err := s.Store.InTx(r.Context(), func(ctx context.Context) (err error) {
		if location, err = s.newCode(ctx, f, c, u, granted); err != nil {
			return err
		}
		if err := s.Store.PutFlow(ctx, f.ID, f.Browser, f, true, s.Now().Add(flowLifetime)); err != nil {
			return err
		}
		if f.Launch != "" {
			return s.Store.UseLaunch(ctx, f.Launch)
		}
		return nil
	})
	switch {
	case errors.Is(err, storage.ErrUsed):
		return newRedirectError("invalid_request", "the launch was used already")
	case errors.Is(err, storage.ErrNotFound):
		s.writeEndedFlow(w, r, f, c)
		return nil
	case err != nil:
		return err
	}
	s.redirectTo(w, r, location)
	return nil
}

// newCode makes a code for the results of the pages, and returns the redirect that brings
// it to the client. f keeps the redirect as its answer.
func (s *Server) newCode(ctx context.Context, f *flow, c *storage.Client, u *storage.User, granted smart.Scopes) (location string, err error) {
	session := &storage.Session{
		Username: u.Username, Subject: u.Username, AuthTime: f.AuthTime, Nonce: f.Nonce, Login: f.Browser, Context: f.Context,
	}
	if !granted.Has("launch") && (f.Launch == "" || f.asks("launch")) {
		// The app receives only the parts of the EHR's context that it was granted.
		session.Context = storage.Context{FHIRUser: f.Context.FHIRUser, ShortState: f.ShortState}
		if granted.Has("launch/patient") || granted.Has("launch/encounter") || granted.HasContext(smart.Patient) {
			session.Context.Patient = f.Context.Patient
		}
		if granted.Has("launch/encounter") {
			session.Context.Encounter = f.Context.Encounter
		}
	}
	if f.Launch != "" && session.Context.Patient != "" {
		s.addStyle(&session.Context)
	}
	ar := fosite.NewAuthorizeRequest()
	ar.Client, ar.State, ar.ResponseTypes = c, f.State, fosite.Arguments{"code"}
	ar.Form = url.Values{"redirect_uri": {f.RedirectURI}}
	if f.Challenge != "" {
		ar.Form.Set("code_challenge", f.Challenge)
		ar.Form.Set("code_challenge_method", "S256")
	}
	if ar.RedirectURI, err = url.Parse(f.RedirectURI); err != nil {
		return "", err
	}
	ar.RequestedScope = strings.Fields(granted.String())
	ar.GrantedScope = ar.RequestedScope
	answer, err := s.provider.NewAuthorizeResponse(ctx, ar, session)
	if err != nil {
		return "", err
	}
	location, err = withValues(f.RedirectURI, url.Values{"code": {answer.GetCode()}, "state": {f.State}, "iss": {s.Issuer}})
	if err != nil {
		return "", err
	}
	return location, s.keepAnswer(f, location, storage.Hash(answer.GetCode()))
}

// asks reports whether the request asks for a scope, which the client may have.
func (f *flow) asks(scope string) bool { return slices.Contains(strings.Fields(f.Scope), scope) }

// authorizePost is POST /auth/authorize: a form of one of our pages, or an
// authorization request (OpenID Connect Core §3.1.2.1).
func (s *Server) authorizePost(w http.ResponseWriter, r *http.Request) {
	if err := parseForm(w, r); err != nil {
		s.errorPage(w, r, http.StatusBadRequest, "The form cannot be read. Go back to the app and begin again.", hintOf(err))
		return
	}
	form := r.PostForm
	if !form.Has("session_id") {
		if sessionCookie(r) == "" && crossOrigin(r) {
			// The cookie of this browser, if any, has not come along (SameSite): another one
			// would end its sign-in. It comes with the same request by GET.
			s.redirectTo(w, r, "/auth/authorize?"+form.Encode())
			return
		}
		s.beginFlow(w, r, form)
		return
	}
	// The consent page has a scope for each checkbox: it alone may be repeated.
	scopes := form["scope"]
	delete(form, "scope")
	if err := checkOnce(form); err != nil {
		s.errorPage(w, r, http.StatusBadRequest, "The form cannot be read. Go back to the app and begin again.", hintOf(err))
		return
	}
	leaveOutEmpty(form)
	form["scope"] = scopes
	ctx := r.Context()
	f := &flow{ID: form.Get("session_id")}
	browser, done, err := s.Store.Flow(ctx, f.ID, f)
	if err != nil {
		s.flowGone(w, r, err)
		return
	}
	f.Browser, f.Cookie = browser, sessionCookie(r)
	again := form.Get("action") == "login" && f.SignedBy.sentBy(form.Get("csrf_token"))
	if f.Cookie == "" || storage.Hash(f.Cookie) != browser && (!again || storage.Hash(f.Cookie) != f.SignedBy.Browser) {
		s.errorPage(w, r, http.StatusForbidden, "This form belongs to another browser, or cookies are off. Go back to the app and begin again.", "")
		return
	}
	if !again && subtle.ConstantTimeCompare([]byte(form.Get("csrf_token")), []byte(f.CSRF)) != 1 {
		s.errorPage(w, r, http.StatusForbidden, "This form was not made by this server. Go back to the app and begin again.", "")
		return
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" {
		s.errorPage(w, r, http.StatusForbidden, "This form was sent from another site. Go back to the app and begin again.", "")
		return
	}
	c, err := s.clientOf(ctx, f)
	if errors.Is(err, storage.ErrNotFound) {
		s.errorPage(w, r, http.StatusBadRequest, "This app is disabled here. Ask the people who run this server.", "")
		return
	}
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if done && !again {
		s.writeEndedFlow(w, r, f, c)
		return
	}
	s.act(w, r, f, c, form)
}

// act processes a form.
func (s *Server) act(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, form url.Values) {
	ctx := r.Context()
	action := form.Get("action")
	if f.Username == "" {
		switch action {
		case "login":
			s.signIn(w, r, f, c, form.Get("username"), form.Get("password"))
		case "deny":
			s.deny(w, r, f, c)
		case "federate":
			s.federate(w, r, f, c, form.Get("provider"))
		default:
			s.advanceFlow(w, r, f, c) // the sign-in first
		}
		return
	}
	u, err := s.Store.User(ctx, f.Username)
	if err != nil || !u.Active {
		if err == nil || errors.Is(err, storage.ErrNotFound) {
			s.advanceFlow(w, r, f, c)
			return
		}
		s.failUnexpected(w, r, err)
		return
	}
	switch action {
	case "authorize":
		if err := s.consent(ctx, f, c, u, form["scope"]); err != nil {
			s.end(w, r, f, c, err)
			return
		}
		s.advanceFlow(w, r, f, c)
	case "deny":
		s.deny(w, r, f, c)
	case "switch":
		s.switchAccount(w, r, f, c)
	case "search":
		text, birthDate := form.Get("q"), form.Get("birthdate")
		if len(text) > 200 || !utf8.ValidString(text) {
			text = ""
		}
		if f.Context.Patient != "" && !f.mayPickAgain() {
			s.advanceFlow(w, r, f, c)
			return
		}
		if err := s.pickPatient(w, r, f, c, u, text, birthDate); err != nil {
			s.failUnexpected(w, r, err)
		}
	case "select_patient":
		s.chooseRecord(w, r, f, c, u, "Patient", form.Get("patient"))
	case "select_encounter":
		if form.Get("encounter") == "" && f.Context.Patient != "" {
			f.NoVisit = true
			s.advanceFlow(w, r, f, c)
			return
		}
		s.chooseRecord(w, r, f, c, u, "Encounter", form.Get("encounter"))
	case "login":
		// The form that has signed the user in, sent once more. Another user does not take
		// over the results of this one.
		if form.Get("username") != f.Username {
			s.errorPage(w, r, http.StatusForbidden, "Somebody else is signed in here. Go back to the app and begin again.", "")
			return
		}
		s.signIn(w, r, f, c, form.Get("username"), form.Get("password"))
	default:
		s.errorPage(w, r, http.StatusBadRequest, "The form cannot be read. Go back to the app and begin again.", "The form has no action that is known here.")
	}
}

// switchAccount ends the sign-in of the browser and asks for another one.
func (s *Server) switchAccount(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) {
	ctx := r.Context()
	if err := s.Store.DeleteLogin(ctx, f.Browser); err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	f.Username, f.AuthTime, f.LoginHint, f.SignedBy, f.Provider = "", time.Time{}, "", nil, nil
	f.Consented, f.Granted, f.NoVisit, f.Picked, f.Context = false, "", false, false, storage.Context{ShortState: f.ShortState}
	if !slices.Contains(strings.Fields(f.Prompt), "login") { // another provider would sign in the same person again
		f.Prompt = strings.TrimSpace(f.Prompt + " login")
	}
	if f.Launch != "" {
		launch, err := s.Store.Launch(ctx, f.Launch)
		if errors.Is(err, storage.ErrNotFound) {
			s.end(w, r, f, c, newRedirectError("invalid_request", "the launch is used or expired"))
			return
		}
		if err != nil {
			s.failUnexpected(w, r, err)
			return
		}
		f.Context = launch
		f.Context.ShortState = f.ShortState
	}
	s.advanceFlow(w, r, f, c)
}

// end ends a flow with an error for the client. Where there is none, a page tells it.
func (s *Server) end(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, err error) {
	if f.Page != "" {
		s.errorPage(w, r, http.StatusForbidden, "This account is disabled. Ask the people who run this server.", "")
		return
	}
	location, err := withValues(f.RedirectURI, s.errorValues(r, f.State, err))
	if err == nil {
		err = s.keepAnswer(f, location, "")
	}
	if err == nil {
		err = s.Store.PutFlow(r.Context(), f.ID, f.Browser, f, true, s.Now().Add(flowLifetime))
	}
	switch {
	case errors.Is(err, storage.ErrNotFound):
		s.writeEndedFlow(w, r, f, c)
	case err != nil:
		s.failUnexpected(w, r, err)
	default:
		s.redirectTo(w, r, location)
	}
}

func (s *Server) deny(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) {
	s.end(w, r, f, c, newRedirectError("access_denied", "the user did not allow it"))
}

// consent grants the ticked scopes, never more than the page offered, and stores them.
func (s *Server) consent(ctx context.Context, f *flow, c *storage.Client, u *storage.User, ticked []string) error {
	if f.Consented {
		return nil
	}
	may := mayGrant(f.Scope, u)
	chosen, err := smart.Parse(strings.Join(ticked, " "))
	if err != nil || !chosen.Within(may) {
		return newRedirectError("invalid_request", "the form grants scopes that were not requested")
	}
	if chosen.Empty() {
		return newRedirectError("access_denied", "the user allowed nothing of the scope")
	}
	chosen = s.chooseParts(may, chosen, u)
	f.Consented, f.Granted = true, chosen.String()
	before, err := s.Store.Consent(ctx, u.Username, c.ID)
	if err != nil {
		return err
	}
	// Scopes that this request does not ask for stay allowed. An unreadable consent allows
	// nothing.
	allowed, _ := smart.Parse(before)
	return s.Store.PutConsent(ctx, u.Username, c.ID, allowed.Decided(may, chosen).String())
}

// failureSubject is how failures of a name are counted, however long it is.
func failureSubject(name string) string { return storage.Hash(strings.ToLower(name)) }

// signIn checks a name and a password. Names that are unknown, disabled or locked
// and wrong passwords look alike and cost the same time.
func (s *Server) signIn(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, name, password string) {
	ctx := r.Context()
	address := s.Proxies.ClientAddress(r).String()
	limits := s.Config().RateLimiting
	lockout := parseLifetime(limits.LockoutDuration)
	most := limits.MaxFailedAttempts
	key := failureSubject(name)
	again := func(status int, problem string) {
		s.audit(r, Event{Kind: EventLogin, Failed: true, User: clipText(name), Client: c.ID, Detail: problem})
		if f.Username != "" {
			s.errorPage(w, r, status, problem, "")
			return
		}
		p := s.newPage(r, "Sign in")
		p.Username, p.Problem = clipText(name), p.T(problem)
		if err := s.showPage(w, r, f, c, status, "login", p); err != nil {
			s.failUnexpected(w, r, err)
		}
	}
	locked := func(wait time.Duration) {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(wait.Seconds()+0.5))))
		again(http.StatusTooManyRequests, "Too many sign-ins with this name have failed. Wait a few minutes, then try again.")
	}
	until, err := s.Store.LockedUntil(ctx, key, address)
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if wait := until.Sub(s.Now()); wait > 0 {
		locked(wait)
		return
	}
	if wait, err := s.failuresWait(ctx, address); err != nil {
		s.failUnexpected(w, r, err)
		return
	} else if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(wait.Seconds()+0.5))))
		again(http.StatusTooManyRequests, "Too many sign-ins have failed. Wait a minute, then try again.")
		return
	}
	// Counted before the password is looked at, so that many at once are not more
	// than one after another.
	here, err := s.Store.CountFailure(ctx, key, address, most, lockout)
	everywhere := 0
	if err == nil {
		everywhere, err = s.Store.CountFailure(ctx, key, "", most*10, lockout)
	}
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if here > most || everywhere > most*10 {
		locked(lockout)
		return
	}
	u, err := s.Store.User(ctx, name)
	if err != nil && !errors.Is(err, storage.ErrNotFound) || strings.ContainsRune(name, 0) {
		if err == nil || strings.ContainsRune(name, 0) {
			again(http.StatusUnauthorized, wrongPassword)
			return
		}
		s.failUnexpected(w, r, err)
		return
	}
	hash := nobody
	if u != nil && u.Password != "" {
		hash = u.Password
	}
	if len(password) > maxPassword {
		password = ""
	}
	ok, err := passwordMatches(ctx, hash, password)
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if !ok || u == nil || !u.Active {
		if err := s.countFailure(ctx, address); err != nil {
			s.failUnexpected(w, r, err)
			return
		}
		again(http.StatusUnauthorized, wrongPassword)
		return
	}
	if err := s.Store.ClearFailures(ctx, key, address); err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	f.Provider = nil
	s.signedIn(w, r, f, c, u)
}

// attemptsPerFailure is how many sign-ins an address may begin for each that may fail.
const attemptsPerFailure = 3

// failureMinute is how failures of all names from an address are counted: in the minute
// that is running.
func (s *Server) failureMinute() (subject string, ends time.Time) {
	minute := s.Now().Truncate(time.Minute)
	return "minute " + minute.UTC().Format(time.RFC3339), minute.Add(time.Minute)
}

// failuresWait is how long an address waits after too many failures of any names.
func (s *Server) failuresWait(ctx context.Context, address string) (time.Duration, error) {
	if s.Config().RateLimiting.Auth == 0 {
		return 0, nil
	}
	subject, _ := s.failureMinute()
	until, err := s.Store.LockedUntil(ctx, subject, address)
	return until.Sub(s.Now()), err
}

// countFailure counts a failed sign-in of an address. It stops a guesser of many names,
// and lets many people sign in from one address.
func (s *Server) countFailure(ctx context.Context, address string) error {
	most := s.Config().RateLimiting.Auth / attemptsPerFailure
	if s.Config().RateLimiting.Auth == 0 {
		return nil
	}
	subject, ends := s.failureMinute()
	return s.Store.CountFailureUntil(ctx, subject, address, max(1, most), ends)
}

const wrongPassword = "The name or the password is wrong."

func clipText(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "")
	}
	return text
}

// signedIn gives the browser a new cookie, which knows who signed in, and goes on.
func (s *Server) signedIn(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User) {
	ctx := r.Context()
	if f.SubjectHint != "" && f.SubjectHint != u.Username {
		s.end(w, r, f, c, newRedirectError("login_required", "another user signed in than id_token_hint names"))
		return
	}
	cookie, now, done := randomText(), s.Now(), false
	err := s.Store.InTx(ctx, func(ctx context.Context) (err error) {
		// A form that is sent twice signs in once: the second request sees the result of
		// the first.
		before := f
		f = &flow{ID: before.ID, Cookie: before.Cookie}
		if f.Browser, done, err = s.Store.LockFlow(ctx, f.ID, f); err != nil {
			return err
		}
		if f.Username != "" {
			cookie, err = f.SignedBy.cookieOf(f, u.Username)
			f.Cookie = cookie
			return err
		}
		if done {
			return nil
		}
		login := storage.Login{ID: storage.Hash(cookie), Username: u.Username, Authenticated: now, Expires: now.Add(flowLifetime)}
		if err := s.Store.PutLogin(ctx, login); err != nil {
			return err
		}
		if err := s.Store.MoveFlows(ctx, f.Browser, login.ID); err != nil {
			return err
		}
		if f.SignedBy, err = newSignInForm(f, cookie); err != nil {
			return err
		}
		f.Browser, f.Cookie, f.Username, f.AuthTime, f.CSRF = login.ID, cookie, u.Username, now, randomText()
		if f.Provider = before.Provider; f.Provider != nil {
			f.Provider.Used = true
		}
		return s.Store.PutFlow(ctx, f.ID, f.Browser, f, false, now.Add(flowLifetime))
	})
	if err != nil {
		s.flowGone(w, r, err)
		return
	}
	http.SetCookie(w, s.cookie(cookie, int(flowLifetime.Seconds())))
	s.audit(r, Event{Kind: EventLogin, User: u.Username, FHIRUser: u.FHIRUser, Client: c.ID})
	if done {
		s.writeEndedFlow(w, r, f, c)
		return
	}
	s.advanceFlow(w, r, f, c)
}
