package server

import (
	"kiln/oauth"
	"kiln/server/ratelimit"
)

// limits are the rates that the limiter holds clients to.
func limits(c oauth.RateLimitingConfig) ratelimit.Limits {
	return ratelimit.Limits{Requests: c.Requests, Anonymous: c.Anonymous, Token: c.Token, TokenHour: c.TokenHour, Authorization: c.Auth,
		Searches: c.Searches, Bundles: c.Bundles, Streams: c.Streams}
}
