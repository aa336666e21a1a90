package server

import "kiln/oauth"

// AuthConfig is about who may do what; its keys, defaults and checks stand with the
// authorization server.
type AuthConfig = oauth.Config

// checkAuth refuses an authorization server that clients could not use safely.
func (c Config) checkAuth() error {
	if c.Auth.Check() != nil {
		return nil // Check says so
	}
	return c.Auth.CheckServe(oauth.IssuerOf(c.Auth, c.Server.BaseURL, c.Server.Listen))
}
