package oauth

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"kiln/oauth/storage"
)

//go:embed pages
var pageFiles embed.FS

var templates = template.Must(template.ParseFS(pageFiles, "pages/*.html"))

// page is the data of a template.
type page struct {
	Title      string
	Language   string // en or de
	Server     string // auth.pages.name
	Logo       bool
	Style      string // address of the style sheet
	RequestID  string
	SessionID  string
	CSRF       string
	Client     *storage.Client
	OwnPage    bool   // the sign-in leads to a page of ours, not to an app
	Host       string // that gets the data, "" where it stays on this server
	Lasts      string
	User       *storage.User
	Signed     string // name of who signed in
	Username   string // in the login form
	Problem    string
	Detail     string // of the problem, for the app's makers
	Message    string
	Providers  []string
	Scopes     []scopeText
	Patient    *Patient // whose record the consent is about
	Query      string
	BirthDate  string
	BadDate    string // the fault of BirthDate
	Patients   []Patient
	Encounters []Encounter
	Grants     []grantRow
	Withdrawn  string // app whose access has just ended
	Leave      logoutRequest
	Again      string // where a person signs in again

	redirect string // where the form may lead
}

// newPage returns a page in the language of a request. Callers give its title in English.
func (s *Server) newPage(r *http.Request, title string) page {
	c := s.Config().Pages
	return page{
		Title: title, Language: languageOf(r), Server: c.name(), Logo: s.logo.Load() != nil, Style: s.styleAddress(),
		RequestID: r.Header.Get("X-Request-Id"), Again: s.signInAgain(),
	}
}

// signInAgain returns the address at which a person signs in who has signed out: the console, where there is one.
func (s *Server) signInAgain() string {
	if s.options.Console != nil {
		return "/console"
	}
	return "/auth/"
}

// AppName is the name of the client for people.
func (p page) AppName() string { return nameOf(p.Client) }

func nameOf(c *storage.Client) string {
	if c.Name != "" {
		return c.Name
	}
	return c.ID
}

// Who is the user's name for people.
func (p page) Who() string {
	if p.User != nil && p.User.Name != "" {
		return p.User.Name
	}
	if p.User != nil {
		return p.User.Username
	}
	return p.Signed
}

// About is the name of the consent's patient.
func (p page) About() string {
	if p.Patient.Name != "" {
		return p.Patient.Name
	}
	return p.T("Patient %s", p.Patient.ID)
}

// dataHost says where a redirect URI brings the data: the host of a web app, or that the
// app runs on the person's own device.
func (p page) dataHost(redirectURI string) string {
	u, err := url.Parse(redirectURI)
	switch {
	case err != nil:
		return ""
	case u.Scheme != "http" && u.Scheme != "https":
		return p.T("an app on this device (%s)", u.Scheme)
	case loopbackHost(u.Hostname()):
		return p.T("an app on this device (%s)", u.Host)
	}
	return u.Host
}

// render writes a page. Nothing on it comes from elsewhere, no script runs, nobody
// may frame it; forms lead here and, by redirect, to the client. An app may have opened it
// in a window of its own, which Cross-Origin-Opener-Policy would cut off from the app.
func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name+".html", p); err != nil {
		s.Logger.ErrorContext(r.Context(), "page", "name", name, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	action := "'self'"
	if o := originOf(p.redirect); o != "" {
		action += " " + o
	}
	if name == "login" {
		for _, o := range s.others.Load().providers {
			if origin := originOf(o.Issuer); origin != "" {
				action += " " + origin
			}
		}
	}
	h := w.Header()
	noStore(w)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Language", p.Language)
	h.Add("Vary", "Accept-Language")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'; form-action "+action+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Del("Access-Control-Allow-Origin")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// originOf is a URI as form-action names it: an origin, or a scheme alone for one of an
// app's own, and for an IPv6 address, which no host-source can say: Content Security
// Policy 3 §2.3.1.
func originOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || strings.ContainsAny(u.Host, " ;,'\"") {
		return ""
	}
	if (u.Scheme == "http" || u.Scheme == "https") && !strings.Contains(u.Host, "[") {
		return u.Scheme + "://" + u.Host
	}
	return u.Scheme + ":"
}

// errorPage shows an error where nothing can be redirected: the problem in words for the
// person, and the detail for the app's makers.
func (s *Server) errorPage(w http.ResponseWriter, r *http.Request, status int, problem, detail string, values ...any) {
	p := s.newPage(r, "This did not work")
	p.Problem, p.Detail = p.T(problem, values...), detail
	s.render(w, r, status, "error", p)
}

// failUnexpected logs an error and tells the user that there was one.
func (s *Server) failUnexpected(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser has gone
	}
	s.Logger.ErrorContext(r.Context(), "authorize", "path", r.URL.Path, "error", err)
	if s.isUnavailable(err) {
		w.Header().Set("Retry-After", "1")
		s.errorPage(w, r, http.StatusServiceUnavailable, "The database does not answer. Try again in a moment.", "")
		return
	}
	s.errorPage(w, r, http.StatusInternalServerError, "Something went wrong on our side. Try again.", "")
}
