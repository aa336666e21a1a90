package oauth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kiln/oauth/storage"
	"kiln/server/outcome"
	"kiln/server/smart"
)

// grantsPath is the page "Apps with access to my data".
const grantsPath = "/auth/grants"

// How many grants /admin/grants lists at once.
const (
	defaultGrants = 100
	maxGrants     = 1000
)

// GrantAnswer is the access of a client to a user's data, as /admin/grants shows it.
type GrantAnswer struct {
	ID       string     `json:"id"`
	User     string     `json:"user"`
	Client   string     `json:"client"`
	Scopes   []string   `json:"scopes"`
	Since    time.Time  `json:"since"`
	LastUsed *time.Time `json:"lastUsed"` // when a token was last given; null where none was
}

// GrantList is a page of grants; Next is the address of the next one, null on the last.
type GrantList struct {
	Grants []GrantAnswer `json:"grants"`
	Next   *string       `json:"next"`
}

// GrantQuery chooses grants: of a user, of a client, after a grant; "" chooses all.
// Count bounds a page; 0 is 100.
type GrantQuery struct {
	User, Client, After string
	Count               int
}

// grantID names the grant of a user to a client.
func grantID(username, client string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(username + "\x00" + client))
}

// readGrantID is the user and the client of a grant.
func readGrantID(id string) (username, client string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(b), "\x00")
}

// Grants lists the access of clients to users' data, by user and client.
func (a *Admin) Grants(ctx context.Context, q GrantQuery) (*GrantList, error) {
	if q.Count == 0 {
		q.Count = defaultGrants
	}
	if q.Count < 1 || q.Count > maxGrants {
		return nil, invalidRequest("count is %d: expected 1 to %d", q.Count, maxGrants)
	}
	p := storage.AccessParams{Username: q.User, ClientID: q.Client, Most: q.Count + 1}
	if q.After != "" {
		var ok bool
		if p.AfterUsername, p.AfterClientID, ok = readGrantID(q.After); !ok {
			return nil, invalidRequest("after is %q: expected the id of a grant", q.After)
		}
	}
	list, err := a.Store.Access(ctx, p)
	if err != nil {
		return nil, err
	}
	out := &GrantList{Grants: []GrantAnswer{}}
	for i, x := range list {
		if i == q.Count {
			next := url.Values{"after": {out.Grants[i-1].ID}, "count": {strconv.Itoa(q.Count)}}
			for name, value := range map[string]string{"user": q.User, "client": q.Client} {
				if value != "" {
					next.Set(name, value)
				}
			}
			address := "/admin/grants?" + next.Encode()
			out.Next = &address
			break
		}
		out.Grants = append(out.Grants, showGrant(x))
	}
	return out, nil
}

func showGrant(x storage.Access) GrantAnswer {
	g := GrantAnswer{ID: grantID(x.Username, x.ClientID), User: x.Username, Client: x.ClientID, Scopes: []string{}, Since: x.Since}
	if scopes, err := smart.Parse(x.Scope); err == nil {
		g.Scopes = append(g.Scopes, strings.Fields(scopes.String())...)
	}
	if x.Used.Unix() > 0 {
		g.LastUsed = &x.Used
	}
	return g
}

// RevokeGrant withdraws a grant by its id: its tokens and the stored consent end on
// every server.
func (a *Admin) RevokeGrant(ctx context.Context, id string) error {
	username, client, ok := readGrantID(id)
	if !ok {
		return noSuch(storage.ErrNotFound, "grant", id)
	}
	return a.WithdrawAccess(ctx, username, client)
}

// WithdrawAccess ends the access of a client to a user's data.
func (a *Admin) WithdrawAccess(ctx context.Context, username, client string) error {
	err := a.Store.WithdrawAccess(ctx, username, client)
	if errors.Is(err, storage.ErrNotFound) {
		return outcome.New(outcome.CodeNotFound, "the user %q has allowed nothing to the client %q", username, client)
	}
	a.announceChange(ctx)
	return err
}

// listGrants is GET /admin/grants.
func (s *Server) listGrants(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	query := GrantQuery{User: q.Get("user"), Client: q.Get("client"), After: q.Get("after")}
	if q.Has("count") {
		n, err := strconv.Atoi(q.Get("count"))
		if err != nil {
			s.fail(w, r, invalidRequest("count is %q: expected a number", q.Get("count")))
			return
		}
		if query.Count = n; n == 0 {
			query.Count = -1
		}
	}
	list, err := s.Grants(r.Context(), query)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

// goToGrants is GET /auth/.
func (s *Server) goToGrants(w http.ResponseWriter, r *http.Request) { s.redirectTo(w, r, grantsPath) }

// grantRow is an app on the page.
type grantRow struct {
	ID, Name string
	Host     string // that gets the data
	May      []scopeText
	Since    string
}

// saidCookie names the app whose access has just ended, for the page that follows.
const saidCookie = "auth_withdrawn"

// grantsPage is GET /auth/grants: the apps that the person has allowed something to.
func (s *Server) grantsPage(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	u, _, err := s.visitor(r)
	if errors.Is(err, storage.ErrNotFound) {
		s.signInHere(w, r, grantsPath)
		return
	}
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	list, err := s.Store.Access(ctx, storage.AccessParams{Username: u.Username, Most: maxGrants})
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	p := s.newPage(r, "Apps with access to my data")
	p.User, p.CSRF = u, formToken(r)
	for _, x := range list {
		row := grantRow{ID: x.ClientID, Name: x.ClientID, Since: x.Since.UTC().Format(time.DateOnly)}
		if c, err := s.Store.Client(ctx, x.ClientID); err == nil {
			row.Name = nameOf(c)
			if len(c.RedirectURIs) > 0 {
				row.Host = p.dataHost(c.RedirectURIs[0])
			}
		} else if !errors.Is(err, storage.ErrNotFound) {
			s.failUnexpected(w, r, err)
			return
		}
		if scopes, err := smart.Parse(x.Scope); err == nil {
			row.May = p.describeScopes(scopes)
		}
		p.Grants = append(p.Grants, row)
	}
	if c, err := r.Cookie(saidCookie); err == nil {
		if name, err := base64.RawURLEncoding.DecodeString(c.Value); err == nil {
			p.Withdrawn = clipText(string(name))
		}
		http.SetCookie(w, s.saidCookie("", -1))
	}
	s.render(w, r, http.StatusOK, "grants", p)
}

func (s *Server) saidCookie(name string, age int) *http.Cookie {
	c := s.cookie(base64.RawURLEncoding.EncodeToString([]byte(name)), age)
	c.Name = saidCookie
	return c
}

// withdrawGrant is POST /auth/grants: the person ends the access of an app.
func (s *Server) withdrawGrant(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if err := readForm(w, r); err != nil {
		s.errorPage(w, r, http.StatusBadRequest, "The form cannot be read.", hintOf(err))
		return
	}
	u, login, err := s.visitor(r)
	if errors.Is(err, storage.ErrNotFound) {
		s.signInHere(w, r, grantsPath)
		return
	}
	if err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("csrf_token")), []byte(formToken(r))) != 1 || crossOrigin(r) {
		s.errorPage(w, r, http.StatusForbidden, "This form was not made by this server, or is too old. Load the page again.", "")
		return
	}
	client := r.PostForm.Get("client")
	name := client
	if c, err := s.Store.Client(ctx, client); err == nil {
		name = nameOf(c)
	}
	// A second click finds nothing left: the access has ended.
	if err := s.WithdrawAccess(ctx, u.Username, client); err != nil && !outcome.Is(err, outcome.CodeNotFound) {
		s.failUnexpected(w, r, err)
		return
	}
	s.audit(r, Event{Kind: EventRevoke, User: login.Username, FHIRUser: u.FHIRUser, Client: client})
	http.SetCookie(w, s.saidCookie(clipText(name), 60))
	s.redirectTo(w, r, grantsPath)
}

// visitor is who has signed in with this browser. It fails with ErrNotFound where nobody
// has.
func (s *Server) visitor(r *http.Request) (*storage.User, storage.Login, error) {
	login, err := s.login(r)
	if err != nil {
		return nil, login, err
	}
	u, err := s.Store.User(r.Context(), login.Username)
	if err == nil && !u.Active {
		err = storage.ErrNotFound
	}
	return u, login, err
}

// formToken is the csrf_token of a page that belongs to no authorization request. Only
// the browser that has the cookie and this server can make it.
func formToken(r *http.Request) string {
	mac := hmac.New(sha256.New, []byte(sessionCookie(r)))
	mac.Write([]byte("csrf_token"))
	return hex.EncodeToString(mac.Sum(nil))
}

// signInHere shows the sign-in page, which leads back to a page of ours.
func (s *Server) signInHere(w http.ResponseWriter, r *http.Request, path string) {
	cookie := sessionCookie(r)
	if cookie == "" {
		cookie = randomText()
	}
	http.SetCookie(w, s.cookie(cookie, int(flowLifetime.Seconds())))
	f := &flow{ID: randomText(), CSRF: randomText(), Browser: storage.Hash(cookie), Cookie: cookie, Page: path}
	if err := s.Store.CreateFlow(r.Context(), f.ID, f.Browser, f, s.Now().Add(flowLifetime)); err != nil {
		s.failUnexpected(w, r, err)
		return
	}
	s.advanceFlow(w, r, f, s.ownClient())
}

// ownClient stands for this server in a sign-in that no app has asked for.
func (s *Server) ownClient() *storage.Client {
	return &storage.Client{Name: s.Config().Pages.name(), Active: true}
}

// clientOf is the client of a flow. It fails with ErrNotFound where it is disabled.
func (s *Server) clientOf(ctx context.Context, f *flow) (*storage.Client, error) {
	if f.Page != "" {
		return s.ownClient(), nil
	}
	c, err := s.Store.Client(ctx, f.ClientID)
	if err == nil && !c.Active {
		return nil, storage.ErrNotFound
	}
	return c, err
}

// finishPage ends the sign-in of a page of ours, and leads to it.
func (s *Server) finishPage(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) error {
	if err := s.keepAnswer(f, f.Page, ""); err != nil {
		return err
	}
	err := s.Store.PutFlow(r.Context(), f.ID, f.Browser, f, true, s.Now().Add(flowLifetime))
	if errors.Is(err, storage.ErrNotFound) {
		s.writeEndedFlow(w, r, f, c)
		return nil
	}
	if err == nil {
		s.redirectTo(w, r, f.Page)
	}
	return err
}
