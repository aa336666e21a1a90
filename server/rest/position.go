package rest

import (
	"net/http"
	"net/url"
	"strings"
	"sync"

	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// Headers and the cookie of positions, and the source of an answer.
const (
	positionHeader = "X-Kiln-Position"
	sourceHeader   = "X-Kiln-Source"
	positionCookie = "kiln_position"
	cookieAge      = "300" // seconds
)

// routing has the demands of a request on its PostgreSQL, and the PostgreSQL that has answered.
type routing struct {
	interaction.Route
	write   bool           // the method can change something
	commits *store.Commits // of a write of one interaction; else nil
	cookie  bool           // the request brought the cookie
	caller  string
	named   bool // by header or cookie: the memory of callers is not asked
}

// callers remembers the last position that this server gave to each caller. A common position stands for callers that do not
// fit.
type callers struct {
	mu         sync.Mutex
	young, old map[string]store.Position
	common     store.Position
}

const callersHalf = 1 << 14

// last returns the position that an answer to a caller has to reflect.
func (c *callers) last(caller string) store.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.young[caller]; ok {
		return p
	}
	if p, ok := c.old[caller]; ok {
		return p
	}
	return c.common
}

// note remembers a position.
func (c *callers) note(caller string, p store.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= callersHalf {
		for _, q := range c.old {
			c.common = store.LaterPosition(c.common, q)
		}
		c.old, c.young = c.young, nil
	}
	if c.young == nil {
		c.young = make(map[string]store.Position)
	}
	c.young[caller] = store.LaterPosition(c.young[caller], store.LaterPosition(c.old[caller], p))
}

// routeRequest prepares the routing of a request. It fails with invalid for a header that is no position, and with conflict
// for one that the database does not contain.
func (c *call) routeRequest(r *http.Request) error {
	st := c.h.Service.Store
	if st == nil || !st.HasReplicas() {
		return nil
	}
	t := &routing{write: r.Method != http.MethodGet && r.Method != http.MethodHead && !strings.HasSuffix(r.URL.Path, "/_search"), caller: c.callerOf(r)}
	t.Primary = asksForFresh(r.Header)
	c.routing = t
	c.secure = strings.HasPrefix(c.baseURL(r), "https:")
	c.ctx = interaction.WithRoute(c.ctx, &t.Route)
	c.BeforeHeader = c.tellPosition
	for _, text := range listedPositions(r.Header.Values(positionHeader)) {
		if err := c.require(text, "the header "+positionHeader); err != nil {
			return err
		}
	}
	if text, ok := takePosition(r.URL); ok {
		if err := c.require(text, "the parameter "+interaction.PositionParameter); err != nil {
			return err
		}
	}
	for _, cookie := range r.CookiesNamed(positionCookie) {
		t.named, t.cookie = true, true
		if p, err := store.ParsePosition(cookie.Value); err == nil && st.ContainsPosition(c.ctx, p) != store.Lost {
			t.Need = store.LaterPosition(t.Need, p)
		}
	}
	if !t.named {
		if p := c.h.callers.last(t.caller); p != (store.Position{}) && st.ContainsPosition(c.ctx, p) != store.Lost {
			t.Need = p
		}
	}
	if t.write && r.URL.Path != "/" && !strings.Contains(r.URL.Path, "/$") { // Bundles and operations know where they read
		c.ctx, t.commits = store.WithCommits(c.ctx)
		return st.AwaitOnPrimary(c.ctx, t.Need)
	}
	return nil
}

// require makes the answer reflect a position that the client has sent: it fails with invalid for a text that is none, and
// with conflict for one that the database does not contain. One that only the lost primary could judge has to be on a standby.
func (c *call) require(text, in string) error {
	st, t := c.h.Service.Store, c.routing
	t.named = true
	p, err := store.ParsePosition(text)
	if err != nil {
		return outcome.Invalid("%s is %q: expected what an answer has said there", in, outcome.Clip(text))
	}
	switch contained := st.ContainsPosition(c.ctx, p); {
	case contained == store.Lost:
		return outcome.New(outcome.CodeConflict, "%s names a position that this database does not have: the write may be lost; repeat the request without it", in)
	case contained == store.Unsure && p.Epoch != st.Epoch():
		return outcome.New(outcome.CodeTransient, "the database cannot be reached")
	}
	t.Need = store.LaterPosition(t.Need, p)
	return nil
}

// listedPositions splits the lines of a header at commas. Empty elements of a list do not count (RFC 9110 section 5.6.1); a
// header without any element is an empty position.
func listedPositions(lines []string) (list []string) {
	for _, line := range lines {
		for text := range strings.SplitSeq(line, ",") {
			if text = strings.TrimSpace(text); text != "" {
				list = append(list, text)
			}
		}
	}
	if len(lines) > 0 && len(list) == 0 {
		list = []string{""}
	}
	return list
}

// takePosition takes the parameter of page links out of a URL.
func takePosition(u *url.URL) (text string, ok bool) {
	if !strings.Contains(u.RawQuery, interaction.PositionParameter+"=") {
		return "", false
	}
	var kept []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		if value, is := strings.CutPrefix(part, interaction.PositionParameter+"="); is {
			text, ok = value, true
			continue
		}
		kept = append(kept, part)
	}
	u.RawQuery = strings.Join(kept, "&")
	return text, ok
}

// asksForFresh reports whether a request does without a standby. Source: RFC 9111 section 5.2.1.4.
func asksForFresh(h http.Header) bool {
	for _, line := range h.Values("Cache-Control") {
		for item := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(item), "no-cache") {
				return true
			}
		}
	}
	return false
}

// callerOf names who asks: client and subject of the token, or the address.
func (c *call) callerOf(r *http.Request) string {
	if p := c.Principal; p != nil && (p.Subject != "" || p.ClientID != "") {
		return p.Issuer + "\x00" + p.ClientID + "\x00" + p.Subject
	}
	if c.h.Proxies == nil {
		return web.Proxies{}.ClientAddress(r).String()
	}
	return c.h.Proxies().ClientAddress(r).String()
}

// writtenPosition returns a position behind everything that the answer to a write shows: of its commit, or of now. Without a
// primary there is none.
func (c *call) writtenPosition(status int) store.Position {
	if commits := c.routing.commits; commits != nil && status < http.StatusMultipleChoices {
		if p, ok := commits.Position(); ok {
			return p
		}
	}
	p, _ := c.h.Service.Store.PositionNow(c.ctx)
	return p
}

// tellPosition writes the headers of an answer that is about to begin.
func (c *call) tellPosition(status int) {
	t := c.routing
	p := t.Served.Position
	if status < http.StatusInternalServerError && t.write && t.Served.Source == "" {
		p = c.writtenPosition(status)
	}
	if t.Served.Source != "" && status < http.StatusInternalServerError {
		c.Header().Set(sourceHeader, t.Served.Source)
	}
	if p == (store.Position{}) {
		return
	}
	c.Header().Set(positionHeader, p.String())
	c.h.callers.note(t.caller, p)
	if (t.write && t.Served.Source == "") || t.cookie {
		text := positionCookie + "=" + p.String() + "; Path=/; HttpOnly; SameSite=Lax; Max-Age=" + cookieAge
		if c.secure {
			text += "; Secure"
		}
		c.Header().Add("Set-Cookie", text)
	}
}
