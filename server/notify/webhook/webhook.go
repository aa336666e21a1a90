// Package webhook sends messages to endpoints: signed, bounded in time, and to the addresses that the
// settings allow. Policy says when a message that failed is tried again.
package webhook

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

	"kiln/server/notify/config"
	"kiln/server/outbound"
	"kiln/server/telemetry"
)

// A Sender sends messages by the settings in force.
type Sender struct {
	settings func() *config.Config
	tracing  *telemetry.Tracing
	client   *http.Client
}

// NewSender returns a Sender; tracing may be nil.
func NewSender(settings func() *config.Config, tracing *telemetry.Tracing) *Sender {
	s := &Sender{settings: settings, tracing: tracing}
	s.client = outbound.Client(s.rules)
	return s
}

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

// Keys are the keys that sign the messages of a subscription.
type Keys struct {
	Current  []byte
	Previous []byte // nil a day after a change
}

// secretOverlap is how long the secret before a change signs as well.
const secretOverlap = 24 * time.Hour

// FindKeys returns the keys of a subscription with secrets of its own, else of the server.
func (s *Sender) FindKeys(secret, previous []byte, changed time.Time) Keys {
	if len(secret) == 0 {
		return Keys{Current: s.settings().Webhook.SigningKey}
	}
	k := Keys{Current: secret}
	if time.Since(changed) < secretOverlap {
		k.Previous = previous
		if len(previous) == 0 {
			k.Previous = s.settings().Webhook.SigningKey
		}
	}
	return k
}

// sign sets the headers of both signatures.
// Spec: https://www.standardwebhooks.com.
func (k Keys) sign(h http.Header, id string, at time.Time, body []byte) {
	h.Set("Webhook-Id", id)
	seconds := strconv.FormatInt(at.Unix(), 10)
	h.Set("Webhook-Timestamp", seconds)
	if len(k.Current) == 0 {
		return
	}
	mac := hmac.New(sha256.New, k.Current)
	mac.Write(body)
	h.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	var list []string
	for _, key := range [][]byte{k.Current, k.Previous} {
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

// Send sends one message. It returns what came back too, up to maxAnswer.
func (s *Sender) Send(ctx context.Context, m Message, k Keys) (result Result, answer []byte) {
	result.At = time.Now()
	defer func() { result.Duration = time.Since(result.At) }()
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, m.Method, m.URL.String(), bytes.NewReader(m.Body))
	if err == nil {
		err = s.CheckEndpoint(m.URL)
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
	result.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())
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
func (s *Sender) rules() outbound.Rules {
	w := s.settings().Webhook
	return outbound.Rules{AllowHTTP: w.AllowHTTP, AllowPrivate: w.AllowPrivate, Lookup: w.Lookup, MaxIdle: w.MaxConcurrent, Tracing: s.tracing, Name: "webhook"}
}

// CheckEndpoint refuses what rules refuse before it is dialled.
func (s *Sender) CheckEndpoint(u *url.URL) error { return s.rules().Check(u) }

// CloseIdleConnections closes connections that no message uses: to addresses that may no longer be called.
func (s *Sender) CloseIdleConnections() { s.client.CloseIdleConnections() }
