package oauth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"kiln/oauth"
)

// keyPair is a key of a client.
type keyPair struct {
	private *ecdsa.PrivateKey
	public  jose.JSONWebKey
}

func newKeyPair(t testing.TB, kid string) keyPair {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return keyPair{k, jose.JSONWebKey{Key: k.Public(), KeyID: kid, Algorithm: "ES384", Use: "sig"}}
}

func (k keyPair) jwks() map[string]any {
	return map[string]any{"keys": []jose.JSONWebKey{k.public}}
}

func (k keyPair) sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return k.signText(t, b)
}

// signText signs any bytes.
func (k keyPair) signText(t testing.TB, b []byte) string {
	t.Helper()
	return k.signWith(t, b, nil)
}

// signWith signs any bytes with a header of more than alg and kid.
func (k keyPair) signWith(t testing.TB, b []byte, header *jose.SignerOptions) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES384, Key: jose.JSONWebKey{Key: k.private, KeyID: k.public.KeyID}}, header)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var counter atomic.Int64

func (s *service) assertion(changes ...any) map[string]any {
	c := map[string]any{"iss": "backend", "sub": "backend", "aud": s.base + "/auth/token", "exp": time.Now().Add(4 * time.Minute).Unix(), "jti": fmt.Sprint("jti-", counter.Add(1))}
	for i := 0; i+1 < len(changes); i += 2 {
		name := changes[i].(string)
		if c[name] = changes[i+1]; changes[i+1] == nil {
			delete(c, name)
		}
	}
	return c
}

func (s *service) backend(assertion string, more ...string) *answer {
	s.t.Helper()
	v := url.Values{
		"grant_type": {"client_credentials"}, "scope": {"system/*.rs"},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}, "client_assertion": {assertion},
	}
	for i := 0; i+1 < len(more); i += 2 {
		v.Set(more[i], more[i+1])
	}
	return s.post("/auth/token", v)
}

// private_key_jwt: iss = sub = client, aud, at most five minutes, jti once for each
// iss, on whatever server.
// Contract, Authorization 3: `private_key_jwt`: `iss` = `sub` = client, `aud`, five minutes with 30 s of
// leeway, `jti` once for each `iss`.
func TestPrivateKeyJWT(t *testing.T) {
	t.Parallel()
	s := start(t)
	other := startOn(t, s.url, s.base)
	k := newKeyPair(t, "k1")
	s.client(map[string]any{"clientId": "backend", "tokenEndpointAuthMethod": "private_key_jwt", "jwks": k.jwks(), "scopes": []string{"system/*.rs"}})
	s.client(map[string]any{"clientId": "secret", "confidential": true, "scopes": []string{"system/*.rs"}})
	now := time.Now()
	for name, claims := range map[string]map[string]any{
		"iss missing":              s.assertion("iss", nil),
		"sub missing":              s.assertion("sub", nil),
		"another sub":              s.assertion("sub", "other"),
		"both another client":      s.assertion("iss", "secret", "sub", "secret"),
		"both unknown":             s.assertion("iss", "nobody", "sub", "nobody"),
		"aud missing":              s.assertion("aud", nil),
		"aud of another server":    s.assertion("aud", "https://other.example.org/auth/token"),
		"aud with a slash more":    s.assertion("aud", s.base+"/auth/token/"),
		"exp missing":              s.assertion("exp", nil),
		"exp in the past":          s.assertion("exp", now.Add(-31*time.Second).Unix()),
		"exp in six minutes":       s.assertion("exp", now.Add(6*time.Minute).Unix()),
		"exp as text":              s.assertion("exp", "soon"),
		"jti missing":              s.assertion("jti", nil),
		"jti of 300 bytes":         s.assertion("jti", strings.Repeat("x", 300)),
		"jti with a NUL":           s.assertion("jti", "a\x00b"),
		"issued in the future":     s.assertion("iat", now.Add(time.Minute).Unix()),
		"not before in the future": s.assertion("nbf", now.Add(time.Minute).Unix()),
	} {
		if a := s.backend(k.sign(t, claims)); a.status != 401 || a.text("error") != "invalid_client" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	good := k.sign(t, s.assertion())
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for name, text := range map[string]string{
		"signed by another key":      newKeyPair(t, "k1").sign(t, s.assertion()),
		"an unknown kid":             newKeyPair(t, "k2").sign(t, s.assertion()),
		"a changed payload":          parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"backend","sub":"backend"}`)) + "." + parts[2],
		"alg none":                   none + "." + parts[1] + ".",
		"no JWT":                     "x",
		"two tokens":                 good + " " + good,
		"a token of 20 kB":           strings.Repeat("x", 20_000),
		"the public key as a secret": hmacSigned(t, k, s.assertion()),
	} {
		if a := s.backend(text); a.status != 401 || a.text("error") != "invalid_client" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for name, more := range map[string][]string{
		"another type":      {"client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:saml2-bearer"},
		"another client_id": {"client_id", "secret"},
		"no type":           {"client_assertion_type", ""},
	} {
		if a := s.backend(k.sign(t, s.assertion()), more...); a.status != 401 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := s.backend(k.sign(t, s.assertion()), "client_secret", "x"); a.status != 400 || a.text("error") != "invalid_request" {
		t.Errorf("two ways at once: %d %s", a.status, a.body)
	}
	for name, claims := range map[string]map[string]any{
		"aud the token URL":     s.assertion(),
		"aud the issuer":        s.assertion("aud", s.base),
		"aud a list":            s.assertion("aud", []string{"x", s.base}),
		"30 seconds of leeway":  s.assertion("exp", now.Add(-20*time.Second).Unix()),
		"exp in five minutes":   s.assertion("exp", now.Add(5*time.Minute+20*time.Second).Unix()),
		"issued and not before": s.assertion("iat", now.Unix(), "nbf", now.Unix()),
	} {
		if a := s.backend(k.sign(t, claims)); a.status != 200 || a.text("scope") != "system/*.rs" || a.text("refresh_token") != "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	once := k.sign(t, s.assertion())
	if a := s.backend(once); a.status != 200 {
		t.Fatalf("first: %d %s", a.status, a.body)
	}
	if a := other.backend(once); a.status != 401 {
		t.Errorf("replayed to the other server: %d %s", a.status, a.body)
	}
	race := k.sign(t, s.assertion())
	var won atomic.Int64
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if []*service{s, other}[i%2].backend(race).status == 200 {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("fifty at a time: %d won", won.Load())
	}
}

// SMART App Launch 2.2, signature verification: it fails for a jku header that differs from
// the registered jwksUri. RFC 7519 §4: names of claims are case-sensitive. Contract,
// Authorization 3: `private_key_jwt`: key from `jwks` or `jwksUri`; `iss` = `sub` = client.
func TestHeaderAndClaimNamesOfAssertions(t *testing.T) {
	t.Parallel()
	s := start(t)
	k := newKeyPair(t, "k1")
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(k.jwks()) }))
	defer keys.Close()
	s.client(map[string]any{"clientId": "here", "tokenEndpointAuthMethod": "private_key_jwt", "jwks": k.jwks(), "scopes": []string{"system/*.rs"}})
	s.client(map[string]any{"clientId": "there", "tokenEndpointAuthMethod": "private_key_jwt", "jwksUri": keys.URL, "scopes": []string{"system/*.rs"}})
	for _, tt := range []struct {
		client string
		jku    any
		want   int
	}{
		{"there", nil, 200}, {"there", keys.URL, 200}, {"there", keys.URL + "/", 401}, {"there", 1, 401}, {"there", "", 401},
		{"here", nil, 200}, {"here", keys.URL, 401}, {"here", "", 401},
	} {
		header := new(jose.SignerOptions)
		if tt.jku != nil {
			header = header.WithHeader("jku", tt.jku)
		}
		b, _ := json.Marshal(s.assertion("iss", tt.client, "sub", tt.client))
		if a := s.backend(k.signWith(t, b, header)); a.status != tt.want || a.status != 200 && a.text("error") != "invalid_client" {
			t.Errorf("client %s, jku %v: %d %s, want %d", tt.client, tt.jku, a.status, a.body, tt.want)
		}
	}
	for name, claims := range map[string]map[string]any{
		"ISS": s.assertion("iss", nil, "ISS", "here", "sub", "here"),
		"Aud": s.assertion("iss", "here", "sub", "here", "aud", nil, "Aud", s.base),
		"Exp": s.assertion("iss", "here", "sub", "here", "exp", nil, "Exp", time.Now().Add(time.Minute).Unix()),
	} {
		if a := s.backend(k.sign(t, claims)); a.status != 401 || a.text("error") != "invalid_client" {
			t.Errorf("%s in the place of its name: %d %s", name, a.status, a.body)
		}
	}
	twice := fmt.Sprintf(`{"iss": "here", "sub": "here", "aud": "https://other.example.org", "aud": %q, "exp": %d, "jti": "twice"}`, s.base, time.Now().Add(time.Minute).Unix())
	if a := s.backend(k.signText(t, []byte(twice))); a.status != 401 {
		t.Errorf("a claim twice: %d %s", a.status, a.body)
	}
}

func hmacSigned(t testing.TB, k keyPair, claims map[string]any) string {
	t.Helper()
	der, err := k.public.Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: der}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.Marshal(claims)
	signed, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := signed.CompactSerialize()
	return text
}

// A JWKS server that hangs, lies or grows; one that rotates its key.
// Contract, Authorization 3: `private_key_jwt`: `jwksUri`, fetched with limits, cached, again on an unknown
// `kid`; a private address only with `auth.allow_private_networks`.
func TestJWKSURI(t *testing.T) {
	t.Parallel()
	first, second := newKeyPair(t, "k1"), newKeyPair(t, "k2")
	var mode atomic.Value
	mode.Store("first")
	var asked atomic.Int64
	stop := make(chan struct{})
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch mode.Load() {
		case "first":
			_ = json.NewEncoder(w).Encode(first.jwks())
		case "second":
			_ = json.NewEncoder(w).Encode(second.jwks())
		case "hangs":
			<-stop
		case "grows":
			for range 20_000 {
				fmt.Fprintf(w, "%1000s", "x")
			}
		case "lies":
			fmt.Fprint(w, `<html>`)
		case "leads away":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}
	}))
	t.Cleanup(func() { close(stop); remote.Close() })
	s := start(t)
	s.client(map[string]any{"clientId": "backend", "tokenEndpointAuthMethod": "private_key_jwt", "jwksUri": remote.URL, "scopes": []string{"system/*.rs"}})
	ask := func(k keyPair) int {
		return s.backend(k.sign(t, s.assertion("exp", time.Now().Add(4*time.Minute+time.Duration(s.clock.Load())).Unix()))).status
	}
	if got := ask(first); got != 200 {
		t.Fatalf("its key: %d", got)
	}
	for range 5 {
		if ask(first) != 200 || ask(second) != 401 {
			t.Fatal("keys kept")
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times within ten seconds, want 1", n)
	}
	mode.Store("second")
	s.pass(11 * time.Second)
	if got := ask(second); got != 200 {
		t.Errorf("a new key: %d", got)
	}
	if got := ask(first); got != 401 {
		t.Errorf("the old key, which is gone: %d", got)
	}
	for _, m := range []string{"grows", "lies", "leads away", "hangs"} {
		mode.Store(m)
		s.pass(2 * time.Hour) // stored entries are too old now
		begin := time.Now()
		if got := ask(second); got != 401 {
			t.Errorf("a JWKS server that %s: %d", m, got)
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("a JWKS server that %s holds a request for %s", m, took)
		}
	}

	// Without auth.allow_private_networks nobody is asked on a private address.
	mode.Store("first")
	before := asked.Load()
	closed := startOn(t, s.url, s.base, func(o *oauth.Options) { o.Config.AllowPrivateNetworks = false })
	if got := closed.backend(first.sign(t, s.assertion())).status; got != 401 || asked.Load() != before {
		t.Errorf("a private address: %d, asked %d times", got, asked.Load()-before)
	}
}

// client_secret_basic and client_secret_post; what client_credentials gives.
// Contract, Authorization 3: `client_credentials`: `system/…`, `admin`; no refresh token; 401 with
// `WWW-Authenticate` where Basic was tried.
// Contract, Authorization 2: client: `clientSecret` answered once, made or chosen; `accessTokenLifetime`; a
// registered scope covers narrower ones.
// Contract, Authorization 4: well formed but not allowed is left out of the grant.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	s := start(t)
	made := s.client(map[string]any{"clientId": "made", "tokenEndpointAuthMethod": "client_secret_basic", "scopes": []string{"system/Patient.rs", "admin"}, "grantTypes": []string{"client_credentials"}, "accessTokenLifetime": "90s"})
	s.client(map[string]any{"clientId": "chosen", "tokenEndpointAuthMethod": "client_secret_post", "clientSecret": "a secret + of / choice", "scopes": []string{"system/*.cruds"}, "grantTypes": []string{"client_credentials"}})
	s.client(map[string]any{"clientId": "public", "redirectUris": []string{callback}, "scopes": []string{"patient/*.rs"}})
	if made.ClientSecret == "" || len(made.ClientSecret) < 43 {
		t.Fatalf("made secret %q", made.ClientSecret)
	}
	if again, err := s.server.Client(t.Context(), "made"); err != nil || again.ClientSecret != "" {
		t.Errorf("the secret is answered twice: %v", err)
	}
	basic := func(id, secret string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id)+":"+url.QueryEscape(secret)))
	}
	ask := func(scope string, header ...string) *answer {
		t.Helper()
		return s.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {scope}}, header...)
	}
	good := basic("made", made.ClientSecret)
	a := ask("system/Patient.rs admin", "Authorization", good)
	if a.status != 200 || a.text("scope") != "admin system/Patient.rs" || a.text("token_type") != "Bearer" || a.text("refresh_token") != "" {
		t.Fatalf("basic: %d %s", a.status, a.body)
	}
	if n, _ := a.json["expires_in"].(float64); n < 88 || n > 90 {
		t.Errorf("expires_in %v, want the client's 90", n)
	}
	if _, c := claims(t, a.text("access_token")); c["sub"] != "made" || c["client_id"] != "made" || c["sid"] != nil || c["jti"] == nil {
		t.Errorf("claims %v", c)
	}
	post := url.Values{"grant_type": {"client_credentials"}, "scope": {"system/Patient.r"}, "client_id": {"chosen"}, "client_secret": {"a secret + of / choice"}}
	for range 2 {
		if a := s.post("/auth/token", post); a.status != 200 || a.text("scope") != "system/Patient.r" {
			t.Errorf("post: %d %s", a.status, a.body)
		}
	}
	for name, tt := range map[string]struct {
		scope, want string
		status      int
		header      []string
	}{
		"no authentication":       {"system/Patient.rs", "invalid_client", 401, nil},
		"a wrong secret":          {"system/Patient.rs", "invalid_client", 401, []string{"Authorization", basic("made", made.ClientSecret[1:])}},
		"an empty secret":         {"system/Patient.rs", "invalid_client", 401, []string{"Authorization", basic("made", "")}},
		"an unknown client":       {"system/Patient.rs", "invalid_client", 401, []string{"Authorization", basic("nobody", made.ClientSecret)}},
		"a public client":         {"patient/*.rs", "invalid_client", 401, []string{"Authorization", basic("public", "")}},
		"no Basic at all":         {"system/Patient.rs", "invalid_client", 401, []string{"Authorization", "Basic x"}},
		"two headers":             {"system/Patient.rs", "invalid_request", 400, []string{"Authorization", good, "Authorization", good}},
		"the other's method":      {"system/Patient.rs", "invalid_client", 401, []string{"Authorization", basic("chosen", "a secret + of / choice")}},
		"no scope":                {"", "invalid_scope", 400, []string{"Authorization", good}},
		"malformed scope":         {"system/Patient.sr", "invalid_scope", 400, []string{"Authorization", good}},
		"nothing that is allowed": {"system/Observation.rs", "invalid_scope", 400, []string{"Authorization", good}},
		"a user scope":            {"user/Patient.rs", "invalid_scope", 400, []string{"Authorization", good}},
		"openid":                  {"openid", "invalid_scope", 400, []string{"Authorization", good}},
	} {
		a := ask(tt.scope, tt.header...)
		if a.status != tt.status || a.text("error") != tt.want {
			t.Errorf("%s: %d %s, want %d %s", name, a.status, a.body, tt.status, tt.want)
		}
		if basicTried := len(tt.header) == 2; a.status == 401 && basicTried != (a.header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: WWW-Authenticate %q", name, a.header.Get("WWW-Authenticate"))
		}
	}
	if a := ask("system/Patient.cruds", "Authorization", good); a.text("scope") != "system/Patient.rs" {
		t.Errorf("what is not allowed is left out: %s", a.body)
	}
	post.Set("client_id", "made")
	if a := s.post("/auth/token", post, "Authorization", good); a.status != 400 {
		t.Errorf("basic and post at once: %d %s", a.status, a.body)
	}
	post.Set("client_secret", made.ClientSecret)
	if a := s.post("/auth/token", post); a.status != 401 {
		t.Errorf("post for a client registered for basic: %d %s", a.status, a.body)
	}
	s.post("/auth/revoke", url.Values{"token": {a.text("access_token")}}, "Authorization", good)
	if status := s.use(a.text("access_token")); status != 401 {
		t.Errorf("a revoked service token: %d", status)
	}
}

// Introspection: own tokens; any with mayIntrospect or an admin token; inactive
// alone for anything else.
// Contract, Authorization 3: `/auth/introspect`: own tokens, any with `mayIntrospect`, an admin token;
// `{"active":false}` alone.
func TestIntrospect(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	one := s.client(map[string]any{"clientId": "one", "confidential": true, "scopes": []string{"system/*.rs admin"}})
	all := s.client(map[string]any{"clientId": "all", "confidential": true, "mayIntrospect": true, "scopes": []string{"system/*.rs"}})
	basic := func(c *oauth.ClientAnswer) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.ID+":"+c.ClientSecret))
	}
	user := s.tokens()
	own := s.post("/auth/token", url.Values{"grant_type": {"client_credentials"}, "scope": {"system/*.rs admin"}}, "Authorization", basic(one))
	for name, tt := range map[string]struct {
		token, authorization string
		active               bool
	}{
		"its own":                      {own.text("access_token"), basic(one), true},
		"another's":                    {user.text("access_token"), basic(one), false},
		"another's with mayIntrospect": {user.text("access_token"), basic(all), true},
		"a refresh token":              {user.text("refresh_token"), basic(all), true},
		"an ID token":                  {user.text("id_token"), basic(all), false},
		"nothing":                      {"x", basic(all), false},
		"by an administrator":          {user.text("access_token"), "Bearer " + own.text("access_token"), true},
		"another's refresh token":      {user.text("refresh_token"), basic(one), false},
	} {
		a := s.post("/auth/introspect", url.Values{"token": {tt.token}}, "Authorization", tt.authorization)
		if a.status != 200 || a.json["active"] != tt.active || !tt.active && len(a.json) != 1 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for name, authorization := range map[string]string{"nobody": "", "a user's token": "Bearer " + user.text("access_token"), "a wrong secret": "Basic " + base64.StdEncoding.EncodeToString([]byte("one:x"))} {
		if a := s.post("/auth/introspect", url.Values{"token": {"x"}}, "Authorization", authorization); a.status != 401 {
			t.Errorf("asked by %s: %d %s", name, a.status, a.body)
		}
	}
	if a := s.post("/auth/introspect", url.Values{}, "Authorization", basic(all)); a.status != 400 {
		t.Errorf("without a token: %d", a.status)
	}
}

// SMART App Launch 2.2, token introspection: a launch context parameter of the token answer
// is in the answer to introspection, after a refresh too.
// Contract, Authorization 3: `/auth/introspect`: the launch context.
func TestIntrospectTellsTheLaunchContext(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	all := s.client(map[string]any{"clientId": "all", "confidential": true, "mayIntrospect": true})
	yes := true
	launch, err := s.server.NewLaunch(t.Context(), oauth.LaunchRequest{Patient: "p1", Encounter: "e1", FHIRContext: []any{map[string]any{"reference": "Observation/1"}},
		Intent: "review", NeedPatientBanner: &yes, SmartStyleURL: "https://ehr.example.org/style.json", Tenant: "north"})
	if err != nil {
		t.Fatal(err)
	}
	given := s.tokens("scope", "openid launch offline_access patient/*.rs", "launch", launch)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("all:"+all.ClientSecret))
	tells := func(what, token string) {
		t.Helper()
		told := s.post("/auth/introspect", url.Values{"token": {token}}, "Authorization", basic)
		for _, name := range []string{"patient", "encounter", "fhirContext", "intent", "need_patient_banner", "smart_style_url", "tenant"} {
			if want := given.json[name]; want == nil || !reflect.DeepEqual(told.json[name], want) {
				t.Errorf("%s: %s is %v, want %v", what, name, told.json[name], want)
			}
		}
	}
	for range 2 {
		tells("the access token", given.text("access_token"))
	}
	tells("the refresh token", given.text("refresh_token"))
	tells("the next access token", s.refresh(given.text("refresh_token"), "scope", "patient/Patient.rs").text("access_token"))

	plain := s.tokens("scope", "openid user/*.rs")
	told := s.post("/auth/introspect", url.Values{"token": {plain.text("access_token")}}, "Authorization", basic)
	for name := range given.json {
		if told.json[name] != nil && plain.json[name] == nil {
			t.Errorf("without a launch: %s is %v", name, told.json[name])
		}
	}
}

// golang.org/x/oauth2 and coreos/go-oidc, driven end to end.
// Contract, Authorization 3: discovery, token, userinfo, by clients of others.
func TestRealClients(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.app()
	ctx := t.Context()
	provider, err := oidc.NewProvider(ctx, s.base)
	if err != nil {
		t.Fatalf("discovery: %v", err)
	}
	c := oauth2.Config{ClientID: "app", RedirectURL: callback, Endpoint: provider.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "profile", "fhirUser", "offline_access", "launch/patient", "patient/*.rs"}}
	proof := oauth2.GenerateVerifier()
	target := c.AuthCodeURL(state, oauth2.S256ChallengeOption(proof), oauth2.SetAuthURLParam("aud", s.base+"/fhir"), oidc.Nonce("nonce"))
	b := newBrowser(t)
	q := s.walk(b, b.do("GET", target, nil), "doctor")
	if q.Get("state") != state || q.Get("iss") != s.base {
		t.Fatalf("answer %v", q)
	}
	token, err := c.Exchange(ctx, q.Get("code"), oauth2.VerifierOption(proof))
	if err != nil {
		t.Fatalf("exchange: %v", err)
	}
	if token.Extra("patient") != "p1" || token.Type() != "Bearer" {
		t.Errorf("token %v", token)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: "app"}).Verify(ctx, raw)
	if err != nil {
		t.Fatalf("ID token: %v", err)
	}
	if id.Nonce != "nonce" || id.Subject != "doctor" || id.VerifyAccessToken(token.AccessToken) != nil {
		t.Errorf("ID token %+v", id)
	}
	info, err := provider.UserInfo(ctx, c.TokenSource(ctx, token))
	if err != nil || info.Subject != "doctor" || info.Email != "grace@example.org" {
		t.Errorf("userinfo %+v, %v", info, err)
	}
	token.Expiry = time.Now().Add(-time.Hour)
	fresh, err := c.TokenSource(ctx, token).Token()
	if err != nil || fresh.AccessToken == token.AccessToken || fresh.RefreshToken == token.RefreshToken {
		t.Errorf("refresh: %v", err)
	}
	service := s.client(map[string]any{"clientId": "service", "confidential": true, "scopes": []string{"system/*.rs"}})
	cc := clientcredentials.Config{ClientID: "service", ClientSecret: service.ClientSecret, TokenURL: provider.Endpoint().TokenURL, Scopes: []string{"system/*.rs"}}
	resp, err := cc.Client(ctx).Get(s.base + "/Patient")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("service: %d", resp.StatusCode)
	}
}
