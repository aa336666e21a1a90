package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"kiln/gen/db"
)

// Login is a browser that signed in.
type Login struct {
	ID            string // hash of the cookie
	Username      string
	Authenticated time.Time
	Expires       time.Time
}

// PutLogin stores a sign-in.
func (s *Store) PutLogin(ctx context.Context, l Login) error {
	return s.q.PutOAuthLogin(ctx, db.PutOAuthLoginParams(l))
}

// Login returns a sign-in that has not expired.
func (s *Store) Login(ctx context.Context, id string) (Login, error) {
	l, err := s.q.OAuthLogin(ctx, id)
	if err := wrapNotFound(err, "read sign-in"); err != nil {
		return Login{}, err
	}
	if !l.Expires.After(s.Now()) {
		return Login{}, ErrNotFound
	}
	return Login(l), nil
}

// DeleteLogin ends a sign-in. Its tokens stay good.
func (s *Store) DeleteLogin(ctx context.Context, id string) error {
	return s.q.DeleteOAuthLogin(ctx, id)
}

// CreateFlow stores an authorization request on its way through the pages.
func (s *Store) CreateFlow(ctx context.Context, id, browser string, state any, expires time.Time) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return s.q.InsertOAuthFlow(ctx, db.InsertOAuthFlowParams{ID: id, Browser: browser, State: b, Expires: expires})
}

// Flow reads the state of a flow, whose browser it is, and whether it has ended.
func (s *Store) Flow(ctx context.Context, id string, state any) (browser string, done bool, err error) {
	f, err := s.q.OAuthFlow(ctx, id)
	return s.flow(f, err, state)
}

// LockFlow is Flow, and keeps others who lock it waiting until the transaction ends.
func (s *Store) LockFlow(ctx context.Context, id string, state any) (browser string, done bool, err error) {
	f, err := s.q.LockOAuthFlow(ctx, id)
	return s.flow(f, err, state)
}

func (s *Store) flow(f db.OauthFlow, err error, state any) (string, bool, error) {
	if err := wrapNotFound(err, "read flow"); err != nil {
		return "", false, err
	}
	if !f.Expires.After(s.Now()) {
		return "", false, ErrNotFound
	}
	if err := json.Unmarshal(f.State, state); err != nil {
		return "", false, fmt.Errorf("read flow: %w", err)
	}
	return f.Browser, f.Done, nil
}

// AnswerFlow changes the state of a flow that has ended.
func (s *Store) AnswerFlow(ctx context.Context, id string, state any) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	n, err := s.q.AnswerOAuthFlow(ctx, db.AnswerOAuthFlowParams{ID: id, State: b})
	return expectOneRow(n, err, "update flow")
}

// PutFlow changes a flow; done ends it, once: it fails with ErrNotFound where
// another request has.
func (s *Store) PutFlow(ctx context.Context, id, browser string, state any, done bool, expires time.Time) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	n, err := s.q.UpdateOAuthFlow(ctx, db.UpdateOAuthFlowParams{ID: id, Browser: browser, State: b, Done: done, Expires: expires})
	return expectOneRow(n, err, "update flow")
}

// MoveFlows gives the flows of a browser its new cookie.
func (s *Store) MoveFlows(ctx context.Context, from, to string) error {
	return s.q.MoveOAuthFlows(ctx, db.MoveOAuthFlowsParams{Browser: from, NewBrowser: to})
}

// CreateLaunch stores a launch context under the hash of its identifier.
func (s *Store) CreateLaunch(ctx context.Context, id string, c Context, expires time.Time) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.q.InsertOAuthLaunch(ctx, db.InsertOAuthLaunchParams{ID: id, Context: b, Expires: expires})
}

// Launch returns a launch context that was not used and has not expired.
func (s *Store) Launch(ctx context.Context, id string) (Context, error) {
	l, err := s.q.OAuthLaunch(ctx, id)
	if err := wrapNotFound(err, "read launch"); err != nil {
		return Context{}, err
	}
	if l.Used || !l.Expires.After(s.Now()) {
		return Context{}, ErrNotFound
	}
	var c Context
	return c, json.Unmarshal(l.Context, &c)
}

// UseLaunch uses a launch; it fails with ErrUsed for all but one.
func (s *Store) UseLaunch(ctx context.Context, id string) error {
	n, err := s.q.UseOAuthLaunch(ctx, id)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrUsed
	}
	return nil
}
