package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Result is what came of an attempt.
type Result struct {
	At         time.Time
	Duration   time.Duration
	Status     int           // of HTTP; 0 where there was no answer
	Err        string        // "" for success
	RetryAfter time.Duration // asked for by the receiver
	Gone       bool          // 410: nothing more is wanted
	Withheld   bool          // not sent: the owner may not read the resource
	TimedOut   bool
}

// OK reports whether the attempt succeeded.
func (r Result) OK() bool { return r.Err == "" }

// keys are what signs the messages of a subscription.
type keys struct {
	current, previous []byte // previous is nil a day after a change
}

// secretOverlap is how long the secret before a change signs as well.
const secretOverlap = 24 * time.Hour

// keysOf are the keys of a subscription with secrets of its own, else of the server.
func (s *Service) keysOf(secret, previous []byte, changed time.Time) keys {
	if len(secret) == 0 {
		return keys{current: s.Config.Webhook.SigningKey}
	}
	k := keys{current: secret}
	if time.Since(changed) < secretOverlap {
		k.previous = previous
		if len(previous) == 0 {
			k.previous = s.Config.Webhook.SigningKey
		}
	}
	return k
}

// sign sets the headers of both signatures.
// Spec: https://www.standardwebhooks.com.
func (k keys) sign(h http.Header, id string, at time.Time, body []byte) {
	h.Set("Webhook-Id", id)
	seconds := strconv.FormatInt(at.Unix(), 10)
	h.Set("Webhook-Timestamp", seconds)
	if len(k.current) == 0 {
		return
	}
	mac := hmac.New(sha256.New, k.current)
	mac.Write(body)
	h.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	var list []string
	for _, key := range [][]byte{k.current, k.previous} {
		if len(key) > 0 {
			mac := hmac.New(sha256.New, key)
			mac.Write([]byte(id + "." + seconds + "."))
			mac.Write(body)
			list = append(list, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
	}
	h.Set("Webhook-Signature", strings.Join(list, " "))
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// post sends one message. id is the notification's.
func (s *Service) post(ctx context.Context, c *subscription, k keys, id, contentType string, body []byte) Result {
	r, _ := s.exchange(ctx, c, k, id, contentType, body)
	return r
}

// exchange is post with what came back, up to maxAnswer.
func (s *Service) exchange(ctx context.Context, c *subscription, k keys, id, contentType string, body []byte) (result Result, answer []byte) {
	result.At = time.Now()
	defer func() { result.Duration = time.Since(result.At) }()
	timeout := s.Config.Webhook.Timeout
	if c.timeout > 0 {
		timeout = min(timeout, c.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.String(), bytes.NewReader(body))
	if err == nil {
		err = s.checkEndpoint(c.endpoint)
	}
	if err != nil {
		result.Err = err.Error()
		return result, nil
	}
	req.Header = c.headers.Clone()
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("User-Agent", "kiln")
	req.Header.Set("X-Notification-Id", id)
	req.Header.Set("X-Subscription-Id", c.reference())
	k.sign(req.Header, id, result.At, body)
	resp, err := s.client.Do(req)
	if err != nil {
		result.TimedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
		result.Err = failure(err, result.TimedOut, timeout)
		return result, nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	result.Status = resp.StatusCode
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		// The status counts: what else there is of an answer, short or broken, is not
		// needed, but an answer that never ends is none.
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			result.TimedOut, result.Err = true, failure(err, true, timeout)
		}
		return result, answer
	case resp.StatusCode == http.StatusGone:
		result.Gone = true
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		result.Err = fmt.Sprintf("%s: redirects are not followed", resp.Status)
	}
	if result.Err == "" {
		result.Err = resp.Status
	}
	result.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return result, answer
}

// maxRetryAfter bounds what a receiver may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header: seconds or a date. RFC 9110 §10.2.3.
func retryAfter(text string, now time.Time) time.Duration {
	if text == "" {
		return 0
	}
	if n, err := strconv.Atoi(text); err == nil {
		return min(max(0, time.Duration(min(n, 1<<30))*time.Second), maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}

// failure says why a request failed, without the URL, which may hold secrets.
func failure(err error, timedOut bool, timeout time.Duration) string {
	if timedOut {
		return fmt.Sprintf("no answer within %s", timeout)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return err.Error()
}

// errAddress is of an endpoint at an address that the server does not call.
type errAddress struct{ addr netip.Addr }

func (e errAddress) Error() string {
	return fmt.Sprintf("the address %s is private, loopback or link-local, and notifications.webhook.allow_private_networks is off", e.addr)
}

// checkEndpoint refuses http where it is not allowed, and an address in the URL that may
// not be called. Names are checked when they are dialled, by what they resolve to then.
func (s *Service) checkEndpoint(u *url.URL) error {
	host := u.Hostname()
	addr, err := netip.ParseAddr(host)
	literal := err == nil
	if u.Scheme == "http" && !s.Config.Webhook.AllowHTTP && !(host == "localhost" || strings.HasSuffix(host, ".localhost") || literal && addr.Unmap().IsLoopback()) {
		return errors.New("the endpoint is http, and notifications.webhook.allow_http is off: only loopback may be called without TLS")
	}
	if literal {
		return s.checkAddress(addr)
	}
	return nil
}

// checkAddress refuses addresses that are not public.
func (s *Service) checkAddress(addr netip.Addr) error {
	addr = addr.Unmap()
	if s.Config.Webhook.AllowPrivate {
		return nil
	}
	if !addr.IsValid() || addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() ||
		addr.IsInterfaceLocalMulticast() || special(addr) {
		return errAddress{addr}
	}
	return nil
}

// specialNetworks are further networks that are not the Internet: shared address space,
// documentation, benchmarking, reserved, and IPv4 inside of IPv6 by translation. RFC 6890.
var specialNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

func special(addr netip.Addr) bool {
	for _, p := range specialNetworks {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// newClient returns the client of endpoints: no proxy, no redirects, and every address
// checked when it is dialled, whatever name it came from.
func (s *Service) newClient() *http.Client {
	dialer := &net.Dialer{
		Timeout:   10 * time.Second,
		KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return s.checkAddress(at.Addr().WithZone(""))
		},
	}
	dial := dialer.DialContext
	if lookup := s.Config.Webhook.Lookup; lookup != nil {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			addrs, err := lookup(host)
			if err != nil {
				return nil, err
			}
			for _, a := range addrs {
				var conn net.Conn
				if conn, err = dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port)); err == nil {
					return conn, nil
				}
			}
			return nil, err
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           1000,
			MaxIdleConnsPerHost:    max(2, s.Config.Webhook.MaxConcurrent),
			IdleConnTimeout:        90 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
