package oauth

import (
	"crypto/subtle"
	"errors"
	"net/http"
	"time"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// A form may be sent twice: by a double click, or by a reload after its answer was lost.
// Browsers show the answer to the last request. So that answer is the same page or the same
// redirect, with the same code: a form never makes two valid codes. By RFC 6749 §4.1.2 a
// code that is used twice revokes its tokens, so a redirect with a used code is not
// repeated; for the length of a double click the browser gets a new code instead.
const (
	answerLifetime = time.Minute      // of a redirect, and of its code
	doubleClick    = 10 * time.Second // within which a code that was used is replaced
)

// signInForm is the form that has signed the user of a flow in, or the way back from a
// provider.
type signInForm struct {
	Browser string `json:"browser"` // hash of the cookie that came with it
	CSRF    string `json:"csrf"`
	Cookie  []byte `json:"cookie"` // that it was answered with, sealed with the one that came
}

func newSignInForm(f *flow, cookie string) (*signInForm, error) {
	sealed, err := sealSecret(f.Cookie, []byte(cookie))
	return &signInForm{Browser: f.Browser, CSRF: f.CSRF, Cookie: sealed}, err
}

// sentBy reports whether it is the form that has this token.
func (i *signInForm) sentBy(csrf string) bool {
	return i != nil && subtle.ConstantTimeCompare([]byte(i.CSRF), []byte(csrf)) == 1
}

// cookieOf is the cookie that a flow belongs to since its user has signed in. A browser
// that did not get it gets it by the same form, from the user whose password came along.
// It fails with ErrNotFound for others.
func (i *signInForm) cookieOf(f *flow, username string) (string, error) {
	switch {
	case f.Username != username:
		return "", storage.ErrNotFound
	case storage.Hash(f.Cookie) == f.Browser:
		return f.Cookie, nil
	case i == nil || storage.Hash(f.Cookie) != i.Browser:
		return "", storage.ErrNotFound
	}
	cookie, err := unsealSecret(f.Cookie, i.Cookie)
	if err != nil || storage.Hash(string(cookie)) != f.Browser {
		return "", storage.ErrNotFound
	}
	return string(cookie), nil
}

// keepAnswer keeps in a flow the redirect that ends it, for the browser alone.
func (s *Server) keepAnswer(f *flow, location, code string) (err error) {
	f.Answer, err = sealSecret(f.Cookie, []byte(location))
	f.Code = code
	if f.Answered.IsZero() {
		f.Answered = s.Now()
	}
	return err
}

// writeEndedFlow answers a form whose flow has ended as the flow was answered.
func (s *Server) writeEndedFlow(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client) {
	ctx := r.Context()
	now := &flow{ID: f.ID, Cookie: f.Cookie}
	browser, done, err := s.Store.Flow(ctx, f.ID, now)
	if err != nil || !done || storage.Hash(now.Cookie) != browser || s.Now().Sub(now.Answered) > answerLifetime {
		if err == nil {
			err = storage.ErrNotFound
		}
		s.flowGone(w, r, err)
		return
	}
	now.Browser = browser
	location, err := unsealSecret(now.Cookie, now.Answer)
	if err != nil {
		s.flowGone(w, r, storage.ErrNotFound)
		return
	}
	if now.Code != "" {
		used, err := s.Store.CodeUsed(ctx, now.Code)
		if err == nil && used {
			location, err = s.anotherCode(r, now, c)
		}
		if err != nil {
			s.flowGone(w, r, err)
			return
		}
	}
	s.redirectTo(w, r, string(location))
}

// anotherCode replaces a code that was used between two clicks. It fails with
// ErrNotFound where that is long ago, or the user is no longer signed in.
func (s *Server) anotherCode(r *http.Request, f *flow, c *storage.Client) ([]byte, error) {
	ctx := r.Context()
	if s.Now().Sub(f.Answered) > doubleClick {
		return nil, storage.ErrNotFound
	}
	login, err := s.Store.Login(ctx, f.Browser)
	if err != nil {
		return nil, err
	}
	u, err := s.Store.User(ctx, f.Username)
	if err != nil {
		return nil, err
	}
	granted, err := smart.Parse(f.Granted)
	if err != nil || !u.Active || login.Username != u.Username || !granted.Within(mayGrant(f.Scope, u)) {
		return nil, errors.Join(err, storage.ErrNotFound)
	}
	location, err := s.newCode(ctx, f, c, u, granted)
	if err != nil {
		return nil, err
	}
	return []byte(location), s.Store.AnswerFlow(ctx, f.ID, f)
}
