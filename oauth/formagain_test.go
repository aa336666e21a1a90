package oauth_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// copied is a browser with the cookies that one has now.
func (b *browser) copied() *browser {
	return &browser{t: b.t, cookies: maps.Clone(b.cookies), header: b.header}
}

func codeOf(t *testing.T, a *answer) string {
	t.Helper()
	u, err := url.Parse(a.header.Get("Location"))
	if err != nil || a.status != 303 || u.Query().Get("code") == "" || u.Query().Get("state") != state {
		t.Fatalf("no code: %d, Location %q, %s", a.status, a.header.Get("Location"), a.body)
	}
	return u.Query().Get("code")
}

// A form that is sent again is answered as before: browsers show the answer to the last
// request. A form never gives two codes that are good.
// Contract, Authorization 3: a form that is sent twice.
func TestFormsSentTwice(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	s.user(map[string]any{"username": "other", "name": "Other"})
	s.client(map[string]any{"clientId": "ours", "redirectUris": []string{callback}, "scopes": []string{appScopes}, "trusted": true})
	login := func(b *browser, changes ...string) (page *answer, form url.Values) {
		page = s.authorize(b, s.request(append([]string{"scope", "openid user/*.rs", "prompt", "login"}, changes...)...))
		return page, page.form(t, "login", "username", "doctor", "password", password)
	}
	consent := func(b *browser) url.Values {
		_, form := login(b, "prompt", "login consent")
		page := s.submit(b, form)
		form = page.form(t, "authorize")
		form["scope"] = page.field("scope")
		return form
	}

	t.Run("the last form gives the same redirect, whose code is good once", func(t *testing.T) {
		b := newBrowser(t)
		form := consent(b)
		first, second := s.submit(b, form), s.submit(b, form)
		if code := codeOf(t, first); codeOf(t, second) != code || s.exchange(code).status != 200 {
			t.Errorf("%s, then %s", first.header.Get("Location"), second.header.Get("Location"))
		}
	})
	t.Run("a code that was used between the clicks is replaced, and what it gave stays", func(t *testing.T) {
		b := newBrowser(t)
		form := consent(b)
		code := codeOf(t, s.submit(b, form))
		first := s.exchange(code)
		again := codeOf(t, s.submit(b, form))
		if again == code || codeOf(t, s.submit(b, form)) != again {
			t.Errorf("codes %s and %s", code, again)
		}
		second := s.exchange(again)
		if first.status != 200 || second.status != 200 || second.text("scope") != first.text("scope") {
			t.Errorf("tokens: %d and %d %s", first.status, second.status, second.body)
		}
		if s.use(first.text("access_token")) != 200 || s.use(second.text("access_token")) != 200 {
			t.Error("the tokens of the codes are not good")
		}
		s.pass(11 * time.Second)
		if a := s.submit(b, form); a.status != 400 || a.header.Get("Location") != "" {
			t.Errorf("long after the code was used: %d %s", a.status, a.header.Get("Location"))
		}
	})
	t.Run("not for another browser, another form or later", func(t *testing.T) {
		b := newBrowser(t)
		form := consent(b)
		codeOf(t, s.submit(b, form))
		for name, tt := range map[string]struct {
			browser *browser
			csrf    string
		}{
			"no cookie":        {newBrowser(t), form.Get("csrf_token")},
			"another cookie":   {&browser{t: t, cookies: map[string]string{"oauth_session": strings.Repeat("x", 43)}}, form.Get("csrf_token")},
			"another csrf":     {b, strings.Repeat("x", 43)},
			"no csrf":          {b, ""},
			"a signed-out one": {func() *browser { c := b.copied(); s.signOut(c); return c }(), form.Get("csrf_token")},
		} {
			v := maps.Clone(form)
			v.Set("csrf_token", tt.csrf)
			if a := s.submit(tt.browser, v); a.status < 400 || a.header.Get("Location") != "" {
				t.Errorf("%s: %d %s", name, a.status, a.header.Get("Location"))
			}
		}
		s.pass(61 * time.Second)
		if a := s.submit(b, form); a.status != 400 || a.header.Get("Location") != "" {
			t.Errorf("after the code has expired: %d %s", a.status, a.header.Get("Location"))
		}
	})
	t.Run("a used code is replaced for nobody who signed out or was disabled", func(t *testing.T) {
		b := newBrowser(t)
		form := consent(b)
		s.exchange(codeOf(t, s.submit(b, form)))
		c := b.copied()
		s.signOut(c)
		if a := s.submit(b, form); a.status != 400 {
			t.Errorf("signed out: %d %s", a.status, a.header.Get("Location"))
		}
	})
	t.Run("deny", func(t *testing.T) {
		b := newBrowser(t)
		page, _ := login(b)
		form := page.form(t, "deny")
		first, second := s.submit(b, form), s.submit(b, form)
		if to := second.header.Get("Location"); !strings.Contains(to, "error=access_denied") || to != first.header.Get("Location") {
			t.Errorf("%s, then %s", first.header.Get("Location"), to)
		}
		if a := s.submit(b, page.form(t, "login", "username", "doctor", "password", password)); !strings.Contains(a.header.Get("Location"), "error=access_denied") {
			t.Errorf("signing in after all: %d %s", a.status, a.header.Get("Location"))
		}
	})
	t.Run("the sign-in, with the cookie of before and with the new one", func(t *testing.T) {
		b := newBrowser(t)
		_, form := login(b, "prompt", "login consent")
		old := b.copied()
		first := s.submit(b, form)
		third := s.submit(b, form) // the page loaded again
		second := s.submit(old, form)
		for name, a := range map[string]*answer{"first": first, "second": second, "third": third} {
			if a.status != 200 || a.form(t, "x").Get("csrf_token") != first.form(t, "x").Get("csrf_token") || len(a.field("scope")) != 2 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		if old.cookies["oauth_session"] != b.cookies["oauth_session"] {
			t.Error("the cookies are two")
		}
		form = second.form(t, "authorize")
		form["scope"] = second.field("scope")
		if code := codeOf(t, s.submit(old, form)); s.exchange(code).status != 200 {
			t.Error("the code is not good")
		}
	})
	t.Run("the sign-in as the last form", func(t *testing.T) {
		b := newBrowser(t)
		_, form := login(b, "client_id", "ours")
		old := b.copied()
		other := maps.Clone(form)
		other.Set("username", "other")
		wrong := maps.Clone(form)
		wrong.Set("password", "not the password")
		code := codeOf(t, s.submit(b, form))
		for name, v := range map[string]url.Values{"another user": other, "a wrong password": wrong} {
			if a := s.submit(old.copied(), v); a.status < 400 || a.header.Get("Location") != "" || len(a.header["Set-Cookie"]) > 0 {
				t.Errorf("%s: %d %s", name, a.status, a.header.Get("Location"))
			}
		}
		if again := codeOf(t, s.submit(old, form)); again != code || s.exchange(code, "client_id", "ours").status != 200 {
			t.Errorf("codes %s and %s", code, again)
		}
		if old.cookies["oauth_session"] != b.cookies["oauth_session"] {
			t.Error("the cookies are two")
		}
	})
	t.Run("somebody else does not take over what was settled", func(t *testing.T) {
		b := newBrowser(t)
		_, form := login(b, "scope", "openid user/*.rs launch/patient", "prompt", "login consent")
		picker := s.submit(b, form)
		if a := s.submit(b, picker.form(t, "login", "username", "other", "password", password)); a.status != 403 || a.header.Get("Location") != "" {
			t.Errorf("another user signs in at the picker: %d %s", a.status, a.body)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		for name, client := range map[string]string{"sign-in": "ours", "consent": "app"} {
			b := newBrowser(t)
			var form url.Values
			if client == "ours" {
				_, form = login(b, "client_id", client)
			} else {
				form = consent(b)
			}
			answers := make([]*answer, 4) // fewer than the sign-ins that may fail
			browsers := make([]*browser, len(answers))
			var all sync.WaitGroup
			for i := range answers {
				browsers[i] = b.copied()
				all.Go(func() { answers[i] = s.submit(browsers[i], form) })
			}
			all.Wait()
			code := codeOf(t, answers[0])
			for i, a := range answers {
				if codeOf(t, a) != code || browsers[i].cookies["oauth_session"] != browsers[0].cookies["oauth_session"] {
					t.Errorf("%s: another code, or another cookie: %s", name, a.header.Get("Location"))
				}
			}
			if a := s.exchange(code, "client_id", client); a.status != 200 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
	})
	t.Run("a launch", func(t *testing.T) {
		key, err := s.server.CreateAPIKey(t.Context(), "ehr", "launch/context", "")
		if err != nil {
			t.Fatal(err)
		}
		launch := s.call("POST", "/auth/launch", key.Key, `{"patient": "p1"}`).text("launch")
		b := newBrowser(t)
		_, form := login(b, "client_id", "ours", "scope", "launch patient/*.rs", "launch", launch)
		code := codeOf(t, s.submit(b, form))
		if again := codeOf(t, s.submit(b, form)); again != code {
			t.Errorf("codes %s and %s", code, again)
		}
		if a := s.exchange(code, "client_id", "ours"); a.text("patient") != "p1" {
			t.Errorf("tokens: %s", a.body)
		}
		if a := s.exchange(codeOf(t, s.submit(b, form)), "client_id", "ours"); a.text("patient") != "p1" {
			t.Errorf("tokens of the second code: %s", a.body)
		}
	})
}

// signOut ends the sign-in of a browser.
func (s *service) signOut(b *browser) {
	b.t.Helper()
	if a := b.do("POST", s.base+"/auth/logout", url.Values{}); a.status != 200 {
		b.t.Fatalf("sign out: %d %s", a.status, a.body)
	}
}

// A double click in a real browser, whose first answer never comes: the second leads on.
// Contract, Authorization 3: a form that is sent twice.
func TestDoubleClickInABrowser(t *testing.T) {
	t.Parallel()
	c := openChromium(t)
	s := start(t)
	s.app()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!DOCTYPE html><link rel="icon" href="data:,"><p id="arrived">The app.</p>`)
	}))
	defer app.Close()
	// The answer to the first of two requests with one form waits until the second has come.
	var mu sync.Mutex
	sent := make(map[string]chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			s.mux.ServeHTTP(w, r)
			return
		}
		_ = r.ParseForm()
		key := r.PostForm.Get("csrf_token") + r.PostForm.Get("action")
		mu.Lock()
		second, twice := sent[key]
		switch {
		case !twice:
			second = make(chan struct{})
			sent[key] = second
		case second != nil:
			close(second)
			sent[key] = nil
		}
		mu.Unlock()
		if twice {
			s.mux.ServeHTTP(w, r)
			return
		}
		kept := httptest.NewRecorder()
		s.mux.ServeHTTP(kept, r)
		select {
		case <-second: // nobody sees the first answer
		case <-time.After(20 * time.Second): // a browser that is slow sends the form once
			maps.Copy(w.Header(), kept.Header())
			w.WriteHeader(kept.Code)
			_, _ = w.Write(kept.Body.Bytes())
		}
	}))
	defer front.Close()
	callback := app.URL + "/cb"
	request := s.request("redirect_uri", callback, "scope", "openid user/*.rs")
	twice := func(selector, arrives string) {
		t.Helper()
		script[bool](c, fmt.Sprintf(`[0, 500].forEach(ms => setTimeout(() => document.querySelector(%q).click(), ms)), true`, selector))
		c.run(chromedp.WaitVisible(chromedp.CSS(arrives)))
	}
	c.run(chromedp.Navigate(front.URL+"/auth/authorize?"+request.Encode()), chromedp.WaitVisible(chromedp.CSS("#username")))
	c.run(chromedp.KeyEvent("doctor"))
	c.tab("#password")
	c.run(chromedp.KeyEvent(password))
	twice("button[value=login]", "[name=scope]")
	twice("button[value=authorize]", "#arrived")
	to, err := url.Parse(script[string](c, "location.href"))
	if err != nil || to.Query().Get("code") == "" {
		t.Fatalf("sent to %s", to)
	}
	if a := s.exchange(to.Query().Get("code"), "redirect_uri", callback); a.status != 200 {
		t.Errorf("tokens: %d %s", a.status, a.body)
	}
}
