package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// poster sends items to a server, each so that it is stored once.
type poster struct {
	server, token string
	client        *http.Client
	journal       *journal
	clock         time.Duration // difference between the server's clock and this one
	settle        time.Duration // how long a request that was cut off may be at work
	// answering is held for reading from sending a request until its answer is noted, and
	// for writing during a lookup: by then the resources that other requests stored are
	// known.
	answering sync.RWMutex
	// stopping is done when no new request is to be made.
	stopping context.Context
	// giveUp ends the load, with the reason.
	giveUp func(error)
}

func newPoster(o loadOptions) *poster {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = o.parallel
	return &poster{server: o.server, token: o.token, settle: o.settle, client: &http.Client{Transport: t, Timeout: 10 * time.Minute}}
}

// posted is what became of an item.
type posted struct {
	resources int // stored now
	found     int // stored by an earlier run that did not learn of it
	failures  []failure
	bytes     int // sent
	notSent   bool
}

// Errors that end a load.
var (
	errStopped      = errors.New("interrupted")
	errUnauthorized = errors.New("the server wants a token: name one with --token")
)

// awaitServer finds out whether a server is there, and what its clock says.
func (p *poster) awaitServer(ctx context.Context) error {
	for try := 1; ; try++ {
		status, _, header, err := p.exchange(ctx, http.MethodGet, "/metadata", nil)
		if err != nil {
			if ctx.Err() != nil {
				return errStopped
			}
			return fmt.Errorf("no server answers at %s (%s): start one with kiln serve, or name it with --server", p.server, reasonOf(err))
		}
		if status != http.StatusServiceUnavailable || try == attempts {
			if at, err := http.ParseTime(header.Get("Date")); err == nil {
				p.clock = time.Until(at)
			}
			return nil
		}
		// It is starting.
		select {
		case <-ctx.Done():
			return errStopped
		case <-time.After(time.Second):
		}
	}
}

// reasonOf is why a connection failed, in a few words.
func reasonOf(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// postItem sends one item and reads the answer. Entries that an earlier request has stored are
// left out.
func (p *poster) postItem(ctx context.Context, it item) posted {
	o, fails := parse(it)
	out := posted{failures: fails}
	known := p.journal.recordOf(it.key)
	unsure := known.unsure
	var want []int // nil is everything
	if unsure || len(known.stored) > 0 {
		o.readEntries()
		want = slices.DeleteFunc(o.allEntries(), func(i int) bool { return known.stored[i] })
	}
	for try := 1; ; try++ {
		if unsure {
			missing, err := p.missing(ctx, &o, want, p.journal.recordOf(it.key))
			switch {
			case errors.Is(err, errStopped):
				out.notSent = true
				return out
			case notReached(err):
				p.giveUp(p.gone(err))
				out.notSent = true
				return out
			case err != nil:
				out.failures = append(out.failures, failure{Source: it.name, Error: err.Error()})
				return out
			}
			if want == nil {
				want = o.allEntries()
			}
			out.found += len(want) - len(missing)
			want = missing
		}
		if want != nil && len(want) == 0 || want == nil && !o.bundle && len(o.entries) == 0 {
			if len(out.failures) == 0 {
				p.done(it.key, nil)
			}
			return out
		}
		sent, err := p.sendOnce(ctx, it, &o, want)
		out.resources += sent.resources
		out.bytes += sent.bytes
		out.notSent = sent.notSent
		if err == nil || try == 3 || errors.Is(err, errStopped) || ctx.Err() != nil {
			out.failures = append(out.failures, sent.failures...)
			return out
		}
		// It broke off on the way: look what came of it, then send the rest again.
		unsure = true
	}
}

// missing looks up the entries that an unanswered request has stored, and returns the
// others. A request that was cut off may still be running: missing entries are looked up
// again after its end.
func (p *poster) missing(ctx context.Context, o *outgoing, want []int, known record) (missing []int, err error) {
	o.readEntries()
	if want == nil {
		want = o.allEntries()
	}
	if known.sent.IsZero() || len(want) == 0 {
		return want, nil
	}
	for {
		over := p.serverNow().Sub(known.last) > p.settle
		have, certain, err := p.lookUp(ctx, o, want, known.sent)
		if err != nil {
			return nil, err
		}
		if !certain {
			return nil, errors.New("it was sent before and not answered, and has nothing to look it up by: whether it is stored is not known, so it is not sent again")
		}
		missing = slices.DeleteFunc(slices.Clone(want), func(i int) bool { _, ok := have[i]; return ok })
		if len(missing) == 0 || over {
			return missing, nil
		}
		want = missing
		select {
		case <-ctx.Done():
			return nil, errStopped
		case <-time.After(max(100*time.Millisecond, p.settle-p.serverNow().Sub(known.last))):
		}
	}
}

func (p *poster) serverNow() time.Time { return time.Now().Add(p.clock) }

func (p *poster) gone(err error) error {
	return fmt.Errorf("the server at %s does not answer any more (%s)", p.server, reasonOf(err))
}

// done notes that all of an item is stored.
func (p *poster) done(key string, locations []string) {
	if err := p.journal.noteLine(line{Key: key, Event: eventDone, Locations: locations}); err != nil {
		p.giveUp(err)
	}
}

// sendOnce makes one request for some entries of an item and notes the answer. An error
// means that the connection broke, so that the result is not known.
func (p *poster) sendOnce(ctx context.Context, it item, o *outgoing, some []int) (posted, error) {
	p.answering.RLock()
	defer p.answering.RUnlock()
	failed := func(f failure) posted { return posted{failures: []failure{f}} }
	if err := p.journal.noteLine(line{Key: it.key, Event: eventSent, At: p.serverNow().UTC()}); err != nil {
		p.giveUp(err)
		return failed(failure{Source: it.name, Error: err.Error()}), nil
	}
	body := o.body(some)
	method, path := http.MethodPost, "/"
	if o.single {
		e := o.entries[0]
		method, path = e.method, "/"+e.typ
		if e.id != "" {
			path += "/" + url.PathEscape(e.id)
		}
	}
	status, answer, header, err := p.sendHeader(ctx, method, path, body)
	switch {
	case errors.Is(err, errStopped):
		_ = p.journal.noteLine(line{Key: it.key, Event: eventRefused}) // it was not sent
		return posted{notSent: true}, err
	case err != nil && notReached(err):
		_ = p.journal.noteLine(line{Key: it.key, Event: eventRefused})
		p.giveUp(p.gone(err))
		return posted{notSent: true}, errStopped
	case err != nil:
		return failed(failure{Source: it.name, Error: "sent, and the answer did not come: " + reasonOf(err)}), err
	case status == http.StatusUnauthorized:
		_ = p.journal.noteLine(line{Key: it.key, Event: eventRefused})
		p.giveUp(errUnauthorized)
		return failed(*refusal(it.name, status, answer)), nil
	case status >= 300:
		if status < 500 || status == http.StatusNotImplemented || status == http.StatusServiceUnavailable {
			if err := p.journal.noteLine(line{Key: it.key, Event: eventRefused}); err != nil {
				p.giveUp(err)
			}
		}
		return failed(*refusal(it.name, status, answer)), nil
	}
	sent := posted{bytes: len(body)}
	if o.single {
		sent.resources = 1
		p.done(it.key, locationsOf(header.Get("Location")))
		return sent, nil
	}
	return p.readAnswer(it, o, some, answer, sent), nil
}

// readAnswer notes what became of each entry of a batch or transaction.
func (p *poster) readAnswer(it item, o *outgoing, some []int, body []byte, sent posted) posted {
	var answer struct {
		Entry []struct {
			Response struct {
				Status   string          `json:"status"`
				Location string          `json:"location"`
				Outcome  json.RawMessage `json:"outcome"`
			} `json:"response"`
		} `json:"entry"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		sent.failures = append(sent.failures, failure{Source: it.name, Error: "the answer is not a Bundle: " + err.Error()})
		return sent
	}
	index := func(i int) int {
		if some != nil && i < len(some) {
			return some[i]
		}
		return i
	}
	var locations []string
	var stored []int
	unsure := false
	for i, e := range answer.Entry {
		if strings.HasPrefix(e.Response.Status, "2") {
			sent.resources++
			stored = append(stored, index(i))
			if strings.HasPrefix(e.Response.Status, "201") {
				locations = append(locations, locationsOf(e.Response.Location)...)
			}
			continue
		}
		name := it.name
		if at := index(i); at < len(o.entries) {
			name = o.entries[at].name
		}
		unsure = unsure || strings.HasPrefix(e.Response.Status, "500")
		sent.failures = append(sent.failures, failure{Source: name, Status: e.Response.Status, Outcome: e.Response.Outcome})
	}
	l := line{Key: it.key, Event: eventDone, Locations: locations}
	if len(sent.failures) > 0 {
		l.Event, l.Entries, l.Unsure = eventStored, stored, unsure
	}
	if err := p.journal.noteLine(l); err != nil {
		p.giveUp(err)
	}
	return sent
}

// locationsOf is Type/id of a Location, nothing for one that is none.
func locationsOf(location string) []string {
	location, _, _ = strings.Cut(location, "/_history/")
	parts := strings.Split(location, "/")
	if len(parts) < 2 {
		return nil
	}
	return []string{strings.Join(parts[len(parts)-2:], "/")}
}

// refusal is the failure that an answer is.
func refusal(source string, status int, body []byte) *failure {
	f := &failure{Source: source, Status: strconv.Itoa(status)}
	var compact bytes.Buffer
	if json.Compact(&compact, body) == nil {
		f.Outcome = compact.Bytes()
	} else {
		f.Error = http.StatusText(status)
	}
	return f
}

// attempts is how often a request is sent that the server could not take.
const attempts = 8

func (p *poster) send(ctx context.Context, method, path string, data []byte) (int, []byte, error) {
	status, body, _, err := p.sendHeader(ctx, method, path, data)
	return status, body, err
}

// sendHeader makes one request. It tries again, waiting longer each time, only where
// the server certainly did nothing: it was not there, or said so by 429 or 503.
func (p *poster) sendHeader(ctx context.Context, method, path string, data []byte) (int, []byte, http.Header, error) {
	wait := 250 * time.Millisecond
	for try := 1; ; try++ {
		status, body, header, err := p.exchange(ctx, method, path, data)
		busy := err == nil && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable)
		if try == attempts || !busy && !notReached(err) {
			return status, body, header, err
		}
		after := time.Duration(0)
		if n, err := strconv.Atoi(header.Get("Retry-After")); err == nil {
			after = min(time.Duration(n)*time.Second, time.Minute)
		}
		select {
		case <-p.stopping.Done():
			return 0, nil, nil, errStopped
		case <-ctx.Done():
			return 0, nil, nil, errStopped
		case <-time.After(max(wait, after)):
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// notReached reports whether no connection could be made.
func notReached(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

func (p *poster) exchange(ctx context.Context, method, path string, data []byte) (status int, body []byte, header http.Header, err error) {
	var content io.Reader
	if data != nil {
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.server+path, content)
	if err != nil {
		return 0, nil, nil, err
	}
	if data != nil {
		req.Header.Set("Content-Type", "application/fhir+json")
		req.Header.Set("Prefer", "return=minimal")
	}
	req.Header.Set("Accept", "application/fhir+json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, resp.Header, err
}
