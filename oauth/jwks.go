package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"kiln/server/outbound"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
)

// Bounds of fetched documents.
const (
	fetchTimeout = 5 * time.Second
	maxDocument  = 256 << 10 // bytes
	maxKeys      = 100
	keysFresh    = 5 * time.Minute  // how long keys are taken without asking again
	keysStale    = time.Hour        // how long where asking fails
	keysAgain    = 10 * time.Second // soonest that an unknown key is asked for again
)

// newHTTPClient returns a client for other people's servers: it gives up soon, and
// talks to private addresses only where private is true. The address is looked at
// after the name was resolved, so that no name leads round it.
func newHTTPClient(private func() bool) *http.Client {
	dialer := &net.Dialer{Timeout: fetchTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if !private() && !outbound.Public(at.Addr()) {
			return errors.New("a private address, and auth.allow_private_networks is false")
		}
		return nil
	}}
	return &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: fetchTimeout, ResponseHeaderTimeout: fetchTimeout,
			MaxResponseHeaderBytes: 32 << 10, MaxIdleConns: 10, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// checkRemote refuses URLs that are fetched by plain http, but on loopback.
func checkRemote(text string, private bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return err
	case u.Host == "" || u.User != nil || u.Fragment != "":
		return errors.New("expected a URL with a host, without user or fragment")
	case u.Scheme == "https", u.Scheme == "http" && private:
		return nil
	}
	return errors.New("expected https://")
}

// remoteKeys fetches JWK sets, and keeps them.
type remoteKeys struct {
	client *http.Client
	now    func() time.Time
	group  singleflight.Group
	mu     sync.Mutex
	sets   map[string]*remoteSet
	// Where the keys of an issuer are, by its discovery document, and when it was
	// asked.
	addresses  map[string]string
	discovered map[string]time.Time
}

type remoteSet struct {
	keys    []jose.JSONWebKey
	fetched time.Time // last success
	tried   time.Time // last try
	err     error     // of it
}

const maxRemoteSets = 10_000

func newRemoteKeys(client *http.Client, now func() time.Time) *remoteKeys {
	return &remoteKeys{
		client: client, now: now, sets: make(map[string]*remoteSet),
		addresses: make(map[string]string), discovered: make(map[string]time.Time),
	}
}

// keys returns the keys at an address. They are fetched again when they are old, or
// when kid is not among them, at most every ten seconds; where that fails, those
// kept are good for an hour.
func (r *remoteKeys) keys(ctx context.Context, address, kid string) ([]jose.JSONWebKey, error) {
	set := r.get(address)
	now := r.now()
	known := kid == "" || slices.ContainsFunc(set.keys, func(k jose.JSONWebKey) bool { return k.KeyID == kid })
	fresh := now.Sub(set.fetched) < keysFresh
	if fresh && known || now.Sub(set.tried) < keysAgain {
		return set.usable(now)
	}
	// One fetch at a time for an address, shared by all callers that wait for it, and
	// no longer than its own limits.
	done := r.group.DoChan(address, func() (any, error) {
		keys, err := r.fetch(address)
		r.mu.Lock()
		defer r.mu.Unlock()
		next := *r.sets[address]
		next.tried, next.err = r.now(), err
		if err == nil {
			next.keys, next.fetched = keys, next.tried
		}
		r.sets[address] = &next
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return r.get(address).usable(r.now())
}

func (r *remoteKeys) get(address string) *remoteSet {
	r.mu.Lock()
	defer r.mu.Unlock()
	set := r.sets[address]
	if set == nil {
		if len(r.sets) >= maxRemoteSets {
			clear(r.sets)
		}
		set = new(remoteSet)
		r.sets[address] = set
	}
	return set
}

func (s *remoteSet) usable(now time.Time) ([]jose.JSONWebKey, error) {
	if s.fetched.IsZero() || now.Sub(s.fetched) > keysStale {
		if s.err == nil {
			return nil, errors.New("no keys were read")
		}
		return nil, s.err
	}
	return s.keys, nil
}

func (r *remoteKeys) fetch(address string) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := fetchJSON(context.Background(), r.client, address, &set); err != nil {
		return nil, err
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("%s has %d keys, more than %d", address, len(set.Keys), maxKeys)
	}
	keys := []jose.JSONWebKey{}
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		// Kinds of keys that we do not know are none of ours. RFC 7517 §5.
		if k.UnmarshalJSON(raw) == nil && k.IsPublic() && k.Valid() {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// fetchJSON reads a small JSON document.
func fetchJSON(ctx context.Context, client *http.Client, address string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return err
	}
	if len(body) > maxDocument {
		return fmt.Errorf("%s is larger than %d bytes", address, maxDocument)
	}
	return json.Unmarshal(body, into)
}
