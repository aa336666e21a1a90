package oauth

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"kiln/oauth/smart"
	"kiln/oauth/storage"
)

//go:embed pages
var pageFiles embed.FS

var templates = template.Must(template.ParseFS(pageFiles, "pages/*.html"))

// page is what a template shows.
type page struct {
	Title      string
	SessionID  string
	CSRF       string
	Client     *storage.Client
	User       *storage.User
	Signed     string // name of who signed in
	Username   string // in the login form
	Problem    string
	Message    string
	Providers  []string
	Scopes     []scopeText
	Query      string
	BirthDate  string
	BadDate    string // what is wrong with BirthDate
	Patients   []Patient
	Encounters []Encounter

	redirect string // where the form may lead
}

// AppName is what the client is called to people.
func (p page) AppName() string {
	if p.Client.Name != "" {
		return p.Client.Name
	}
	return p.Client.ID
}

// Who is what the user is called.
func (p page) Who() string {
	if p.User != nil && p.User.Name != "" {
		return p.User.Name
	}
	return p.Signed
}

// render writes a page. Nothing on it comes from elsewhere, no script runs, nobody
// may frame it; forms lead here and, by redirect, to the client.
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
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action "+action+"; frame-ancestors 'none'; base-uri 'none'")
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

// errorPage tells the user what is wrong where nothing can be redirected.
func (s *Server) errorPage(w http.ResponseWriter, r *http.Request, status int, problem string) {
	s.render(w, r, status, "error", page{Title: "This did not work", Problem: problem})
}

// unexpected logs an error and tells the user that there was one.
func (s *Server) unexpected(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser has gone
	}
	s.Logger.ErrorContext(r.Context(), "authorize", "path", r.URL.Path, "error", err)
	if s.unavailable(err) {
		w.Header().Set("Retry-After", "1")
		s.errorPage(w, r, http.StatusServiceUnavailable, "The database does not answer. Try again in a moment.")
		return
	}
	s.errorPage(w, r, http.StatusInternalServerError, "Something went wrong on our side. Try again.")
}

func (s *Server) style(w http.ResponseWriter, _ *http.Request) {
	b, err := pageFiles.ReadFile("pages/style.css")
	if err != nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(b)
}

// scopeText is a scope and what it means in words.
type scopeText struct{ Scope, Words string }

var otherWords = map[string]string{
	"openid":           "Know who you are",
	"fhirUser":         "Know which record is your own",
	"profile":          "Read your name and e-mail address",
	"launch":           "Know what you were working on when you opened the app",
	"launch/patient":   "Know which patient you choose",
	"launch/encounter": "Know which encounter you choose",
	"launch/context":   "Open other apps with a context",
	"offline_access":   "Keep access when you are not there, until you take it back",
	"online_access":    "Keep access while you use the app, for a day at most",
	"admin":            "Administer this server",
}

// describeScopes says in words what each scope means.
func describeScopes(s smart.Scopes) []scopeText {
	var out []scopeText
	for _, o := range s.Other {
		words := otherWords[o]
		if words == "" {
			words = o
		}
		out = append(out, scopeText{o, words})
	}
	for _, r := range s.Resource {
		var verbs []string
		for _, v := range []struct {
			p    smart.Permissions
			word string
		}{{smart.Read, "read"}, {smart.Search, "search"}, {smart.Create, "add"}, {smart.Update, "change"}, {smart.Delete, "delete"}} {
			if r.Permissions&v.p != 0 {
				verbs = append(verbs, v.word)
			}
		}
		words := verbs[0]
		if n := len(verbs); n > 1 {
			words = strings.Join(verbs[:n-1], ", ") + " and " + verbs[n-1]
		}
		words = strings.ToUpper(words[:1]) + words[1:]
		what := "everything"
		if r.Type != "*" {
			what = "the " + spaced(r.Type) + " records"
		}
		words += " " + what
		switch r.Context {
		case smart.Patient:
			words += " of the patient"
		case smart.User:
			words += " that you may see"
		}
		if r.Search != "" {
			if search, err := url.QueryUnescape(r.Search); err == nil {
				words += ", only where " + search
			}
		}
		out = append(out, scopeText{r.String(), words})
	}
	return out
}

// spaced writes MedicationRequest as medication request.
func spaced(typ string) string {
	var b strings.Builder
	for i, c := range typ {
		if i > 0 && c >= 'A' && c <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}
