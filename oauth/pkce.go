package oauth

import "regexp"

var challengeSyntax = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`) // of S256: 32 bytes

// checkChallenge checks the parameters of PKCE. RFC 7636 §4.4.1.
func (a *authorizationRequest) checkChallenge() error {
	f, s, ctx := a.flow, a.server, a.r.Context()
	f.Challenge = a.values.Get("code_challenge")
	method := a.values.Get("code_challenge_method")
	switch {
	case f.Challenge == "" && a.client.PKCERequired:
		return newRedirectError("invalid_request", "code_challenge is missing: this client must use PKCE with S256")
	case f.Challenge == "" && method != "":
		return newRedirectError("invalid_request", "code_challenge_method without code_challenge")
	case f.Challenge != "" && method != "S256":
		return newRedirectError("invalid_request", "code_challenge_method must be S256")
	case f.Challenge != "" && !challengeSyntax.MatchString(f.Challenge):
		return newRedirectError("invalid_request", "code_challenge must be 43 base64url characters, the SHA-256 of the verifier")
	case f.Challenge == "":
		s.Logger.WarnContext(ctx, "a confidential client authorizes without PKCE", "client", a.client.ID)
	case stateBits(f.State) < minStateBits:
		// The challenge protects the code from injection, as the state does: RFC 9700 §4.7.1.
		f.ShortState = true
		s.Logger.WarnContext(ctx, "a client sends a state of less than 122 bits", "client", a.client.ID, "name", a.client.Name, "bits", int(stateBits(f.State)))
	}
	return nil
}
