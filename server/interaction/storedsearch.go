package interaction

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/search"
)

// Links of searches with long parameters. The database keeps the parameters; the links name them by a token.
const (
	storedParameter = "_stored"
	maxLinkBytes    = 4000 // of a link with all parameters
	maxStoredLink   = 900  // of a link with a token, without the base; a longer one has no cursor
	storedSearchAge = time.Hour
)

// pageParameters may stand beside _stored.
var pageParameters = []string{storedParameter, "_offset", "_cursor", "_format", "_pretty"}

// storedAge is how long a stored search is good after its last use.
func (s *Service) storedAge() time.Duration { return cmp.Or(s.now().StoredSearchAge, storedSearchAge) }

// searchOwner is the client and user of a request: only they may use a search that they stored.
func searchOwner(ctx context.Context) string {
	p := access.PrincipalFrom(ctx)
	if p == nil || p.IsOpen() {
		return ""
	}
	kind := "token"
	if p.APIKey {
		kind = "key"
	}
	return strings.Join([]string{kind, p.Issuer, p.ClientID, p.Subject}, "\n")
}

// useStoredSearch returns the parameters of the page of a stored search, and its token. It fails with invalid, 400,
// beside a search parameter, and with expired, 410, if the token is unknown here, is not the client's, or is too old.
func (s *Service) useStoredSearch(ctx context.Context, p SearchParams) (token string, values url.Values, err error) {
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		if !slices.Contains(pageParameters, name) {
			return "", nil, outcome.Invalid("parameter %s cannot stand beside %s, whose search has all its parameters", outcome.Clip(name), storedParameter)
		}
	}
	tokens := p.Values[storedParameter]
	if len(tokens) != 1 || tokens[0] == "" {
		return "", nil, outcome.Invalid("parameter %s: expected one token of a link", storedParameter)
	}
	self, ok, err := s.Store.UseStoredSearch(ctx, searchOwner(ctx), tokens[0], s.storedAge())
	if err != nil {
		return "", nil, err
	}
	path, query, _ := strings.Cut(self, "?")
	if !ok || path != p.path() {
		return "", nil, outcome.New(outcome.CodeExpired, "the link of the search is no longer good: search again")
	}
	if values, err = url.ParseQuery(query); err != nil {
		return "", nil, err
	}
	for _, name := range pageParameters[1:] {
		if list, ok := p.Values[name]; ok {
			values[name] = list
		}
	}
	return tokens[0], values, nil
}

// shortenLinks stores a search whose links are too long, and makes its links name the token. token is that of a search
// that is stored already. The first page keeps its self link. A search of one page has no other.
func (s *Service) shortenLinks(ctx context.Context, answer *Response, q *search.Query, path string, p SearchParams, token string) error {
	links := answer.Bundle.Links
	long, pages := token != "", token != ""
	for _, l := range links {
		long = long || l.Relation != "self" && len(p.BaseURL)+1+len(l.URL) > maxLinkBytes
		pages = pages || l.Relation == "next" || l.Relation == "previous"
	}
	if !long {
		return nil
	}
	if !pages {
		answer.Bundle.Links = links[:1] // self
		return nil
	}
	if token == "" {
		var err error
		if token, err = s.Store.PutStoredSearch(ctx, searchOwner(ctx), WithQuery(path, q.Applied()), s.storedAge()); err != nil {
			return err
		}
	}
	short := url.Values{storedParameter: {token}}
	for _, name := range []string{"_format", "_pretty"} {
		if list, ok := q.Applied()[name]; ok {
			short[name] = list[len(list)-1:]
		}
	}
	for i, at := range findPages(q, answer.found) {
		if at.relation == "self" && at.offset <= 0 && at.cursor == "" {
			continue
		}
		links[i].URL = pageURL(WithQuery(path, short), at.offset, at.cursor)
		if len(links[i].URL) > maxStoredLink {
			links[i].URL = pageURL(WithQuery(path, short), at.offset, "")
		}
	}
	return nil
}
