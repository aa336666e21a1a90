package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/oauth/storage"
	"kiln/server/smart"
)

// Config is the section auth of the configuration. Lifetimes are texts such as 1h
// and 90d.
type Config struct {
	Enabled              bool   `koanf:"enabled" restart:"" doc:"require access tokens"`
	Issuer               string `koanf:"issuer" restart:"" doc:"URL of the authorization server; empty is server.base_url without /fhir, or the listen address"`
	AllowHTTP            bool   `koanf:"allow_http" doc:"allow an http issuer that is not on loopback"`
	AllowPrivateNetworks bool   `koanf:"allow_private_networks" doc:"fetch keys and discovery documents from private addresses too"`

	OAuth        GrantConfig        `koanf:"oauth"`
	Smart        SmartConfig        `koanf:"smart"`
	Signing      SigningConfig      `koanf:"signing"`
	RateLimiting RateLimitingConfig `koanf:"rate_limiting"`
	Pages        PagesConfig        `koanf:"pages"`
	Policy       PolicyConfig       `koanf:"policy"`
	Federation   FederationConfig   `koanf:"federation"`
	Audit        AuditConfig        `koanf:"audit"`
	Bootstrap    BootstrapConfig    `koanf:"bootstrap"`
}

// GrantConfig is about grants.
type GrantConfig struct {
	AccessTokenLifetime  string   `koanf:"access_token_lifetime" doc:"how long an access token is good"`
	RefreshTokenLifetime string   `koanf:"refresh_token_lifetime" doc:"how long a refresh token is good, from its last use"`
	GrantTypes           []string `koanf:"grant_types" doc:"grant types served"`
	StrictState          bool     `koanf:"strict_state" doc:"require a state of 122 bits of clients with PKCE too"`
}

// SmartConfig is about SMART App Launch.
type SmartConfig struct {
	LaunchEHREnabled           bool     `koanf:"launch_ehr_enabled" doc:"launches from an EHR"`
	LaunchStandaloneEnabled    bool     `koanf:"launch_standalone_enabled" doc:"launches by the app itself, with a patient picker"`
	PublicClientsAllowed       bool     `koanf:"public_clients_allowed" doc:"clients that cannot keep a secret"`
	OpenIDEnabled              bool     `koanf:"openid_enabled" doc:"ID tokens and /auth/userinfo"`
	SupportedScopes            []string `koanf:"supported_scopes" doc:"scopes that discovery lists and that can be granted; empty is every one"`
	DynamicRegistrationEnabled bool     `koanf:"dynamic_registration_enabled" doc:"clients register themselves at /auth/register"`
}

// SigningConfig is about the keys that sign tokens.
type SigningConfig struct {
	Algorithm       string `koanf:"algorithm" doc:"of access tokens: RS256, RS384, ES256 or ES384"`
	KeyRotationDays int    `koanf:"key_rotation_days" doc:"age at which a key is replaced"`
	EncryptionKey   string `koanf:"encryption_key" secret:"yes" restart:"" file:"" doc:"seals the private keys in the database"`
}

// RateLimitingConfig bounds the requests and the failed sign-ins of one client; 0 is no
// bound.
type RateLimitingConfig struct {
	Requests  int `koanf:"requests_per_minute" doc:"requests of each client and user; of each address while authorization is off; 0 is off"`
	Anonymous int `koanf:"anonymous_requests_per_minute" doc:"requests without a valid token, of each address; 0 is off"`
	Token     int `koanf:"token_requests_per_minute" doc:"requests to the token endpoint, of each client and address; 0 is off"`
	TokenHour int `koanf:"token_requests_per_hour" doc:"the same in an hour"`
	Auth      int `koanf:"auth_requests_per_minute" doc:"sign-ins begun, registrations and revocations, of each address; ten times as many forms, a third as many failed sign-ins; 0 is off"`
	Searches  int `koanf:"concurrent_searches" doc:"searches of one client at the same time, on each server; 0 is off"`
	Bundles   int `koanf:"concurrent_bundles" doc:"batches and transactions of one client at the same time, on each server; 0 is off"`
	Streams   int `koanf:"concurrent_streams" doc:"event streams and WebSockets of one client at the same time, on each server; 0 is off"`

	MaxFailedAttempts int    `koanf:"max_failed_attempts" doc:"failures that lock a name from an address; ten times as many lock it from anywhere"`
	LockoutDuration   string `koanf:"lockout_duration" doc:"how long it is locked"`
}

// PolicyConfig is about access policies.
type PolicyConfig struct {
	DefaultDeny bool `koanf:"default_deny" doc:"deny requests that no policy allows"`
}

// FederationConfig is about other authorization servers.
type FederationConfig struct {
	Providers      []map[string]any `koanf:"providers" secret:"yes" doc:"OpenID providers to sign in with: name, issuer, client_id, client_secret, scopes, claims, auto_provision"`
	TrustedIssuers []map[string]any `koanf:"trusted_issuers" doc:"authorization servers whose access tokens are taken: issuer, jwks_uri, audience, scopes, claims"`
}

// AuditConfig says which events become AuditEvents.
type AuditConfig struct {
	LogSuccessfulAuth  bool `koanf:"log_successful_auth" doc:"record sign-ins"`
	LogFailedAuth      bool `koanf:"log_failed_auth" doc:"record failed sign-ins"`
	LogTokenOperations bool `koanf:"log_token_operations" doc:"record tokens given and revoked"`
	LogAccessDecisions bool `koanf:"log_access_decisions" doc:"record every decision on a request"`
}

// BootstrapConfig are clients and users that are made if they are absent: fields as in
// /admin/clients and /admin/users. Existing ones stay as they are.
type BootstrapConfig struct {
	Clients []map[string]any `koanf:"clients" secret:"yes" doc:"clients to make where they are absent"`
	Users   []map[string]any `koanf:"users" secret:"yes" doc:"users to make where they are absent"`
}

// DefaultConfig is the section of a server that nothing was configured for.
func DefaultConfig() Config {
	return Config{
		OAuth: GrantConfig{
			AccessTokenLifetime: "1h", RefreshTokenLifetime: "90d",
			GrantTypes: []string{grantCode, grantClientCredentials, grantRefreshToken},
		},
		Smart:        SmartConfig{LaunchEHREnabled: true, LaunchStandaloneEnabled: true, PublicClientsAllowed: true, OpenIDEnabled: true},
		Signing:      SigningConfig{Algorithm: "RS384", KeyRotationDays: 90},
		RateLimiting: RateLimitingConfig{Token: 60, TokenHour: 1000, Auth: 300, MaxFailedAttempts: 5, LockoutDuration: "5m"},
		Pages:        PagesConfig{Name: "Kiln", Parts: defaultParts()},
		Audit:        AuditConfig{LogSuccessfulAuth: true, LogFailedAuth: true, LogTokenOperations: true},
	}
}

// The grant types. RFC 6749.
const (
	grantCode              = "authorization_code"
	grantClientCredentials = "client_credentials"
	grantRefreshToken      = "refresh_token"
)

var (
	grantTypes        = []string{grantCode, grantClientCredentials, grantRefreshToken}
	signingAlgorithms = []string{"RS256", "RS384", "ES256", "ES384"}
)

// Check refuses values that no server can run with; the error has a line for each of
// them, which names the key.
func (c Config) Check() error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for _, lifetime := range [][2]string{
		{"auth.oauth.access_token_lifetime", c.OAuth.AccessTokenLifetime},
		{"auth.oauth.refresh_token_lifetime", c.OAuth.RefreshTokenLifetime},
		{"auth.rate_limiting.lockout_duration", c.RateLimiting.LockoutDuration},
	} {
		if d, err := storage.ParseLifetime(lifetime[1]); err != nil || d == 0 {
			refuse("%s is %q: expected a lifetime such as 30s, 10m, 1h or 90d", lifetime[0], lifetime[1])
		} else if d < minLifetime {
			refuse("%s is %s: expected a second at least", lifetime[0], lifetime[1])
		}
	}
	if parseLifetime(c.OAuth.AccessTokenLifetime) > maxAccess {
		refuse("auth.oauth.access_token_lifetime is %s: expected a year at most", c.OAuth.AccessTokenLifetime)
	}
	if len(c.OAuth.GrantTypes) == 0 {
		refuse("auth.oauth.grant_types is empty: expected some of %s", strings.Join(grantTypes, ", "))
	}
	for _, g := range c.OAuth.GrantTypes {
		if !slices.Contains(grantTypes, g) {
			refuse("auth.oauth.grant_types has %q: expected %s", g, strings.Join(grantTypes, ", "))
		}
	}
	if !slices.Contains(signingAlgorithms, c.Signing.Algorithm) {
		refuse("auth.signing.algorithm is %q: expected %s", c.Signing.Algorithm, strings.Join(signingAlgorithms, ", "))
	}
	if c.Signing.KeyRotationDays < 2 {
		refuse("auth.signing.key_rotation_days is %d: expected 2 or more", c.Signing.KeyRotationDays)
	}
	for _, limit := range []struct {
		key string
		n   int
	}{
		{"requests_per_minute", c.RateLimiting.Requests}, {"anonymous_requests_per_minute", c.RateLimiting.Anonymous},
		{"token_requests_per_minute", c.RateLimiting.Token}, {"token_requests_per_hour", c.RateLimiting.TokenHour},
		{"auth_requests_per_minute", c.RateLimiting.Auth}, {"concurrent_searches", c.RateLimiting.Searches},
		{"concurrent_bundles", c.RateLimiting.Bundles}, {"concurrent_streams", c.RateLimiting.Streams},
	} {
		if limit.n < 0 {
			refuse("auth.rate_limiting.%s is %d: expected 0 or more", limit.key, limit.n)
		}
	}
	if c.RateLimiting.MaxFailedAttempts < 1 {
		refuse("auth.rate_limiting.max_failed_attempts is %d: expected 1 or more", c.RateLimiting.MaxFailedAttempts)
	}
	for _, scope := range c.Smart.SupportedScopes {
		if _, err := smart.Parse(scope); err != nil {
			refuse("auth.smart.supported_scopes: %w", err)
		}
	}
	if c.Issuer != "" {
		if err := checkIssuer(c.Issuer); err != nil {
			refuse("auth.issuer is %q: %w", c.Issuer, err)
		}
	}
	a := &Admin{Config: func() Config { return c }}
	for i, entry := range c.Bootstrap.Clients {
		if err := a.checkClient(entry); err != nil {
			refuse("auth.bootstrap.clients[%d]: %w", i, err)
		}
	}
	for i, entry := range c.Bootstrap.Users {
		if err := a.checkUser(entry); err != nil {
			refuse("auth.bootstrap.users[%d]: %w", i, err)
		}
	}
	if err := c.Pages.check(); err != nil {
		wrong = append(wrong, err)
	}
	if _, err := readProviders(c.Federation); err != nil {
		wrong = append(wrong, err)
	}
	if _, err := readTrustedIssuers(c.Federation); err != nil {
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// checkClient fails for a client of auth.bootstrap that could not be made.
func (a *Admin) checkClient(entry map[string]any) error {
	var b clientBody
	if err := decodeEntry(entry, &b); err != nil {
		return err
	}
	if b.ClientID == "" {
		return errors.New("clientId is missing")
	}
	c, err := a.client(b)
	if err != nil {
		return err
	}
	return a.checkUsable(context.Background(), c)
}

// checkUser is checkClient for a user. The password may be left out once the user is made.
func (a *Admin) checkUser(entry map[string]any) error {
	var b userBody
	if err := decodeEntry(entry, &b); err != nil {
		return err
	}
	if b.Password != "" {
		if err := checkPassword(b.Username, b.Password); err != nil {
			return err
		}
	}
	_, err := a.user(context.Background(), b, true)
	return err
}

// CheckServe is Check, and refuses an issuer whose tokens could be read on the way.
func (c Config) CheckServe(issuer string) error {
	if err := c.Check(); err != nil || !c.Enabled {
		return err
	}
	u, err := url.Parse(issuer)
	if err != nil {
		return fmt.Errorf("auth.issuer: %w", err)
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("auth.issuer: %s is no address that clients can use; set auth.issuer or server.base_url to the URL by which they reach this server", issuer)
	}
	if u.Scheme == "http" && !isLoopback(host) && !c.AllowHTTP {
		return fmt.Errorf("auth.issuer: %s is not https and not on this machine, so passwords and tokens could be read on the way; "+
			"put a proxy with TLS in front and set server.base_url to its https URL, or set auth.allow_http to true", issuer)
	}
	return nil
}

// checkIssuer holds an issuer against RFC 8414 §2.
func checkIssuer(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("expected a URL that starts with http:// or https://")
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("expected no query, fragment or user")
	case strings.HasSuffix(text, "/"):
		return errors.New("expected no slash at the end")
	case u.Path != "":
		return errors.New("expected no path: discovery is served at the root")
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// IssuerOf is auth.issuer, or its default: server.base_url without its path, else the
// listen address.
func IssuerOf(c Config, baseURL, listen string) string {
	if c.Issuer != "" {
		return c.Issuer
	}
	if u, err := url.Parse(baseURL); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return "http://" + listen
}

// FHIRBaseOf is the FHIR base that tokens name as their audience.
func FHIRBaseOf(issuer, baseURL string) string {
	if baseURL != "" {
		return strings.TrimRight(baseURL, "/")
	}
	return issuer + "/fhir"
}

// parseLifetime is a lifetime that Check has seen.
func parseLifetime(text string) time.Duration {
	d, _ := storage.ParseLifetime(text)
	return d
}

// decodeEntry reads an entry of a list in the configuration strictly.
func decodeEntry(entry map[string]any, into any) error {
	b, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	return decodeStrict(b, into)
}

// hostOf is the host of an address with a port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
