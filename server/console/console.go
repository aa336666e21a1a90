package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/web"
)

//go:embed *.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// Settings are what can change while the server runs.
type Settings struct {
	Enabled bool
	Times   oauth.ConsoleTimes
	Name    string // of the server
	Explain bool   // _explain is answered
	BaseURL string // server.base_url
	MaxBody int64
}

// Console serves the pages. Its fields are set before Mount.
type Console struct {
	// Auth keeps the sessions; nil without authorization.
	Auth Authorization
	// Key is the key of the console, the same on every server of the database.
	Key      []byte
	Service  *interaction.Service
	Registry func() *search.Registry
	DB       func() *db.Queries
	Settings func() Settings
	Ready    func(ctx context.Context) error
	Streams  *web.OpenStreams
	Metrics  prometheus.Registerer
	Version  string
	Logger   *slog.Logger

	mux            *web.Mux
	seal           *sealer
	templates      map[string]*template.Template // by language
	assets         map[string]asset              // by address
	addresses      map[string]string             // by name
	requests       *prometheus.CounterVec
	duration       *prometheus.HistogramVec
	routes         []route
	resourceRoutes []resourceRoute
	storage        storageStats
	// background is a context that ends with the server.
	background context.Context
}

// asset is a file that never changes under its address.
type asset struct {
	contentType string
	body        []byte
}

// visit is one request of a browser.
type visit struct {
	c         *Console
	x         *web.Exchange
	r         *http.Request
	principal *access.Principal // access.Open without authorization, nil where nobody is signed in
	session   *oauth.ConsoleVisit
	cookie    string
	screen    string // in the metrics
	Language  string
	status    int    // of the page
	Said      string // status message
	Failed    bool   // it is about a failure
	Alerts    []string
	form      url.Values
	files     map[string][]*multipart.FileHeader
}

func (c *Console) now() time.Time { return time.Now() }

func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// Mount serves the console.
func (c *Console) Mount(m *web.Mux) {
	c.mux, c.background = m, context.Background()
	var err error
	if c.seal, err = newSealer(c.Key); err != nil {
		panic(err) // a key of 32 bytes always does
	}
	c.loadAssets()
	c.routes, c.resourceRoutes = screenRoutes(), resourceRoutes()
	c.templates = make(map[string]*template.Template)
	for _, language := range languages {
		c.templates[language] = template.Must(template.New("").Funcs(template.FuncMap{
			"T":      func(text string, values ...any) string { return translate(language, text, values...) },
			"number": func(n int64) string { return formatNumber(language, n) },
			"asset":  func(name string) string { return c.addresses[name] },
			"escape": escape,
			"join":   strings.Join,
		}).ParseFS(templateFiles, "*.html"))
	}
	c.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "service_console_requests_total", Help: "Pages of the console answered, by screen and HTTP status."}, []string{"screen", "status"})
	c.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "service_console_request_duration_seconds", Help: "Time to answer a page of the console, by screen.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"screen"})
	sessions := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "service_console_sessions", Help: "Open sessions of the console, on all servers."}, c.countSessions)
	c.Metrics.MustRegister(c.requests, c.duration, sessions)
	m.Pages = c
	group := web.Group{Name: "console", Token: web.NoToken, Unlimited: true}
	m.HandleFunc(group, "/console", c.serve)
	m.HandleFunc(group, "/console/", c.serve)
}

// countSessions is how many sessions are open, 0 where that cannot be found out.
func (c *Console) countSessions() float64 {
	if c.Auth == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	list, err := c.Auth.Sessions(ctx, "", c.Settings().Times)
	if err != nil {
		return 0
	}
	return float64(len(list))
}

// loadAssets gives each asset an address with the hash of its content.
func (c *Console) loadAssets() {
	c.assets, c.addresses = make(map[string]asset), make(map[string]string)
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	files, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range files {
		body, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		address := fmt.Sprintf("/console/assets/%x/%s", sum[:8], f.Name())
		c.assets[address] = asset{types[f.Name()[strings.LastIndexByte(f.Name(), '.'):]], body}
		c.addresses[f.Name()] = address
	}
}

// serve answers a request below /console.
func (c *Console) serve(w http.ResponseWriter, r *http.Request) {
	x := web.ExchangeOf(w)
	if !c.Settings().Enabled {
		x.Fail(r, outcome.New(outcome.CodeNotFound, "the console is off (console.enabled)"))
		return
	}
	if a, ok := c.assets[r.URL.Path]; ok && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		x.Route = "console asset"
		x.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		x.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		x.SendContent(r, http.StatusOK, a.contentType, a.body)
		return
	}
	c.visit(x, r, nil)
}

// visit answers with the page of the path, or with the page of show.
func (c *Console) visit(x *web.Exchange, r *http.Request, show func(v *visit) error) {
	v := &visit{c: c, x: x, r: r, status: http.StatusOK, screen: "error", Language: languageOf(r)}
	began := time.Now()
	defer func() {
		status := x.Status()
		c.requests.WithLabelValues(v.screen, fmt.Sprint(status)).Inc()
		c.duration.WithLabelValues(v.screen).Observe(time.Since(began).Seconds())
	}()
	x.Route = "console"
	h := x.Header()
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			h.Del(name)
		}
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Add("Vary", "Cookie, Accept-Language")
	if c.Auth == nil {
		v.principal = access.Open
		if !c.hostAllowed(r) {
			v.fail(&refusal{status: http.StatusMisdirectedRequest, issues: []outcome.Issue{{Code: outcome.CodeInvalid, Diagnostics: v.T("This server is not reached by the name %s.", clip(r.Host))}}})
			return
		}
	}
	if show == nil {
		show = (*visit).route
	}
	if err := v.admit(show); err != nil {
		v.fail(err)
	}
}

// admit finds the session, checks a form, and shows the page.
func (v *visit) admit(show func(v *visit) error) error {
	live := strings.HasPrefix(v.r.URL.Path, "/console/live") || v.r.Header.Get("X-Kiln-Live") != ""
	if ok, err := v.enter(!live); !ok {
		return err
	}
	for _, purpose := range []string{"said", "failed"} {
		if text, ok := v.c.seal.open(purpose, readCookie(v.r, saidCookie)); ok && v.r.Method == http.MethodGet {
			v.Said, v.Failed = text, purpose == "failed"
			v.setCookie(saidCookie, "", -1)
		}
	}
	switch v.r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if err := v.readForm(); err != nil {
			return err
		}
	default:
		v.x.Header().Set("Allow", "GET, HEAD, POST")
		return &refusal{status: http.StatusMethodNotAllowed, issues: []outcome.Issue{{Diagnostics: v.T("This method is not allowed here.")}}}
	}
	return show(v)
}

// maxForm bounds a form without files, in bytes.
const maxForm = 16 << 20

// readForm reads a form, and refuses one that the console has not made for this session.
func (v *visit) readForm() error {
	if site := v.r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return errForm
	}
	if new(http.CrossOriginProtection).Check(v.r) != nil || v.foreignOrigin() {
		return errForm
	}
	limit := min(v.c.Settings().MaxBody, maxForm)
	if strings.HasPrefix(v.r.Header.Get("Content-Type"), "multipart/form-data") {
		limit = v.c.Settings().MaxBody + 1<<20
	}
	v.r.Body = http.MaxBytesReader(v.x, v.r.Body, limit)
	err := v.r.ParseMultipartForm(8 << 20)
	if errors.Is(err, http.ErrNotMultipart) {
		err = v.r.ParseForm()
	}
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return &refusal{status: http.StatusRequestEntityTooLarge, issues: []outcome.Issue{{Diagnostics: v.T("The form is too long.")}}}
	case err != nil:
		return &refusal{status: http.StatusBadRequest, issues: []outcome.Issue{{Diagnostics: v.T("The form cannot be read.")}}}
	}
	v.form = v.r.PostForm
	if v.r.MultipartForm != nil {
		v.files = v.r.MultipartForm.File
		v.form = v.r.MultipartForm.Value
	}
	if !v.signedIn() && v.r.URL.Path != "/console/language" {
		return errSignIn
	}
	if subtle.ConstantTimeCompare([]byte(v.form.Get("csrf_token")), []byte(v.CSRF())) != 1 {
		return errForm
	}
	return nil
}

// errSignIn is a form without a session.
var errSignIn = errors.New("sign in")

// foreignOrigin reports whether the header Origin names another origin than the one that the browser reaches.
func (v *visit) foreignOrigin() bool {
	origin := v.r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return true
	}
	return u.Host != v.r.Host && (v.c.Auth == nil || origin != v.c.Auth.ConsoleOrigin(v.r))
}

// hostAllowed reports whether a request without authorization names this server: by loopback, or by server.base_url.
// Another name is one that a page of another site has given this address (DNS rebinding).
func (c *Console) hostAllowed(r *http.Request) bool {
	host := hostOf(r.Host)
	if host == "localhost" {
		return true
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return true
	}
	u, err := url.Parse(c.Settings().BaseURL)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

// hostOf is the host of a header Host without its port.
func hostOf(text string) string {
	host, _, err := net.SplitHostPort(text)
	if err != nil {
		host = text
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// redirect sends the browser to another page.
func (v *visit) redirect(to string) {
	v.x.Header().Set("Location", to)
	v.x.WriteHeader(http.StatusSeeOther)
}

// done ends an action: the next page has a status message.
func (v *visit) done(to, message string) error {
	return v.say("said", to, message)
}

// failed is done for an action that was carried out and came to nothing.
func (v *visit) failed(to, message string) error {
	return v.say("failed", to, message)
}

// say leads to a page with a message for a purpose of the seal.
func (v *visit) say(purpose, to, message string) error {
	v.setCookie(saidCookie, v.c.seal.seal(purpose, message), 60)
	v.redirect(to)
	return nil
}

// T is a text in the language of the page.
func (v *visit) T(text string, values ...any) string { return translate(v.Language, text, values...) }

// page is the data of a template.
type page struct {
	*visit
	Title   string // of the document, in the language of the page
	Heading string
	Data    any
}

// show answers with a page of a template. title and heading are in the language of the page; heading "" is the title.
func (v *visit) show(name, title, heading string, data any) error {
	return v.showScreen(name, name, title, heading, data)
}

// showScreen is show for a screen that has the template of another one.
func (v *visit) showScreen(screen, name, title, heading string, data any) error {
	if heading == "" {
		heading = title
	}
	v.screen = screen
	var b bytes.Buffer
	if err := v.c.templates[v.Language].ExecuteTemplate(&b, name+".html", page{v, title, heading, data}); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	v.x.Header().Set("Content-Language", v.Language)
	v.x.SendContent(v.r, v.status, "text/html; charset=utf-8", b.Bytes())
	return nil
}

// refuse shows the words of a refusal on the page that is shown next, with its status. Other errors are returned.
func (v *visit) refuse(err error) error {
	var e *refusal
	if !errors.As(err, &e) || e.status == http.StatusUnauthorized || e.status >= 500 && len(e.issues) == 0 {
		return err
	}
	if e.status == http.StatusServiceUnavailable && v.r.Method != http.MethodPost {
		return err // a page that tries again; the text of a form stays
	}
	v.status, v.Alerts = e.status, e.words()
	if e.retry != "" {
		v.x.Header().Set("Retry-After", e.retry)
	}
	return nil
}

// problem is an error page with words in English, which are translated.
func (v *visit) problem(status int, words string) error {
	return &refusal{status: status, issues: []outcome.Issue{{Diagnostics: v.T(words)}}}
}

// fail answers with an error page.
func (v *visit) fail(err error) {
	if v.x.Status() != 0 {
		return
	}
	if v.r.Context().Err() != nil {
		return // the browser has gone
	}
	type problem struct {
		Words   []string
		Request string
		Retry   bool
		SignIn  string
		Scope   string
	}
	heading := v.T("This did not work")
	data := problem{Request: v.x.ID}
	var e *refusal
	known, isOutcome := outcome.From(err)
	switch {
	case errors.Is(err, errSignIn):
		v.status, heading, data.SignIn = http.StatusUnauthorized, v.T("Sign in again"), "/console"
		data.Words = []string{v.T("Your session has ended. What you have sent is not stored.")}
	case errors.Is(err, errForm):
		v.status, data.Words = http.StatusForbidden, []string{v.T("This form was not made by this server, or is too old. Load the page again.")}
	case errors.As(err, &e):
		v.status, data.Words = e.status, e.words()
		if e.retry != "" {
			v.x.Header().Set("Retry-After", e.retry)
		}
	case isOutcome:
		v.status, data.Words = known.HTTPStatus(), []string{known.Error()}
	default:
		v.c.Logger.ErrorContext(v.r.Context(), "console", slog.String("request", v.x.ID), slog.String("screen", v.screen), slog.Any("error", err))
		v.status, data.Words = http.StatusInternalServerError, []string{v.T("Something went wrong on our side. Try again.")}
	}
	switch v.status {
	case http.StatusNotFound, http.StatusGone:
		heading = v.T("Not found")
	case http.StatusForbidden:
		if !errors.Is(err, errForm) {
			heading = v.T("Not allowed")
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		data.Retry = true
		if v.x.Header().Get("Retry-After") == "" {
			v.x.Header().Set("Retry-After", "1")
		}
	}
	if err := v.show("error", heading, "", data); err != nil {
		v.c.Logger.ErrorContext(v.r.Context(), "console", slog.Any("error", err))
		v.x.Fail(v.r, err)
	}
	v.screen = "error"
}

// notAllowed is the page of a screen that needs the scope admin.
func (v *visit) notAllowed() error {
	return v.problem(http.StatusForbidden, "This page needs the scope admin.")
}

// Admin reports whether the person administers the server.
func (v *visit) Admin() bool {
	return v.principal != nil && (v.principal.IsOpen() || v.principal.Admin)
}

// Open reports that authorization is off.
func (v *visit) Open() bool { return v.c.Auth == nil }

// SignedIn is the name of the person, "" where nobody is signed in.
func (v *visit) SignedIn() string {
	if v.session == nil {
		return ""
	}
	return v.session.Name
}

// Server is the name of the server.
func (v *visit) Server() string { return v.c.Settings().Name }

// Version is the version of the software.
func (v *visit) Version() string { return v.c.Version }

// Person reports whether the page is one of a person who uses the console.
func (v *visit) Person() bool { return v.signedIn() }

// Languages lists the languages of the pages.
func (v *visit) Languages() []string { return languages }

// Here is the address of the page.
func (v *visit) Here() string {
	if v.r.Method != http.MethodGet || v.r.URL.Path != "/console" && !strings.HasPrefix(v.r.URL.Path, "/console/") {
		return "/console"
	}
	return v.r.URL.RequestURI()
}

// navItem is a link of the navigation Main.
type navItem struct {
	Name, Path string
	Current    bool
}

// Nav is the navigation Main: the screens that the person may open.
func (v *visit) Nav() []navItem {
	current := v.screen
	if current == "confirm" { // a page about a thing of another screen
		current, _, _ = strings.Cut(strings.TrimPrefix(v.r.URL.Path, "/console/"), "/")
		if v.c.Service.Model.Resources[current] != nil {
			current = "resource"
		}
	}
	var out []navItem
	for _, s := range mainScreens {
		if s.admin && !v.Admin() {
			continue
		}
		out = append(out, navItem{s.name, s.path, slices.Contains(s.screens, current)})
	}
	return out
}

// clip shortens input that a page repeats.
func clip(s string) string { return outcome.Clip(s) }

// fileOf reads the file of a form, nil where there is none.
func (v *visit) fileOf(name string) ([]byte, error) {
	list := v.files[name]
	if len(list) == 0 || list[0].Size == 0 {
		return nil, nil
	}
	f, err := list[0].Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
