// Package ratelimit counts the requests of each client, and refuses requests above its
// rate. A window slides: a count of the minute before counts for the share that is less
// than a minute ago. Every server counts for itself and shares its counts by the database a
// few times a second, so that a rate holds for all servers of a database together. A
// request never waits for that.
package ratelimit

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// Limits are the rates in force; 0 is no limit.
type Limits struct {
	Requests      int // a minute, for each client and user; by address while authorization is off
	Anonymous     int // a minute, for each address
	Token         int // a minute at the token endpoint, for each client and address
	TokenHour     int // an hour there
	Authorization int // attempts a minute at the other endpoints below /auth, for each address
	// Searches, Bundles and Streams bound the concurrent requests of one client.
	Searches, Bundles, Streams int
}

// Limiter counts requests. Its fields are set before use.
type Limiter struct {
	Limits  func() Limits
	Proxies func() web.Proxies
	Store   Store
	Now     func() time.Time

	shards [shards]shard
}

// Store shares counts between servers.
type Store interface {
	AddRates(ctx context.Context, added []store.Rate) ([]store.Rate, error)
	Rates(ctx context.Context, clients []int64) ([]store.Rate, error)
	DropRates(ctx context.Context, now time.Time) error
}

const (
	shards = 64
	// maxClients bounds the clients that a shard remembers; beyond it, those whose
	// windows are over are forgotten, and all when that is not enough.
	maxClients = 4096
	// maxAsked bounds the clients without new requests here whose counts are asked
	// for.
	maxAsked = 2000
)

type shard struct {
	mu      sync.Mutex
	clients map[int64]*client
}

// client is the requests of one client under one rule.
type client struct {
	window  int64 // seconds
	starts  int64 // of the current window, Unix seconds
	current count
	before  count // the window before
	active  [kinds]int
}

// count is the requests in a window: the other servers', and ours that are not shared yet.
type count struct{ shared, own int64 }

func (c count) all() int64 { return c.shared + c.own }

// advance begins the window that now is in, where the last one has ended.
func (c *client) advance(now int64) {
	starts := now - now%c.window
	switch {
	case starts == c.starts:
		return
	case starts == c.starts+c.window:
		c.before, c.current = c.current, count{}
	default:
		c.before, c.current = count{}, count{}
	}
	c.starts = starts
}

// rule is one limit of a request.
type rule struct {
	name   string
	limit  int
	window int64
	who    string
}

// Limit counts a request against the rules for it, and writes the headers of the
// one with the least left.
func (l *Limiter) Limit(x *web.Exchange, r *http.Request, g web.Group, p *access.Principal) error {
	limits := l.Limits()
	var rules [2]rule
	n := 0
	add := func(name string, limit int, window int64, who string) {
		if limit > 0 {
			rules[n] = rule{name, limit, window, who}
			n++
		}
	}
	switch path := r.URL.Path; {
	case path == "/auth/token":
		if limits.Token > 0 || limits.TokenHour > 0 {
			who := l.address(r) + "\x00" + basicUser(r)
			add("token", limits.Token, 60, who)
			add("token-hour", limits.TokenHour, 3600, who)
		}
	case (path == "/auth" || strings.HasPrefix(path, "/auth/")) && (p == nil || p == access.Open):
		switch authorizationUse(r) {
		case begins:
			add("auth", limits.Authorization, 60, l.address(r))
		case goesOn:
			add("auth-form", formsPerAttempt*limits.Authorization, 60, l.address(r))
		}
	case p == access.Open:
		if limit := least(limits.Requests, limits.Anonymous); limit > 0 {
			add("address", limit, 60, l.address(r))
		}
	case p == nil:
		if limits.Anonymous > 0 {
			add("address", limits.Anonymous, 60, l.address(r))
		}
	case limits.Requests > 0:
		add("client", limits.Requests, 60, p.ClientID+"\x00"+p.Subject)
	}
	if n == 0 {
		return nil
	}
	now := x.Start()
	var worst verdict
	for i, u := range rules[:n] {
		v := l.take(u, now)
		if i == 0 || !v.allowed && worst.allowed || v.allowed == worst.allowed && v.remaining < worst.remaining {
			worst = v
		}
	}
	worst.write(x.Header())
	if worst.allowed {
		return nil
	}
	return outcome.New(outcome.CodeThrottled, "more than %d requests in %d seconds; try again in %d seconds", worst.limit, worst.window, worst.wait)
}

// use is the kind of a request to an authorization endpoint.
type use int

const (
	begins    use = iota // a person or a client begins something
	goesOn               // a form of a flow that has begun, or a page of its own
	uncounted            // part of a page, or a client that asks about a token
)

// formsPerAttempt bounds the requests that follow one attempt: sign-in, choice of a
// patient, choice of an encounter, consent, and the same again after a mistake.
const formsPerAttempt = 10

// authorizationUse separates people's attempts from the requests that follow them. A
// hospital's people share one address, so their sign-ins are limited by user name and by
// failures.
func authorizationUse(r *http.Request) use {
	switch r.URL.Path {
	case "/auth/style.css", "/auth/favicon.svg", "/auth/logo", "/auth/smart-style.json", "/auth/introspect":
		return uncounted
	case "/auth/authorize":
		if r.Method == http.MethodPost {
			return goesOn
		}
	case "/auth", "/auth/", "/auth/grants", "/auth/callback", "/auth/logout":
		return goesOn
	}
	return begins
}

// least is the smaller of two limits, of which 0 is none.
func least(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// basicUser is the client of HTTP Basic authentication, not verified.
func basicUser(r *http.Request) string {
	h := r.Header.Get("Authorization")
	if len(h) < 6 || !strings.EqualFold(h[:6], "basic ") {
		return ""
	}
	text, err := base64.StdEncoding.DecodeString(h[6:])
	if err != nil {
		return ""
	}
	user, _, _ := strings.Cut(string(text), ":")
	return user
}

// address is the client's address; of IPv6 its /64 network, which one client has as a
// whole.
func (l *Limiter) address(r *http.Request) string {
	a := l.Proxies().ClientAddress(r)
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			a = p.Addr()
		}
	}
	return text(a)
}

func text(a netip.Addr) string {
	b := a.As16()
	return string(b[:])
}

// verdict is the decision of a rule on a request.
type verdict struct {
	limit, remaining int
	window           int64
	reset, wait      int64 // Unix seconds; seconds
	allowed          bool
}

// take counts a request where it is allowed.
func (l *Limiter) take(u rule, at time.Time) verdict {
	id := identity(u.name, u.who)
	s := &l.shards[uint64(id)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.client(id, u.window, at)
	now := float64(at.UnixNano()) / 1e9
	gone := (now - float64(c.starts)) / float64(u.window) // the part of the window that is over
	before := float64(c.before.all())
	used := before*(1-gone) + float64(c.current.all())
	v := verdict{limit: u.limit, window: u.window, reset: c.starts + u.window}
	if v.allowed = used+1 <= float64(u.limit); v.allowed {
		c.current.own++
		v.remaining = max(0, int(float64(u.limit)-used-1))
		return v
	}
	// The old window fades; where the current one is full by itself, it has to end
	// and fade as well.
	full := float64(c.current.all())
	var wait float64
	if room := float64(u.limit) - 1 - full; room >= 0 && before > 0 {
		wait = (1-room/before)*float64(u.window) - gone*float64(u.window)
	} else {
		wait = (1-gone)*float64(u.window) + max(0, 1-(float64(u.limit)-1)/max(full, 1))*float64(u.window)
	}
	v.wait = max(1, int64(math.Ceil(wait)))
	return v
}

func (s *shard) client(id, window int64, at time.Time) *client {
	now := at.Unix()
	c := s.clients[id]
	if c == nil {
		if s.clients == nil {
			s.clients = make(map[int64]*client)
		}
		if len(s.clients) >= maxClients {
			s.forget(now)
		}
		c = &client{window: window, starts: now - now%window}
		s.clients[id] = c
	}
	c.advance(now)
	return c
}

// forget makes room.
func (s *shard) forget(now int64) {
	for id, c := range s.clients {
		if c.starts+2*c.window < now && c.active == [kinds]int{} {
			delete(s.clients, id)
		}
	}
	if len(s.clients) >= maxClients {
		for id, c := range s.clients {
			if c.active == [kinds]int{} {
				delete(s.clients, id)
			}
		}
	}
}

// identity is a hash of who under a rule.
func identity(rule, who string) int64 {
	h := fnv.New64a()
	h.Write([]byte(rule))
	h.Write([]byte{0})
	h.Write([]byte(who))
	var sum [8]byte
	return int64(binary.BigEndian.Uint64(h.Sum(sum[:0])))
}

// Sync stores this server's new counts for the other servers, and reads theirs.
func (l *Limiter) Sync(ctx context.Context) error {
	var added []store.Rate
	var known []int64 // clients of the window that is running
	now := l.Now().Unix()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for id, c := range s.clients {
			if c.starts+2*c.window < now && c.active == [kinds]int{} {
				delete(s.clients, id)
				continue
			}
			if c.current.own > 0 {
				added = append(added, store.Rate{Client: id, Starts: c.starts, Expires: c.starts + 2*c.window, Count: c.current.own})
			} else if c.starts+c.window > now && len(known) < maxAsked {
				known = append(known, id)
			}
		}
		s.mu.Unlock()
	}
	var all []store.Rate
	var err error
	if len(added) > 0 {
		if all, err = l.Store.AddRates(ctx, added); err != nil {
			return err
		}
	}
	if len(known) > 0 {
		others, err := l.Store.Rates(ctx, known)
		if err != nil {
			return err
		}
		all = append(all, others...)
	}
	sent := make(map[int64]int64, len(added))
	for _, a := range added {
		sent[a.Client] = a.Count
	}
	for _, a := range all {
		s := &l.shards[uint64(a.Client)%shards]
		s.mu.Lock()
		if c := s.clients[a.Client]; c != nil {
			switch a.Starts {
			case c.starts:
				c.current.shared, c.current.own = a.Count, c.current.own-sent[a.Client]
			case c.starts - c.window:
				c.before.shared, c.before.own = a.Count, c.before.own-sent[a.Client]
			}
		}
		s.mu.Unlock()
	}
	return nil
}

// Tidy forgets the windows that are over, for all servers.
func (l *Limiter) Tidy(ctx context.Context) error { return l.Store.DropRates(ctx, l.Now()) }
