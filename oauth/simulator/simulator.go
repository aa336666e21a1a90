package simulator

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/web"
)

//go:embed pages
var files embed.FS

var templates = template.Must(template.ParseFS(files, "pages/*.html"))

// AppID is the client id of the app at /launch/app. AppScopes are the scopes that it requests.
const (
	AppID     = "demo-app"
	AppScopes = "openid fhirUser profile launch launch/patient launch/encounter offline_access patient/*.rs user/*.rs"
)

// LaunchPath and CallbackPath are where the app is launched, and answered.
const (
	LaunchPath   = "/launch/app"
	CallbackPath = "/launch/app/callback"
)

// Part serves /launch.
type Part struct {
	Server *oauth.Server
	Logger *slog.Logger
	// Principal is as whom patients and encounters are looked for.
	Principal *access.Principal
}

// Mount adds the paths.
func (p *Part) Mount(m *web.Mux) {
	m.HandleFunc(web.Public, "GET /launch", p.choose)
	m.HandleFunc(web.Public, "POST /launch", p.launch)
	m.HandleFunc(web.Public, "GET "+LaunchPath, p.app)
	m.HandleFunc(web.Public, "GET "+CallbackPath, p.callback)
}

type choice struct {
	Title      string
	Issuer     string
	Clients    []*oauth.ClientAnswer
	Patients   []oauth.Patient
	Patient    string
	Encounters []oauth.Encounter
	Problem    string
	Scopes     string
	Answer     string
	Record     string
}

// choose is GET /launch: app, patient, encounter.
func (p *Part) choose(w http.ResponseWriter, r *http.Request) {
	p.show(w, r, http.StatusOK, r.URL.Query().Get("patient"), "")
}

func (p *Part) show(w http.ResponseWriter, r *http.Request, status int, patient, problem string) {
	ctx := r.Context()
	c := choice{Title: "Launch an app", Issuer: p.Server.FHIRBase, Patient: patient, Problem: problem}
	clients, err := p.Server.Clients(ctx)
	if err == nil {
		c.Clients = slices.DeleteFunc(clients, func(c *oauth.ClientAnswer) bool { return c.LaunchURI == "" || !c.Active })
		c.Patients, err = p.Server.Records.Patients(ctx, p.Principal, "", "")
	}
	if err == nil && patient != "" && slices.ContainsFunc(c.Patients, func(x oauth.Patient) bool { return x.ID == patient }) {
		c.Encounters, err = p.Server.Records.Encounters(ctx, p.Principal, patient)
	}
	if err != nil {
		p.Logger.ErrorContext(ctx, "launch simulator", "error", err)
		c.Problem = "Something went wrong on our side."
	}
	p.render(w, r, status, "choose", c)
}

// launch is POST /launch: it sends the browser to the app, as an EHR does, or, for a
// standalone launch, without a launch context.
func (p *Part) launch(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		p.show(w, r, http.StatusBadRequest, "", "The form cannot be read.")
		return
	}
	form := r.PostForm
	if form.Get("action") == "encounters" {
		p.show(w, r, http.StatusOK, form.Get("patient"), "")
		return
	}
	client, err := p.Server.Client(r.Context(), form.Get("client"))
	if err != nil || client.LaunchURI == "" {
		p.show(w, r, http.StatusBadRequest, form.Get("patient"), "Choose an app.")
		return
	}
	to, err := url.Parse(client.LaunchURI)
	if err != nil {
		p.show(w, r, http.StatusBadRequest, form.Get("patient"), "The app's launchUri cannot be read.")
		return
	}
	q := to.Query()
	q.Set("iss", p.Server.FHIRBase)
	if form.Get("kind") != "standalone" {
		id, err := p.Server.NewLaunch(r.Context(), oauth.LaunchRequest{Patient: form.Get("patient"), Encounter: form.Get("encounter"), ClientID: client.ID})
		if err != nil {
			p.show(w, r, http.StatusBadRequest, form.Get("patient"), err.Error())
			return
		}
		q.Set("launch", id)
	}
	to.RawQuery = q.Encode()
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
}

const cookieName = "launch_app"

func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// app is GET /launch/app: the app is launched, and asks for authorization.
func (p *Part) app(w http.ResponseWriter, r *http.Request) {
	state, verifier := random(), random()
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: state + "." + verifier, Path: LaunchPath, MaxAge: 600, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: strings.HasPrefix(p.Server.Issuer, "https://")})
	sum := sha256.Sum256([]byte(verifier))
	scope := "openid fhirUser patient/*.rs"
	q := url.Values{
		"response_type": {"code"}, "client_id": {AppID}, "redirect_uri": {p.Server.Issuer + CallbackPath}, "state": {state}, "nonce": {random()},
		"aud": {p.Server.FHIRBase}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"},
	}
	if launch := r.URL.Query().Get("launch"); launch != "" {
		q.Set("launch", launch)
		scope += " launch"
	} else {
		scope += " launch/patient"
	}
	q.Set("scope", scope)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, p.Server.Issuer+"/auth/authorize?"+q.Encode(), http.StatusSeeOther)
}

// callback is GET /launch/app/callback: the app gets its code, exchanges it, reads
// the patient, and shows both.
func (p *Part) callback(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c := choice{Title: "The app"}
	if q.Get("error") != "" {
		c.Problem = q.Get("error") + ": " + q.Get("error_description")
		p.render(w, r, http.StatusOK, "app", c)
		return
	}
	cookie, err := r.Cookie(cookieName)
	state, verifier := "", ""
	if err == nil {
		state, verifier, _ = strings.Cut(cookie.Value, ".")
	}
	if state == "" || q.Get("state") != state || q.Get("iss") != p.Server.Issuer {
		c.Problem = "The answer is not to a request of this browser."
		p.render(w, r, http.StatusBadRequest, "app", c)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	answer, err := fetch(ctx, "POST", p.Server.Issuer+"/auth/token", "", url.Values{
		"grant_type": {"authorization_code"}, "code": {q.Get("code")}, "redirect_uri": {p.Server.Issuer + CallbackPath}, "client_id": {AppID}, "code_verifier": {verifier},
	})
	if err != nil {
		c.Problem = "The code was not exchanged: " + err.Error()
		p.render(w, r, http.StatusOK, "app", c)
		return
	}
	var token struct {
		AccessToken string `json:"access_token"`
		Patient     string `json:"patient"`
	}
	_ = json.Unmarshal(answer, &token)
	c.Answer = indented(answer)
	if token.Patient != "" {
		record, err := fetch(ctx, "GET", p.Server.FHIRBase+"/Patient/"+token.Patient, token.AccessToken, nil)
		if err != nil {
			c.Problem = "The patient could not be read: " + err.Error()
		}
		c.Record = indented(record)
	}
	p.render(w, r, http.StatusOK, "app", c)
}

func indented(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}

func fetch(ctx context.Context, method, target, token string, form url.Values) ([]byte, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return b, err
}

func (p *Part) render(w http.ResponseWriter, r *http.Request, status int, name string, c choice) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name+".html", c); err != nil {
		p.Logger.ErrorContext(r.Context(), "launch simulator", "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/html; charset=utf-8")
	// The form leads to any registered app.
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; form-action 'self' http: https:; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
