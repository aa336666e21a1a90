package storage

import (
	"context"
	"fmt"
	"time"

	"kiln/gen/db"
)

// ConsoleSession is a browser that has signed in to the console.
type ConsoleSession struct {
	ID         string // hash of the cookie
	Grant      string
	Username   string
	Started    time.Time
	LastActive time.Time
	Address    string
	Scope      string // of the grant
	User       *User
}

// ConsoleSessionsParams choose sessions: of a user, "" for all, active since, started after. Most bounds the list.
type ConsoleSessionsParams struct {
	Username                string
	IdleSince, StartedAfter time.Time
	Most                    int
}

// CreateConsoleSession stores a session with its grant, which ends with a sign-in, "" for none.
func (s *Store) CreateConsoleSession(ctx context.Context, c ConsoleSession, client, login string, expires time.Time) error {
	if err := s.q.InsertOAuthGrant(ctx, db.InsertOAuthGrantParams{
		ID: c.Grant, ClientID: client, Username: c.Username, Login: login, Scope: c.Scope, Context: []byte("{}"), Created: s.Now(), Expires: expires,
	}); err != nil {
		return fmt.Errorf("create grant: %w", err)
	}
	return s.q.AddConsoleSession(ctx, db.AddConsoleSessionParams{
		ID: c.ID, GrantID: c.Grant, Username: c.Username, Started: c.Started, LastActive: c.LastActive, Address: c.Address,
	})
}

// FindConsoleSession returns a session whose grant is good and whose user is active. It fails with ErrNotFound.
func (s *Store) FindConsoleSession(ctx context.Context, id string) (ConsoleSession, error) {
	row, err := s.q.FindConsoleSession(ctx, id)
	if err != nil {
		return ConsoleSession{}, wrapNotFound(err, "read session")
	}
	u, err := readUser(db.OauthUser{Username: row.Username, Profile: row.Profile, Active: true})
	return ConsoleSession{row.ID, row.GrantID, row.Username, row.Started, row.LastActive, row.Address, row.Scope, u}, err
}

// ConsoleSessions lists sessions, newest first, without scope and user.
func (s *Store) ConsoleSessions(ctx context.Context, p ConsoleSessionsParams) ([]ConsoleSession, error) {
	rows, err := s.q.ListConsoleSessions(ctx, db.ListConsoleSessionsParams{IdleSince: p.IdleSince, StartedAfter: p.StartedAfter, Username: p.Username, Most: int32(p.Most)})
	if err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	out := make([]ConsoleSession, len(rows))
	for i, row := range rows {
		out[i] = ConsoleSession{ID: row.ID, Grant: row.GrantID, Username: row.Username, Started: row.Started, LastActive: row.LastActive, Address: row.Address}
	}
	return out, nil
}

// TouchConsoleSession notes that a session is in use.
func (s *Store) TouchConsoleSession(ctx context.Context, id string) error {
	return s.q.TouchConsoleSession(ctx, db.TouchConsoleSessionParams{ID: id, Now: s.Now()})
}

// EndConsoleSession ends a session with its grant, and the sign-in that the grant came from. It fails with ErrNotFound.
func (s *Store) EndConsoleSession(ctx context.Context, grant string) (username string, err error) {
	users, err := s.q.DeleteConsoleSession(ctx, grant)
	if err := expectOneRow(int64(len(users)), err, "end session"); err != nil {
		return "", err
	}
	login, err := s.q.OAuthGrantLogin(ctx, grant)
	if err != nil {
		return "", wrapNotFound(err, "read grant")
	}
	if login != "" {
		if _, err := s.RevokeLogin(ctx, login); err != nil {
			return "", err
		}
	}
	return users[0], s.RevokeRefreshToken(ctx, grant)
}

// SweepConsoleSessions deletes sessions that are over.
func (s *Store) SweepConsoleSessions(ctx context.Context, idleSince, startedBefore time.Time) error {
	grants, err := s.q.SweepConsoleSessions(ctx, db.SweepConsoleSessionsParams{IdleSince: idleSince, StartedBefore: startedBefore})
	if err != nil || len(grants) == 0 {
		return err
	}
	return s.revoke(ctx, grants)
}
