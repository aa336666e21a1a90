package settings

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands for a secret, as in url.URL.Redacted.
const hidden = "xxxxx"

var (
	// passwordWord is the password of a connection string of keywords and values.
	// PostgreSQL, libpq, Connection Strings: 'a \' quoted value' or a plain\ one.
	passwordWord = regexp.MustCompile(`(?is)(password\s*=\s*)('(?:\\.|[^'\\])*'?|(?:\\.|[^\s\\])*)`)
	userPassword = regexp.MustCompile(`:[^@\s]*@`)
)

// Redact is a URL, or a connection string of PostgreSQL, as it may be shown: without the
// password of its user and the secrets among its parameters, and nothing but the scheme of
// a URL that cannot be read.
func Redact(text string) string {
	scheme, _, isURL := strings.Cut(text, "://")
	if !isURL {
		return userPassword.ReplaceAllString(passwordWord.ReplaceAllString(text, "${1}"+hidden), ":"+hidden+"@")
	}
	u, err := url.Parse(text)
	if err != nil || u.User == nil && strings.Contains(u.Path, "@") { // the password has a slash
		return scheme + "://…"
	}
	parameters := strings.Split(u.RawQuery, "&")
	for i, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		plain, err := url.QueryUnescape(name)
		if plain = strings.ToLower(plain); value != "" && (err != nil || strings.Contains(plain, "password") || strings.Contains(plain, "secret") || strings.Contains(plain, "token")) {
			parameters[i] = name + "=" + hidden
		}
	}
	u.RawQuery = strings.Join(parameters, "&")
	return u.Redacted()
}
