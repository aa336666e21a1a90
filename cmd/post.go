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
	"strconv"
	"strings"
	"time"
)

// poster sends items to a server.
type poster struct {
	server, token string
	client        *http.Client
}

func newPoster(o loadOptions) *poster {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = o.parallel
	return &poster{server: o.server, token: o.token, client: &http.Client{Transport: t, Timeout: 10 * time.Minute}}
}

// posted is what became of an item.
type posted struct {
	resources int
	failures  []failure
}

// head is what says how a resource is to be sent.
type head struct {
	ResourceType string          `json:"resourceType"`
	ID           string          `json:"id"`
	Type         json.RawMessage `json:"type"` // a string in a Bundle, elsewhere anything
}

// bundle reports whether the resource is a Bundle that asks for something.
func (h head) bundle() bool {
	return h.ResourceType == "Bundle" && (string(h.Type) == `"transaction"` || string(h.Type) == `"batch"`)
}

// post sends one item and reads the answer.
func (p *poster) post(ctx context.Context, it item) posted {
	if it.lines > 0 {
		return p.postLines(ctx, it)
	}
	var h head
	if err := json.Unmarshal(it.data, &h); err != nil || h.ResourceType == "" {
		return failed(failure{Source: it.name, Error: "not a FHIR resource in JSON"})
	}
	if h.bundle() {
		return p.postBundle(ctx, it.data, func(int) string { return it.name })
	}
	method, path := http.MethodPost, "/"+h.ResourceType
	if h.ID != "" {
		method, path = http.MethodPut, path+"/"+url.PathEscape(h.ID)
	}
	status, body, err := p.send(ctx, method, path, it.data)
	if f := refusal(it.name, status, body, err); f != nil {
		return failed(*f)
	}
	return posted{resources: 1}
}

func failed(f failure) posted { return posted{failures: []failure{f}} }

// postLines sends a group of .ndjson lines as one batch.
func (p *poster) postLines(ctx context.Context, it item) posted {
	var out posted
	var batch bytes.Buffer
	var at []int // line of each entry
	batch.WriteString(`{"resourceType":"Bundle","type":"batch","entry":[`)
	number := it.lines
	for line := range bytes.SplitSeq(bytes.TrimSuffix(it.data, []byte("\n")), []byte("\n")) {
		var h head
		if err := json.Unmarshal(line, &h); err != nil || h.ResourceType == "" {
			out.failures = append(out.failures, failure{Source: fmt.Sprintf("%s, line %d", it.name, number), Error: "not a FHIR resource in JSON"})
			number++
			continue
		}
		if len(at) > 0 {
			batch.WriteByte(',')
		}
		method, path := http.MethodPost, h.ResourceType
		if h.ID != "" {
			method, path = http.MethodPut, path+"/"+h.ID
		}
		target, err := json.Marshal(path)
		if err != nil {
			panic(err) // a string always marshals
		}
		fmt.Fprintf(&batch, `{"request":{"method":"%s","url":%s},"resource":%s}`, method, target, line)
		at = append(at, number)
		number++
	}
	if len(at) == 0 {
		return out
	}
	batch.WriteString(`]}`)
	a := p.postBundle(ctx, batch.Bytes(), func(i int) string { return fmt.Sprintf("%s, line %d", it.name, at[i]) })
	a.failures = append(out.failures, a.failures...)
	return a
}

// postBundle sends a batch or transaction; name says what entry i is called.
func (p *poster) postBundle(ctx context.Context, data []byte, name func(i int) string) posted {
	status, body, err := p.send(ctx, http.MethodPost, "", data)
	if f := refusal(name(0), status, body, err); f != nil {
		return failed(*f)
	}
	var answer struct {
		Entry []struct {
			Response struct {
				Status  string          `json:"status"`
				Outcome json.RawMessage `json:"outcome"`
			} `json:"response"`
		} `json:"entry"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return failed(failure{Source: name(0), Status: strconv.Itoa(status), Error: "the answer is not a Bundle: " + err.Error()})
	}
	var out posted
	for i, e := range answer.Entry {
		if strings.HasPrefix(e.Response.Status, "2") {
			out.resources++
			continue
		}
		out.failures = append(out.failures, failure{Source: name(i), Status: e.Response.Status, Outcome: e.Response.Outcome})
	}
	return out
}

// refusal is the failure that an answer is, nil for a success.
func refusal(source string, status int, body []byte, err error) *failure {
	switch {
	case err != nil:
		return &failure{Source: source, Error: err.Error()}
	case status >= 200 && status < 300:
		return nil
	}
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

// send makes one request. It tries again, waiting longer each time, only where
// the server certainly did nothing: it was not there, or said so by 429 or 503.
func (p *poster) send(ctx context.Context, method, path string, data []byte) (int, []byte, error) {
	wait := 250 * time.Millisecond
	for try := 1; ; try++ {
		status, body, after, err := p.once(ctx, method, path, data)
		var dial *net.OpError
		unreachable := errors.As(err, &dial) && dial.Op == "dial"
		busy := err == nil && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable)
		if try == attempts || !unreachable && !busy {
			return status, body, err
		}
		select {
		case <-ctx.Done():
			return status, body, ctx.Err()
		case <-time.After(max(wait, after)):
		}
		wait = min(2*wait, 10*time.Second)
	}
}

func (p *poster) once(ctx context.Context, method, path string, data []byte) (status int, body []byte, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.server+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, 0, err
	}
	if path == "" {
		req.URL.Path += "/"
	}
	req.Header.Set("Content-Type", "application/fhir+json")
	req.Header.Set("Accept", "application/fhir+json")
	req.Header.Set("Prefer", "return=minimal")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if n, convErr := strconv.Atoi(resp.Header.Get("Retry-After")); convErr == nil {
		after = time.Duration(n) * time.Second
	}
	return resp.StatusCode, body, after, err
}
