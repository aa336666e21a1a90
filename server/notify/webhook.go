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
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kiln/server/outbound"
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
	// Ours is why this server could not make the attempt. It counts as none.
	Ours error
}

// OK reports whether the attempt succeeded.
func (r Result) OK() bool { return r.Err == "" && r.Ours == nil }

// keys are the keys that sign the messages of a subscription.
type keys struct {
	current, previous []byte // previous is nil a day after a change
}

// secretOverlap is how long the secret before a change signs as well.
const secretOverlap = 24 * time.Hour

// keysOf are the keys of a subscription with secrets of its own, else of the server.
func (s *Service) keysOf(secret, previous []byte, changed time.Time) keys {
	if len(secret) == 0 {
		return keys{current: s.Settings().Webhook.SigningKey}
	}
	k := keys{current: secret}
	if time.Since(changed) < secretOverlap {
		k.previous = previous
		if len(previous) == 0 {
			k.previous = s.Settings().Webhook.SigningKey
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

// postMessage sends one message. id is the notification's.
func (s *Service) postMessage(ctx context.Context, c *subscription, k keys, id, contentType string, body []byte) Result {
	r, _ := s.exchangeMessage(ctx, c, k, id, contentType, body)
	return r
}

// exchangeMessage is post with what came back, up to maxAnswer.
func (s *Service) exchangeMessage(ctx context.Context, c *subscription, k keys, id, contentType string, body []byte) (Result, []byte) {
	timeout := s.Settings().Webhook.Timeout
	if c.timeout > 0 {
		timeout = min(timeout, c.timeout)
	}
	return s.request(ctx, Message{
		Method: http.MethodPost, URL: c.endpoint, Header: c.headers, ID: id, Subscriber: c.reference(), ContentType: contentType, Body: body, Timeout: timeout,
	}, k)
}

// Message is a request to the endpoint of a subscriber.
type Message struct {
	Method      string
	URL         *url.URL
	Header      http.Header
	ID          string // of the notification
	Subscriber  string // its id
	ContentType string
	Body        []byte
	Timeout     time.Duration
}

// Send sends a message of another kind of subscriber than Subscriptions, signed with the
// server's key, by the rules of webhooks.
func (s *Service) Send(ctx context.Context, m Message) Result {
	r, _ := s.request(ctx, m, keys{current: s.Settings().Webhook.SigningKey})
	return r
}

// request sends one message.
func (s *Service) request(ctx context.Context, m Message, k keys) (result Result, answer []byte) {
	result.At = time.Now()
	defer func() { result.Duration = time.Since(result.At) }()
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, m.Method, m.URL.String(), bytes.NewReader(m.Body))
	if err == nil {
		err = s.checkEndpoint(m.URL)
	}
	if err != nil {
		result.Err = err.Error()
		return result, nil
	}
	req.Header = m.Header.Clone()
	if m.ContentType != "" {
		req.Header.Set("Content-Type", m.ContentType)
	}
	req.Header.Set("User-Agent", "kiln")
	req.Header.Set("X-Notification-Id", m.ID)
	req.Header.Set("X-Subscription-Id", m.Subscriber)
	k.sign(req.Header, m.ID, result.At, m.Body)
	resp, err := s.client.Do(req)
	if err != nil {
		result.TimedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
		result.Err = failure(err, result.TimedOut, m.Timeout)
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
			result.TimedOut, result.Err = true, failure(err, true, m.Timeout)
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

// rules say which endpoints may be called.
func (s *Service) rules() outbound.Rules {
	w := s.Settings().Webhook
	return outbound.Rules{AllowHTTP: w.AllowHTTP, AllowPrivate: w.AllowPrivate, Lookup: w.Lookup, MaxIdle: w.MaxConcurrent, Tracing: s.Tracing, Name: "webhook"}
}

// checkEndpoint refuses what rules refuse before it is dialled.
func (s *Service) checkEndpoint(u *url.URL) error { return s.rules().Check(u) }

// newClient returns the client of endpoints.
func (s *Service) newClient() *http.Client { return outbound.Client(s.rules) }
